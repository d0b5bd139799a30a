//! Quorlock as a job of somebody's shell.

use nix::unistd::{Pid, getpgid, getpgrp, getppid, getsid};
use rustix::process::{Signal, kill_current_process_group};

use super::super::guardian::procfs;
use super::super::guardian::terminal::controlling;

/// Whether somebody is there who could continue this process group if it stopped: a process of
/// the same session and another group that is the parent of one of ours. That is how the kernel
/// tells an orphaned group, whose members a Ctrl-Z does not stop, for the same reason. Without
/// a terminal there is no job control either, whatever the groups look like, and to stop the
/// group would stop a build or a service for good.
pub(super) fn has_shell() -> bool {
    if controlling().is_none() {
        return false;
    }
    let group = getpgrp();
    let session = getsid(None);
    let mut ancestor = getppid();
    // A parent outside of this container has the number 0, for which these calls would mean us.
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

/// Stops the whole job: in a pipeline the others are to stop as well, as if the signal had come
/// from the terminal.
pub(super) fn stop() {
    // One can always signal oneself.
    let _ = kill_current_process_group(Signal::STOP);
}
