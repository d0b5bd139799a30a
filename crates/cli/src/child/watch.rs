//! The thread that listens to the guardian and takes its place if it dies.

use std::os::fd::AsFd;
use std::process;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use nix::unistd::getpgrp;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid,
};
use tokio::sync::mpsc;

use super::super::guardian::clock::{Alarm, boot_ns};
use super::super::guardian::course::Ending;
use super::super::guardian::procfs;
use super::super::guardian::terminal::Terminal;
use super::super::guardian::wire::{Channel, Message, Next};
use super::{ChildEvent, Shared};

/// What the thread works with.
pub(super) struct Watch {
    listener: Channel,
    guardian: process::Child,
    group: Pid,
    shared: Arc<Shared>,
    events: mpsc::UnboundedSender<ChildEvent>,
}

impl Watch {
    pub(super) fn new(
        listener: Channel,
        guardian: process::Child,
        group: Pid,
        shared: Arc<Shared>,
        events: mpsc::UnboundedSender<ChildEvent>,
    ) -> Self {
        Self { listener, guardian, group, shared, events }
    }

    /// Passes on what the guardian tells until the command has ended.
    pub(super) fn run(mut self) {
        let mut last = self.listen();
        if last.is_none() && !self.shared.abandoned.load(Ordering::Relaxed) {
            last = Some(self.take_over());
        }
        // It ends right after its last word, and a zombie is nothing to leave behind.
        let _ = self.guardian.wait();
        if let Some(event) = last {
            self.tell(event);
        }
    }

    /// Returns the final event, or `None` if the guardian is dead, or was silent when it had to
    /// speak.
    fn listen(&mut self) -> Option<ChildEvent> {
        let alarm = Alarm::new();
        let mut overdue_since = None;
        loop {
            let event = match self.listener.next() {
                Next::Message(Message::Stopped { signal }) => ChildEvent::Stopped { signal },
                Next::Message(Message::Continued) => ChildEvent::Continued,
                Next::Message(message) => return final_event(message),
                Next::Closed => return None,
                Next::Nothing => {
                    let until = self.patience(&mut overdue_since)?;
                    alarm.wait(until, &[self.listener.as_fd()]);
                    continue;
                }
            };
            self.tell(event);
        }
    }

    /// Until when the guardian may be silent. A little after the deadline the keeper sends the
    /// SIGKILL itself, which does no harm if the guardian has sent it; long after, the guardian
    /// must be stopped and there is no more patience. Both are counted from when the keeper
    /// notices: after a suspend the two wake up together.
    fn patience(&self, overdue_since: &mut Option<u64>) -> Option<u64> {
        let now = boot_ns();
        let help_at = self.shared.kill_at_boot_ns.load(Ordering::Relaxed).saturating_add(HELP_NS);
        if now < help_at {
            *overdue_since = None;
            return Some(help_at);
        }
        if overdue_since.is_none() {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
        let give_up_at = overdue_since.get_or_insert(now).saturating_add(GIVE_UP_NS);
        (now < give_up_at).then_some(give_up_at)
    }

    /// Does what the guardian can no longer do.
    fn take_over(&mut self) -> ChildEvent {
        let _ = kill_process_group(self.group, Signal::KILL);
        // A stopped one would come back and find numbers that mean others by then. Its death
        // also makes the command's orphans ours, to bury.
        let _ = self.guardian.kill();
        let _ = self.guardian.wait();
        while !self.group_gone() {
            let _ = kill_process_group(self.group, Signal::KILL);
            thread::sleep(LOOK_AGAIN);
        }
        // The guardian would have done that, too.
        if let Some(keeper) = Pid::from_raw(getpgrp().as_raw()) {
            Terminal::reclaim(keeper, self.group);
        }
        ChildEvent::Unguarded { gone_at_boot_ns: boot_ns() }
    }

    fn group_gone(&self) -> bool {
        while let Ok(Some(_)) = waitpgid(self.group, WaitOptions::NOHANG) {}
        if test_kill_process_group(self.group) == Err(Errno::SRCH) {
            return true;
        }
        // A dead member that its own parent does not bury is dead all the same.
        let group = self.group.as_raw_nonzero().get();
        procfs::processes().is_some_and(|processes| {
            !processes.iter().any(|process| process.alive && process.group == group)
        })
    }

    fn tell(&self, event: ChildEvent) {
        // Without a receiver nobody wants to know.
        let _ = self.events.send(event);
    }
}

fn final_event(message: Message) -> Option<ChildEvent> {
    match message {
        Message::Ended(Ending::Exited { code }) => Some(ChildEvent::Exited { code }),
        Message::Ended(Ending::Signaled { signal }) => Some(ChildEvent::Signaled { signal }),
        Message::Killed { by, gone_at_boot_ns } => Some(ChildEvent::Killed { by, gone_at_boot_ns }),
        // No guardian says anything else at this point, so this one cannot be relied upon.
        _ => None,
    }
}

/// More than a guardian needs, and less than what lies between the deadline and the end of the
/// lock's validity (50 ms at least).
const HELP_NS: u64 = 25_000_000;

/// How long a kill may take, on a busy machine, before the guardian counts as stopped.
pub(super) const GIVE_UP_NS: u64 = 1_000_000_000;

const LOOK_AGAIN: Duration = Duration::from_millis(5);
