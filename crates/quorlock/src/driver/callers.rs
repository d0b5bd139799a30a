//! The callers that wait for a reply, and the held locks.

use std::collections::hash_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quorlock_core::{Effect, Event, Extended, Hold, LockId, LossCause, NodeResult, Reading, Sink};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::{Metrics, ReplyTo, Transports};
use crate::guard::{DriverSide, GuardToken, LockCell, Reply, Stage};
use crate::stats::NodeTrustState;

#[derive(Default)]
pub(super) struct Callers {
    locks: ByLock<DriverSide>,
    /// Number of entries of `locks` at the stage `Held`.
    locks_held: usize,
    extends: ByLock<Vec<oneshot::Sender<Extended>>>,
    inspections: ByLock<oneshot::Sender<Vec<NodeResult>>>,
    closing: Vec<oneshot::Sender<()>>,
    /// Number of callers that received a lock or the outcome of a release in this tick.
    notified: usize,
    drained: bool,
}

/// A map by lock id. The client assigns the ids, so no attacker can choose ids whose hashes collide.
type ByLock<T> = FxHashMap<LockId, T>;

impl Callers {
    /// Remembers the receiver of the reply to an event.
    pub(super) fn expect(&mut self, event: &Event, reply_to: ReplyTo) {
        match (event, reply_to) {
            (Event::Acquire { lock, .. }, ReplyTo::Acquire(call)) => {
                self.locks.insert(*lock, call);
            }
            (Event::Cancel { lock }, _) => {
                if let Entry::Occupied(entry) = self.locks.entry(*lock)
                    && entry.get().stage == Stage::Called
                {
                    entry.remove();
                }
            }
            (Event::Extend { lock }, ReplyTo::Extend(reply)) => {
                self.extends.entry(*lock).or_default().push(reply);
            }
            (Event::Release { lock, report }, _) => {
                let Entry::Occupied(mut entry) = self.locks.entry(*lock) else { return };
                self.locks_held -= usize::from(entry.get().stage == Stage::Held);
                if *report {
                    entry.get_mut().stage = Stage::Releasing;
                } else {
                    entry.remove();
                }
            }
            (Event::Inspect { lock, .. }, ReplyTo::Inspect(reply)) => {
                self.inspections.insert(*lock, reply);
            }
            (Event::Close, ReplyTo::Close(reply)) => self.closing.push(reply),
            _ => {}
        }
    }

    fn grant(&mut self, lock: LockId, id: (GuardToken, Option<u64>), hold: Hold) {
        let Some(side) = self.locks.get_mut(&lock) else { return };
        self.notified += 1;
        let Some(guard) = side.guard(id, hold.mode()) else {
            self.locks.remove(&lock);
            return;
        };
        self.locks_held += 1;
        if let Some(untaken) = side.grant(guard, hold)
            && mutant!(UntakenForgotten)
        {
            std::mem::forget(untaken);
        }
    }

    fn held(&self, lock: LockId) -> Option<&Arc<LockCell>> {
        self.locks.get(&lock).filter(|side| side.stage == Stage::Held).map(|side| &**side)
    }

    fn all_held(&self) -> impl Iterator<Item = &Arc<LockCell>> {
        self.locks.values().filter(|side| side.stage == Stage::Held).map(|side| &**side)
    }

    /// Lets each held lock check its validity after a wall-clock jump. Locks that have expired are lost.
    pub(super) fn look_at_clocks(&self) {
        self.all_held().for_each(|cell| cell.look_at_clocks());
    }

    /// Notifies all holders that their lock is lost, because the driver no longer extends it.
    pub(super) fn lose_all(&self) {
        for cell in self.all_held() {
            // A waker that panics must not prevent the notification of the other holders.
            let _ = catch_unwind(AssertUnwindSafe(|| cell.lose(LossCause::Shutdown)));
        }
    }

    pub(super) fn locks_held(&self) -> usize {
        self.locks_held
    }

    /// Whether no caller waits for a lock or for the end of a release.
    pub(super) fn is_empty(&self) -> bool {
        self.locks.len() == self.locks_held
    }

    /// The number of callers that were notified since the last call of this function.
    pub(super) fn take_notified(&mut self) -> usize {
        std::mem::take(&mut self.notified)
    }

    pub(super) fn notified(&self) -> usize {
        self.notified
    }

    /// Whether the client was shut down and owes no release.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }
}

/// The engine's sink: sends commands to the nodes, and replies to callers.
pub(super) struct Outputs<'a> {
    pub(super) callers: &'a mut Callers,
    pub(super) transports: &'a mut Transports,
    pub(super) names: &'a [Arc<str>],
    pub(super) metrics: &'a Metrics,
    pub(super) now: Reading,
}

impl Sink for Outputs<'_> {
    fn push(&mut self, effect: Effect) {
        let callers = &mut *self.callers;
        // An error of `send` means that the caller is gone, and is ignored.
        match effect {
            Effect::Send { nodes, ticket, command } => self.transports.send(nodes, ticket, command),
            Effect::Acquired { lock, token, handover_count, hold, fence, .. } => {
                callers.grant(lock, (GuardToken::new(token, handover_count), fence), hold);
            }
            Effect::NotAcquired { lock, refusal } => {
                if let Some(side) = callers.locks.remove(&lock) {
                    side.finish(Reply::Refused(Box::new(refusal)));
                }
            }
            Effect::Waiting { lock, report } => {
                if let Some(DriverSide { progress: Some(progress), .. }) = callers.locks.get(&lock)
                {
                    progress(report);
                }
            }
            Effect::Changed { lock, validity } => {
                if let Some(cell) = callers.held(lock) {
                    cell.update(validity);
                }
            }
            Effect::Extended { lock, outcome } => {
                for reply in callers.extends.remove(&lock).into_iter().flatten() {
                    let _ = reply.send(outcome.clone());
                }
            }
            Effect::Health { lock, is_confirmed, is_lost, nodes } => {
                if let Some(cell) = callers.held(lock) {
                    cell.confirm((is_confirmed, is_lost), nodes, self.names);
                }
            }
            Effect::Lost { lock, cause } => {
                if let Some(cell) = callers.held(lock) {
                    if mutant!(LossToldLate) {
                        let cell = cell.clone();
                        let lose_late = async move {
                            tokio::task::yield_now().await;
                            cell.lose(cause);
                        };
                        return drop(tokio::spawn(lose_late));
                    }
                    cell.lose(cause);
                }
            }
            Effect::Released { lock, report } => {
                if let Some(side) = callers.locks.remove(&lock) {
                    callers.notified += 1;
                    side.finish(Reply::Released(report));
                }
            }
            Effect::Inspected { lock, nodes } => {
                if let Some(reply) = callers.inspections.remove(&lock) {
                    let _ = reply.send(nodes);
                }
            }
            Effect::TimedOut { node } => {
                self.metrics.nodes[node.index()].timeouts.fetch_add(1, Ordering::Relaxed);
            }
            Effect::Woken { .. } => {
                self.metrics.wakeups.fetch_add(1, Ordering::Relaxed);
            }
            Effect::Drained => {
                callers.drained = true;
                for reply in callers.closing.drain(..) {
                    let _ = reply.send(());
                }
            }
            Effect::Superseded { lock, .. } => {
                if let Some(cell) = callers.held(lock) {
                    cell.supersede();
                }
            }
            Effect::TrustState { node, trust_state } => {
                let shown = NodeTrustState::new(&trust_state, self.now);
                let name = &self.names[node.index()];
                match shown {
                    NodeTrustState::Refused(_) => tracing::warn!("node {name}: {shown}"),
                    _ => tracing::debug!("node {name}: {shown}"),
                }
                self.metrics.nodes[node.index()].set_trust_state(trust_state);
            }
            Effect::FloorOfFew { node, clocks } => {
                let name = &self.names[node.index()];
                tracing::warn!(
                    "node {name} may have lost its counters of fencing tokens, and its new floor rests on the \
                     clocks of {clocks} other nodes, fewer than a quorum, because the others did not answer; \
                     make sure that the clocks of the nodes agree"
                );
            }
        }
    }
}
