//! Quorlock as a job of a shell.

use nix::unistd::{Pid, getpgid, getpgrp, getppid, getsid};
use rustix::process::{Signal, kill_current_process_group};

use super::super::guardian::procfs;
use super::super::guardian::terminal::controlling;

/// Whether a shell could continue this process group after a stop: a member of the group must have a parent in another
/// group of the same session. The kernel uses this rule for orphaned groups, whose members a Ctrl-Z does not stop.
/// Without a terminal there is no job control either, and a stop would hang a build or a service for good.
pub(super) fn has_shell() -> bool {
    if controlling().is_none() {
        return false;
    }
    let group = getpgrp();
    let session = getsid(None);
    let mut ancestor = getppid();
    // A parent outside of this container has the number 0, which the system calls would take for this process.
    while ancestor.as_raw() > 0 {
        if getsid(Some(ancestor)) != session {
            return false;
        }
        if getpgid(Some(ancestor)) != Ok(group) {
            return true;
        }
        let Some(process) = procfs::process(ancestor.as_raw()) else { return false };
        ancestor = Pid::from_raw(process.parent);
    }
    false
}

/// Stops the whole job: like a signal from the terminal, this also stops the other processes of a pipeline.
pub(super) fn stop() {
    // This cannot fail, because a process may always signal its own group.
    let _ = kill_current_process_group(Signal::STOP);
}
