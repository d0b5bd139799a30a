//! When and with what a lease is extended and healed.

use alloc::boxed::Box;

use super::Lease;
use crate::command::Command;
use crate::extend::Extension;
use crate::quorum::NodeSet;
use crate::time::Reading;

impl Lease {
    /// The extension under way, until every node has answered or its time is up.
    pub fn extension(&self) -> Option<&Extension> {
        self.extension.as_deref()
    }

    pub(crate) fn extension_mut(&mut self) -> Option<&mut Extension> {
        self.extension.as_deref_mut()
    }

    /// An extension now would not reach past `max_hold`.
    pub fn may_extend(&self, now: Reading) -> bool {
        mutant!(MaxHoldIgnored) || now.after(self.timing.ttl()) <= self.hold_until
    }

    /// Begins a round of extending. The command goes to every node, also to those without a vote:
    /// their answer tells whether they can be healed.
    pub fn start_extension(&mut self, now: Reading) -> (u32, Command) {
        self.round += 1;
        self.extend_at = None;
        let extension = Extension::start(self.round, self.quorum, self.node_timeout(), now);
        self.extension = Some(Box::new(extension));
        (self.round, self.extend_command())
    }

    /// The round of extending is over: when is the next one?
    pub fn schedule_extension(&mut self, confirmed: bool, started: Reading, now: Reading) {
        if self.automatic {
            let next = if confirmed {
                started.after(self.timing.extend_every())
            } else {
                now.after(self.timing.extend_retry())
            };
            self.extend_at = Some(next);
        }
    }

    /// An automatic extension is due.
    pub fn extension_is_due(&self, now: Reading) -> bool {
        self.extend_at.is_some_and(|at| at.remaining(now).is_zero())
    }

    /// There will be no further automatic extension.
    pub fn stop_extending(&mut self) {
        self.extend_at = None;
    }

    /// The command that puts our key back on nodes that have lost it.
    pub fn heal_command(&mut self, nodes: NodeSet) -> Command {
        if !mutant!(HealNotReached) {
            nodes.iter().for_each(|node| self.reached.insert(node));
        }
        let (key, value, ttl_ms) = (self.key.clone(), self.value.clone(), self.timing.ttl_ms());
        match &self.fenced {
            None => Command::Acquire { key, value, ttl_ms },
            Some(fenced) => {
                let (counter, to) = (fenced.counter.clone(), fenced.fence);
                Command::HealFenced { key, value, ttl_ms, counter, to }
            }
        }
    }

    pub(crate) fn finish_extension(&mut self) {
        self.extension = None;
    }

    fn extend_command(&self) -> Command {
        let (key, value) = (self.key.clone(), self.value.clone());
        let ttl_ms = self.timing.ttl_ms() >> usize::from(mutant!(ExtensionShortens));
        match &self.fenced {
            None => Command::Extend { key, value, ttl_ms },
            Some(fenced) => {
                Command::ExtendFenced { key, value, ttl_ms, counter: fenced.counter.clone() }
            }
        }
    }
}
