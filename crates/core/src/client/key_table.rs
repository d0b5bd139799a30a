//! The keys that this process uses: for each key its local queue and its back-off, in one record.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;

use crate::client::contention::KeyBackoff;
use crate::client::local_queue::{LocalQueue, Place};
use crate::ids::LockId;
use crate::time::Reading;
use crate::token::Key;

/// Largest number of keys whose back-off is remembered. It bounds the memory.
const BACKOFFS_MAX: usize = 1024;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct KeyTable {
    records: BTreeMap<HashedKey, KeyRecord>,
    backoffs: usize,
}

/// A key and its hash, which is compared first: nearly all comparisons of keys then compare two numbers. Only keys with
/// equal hashes are compared themselves.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct HashedKey(u64, Key);

impl HashedKey {
    fn new(key: &Key) -> Self {
        const ODD: u64 = 0x517c_c1b7_2722_0a95;
        let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(ODD);
        let (words, rest) = key.as_bytes().as_chunks::<8>();
        let hash = words.iter().fold(0, |hash, word| mix(hash, u64::from_le_bytes(*word)));
        Self(rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte))), key.clone())
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct KeyRecord {
    pub(crate) queue: LocalQueue,
    pub(crate) backoff: Option<KeyBackoff>,
}

impl KeyRecord {
    fn with_backoff(&mut self, now: Reading) -> (&mut LocalQueue, &mut KeyBackoff) {
        let backoff = self.backoff.get_or_insert_default();
        if backoff.is_stale(now) {
            *backoff = KeyBackoff::default();
        }
        (&mut self.queue, backoff)
    }

    fn is_unused(&self) -> bool {
        self.queue.is_empty() && self.backoff.is_none()
    }
}

impl KeyTable {
    /// The queue of a key, unless it is empty.
    pub(crate) fn queue(&self, key: &Key) -> Option<&LocalQueue> {
        self.records
            .get(&HashedKey::new(key))
            .map(|record| &record.queue)
            .filter(|queue| !queue.is_empty())
    }

    /// The queue of a key, which may be empty. If the caller empties it, [`KeyTable::forget_unused`] must follow.
    pub(crate) fn queue_mut(&mut self, key: &Key) -> Option<&mut LocalQueue> {
        self.records.get_mut(&HashedKey::new(key)).map(|record| &mut record.queue)
    }

    /// The queues of these keys, except empty ones.
    pub(crate) fn queues_of<'a>(
        &'a self,
        keys: &'a [Key],
    ) -> impl Iterator<Item = &'a LocalQueue> + Clone {
        keys.iter().filter_map(|key| self.queue(key))
    }

    /// The active callers of these keys. A caller that is active for several of them appears several times.
    pub(crate) fn active<'a>(&'a self, keys: &'a [Key]) -> impl Iterator<Item = &'a Place> + Clone {
        self.queues_of(keys).flat_map(LocalQueue::active)
    }

    pub(crate) fn queues(&self) -> impl Iterator<Item = &LocalQueue> {
        self.records.values().map(|record| &record.queue).filter(|queue| !queue.is_empty())
    }

    /// The record of a key, added if there is none. If it stays unused, [`KeyTable::forget_unused`] must follow.
    pub(crate) fn record(&mut self, key: &Key) -> &mut KeyRecord {
        self.records.entry(HashedKey::new(key)).or_default()
    }

    pub(crate) fn forget_unused(&mut self, key: &Key) {
        if let Entry::Occupied(record) = self.records.entry(HashedKey::new(key))
            && record.get().is_unused()
        {
            record.remove();
        }
    }

    pub(crate) fn backoff(&self, key: &Key) -> Option<&KeyBackoff> {
        self.records.get(&HashedKey::new(key))?.backoff.as_ref()
    }

    /// The queue of a key, and its back-off, both mutable. A new back-off may displace those of other keys, because
    /// their number is bounded. A forgotten back-off costs fairness only.
    pub(crate) fn with_backoff(
        &mut self,
        key: &Key,
        now: Reading,
    ) -> (&mut LocalQueue, &mut KeyBackoff) {
        if self.backoffs >= BACKOFFS_MAX && self.backoff(key).is_none() {
            self.forget_backoffs(|backoff| backoff.is_stale(now));
            if self.backoffs >= BACKOFFS_MAX {
                self.forget_backoffs(|_| true);
            }
        }
        let record = self.records.entry(HashedKey::new(key)).or_default();
        self.backoffs += usize::from(record.backoff.is_none());
        record.with_backoff(now)
    }

    /// The queue and the back-off of a key, if no caller waits for the key and the key has a back-off. Otherwise
    /// `None`.
    pub(crate) fn with_backoff_if_unwanted(
        &mut self,
        key: &Key,
        now: Reading,
    ) -> Option<(&mut LocalQueue, &mut KeyBackoff)> {
        let record = self.records.get_mut(&HashedKey::new(key))?;
        let is_unwanted = record.queue.first_waiting().is_none() && record.backoff.is_some();
        is_unwanted.then(|| record.with_backoff(now))
    }

    fn forget_backoffs(&mut self, is_forgotten: impl Fn(&KeyBackoff) -> bool) {
        self.backoffs = 0;
        self.records.retain(|_, record| {
            record.backoff.take_if(|backoff| is_forgotten(backoff));
            self.backoffs += usize::from(record.backoff.is_some());
            !record.is_unused()
        });
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.forget_backoffs(|backoff| backoff.is_stale(base));
        self.records
            .values_mut()
            .filter_map(|record| record.backoff.as_mut())
            .for_each(|it| it.shift(base));
    }

    pub(crate) fn renumber(&mut self, to: impl Fn(LockId) -> LockId) {
        self.records.values_mut().for_each(|record| record.queue.renumber(&to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use core::time::Duration;

    const ROUND_TRIP: Duration = Duration::from_millis(1);

    fn at(ms: i64) -> Reading {
        Reading::new(ms * 1_000_000, ms * 1_000_000)
    }

    /// The round trip is forgotten with the back-off, because the network path to the nodes may have changed since.
    #[test]
    fn a_stale_backoff_is_forgotten() {
        let (mut table, key) = (KeyTable::default(), Key::from("k"));
        table.with_backoff(&key, at(0)).1.see_rivals(ROUND_TRIP, at(0));
        let step = |table: &KeyTable, now| table.backoff(&"k".into()).and_then(|it| it.step(now));
        assert_eq!(step(&table, at(1)), Some(ROUND_TRIP));
        assert_eq!(step(&table, at(10_001)), None);
        table.shift(at(10_001));
        assert_eq!(table, KeyTable::default());
    }

    #[test]
    fn the_number_of_backoffs_is_bounded_and_queues_stay() {
        use crate::keys::Mode;
        let mut table = KeyTable::default();
        let place = Place { lock: LockId(1), mode: Mode::Exclusive };
        table.record(&"0".into()).queue = LocalQueue::new(place);
        for key in 0..=BACKOFFS_MAX {
            assert_eq!(table.backoffs, key);
            table.with_backoff(&format!("{key}").into(), at(0)).1.see_rivals(ROUND_TRIP, at(0));
            assert!(table.records.len() <= BACKOFFS_MAX);
            if table.backoffs == 1 && key > 0 {
                break;
            }
        }
        assert_eq!((table.backoffs, table.records.len()), (1, 2), "all were fresh, so all went");
        assert!(table.queue(&"0".into()).is_some() && table.backoff(&"0".into()).is_none());
    }
}
