//! The signals that quorlock passes on to the command.
//!
//! A signal that the user has ignored (`nohup`, or a background job of a shell) stays ignored and is not caught,
//! because a command inherits ignored signals but not caught ones.

use std::{fs, io, thread};

use rustix::process::Signal;
use signal_hook::iterator::{Handle, Signals as Caught};
use tokio::sync::mpsc;

/// Signals that this process has caught since this value was created. They wait in a queue.
#[derive(Debug)]
pub(crate) struct Signals {
    caught: mpsc::UnboundedReceiver<Signal>,
    handle: Handle,
}

impl Signals {
    /// # Errors
    /// The process has no descriptor or thread left.
    pub(crate) fn catch() -> io::Result<Self> {
        let ignored = ignored_bits();
        let wanted = PASSED_ON.map(Signal::as_raw).into_iter();
        let wanted = wanted.filter(|signal| ignored & (1 << (signal - 1)) == 0);
        let mut source = Caught::new(wanted)?;
        let handle = source.handle();
        let (sender, caught) = mpsc::unbounded_channel();
        thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in source.forever().filter_map(Signal::from_named_raw) {
                // If the receiver is dropped, the signal is dropped too.
                let _ = sender.send(signal);
            }
        })?;
        Ok(Self { caught, handle })
    }

    /// # Cancel safety
    /// No signal is lost.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.caught.recv().await {
            Some(signal) => signal,
            // The channel is never closed, because the sending thread outlives this value.
            None => std::future::pending().await,
        }
    }

    /// Waits for a signal, such as SIGINT, at which quorlock gives up waiting.
    ///
    /// # Cancel safety
    /// No such signal is lost.
    pub(crate) async fn ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ends_a_wait(signal) {
                return signal;
            }
        }
    }
}

/// Whether quorlock gives up waiting at this signal. At SIGTSTP quorlock stops its own process instead.
pub(crate) fn ends_a_wait(signal: Signal) -> bool {
    if signal == Signal::TSTP {
        // Quorlock catches this signal to pass it on to the command. While no command runs, quorlock stops itself.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
    }
    !matches!(signal, Signal::TSTP | Signal::CONT | Signal::WINCH)
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// The ignored signals of this process, with bit 0 for signal 1. Zero if the system does not report them.
fn ignored_bits() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

/// SIGTSTP is passed on because in a pipeline quorlock may be in the foreground while its command is not. At a Ctrl-Z
/// the command then stops first, and quorlock stops with it.
const PASSED_ON: [Signal; 9] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::CONT,
    Signal::TSTP,
];
