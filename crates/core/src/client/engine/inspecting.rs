//! Inspections: a caller asks for the holder of a lock without acquiring it.

use core::time::Duration;

use super::{Context, Effect, Engine};
use crate::client::deadlines::Owner;
use crate::command::Command;
use crate::ids::{LockId, Ticket, Verb};
use crate::keys::Keys;
use crate::redlock::inspect::Inspection;
use crate::timing::ROUND_TRIPS_AWAITED;

impl Engine {
    pub(super) fn on_inspect(
        &mut self,
        lock: LockId,
        keys: Keys,
        timeout: Duration,
        connect_timeout: Duration,
        cx: &mut Context<'_>,
    ) {
        let nodes = self.quorum.all();
        let longest = self.paths.round_trips.longest().saturating_mul(ROUND_TRIPS_AWAITED);
        let due = cx.now.after(timeout.max(longest));
        let mut inspection = Inspection::start(self.quorum, nodes, due, cx.now)
            .awaiting_connections((connect_timeout, timeout));
        for node in self.paths.connecting() {
            inspection.await_answer(node, None, cx.now);
        }
        let ticket = Ticket { lock, round: 0, verb: Verb::Inspect };
        cx.emit(Effect::Send { nodes, ticket, command: Command::Inspect { keys, intents: None } });
        self.inspections.insert(lock, inspection);
        self.examine_beside(cx);
        self.review_inspection(lock, cx);
    }

    pub(super) fn due_inspection(&mut self, lock: LockId, cx: &mut Context<'_>) {
        if let Some(inspection) = self.inspections.get_mut(&lock) {
            inspection.handle_time(cx.now);
        }
        self.review_inspection(lock, cx);
    }

    pub(super) fn review_inspection(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(inspection) = self.inspections.get_mut(&lock) else {
            return;
        };
        let over = inspection.is_over();
        let deadline = (!over).then(|| inspection.deadline());
        self.deadlines.put(Owner::Inspection(lock), &mut inspection.wake, deadline);
        if over {
            let nodes = inspection.report(cx.now);
            let doubt = |node| self.monitor.as_ref()?.doubt(node, inspection.epoch(node)?, cx.now);
            let doubts = self.quorum.node_ids().map(doubt).collect();
            cx.emit(Effect::Inspected { lock, nodes, doubts });
            self.inspections.remove(&lock);
        }
    }
}
