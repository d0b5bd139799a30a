//! The callers that wait for a reply, and the held locks.

use std::collections::hash_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use quorlock_core::{
    Detached, Event, Extended, Hold, LockId, LossCause, NodeResult, ReleaseReport, Validity,
};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::ReplyTo;
use crate::guard::{DriverSide, GuardToken, LockCell, Stage};

#[derive(Default)]
pub(super) struct Callers {
    pub(super) locks: ByLock<DriverSide>,
    /// Number of entries of `locks` at the stage `Held`.
    locks_held: usize,
    pub(super) extends: ByLock<Vec<oneshot::Sender<Extended>>>,
    pub(super) inspections: ByLock<oneshot::Sender<Vec<NodeResult>>>,
    pub(super) detaching: ByLock<oneshot::Sender<Option<Box<Detached>>>>,
    pub(super) entry_extensions: ByLock<oneshot::Sender<EntryExtended>>,
    pub(super) entry_releases: ByLock<oneshot::Sender<ReleaseReport>>,
    pub(super) closing: Vec<oneshot::Sender<()>>,
    /// Number of callers that received a lock or the outcome of a release in this tick.
    pub(super) notified: usize,
    pub(super) drained: bool,
}

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

    pub(super) fn grant(&mut self, lock: LockId, id: (GuardToken, Option<u64>), hold: Hold) {
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

    pub(super) fn held(&self, lock: LockId) -> Option<&Arc<LockCell>> {
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
