//! Who says whether something went wrong. Each looks at what was seen from outside, and asks neither
//! quorlock nor its engine. What is asked of holds is in [`holds`](crate::holds).

use std::collections::BTreeMap;

use quorlock_sim::time::Time;

/// Oracle 2: a number that holders read, and write one higher, without any other protection. It is
/// here and not in a file, so that a holder that is stopped between its look at the lock and the
/// write does not write later: no lock with a timeout can prevent that, and none promises to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Witness {
    pub(crate) number: u64,
    /// How often it was written.
    pub(crate) writes: u64,
    /// How often the lock was over when the write arrived.
    pub(crate) too_late: u64,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Yes,
    /// The lock that it relied on was over.
    TooLate,
    /// It was, and what another holder had written since the read is lost.
    OverAnothers {
        was: u64,
    },
}

impl Witness {
    /// Writes one more than what was read, if the lock is held until later than now.
    pub(crate) fn write(&mut self, read: u64, until: Time, now: Time) -> Written {
        if now >= until {
            self.too_late += 1;
            return Written::TooLate;
        }
        let was = self.number;
        self.number = read + 1;
        self.writes += 1;
        if was == read { Written::Yes } else { Written::OverAnothers { was } }
    }

    /// Updates that were lost, in sum.
    pub(crate) fn lost(&self) -> u64 {
        self.writes.abs_diff(self.number)
    }
}

/// Oracle 2 once more, for locks with fences: a store as they are made for. It refuses whoever has a
/// smaller number than one that it has seen, and a new holder shows its number before it reads. It asks
/// for nothing else: not who holds the lock, and not until when. So it is exact whatever happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Store {
    newest: u64,
    pub(crate) number: u64,
    /// How often it was written.
    pub(crate) writes: u64,
    /// How often somebody came with a smaller number than another one before.
    pub(crate) refused: u64,
}

impl Store {
    /// A holder shows its number, and reads.
    pub(crate) fn read(&mut self, fence: u64) -> Option<u64> {
        if self.is_old(fence) {
            return None;
        }
        self.newest = fence;
        Some(self.number)
    }

    /// Writes one more than what was read, unless another one has shown a larger number since.
    pub(crate) fn write(&mut self, fence: u64, read: u64) -> Written {
        if self.is_old(fence) {
            return Written::TooLate;
        }
        self.newest = fence;
        let was = self.number;
        self.number = read + 1;
        self.writes += 1;
        if was == read { Written::Yes } else { Written::OverAnothers { was } }
    }

    fn is_old(&mut self, fence: u64) -> bool {
        let is_old = fence < self.newest;
        self.refused += u64::from(is_old);
        is_old
    }

    /// Updates that were lost, in sum.
    pub(crate) fn lost(&self) -> u64 {
        self.writes.abs_diff(self.number)
    }
}

/// Oracle 6: what a lock protects does not change while readers hold it. They compare numbers of the other two
/// with what they have read before, or have written themselves before they became readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rereading {
    /// How many numbers were compared in time.
    pub(crate) compared: u64,
    /// How many of these had changed.
    pub(crate) changed: u64,
    /// How often the lock was over when the question arrived.
    pub(crate) too_late: u64,
}

impl Rereading {
    /// Whether a number is what was read, unless the lock was held until now at most.
    pub(crate) fn is_unchanged(&mut self, (read, is): (u64, u64), until: Time, now: Time) -> bool {
        if now >= until {
            self.too_late += 1;
            return true;
        }
        self.compared += 1;
        self.changed += u64::from(read != is);
        read == is
    }
}

/// Oracle 4: what keys the nodes have when all clients have been shut down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    /// Right then, by node.
    pub(crate) at_once: BTreeMap<usize, Vec<String>>,
    /// When everything that a client may leave behind is over.
    pub(crate) later: BTreeMap<usize, Vec<String>>,
    /// Connections were replaced until the end, or something else was wrong that has been told: then
    /// keys may be left for a while.
    pub(crate) excused: bool,
}

impl Keys {
    /// Those that should not be there.
    pub(crate) fn wrong(&self) -> impl Iterator<Item = (usize, &String)> {
        let at_once = if self.excused { None } else { Some(&self.at_once) };
        let all = at_once.into_iter().chain([&self.later]).flatten();
        all.flat_map(|(node, keys)| keys.iter().map(|key| (*node, key)))
    }
}

/// Oracle 5: when each client had a lock again after everything was healed. Returns those that had
/// none within the bound.
pub(crate) fn late<'a>(
    clients: impl IntoIterator<Item = (&'a str, Option<Time>)>,
    bound: Time,
) -> Vec<&'a str> {
    let is_late = |after: Option<Time>| after.is_none_or(|after| after > bound);
    clients.into_iter().filter(|(_, after)| is_late(*after)).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_refuses_who_is_behind_and_sees_what_is_lost() {
        let mut store = Store::default();
        assert_eq!((store.read(5), store.write(5, 0)), (Some(0), Written::Yes));
        assert_eq!((store.read(6), store.write(5, 1)), (Some(1), Written::TooLate));
        assert_eq!((store.read(4), store.write(6, 1), store.refused), (None, Written::Yes, 2));
        // Two with one number.
        assert_eq!(store.write(6, 1), Written::OverAnothers { was: 2 });
        assert_eq!(store.lost(), 1);
    }

    #[test]
    fn a_lost_update_is_seen_at_once_and_in_the_end() {
        let mut witness = Witness::default();
        assert_eq!(witness.write(0, 10, 5), Written::Yes);
        assert_eq!(witness.lost(), 0);
        assert_eq!(witness.write(0, 10, 6), Written::OverAnothers { was: 1 });
        assert_eq!((witness.number, witness.writes, witness.lost()), (1, 2, 1));
    }

    #[test]
    fn a_write_after_the_end_of_the_lock_is_not_made() {
        let mut witness = Witness::default();
        assert_eq!(witness.write(0, 10, 10), Written::TooLate);
        assert_eq!(witness, Witness { number: 0, writes: 0, too_late: 1 });
    }

    #[test]
    fn what_a_reader_has_read_must_not_change_as_long_as_it_holds_its_lock() {
        let mut rereading = Rereading::default();
        assert!(rereading.is_unchanged((3, 3), 10, 9) && rereading.is_unchanged((3, 4), 10, 10));
        assert!(!rereading.is_unchanged((3, 4), 10, 9));
        assert_eq!(rereading, Rereading { compared: 2, changed: 1, too_late: 1 });
    }

    #[test]
    fn a_key_that_is_left_is_wrong_unless_it_may_be_there_for_a_while() {
        let left = || BTreeMap::from([(1, vec!["chaos:0".to_owned()])]);
        let keys = Keys { at_once: left(), ..Keys::default() };
        assert_eq!(keys.wrong().count(), 1);
        assert_eq!(Keys { excused: true, ..keys }.wrong().count(), 0);
        let keys = Keys { later: left(), excused: true, ..Keys::default() };
        assert_eq!(keys.wrong().collect::<Vec<_>>(), [(1, &"chaos:0".to_owned())]);
        assert_eq!(Keys::default().wrong().count(), 0);
    }

    #[test]
    fn who_has_no_lock_in_time_is_late() {
        let clients = [("p0/0", Some(10)), ("p0/1", Some(11)), ("p1/0", None)];
        assert_eq!(late(clients, 10), ["p0/1", "p1/0"]);
        assert!(late([("p0/0", Some(10))], 10).is_empty());
    }
}
