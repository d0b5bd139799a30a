//! The workers' reports, by phase of the demo, and the verdict: measurements, and whether the lock kept its promise.

use std::collections::BTreeSet;
use std::time::Duration;

use super::WAIT;
use super::view::in_ms;
use super::worker::{Hold, Refusal, Report};
use super::workers::WORKERS;
use crate::commands::percentile;

struct Phase {
    title: String,
    /// Beginning and end of the phase, in nanoseconds of the boot clock.
    from_ns: u64,
    to_ns: u64,
    /// Whether a majority of nodes is up.
    majority: bool,
}

pub(super) struct Record {
    /// Time of the workers' start, in nanoseconds of the boot clock.
    began_ns: u64,
    holds: Vec<Hold>,
    refusals: Vec<Refusal>,
    phases: Vec<Phase>,
    faults: Vec<String>,
}

pub(super) struct Conclusion {
    pub(super) lines: Vec<String>,
    pub(super) summary: String,
    pub(super) faults: Vec<String>,
}

impl Record {
    pub(super) fn new(began_ns: u64) -> Self {
        let (holds, refusals, phases, faults) = Default::default();
        Self { began_ns, holds, refusals, phases, faults }
    }

    pub(super) fn add(&mut self, report: Report) {
        match report {
            Report::Held(hold) => self.holds.push(hold),
            Report::Refused(refusal) => self.refusals.push(refusal),
        }
    }

    /// Ends the last phase and begins the next one. The first phase begins with the workers' start.
    pub(super) fn phase(&mut self, title: &str, majority: bool, now_ns: u64) {
        self.end(now_ns);
        let from_ns = if self.phases.is_empty() { self.began_ns } else { now_ns };
        self.phases.push(Phase { title: title.to_owned(), from_ns, to_ns: u64::MAX, majority });
    }

    pub(super) fn end(&mut self, now_ns: u64) {
        if let Some(last) = self.phases.last_mut() {
            last.to_ns = now_ns;
        }
    }

    pub(super) fn fault(&mut self, text: &str) {
        self.faults.push(text.to_owned());
    }

    /// The verdict. `counter` is the number in the file at the end, `None` if the file has no number. `places` says
    /// where the workers ran.
    pub(super) fn conclude(mut self, counter: Option<u64>, places: &str) -> Conclusion {
        let (overlaps, writes) = (self.overlaps(), self.writes());
        let lost_updates = writes.saturating_sub(counter.unwrap_or(0));
        let mut lines = vec![
            format!("  {:20}{:>27}{:>26}", "", "mean", "time to acquire"),
            format!(
                "  {:20}{:>10}{:>9}{:>8}  {:>8}{:>8}{:>8}",
                "while", "acquired", "per s", "votes", "p50", "p99", "max"
            ),
        ];
        lines.extend(self.phases.iter().map(|phase| self.row(phase)));
        lines.push(String::new());
        let workers: BTreeSet<usize> = self.holds.iter().map(|hold| hold.worker).collect();
        lines.push(format!("  workers that held it: {}, in {places}", workers.len()));
        if let Some([p50, p99, max]) = self.times_to_acquire(self.holds.iter()) {
            lines.push(format!(
                "  time to acquire, {WORKERS} contending: p50 {p50}, p99 {p99}, max {max}"
            ));
        }
        let gave_up = self.refusals.iter().filter(|refusal| refusal.contended).count();
        if gave_up > 0 {
            lines.push(format!("  calls that gave up after {WAIT:?} behind others: {gave_up}"));
        }
        let late = self.holds.iter().filter(|hold| hold.wrote.is_none()).count();
        if late > 0 {
            lines
                .push(format!("  writes left out because the lock was not valid any more: {late}"));
        }
        lines.push(format!(
            "  two holders at the same time: {overlaps} times, by the clock that all processes share"
        ));
        let in_file = counter.map_or_else(|| "rubbish".to_owned(), |count| count.to_string());
        lines.push(format!("  writes: {writes}; the number in the file: {in_file}"));

        if overlaps > 0 {
            self.fault(&format!("{overlaps} times two workers held the lock at the same time"));
        }
        if lost_updates > 0 {
            self.fault(&format!("{lost_updates} updates of the file were lost"));
            self.faults.extend(self.rewrites());
        } else if counter != Some(writes) {
            self.fault("the file holds more than the workers say they wrote");
        }
        let of_phases: Vec<_> =
            self.phases.iter().filter_map(|phase| self.phase_fault(phase)).collect();
        self.faults.extend(of_phases);
        let all = self.holds.len();
        let summary =
            format!("{all} acquisitions, {overlaps} overlaps, {lost_updates} lost updates");
        Conclusion { lines, summary, faults: self.faults }
    }

    fn row(&self, phase: &Phase) -> String {
        let holds: Vec<&Hold> = self.holds_in(phase).collect();
        let (title, count) = (&phase.title, holds.len());
        if !phase.majority {
            let times = phase.from_ns..phase.to_ns;
            let refused = self.refusals.iter();
            let refused = refused.filter(|it| !it.contended && times.contains(&it.at_ns)).count();
            return format!("  {title:20}{count:>10}    {refused} calls refused");
        }
        let Some([p50, p99, max]) = self.times_to_acquire(holds.iter().copied()) else {
            return format!("  {title:20}{count:>10}");
        };
        let time = Duration::from_nanos(phase.to_ns.saturating_sub(phase.from_ns));
        let rate = count as f64 / time.as_secs_f64();
        let votes = holds.iter().map(|hold| hold.votes).sum::<usize>() as f64 / count as f64;
        format!("  {title:20}{count:>10}{rate:>9.0}{votes:>8.1}  {p50:>8}{p99:>8}{max:>8}")
    }

    fn phase_fault(&self, phase: &Phase) -> Option<String> {
        match self.holds_in(phase).count() {
            0 if phase.majority => Some(format!("nobody got the lock while: {}", phase.title)),
            count if !phase.majority && count > 0 => {
                Some(format!("{count} acquisitions without a majority"))
            }
            _ => None,
        }
    }

    /// Number of writes to the file.
    fn writes(&self) -> u64 {
        self.holds.iter().map(|hold| u64::from(hold.wrote.is_some())).sum()
    }

    /// Number of grants while another worker held the lock.
    fn overlaps(&self) -> usize {
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

    /// Pairs of holders that wrote the same number into the file, with the times of their holds.
    fn rewrites(&self) -> Vec<String> {
        let mut writes: Vec<_> = self.holds.iter().filter(|hold| hold.wrote.is_some()).collect();
        writes.sort_unstable_by_key(|hold| (hold.wrote, hold.acquired_ns));
        let pairs = writes.windows(2).filter(|pair| pair[0].wrote == pair[1].wrote);
        let describe = |pair: &[&Hold]| {
            let [a, b] = [pair[0], pair[1]];
            let after =
                |at_ns: u64| in_ms(Duration::from_nanos(at_ns.saturating_sub(a.acquired_ns)));
            format!(
                "w{:02} and w{:02} both wrote {}: the first held the lock for {}, the second had it after {}",
                a.worker,
                b.worker,
                a.wrote.unwrap_or_default(),
                after(a.ended_ns),
                after(b.acquired_ns)
            )
        };
        pairs.map(describe).collect()
    }

    /// Median, 99th percentile and maximum of the times to acquire; `None` if there are none. Only calls during which a
    /// majority of nodes was up count. The others would only measure how long nodes were down.
    fn times_to_acquire<'a>(&self, holds: impl Iterator<Item = &'a Hold>) -> Option<[String; 3]> {
        let had_majority = |hold: &&Hold| {
            let mut without = self.phases.iter().filter(|phase| !phase.majority);
            without.all(|phase| hold.acquired_ns < phase.from_ns || phase.to_ns <= hold.asked_ns)
        };
        let time =
            |hold: &Hold| Duration::from_nanos(hold.acquired_ns.saturating_sub(hold.asked_ns));
        let mut times: Vec<Duration> = holds.filter(had_majority).map(time).collect();
        times.sort_unstable();
        let at = |percent| Some(in_ms(percentile(&times, percent)?));
        Some([at(50)?, at(99)?, at(100)?])
    }

    fn holds_in<'a>(&'a self, phase: &'a Phase) -> impl Iterator<Item = &'a Hold> {
        let is_this = |other: Option<&Phase>| other.is_some_and(|it| it.from_ns == phase.from_ns);
        self.holds.iter().filter(move |hold| is_this(self.phase_of(hold)))
    }

    fn phase_of(&self, hold: &Hold) -> Option<&Phase> {
        let at = |phase: &Phase| (phase.from_ns..phase.to_ns).contains(&hold.acquired_ns);
        let place = self.phases.iter().position(at)?;
        let phase = &self.phases[place];
        // If the call began before this phase, the previous phase's quorum granted it. The hold counts for that phase.
        let before = !phase.majority && hold.asked_ns < phase.from_ns;
        self.phases.get(if before { place.checked_sub(1)? } else { place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The verdict about holds of 2 ms that begin at these times. Each call began 1 ms before its hold, and wrote once.
    fn conclusion(held_from_ms: &[u64], counter: Option<u64>) -> Conclusion {
        let mut record = Record::new(0);
        for (worker, from) in held_from_ms.iter().enumerate() {
            record.add(Report::Held(Hold {
                worker,
                asked_ns: (from - 1) * MS,
                acquired_ns: from * MS,
                ended_ns: (from + 2) * MS,
                votes: 3,
                wrote: Some(1),
            }));
        }
        record.phase("up", true, 0);
        record.phase("down", false, 100 * MS);
        record.end(200 * MS);
        record.conclude(counter, "here")
    }

    #[test]
    fn holds_one_after_the_other_in_any_order_of_reports_have_no_fault() {
        for times in [[1, 3, 5], [3, 1, 5]] {
            let conclusion = conclusion(&times, Some(3));
            assert_eq!(conclusion.faults, [""; 0]);
            assert_eq!(conclusion.summary, "3 acquisitions, 0 overlaps, 0 lost updates");
        }
    }

    #[test]
    fn two_holders_at_a_time_are_a_fault() {
        // A hold begins during another one, or two holds begin at the same moment, or both.
        for (times, overlaps) in [([1, 2, 5], 1), ([1, 1, 5], 1), ([2, 1, 2], 2)] {
            let conclusion = conclusion(&times, Some(3));
            assert!(conclusion.faults[0].contains("same time"), "{:?}", conclusion.faults);
            let summary = format!("3 acquisitions, {overlaps} overlaps, 0 lost updates");
            assert_eq!(conclusion.summary, summary);
        }
    }

    #[test]
    fn a_lost_update_and_one_update_too_many_are_faults() {
        let fault = |counter| conclusion(&[1, 3, 5], counter).faults.swap_remove(0);
        assert!(fault(Some(2)).contains("1 updates of the file were lost"));
        assert!(fault(None).contains("3 updates"));
        assert!(fault(Some(4)).contains("more than the workers say"));
    }

    #[test]
    fn no_hold_with_a_majority_and_any_hold_without_one_are_faults() {
        assert!(conclusion(&[], Some(0)).faults[0].contains("nobody got the lock while: up"));
        assert!(conclusion(&[1, 150], Some(2)).faults[0].contains("without a majority"));
        // The call for the second lock began while the majority was up, so the majority granted it: no fault.
        assert_eq!(conclusion(&[1, 100], Some(2)).faults, [""; 0]);
    }

    #[test]
    fn times_to_acquire_are_the_measured_ones() {
        let mut record = Record::new(0);
        for ms in 1..=100 {
            let (acquired_ns, ended_ns) = (ms * MS, ms * MS);
            let hold =
                Hold { worker: 1, asked_ns: 0, acquired_ns, ended_ns, votes: 3, wrote: None };
            record.add(Report::Held(hold));
        }
        let times = record.times_to_acquire(record.holds.iter());
        assert_eq!(times, Some(["50ms", "99ms", "100ms"].map(str::to_owned)));
    }
}
