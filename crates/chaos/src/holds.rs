//! Records of holds (times for which a lock was held), and their checks: no overlaps, and fencing tokens in order.

use quorlock_sim::time::Time;

use crate::ledger::Caller;
use crate::protocol::RESOURCES;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) caller: Caller,
    /// Whether the caller has not reported the end of the hold yet.
    pub(crate) is_open: bool,
    pub(crate) holder: String,
    pub(crate) resources: Vec<usize>,
    /// The fencing token of the lock; `None` if it has none, or if the record of the holder before a detach has it.
    pub(crate) fence: Option<u64>,
    pub(crate) asked: Time,
    pub(crate) from: Time,
    /// The start of the release or the end of the validity, whichever came first.
    pub(crate) to: Time,
    /// The time from which the holder is a reader: the time of its call or of its downgrade. `Time::MAX`: never.
    pub(crate) reads_from: Time,
}

impl Hold {
    /// The end of the time for which the holder is a writer.
    fn writes_to(&self) -> Time {
        self.to.min(self.reads_from)
    }

    fn mode_at(&self, at: Time) -> &'static str {
        if at < self.reads_from { "writer" } else { "reader" }
    }

    pub(crate) fn names(&self) -> String {
        names(&self.resources)
    }
}

pub(crate) fn names(resources: &[usize]) -> String {
    resources.iter().map(|place| RESOURCES[*place]).collect::<Vec<_>>().join(" and ")
}

/// Two holds of one resource that an oracle reports, the earlier hold first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair<'a> {
    pub(crate) first: &'a Hold,
    pub(crate) second: &'a Hold,
    pub(crate) resource: usize,
}

impl Pair<'_> {
    /// Describes the overlap, and returns its length.
    pub(crate) fn overlap(&self) -> (String, Time) {
        let Self { first, second, resource } = *self;
        let at = second.from;
        let [one, other] =
            [first, second].map(|hold| format!("{} ({})", hold.holder, hold.mode_at(at)));
        let what = format!("{one} and {other} both hold {}", RESOURCES[resource]);
        (what, first.to.min(second.to) - at)
    }
}

/// The holds of a resource, sorted by their start. Leaves out a hold whose validity ended before the caller got it.
fn of(holds: &[Hold], resource: usize) -> Vec<&Hold> {
    let relied = |hold: &&Hold| hold.from < hold.to && hold.resources.contains(&resource);
    let mut holds: Vec<&Hold> = holds.iter().filter(relied).collect();
    holds.sort_by_key(|hold| hold.from);
    holds
}

/// Oracle 1: returns pairs of holds of one resource that overlap while at least one of the two holders is a writer.
pub(crate) fn overlaps(holds: &[Hold]) -> Vec<Pair<'_>> {
    let mut pairs = Vec::new();
    for resource in 0..RESOURCES.len() {
        let (mut longest, mut longest_writer) = (None::<&Hold>, None::<&Hold>);
        for second in of(holds, resource) {
            // A writer may become a reader, but a reader never becomes a writer. So two holds that conflict at a later
            // time also conflict at the start of the second hold.
            let is_writer = second.from < second.writes_to();
            let written = longest_writer.filter(|before| second.from < before.writes_to());
            let held = longest.filter(|before| is_writer && second.from < before.to);
            let first = written.or(held);
            pairs.extend(first.map(|first| Pair { first, second, resource }));
            if longest.is_none_or(|before| second.to > before.to) {
                longest = Some(second);
            }
            if longest_writer.is_none_or(|before| second.writes_to() > before.writes_to()) {
                longest_writer = Some(second);
            }
        }
    }
    pairs
}

/// The number of readers that began to hold a resource while another reader held it.
pub(crate) fn together(holds: &[Hold]) -> usize {
    let by_resource = (0..RESOURCES.len()).map(|resource| {
        let (mut count, mut longest) = (0, None::<&Hold>);
        for hold in of(holds, resource) {
            let reads = |one: &Hold| one.reads_from <= hold.from;
            let is_there = |one: &Hold| hold.from < one.to && reads(one);
            count += usize::from(reads(hold) && longest.is_some_and(is_there));
            if longest.is_none_or(|one| hold.to > one.to) {
                longest = Some(hold);
            }
        }
        count
    });
    by_resource.sum()
}

/// Oracle 3: a resource's fencing tokens are unique, and a call that begins after a token was returned gets a larger
/// token. Returns pairs that contradict this. A token counts as returned at the start of its hold.
pub(crate) fn disordered(holds: &[Hold]) -> Vec<Pair<'_>> {
    let mut pairs = Vec::new();
    for resource in 0..RESOURCES.len() {
        let its = holds.iter().filter(|hold| hold.resources.contains(&resource));
        let mut by_fence: Vec<&Hold> = its.filter(|hold| hold.fence.is_some()).collect();
        by_fence.sort_by_key(|hold| (hold.fence, hold.from));
        let twice = by_fence.windows(2).filter(|pair| pair[0].fence == pair[1].fence);
        pairs.extend(twice.map(|pair| Pair { first: pair[0], second: pair[1], resource }));
        let mut shown = by_fence.clone();
        shown.sort_by_key(|hold| hold.from);
        by_fence.sort_by_key(|hold| hold.asked);
        let (mut next, mut largest) = (0, None::<&Hold>);
        for second in by_fence {
            while let Some(before) = shown.get(next).filter(|before| before.from < second.asked) {
                if largest.is_none_or(|one| one.fence < before.fence) {
                    largest = Some(before);
                }
                next += 1;
            }
            let first = largest.filter(|one| one.fence > second.fence);
            pairs.extend(first.map(|first| Pair { first, second, resource }));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Hold {
        pub(crate) fn test(holder: &str, resource: usize, from: Time, to: Time) -> Self {
            let holder = holder.to_owned();
            let (resources, reads_from) = (vec![resource], Time::MAX);
            let (caller, is_open, fence, asked) = ((0, 0, 0), false, None, from);
            Self { caller, is_open, holder, resources, fence, asked, from, to, reads_from }
        }
    }

    fn hold(holder: &str, resource: usize, from: Time, to: Time) -> Hold {
        Hold::test(holder, resource, from, to)
    }

    fn reader(holder: &str, from: Time, to: Time) -> Hold {
        Hold { reads_from: from, ..hold(holder, 0, from, to) }
    }

    fn names_of<'a>(pairs: &[Pair<'a>]) -> Vec<(&'a str, &'a str)> {
        pairs.iter().map(|pair| (&*pair.first.holder, &*pair.second.holder)).collect()
    }

    #[test]
    fn fences_are_unique_and_grow_with_time() {
        let fenced = |holder, asked, from, fence| Hold {
            asked,
            fence: Some(fence),
            ..hold(holder, 0, from, from + 1)
        };
        // A call that began before another token was returned may get a smaller token.
        let fine = [fenced("a", 0, 10, 7), fenced("b", 5, 20, 6), fenced("c", 11, 30, 8)];
        assert_eq!(disordered(&fine), []);
        let twice = [fenced("a", 0, 10, 7), fenced("b", 5, 20, 7)];
        assert_eq!(names_of(&disordered(&twice)), [("a", "b")]);
        let back = [fenced("a", 0, 10, 9), fenced("b", 0, 12, 3), fenced("c", 13, 20, 8)];
        assert_eq!(names_of(&disordered(&back)), [("a", "c")]);
        let other = [fenced("a", 0, 10, 9), Hold { resources: vec![1], ..fenced("b", 11, 12, 3) }];
        assert_eq!(disordered(&other), []);
        // A token for two resources must be larger than the tokens of both.
        let both = Hold { resources: vec![1, 0], ..fenced("c", 13, 20, 8) };
        let found = [&other[..], &[both]].concat();
        assert_eq!(names_of(&disordered(&found)), [("a", "c")]);
    }

    fn found(holds: &[Hold]) -> Vec<(&str, &str)> {
        names_of(&overlaps(holds))
    }

    #[test]
    fn holds_that_touch_do_not_overlap() {
        let holds = [hold("b", 0, 10, 20), hold("a", 0, 0, 10), hold("c", 1, 5, 15)];
        assert_eq!(found(&holds), []);
    }

    #[test]
    fn every_overlap_is_found_also_with_a_long_hold() {
        // The first hold is long: it still overlaps the third hold, although the second has ended.
        let holds = [hold("a", 0, 0, 100), hold("b", 0, 10, 20), hold("c", 0, 99, 120)];
        assert_eq!(found(&holds), [("a", "b"), ("a", "c")]);
        let holds = [hold("a", 0, 0, 11), hold("b", 0, 10, 30), hold("c", 0, 29, 31)];
        assert_eq!(found(&holds), [("a", "b"), ("b", "c")]);
    }

    #[test]
    fn a_hold_that_ended_before_its_start_does_not_count() {
        assert_eq!(found(&[hold("a", 0, 0, 10), hold("b", 0, 5, 5), hold("c", 0, 6, 2)]), []);
    }

    #[test]
    fn readers_may_hold_together_but_not_with_a_writer() {
        let readers = [reader("a", 0, 100), reader("b", 10, 20), reader("c", 15, 40)];
        assert_eq!((found(&readers), together(&readers)), (Vec::new(), 2));
        // The first reader still holds the lock, although other readers came and left.
        let and_writer = [&readers[..], &[hold("w", 0, 50, 60)]].concat();
        assert_eq!(found(&and_writer), [("a", "w")]);
        let after_writer = [hold("w", 0, 0, 11), reader("a", 5, 8), reader("b", 10, 20)];
        assert_eq!(found(&after_writer), [("w", "a"), ("w", "b")]);
    }

    #[test]
    fn a_downgraded_writer_may_read_with_others_from_then_on() {
        let writer = Hold { reads_from: 10, ..hold("w", 0, 0, 100) };
        let holds = [writer.clone(), reader("a", 10, 20), reader("b", 9, 10)];
        assert_eq!((found(&holds), together(&holds)), (vec![("w", "b")], 1));
        assert_eq!(found(&[writer, hold("x", 0, 50, 60)]), [("w", "x")]);
    }

    #[test]
    fn a_lock_of_several_is_held_with_each_of_them() {
        let both = Hold { resources: vec![1, 0], ..hold("ab", 0, 0, 10) };
        let holds = [both, hold("a", 0, 5, 20), hold("b", 1, 9, 20), hold("c", 2, 0, 10)];
        assert_eq!(found(&holds), [("ab", "a"), ("ab", "b")]);
    }
}
