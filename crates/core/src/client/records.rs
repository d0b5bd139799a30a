//! Records by lock id.
//!
//! Lock ids grow, and most records are short-lived. A deque covers the last 1024 ids, and a record in it is found by
//! the distance of its id from the first id. A map holds the older records.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::mem;

use crate::ids::LockId;

/// Number of consecutive ids that the deque covers.
const WINDOW: u64 = 1024;

/// An empty map that has memory for more than this number of records frees it.
const RECORDS_KEPT: usize = 4096;

/// A map for ids that are mostly inserted in order and removed soon. It iterates in the order of the ids.
#[derive(Clone)]
pub(crate) struct Records<T> {
    stored: Vec<Option<T>>,
    free: Vec<u32>,
    /// For each id from `first` on, the index of its record in `stored`.
    newest: VecDeque<Option<u32>>,
    first: u64,
    /// For each id below `first`, the index of its record in `stored`.
    older: BTreeMap<LockId, u32>,
}

impl<T> Records<T> {
    pub(crate) const fn new() -> Self {
        Self {
            stored: Vec::new(),
            free: Vec::new(),
            newest: VecDeque::new(),
            first: 0,
            older: BTreeMap::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.stored.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn contains_key(&self, lock: &LockId) -> bool {
        self.index(*lock).is_some()
    }

    pub(crate) fn get(&self, lock: &LockId) -> Option<&T> {
        self.stored[self.index(*lock)?].as_ref()
    }

    pub(crate) fn get_mut(&mut self, lock: &LockId) -> Option<&mut T> {
        let index = self.index(*lock)?;
        self.stored[index].as_mut()
    }

    /// Adds a record, or replaces the record with the same id. Returns whether the id is new.
    #[inline]
    pub(crate) fn insert(&mut self, lock: LockId, record: T) -> bool {
        if let Some(index) = self.index(lock) {
            self.stored[index] = Some(record);
            return false;
        }
        let index = match self.free.pop() {
            Some(index) => {
                self.stored[index as usize] = Some(record);
                index
            }
            None => {
                self.stored.push(Some(record));
                // The cast loses nothing, because memory cannot hold 2^32 records.
                (self.stored.len() - 1) as u32
            }
        };
        if lock.0 < self.first {
            self.older.insert(lock, index);
            return true;
        }
        while lock.0 - self.first >= WINDOW
            && let Some(oldest) = self.newest.pop_front()
        {
            self.older.extend(oldest.map(|index| (LockId(self.first), index)));
            self.first += 1;
        }
        if self.newest.is_empty() {
            self.first = lock.0;
        }
        let place = (lock.0 - self.first) as usize;
        match self.newest.get_mut(place) {
            Some(known) => *known = Some(index),
            None => {
                while self.newest.len() < place {
                    self.newest.push_back(None);
                }
                self.newest.push_back(Some(index));
            }
        }
        true
    }

    pub(crate) fn remove(&mut self, lock: &LockId) -> Option<T> {
        let index = self.unlink(lock)?;
        let record = self.stored[index].take();
        self.shrink();
        record
    }

    /// Drops a record in its place, which is cheaper than [`Records::remove`]: that function moves the large record.
    pub(crate) fn discard(&mut self, lock: &LockId) {
        if let Some(index) = self.unlink(lock) {
            self.stored[index] = None;
            self.shrink();
        }
    }

    /// Marks the index of a record as free. The caller drops the record.
    fn unlink(&mut self, lock: &LockId) -> Option<usize> {
        let index = match lock.0.checked_sub(self.first) {
            None => self.older.remove(lock)?,
            Some(place) => {
                let index = self.newest.get_mut(usize::try_from(place).ok()?)?.take()?;
                while self.newest.front().is_some_and(Option::is_none) {
                    self.newest.pop_front();
                    self.first += 1;
                }
                index
            }
        };
        self.free.push(index);
        Some(index as usize)
    }

    fn shrink(&mut self) {
        if self.stored.len() > RECORDS_KEPT && self.is_empty() {
            (self.stored, self.free) = (Vec::new(), Vec::new());
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LockId, &T)> {
        let older = self.older.iter().map(|(lock, index)| (*lock, *index));
        let newest = (self.first..).zip(&self.newest);
        let newest = newest.filter_map(|(lock, index)| Some((LockId(lock), (*index)?)));
        older
            .chain(newest)
            .filter_map(|(lock, index)| Some((lock, self.stored[index as usize].as_ref()?)))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = LockId> {
        self.iter().map(|(lock, _)| lock)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, record)| record)
    }

    /// The records in arbitrary order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.stored.iter_mut().flatten()
    }

    /// Gives each record a new id. `to` must keep the order.
    pub(crate) fn renumber(&mut self, to: impl Fn(LockId) -> LockId) {
        let mut old = mem::take(self);
        let keys: Vec<LockId> = old.keys().collect();
        for lock in keys {
            if let Some(record) = old.remove(&lock) {
                self.insert(to(lock), record);
            }
        }
    }

    fn index(&self, lock: LockId) -> Option<usize> {
        let index = match lock.0.checked_sub(self.first) {
            Some(place) => (*self.newest.get(usize::try_from(place).ok()?)?)?,
            None => *self.older.get(&lock)?,
        };
        Some(index as usize)
    }
}

impl<T> Default for Records<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Compares the records, but not their places in memory, which depend on records that were removed earlier.
impl<T: PartialEq> PartialEq for Records<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<T: Eq> Eq for Records<T> {}

impl<T: Hash> Hash for Records<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.len());
        self.iter().for_each(|record| record.hash(state));
    }
}

impl<T: fmt::Debug> fmt::Debug for Records<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Records by lock id and round. Most locks have one round.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Rounds<T> {
    records: Records<OfLock<T>>,
    len: usize,
}

/// The records of one lock in the order of rounds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct OfLock<T> {
    first: (u32, T),
    others: Vec<(u32, T)>,
}

impl<T> OfLock<T> {
    /// Adds a record, or replaces the record of the same round. Returns whether the round is new.
    fn insert(&mut self, round: u32, record: T) -> bool {
        let mut new = (round, record);
        if let Some(known) = self.iter_mut().find(|(known, _)| *known == round) {
            *known = new;
            return false;
        }
        if new.0 < self.first.0 {
            mem::swap(&mut new, &mut self.first);
        }
        let place = self.others.partition_point(|(other, _)| *other < new.0);
        self.others.insert(place, new);
        true
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut (u32, T)> {
        core::iter::once(&mut self.first).chain(&mut self.others)
    }
}

impl<T> Rounds<T> {
    pub(crate) const fn new() -> Self {
        Self { records: Records::new(), len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, (lock, round): &(LockId, u32)) -> Option<&T> {
        let OfLock { first, others } = self.records.get(lock)?;
        if first.0 == *round {
            return Some(&first.1);
        }
        others.iter().find(|(other, _)| other == round).map(|(_, record)| record)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, (lock, round): &(LockId, u32)) -> Option<&mut T> {
        let OfLock { first, others } = self.records.get_mut(lock)?;
        if first.0 == *round {
            return Some(&mut first.1);
        }
        others.iter_mut().find(|(other, _)| other == round).map(|(_, record)| record)
    }

    #[inline]
    pub(crate) fn insert(&mut self, (lock, round): (LockId, u32), record: T) {
        let is_new = match self.records.get_mut(&lock) {
            Some(known) => known.insert(round, record),
            None => {
                let first = (round, record);
                self.records.insert(lock, OfLock { first, others: Vec::new() })
            }
        };
        self.len += usize::from(is_new);
    }

    pub(crate) fn remove(&mut self, (lock, round): &(LockId, u32)) -> Option<T> {
        let known = self.records.get_mut(lock)?;
        let removed = if known.first.0 != *round {
            let place = known.others.iter().position(|(other, _)| other == round)?;
            known.others.remove(place).1
        } else if known.others.is_empty() {
            self.records.remove(lock)?.first.1
        } else {
            mem::replace(&mut known.first, known.others.remove(0)).1
        };
        self.len -= 1;
        Some(removed)
    }

    /// Drops a record. The only record of a lock is dropped in its place, because records are large.
    pub(crate) fn discard(&mut self, (lock, round): &(LockId, u32)) {
        let known = self.records.get(lock);
        if known.is_some_and(|known| known.first.0 == *round && known.others.is_empty()) {
            self.records.discard(lock);
            self.len -= 1;
        } else {
            self.remove(&(*lock, *round));
        }
    }

    /// Removes the first record of the oldest lock.
    pub(crate) fn pop_first(&mut self) -> Option<T> {
        let (first, _) = self.iter().next()?;
        self.remove(&first)
    }

    /// The records of a lock in the order of rounds.
    pub(crate) fn of_mut(&mut self, lock: LockId) -> impl Iterator<Item = (u32, &mut T)> {
        let known = self.records.get_mut(&lock).into_iter();
        known.flat_map(OfLock::iter_mut).map(|(round, record)| (*round, record))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ((LockId, u32), &T)> {
        self.records.iter().flat_map(|(lock, OfLock { first, others })| {
            let all = core::iter::once(first).chain(others);
            all.map(move |(round, record)| ((lock, *round), record))
        })
    }

    /// The records in arbitrary order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.records.values_mut().flat_map(OfLock::iter_mut).map(|(_, record)| record)
    }

    pub(crate) fn renumber(&mut self, to: impl Fn(LockId) -> LockId) {
        self.records.renumber(to);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn records_are_a_map_in_the_order_of_ids() {
        let mut records = Records::new();
        let mut known = BTreeMap::new();
        let mut word: u64 = 1;
        for step in 0..50_000_u64 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            // Ids mostly grow, with gaps and steps back. One record in a hundred is never removed.
            let lock = LockId(step + (word >> 40) % 7 + if step > 30_000 { 1 << 40 } else { 0 });
            assert_eq!(records.insert(lock, step), known.insert(lock, step).is_none());
            let old = LockId(lock.0.saturating_sub((word >> 50) % 50));
            if !old.0.is_multiple_of(100) {
                assert_eq!(records.remove(&old), known.remove(&old));
            }
            assert_eq!(records.get(&old), known.get(&old));
            assert_eq!(records.get(&lock), known.get(&lock));
            assert_eq!(records.len(), known.len());
        }
        assert!(records.newest.len() <= WINDOW as usize);
        let pairs = |it: &Records<u64>| it.iter().map(|(lock, it)| (lock, *it)).collect::<Vec<_>>();
        assert_eq!(pairs(&records), known.into_iter().collect::<Vec<_>>());
        let mut other = records.clone();
        for lock in 0..=RECORDS_KEPT as u64 {
            other.insert(LockId(u64::MAX / 2 + lock), lock);
        }
        assert!(other.stored.len() > RECORDS_KEPT);
        for lock in other.keys().collect::<Vec<_>>() {
            other.remove(&lock);
        }
        assert!(other.is_empty() && other.stored.is_empty(), "the memory is freed");
        let mut other = records.clone();
        other.renumber(|lock| lock);
        assert_eq!(other, records);
        other.renumber(|lock| LockId(lock.0 + 1));
        assert!(other != records && other.values().eq(records.values()));
    }

    #[test]
    fn a_lock_may_have_a_record_for_each_of_its_rounds() {
        let (one, other) = (LockId(1), LockId(2));
        let mut rounds = Rounds::new();
        for (key, record) in [((one, 2), 'b'), ((other, 1), 'd'), ((one, 3), 'c'), ((one, 1), 'a')]
        {
            rounds.insert(key, record);
        }
        assert_eq!(
            (rounds.len(), rounds.get(&(one, 3)), rounds.get(&(one, 4))),
            (4, Some(&'c'), None)
        );
        assert!(rounds.iter().map(|(_, record)| *record).eq("abcd".chars()));
        assert!(rounds.of_mut(one).map(|(round, record)| (round, *record)).eq([
            (1, 'a'),
            (2, 'b'),
            (3, 'c')
        ]));
        assert_eq!(rounds.remove(&(one, 1)), Some('a'));
        assert_eq!(rounds.remove(&(one, 3)), Some('c'));
        assert_eq!(rounds.remove(&(one, 3)), None);
        assert!(rounds.iter().map(|(_, record)| *record).eq("bd".chars()));
        assert_eq!(
            (rounds.remove(&(one, 2)), rounds.remove(&(one, 2)), rounds.len()),
            (Some('b'), None, 1)
        );
    }
}
