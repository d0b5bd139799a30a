//! Checks the promises of `docs/cli.md` about commands.

use std::collections::BTreeMap;

use quorlock_sim::time::{MS, Time};
use rustix::process::Pid;

use super::TTL;
use super::writer::{CommandKind, OWN_CODE};
use crate::faults::Kind;

/// One `quorlock run`, or one script that holds a lock by `quorlock acquire --hold-by`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Run {
    pub(crate) machine: usize,
    pub(crate) key: usize,
    pub(crate) kind: CommandKind,
    /// The process of `quorlock run` or of the script; `None` before its start and after its end.
    pub(crate) keeper: Option<Pid>,
    /// The time of the run's event `acquired`; `None` before it.
    pub(crate) acquired: Option<Time>,
    /// The time for which the run's command writes, counted from `acquired`, if nothing ends the command.
    pub(crate) writes: Time,
    pub(crate) is_held: bool,
    /// The fault that was injected into the processes of this run, if any.
    pub(crate) fault: Option<Kind>,
    /// Whether the run's events were not read until the run had ended, so that the run blocked when it wrote an event.
    pub(crate) is_stalled: bool,
    /// The time in which keeper and guardian were both stopped, so that neither could end the command. `None`: never.
    pub(crate) alone: Option<(Time, Time)>,
    /// The names of the run's events, in order. Some have a detail after a colon, such as `lost:expired`.
    pub(crate) events: Vec<String>,
    pub(crate) is_heard: bool,
    /// Whether the keeper of a script did not answer within five seconds, so that `acquire` released the lock. On a
    /// busy machine this happens without a fault.
    pub(crate) is_keeper_late: bool,
    /// The run's exit code; `None` if a signal ended the keeper.
    pub(crate) code: Option<i32>,
}

impl Run {
    pub(crate) fn is_script(&self) -> bool {
        self.kind == CommandKind::SCRIPT
    }

    /// Whether the run's command would still write at `now + time` if nothing ended the command.
    pub(crate) fn goes_on_for(&self, time: Time, now: Time) -> bool {
        self.acquired.is_some_and(|at| at + self.writes > now + time)
    }

    fn has(&self, event: &str) -> bool {
        self.events.iter().any(|seen| seen.split(':').next() == Some(event))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meddling {
    pub(crate) key: usize,
    pub(crate) at: Time,
}

/// The time span from the first to the last line that a run's command wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrote {
    pub(crate) run: usize,
    pub(crate) from: Time,
    pub(crate) to: Time,
}

/// Returns for each run the time span in which it wrote lines to a file. The spans are ordered by their start.
pub(crate) fn wrote(file: &str) -> Vec<Wrote> {
    let mut spans: BTreeMap<usize, (Time, Time)> = BTreeMap::new();
    for line in file.lines() {
        let Some((at, run)) = line.split_once(' ') else { continue };
        // Skips an incomplete line. A signal may have ended the writer in the middle of the line.
        let (Ok(at), Ok(run)) = (at.parse::<Time>(), run.parse()) else { continue };
        let span = spans.entry(run).or_insert((at, at));
        *span = (span.0.min(at), span.1.max(at));
    }
    let mut all: Vec<Wrote> =
        spans.into_iter().map(|(run, (from, to))| Wrote { run, from, to }).collect();
    all.sort_by_key(|wrote| wrote.from);
    all
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) first: usize,
    pub(crate) second: usize,
    pub(crate) from: Time,
    pub(crate) to: Time,
    /// The reason why this overlap is no violation; `None` if it is a violation.
    pub(crate) excuse: Option<&'static str>,
}

/// Finds runs that wrote under one key at the same time. If a fault changed the key on the nodes, an overlap is excused
/// until both runs must have noticed the change. They notice it within a ttl, or within a third of it (at the next
/// extension) if neither run had a fault and the round is `calm`: servers and connections had no faults either.
pub(crate) fn overlaps(
    wrote: &[Wrote],
    runs: &[Run],
    meddling: &[Meddling],
    calm: bool,
) -> Vec<Overlap> {
    let mut overlaps = Vec::new();
    for (place, first) in wrote.iter().enumerate() {
        for second in wrote[place + 1..].iter().take_while(|second| second.from <= first.to) {
            let (from, to) = (second.from, first.to.min(second.to));
            let excuse = excuse((first, second), (from, to), runs, meddling, calm);
            overlaps.push(Overlap { first: first.run, second: second.run, from, to, excuse });
        }
    }
    overlaps
}

fn excuse(
    (first, second): (&Wrote, &Wrote),
    (from, to): (Time, Time),
    runs: &[Run],
    meddling: &[Meddling],
    calm: bool,
) -> Option<&'static str> {
    let pair = [first, second].map(|wrote| runs.get(wrote.run));
    let alone =
        |run: &Run| run.alone.is_some_and(|(was, end)| was <= from && to <= end + AWAKENING);
    if pair.iter().flatten().any(|run| alone(run)) {
        return Some("keeper and guardian were stopped");
    }
    // A keeper releases the lock when its script ends, but nothing ends the command that the script was running.
    let is_killed_script = |run: &Run| run.is_script() && run.code.is_none() && run.fault.is_some();
    if pair.iter().flatten().any(|run| is_killed_script(run)) {
        return Some("a script was killed, and its command went on");
    }
    let undisturbed = |run: &Option<&Run>| run.is_some_and(|run| run.fault.is_none());
    let seen = if calm && pair.iter().all(undisturbed) { TTL / 3 } else { TTL } + DYING;
    let key = pair[0].map(|run| run.key);
    let excused = meddling
        .iter()
        .any(|act| Some(act.key) == key && act.at <= from + BREATH && to <= act.at + seen);
    excused.then_some("the key had been deleted or overwritten from outside")
}

/// The longest life of a command after its run notices the loss: kill margin (ttl / 20), 400 ms for a busy machine.
const DYING: Time = TTL / 20 + 400 * MS;

/// Like [`DYING`], but counted from the moment at which a stopped keeper or guardian continues. On a busy core, it took
/// 0.6 s to kill a chain of processes.
const AWAKENING: Time = DYING + 600 * MS;

/// A change of a key excuses an overlap even if the overlap began up to this long before the recorded change.
const BREATH: Time = 50 * MS;

/// Describes how an exit code contradicts the events; `None` if the code fits them.
pub(crate) fn misfit(run: &Run) -> Option<String> {
    if run.is_script() {
        // A signal may end a script: that of a fault, or that of the script's keeper. The script's code is 70 if the
        // keeper was killed before it answered `acquire`, or answered late.
        let kills_keeper = [Kind::KILL_GUARDIAN, Kind::TERM_GUARDIAN, Kind::KILL_BOTH];
        let is_keeper_killed = run.fault.is_some_and(|fault| kills_keeper.contains(&fault));
        let may_lack_keeper = is_keeper_killed || run.is_keeper_late;
        let is_known = run
            .code
            .is_none_or(|code| [0, 69, 75, 79].contains(&code) || (code == 70 && may_lack_keeper));
        return (!is_known)
            .then(|| format!("exit code {:?} is none that a script can have", run.code));
    }
    let Some(code) = run.code else {
        let killed = run.fault == Some(Kind::KILL_KEEPER);
        return (!killed).then(|| "a signal has ended the keeper".to_owned());
    };
    if run.is_stalled || !run.is_heard {
        let known = [OWN_CODE, 143, 70, 79, 75, 69].contains(&code);
        return (!known).then(|| format!("exit code {code} is none that a run can have"));
    }
    let contended = run.events.iter().any(|event| event == "not_acquired:true");
    let fits = match code {
        75 => contended && !run.has("acquired"),
        69 => run.has("not_acquired") && !contended && !run.has("acquired"),
        79 => run.has("lost") || run.has("not_started"),
        70 => run.has("unguarded") || run.has("not_started") || run.has("stubborn"),
        143 => run.fault == Some(Kind::TERM_KEEPER) && !run.has("lost") && !run.has("unguarded"),
        OWN_CODE => run.has("released") && !run.has("lost") && !run.has("unguarded"),
        _ => false,
    };
    (!fits).then(|| format!("exit code {code} does not fit the events {}", run.events.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(lines: &[(Time, usize)]) -> Vec<Wrote> {
        let lines = lines.iter().map(|(ms, run)| format!("{} {run}\n", ms * MS));
        wrote(&lines.collect::<String>())
    }

    fn excuses(runs: &[Run], meddling: &[Meddling], calm: bool, end: Time) -> Vec<bool> {
        let wrote = file(&[(1000, 0), (end, 0), (2000, 1), (2000 + TTL / MS * 4, 1)]);
        let overlaps = overlaps(&wrote, runs, meddling, calm);
        overlaps.iter().map(|overlap| overlap.excuse.is_some()).collect()
    }

    #[test]
    fn commands_that_wrote_in_turn_do_not_overlap_and_others_do() {
        let runs = vec![Run::default(); 3];
        let turns = file(&[(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)]);
        assert_eq!(overlaps(&turns, &runs, &[], true), []);
        let both = overlaps(&file(&[(1, 0), (3, 1), (4, 0), (9, 1)]), &runs, &[], true);
        let [overlap] = &both[..] else { panic!("{both:?}") };
        assert_eq!((overlap.from, overlap.to, overlap.excuse), (3 * MS, 4 * MS, None));
        assert_eq!(wrote("12 1\n13 1\n9"), [Wrote { run: 1, from: 12, to: 13 }]);
    }

    #[test]
    fn a_command_may_go_on_until_its_loss_is_seen_and_no_longer() {
        let meddling = [Meddling { key: 0, at: 1990 * MS }];
        let runs = vec![Run::default(); 2];
        assert_eq!(excuses(&runs, &[], true, 2001), [false]);
        let soon = (TTL / 3 + DYING) / MS;
        for (calm, until) in [(true, 1989 + soon), (false, 1989 + (TTL + DYING) / MS)] {
            assert_eq!(excuses(&runs, &meddling, calm, until), [true], "{calm}");
            assert_eq!(excuses(&runs, &meddling, calm, until + 2), [false], "{calm}");
        }
        // A stopped keeper notices the loss later, so the overlap is excused for longer.
        let stopped = Run { fault: Some(Kind::STOP_KEEPER), ..Run::default() };
        assert_eq!(excuses(&[stopped, Run::default()], &meddling, true, 1991 + soon), [true]);
        // A change of another key, or a change long after the start of the overlap, excuses nothing.
        let runs = vec![Run { key: 1, ..Run::default() }; 2];
        assert_eq!(excuses(&runs, &meddling, true, 2001), [false]);
        let later = [Meddling { key: 0, at: 2100 * MS }];
        assert_eq!(excuses(&vec![Run::default(); 2], &later, true, 2200), [false]);
    }

    #[test]
    fn nothing_is_promised_while_keeper_and_guardian_are_stopped() {
        let alone = Run { alone: Some((1500 * MS, 3000 * MS)), ..Run::default() };
        let runs = [alone, Run::default()];
        assert_eq!(excuses(&runs, &[], true, 3001), [true]);
        assert_eq!(excuses(&runs, &[], true, 3000 + AWAKENING / MS + 1), [false]);
    }

    #[test]
    fn an_exit_code_must_fit_the_events() {
        let run = |code, events: &[&str]| {
            let events = events.iter().map(ToString::to_string).collect();
            Run { code: Some(code), events, is_heard: true, ..Run::default() }
        };
        let ends = ["acquired", "released:released"];
        assert_eq!(misfit(&run(OWN_CODE, &ends)), None);
        assert!(misfit(&run(79, &ends)).is_some());
        assert!(misfit(&run(143, &ends)).is_some());
        assert_eq!(misfit(&Run { fault: Some(Kind::TERM_KEEPER), ..run(143, &ends) }), None);
        assert_eq!(misfit(&run(79, &["acquired", "lost:expired"])), None);
        assert!(misfit(&run(OWN_CODE, &["acquired", "lost:expired", "released:x"])).is_some());
        assert_eq!(misfit(&run(75, &["not_acquired:true"])), None);
        assert!(misfit(&run(75, &["not_acquired:false"])).is_some());
        assert_eq!(misfit(&run(69, &["not_acquired:false"])), None);
        assert!(misfit(&run(70, &ends)).is_some());
        assert!(misfit(&run(1, &ends)).is_some());
        assert!(misfit(&Run { code: None, ..run(0, &[]) }).is_some());
        let killed = Run { code: None, fault: Some(Kind::KILL_KEEPER), ..Run::default() };
        assert_eq!(misfit(&killed), None);
    }

    #[test]
    fn a_script_fails_for_a_fault_of_the_machine_only_if_its_keeper_was_killed_or_late() {
        let script =
            |fault| Run { kind: CommandKind::SCRIPT, fault, code: Some(70), ..Run::default() };
        assert_eq!(misfit(&script(Some(Kind::KILL_GUARDIAN))), None);
        for fault in [None, Some(Kind::KILL_KEEPER), Some(Kind::STOP_GUARDIAN)] {
            assert!(misfit(&script(fault)).is_some(), "{fault:?}");
            assert_eq!(misfit(&Run { is_keeper_late: true, ..script(fault) }), None);
        }
    }
}
