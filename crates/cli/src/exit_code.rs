//! All exit codes of quorlock.

use std::process;

/// The result of a run of quorlock, which determines the process's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCode {
    Success,
    /// `doctor` found nothing worse than warnings. `query` found a free lock.
    Warnings,
    /// `doctor` found errors.
    Errors,
    /// The arguments were wrong (EX_USAGE).
    Usage,
    /// A lease is damaged, or belongs to other nodes (EX_DATAERR).
    Data,
    /// No quorum of nodes answered (EX_UNAVAILABLE).
    NoQuorum,
    /// A fault of quorlock itself, or of the machine (EX_SOFTWARE).
    Internal,
    /// Others hold the lock (EX_TEMPFAIL).
    Held,
    /// The lock fails only because a log-in failed or rights are missing (EX_NOPERM).
    NotAllowed,
    /// The environment or a configuration file was wrong (EX_CONFIG).
    Config,
    Lost,
    CannotRun,
    NotFound,
    /// The command or quorlock was ended by this signal. The code is 128 plus the signal's number.
    Signal(i32),
    /// The command's own code, or the code of `--held-exit-code`.
    Own(u8),
}

impl ExitCode {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Warnings => 1,
            Self::Errors => 2,
            Self::Usage => 64,
            Self::Data => 65,
            Self::NoQuorum => 69,
            Self::Internal => 70,
            Self::Held => 75,
            Self::NotAllowed => 77,
            Self::Config => 78,
            Self::Lost => 79,
            Self::CannotRun => 126,
            Self::NotFound => 127,
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
            Self::Own(code) => code,
        }
    }
}

impl From<ExitCode> for process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.number())
    }
}

pub(crate) const HELP: &str = "\
Exit codes:
  the command's own, or 128+N if signal N ended it
  64   wrong arguments
  65   the lease is damaged, or belongs to other nodes
  69   no quorum of nodes
  70   a fault of quorlock or of the machine
  75   not acquired: held by another (-E changes it)
  77   authentication or missing rights prevent it
  78   wrong environment or file
  79   the lock was lost while the command ran, or is over and not extended
  126  the command cannot be run
  127  there is no such command
Of doctor: 0 all is well, 1 warnings, 2 errors. Of query: 1 the lock is free.";

/// The codes of `acquire`.
pub(crate) const ACQUIRE: &str = "\
Exit codes:
  64   wrong arguments
  69   no quorum of nodes
  70   a fault of quorlock or of the machine: no keeper, no lease file, no
       standard output; the lock was given back
  75   not acquired: held by another
  77   authentication or missing rights prevent it
  78   wrong environment or file
  79   the lock was lost before the lease could be printed
  128+N if signal N ended the wait";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signals_code_is_128_and_its_number() {
        assert_eq!(ExitCode::Signal(15).number(), 143);
        assert_eq!(ExitCode::Signal(2).number(), 130);
    }

    #[test]
    fn the_help_lists_every_fixed_code() {
        use ExitCode::*;
        let fixed =
            [Usage, Data, NoQuorum, Internal, Held, NotAllowed, Config, Lost, CannotRun, NotFound];
        for code in fixed {
            assert!(HELP.contains(&format!("{} ", code.number())), "{code:?}");
        }
    }
}
