//! Records by the number of their lock.
//!
//! Numbers grow, and most records live shortly. So where a record is, is found by its number's distance from the
//! oldest of the last thousand; those that live on are kept in a map.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::mem;

use crate::ids::LockId;

/// So many numbers in a row are looked up by distance.
const WINDOW: u64 = 1024;

/// The room of more records than this is given back when there are none.
const SLOTS_KEPT: usize = 4096;

/// A map whose keys are mostly put in in order, and mostly taken out soon. It iterates in the order of the keys.
#[derive(Clone)]
pub(crate) struct Records<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    /// In which slot the records of these numbers are, from `first` on.
    newest: VecDeque<Option<u32>>,
    first: u64,
    /// And of those below.
    older: BTreeMap<LockId, u32>,
}

impl<T> Records<T> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            newest: VecDeque::new(),
            first: 0,
            older: BTreeMap::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn contains_key(&self, lock: &LockId) -> bool {
        self.slot(*lock).is_some()
    }

    pub(crate) fn get(&self, lock: &LockId) -> Option<&T> {
        self.slots[self.slot(*lock)?].as_ref()
    }

    pub(crate) fn get_mut(&mut self, lock: &LockId) -> Option<&mut T> {
        let slot = self.slot(*lock)?;
        self.slots[slot].as_mut()
    }

    /// Returns what was there.
    pub(crate) fn insert(&mut self, lock: LockId, record: T) -> Option<T> {
        if let Some(slot) = self.slot(lock) {
            return self.slots[slot].replace(record);
        }
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(record);
                slot
            }
            None => {
                self.slots.push(Some(record));
                // Four billion records would not fit into memory.
                (self.slots.len() - 1) as u32
            }
        };
        if lock.0 < self.first {
            self.older.insert(lock, slot);
            return None;
        }
        while lock.0 - self.first >= WINDOW
            && let Some(oldest) = self.newest.pop_front()
        {
            self.older.extend(oldest.map(|slot| (LockId(self.first), slot)));
            self.first += 1;
        }
        if self.newest.is_empty() {
            self.first = lock.0;
        }
        let place = (lock.0 - self.first) as usize;
        if place >= self.newest.len() {
            self.newest.resize(place + 1, None);
        }
        self.newest[place] = Some(slot);
        None
    }

    pub(crate) fn remove(&mut self, lock: &LockId) -> Option<T> {
        let slot = match lock.0.checked_sub(self.first) {
            None => self.older.remove(lock)?,
            Some(place) => {
                let slot = self.newest.get_mut(usize::try_from(place).ok()?)?.take()?;
                while self.newest.front().is_some_and(Option::is_none) {
                    self.newest.pop_front();
                    self.first += 1;
                }
                slot
            }
        };
        self.free.push(slot);
        let record = self.slots[slot as usize].take();
        if self.slots.len() > SLOTS_KEPT && self.is_empty() {
            (self.slots, self.free) = (Vec::new(), Vec::new());
        }
        record
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LockId, &T)> {
        let older = self.older.iter().map(|(lock, slot)| (*lock, *slot));
        let newest = (self.first..).zip(&self.newest);
        let newest = newest.filter_map(|(lock, slot)| Some((LockId(lock), (*slot)?)));
        older
            .chain(newest)
            .filter_map(|(lock, slot)| Some((lock, self.slots[slot as usize].as_ref()?)))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = LockId> {
        self.iter().map(|(lock, _)| lock)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, record)| record)
    }

    /// In no order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    /// The same records with other numbers, in the same order.
    pub(crate) fn renumber(&mut self, to: impl Fn(LockId) -> LockId) {
        let mut old = mem::take(self);
        let keys: Vec<LockId> = old.keys().collect();
        for lock in keys {
            if let Some(record) = old.remove(&lock) {
                self.insert(to(lock), record);
            }
        }
    }

    fn slot(&self, lock: LockId) -> Option<usize> {
        let slot = match lock.0.checked_sub(self.first) {
            Some(place) => (*self.newest.get(usize::try_from(place).ok()?)?)?,
            None => *self.older.get(&lock)?,
        };
        Some(slot as usize)
    }
}

impl<T> Default for Records<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Whatever has been there before.
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

/// Records of which a lock may have several, one for each of its rounds. Most have one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Rounds<T> {
    records: Records<OfLock<T>>,
    len: usize,
}

/// A lock's records, in the order of their rounds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct OfLock<T> {
    first: (u32, T),
    others: Vec<(u32, T)>,
}

impl<T> OfLock<T> {
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
        let mut all = core::iter::once(first).chain(others);
        all.find(|(other, _)| other == round).map(|(_, record)| record)
    }

    pub(crate) fn get_mut(&mut self, (lock, round): &(LockId, u32)) -> Option<&mut T> {
        let mut all = self.records.get_mut(lock)?.iter_mut();
        all.find(|(other, _)| other == round).map(|(_, record)| record)
    }

    pub(crate) fn insert(&mut self, (lock, round): (LockId, u32), record: T) {
        self.remove(&(lock, round));
        self.len += 1;
        let Some(OfLock { first, others }) = self.records.get_mut(&lock) else {
            let first = (round, record);
            self.records.insert(lock, OfLock { first, others: Vec::new() });
            return;
        };
        let mut new = (round, record);
        if new.0 < first.0 {
            mem::swap(&mut new, first);
        }
        let place = others.partition_point(|(other, _)| *other < new.0);
        others.insert(place, new);
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

    /// Takes out the oldest lock's first.
    pub(crate) fn pop_first(&mut self) -> Option<T> {
        let (first, _) = self.iter().next()?;
        self.remove(&first)
    }

    /// A lock's records, in order.
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

    /// In no order.
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
    fn it_is_a_map_in_the_order_of_the_keys() {
        let mut records = Records::new();
        let mut known = BTreeMap::new();
        let mut word: u64 = 1;
        for step in 0..50_000_u64 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            // Mostly growing, with steps back and gaps; one in a hundred lives long.
            let lock = LockId(step + (word >> 40) % 7 + if step > 30_000 { 1 << 40 } else { 0 });
            assert_eq!(records.insert(lock, step), known.insert(lock, step));
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
        for lock in 0..=SLOTS_KEPT as u64 {
            other.insert(LockId(u64::MAX / 2 + lock), lock);
        }
        assert!(other.slots.len() > SLOTS_KEPT);
        for lock in other.keys().collect::<Vec<_>>() {
            other.remove(&lock);
        }
        assert!(other.is_empty() && other.slots.is_empty(), "room is given back");
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
