//! Looking at a lock without wanting it.

use core::time::Duration;

use super::{Effect, Engine, Sink, Timed};
use crate::client::deadlines::Owner;
use crate::command::Command;
use crate::ids::{LockId, Ticket, Verb};
use crate::keys::Keys;
use crate::redlock::inspect::Inspection;
use crate::time::Reading;

impl Engine {
    /// Starts an inspection that stands for itself.
    pub(super) fn inspect(
        &mut self,
        lock: LockId,
        keys: Keys,
        timeout: Duration,
        now: Reading,
        out: &mut dyn Sink,
    ) {
        let nodes = self.quorum.all();
        let inspection = Inspection::start(self.quorum, nodes, now.after(timeout), now);
        let ticket = Ticket { lock, round: 0, verb: Verb::Inspect };
        out.push(Effect::Send { nodes, ticket, command: Command::Inspect { keys, intents: None } });
        self.inspections.insert(lock, Timed::new(inspection));
        self.review_inspection(lock, now, out);
    }

    /// Time has passed for an inspection.
    pub(super) fn inspection_is_due(&mut self, lock: LockId, now: Reading, out: &mut dyn Sink) {
        if let Some(Timed { record, .. }) = self.inspections.get_mut(&lock) {
            record.handle_time(now);
        }
        self.review_inspection(lock, now, out);
    }

    pub(super) fn review_inspection(&mut self, lock: LockId, now: Reading, out: &mut dyn Sink) {
        let Some(Timed { record, wake }) = self.inspections.get_mut(&lock) else {
            return;
        };
        let over = record.is_over();
        let deadline = (!over).then(|| record.deadline());
        self.deadlines.put(Owner::Inspection(lock), wake, deadline);
        if over {
            out.push(Effect::Inspected { lock, nodes: record.report(now) });
            self.inspections.remove(&lock);
        }
    }
}
