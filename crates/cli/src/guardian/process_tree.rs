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
//! take a look at the process table. The keeper is one as well, and if the guardian is dead, the
//! family is below the keeper, beside what was there before ([`Strangers`]).
//!
//! A group's number cannot be given to another group while one member, even a dead one, is there,
//! so it is used only while one is known to be. A single process is signalled by a descriptor
//! that was compared with the process table after it was opened, for numbers are reused. Another group
//! than the command's own, in which nobody else is, is killed as a whole, through a member that is stopped
//! first so that it stays there: it may fork faster than its members can be killed one by one.

use std::collections::BTreeSet;
use std::io;
use std::process;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, test_kill_process_group,
    wait,
};
#[cfg(target_os = "linux")]
use rustix::process::{PidfdFlags, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};

use super::kill_policy::Ending;
use super::mutants::{Mutant, is_active};
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

/// The command's processes, seen from one that they descend from.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    /// Leads the command's group, once that is known.
    leader: Option<Pid>,
    /// The leader is a child of ours that was not buried yet: the group's number is taken.
    pinned: bool,
    /// For where there is no process table.
    group_empty: bool,
    childless: bool,
    strangers: Strangers,
}

/// What descended from this process before the command did, by number and start: the background jobs
/// of a shell that became this process by exec. What they start is theirs.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    there_before: BTreeSet<(i32, u64)>,
    guardian: Option<i32>,
}

impl Strangers {
    /// All who descend from this process now.
    ///
    /// # Errors
    /// The process table cannot be read now.
    pub(crate) fn look() -> io::Result<Self> {
        if is_childless() {
            return Ok(Self::default());
        }
        let processes = procfs::processes()?.unwrap_or_default();
        let there = procfs::descendants(&processes, me(), |_| false);
        let there = there.iter().map(|process| (process.pid, process.started));
        Ok(Self { there_before: there.collect(), guardian: None })
    }
}

impl ProcessTree {
    /// The family of a child that leads a process group.
    pub(crate) fn led_by(leader: &process::Child) -> Self {
        let leader = Some(Pid::from_child(leader));
        Self { pinned: true, ..Self::below(leader, Strangers::default()) }
    }

    /// The family of a command that a guardian, a child of ours, starts.
    pub(crate) fn guarded_by(guardian: &process::Child, mut strangers: Strangers) -> Self {
        strangers.guardian = Some(Pid::from_child(guardian).as_raw_nonzero().get());
        Self::below(None, strangers)
    }

    fn below(leader: Option<Pid>, strangers: Strangers) -> Self {
        Self { leader, pinned: false, group_empty: false, childless: false, strangers }
    }

    /// The process group of the command, if it is known.
    pub(crate) fn group(&self) -> Option<Pid> {
        self.leader
    }

    /// The guardian has told who leads the group.
    pub(crate) fn is_led_by(&mut self, leader: Option<Pid>) {
        self.leader = leader;
    }

    /// Sends a signal to the command's group, as a terminal would, if its leader lives.
    pub(crate) fn signal_group(&self, signal: Signal) {
        if self.pinned {
            self.reach_group(signal);
        }
    }

    /// Sends a signal to everyone. A stopped process cannot obey one, so it is woken.
    ///
    /// Outside of the group a fork can slip through, and the process table may not be readable for a
    /// moment: SIGKILL is to be repeated until nobody is left.
    pub(crate) fn signal_all(&self, signal: Signal) {
        // Nothing comes before this one where the number is known to be right: on a busy machine the
        // whole table takes its time.
        let known = self.pinned || self.leader_is_there();
        if known {
            self.reach_group(signal);
        }
        let members = self.members();
        let group = self.leader.map(|leader| leader.as_raw_nonzero().get());
        let in_group = |member: &procfs::Process| Some(member.group) == group;
        let is_there = match &members {
            Ok(Some(members)) => members.all.iter().any(in_group),
            Ok(None) => !self.group_empty,
            Err(_) => false,
        };
        if is_there && !known {
            self.reach_group(signal);
        }
        if !(is_active(Mutant::TakeOverOfTheGroupOnly) && self.is_keepers()) {
            let members = members.ok().flatten().unwrap_or_default();
            let others = || members.all.iter().filter(|member| !in_group(member));
            let one_by_one = is_active(Mutant::OneKillInItsPlace) && self.is_keepers();
            if signal == Signal::KILL && !one_by_one {
                for number in &members.groups {
                    if let Some(member) = others().find(|member| member.group == *number) {
                        kill_group_of(member);
                    }
                }
            }
            others().for_each(|member| reach(member, signal));
        }
        if is_there || known {
            self.reach_group(Signal::CONT);
        }
    }

    /// Whether the leader, dead or alive, still has its number.
    fn leader_is_there(&self) -> bool {
        self.find_leader().is_some()
    }

    /// Whether the command's own process lives, as far as can be seen.
    pub(crate) fn leader_lives(&self) -> bool {
        self.find_leader().is_some_and(|leader| leader.alive)
    }

    /// The leader, dead or alive, if it still has its number: it is a child of the guardian's or ours.
    fn find_leader(&self) -> Option<procfs::Process> {
        let leader = procfs::process(self.leader?.as_raw_nonzero().get())?;
        let parent = Some(leader.parent);
        let is_ours = parent == self.strangers.guardian || parent == Some(me());
        (leader.group == leader.pid && is_ours).then_some(leader)
    }

    /// Fails when the group is gone or all of it changed to another user; what follows from either is
    /// decided by looking, not by this result.
    fn reach_group(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            let _ = kill_process_group(leader, signal);
        }
    }

    /// Buries the dead, so many at a time that nothing else has to wait for long. Returns what happened to the
    /// leader since the last call, and whether there may be more to bury.
    pub(crate) fn reap(&mut self) -> (Vec<Change>, bool) {
        let mut changes = Vec::new();
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
        for _ in 0..BURIED_AT_A_TIME {
            let (pid, status) = match wait(options) {
                Ok(Some(change)) => change,
                Ok(None) => return (changes, false),
                Err(Errno::INTR) => continue,
                Err(_) => {
                    self.childless = true;
                    return (changes, false);
                }
            };
            if Some(pid) != self.leader || !self.pinned {
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
            self.pinned = !matches!(change, Change::Ended(_));
            changes.push(change);
        }
        (changes, true)
    }

    /// Whether certainly nobody is left, without a look at the process table. Call [`reap`](Self::reap) first.
    pub(crate) fn is_childless(&self) -> bool {
        self.childless && cfg!(target_os = "linux")
    }

    /// Whether nobody of the family is left. Call [`reap`](Self::reap) first.
    ///
    /// The process table is read one process after the other, so a chain of processes, each of which
    /// starts the next and ends, could slip through. But the orphan of one that ends is ours then, and
    /// when it ends it waits for us to bury it: a look during which nobody of ours died has seen all.
    pub(crate) fn gone(&mut self) -> bool {
        if self.is_childless() {
            return true;
        }
        if is_active(Mutant::ReleaseBeforeGone) && !self.pinned {
            return true;
        }
        match self.leader.map(test_kill_process_group) {
            Some(Err(Errno::SRCH)) => self.group_empty = true,
            // Somebody of another user is there.
            Some(Err(_)) => return false,
            None | Some(Ok(())) => {}
        }
        if is_active(Mutant::TakeOverOfTheGroupOnly) && self.is_keepers() {
            return self.group_empty;
        }
        match self.members() {
            Ok(Some(members)) => members.all.is_empty() && !somebody_died(),
            Ok(None) => self.group_empty,
            Err(_) => false,
        }
    }

    fn is_keepers(&self) -> bool {
        self.strangers.guardian.is_some()
    }

    /// The numbers of those who are left, as far as the process table shows them.
    pub(crate) fn left(&self) -> Vec<i32> {
        let members = self.members().ok().flatten().unwrap_or_default();
        members.all.iter().map(|member| member.pid).collect()
    }

    /// The members as the process table shows them. A dead one that its own parent does not bury
    /// is dead all the same; one that is ours to bury counts until [`reap`](Self::reap) has done
    /// it: nobody else will, and its other threads may outlive its first.
    /// `None`: there is no such table. An error: it cannot be read now.
    fn members(&self) -> io::Result<Option<Members>> {
        let (Some(processes), me) = (procfs::processes()?, me()) else { return Ok(None) };
        let mine = processes.iter().find(|process| process.pid == me);
        let session = mine.ok_or(io::ErrorKind::NotFound)?.session;
        let mut all = procfs::descendants(&processes, me, |process| {
            self.strangers.there_before.contains(&(process.pid, process.started))
        });
        all.retain(|process| {
            (process.alive || process.parent == me)
                && process.session == session
                && Some(process.pid) != self.strangers.guardian
        });
        let numbers: BTreeSet<i32> = all.iter().map(|process| process.pid).collect();
        let mut groups: BTreeSet<i32> = all.iter().map(|process| process.group).collect();
        for process in processes.iter().filter(|process| process.alive) {
            if !numbers.contains(&process.pid) {
                groups.remove(&process.group);
            }
        }
        Ok(Some(Members { all, groups }))
    }
}

/// The members of a family, and the process groups in which nobody else is.
#[derive(Debug, Default)]
struct Members {
    all: Vec<procfs::Process>,
    groups: BTreeSet<i32>,
}

/// Kills the process group of this process, if it still is the one that the table showed. What has been sent
/// SIGSTOP does nothing more by itself, so it does not leave the group meanwhile, nor free its number.
fn kill_group_of(member: &procfs::Process) {
    #[cfg(target_os = "linux")]
    if let (Some(pid), Some(group)) = (Pid::from_raw(member.pid), Pid::from_raw(member.group))
        && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
        && is_the_same(member)
        && pidfd_send_signal(&process, Signal::STOP).is_ok()
        && procfs::process(member.pid).is_some_and(|now| now.group == member.group)
    {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// A command whose orphans die faster than they are buried must not keep us from looking at the time.
const BURIED_AT_A_TIME: usize = 64;

/// Sends a signal to one process, if it still is the one that the table showed.
fn reach(member: &procfs::Process, signal: Signal) {
    let Some(pid) = Pid::from_raw(member.pid) else { return };
    #[cfg(target_os = "linux")]
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => {
            if is_the_same(member) {
                let _ = pidfd_send_signal(&process, signal);
                let _ = pidfd_send_signal(&process, Signal::CONT);
            }
            return;
        }
        Err(Errno::SRCH) => return,
        // A kernel before 5.3, or a sandbox without it.
        Err(_) => {}
    }
    if is_the_same(member) {
        let _ = kill_process(pid, signal);
        let _ = kill_process(pid, Signal::CONT);
    }
}

/// Whether this number is still that process's, and it has not left the session since.
fn is_the_same(member: &procfs::Process) -> bool {
    procfs::process(member.pid)
        .is_some_and(|now| (now.started, now.session) == (member.started, member.session))
}

/// Whether a child has died and was not buried yet.
#[cfg(target_os = "linux")]
fn somebody_died() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, options), Ok(Some(_)))
}

#[cfg(target_os = "linux")]
fn is_childless() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, options), Err(Errno::CHILD))
}

#[cfg(not(target_os = "linux"))]
fn somebody_died() -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn is_childless() -> bool {
    false
}

fn me() -> i32 {
    getpid().as_raw_nonzero().get()
}
