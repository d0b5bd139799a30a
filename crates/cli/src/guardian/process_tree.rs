//! The command's processes: sends signals to all of them, and finds out when none is left.
//!
//! The keeper is the `quorlock run` process that holds the lock. It starts the guardian, a second process, which starts
//! the command and ends it in time. If the guardian is dead or stopped, the keeper does this work. Both use this
//! module.
//!
//! **Which processes.** The command runs in a process group of its own. One signal to the group reaches all members at
//! once: the kernel locks the list of members, so no fork is missed. That is not enough: `timeout`, an interactive
//! shell or `set -m` move their children to other groups of the same session. Those children would work on without a
//! lock. So the tree is the group *and* every descendant in this session. A process that calls setsid leaves the
//! session, and the tree: a daemon does that to outlive the process that started it.
//!
//! **When none is left.** The guardian is a sub-reaper: if a parent in the tree ends, its children become children of
//! the guardian. So if the guardian has no children, nothing is left, for certain. If a daemon was started, the
//! guardian always has a child, and reads the process table instead. The keeper is a sub-reaper as well. If the
//! guardian is dead, the tree is below the keeper, together with processes that were there before the command
//! ([`Strangers`]).
//!
//! **Numbers are reused.** The number of a group is not given to another group while a member exists, even a dead one.
//! So the number is used only while a member is known to exist. A single process is signalled through a descriptor: it
//! is opened first and compared with the process table afterwards.
//!
//! **Other groups.** A group other than the command's own, all of whose members belong to the tree, is killed as a
//! whole, because its members may fork faster than they can be killed one by one. One member is stopped first. A
//! stopped member stays in the group, so the group keeps its number.

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
use super::procfs;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Stopped(i32),
    Continued,
    Ended(Ending),
}

/// The command's processes, seen from the process that they descend from: the guardian, or the keeper.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    /// The command's own process, which leads the group. `None`: not known yet.
    leader: Option<Pid>,
    /// The leader is a child of this process, dead or alive, and was not reaped yet. So its number still belongs to the
    /// command's group.
    pinned: bool,
    /// A test signal has found no process in the group. This counts only where there is no process table.
    group_empty: bool,
    /// This process has no children left, dead or alive.
    childless: bool,
    strangers: Strangers,
}

/// Descendants of this process that existed before the command and do not belong to it: for example the background jobs
/// of a shell that became this process by exec. Processes that they start do not belong to the command either.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    /// The number and start time of each of these processes.
    there_before: BTreeSet<(i32, u64)>,
    /// The guardian's process number, only in the keeper. The guardian is not part of the command; its children are.
    guardian: Option<i32>,
}

impl Strangers {
    /// Finds the strangers: all descendants that this process has before the command starts.
    ///
    /// # Errors
    /// The process table cannot be read now.
    pub(crate) fn look() -> io::Result<Self> {
        if is_childless() {
            return Ok(Self::default());
        }
        let processes = procfs::processes()?.unwrap_or_default();
        let descendants = procfs::descendants(&processes, me(), |_| false);
        let there_before = descendants.iter().map(|process| (process.pid, process.started));
        Ok(Self { there_before: there_before.collect(), guardian: None })
    }
}

impl ProcessTree {
    /// In the guardian: the tree of a child that leads a process group.
    pub(crate) fn led_by(leader: &process::Child) -> Self {
        let leader = Some(Pid::from_child(leader));
        Self { pinned: true, ..Self::below(leader, Strangers::default()) }
    }

    /// In the keeper: the tree of a command that the guardian, a child of the keeper, starts.
    pub(crate) fn guarded_by(guardian: &process::Child, mut strangers: Strangers) -> Self {
        strangers.guardian = Some(Pid::from_child(guardian).as_raw_nonzero().get());
        Self::below(None, strangers)
    }

    fn below(leader: Option<Pid>, strangers: Strangers) -> Self {
        Self { leader, pinned: false, group_empty: false, childless: false, strangers }
    }

    pub(crate) fn group(&self) -> Option<Pid> {
        self.leader
    }

    /// Sets the leader of the group, which the guardian has reported to the keeper.
    pub(crate) fn set_leader(&mut self, leader: Option<Pid>) {
        self.leader = leader;
    }

    /// Sends a signal to the command's group, as a terminal does, if this process has not reaped the leader.
    pub(crate) fn signal_group(&self, signal: Signal) {
        if self.pinned {
            self.reach_group(signal);
        }
    }

    /// Sends a signal that ends processes, SIGTERM or SIGKILL, to all of the tree. SIGCONT follows it, because a
    /// stopped process would not react to SIGTERM.
    ///
    /// Outside of the group a fork can be missed, and for a moment the process table may not be readable. So the caller
    /// repeats SIGKILL until no process is left.
    pub(crate) fn signal_all(&self, signal: Signal) {
        // If the group's number certainly still belongs to the command, the group gets the signal before the process
        // table is read, because reading it takes time on a busy machine.
        let known = self.pinned || self.leader_is_there();
        if known {
            self.reach_group(signal);
        }
        let members = self.members();
        let group = self.leader.map(|leader| leader.as_raw_nonzero().get());
        let in_group = |member: &procfs::Process| Some(member.group) == group;
        let group_is_there = match &members {
            Ok(Some(members)) => members.all.iter().any(in_group),
            Ok(None) => !self.group_empty,
            Err(_) => false,
        };
        if group_is_there && !known {
            self.reach_group(signal);
        }
        let members = members.ok().flatten().unwrap_or_default();
        let others = || members.all.iter().filter(|member| !in_group(member));
        if signal == Signal::KILL {
            for number in &members.groups {
                if let Some(member) = others().find(|member| member.group == *number) {
                    kill_group_of(member);
                }
            }
        }
        others().for_each(|member| reach(member, signal));
        if group_is_there || known {
            self.reach_group(Signal::CONT);
        }
    }

    /// Whether the leader's number still belongs to it: its parent has not reaped it.
    fn leader_is_there(&self) -> bool {
        self.find_leader().is_some()
    }

    /// Whether the command's own process lives, as far as the process table shows it.
    pub(crate) fn leader_lives(&self) -> bool {
        self.find_leader().is_some_and(|leader| leader.alive)
    }

    /// The leader as the process table shows it, dead or alive. A process with its number is the leader if it is a
    /// child of the guardian or of this process.
    fn find_leader(&self) -> Option<procfs::Process> {
        let leader = procfs::process(self.leader?.as_raw_nonzero().get())?;
        let parent = Some(leader.parent);
        let is_ours = parent == self.strangers.guardian || parent == Some(me());
        (leader.group == leader.pid && is_ours).then_some(leader)
    }

    /// Sends a signal to the command's group. Ignores errors: sending fails if the group has ended, or if all members
    /// run as another user by now, and [`gone`](Self::gone) distinguishes these cases.
    fn reach_group(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            let _ = kill_process_group(leader, signal);
        }
    }

    /// Reaps dead children, at most [`REAPED_AT_A_TIME`]. Returns the changes of the leader since the last call, and
    /// whether there may be more children to reap.
    pub(crate) fn reap(&mut self) -> (Vec<Change>, bool) {
        let mut changes = Vec::new();
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
        for _ in 0..REAPED_AT_A_TIME {
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

    /// Whether it is certain, without reading the process table, that no process is left. Call [`reap`](Self::reap)
    /// first.
    pub(crate) fn is_childless(&self) -> bool {
        self.childless && cfg!(target_os = "linux")
    }

    /// Whether no process of the tree is left. Call [`reap`](Self::reap) first.
    ///
    /// The process table is read one process at a time, so a chain of processes, each of which starts the next and
    /// ends, could be missed. But when a process of the chain ends, the next one becomes a child of this process. When
    /// that child ends, it stays unreaped until this process reaps it. So if no child is dead after the read, no chain
    /// ran during it, and the read has found every process.
    pub(crate) fn gone(&mut self) -> bool {
        if self.is_childless() {
            return true;
        }
        match self.leader.map(test_kill_process_group) {
            Some(Err(Errno::SRCH)) => self.group_empty = true,
            // Any other error means that the group has a member, which runs as another user.
            Some(Err(_)) => return false,
            None | Some(Ok(())) => {}
        }
        match self.members() {
            Ok(Some(members)) => members.all.is_empty() && !somebody_died(),
            Ok(None) => self.group_empty,
            Err(_) => false,
        }
    }

    /// The numbers of the processes that are left, as far as the process table shows them.
    pub(crate) fn left(&self) -> Vec<i32> {
        let members = self.members().ok().flatten().unwrap_or_default();
        members.all.iter().map(|member| member.pid).collect()
    }

    /// The members of the tree as the process table shows them. A dead process that its own parent does not reap is no
    /// member. A dead child of this process is a member until [`reap`](Self::reap) has reaped it: no other process
    /// reaps it, and its other threads may live longer than its first. `None`: there is no process table. An error: the
    /// table cannot be read now.
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

/// The members of a tree, and the process groups all of whose living members belong to it.
#[derive(Debug, Default)]
struct Members {
    all: Vec<procfs::Process>,
    groups: BTreeSet<i32>,
}

/// Kills the process group of this member, if its number still belongs to the process that the table showed. The member
/// gets SIGSTOP first. A stopped process neither leaves its group nor ends, so the group keeps its number.
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

/// Number of children that are reaped before the deadlines are checked again, because a command's orphans may die
/// faster than they are reaped.
const REAPED_AT_A_TIME: usize = 64;

/// Sends a signal to one process, and SIGCONT after it, if its number still belongs to the process that the table
/// showed.
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
        // A kernel before 5.3 or a sandbox allows no pidfd. Then the signal goes to the process number instead.
        Err(_) => {}
    }
    if is_the_same(member) {
        let _ = kill_process(pid, signal);
        let _ = kill_process(pid, Signal::CONT);
    }
}

/// Whether the member's number still belongs to the same process, and that process is in the same session.
fn is_the_same(member: &procfs::Process) -> bool {
    procfs::process(member.pid)
        .is_some_and(|now| (now.started, now.session) == (member.started, member.session))
}

fn somebody_died() -> bool {
    dead_child() == Ok(true)
}

fn is_childless() -> bool {
    dead_child() == Err(Errno::CHILD)
}

/// Whether a child has died and was not reaped yet. It stays unreaped.
#[cfg(target_os = "linux")]
fn dead_child() -> rustix::io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, options).map(|status| status.is_some())
}

#[cfg(not(target_os = "linux"))]
fn dead_child() -> rustix::io::Result<bool> {
    Ok(false)
}

fn me() -> i32 {
    getpid().as_raw_nonzero().get()
}
