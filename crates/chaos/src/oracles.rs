//! Who says whether something went wrong. Each looks at what was seen from outside, and asks neither
//! quorlock nor its engine.

use std::collections::BTreeMap;

use quorlock_sim::time::Time;

/// One time that a lock was held, on the clock that all share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) holder: String,
    pub(crate) resource: usize,
    /// Under what it is held on the nodes.
    pub(crate) token: String,
    /// Its number, if the resource has some.
    pub(crate) fence: Option<u64>,
    /// When the call for it began.
    pub(crate) asked: Time,
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

/// Oracle 3: of one resource, no fence is shown twice, and whoever asks after another one has been shown
/// gets a larger one. Returns pairs of which that is not so, the one that was shown first first.
pub(crate) fn disordered(holds: &[Hold]) -> Vec<(&Hold, &Hold)> {
    let fenced = |hold: &&Hold| hold.fence.is_some();
    let mut by_fence: Vec<&Hold> = holds.iter().filter(fenced).collect();
    by_fence.sort_by_key(|hold| (hold.resource, hold.fence, hold.from));
    let is_twice = |pair: &&[&Hold]| {
        let [one, other] = pair else { return false };
        (one.resource, one.fence) == (other.resource, other.fence)
    };
    let twice = by_fence.windows(2).filter(is_twice).map(|pair| (pair[0], pair[1]));
    let mut pairs: Vec<(&Hold, &Hold)> = twice.collect();
    let mut shown = by_fence.clone();
    shown.sort_by_key(|hold| (hold.resource, hold.from));
    by_fence.sort_by_key(|hold| (hold.resource, hold.asked));
    let (mut next, mut largest) = (0, None::<&Hold>);
    for hold in by_fence {
        while let Some(before) = shown.get(next)
            && (before.resource, before.from) < (hold.resource, hold.asked)
        {
            if largest.is_none_or(|one| (one.resource, one.fence) < (before.resource, before.fence))
            {
                largest = Some(before);
            }
            next += 1;
        }
        let before = largest.filter(|one| one.resource == hold.resource && one.fence > hold.fence);
        pairs.extend(before.map(|before| (before, hold)));
    }
    pairs
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

    impl Store {
        /// One that has been written to, and has refused something.
        pub(crate) fn seen() -> Self {
            Self { newest: 1, number: 1, writes: 1, refused: 1 }
        }
    }

    impl Hold {
        pub(crate) fn test(holder: &str, resource: usize, from: Time, to: Time) -> Self {
            let (holder, token) = (holder.to_owned(), String::new());
            Self { holder, resource, token, fence: None, asked: from, from, to }
        }
    }

    fn hold(holder: &str, resource: usize, from: Time, to: Time) -> Hold {
        Hold::test(holder, resource, from, to)
    }

    #[test]
    fn fences_are_unique_and_grow_with_time() {
        let fenced = |holder, asked, from, fence| Hold {
            asked,
            fence: Some(fence),
            ..hold(holder, 0, from, from + 1)
        };
        let names = |holds: &[Hold]| -> Vec<(String, String)> {
            let names = |(one, two): (&Hold, &Hold)| (one.holder.clone(), two.holder.clone());
            disordered(holds).into_iter().map(names).collect()
        };
        // Who asked before another was shown its number may get a smaller one.
        let fine = [fenced("a", 0, 10, 7), fenced("b", 5, 20, 6), fenced("c", 11, 30, 8)];
        assert_eq!(names(&fine), []);
        let twice = [fenced("a", 0, 10, 7), fenced("b", 5, 20, 7)];
        assert_eq!(names(&twice), [("a".into(), "b".into())]);
        let back = [fenced("a", 0, 10, 9), fenced("b", 0, 12, 3), fenced("c", 13, 20, 8)];
        assert_eq!(names(&back), [("a".into(), "c".into())]);
        let other = [fenced("a", 0, 10, 9), Hold { resource: 1, ..fenced("b", 11, 12, 3) }];
        assert_eq!(names(&other), []);
    }

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
