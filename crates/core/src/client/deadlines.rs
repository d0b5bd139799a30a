//! When the engine has something to do without being asked.
//!
//! What is put in is not taken out when it is put off or has become pointless: each record knows its own deadline, and
//! what it does not know any more is passed over. Now and then such are swept out.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::hash::{Hash, Hasher};
use core::{fmt, mem};

use crate::ids::LockId;
use crate::redlock::quorum::NodeId;
use crate::time::BootTime;

/// The record that a deadline belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Owner {
    Call(LockId),
    Lease(LockId),
    Release(LockId, u32),
    Inspection(LockId),
    Node(NodeId),
    Trust(NodeId),
    Close,
}

/// More than twice as many as there can be, and so many, are swept.
const SLACK: usize = 64;

/// What is due, and when. Two are equal whatever they hold: it follows from the records.
///
/// Most of what is put in is due later than all else of its kind: that is kept in a row, and only the rest in a heap.
#[derive(Clone, Default)]
pub(crate) struct Deadlines {
    rows: [VecDeque<(BootTime, Owner)>; 3],
    others: BinaryHeap<Reverse<(BootTime, Owner)>>,
}

impl Deadlines {
    /// Puts a record's deadline in; `wake` is what the record knows of it.
    pub(crate) fn put(
        &mut self,
        owner: Owner,
        wake: &mut Option<BootTime>,
        deadline: Option<BootTime>,
    ) {
        if *wake != deadline {
            *wake = deadline;
            self.extend(deadline.map(|at| (at, owner)));
        }
    }

    /// The first, whether it is still known or not.
    pub(crate) fn first(&self) -> Option<(BootTime, Owner)> {
        let others = self.others.peek().map(|Reverse(first)| first);
        self.rows.iter().filter_map(VecDeque::front).chain(others).min().copied()
    }

    /// When the first is due that `is_known` knows.
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

    /// Takes out what `is_known` does not know, if there may be much of it: no more than `count` can be known.
    pub(crate) fn sweep(&mut self, count: usize, is_known: impl Fn(BootTime, Owner) -> bool) {
        for row in &mut self.rows {
            while let Some((at, owner)) = row.front()
                && !is_known(*at, *owner)
            {
                row.pop_front();
            }
        }
        while let Some(Reverse((at, owner))) = self.others.peek()
            && !is_known(*at, *owner)
        {
            self.others.pop();
        }
        let rows: usize = self.rows.iter().map(VecDeque::len).sum();
        if rows + self.others.len() > 2 * count + SLACK {
            let others = mem::take(&mut self.others).into_vec().into_iter();
            let others = others.map(|Reverse(one)| one);
            let mut all: Vec<_> = self.rows.iter_mut().flat_map(mem::take).chain(others).collect();
            all.retain(|(at, owner)| is_known(*at, *owner));
            all.sort_unstable();
            all.dedup();
            self.extend(all);
        }
    }
}

impl Extend<(BootTime, Owner)> for Deadlines {
    fn extend<I: IntoIterator<Item = (BootTime, Owner)>>(&mut self, all: I) {
        for one in all {
            let row = match one.1 {
                Owner::Call(_) => &mut self.rows[0],
                Owner::Lease(_) => &mut self.rows[1],
                _ => &mut self.rows[2],
            };
            match row.back() {
                Some(last) if *last > one && !mutant!(DeadlineOutOfRow) => {
                    self.others.push(Reverse(one));
                }
                _ => row.push_back(one),
            }
        }
    }
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
    fn what_is_put_off_again_and_again_takes_no_room() {
        let mut deadlines = Deadlines::default();
        let mut wake = None;
        for round in 0..100_000 {
            // Back and forth between two times: both are in it many times.
            let at = BootTime::from_nanos(round % 2);
            deadlines.put(Owner::Call(LockId(1)), &mut wake, Some(at));
            let known = wake;
            deadlines.sweep(1, |at, _| Some(at) == known);
            assert!(deadlines.rows[0].len() + deadlines.others.len() <= 2 + SLACK);
        }
        deadlines.put(Owner::Lease(LockId(2)), &mut None, Some(BootTime::from_nanos(-1)));
        assert_eq!(deadlines.first().map(|(at, _)| at.as_nanos()), Some(-1));
    }
}
