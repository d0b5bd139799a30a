//! The callers that wait for a reply, and the locks that they hold.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use quorlock_core::{Effect, Event, Extended, Hold, LockId, LossCause, NodeResult, Reading, Sink};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::{Metrics, PendingCall, ReplyTo, Transports};
use crate::common::Common;
use crate::guard::{Granted, Guard, GuardToken, Held, ReportSender};
use crate::stats::NodeTrustState;

pub(super) struct Callers {
    /// The new guards' reference to the client. Weak, so that the driver does not keep the client alive.
    common: Weak<Common>,
    calls: ByLock<PendingCall>,
    held: ByLock<Granted>,
    extends: ByLock<Vec<oneshot::Sender<Extended>>>,
    releases: ByLock<ReportSender>,
    inspections: ByLock<oneshot::Sender<Vec<NodeResult>>>,
    closing: Vec<oneshot::Sender<()>>,
    /// Number of callers that received a lock or the outcome of a release in this tick.
    notified: usize,
    drained: bool,
}

/// A map by lock id. The client assigns the ids, so no attacker can choose ids whose hashes collide.
type ByLock<T> = FxHashMap<LockId, T>;

impl Callers {
    pub(super) fn new(common: Weak<Common>) -> Self {
        Self {
            common,
            calls: ByLock::default(),
            held: ByLock::default(),
            extends: ByLock::default(),
            releases: ByLock::default(),
            inspections: ByLock::default(),
            closing: Vec::new(),
            notified: 0,
            drained: false,
        }
    }

    /// Remembers the receiver of the reply to an event.
    pub(super) fn expect(&mut self, event: &Event, reply_to: ReplyTo) {
        match (event, reply_to) {
            (Event::Acquire { lock, .. }, ReplyTo::Acquire(call)) => {
                self.calls.insert(*lock, call);
            }
            (Event::Cancel { lock }, _) => {
                self.calls.remove(lock);
            }
            (Event::Extend { lock }, ReplyTo::Extend(reply)) => {
                self.extends.entry(*lock).or_default().push(reply);
            }
            (Event::Release { lock, .. }, reply_to) => {
                self.held.remove(lock);
                if let ReplyTo::Release(reply) = reply_to {
                    self.releases.insert(*lock, reply);
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
        let Some(call) = self.calls.remove(&lock) else { return };
        self.notified += 1;
        // Without a handle no caller waits, and the closing client releases the lock.
        let Some(common) = self.common.upgrade() else { return };
        let (held, reply) = call.reply.grant(Held::new((lock, call.resource), id, hold, &common));
        self.held.insert(lock, held.clone());
        // If the caller is gone, `send` returns the guard. Dropping the guard releases the lock.
        if let Some(untaken) = reply.send(Ok(Guard::new(held, common)))
            && mutant!(UntakenForgotten)
        {
            std::mem::forget(untaken);
        }
    }

    /// Lets each held lock check its validity after a wall-clock jump. Locks that have expired are lost.
    pub(super) fn look_at_clocks(&self) {
        self.held.values().for_each(|held| held.look_at_clocks());
    }

    /// Notifies all holders that their lock is lost, because the driver no longer extends it.
    pub(super) fn lose_all(&self) {
        for held in self.held.values() {
            // A waker that panics must not prevent the notification of the other holders.
            let _ = catch_unwind(AssertUnwindSafe(|| held.lose(LossCause::Shutdown)));
        }
    }

    pub(super) fn locks_held(&self) -> usize {
        self.held.len()
    }

    /// Whether no caller waits for a lock or for the end of a release.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.releases.is_empty()
    }

    /// Callers notified since the last call of this function.
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
        // Errors of `send` are ignored: the caller is gone.
        match effect {
            Effect::Send { nodes, ticket, command } => self.transports.send(nodes, ticket, command),
            Effect::Acquired { lock, token, handover_count, hold, fence, .. } => {
                callers.grant(lock, (GuardToken::new(token, handover_count), fence), hold);
            }
            Effect::NotAcquired { lock, refusal } => {
                if let Some(call) = callers.calls.remove(&lock) {
                    call.reply.refuse(refusal);
                }
            }
            Effect::Waiting { lock, report } => {
                if let Some(PendingCall { progress: Some(progress), .. }) = callers.calls.get(&lock)
                {
                    progress.send_replace(Some(report));
                }
            }
            Effect::Changed { lock, validity } => {
                if let Some(held) = callers.held.get(&lock) {
                    held.update(validity);
                }
            }
            Effect::Extended { lock, outcome } => {
                for reply in callers.extends.remove(&lock).into_iter().flatten() {
                    let _ = reply.send(outcome.clone());
                }
            }
            Effect::Health { lock, is_confirmed, is_lost, nodes } => {
                if let Some(held) = callers.held.get(&lock) {
                    held.confirm((is_confirmed, is_lost), nodes, self.names);
                }
            }
            Effect::Lost { lock, cause } => {
                if let Some(held) = callers.held.get(&lock).cloned() {
                    if mutant!(LossToldLate) {
                        let lose_late = async move {
                            tokio::task::yield_now().await;
                            held.lose(cause);
                        };
                        return drop(tokio::spawn(lose_late));
                    }
                    held.lose(cause);
                }
            }
            Effect::Released { lock, report } => {
                if let Some(reply) = callers.releases.remove(&lock) {
                    callers.notified += 1;
                    let _ = reply.send(report);
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
                if let Some(held) = callers.held.get(&lock) {
                    held.supersede();
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
                    "node {name} may have lost its counters of fencing tokens, and its new floor rests on the clocks of \
                     {clocks} other nodes, for no more could be reached: fewer than a quorum; see to it that \
                     nodes' clocks agree"
                );
            }
        }
    }
}
