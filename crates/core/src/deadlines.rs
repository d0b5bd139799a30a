//! When the engine has something to do without being asked.
//!
//! What is put in is not taken out when it is put off or has become pointless: each record knows its own deadline, and
//! what it does not know any more is passed over. Now and then such are swept out.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
use core::fmt;
use core::hash::{Hash, Hasher};

use crate::engine::Owner;
use crate::time::BootTime;

/// More than twice as many as there can be, and so many, are swept.
const SLACK: usize = 64;

/// What is due, and when. Two are equal whatever they hold: it follows from the records.
#[derive(Clone, Default)]
pub(crate) struct Deadlines(BinaryHeap<Reverse<(BootTime, Owner)>>);

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
            self.0.extend(deadline.map(|at| Reverse((at, owner))));
        }
    }

    /// The first, whether it is still known or not.
    pub(crate) fn first(&self) -> Option<(BootTime, Owner)> {
        self.0.peek().map(|Reverse(first)| *first)
    }

    /// When the first is due that `is_known` knows.
    pub(crate) fn first_known(
        &self,
        is_known: impl Fn(BootTime, Owner) -> bool,
    ) -> Option<BootTime> {
        match self.first() {
            Some((at, owner)) if is_known(at, owner) => Some(at),
            _ => {
                let all = self.0.iter().map(|Reverse(one)| *one);
                all.filter(|(at, owner)| is_known(*at, *owner)).map(|(at, _)| at).min()
            }
        }
    }

    pub(crate) fn pop_first(&mut self) {
        self.0.pop();
    }

    /// Takes out what `is_known` does not know, if there may be much of it: no more than `count` can be known.
    pub(crate) fn sweep(&mut self, count: usize, is_known: impl Fn(BootTime, Owner) -> bool) {
        if self.0.len() > 2 * count + SLACK {
            let mut all = core::mem::take(&mut self.0).into_vec();
            all.retain(|Reverse((at, owner))| is_known(*at, *owner));
            all.sort_unstable();
            all.dedup();
            self.0 = all.into();
        }
    }
}

impl Extend<(BootTime, Owner)> for Deadlines {
    fn extend<I: IntoIterator<Item = (BootTime, Owner)>>(&mut self, all: I) {
        self.0.extend(all.into_iter().map(Reverse));
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
    use crate::engine::LockId;

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
            assert!(deadlines.0.len() <= 2 + SLACK);
        }
        deadlines.put(Owner::Lease(LockId(2)), &mut None, Some(BootTime::from_nanos(-1)));
        assert_eq!(deadlines.first().map(|(at, _)| at.as_nanos()), Some(-1));
    }
}
