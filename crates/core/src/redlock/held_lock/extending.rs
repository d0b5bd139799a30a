//! The times and commands of extensions and heals.

use alloc::boxed::Box;
use core::time::Duration;

use super::{Confirmation, HeldLock};
use crate::command::{Command, HealForm};
use crate::keys::{Entry, Mode, Origin};
use crate::redlock::extend::{Extension, Progress};
use crate::redlock::quorum::NodeSet;
use crate::time::{BootTime, Reading};

/// The time of the next automatic extension (`None` if none is scheduled), and the round in flight.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Extending {
    pub(super) at: Option<BootTime>,
    /// Boxed because a round is rarely in flight.
    under_way: Option<Box<Extension>>,
}

impl Extending {
    pub(super) const fn begin(at: Option<BootTime>) -> Self {
        Self { at, under_way: None }
    }

    pub(super) fn shift(&mut self, base: Reading) {
        self.at = self.at.map(|at| at.shifted(base));
        if let Some(extension) = &mut self.under_way {
            extension.shift(base);
        }
    }
}

impl HeldLock {
    /// The round in flight, until every node has answered or timed out; `None` if no round is in flight.
    pub(crate) fn extension(&self) -> Option<&Extension> {
        self.extending.under_way.as_deref()
    }

    pub(crate) fn extension_mut(&mut self) -> Option<&mut Extension> {
        self.extending.under_way.as_deref_mut()
    }

    /// Starts a round of extending. The command also goes to nodes without a vote, because their answer shows whether
    /// they can be healed. `longest` is the longest round trip to any node: the round waits for every node's timeout.
    /// That is at most a quarter of the ttl, so this round is over before the next one is due.
    pub(crate) fn start_extension(&mut self, longest: Duration, now: Reading) -> (u32, Command) {
        self.start_round(longest, now);
        (self.round, self.extend_command())
    }

    fn start_round(&mut self, longest: Duration, now: Reading) {
        self.round += 1;
        let due = now.after(self.timing.node_timeout(longest));
        let extension = Extension::start(self.round, self.quorum, due, now);
        self.extending = Extending { at: None, under_way: Some(Box::new(extension)) };
    }

    /// Turns a writer into a reader without releasing the lock in between. All later commands are those of a reader,
    /// whatever the nodes answer, and the fencing token is gone. The downgrade runs as a round of extending, so it also
    /// heals nodes that lost their vote. But it prolongs no vote.
    pub(crate) fn downgrade(&mut self, longest: Duration, now: Reading) -> (u32, Command) {
        debug_assert!(self.mode() == Mode::Exclusive, "a reader stays one");
        self.entry.mode = Mode::Shared;
        self.fenced = None;
        self.start_round(longest, now);
        self.downgraded_in = Some(self.round);
        let (keys, value) = (self.entry.keys.clone(), self.entry.value.clone());
        (self.round, Command::Downgrade { keys, value })
    }

    /// Sets the time of the next automatic extension. `confirmed`: a quorum confirmed the round begun at `started`.
    pub(crate) fn schedule_extension(&mut self, confirmed: bool, started: Reading, now: Reading) {
        if self.guard.automatic {
            let next = match confirmed {
                // A downgrade prolongs no vote, so the next extension is due now.
                _ if self.downgraded_in == Some(self.round) => now.boot(),
                true => started.after(self.timing.extend_every()),
                false => now.after(self.timing.extend_retry()),
            };
            self.extending.at = Some(next);
        }
    }

    /// Notes how many nodes confirmed the round in flight. The engine calls this when the outcome is clear
    /// (`is_decided`) and when the round is over. Returns whether the holder must be notified, because a quorum stops
    /// or resumes confirming (V15), some node does not confirm, or all nodes confirm again.
    pub(crate) fn note_confirmation(&mut self, is_decided: bool) -> bool {
        let before = self.confirmation;
        let Some(extension) = self.extension() else { return false };
        let is_over = extension.is_over();
        self.confirmation = match extension.progress() {
            Progress::Open => return false,
            Progress::Failed => Confirmation::None,
            Progress::Confirmed if extension.is_confirmed_by_all() => Confirmation::Full,
            Progress::Confirmed if is_over => Confirmation::Quorum,
            // The other nodes may still confirm, so a full confirmation stays full until the round is over.
            Progress::Confirmed => before.min(Confirmation::Quorum),
        };
        match self.confirmation.max(before) {
            Confirmation::Full => false,
            Confirmation::Quorum => is_over,
            Confirmation::None => is_decided || is_over,
        }
    }

    pub(crate) fn extension_is_due(&self, now: Reading) -> bool {
        self.extending.at.is_some_and(|at| at.has_come(now))
    }

    pub(crate) fn stop_extending(&mut self) {
        self.extending.at = None;
    }

    /// Whether nodes that lost the key are to set it again. A lock with the caller's value is not healed, because a
    /// late heal could set this value again after another client's lock.
    pub(crate) fn heals(&self) -> bool {
        self.entry.origin == Origin::Absent && !self.is_detaching()
    }

    /// The command that sets the key again on nodes that lost it.
    pub(crate) fn heal_command(&mut self, nodes: NodeSet) -> Command {
        if !mutant!(HealNotReached) {
            nodes.iter().for_each(|node| self.votes.reached.insert(node));
        }
        self.votes.note_sent(nodes);
        let Entry { keys, mode, value, .. } = self.entry.clone();
        let ttl_ms = self.timing.ttl_ms();
        let form = match (mode, &self.fenced) {
            (Mode::Exclusive, None) => HealForm::Plain,
            (Mode::Exclusive, Some(fenced)) => {
                HealForm::Fenced { counter: fenced.counter.clone(), to: fenced.fence }
            }
            (Mode::Shared, _) => HealForm::Shared,
        };
        Command::Heal { keys, value, ttl_ms, form }
    }

    pub(crate) fn finish_extension(&mut self) {
        self.extending.under_way = None;
    }

    fn extend_command(&self) -> Command {
        let ttl_ms = self.timing.ttl_ms() >> usize::from(mutant!(ExtensionShortens));
        self.entry.extend(ttl_ms, self.fenced.as_ref().map(|fenced| &fenced.counter))
    }
}
