//! Counts holds and overlaps of the lock, and measures the time to acquire it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::view::in_ms;
use super::worker::{Hold, Report};
use crate::commands::percentile;

#[derive(Debug, Default)]
pub(super) struct Tally {
    holds: Vec<Hold>,
    refusals: Vec<Refusal>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    pub(super) at_ns: u64,
    /// Whether other workers held the lock. If not, too few nodes answered.
    pub(super) contended: bool,
}

impl Tally {
    pub(super) fn add(&mut self, report: Report) {
        match report {
            Report::Held(hold) => self.holds.push(hold),
            Report::Refused { at_ns, contended } => {
                self.refusals.push(Refusal { at_ns, contended });
            }
        }
    }

    /// All holds, in the order of the reports.
    pub(super) fn holds(&self) -> &[Hold] {
        &self.holds
    }

    pub(super) fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// Number of workers that held the lock at least once.
    pub(super) fn workers(&self) -> usize {
        self.holds.iter().map(|hold| hold.worker).collect::<BTreeSet<_>>().len()
    }

    /// Number of writes to the file.
    pub(super) fn writes(&self) -> u64 {
        self.holds.iter().map(|hold| u64::from(hold.wrote.is_some())).sum()
    }

    /// Number of grants while another worker held the lock.
    pub(super) fn overlaps(&self) -> usize {
        let mut times: Vec<_> =
            self.holds.iter().map(|hold| (hold.acquired_ns, hold.ended_ns)).collect();
        times.sort_unstable();
        let mut held_until = 0;
        let mut overlaps = 0;
        for (acquired, ended) in times {
            overlaps += usize::from(acquired < held_until);
            held_until = held_until.max(ended);
        }
        overlaps
    }
}

impl Tally {
    /// Pairs of holders that wrote the same number into the file, with the times of their holds.
    pub(super) fn rewrites(&self) -> Vec<String> {
        let mut writes: Vec<_> = self.holds.iter().filter(|hold| hold.wrote.is_some()).collect();
        writes.sort_unstable_by_key(|hold| (hold.wrote, hold.acquired_ns));
        let is_twice = |pair: &&[&Hold]| pair[0].wrote == pair[1].wrote;
        let told = |pair: &[&Hold]| {
            let [a, b] = [pair[0], pair[1]];
            let from = a.acquired_ns;
            let after = |at_ns: u64| in_ms(Duration::from_nanos(at_ns.saturating_sub(from)));
            format!(
                "w{:02} and w{:02} both wrote {}: the first held the lock for {}, the second had it after {}",
                a.worker,
                b.worker,
                a.wrote.unwrap_or_default(),
                after(a.ended_ns),
                after(b.acquired_ns)
            )
        };
        writes.windows(2).filter(is_twice).map(told).collect()
    }
}

/// Sorted times to acquire the lock. At least one.
pub(super) struct Latency(Vec<Duration>);

impl Latency {
    pub(super) fn of<'a>(holds: impl Iterator<Item = &'a Hold>) -> Option<Self> {
        let time =
            |hold: &Hold| Duration::from_nanos(hold.acquired_ns.saturating_sub(hold.asked_ns));
        let mut times: Vec<Duration> = holds.map(time).collect();
        times.sort_unstable();
        (!times.is_empty()).then_some(Self(times))
    }

    pub(super) fn in_short(&self) -> [String; 3] {
        [50, 99, 100].map(|percent| in_ms(percentile(&self.0, percent).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(holds: &[(u64, u64)]) -> Tally {
        let mut tally = Tally::default();
        for &(acquired_ns, ended_ns) in holds {
            let hold =
                Hold { worker: 1, asked_ns: 0, acquired_ns, ended_ns, votes: 3, wrote: None };
            tally.add(Report::Held(hold));
        }
        tally
    }

    #[test]
    fn one_after_the_other_is_no_overlap_in_whatever_order_it_is_told() {
        assert_eq!(tally(&[]).overlaps(), 0);
        assert_eq!(tally(&[(20, 30), (10, 20), (31, 40)]).overlaps(), 0);
    }

    #[test]
    fn two_at_a_time_are_seen() {
        assert_eq!(tally(&[(10, 20), (19, 30)]).overlaps(), 1);
        // Other holds may begin and end during the first one.
        assert_eq!(tally(&[(10, 100), (20, 30), (40, 50), (99, 120)]).overlaps(), 3);
        // Both holds may begin at the same moment.
        assert_eq!(tally(&[(10, 20), (10, 20)]).overlaps(), 1);
    }

    #[test]
    fn latencies_are_those_measured() {
        let mut all = tally(&[]);
        for millis in 1..=100 {
            let acquired_ns = millis * 1_000_000;
            let hold =
                Hold { worker: 1, asked_ns: 0, acquired_ns, ended_ns: 0, votes: 3, wrote: None };
            all.add(Report::Held(hold));
        }
        let latency = Latency::of(all.holds().iter()).expect("there are some");
        assert_eq!(latency.in_short(), ["50ms", "99ms", "100ms"]);
        assert!(Latency::of([].iter()).is_none());
    }
}
