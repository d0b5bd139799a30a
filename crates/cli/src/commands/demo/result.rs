//! The verdict: the measurements of each phase, and whether the lock kept its promise.

use std::time::Duration;

use super::WAIT;
use super::tally::{Latency, Tally};
use super::worker::Hold;
use super::workers::WORKERS;

#[derive(Clone, Debug)]
pub(super) struct Phase {
    pub(super) title: String,
    /// Beginning and end of the phase, in nanoseconds of the boot clock.
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) majority: bool,
}

/// The evidence for the verdict.
pub(super) struct Observed<'a> {
    pub(super) tally: &'a Tally,
    pub(super) phases: &'a [Phase],
    /// The number in the file at the end; `None` if the file has no number.
    pub(super) counter: Option<u64>,
    pub(super) places: String,
    pub(super) faults: Vec<String>,
}

pub(super) struct DemoResult {
    pub(super) lines: Vec<String>,
    pub(super) summary: String,
    pub(super) faults: Vec<String>,
}

impl Observed<'_> {
    pub(super) fn evaluate(self) -> DemoResult {
        let mut lines = vec![
            format!("  {:20}{:>27}{:>26}", "", "mean", "time to acquire"),
            format!(
                "  {:20}{:>10}{:>9}{:>8}  {:>8}{:>8}{:>8}",
                "while", "acquired", "per s", "votes", "p50", "p99", "max"
            ),
        ];
        lines.extend((0..self.phases.len()).map(|place| self.row(place)));
        lines.push(String::new());
        lines.extend(self.totals());
        let summary = format!(
            "{} acquisitions, {} overlaps, {} lost updates",
            self.tally.holds().len(),
            self.tally.overlaps(),
            self.lost_updates()
        );
        DemoResult { lines, summary, faults: self.faults() }
    }

    fn row(&self, place: usize) -> String {
        let phase = &self.phases[place];
        let holds: Vec<&Hold> = self.holds_in(place).collect();
        let (title, count) = (&phase.title, holds.len());
        if !phase.majority {
            let times = phase.from_ns..phase.to_ns;
            let refused = self.tally.refusals().iter();
            let refused = refused.filter(|it| !it.contended && times.contains(&it.at_ns)).count();
            return format!("  {title:20}{count:>10}    {refused} calls refused");
        }
        let undisturbed = holds.iter().copied().filter(|hold| self.is_undisturbed(hold));
        let Some(latency) = Latency::of(undisturbed) else {
            return format!("  {title:20}{count:>10}");
        };
        let time = Duration::from_nanos(phase.to_ns.saturating_sub(phase.from_ns));
        let rate = count as f64 / time.as_secs_f64();
        let votes = holds.iter().map(|hold| hold.votes).sum::<usize>() as f64 / count as f64;
        let [p50, p99, max] = latency.in_short();
        format!("  {title:20}{count:>10}{rate:>9.0}{votes:>8.1}  {p50:>8}{p99:>8}{max:>8}")
    }

    fn totals(&self) -> Vec<String> {
        let tally = self.tally;
        let mut lines =
            vec![format!("  workers that held it: {}, in {}", tally.workers(), self.places)];
        let undisturbed = tally.holds().iter().filter(|hold| self.is_undisturbed(hold));
        if let Some([p50, p99, max]) = Latency::of(undisturbed).map(|latency| latency.in_short()) {
            lines.push(format!(
                "  time to acquire, {WORKERS} contending: p50 {p50}, p99 {p99}, max {max}"
            ));
        }
        let gave_up = tally.refusals().iter().filter(|refusal| refusal.contended).count();
        if gave_up > 0 {
            lines.push(format!("  calls that gave up after {WAIT:?} behind others: {gave_up}"));
        }
        let late = tally.holds().iter().filter(|hold| hold.wrote.is_none()).count();
        if late > 0 {
            lines
                .push(format!("  writes left out because the lock was not valid any more: {late}"));
        }
        lines.push(format!(
            "  two holders at the same time: {} times, by the clock that all processes share",
            tally.overlaps()
        ));
        let in_file = self.counter.map_or_else(|| "rubbish".to_owned(), |count| count.to_string());
        lines.push(format!("  writes: {}; the number in the file: {in_file}", tally.writes()));
        lines
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = self.faults.clone();
        let overlaps = self.tally.overlaps();
        if overlaps > 0 {
            faults.push(format!("{overlaps} times two workers held the lock at the same time"));
        }
        if self.lost_updates() > 0 {
            faults.push(format!("{} updates of the file were lost", self.lost_updates()));
            faults.extend(self.tally.rewrites());
        } else if self.counter != Some(self.tally.writes()) {
            faults.push("the file holds more than the workers say they wrote".to_owned());
        }
        for (place, phase) in self.phases.iter().enumerate() {
            match self.holds_in(place).count() {
                0 if phase.majority => {
                    faults.push(format!("nobody got the lock while: {}", phase.title));
                }
                count if !phase.majority && count > 0 => {
                    faults.push(format!("{count} acquisitions without a majority"));
                }
                _ => {}
            }
        }
        faults
    }

    /// Number of writes that the file does not show.
    fn lost_updates(&self) -> u64 {
        self.tally.writes().saturating_sub(self.counter.unwrap_or(0))
    }

    fn holds_in(&self, place: usize) -> impl Iterator<Item = &Hold> {
        self.tally.holds().iter().filter(move |hold| self.phase_of(hold) == Some(place))
    }

    fn phase_of(&self, hold: &Hold) -> Option<usize> {
        let at = |phase: &Phase| (phase.from_ns..phase.to_ns).contains(&hold.acquired_ns);
        let place = self.phases.iter().position(at)?;
        let phase = &self.phases[place];
        // A majority granted the lock while it was up. The worker only read the last answers afterwards.
        let before = !phase.majority && hold.asked_ns < phase.from_ns;
        if before { place.checked_sub(1) } else { Some(place) }
    }

    /// Whether a majority of nodes was up from the call to the grant. Otherwise the time to acquire would only measure
    /// how long nodes were down.
    fn is_undisturbed(&self, hold: &Hold) -> bool {
        let mut without = self.phases.iter().filter(|phase| !phase.majority);
        without.all(|phase| hold.acquired_ns < phase.from_ns || phase.to_ns <= hold.asked_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::super::worker::Report;
    use super::*;

    const MS: u64 = 1_000_000;

    /// A tally of holds of 2 ms that begin at these times. Each was asked for 1 ms earlier, and wrote once.
    fn tally(held_from_ms: &[u64]) -> Tally {
        let mut tally = Tally::default();
        for (number, from) in held_from_ms.iter().enumerate() {
            let hold = Hold {
                worker: number,
                asked_ns: (from - 1) * MS,
                acquired_ns: from * MS,
                ended_ns: (from + 2) * MS,
                votes: 3,
                wrote: Some(1),
            };
            tally.add(Report::Held(hold));
        }
        tally
    }

    fn phases() -> Vec<Phase> {
        let phase = |title: &str, from, to, majority| Phase {
            title: title.to_owned(),
            from_ns: from * MS,
            to_ns: to * MS,
            majority,
        };
        vec![phase("up", 0, 100, true), phase("down", 100, 200, false)]
    }

    fn judged(held_from_ms: &[u64], counter: Option<u64>) -> DemoResult {
        let (tally, phases) = (tally(held_from_ms), phases());
        let places = "here".to_owned();
        Observed { tally: &tally, phases: &phases, counter, places, faults: Vec::new() }.evaluate()
    }

    #[test]
    fn one_after_the_other_is_well() {
        let result = judged(&[1, 3, 5], Some(3));
        assert_eq!(result.faults, [""; 0]);
        assert_eq!(result.summary, "3 acquisitions, 0 overlaps, 0 lost updates");
    }

    #[test]
    fn two_at_a_time_are_a_fault() {
        let result = judged(&[1, 2, 5], Some(3));
        assert!(result.faults[0].contains("same time"), "{:?}", result.faults);
        assert_eq!(result.summary, "3 acquisitions, 1 overlaps, 0 lost updates");
    }

    #[test]
    fn a_lost_update_is_a_fault_and_so_is_one_too_many() {
        assert!(judged(&[1, 3, 5], Some(2)).faults[0].contains("1 updates of the file were lost"));
        assert!(judged(&[1, 3, 5], None).faults[0].contains("3 updates"));
        assert!(judged(&[1, 3, 5], Some(4)).faults[0].contains("more than the workers say"));
    }

    #[test]
    fn the_lock_is_to_be_had_with_a_majority_and_not_without() {
        assert!(judged(&[], Some(0)).faults[0].contains("nobody got the lock while: up"));
        assert!(judged(&[1, 150], Some(2)).faults[0].contains("without a majority"));
        // The lock was asked for while the majority was up, and the majority granted it.
        assert_eq!(judged(&[1, 100], Some(2)).faults, [""; 0]);
    }
}
