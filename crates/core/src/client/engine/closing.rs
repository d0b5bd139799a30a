//! The end of the client: its calls end, its locks are released, and it waits a moment for commands in flight.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Context, Effect, Engine, RefusalKind};
use crate::client::deadlines::Owner;
use crate::ids::{LockId, Ticket};
use crate::loss::LossCause;
use crate::redlock::quorum::NodeSet;
use crate::time::{BootTime, Reading};

/// Longest time for which a closing client waits for adoptions, which take nodes into use, and for withdrawals of
/// intents, which let readers in again.
const CLOSE_WITHIN: Duration = Duration::from_millis(250);

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Closing {
    pub(super) has_begun: bool,
    /// Time until which a closing client waits for adoptions, which take nodes into use, and for withdrawals of
    /// intents, by which waiting writers keep new readers out. `None` if the client does not wait for them.
    pub(super) drains_by: Option<BootTime>,
    /// Withdrawals of intents that are in flight, each with the nodes that have not answered it. An intent is the key
    /// by which a waiting writer keeps new readers out.
    pub(super) withdrawals: BTreeMap<Ticket, NodeSet>,
}

impl Engine {
    pub(super) fn on_close(&mut self, cx: &mut Context<'_>) {
        let is_first = !core::mem::replace(&mut self.closing.has_begun, true);
        if is_first {
            self.settle_for_a_moment(cx.now);
        }
        self.stop_examinations();
        let waiting: Vec<LockId> = self.calls.keys().collect();
        for lock in waiting {
            self.abandon(lock, RefusalKind::Closed, cx);
        }
        if is_first {
            self.await_withdrawals(cx.now);
        }
        let held: Vec<LockId> = self.held.keys().collect();
        for lock in held {
            self.lose(lock, LossCause::Shutdown, cx);
        }
        self.review_drained(cx);
    }

    pub(super) fn review_drained(&mut self, cx: &mut Context<'_>) {
        if self.closing.has_begun && self.releases.is_empty() && self.has_settled() {
            cx.emit(Effect::Drained);
        }
    }

    /// Lets a closing client wait a moment for commands in flight that take nodes into use (adoption or marker).
    /// Otherwise each short-lived client would start them again.
    pub(super) fn settle_for_a_moment(&mut self, now: Reading) {
        if self.monitor.as_ref().is_some_and(|monitor| monitor.is_adopting()) {
            self.drain_until(now.after(CLOSE_WITHIN));
        }
    }

    /// Lets a closing client wait a moment for its withdrawals of intents, by which writers keep new readers out.
    pub(super) fn await_withdrawals(&mut self, now: Reading) {
        if !self.closing.withdrawals.is_empty() {
            self.drain_until(now.after(CLOSE_WITHIN));
        }
    }

    fn drain_until(&mut self, by: BootTime) {
        self.closing.drains_by = Some(by);
        self.deadlines.add(by, Owner::Close);
    }

    /// Whether no node is being taken into use and no intent is being withdrawn, or the time to wait for that is over.
    pub(super) fn has_settled(&mut self) -> bool {
        if self.closing.drains_by.is_none() {
            return true;
        }
        let is_adopting = self.monitor.as_ref().is_some_and(|monitor| monitor.is_adopting());
        let has_settled = !is_adopting && self.closing.withdrawals.is_empty();
        if has_settled {
            self.closing.drains_by = None;
        }
        has_settled
    }
}
