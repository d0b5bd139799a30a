//! The deadline index: the times at which the engine acts without an event.
//!
//! An entry stays in the index when its record's deadline moves or the record ends. Each record has the time of its
//! valid entry in its field `wake`, and the engine skips all other entries. A sweep removes them.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::hash::{Hash, Hasher};
use core::{fmt, mem};

use crate::ids::LockId;
use crate::redlock::quorum::NodeId;
use crate::time::BootTime;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Owner {
    Call(LockId),
    HeldLock(LockId),
    Release(LockId, u32),
    Inspection(LockId),
    EntryExtension(LockId),
    Node(NodeId),
    Trust(NodeId),
    Close,
}

/// A sweep removes all stale entries if the index has more than two entries per record plus this number of entries.
const SLACK: usize = 64;

/// The deadline index. The engine's records determine its contents, so a comparison of two engines ignores the index.
///
/// Most new entries are later than all existing entries for the same kind of record. Such an entry is appended to a
/// sorted row for its kind. A heap holds all other entries.
#[derive(Clone, Default)]
pub(crate) struct Deadlines {
    rows: [VecDeque<(BootTime, Owner)>; 3],
    others: BinaryHeap<Reverse<(BootTime, Owner)>>,
}

impl Deadlines {
    /// Number of rows, with the heap as the last one.
    pub(crate) const ROWS: usize = 4;

    /// Adds an entry if `deadline` differs from the record's `wake`, and notes the deadline there.
    pub(crate) fn put(
        &mut self,
        owner: Owner,
        wake: &mut Option<BootTime>,
        deadline: Option<BootTime>,
    ) {
        if *wake != deadline {
            *wake = deadline;
            if let Some(at) = deadline {
                self.add(at, owner);
            }
        }
    }

    pub(crate) fn add(&mut self, at: BootTime, owner: Owner) {
        let row = match owner {
            Owner::Call(_) => &mut self.rows[0],
            Owner::HeldLock(_) => &mut self.rows[1],
            _ => &mut self.rows[2],
        };
        match row.back() {
            Some(last) if is_later(last, &(at, owner)) && !mutant!(DeadlineOutOfRow) => {
                self.others.push(Reverse((at, owner)));
            }
            _ => row.push_back((at, owner)),
        }
    }

    /// The first entry of a row, which may be stale; `None` if the row is empty. The heap is the last row.
    pub(crate) fn front(&self, row: usize) -> Option<(BootTime, Owner)> {
        match self.rows.get(row) {
            Some(row) => row.front().copied(),
            None => self.others.peek().map(|Reverse(first)| *first),
        }
    }

    pub(crate) fn pop_front(&mut self, row: usize) {
        match self.rows.get_mut(row) {
            Some(row) => drop(row.pop_front()),
            None => drop(self.others.pop()),
        }
    }

    pub(crate) fn first(&self) -> Option<(BootTime, Owner)> {
        let mut first = self.others.peek().map(|Reverse(first)| first);
        for row in &self.rows {
            if let Some(front) = row.front()
                && first.is_none_or(|first| is_later(first, front))
            {
                first = Some(front);
            }
        }
        first.copied()
    }

    pub(crate) fn first_known(
        &self,
        is_known: impl Fn(BootTime, Owner) -> bool,
    ) -> Option<BootTime> {
        match self.first() {
            Some((at, owner)) if is_known(at, owner) => Some(at),
            _ => {
                let others = self.others.iter().map(|Reverse(one)| one);
                let all = self.rows.iter().flatten().chain(others);
                all.filter(|(at, owner)| is_known(*at, *owner)).map(|(at, _)| *at).min()
            }
        }
    }

    pub(crate) fn pop_first(&mut self) {
        let first = self.first();
        match self.rows.iter_mut().find(|row| row.front() == first.as_ref()) {
            Some(row) => drop(row.pop_front()),
            None => drop(self.others.pop()),
        }
    }

    /// Whether many entries may be stale. `count` is an upper bound of the number of valid entries.
    pub(crate) fn may_be_stale(&self, count: usize) -> bool {
        let rows: usize = self.rows.iter().map(VecDeque::len).sum();
        rows + self.others.len() > 2 * count + SLACK
    }

    pub(crate) fn retain(&mut self, is_known: impl Fn(BootTime, Owner) -> bool) {
        let others = mem::take(&mut self.others).into_vec().into_iter();
        let others = others.map(|Reverse(one)| one);
        let mut all: Vec<_> = self.rows.iter_mut().flat_map(mem::take).chain(others).collect();
        all.retain(|(at, owner)| is_known(*at, *owner));
        all.sort_unstable();
        all.dedup();
        all.into_iter().for_each(|(at, owner)| self.add(at, owner));
    }
}

/// Compares by time. The owner only breaks ties, so that equal engines handle deadlines in the same order.
fn is_later(one: &(BootTime, Owner), other: &(BootTime, Owner)) -> bool {
    one.0 > other.0 || one.0 == other.0 && one.1 > other.1
}

impl PartialEq for Deadlines {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Deadlines {}

impl Hash for Deadlines {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Deadlines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadlines").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LockId;

    #[test]
    fn a_deadline_that_moves_often_does_not_fill_the_index() {
        let mut deadlines = Deadlines::default();
        let mut wake = None;
        for round in 0..100_000 {
            // The deadline alternates between two times, so the index contains many entries with each of these times.
            let at = BootTime::from_nanos(round % 2);
            deadlines.put(Owner::Call(LockId(1)), &mut wake, Some(at));
            if deadlines.may_be_stale(1) {
                deadlines.retain(|at, _| Some(at) == wake);
            }
            assert!(deadlines.rows[0].len() + deadlines.others.len() <= 2 + SLACK);
        }
        deadlines.put(Owner::HeldLock(LockId(2)), &mut None, Some(BootTime::from_nanos(-1)));
        assert_eq!(deadlines.first().map(|(at, _)| at.as_nanos()), Some(-1));
    }
}
