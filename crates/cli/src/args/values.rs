//! Values of options.

use std::time::Duration;

use clap::ValueEnum;
use quorlock::settings::duration;
use rustix::process::Signal;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IfHeld {
    /// Fail with exit code 75, or that of -E.
    Fail,
    /// Skip the command.
    Skip,
    /// Wait until those that hold the lock are done, then skip the command.
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitArg {
    For(Duration),
    Forever,
}

impl std::str::FromStr for WaitArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "forever" {
            return Ok(Self::Forever);
        }
        duration(text).map(Self::For).map_err(|reason| format!("{reason}; or it is \"forever\""))
    }
}

/// The signal for a process whose lock was lost; `None`: no signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OnLost(pub(crate) Option<Signal>);

impl std::str::FromStr for OnLost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_uppercase();
        if name == "NONE" {
            return Ok(Self(None));
        }
        let name = format!("SIG{}", name.strip_prefix("SIG").unwrap_or(&name));
        let signal = name.parse::<nix::sys::signal::Signal>().ok();
        let signal = signal.and_then(|signal| Signal::from_named_raw(signal as i32));
        let told = || "must be a signal's name, such as TERM or USR1, or \"none\"".to_owned();
        signal.map(|signal| Self(Some(signal))).ok_or_else(told)
    }
}

/// Accepts the number of a process other than this one.
pub(super) fn other_process(text: &str) -> Result<i32, String> {
    match text.trim().parse::<i32>() {
        Ok(pid) if pid > 0 && pid.cast_unsigned() != std::process::id() => Ok(pid),
        Ok(pid) if pid > 0 => {
            Err("this is quorlock itself; name the process that holds the lock".to_owned())
        }
        _ => Err("must be a process number; a script names itself by $$, or $fish_pid in fish"
            .to_owned()),
    }
}

/// Accepts only a name that needs no quotes in an ACL command.
pub(super) fn acl_user(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text.is_empty() || !text.chars().all(good) {
        return Err("a user's name has letters, digits, '.', '_' or '-'".to_owned());
    }
    Ok(text.to_owned())
}
