//! The callers that wait to be told something, and the locks that they hold.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use quorlock_core::{
    AttemptReport, Effect, Event, Extended, Hold, LockId, LossCause, NodeResult, Reading,
    ReleaseReport, Sink,
};
use rustc_hash::FxHashMap;
use tokio::sync::{oneshot, watch};

use super::{AcquireCall, DriverCommand, Metrics, Transports};
use crate::common::Common;
use crate::guard::{CallReply, Granted, Guard, GuardToken, Held};
use crate::reply;
use crate::stats::NodeTrustState;

pub(super) struct Callers {
    /// To give to guards; weak, so that the driver does not keep itself alive.
    common: Weak<Common>,
    calls: ByLock<PendingCall>,
    held: ByLock<Granted>,
    extends: ByLock<Vec<oneshot::Sender<Extended>>>,
    releases: ByLock<reply::Sender<ReleaseReport>>,
    inspections: ByLock<oneshot::Sender<Vec<NodeResult>>>,
    closing: Vec<oneshot::Sender<()>>,
    /// So many callers were given a lock in this tick, or told of a release.
    told: usize,
    drained: bool,
}

/// By the lock's number. This process counts them itself, so nobody can choose them to collide, and
/// hashing need not defend against that.
type ByLock<T> = FxHashMap<LockId, T>;

struct PendingCall {
    resource: Arc<str>,
    progress: Option<watch::Sender<Option<AttemptReport>>>,
    reply: CallReply,
}

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
            told: 0,
            drained: false,
        }
    }

    /// Keeps what the caller is to be told by. Returns what the engine is asked.
    pub(super) fn take(&mut self, command: DriverCommand) -> Event {
        match command {
            DriverCommand::Acquire { lock, call } => {
                let AcquireCall { request, resource, progress, reply } = call;
                self.calls.insert(lock, PendingCall { resource, progress, reply });
                Event::Acquire { lock, request }
            }
            DriverCommand::Cancel { lock } => {
                self.calls.remove(&lock);
                Event::Cancel { lock }
            }
            DriverCommand::Extend { lock, reply } => {
                self.extends.entry(lock).or_default().push(reply);
                Event::Extend { lock }
            }
            DriverCommand::Downgrade { lock, reply } => {
                self.extends.entry(lock).or_default().push(reply);
                Event::Downgrade { lock }
            }
            DriverCommand::RunOut { lock } => Event::RunOut { lock },
            DriverCommand::Release { lock, reply } => {
                self.held.remove(&lock);
                let report = reply.is_some();
                if let Some(reply) = reply {
                    self.releases.insert(lock, reply);
                }
                Event::Release { lock, report }
            }
            DriverCommand::Inspect { lock, keys, timeout, reply } => {
                self.inspections.insert(lock, reply);
                Event::Inspect { lock, keys, timeout }
            }
            DriverCommand::Close { reply } => {
                self.closing.push(reply);
                Event::Close
            }
        }
    }

    fn grant(&mut self, lock: LockId, id: (GuardToken, Option<u64>), hold: Hold) {
        let Some(call) = self.calls.remove(&lock) else { return };
        self.told += 1;
        // No handle is left, and so no caller: what is held is given back in a moment.
        let Some(common) = self.common.upgrade() else { return };
        let (held, reply) = call.reply.grant(Held::new((lock, call.resource), id, hold, &common));
        self.held.insert(lock, held.clone());
        // If the caller has gone, the guard comes back and is dropped, which releases the lock.
        if let Some(untaken) = reply.send(Ok(Guard::new(held, common)))
            && mutant!(UntakenForgotten)
        {
            std::mem::forget(untaken);
        }
    }

    /// Holders look at the clocks themselves, and tell if a lock has run out by the step.
    pub(super) fn look_at_clocks(&self) {
        self.held.values().for_each(|held| held.look_at_clocks());
    }

    /// Nobody extends what is held any more: its holders are told.
    pub(super) fn lose_all(&self) {
        for held in self.held.values() {
            // One whose waker panics must not keep the others from being told.
            let _ = catch_unwind(AssertUnwindSafe(|| held.lose(LossCause::Shutdown)));
        }
    }

    pub(super) fn locks_held(&self) -> usize {
        self.held.len()
    }

    /// Whether nobody waits for a lock, or for news of a release.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.releases.is_empty()
    }

    /// So many callers were told something since this was called last.
    pub(super) fn take_told(&mut self) -> usize {
        std::mem::take(&mut self.told)
    }

    pub(super) fn told(&self) -> usize {
        self.told
    }

    /// Whether the client was shut down and owes nothing.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }
}

/// Carries out the engine's effects as they come: commands go to the lines, all else to callers.
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
        // A reply that nobody waits for any more is no error: whoever asked has gone.
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
                        let told = async move {
                            tokio::task::yield_now().await;
                            held.lose(cause);
                        };
                        return drop(tokio::spawn(told));
                    }
                    held.lose(cause);
                }
            }
            Effect::Released { lock, report } => {
                if let Some(reply) = callers.releases.remove(&lock) {
                    callers.told += 1;
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
                let told = NodeTrustState::new(&trust_state, self.now);
                let name = &self.names[node.index()];
                match told {
                    NodeTrustState::Refused(_) => tracing::warn!("node {name}: {told}"),
                    _ => tracing::debug!("node {name}: {told}"),
                }
                self.metrics.nodes[node.index()].set_trust_state(trust_state);
            }
            Effect::FloorOfFew { node, clocks } => {
                let name = &self.names[node.index()];
                tracing::warn!(
                    "node {name} may have lost its fences' counters, and its new floor rests on the clocks of \
                     {clocks} other nodes, for no more could be reached: fewer than a quorum; see to it that \
                     nodes' clocks agree"
                );
            }
        }
    }
}
