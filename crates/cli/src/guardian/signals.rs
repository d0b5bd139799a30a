//! The signals that the guardian blocks.
//!
//! Each signal is blocked, not ignored or caught. The command would inherit an ignored signal through exec. A caught
//! signal would not stay ignored in the command if the user had it ignored (nohup). A mask keeps every disposition as
//! the user has set it, and the exec step restores the mask right before exec. With SIGTTOU blocked, a background
//! process may set the terminal's foreground group. SIGCHLD is not blocked, because the guardian needs it.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Blocks the signals in [`UNHEARD`]. Returns the bits of those that were not blocked before.
pub(crate) fn block() -> io::Result<u64> {
    let before = SigSet::from_iter(UNHEARD).thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let ours = UNHEARD.iter().filter(|signal| !before.contains(**signal));
    Ok(ours.fold(0, |bits, signal| bits | bit(*signal)))
}

pub(crate) fn unblock(bits: u64) -> io::Result<()> {
    let ours = UNHEARD.into_iter().filter(|signal| bits & bit(*signal) != 0);
    Ok(SigSet::from_iter(ours).thread_unblock()?)
}

fn bit(signal: Signal) -> u64 {
    1 << (signal as i32)
}

/// All signals by which a terminal, a shell, a service manager or a resource limit may end or stop a process.
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
