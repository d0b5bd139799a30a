//! Who says whether something went wrong. Each looks at what was seen from outside, and asks neither
//! quorlock nor its engine.

use std::collections::BTreeMap;

use quorlock_sim::time::Time;

/// One time that a lock was held, on the clock that all share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) holder: String,
    pub(crate) resource: usize,
    /// When the call had returned with it.
    pub(crate) from: Time,
    /// When the call to give it back began, or when it ceased to be valid, whatever came first.
    pub(crate) to: Time,
}

/// Oracle 1: of one resource, no two are held at the same time. Returns pairs that are, the earlier
/// one first.
pub(crate) fn overlaps(holds: &[Hold]) -> Vec<(&Hold, &Hold)> {
    // What was over before the call returned was never relied on.
    let mut sorted: Vec<&Hold> = holds.iter().filter(|hold| hold.from < hold.to).collect();
    sorted.sort_by_key(|hold| (hold.resource, hold.from));
    let mut pairs = Vec::new();
    let mut longest: Option<&Hold> = None;
    for hold in sorted {
        match longest.filter(|longest| longest.resource == hold.resource) {
            Some(before) => {
                if hold.from < before.to {
                    pairs.push((before, hold));
                }
                if hold.to > before.to {
                    longest = Some(hold);
                }
            }
            None => longest = Some(hold),
        }
    }
    pairs
}

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

/// Oracle 5: what keys the nodes have when all clients have been shut down.
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

/// Oracle 6: when each client had a lock again after everything was healed. Returns those that had
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

    fn hold(holder: &str, resource: usize, from: Time, to: Time) -> Hold {
        Hold { holder: holder.to_owned(), resource, from, to }
    }

    fn found(holds: &[Hold]) -> Vec<(&str, &str)> {
        let names = |(one, two): (&'_ Hold, &'_ Hold)| (one.holder.clone(), two.holder.clone());
        let found: Vec<_> = overlaps(holds).into_iter().map(names).collect();
        let place = |name: &str| holds.iter().position(|hold| hold.holder == name).unwrap();
        let known = |name: &String| holds[place(name)].holder.as_str();
        found.iter().map(|(one, two)| (known(one), known(two))).collect()
    }

    #[test]
    fn holds_that_touch_do_not_overlap() {
        let holds = [hold("b", 0, 10, 20), hold("a", 0, 0, 10), hold("c", 1, 5, 15)];
        assert_eq!(found(&holds), []);
    }

    #[test]
    fn every_overlap_is_found_also_with_a_long_hold() {
        // The long one is still held when the third begins, although the second is over.
        let holds = [hold("a", 0, 0, 100), hold("b", 0, 10, 20), hold("c", 0, 99, 120)];
        assert_eq!(found(&holds), [("a", "b"), ("a", "c")]);
        let holds = [hold("a", 0, 0, 11), hold("b", 0, 10, 30), hold("c", 0, 29, 31)];
        assert_eq!(found(&holds), [("a", "b"), ("b", "c")]);
    }

    #[test]
    fn what_was_over_when_it_began_was_not_held() {
        assert_eq!(found(&[hold("a", 0, 0, 10), hold("b", 0, 5, 5), hold("c", 0, 6, 2)]), []);
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
