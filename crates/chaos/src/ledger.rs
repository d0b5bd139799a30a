//! The records of a round. While the round runs, the [`Ledger`] records holds, the numbers that holders write, the runs
//! of commands, and a journal. At the end it returns the `Totals`, which count the results of calls, and the
//! [`Findings`]: the violations and the journal.

mod leases;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorlock_sim::time::{MS, SECOND, Time};

use self::leases::Leases;
use crate::clock::{now, seconds};
use crate::commands::checks::Run;
use crate::holds::{Hold, names};
use crate::protocol::{CALLERS, ControllerMessage, Grant, RESOURCES, WorkerMessage, is_fenced};
use crate::shared_numbers::{SharedNumbers, Written};
use crate::totals::{CALLS, GRANTED, LOST, Totals};

/// The extract of the journal has the lines from `BEFORE` before the first violation to `AFTER` after it, at most `LINES`.
const BEFORE: Time = 3 * SECOND;
const AFTER: Time = 200 * MS;
const LINES: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) at: Time,
    pub(crate) what: String,
}

/// A caller: the index of its process, the number of killed predecessors of the process, and the caller's number.
pub(crate) type Caller = (usize, u32, usize);

#[derive(Debug, Default)]
pub(crate) struct Clients {
    /// The clients that must get locks: the index of the process, and the client's number.
    pub(crate) expected: Vec<(usize, usize)>,
    granted: BTreeSet<(usize, usize)>,
    /// The end of all faults; `None` before it. `granted_after`: the time from `healed` to each client's next lock.
    healed: Option<Time>,
    granted_after: BTreeMap<(usize, usize), Time>,
    pub(crate) owed: usize,
    pub(crate) closed: usize,
}

impl Clients {
    pub(crate) fn granted(&mut self, client: (usize, usize), at: Time) {
        self.granted.insert(client);
        if let Some(healed) = self.healed.filter(|healed| *healed <= at) {
            self.granted_after.entry(client).or_insert(at - healed);
        }
    }

    pub(crate) fn all_have_held(&self) -> bool {
        self.expected.iter().all(|client| self.granted.contains(client))
    }

    /// The time from the healing until each client had a lock again; `None` if a client has had none.
    pub(crate) fn healed_within(&self) -> Option<Time> {
        let after = self.expected.iter().map(|client| self.granted_after.get(client).copied());
        after.collect::<Option<Vec<Time>>>()?.into_iter().max()
    }

    /// Oracle 5: after the healing, each client must get a lock within `bound`. Returns the clients that did not.
    pub(crate) fn late(&self, bound: Time) -> Vec<String> {
        let after = |client: &&(usize, usize)| self.granted_after.get(*client);
        let late = self.expected.iter().filter(|it| after(it).is_none_or(|time| *time > bound));
        late.map(|(process, client)| format!("p{process}, client {client}")).collect()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<Violation>,
    /// The lines of the journal around the first violation.
    pub(crate) extract: Vec<String>,
    pub(crate) journal: Vec<String>,
}

/// Names of counts in the section [`CALLS`] of the totals.
pub(crate) const SEVERAL: &str = "locks granted, of several keys without a fencing token";
pub(crate) const SEVERAL_FENCED: &str = "locks granted, of several keys with one fencing token";
const READERS: &str = "locks granted, of readers";
const DOWNGRADED: &str = "writers that went on as readers";
pub(crate) const DOWNGRADE_CONFIRMED: &str =
    "writers that went on as readers, confirmed by a quorum in time";
pub(crate) const UNTRUSTED: &str = "refused: nodes are not to be trusted";

pub(crate) use self::leases::{ATTACHED, ATTACHED_FENCED, ATTACHED_SHARED, PROLONGED, SAME_MOMENT};

pub(crate) type Shared = Arc<Mutex<Ledger>>;

/// Locks the ledger, even if another thread panicked while it held the lock.
pub(crate) fn lock(ledger: &Shared) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    start: Time,
    holds: Vec<Hold>,
    pub(crate) leases: Leases,
    pub(crate) numbers: SharedNumbers,
    pub(crate) runs: Vec<Run>,
    /// The reason why a failure of mutual exclusion is no violation in this round; `None` if it is a violation.
    pub(crate) outside: Option<&'static str>,
    pub(crate) has_faults: bool,
    pub(crate) clients: Clients,
    pub(crate) totals: Totals,
    violations: Vec<Violation>,
    journal: Vec<(Time, String)>,
}

impl Ledger {
    pub(crate) fn new(start: Time, outside: Option<&'static str>) -> Self {
        Self { start, outside, ..Self::default() }
    }

    pub(crate) fn note(&mut self, at: Time, what: impl Into<String>) {
        self.journal.push((at, what.into()));
    }

    pub(crate) fn violated(&mut self, at: Time, what: String) {
        self.note(at, format!("VIOLATION: {what}"));
        self.violations.push(Violation { at, what });
    }

    /// Handles a worker's message, and returns the reply.
    pub(crate) fn said(&mut self, id: Caller, said: WorkerMessage) -> Option<ControllerMessage> {
        let (heard, who) = (now(), name(id));
        match said {
            WorkerMessage::Holds { grant } => self.granted(id, grant),
            WorkerMessage::StillHolds { until } => {
                if let Some(hold) = self.held_by(id) {
                    hold.to = hold.to.max(until);
                }
            }
            WorkerMessage::Held { until, lost } => self.ended(id, until, lost),
            WorkerMessage::Refused { why } => {
                self.totals.count(CALLS, &why, 1);
                self.note(heard, format!("{who}: {why}"));
            }
            WorkerMessage::Reads => {
                let hold = self.held_by(id)?.clone();
                let numbers = self.numbers.read(&hold.resources, hold.fence);
                if numbers.is_none() {
                    self.note(heard, format!("{who}: its fencing token is refused"));
                }
                return Some(ControllerMessage::Numbers { numbers });
            }
            WorkerMessage::Writes { read, until } => {
                let hold = self.held_by(id)?.clone();
                let all = hold.resources.iter().zip(read);
                // `count` visits every resource. So the holder writes to all of them, even after one write has failed.
                let written = all.filter(|(it, read)| self.writes(&hold, (**it, *read), until));
                let written = written.count() == hold.resources.len();
                return Some(ControllerMessage::Written { written });
            }
            WorkerMessage::Downgrades { at } => {
                let hold = self.held_by(id)?;
                hold.reads_from = hold.reads_from.min(at);
                let what = format!("{who}: becomes a reader of {}", hold.names());
                self.totals.count(CALLS, DOWNGRADED, 1);
                self.note(at, what);
            }
            WorkerMessage::Downgraded { confirmed } => {
                self.totals.count(CALLS, DOWNGRADE_CONFIRMED, u64::from(confirmed));
                let how = if confirmed { "was confirmed" } else { "was not confirmed in time" };
                self.note(heard, format!("{who}: that {how}"));
            }
            WorkerMessage::Compares { read, until } => {
                let hold = self.held_by(id)?.clone();
                for (resource, known) in hold.resources.iter().zip(read) {
                    self.compares(&hold, (*resource, known), until);
                }
                return Some(ControllerMessage::Compared);
            }
            WorkerMessage::Odd { what } => self.violated(heard, format!("{who}: {what}")),
            WorkerMessage::Closed { owed } => {
                self.clients.closed += 1;
                self.clients.owed += owed;
                self.note(heard, format!("{who}: its client was shut down, and owes {owed}"));
            }
            WorkerMessage::Calls { operation, lease, at } => {
                self.calls(id, operation, lease);
                if let Some(lease) = lease.filter(|_| operation.may_end_lease()) {
                    self.ends(lease, at);
                }
            }
            WorkerMessage::Detached { text, from, until } => self.detached(id, text, (from, until)),
            WorkerMessage::Prolonged { lease, text, asked, until } => {
                self.prolonged(lease, text, (asked, until));
            }
            WorkerMessage::Seeks => return Some(self.sought(id)),
            WorkerMessage::Left => self.leases.left = heard,
        }
        None
    }

    /// The hold of this caller that has not ended yet. It is among the newest holds.
    fn held_by(&mut self, id: Caller) -> Option<&mut Hold> {
        self.holds.iter_mut().rev().find(|hold| hold.is_open && hold.caller == id)
    }

    fn end(&mut self, id: Caller, until: Time) -> Option<Hold> {
        let hold = self.held_by(id)?;
        (hold.is_open, hold.to) = (false, until);
        Some(hold.clone())
    }

    fn granted(&mut self, id: Caller, grant: Grant) {
        let Grant { resources, asked, at, until, fence, is_reader, lease } = grant;
        let is_several = resources.len() > 1;
        let is_attached = lease.is_some();
        for (name, is_one) in [
            (GRANTED, true),
            (ATTACHED, is_attached),
            (ATTACHED_SHARED, is_attached && is_reader),
            (ATTACHED_FENCED, is_attached && fence.is_some()),
            (SEVERAL, is_several && fence.is_none()),
            (SEVERAL_FENCED, is_several && fence.is_some()),
            (READERS, is_reader),
        ] {
            self.totals.count(CALLS, name, u64::from(is_one));
        }
        let valid = self.when(until.max(self.start));
        let number = fence.map(|fence| format!(" with fencing token {fence}")).unwrap_or_default();
        let (who, lock) = (name(id), names(&resources));
        let how = if is_reader { "reads" } else { "holds" };
        self.note(at, format!("{who}: {how} {lock}{number}, valid until {valid}"));
        if !is_reader && resources.iter().any(|resource| fence.is_some() != is_fenced(*resource)) {
            self.violated(
                at,
                format!("{who} asked for a fencing token of {lock} and did not get one"),
            );
        }
        if let Some(lease) = lease {
            self.attached(&who, lease, at);
        }
        let (holder, reads_from) = (who, if is_reader { asked } else { Time::MAX });
        let (caller, is_open, from, to) = (id, true, at, until);
        let hold = Hold { caller, is_open, holder, resources, fence, asked, from, to, reads_from };
        self.holds.push(hold);
        self.clients.granted((id.0, id.2 / CALLERS), at);
    }

    fn ended(&mut self, id: Caller, until: Time, lost: Option<String>) {
        let Some(hold) = self.end(id, until) else { return };
        let lock = hold.names();
        let what = match lost {
            Some(cause) => {
                let what = format!("has lost {lock}: {cause}");
                self.totals.count(LOST, &cause, 1);
                what
            }
            None => format!("gives {lock} back"),
        };
        self.note(until.max(self.start), format!("{}: {what}", name(id)));
    }

    fn writes(&mut self, hold: &Hold, (resource, read): (usize, u64), until: Time) -> bool {
        let at = now();
        let (who, lock) = (&hold.holder, RESOURCES[resource]);
        match self.numbers.write(resource, read, (hold.fence, until), at) {
            Written::Yes => {
                self.note(at, format!("{who}: writes {} for {lock}", read + 1));
                true
            }
            Written::TooLate => {
                self.note(at, format!("{who}: comes too late to write for {lock}"));
                false
            }
            Written::OverAnothers { was } => {
                let next = read + 1;
                let what = format!("lost update of {lock}: {who} writes {next} over {was}");
                self.trusted(at, what, hold.fence.is_none());
                true
            }
        }
    }

    fn compares(&mut self, hold: &Hold, (resource, known): (usize, u64), until: Time) {
        let at = now();
        let (who, lock) = (&hold.holder, RESOURCES[resource]);
        let what = match self.numbers.is_still(resource, known, until, at) {
            Ok(()) => return self.note(at, format!("{who}: compares the number for {lock}")),
            Err(is) => {
                format!("{who} reads {lock} and knows {known}, but another holder has written {is}")
            }
        };
        self.trusted(at, what, true);
    }

    /// Records a failure. A failure of mutual exclusion (`by_validity`) is a violation only if the round promises
    /// mutual exclusion.
    pub(crate) fn trusted(&mut self, at: Time, what: String, by_validity: bool) {
        match self.outside.filter(|_| by_validity) {
            Some(why) => self.note(at, format!("{what}, but {why}")),
            None => self.violated(at, what),
        }
    }

    /// The number of valid locks that the callers of a process hold.
    pub(crate) fn held_in(&self, process: usize, at: Time) -> usize {
        let is_its = |hold: &&Hold| hold.is_open && hold.caller.0 == process && hold.to > at;
        self.holds.iter().filter(is_its).count()
    }

    /// Ends the holds of a killed process at `alive_at`, shortly before the kill, so that no recorded hold is too long.
    pub(crate) fn killed(&mut self, process: usize, alive_at: Time) {
        let is_its = |hold: &&mut Hold| hold.is_open && hold.caller.0 == process;
        for hold in self.holds.iter_mut().filter(is_its) {
            (hold.is_open, hold.to) = (false, hold.to.min(alive_at));
        }
    }

    pub(crate) fn healed(&mut self, at: Time) {
        self.clients.healed = Some(at);
        self.has_faults = false;
        self.note(at, "everything is healed");
    }

    /// All holds so far. The end of a hold that still lasts is the end of the validity that its holder last reported.
    pub(crate) fn holds(&self) -> &[Hold] {
        &self.holds
    }

    /// Returns the violations, the journal, and an extract of it around the first violation.
    pub(crate) fn findings(&mut self) -> Findings {
        let mut violations = std::mem::take(&mut self.violations);
        violations.sort_by_key(|violation| violation.at);
        let first = violations.first().map_or(self.start, |violation| violation.at);
        let mut extract = self.journal(first - BEFORE, first + AFTER);
        extract.drain(..extract.len().saturating_sub(LINES));
        Findings { violations, extract, journal: self.journal(self.start, Time::MAX) }
    }

    pub(crate) fn when(&self, at: Time) -> String {
        seconds(at - self.start)
    }

    fn journal(&self, from: Time, to: Time) -> Vec<String> {
        let mut lines: Vec<_> =
            self.journal.iter().filter(|(at, _)| (from..=to).contains(at)).collect();
        lines.sort_by_key(|(at, _)| *at);
        lines.iter().map(|(at, what)| format!("{:>10}  {what}", self.when(*at))).collect()
    }
}

fn name((process, generation, caller): Caller) -> String {
    let letter = ('a'..='z').nth(caller).unwrap_or('?');
    // Each prime stands for one killed predecessor of the process.
    let primes = "'".repeat(generation as usize);
    format!("p{process}{primes}{letter}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holds::overlaps;

    /// Records a hold that ended long ago, so that every write comes too late.
    fn holds(ledger: &mut Ledger, process: usize, at: Time, until: Time) {
        let resources = vec![0];
        let grant = Grant { resources, asked: at, at, until, ..Grant::default() };
        ledger.said((process, 0, 0), WorkerMessage::Holds { grant });
    }

    fn writes(read: u64, until: Time) -> WorkerMessage {
        WorkerMessage::Writes { read: vec![read], until }
    }

    #[test]
    fn a_killed_holder_held_until_its_death_at_most() {
        let mut ledger = Ledger::new(0, None);
        holds(&mut ledger, 0, 10, 100);
        assert_eq!((ledger.held_in(0, 50), ledger.held_in(0, 100)), (1, 0));
        ledger.killed(0, 50);
        holds(&mut ledger, 1, 60, 90);
        assert_eq!(overlaps(ledger.holds()), []);
        assert_eq!(ledger.holds()[0].to, 50);
    }

    #[test]
    fn a_stopped_holder_holds_until_the_end_of_its_validity() {
        let mut ledger = Ledger::new(0, None);
        holds(&mut ledger, 0, 10, 100);
        ledger.said((0, 0, 0), WorkerMessage::StillHolds { until: 120 });
        holds(&mut ledger, 1, 110, 200);
        assert_eq!(overlaps(ledger.holds()).len(), 1);
    }

    #[test]
    fn a_lost_update_of_two_holders_is_a_violation() {
        let mut ledger = Ledger::new(now(), None);
        let until = now() + 3600 * SECOND;
        holds(&mut ledger, 0, now(), until);
        holds(&mut ledger, 1, now(), until);
        let write = writes(0, until);
        let written = Some(ControllerMessage::Written { written: true });
        assert_eq!(ledger.said((0, 0, 0), write.clone()), written);
        assert!(ledger.violations.is_empty());
        assert_eq!(ledger.said((1, 0, 0), write), written);
        assert_eq!(ledger.violations.len(), 1);
        assert!(ledger.violations[0].what.contains("p1a writes 1 over 1"), "{ledger:?}");
    }

    #[test]
    fn outside_the_assumptions_a_lost_update_is_no_violation_unless_it_had_a_fencing_token() {
        let mut ledger = Ledger::new(now(), Some("clocks are wrong"));
        let until = now() + 3600 * SECOND;
        holds(&mut ledger, 0, now(), until);
        ledger.said((0, 0, 0), writes(3, until));
        assert_eq!((ledger.numbers.sum(false).lost(), ledger.violations.len()), (3, 0));
        let (resources, fence) = (vec![3], Some(7));
        let grant = Grant { resources, at: now(), until, fence, ..Grant::default() };
        ledger.said((0, 0, 1), WorkerMessage::Holds { grant });
        ledger.said((0, 0, 1), writes(3, until));
        assert_eq!((ledger.numbers.sum(true).lost(), ledger.violations.len()), (3, 1));
    }

    #[test]
    fn a_change_is_noticed_by_a_reader_and_by_a_downgraded_writer() {
        let mut ledger = Ledger::new(now(), None);
        let (at, until) = (now(), now() + 3600 * SECOND);
        let (resources, is_reader) = (vec![1, 0], true);
        let grant = Grant { resources, at, until, is_reader, ..Grant::default() };
        ledger.said((0, 0, 0), WorkerMessage::Holds { grant });
        let read = Some(ControllerMessage::Numbers { numbers: Some(vec![0, 0]) });
        assert_eq!(ledger.said((0, 0, 0), WorkerMessage::Reads), read);
        let compares = |read| WorkerMessage::Compares { read, until };
        ledger.said((0, 0, 0), compares(vec![0, 0]));
        holds(&mut ledger, 1, at, until);
        ledger.said((1, 0, 0), writes(0, until));
        assert!(ledger.violations.is_empty());
        ledger.said((0, 0, 0), compares(vec![0, 0]));
        assert_eq!(ledger.violations.len(), 1);
        assert!(ledger.violations[0].what.contains("p0a reads orders and knows 0"), "{ledger:?}");
        ledger.said((1, 0, 0), WorkerMessage::Downgrades { at: at + 1 });
        ledger.said((1, 0, 0), WorkerMessage::Compares { read: vec![1], until });
        assert_eq!((ledger.violations.len(), ledger.holds()[1].reads_from), (1, at + 1));
        let counts = [SEVERAL, READERS, DOWNGRADED].map(|name| ledger.totals.get(CALLS, name));
        assert_eq!(counts, [1, 1, 1]);
    }

    #[test]
    fn a_client_without_a_lock_in_time_is_late() {
        let mut clients = Clients { expected: vec![(0, 0), (0, 1), (1, 0)], ..Clients::default() };
        clients.granted((1, 0), 5);
        assert!(!clients.all_have_held());
        clients.healed = Some(90);
        clients.granted((0, 0), 100);
        clients.granted((0, 1), 101);
        assert!(clients.all_have_held());
        assert_eq!(clients.late(10), ["p0, client 1", "p1, client 0"]);
        assert_eq!(clients.healed_within(), None);
        clients.granted((1, 0), 103);
        assert_eq!((clients.late(13), clients.healed_within()), (Vec::new(), Some(13)));
    }
}
