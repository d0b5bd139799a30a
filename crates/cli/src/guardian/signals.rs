//! Which signals the guardian does not hear.
//!
//! They are blocked, not ignored and not caught. An ignored signal would be inherited by the
//! command through exec; a caught one would forget that the user had it ignored (nohup). A mask
//! leaves every disposition as the user set it and is taken back by the exec step right before
//! exec. A blocked SIGTTOU is also what lets a background process set the terminal's foreground
//! group. SIGCHLD is not among them: it is what the guardian lives by.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Blocks them all; returns those that the user had not blocked already, as bits.
pub(crate) fn block() -> io::Result<u64> {
    let mut all = SigSet::empty();
    for signal in UNHEARD {
        all.add(signal);
    }
    let before = all.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let ours = UNHEARD.iter().filter(|signal| !before.contains(**signal));
    Ok(ours.fold(0, |bits, signal| bits | bit(*signal)))
}

/// Unblocks those that [`block`] returned.
pub(crate) fn unblock(bits: u64) -> io::Result<()> {
    let mut ours = SigSet::empty();
    for signal in UNHEARD.into_iter().filter(|signal| bits & bit(*signal) != 0) {
        ours.add(signal);
    }
    Ok(ours.thread_unblock()?)
}

fn bit(signal: Signal) -> u64 {
    1 << (signal as i32)
}

/// Everything that a terminal, a shell, a service manager or a resource limit may send to end or
/// stop a process.
const UNHEARD: [Signal; 15] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGPIPE,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGXCPU,
    Signal::SIGXFSZ,
];
