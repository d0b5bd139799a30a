//! The local queue of one key: the callers of this process that contend for the key, hold it, or wait for it in FIFO
//! order.
//!
//! Callers of one process exclude each other here, as with a mutex, and cost the nodes nothing. Of the callers that
//! exclude each other, one is active: it talks to the nodes or holds the lock. A caller may also pause although the
//! lock is free, for example because too few nodes answer. It then leaves its place to a waiting caller.
//!
//! Readers do not exclude each other, so several readers may be active. A writer waits for all callers before it and
//! blocks all callers behind it. A lock with several keys waits in the queue of each key, and becomes active in all
//! queues at the same time. A lock that waits only for its other keys does not block callers of this key. If it did, a
//! deadlock would be possible: a lock of `a` and `b` would wait for the holder of `a`, and that holder would wait for
//! `b` behind it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::ids::LockId;
use crate::keys::Mode;

/// The callers of this process that want one key.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct LocalQueue {
    active: Active,
    /// The waiting callers in FIFO order; `None` while no caller waits.
    #[expect(
        clippy::box_collection,
        reason = "most locks that are held are wanted by nobody else"
    )]
    waiting: Option<Box<VecDeque<Place>>>,
}

/// The callers that contend for the key or hold it; usually one.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
enum Active {
    #[default]
    None,
    One(Place),
    Several(Vec<Place>),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Place {
    pub lock: LockId,
    pub mode: Mode,
}

/// The modes of the callers before a place in the queue.
#[derive(Clone, Copy, Default)]
struct Before {
    writer: bool,
    reader: bool,
}

impl Before {
    fn of(places: impl Iterator<Item = Place>) -> Self {
        let mut it = Self::default();
        places.for_each(|place| it.add(place.mode));
        it
    }

    const fn add(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.writer = true,
            Mode::Shared => self.reader = true,
        }
    }

    const fn blocks(self, mode: Mode) -> bool {
        self.writer || self.reader && matches!(mode, Mode::Exclusive)
    }
}

impl LocalQueue {
    pub(crate) const fn new(first: Place) -> Self {
        Self { active: Active::One(first), waiting: None }
    }

    pub(crate) fn active(&self) -> &[Place] {
        match &self.active {
            Active::None => &[],
            Active::One(place) => core::slice::from_ref(place),
            Active::Several(places) => places,
        }
    }

    pub(crate) fn first_waiting(&self) -> Option<LockId> {
        self.waiting.as_ref()?.front().map(|place| place.lock)
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = LockId> {
        self.waiting.iter().flat_map(|waiting| waiting.iter()).map(|place| place.lock)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.active().is_empty() && self.waiting.is_none()
    }

    /// Adds a waiting caller. The order is that of lock ids, so a caller that left its place while it paused returns to
    /// its old place.
    pub(crate) fn join(&mut self, place: Place) {
        let waiting = self.waiting.get_or_insert_default();
        let at = waiting.partition_point(|other| other.lock < place.lock);
        waiting.insert(at, place);
    }

    /// Removes a caller, whether it waits or is active.
    pub(crate) fn leave(&mut self, lock: LockId) {
        match &mut self.active {
            Active::One(place) if place.lock == lock => return self.active = Active::None,
            Active::Several(places) if places.iter().any(|place| place.lock == lock) => {
                places.retain(|place| place.lock != lock);
                if let [last] = places[..] {
                    self.active = Active::One(last);
                }
                return;
            }
            _ => {}
        }
        if let Some(waiting) = &mut self.waiting {
            match waiting.front() {
                Some(first) if first.lock == lock => drop(waiting.pop_front()),
                _ => waiting.retain(|place| place.lock != lock),
            }
        }
        self.waiting.take_if(|waiting| waiting.is_empty());
    }

    pub(crate) fn activate(&mut self, place: Place) {
        self.leave(place.lock);
        match &mut self.active {
            Active::None => self.active = Active::One(place),
            Active::One(other) => {
                debug_assert!(!other.mode.excludes(place.mode), "one at a time, or readers");
                self.active = Active::Several(Vec::from([*other, place]));
            }
            Active::Several(places) => places.push(place),
        }
    }

    /// Replaces the holder `old` by the waiting caller `next`.
    pub(crate) fn hand_over(&mut self, old: LockId, next: LockId) {
        self.leave(next);
        self.with_active(old, |place| place.lock = next);
    }

    pub(crate) fn downgrade(&mut self, lock: LockId) {
        self.with_active(lock, |place| place.mode = Mode::Shared);
    }

    fn with_active(&mut self, lock: LockId, change: impl Fn(&mut Place)) {
        let places = match &mut self.active {
            Active::None => &mut [],
            Active::One(place) => core::slice::from_mut(place),
            Active::Several(places) => &mut places[..],
        };
        places.iter_mut().filter(|place| place.lock == lock).for_each(change);
    }

    /// The waiting callers that no caller in this queue blocks, in FIFO order. Only the first may become active,
    /// because it may block the next.
    pub(crate) fn ready(&self) -> impl Iterator<Item = LockId> {
        let mut before = Before::of(self.active().iter().copied());
        let waiting = self.waiting.iter().flat_map(|waiting| waiting.iter());
        waiting
            .map_while(move |place| {
                if before.writer {
                    return None;
                }
                let is_ready = !before.blocks(place.mode);
                if !is_ready {
                    before.add(place.mode);
                }
                Some(is_ready.then_some(place.lock))
            })
            .flatten()
    }

    /// Whether a new caller would wait. Active callers that `makes_room` selects do not count.
    pub(crate) fn would_wait(&self, mode: Mode, makes_room: impl Fn(LockId) -> bool) -> bool {
        let active = self.active().iter().copied().filter(|place| !makes_room(place.lock));
        let mut before = Before::of(active);
        for place in self.waiting.iter().flat_map(|waiting| waiting.iter()) {
            if before.blocks(place.mode) {
                before.add(place.mode);
            }
        }
        before.blocks(mode)
    }

    pub(crate) fn renumber(&mut self, to: impl Fn(LockId) -> LockId) {
        let active = match &mut self.active {
            Active::None => &mut [],
            Active::One(place) => core::slice::from_mut(place),
            Active::Several(places) => &mut places[..],
        };
        let waiting = self.waiting.iter_mut().flat_map(|waiting| waiting.iter_mut());
        active.iter_mut().chain(waiting).for_each(|place| place.lock = to(place.lock));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(lock: u64) -> Place {
        Place { lock: LockId(lock), mode: Mode::Exclusive }
    }

    fn reader(lock: u64) -> Place {
        Place { lock: LockId(lock), mode: Mode::Shared }
    }

    /// The active callers, and the callers that could become active.
    fn state(queue: &LocalQueue) -> (Vec<u64>, Vec<u64>) {
        let active = queue.active().iter().map(|place| place.lock.0).collect();
        (active, queue.ready().map(|lock| lock.0).collect())
    }

    #[test]
    fn readers_go_together_and_a_writer_holds_back_those_behind_it() {
        let mut queue = LocalQueue::new(reader(1));
        [reader(2), writer(3), reader(4), writer(5)]
            .into_iter()
            .for_each(|place| queue.join(place));
        assert_eq!(state(&queue), ([1].into(), [2].into()));
        queue.activate(reader(2));
        assert_eq!(state(&queue), ([1, 2].into(), [].into()));
        queue.leave(LockId(1));
        assert_eq!(state(&queue), ([2].into(), [].into()), "a writer waits for all before it");
        queue.leave(LockId(2));
        assert_eq!(state(&queue), ([].into(), [3, 4, 5].into()), "only the first may go ahead");
        queue.activate(writer(3));
        assert_eq!(state(&queue), ([3].into(), [].into()));
        queue.downgrade(LockId(3));
        assert_eq!(state(&queue), ([3].into(), [4].into()));
    }

    #[test]
    fn a_writer_that_gives_up_makes_room_for_the_readers_behind_it() {
        let mut queue = LocalQueue::new(reader(1));
        [writer(2), reader(3)].into_iter().for_each(|place| queue.join(place));
        assert!(queue.would_wait(Mode::Shared, |_| false));
        queue.leave(LockId(2));
        assert_eq!(state(&queue), ([1].into(), [3].into()));
        queue.leave(LockId(3));
        assert!(!queue.would_wait(Mode::Shared, |_| false));
        assert!(queue.would_wait(Mode::Exclusive, |_| false));
        assert!(!queue.would_wait(Mode::Exclusive, |lock| lock == LockId(1)));
        queue.leave(LockId(1));
        assert!(queue.is_empty());
    }

    #[test]
    fn a_caller_that_yielded_returns_to_its_place() {
        let mut queue = LocalQueue::new(writer(1));
        [writer(3), writer(2)].into_iter().for_each(|place| queue.join(place));
        assert_eq!(queue.first_waiting(), Some(LockId(2)));
        queue.hand_over(LockId(1), LockId(2));
        assert_eq!(state(&queue), ([2].into(), [].into()));
        assert_eq!(queue.first_waiting(), Some(LockId(3)));
    }
}
