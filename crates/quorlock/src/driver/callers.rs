//! The callers that wait for a reply, and the held locks.

use std::collections::hash_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use quorlock_core::{
    AttemptReport, Detached, Event, Extended, Failure, Hold, LockId, LossCause, NodeResult,
    Refusal, ReleaseReport, Validity,
};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::ReplyTo;
use crate::guard::{DriverSide, GuardToken, LockCell, Reply, Stage};

#[derive(Default)]
pub(super) struct Callers {
    locks: ByLock<DriverSide>,
    /// Number of entries of `locks` at the stage `Held`.
    locks_held: usize,
    extends: ByLock<Vec<oneshot::Sender<Extended>>>,
    pub(super) inspections: ByLock<oneshot::Sender<Inspected>>,
    pub(super) detaching: ByLock<oneshot::Sender<Option<Box<Detached>>>>,
    pub(super) entry_extensions: ByLock<oneshot::Sender<EntryExtended>>,
    entry_releases: ByLock<oneshot::Sender<ReleaseReport>>,
    closing: Vec<oneshot::Sender<()>>,
    /// Number of callers that received a lock or the outcome of a release in this tick.
    notified: usize,
    drained: bool,
}

/// Each node's answer to an inspection, and the reason why its answer that the lock is free does not count.
pub(crate) type Inspected = (Vec<NodeResult>, Vec<Option<Failure>>);

/// The validity of the votes that a quorum prolonged (`None` without a quorum), and the answer of each node.
pub(crate) type EntryExtended = (Option<Validity>, Vec<NodeResult>);

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
                self.detaching.remove(lock);
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
            (Event::Detach { lock }, ReplyTo::Detach(reply)) => {
                self.detaching.insert(*lock, reply);
            }
            (Event::Forget { lock }, _) => {
                self.detaching.remove(lock);
                if let Some(side) = self.locks.remove(lock) {
                    self.locks_held -= usize::from(side.stage == Stage::Held);
                }
            }
            (Event::ExtendEntry { lock, .. }, ReplyTo::ExtendEntry(reply)) => {
                self.entry_extensions.insert(*lock, reply);
            }
            (Event::ReleaseEntry { lock, .. }, ReplyTo::ReleaseEntry(reply)) => {
                self.entry_releases.insert(*lock, reply);
            }
            (Event::Close, ReplyTo::Close(reply)) => self.closing.push(reply),
            _ => {}
        }
    }

    #[inline]
    pub(super) fn grant(&mut self, lock: LockId, id: (GuardToken, Option<u64>), hold: Hold) {
        let Some(side) = self.locks.get_mut(&lock) else { return };
        self.notified += 1;
        let Some(guard) = side.guard(id, hold.mode()) else {
            self.locks.remove(&lock);
            return;
        };
        self.locks_held += 1;
        // A guard that no caller takes is dropped here, which releases its lock.
        drop(side.grant(guard, hold));
    }

    pub(super) fn refuse(&mut self, lock: LockId, refusal: Refusal) {
        if let Some(side) = self.locks.remove(&lock) {
            side.finish(Reply::Refused(Box::new(refusal)));
        }
    }

    /// Reports a failed attempt to a caller that waits for its lock and wants such reports.
    pub(super) fn report(&self, lock: LockId, report: AttemptReport) {
        if let Some(DriverSide { progress: Some(progress), .. }) = self.locks.get(&lock) {
            progress(report);
        }
    }

    pub(super) fn reply_extended(&mut self, lock: LockId, outcome: &Extended) {
        for receiver in self.extends.remove(&lock).into_iter().flatten() {
            // An error means that the caller is gone.
            let _ = receiver.send(outcome.clone());
        }
    }

    #[inline]
    pub(super) fn reply_released(&mut self, lock: LockId, report: ReleaseReport) {
        if let Some(side) = self.locks.remove(&lock) {
            self.notified += 1;
            side.finish(Reply::Released(report));
        } else {
            reply(&mut self.entry_releases, lock, report);
        }
    }

    /// Notes that the client was shut down and owes no release.
    pub(super) fn reply_closed(&mut self) {
        self.drained = true;
        for receiver in self.closing.drain(..) {
            let _ = receiver.send(());
        }
    }

    /// Changes the hold of a lock that a guard has.
    #[inline]
    pub(super) fn held(&self, lock: LockId, change: impl FnOnce(&LockCell)) {
        if let Some(side) = self.locks.get(&lock).filter(|side| side.stage == Stage::Held) {
            change(side);
        }
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
        self.locks.len() == self.locks_held && self.entry_releases.is_empty()
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

/// Sends a reply to the caller that waits for it. If the caller is gone, the reply is dropped.
pub(super) fn reply<T>(receivers: &mut ByLock<oneshot::Sender<T>>, lock: LockId, reply: T) {
    if let Some(receiver) = receivers.remove(&lock) {
        let _ = receiver.send(reply);
    }
}
