//! The oracles: checks that judge a round by observations from outside. They ask neither quorlock nor its engine. The
//! oracles about holds are in [`holds`](crate::holds).

use std::collections::BTreeMap;

use quorlock_sim::time::Time;

/// Oracle 2: a number that holders read and increment, protected only by the lock. The number is kept in this process
/// and not in a file. Otherwise the write of a holder that was stopped after its check of the lock could be carried out
/// later. No lock with a timeout can prevent such a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Witness {
    pub(crate) number: u64,
    pub(crate) writes: u64,
    /// The number of writes that arrived after the lock had ended.
    pub(crate) too_late: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Yes,
    TooLate,
    /// The number had changed since the holder read it, so the write undid another holder's write.
    OverAnothers {
        was: u64,
    },
}

impl Witness {
    /// Writes the number that the holder has read, plus one, if the lock is still held.
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

    pub(crate) fn lost(&self) -> u64 {
        self.writes.abs_diff(self.number)
    }
}

/// Oracle 2 for locks with fencing tokens: a store that refuses a token below the largest token so far. A new holder
/// presents its token before it reads. The store does not know locks or validity, so its result is exact under all
/// faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Store {
    newest: u64,
    pub(crate) number: u64,
    pub(crate) writes: u64,
    /// The number of accesses with too small a token.
    pub(crate) refused: u64,
}

impl Store {
    pub(crate) fn read(&mut self, fence: u64) -> Option<u64> {
        if self.is_old(fence) {
            return None;
        }
        self.newest = fence;
        Some(self.number)
    }

    /// Writes the number that the holder has read, plus one, unless the store has seen a larger token since then.
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

    pub(crate) fn lost(&self) -> u64 {
        self.writes.abs_diff(self.number)
    }
}

/// Oracle 6: a number does not change while readers hold its lock. Readers compare it with the number that they read,
/// or that they wrote before they became readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rereading {
    pub(crate) compared: u64,
    pub(crate) changed: u64,
    /// The number of comparisons that arrived after the lock had ended.
    pub(crate) too_late: u64,
}

impl Rereading {
    /// Whether the number is the same as the one read. A comparison after the end of the lock does not count.
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

/// Oracle 4: the keys on the nodes after the shutdown of all clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    /// Keys right after the shutdown, by node.
    pub(crate) at_once: BTreeMap<usize, Vec<String>>,
    /// Keys that still exist at a time by which every key that a client may leave behind must have expired, by node.
    pub(crate) later: BTreeMap<usize, Vec<String>>,
    /// Whether keys in `at_once` are allowed: connections were made in the shutdown, or another violation was found.
    pub(crate) excused: bool,
}

impl Keys {
    pub(crate) fn wrong(&self) -> impl Iterator<Item = (usize, &String)> {
        let at_once = if self.excused { None } else { Some(&self.at_once) };
        let all = at_once.into_iter().chain([&self.later]).flatten();
        all.flat_map(|(node, keys)| keys.iter().map(|key| (*node, key)))
    }
}

/// Oracle 5: after the healing, each client must get a lock within `bound`. Returns the clients that did not.
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
    fn a_store_refuses_smaller_tokens_and_sees_lost_updates() {
        let mut store = Store::default();
        assert_eq!((store.read(5), store.write(5, 0)), (Some(0), Written::Yes));
        assert_eq!((store.read(6), store.write(5, 1)), (Some(1), Written::TooLate));
        assert_eq!((store.read(4), store.write(6, 1), store.refused), (None, Written::Yes, 2));
        // After two writes with one token, the store must detect the lost update.
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
    fn a_number_must_not_change_while_its_reader_holds_the_lock() {
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
    fn a_client_without_a_lock_in_time_is_late() {
        let clients = [("p0/0", Some(10)), ("p0/1", Some(11)), ("p1/0", None)];
        assert_eq!(late(clients, 10), ["p0/1", "p1/0"]);
        assert!(late([("p0/0", Some(10))], 10).is_empty());
    }
}
