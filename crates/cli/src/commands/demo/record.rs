//! The workers' reports, by phase of the demo, and the verdict: measurements, and whether the lock kept its promise.

use std::collections::BTreeSet;
use std::time::Duration;

use super::workers::Hold;
use crate::output::columns;

/// The columns of the table in the verdict.
const HEAD: [&str; 8] =
    ["while", "acquired", "refused", "per s", "votes", "wait p50", "p99", "max"];

struct Phase {
    title: String,
    /// Beginning and end of the phase, in nanoseconds of the boot clock.
    from_ns: u64,
    to_ns: u64,
    /// Whether a majority of nodes is up.
    majority: bool,
}

#[derive(Default)]
pub(super) struct Record {
    pub(super) holds: Vec<Hold>,
    /// The end of each call that did not get the lock, in nanoseconds of the boot clock.
    pub(super) refused_ns: Vec<u64>,
    phases: Vec<Phase>,
    pub(super) faults: Vec<String>,
}

pub(super) struct Conclusion {
    pub(super) lines: Vec<String>,
    pub(super) summary: String,
    pub(super) faults: Vec<String>,
}

impl Record {
    /// Ends the last phase and begins the next one.
    pub(super) fn phase(&mut self, title: &str, majority: bool, from_ns: u64) {
        self.end(from_ns);
        self.phases.push(Phase { title: title.to_owned(), from_ns, to_ns: u64::MAX, majority });
    }

    fn end(&mut self, now_ns: u64) {
        if let Some(last) = self.phases.last_mut() {
            last.to_ns = now_ns;
        }
    }

    /// The verdict. `counter` is the number in the file at the end, `None` if the file has no number.
    pub(super) fn conclude(mut self, counter: Option<u64>, now_ns: u64) -> Conclusion {
        self.end(now_ns);
        let overlaps = self.overlaps();
        let writes: u64 = self.holds.iter().map(|hold| u64::from(hold.wrote)).sum();
        let lost_updates = writes.saturating_sub(counter.unwrap_or(0));
        let rows = self.phases.iter().map(|phase| self.row(phase));
        let mut lines = columns(HEAD, rows, &[1, 2, 3, 4, 5, 6, 7]);
        let workers: BTreeSet<usize> = self.holds.iter().map(|hold| hold.worker).collect();
        let in_file = counter.map_or_else(|| "rubbish".to_owned(), |count| count.to_string());
        lines.extend([
            String::new(),
            format!("workers that held it: {}", workers.len()),
            format!("two holders at the same time: {overlaps} times"),
            format!("writes: {writes}; the number in the file: {in_file}"),
        ]);
        let late = self.holds.iter().filter(|hold| hold.late).count();
        if overlaps > 0 {
            self.faults
                .push(format!("{overlaps} times two workers held the lock at the same time"));
        }
        if late > 0 {
            lines.extend([
                format!("writes that ended after their lock: {late}; the machine paused a worker"),
                "(a store that checks fencing tokens refuses such a write)".to_owned(),
            ]);
        } else if lost_updates > 0 {
            self.faults.push(format!("{lost_updates} updates of the file were lost"));
        } else if counter != Some(writes) {
            self.faults.push("the file holds more than the workers say they wrote".to_owned());
        }
        let of_phases: Vec<_> =
            self.phases.iter().filter_map(|phase| self.phase_fault(phase)).collect();
        self.faults.extend(of_phases);
        let all = self.holds.len();
        let summary =
            format!("{all} acquisitions, {overlaps} overlaps, {lost_updates} lost updates");
        Conclusion { lines, summary, faults: self.faults }
    }

    /// The cells of a phase, in the order of [`HEAD`].
    fn row(&self, phase: &Phase) -> [String; HEAD.len()] {
        let holds: Vec<&Hold> = self.holds_in(phase).collect();
        let times = phase.from_ns..phase.to_ns;
        let refused = self.refused_ns.iter().filter(|at_ns| times.contains(at_ns)).count();
        let count = holds.len();
        let [mut rate, mut votes] = <[String; 2]>::default();
        if count > 0 {
            let time = Duration::from_nanos(phase.to_ns.saturating_sub(phase.from_ns));
            rate = format!("{:.0}", count as f64 / time.as_secs_f64());
            let sum: usize = holds.iter().map(|hold| hold.votes).sum();
            votes = format!("{:.1}", sum as f64 / count as f64);
        }
        let [p50, p99, max] = self.times_to_acquire(&holds).unwrap_or_default();
        [phase.title.clone(), count.to_string(), refused.to_string(), rate, votes, p50, p99, max]
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

    /// Median, 99th percentile and maximum of the times to acquire; `None` if there are none. Only calls during which a
    /// majority of nodes was up count. Other calls would only measure how long nodes were down.
    fn times_to_acquire(&self, holds: &[&Hold]) -> Option<[String; 3]> {
        let had_majority = |hold: &&&Hold| {
            let mut without = self.phases.iter().filter(|phase| !phase.majority);
            without.all(|phase| hold.acquired_ns < phase.from_ns || phase.to_ns <= hold.asked_ns)
        };
        let time =
            |hold: &&Hold| Duration::from_nanos(hold.acquired_ns.saturating_sub(hold.asked_ns));
        let mut times: Vec<Duration> = holds.iter().filter(had_majority).map(time).collect();
        times.sort_unstable();
        let at = |percent| Some(in_ms(percentile(&times, percent)?));
        Some([at(50)?, at(99)?, at(100)?])
    }

    /// The locks that were granted in a phase. If the phase has no majority, a lock whose call began before does not
    /// count, because the majority of the earlier phase may have granted that lock.
    fn holds_in(&self, phase: &Phase) -> impl Iterator<Item = &Hold> {
        let (times, majority) = (phase.from_ns..phase.to_ns, phase.majority);
        self.holds.iter().filter(move |hold| {
            times.contains(&hold.acquired_ns) && (majority || times.contains(&hold.asked_ns))
        })
    }
}

/// A percentile of the sorted times: the smallest one such that `percent` percent of the times are not larger.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// A short time in milliseconds: with two decimals below 10 ms, without decimals from there on.
fn in_ms(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1000.0;
    if millis < 10.0 { format!("{millis:.2}ms") } else { format!("{millis:.0}ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn conclusion(held_from_ms: &[u64], counter: Option<u64>) -> Conclusion {
        record(held_from_ms).conclude(counter, 200 * MS)
    }

    /// Holds of 2 ms that begin at these times. Each worker asked 1 ms before its hold, and wrote once.
    fn record(held_from_ms: &[u64]) -> Record {
        let mut record = Record::default();
        for (worker, from) in held_from_ms.iter().enumerate() {
            record.holds.push(Hold {
                worker,
                asked_ns: (from - 1) * MS,
                acquired_ns: from * MS,
                ended_ns: (from + 2) * MS,
                wrote: true,
                ..Hold::default()
            });
        }
        record.phase("up", true, 0);
        record.phase("down", false, 100 * MS);
        record
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
    fn a_lost_update_and_one_update_too_many_are_faults_unless_a_write_was_late() {
        let fault = |counter| conclusion(&[1, 3, 5], counter).faults.swap_remove(0);
        assert!(fault(Some(2)).contains("1 updates of the file were lost"));
        assert!(fault(None).contains("3 updates"));
        assert!(fault(Some(4)).contains("more than the workers say"));
        let mut record = record(&[1, 3, 5]);
        record.holds[1].late = true;
        let conclusion = record.conclude(Some(1), 200 * MS);
        assert_eq!(conclusion.faults, [""; 0]);
        assert!(conclusion.summary.ends_with("2 lost updates"), "{}", conclusion.summary);
    }

    #[test]
    fn no_hold_with_a_majority_and_any_hold_without_one_are_faults() {
        assert!(conclusion(&[], Some(0)).faults[0].contains("nobody got the lock while: up"));
        assert!(conclusion(&[1, 150], Some(2)).faults[0].contains("without a majority"));
        // The call for the second lock began while a majority was up, which can have granted it: no fault.
        assert_eq!(conclusion(&[1, 100], Some(2)).faults, [""; 0]);
    }

    #[test]
    fn times_to_acquire_are_the_measured_ones() {
        let hold = |ms| Hold { acquired_ns: ms * MS, ended_ns: ms * MS, ..Hold::default() };
        let holds: Vec<Hold> = (1..=100).map(hold).collect();
        let times = Record::default().times_to_acquire(&holds.iter().collect::<Vec<_>>());
        assert_eq!(times, Some(["50ms", "99ms", "100ms"].map(str::to_owned)));
    }
}
