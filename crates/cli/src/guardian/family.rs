//! Everything that belongs to the command: who gets its signals, and when nobody of it is left.
//!
//! The command runs in a process group of its own, and one signal to the group reaches all of it
//! at once: the kernel holds the list still and lets no fork slip through. That is not enough.
//! `timeout`, an interactive shell or `set -m` move their children to other groups of the same
//! session, and those would work on without a lock. So the family is the group *and* every
//! descendant in this session. A process that calls setsid leaves it: that is what a daemon does
//! to outlive the one who started it.
//!
//! The guardian is a sub-reaper: an orphan of the family becomes its child. Hence "no children
//! left" is the certain answer that nothing is left, and only if a daemon was started does it
//! take a look at the process table.
//!
//! A group's number cannot be given to another group while one member, even a dead one, is there;
//! [`Family`] stops using it when it has seen the group empty.

use std::process;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, test_kill_process_group,
    wait,
};

use super::course::Ending;
use super::procfs;

/// A change of the command's own process, the leader of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It was stopped by this signal.
    Stopped(i32),
    /// It goes on.
    Continued,
    /// It is no more.
    Ended(Ending),
}

/// The command's processes, seen from the guardian.
#[derive(Debug)]
pub(crate) struct Family {
    leader: Pid,
    leader_ended: bool,
    group_empty: bool,
    childless: bool,
}

impl Family {
    /// The family of a child that leads a process group.
    pub(crate) fn new(leader: &process::Child) -> Self {
        Self {
            leader: Pid::from_child(leader),
            leader_ended: false,
            group_empty: false,
            childless: false,
        }
    }

    /// The process group of the command.
    pub(crate) fn group(&self) -> Pid {
        self.leader
    }

    /// Sends a signal to the command's group, as a terminal would.
    pub(crate) fn signal_group(&self, signal: Signal) {
        if !self.group_empty {
            // Fails when the group is gone or all of it changed to another user; what follows
            // from either is decided by looking, not by this result.
            let _ = kill_process_group(self.leader, signal);
        }
    }

    /// Sends a signal to everyone. A stopped process cannot obey one, so it is woken.
    pub(crate) fn signal_all(&self, signal: Signal) {
        self.signal_group(signal);
        let others = self.members().unwrap_or_default().into_iter();
        let others = others.filter(|member| member.group != self.leader.as_raw_nonzero().get());
        for pid in others.filter_map(|member| Pid::from_raw(member.pid)) {
            let _ = kill_process(pid, signal);
            let _ = kill_process(pid, Signal::CONT);
        }
        self.signal_group(Signal::CONT);
    }

    /// Buries the dead and returns what happened to the leader since the last call.
    pub(crate) fn reap(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
        loop {
            let (pid, status) = match wait(options) {
                Ok(Some(change)) => change,
                Ok(None) => return changes,
                Err(Errno::INTR) => continue,
                Err(_) => {
                    self.childless = true;
                    return changes;
                }
            };
            if pid != self.leader || self.leader_ended {
                continue;
            }
            let change = if let Some(code) = status.exit_status() {
                Change::Ended(Ending::Exited { code })
            } else if let Some(signal) = status.terminating_signal() {
                Change::Ended(Ending::Signaled { signal })
            } else if let Some(signal) = status.stopping_signal() {
                Change::Stopped(signal)
            } else {
                Change::Continued
            };
            self.leader_ended = matches!(change, Change::Ended(_));
            changes.push(change);
        }
    }

    /// Whether nobody of the family is left. Call [`reap`](Self::reap) first.
    pub(crate) fn gone(&mut self) -> bool {
        if self.childless && cfg!(target_os = "linux") {
            return true;
        }
        match test_kill_process_group(self.leader) {
            Err(Errno::SRCH) => self.group_empty = true,
            // Somebody of another user is there.
            Err(_) => return false,
            Ok(()) => {}
        }
        self.members().map_or(self.group_empty, |members| members.is_empty())
    }

    /// The members as the process table shows them. A dead one that its own parent does not bury
    /// is dead all the same; one that is ours to bury counts until [`reap`](Self::reap) has done
    /// it: nobody else will, and its other threads may outlive its first.
    fn members(&self) -> Option<Vec<procfs::Process>> {
        let (processes, me) = (procfs::processes()?, getpid().as_raw_nonzero().get());
        let session = processes.iter().find(|process| process.pid == me)?.session;
        let mut members = procfs::descendants(&processes, me);
        members.retain(|process| {
            (process.alive || process.parent == me) && process.session == session
        });
        Some(members)
    }
}
