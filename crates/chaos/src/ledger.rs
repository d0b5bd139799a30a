//! The records of a round. While the round runs, the [`Ledger`] records holds, the numbers that holders write, and a
//! journal. At the end it returns the `Totals`, which count the results of calls, and the [`Findings`]: the violations
//! and the journal.

mod leases;

use std::collections::{BTreeMap, BTreeSet};

use quorlock_sim::time::Time;

use self::leases::Leases;
use crate::clock::{now, seconds};
use crate::holds::{Hold, names};
use crate::numbers::Numbers;
use crate::oracles::Written;
use crate::plan::PROCESSES;
use crate::protocol::{
    CALLERS, CLIENTS, ControllerMessage, Grant, RESOURCES, Refused, WorkerMessage, is_fenced,
};
use crate::totals::Totals;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) at: Time,
    pub(crate) what: String,
}

/// A caller: the index of its process, the number of killed predecessors of the process, and the caller's number.
type Caller = (usize, u32, usize);

#[derive(Debug, Default)]
struct Held {
    all: Vec<Hold>,
    /// Indexes into `all` of the holds that have not ended yet.
    open: BTreeMap<Caller, usize>,
}

impl Held {
    fn begin(&mut self, id: Caller, hold: Hold) {
        self.open.insert(id, self.all.len());
        self.all.push(hold);
    }

    fn end(&mut self, id: Caller, until: Time) -> Option<&Hold> {
        let place = self.open.remove(&id)?;
        let hold = self.all.get_mut(place)?;
        hold.to = until;
        Some(hold)
    }

    fn by(&mut self, id: Caller) -> Option<&mut Hold> {
        let place = *self.open.get(&id)?;
        self.all.get_mut(place)
    }

    fn count(&self, process: usize, at: Time) -> usize {
        let valid = |place: &usize| self.all[*place].to > at;
        self.open.iter().filter(|(id, place)| id.0 == process && valid(place)).count()
    }

    fn killed(&mut self, process: usize, alive_at: Time) {
        let open = std::mem::take(&mut self.open);
        let (dead, others) = open.into_iter().partition(|(id, _)| id.0 == process);
        self.open = others;
        for place in BTreeMap::into_values(dead) {
            let hold = &mut self.all[place];
            hold.to = hold.to.min(alive_at);
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Clients {
    granted: BTreeSet<(usize, usize)>,
    /// The end of all faults; `None` before it. `granted_after`: the time from `healed` to each client's next lock.
    healed: Option<Time>,
    granted_after: BTreeMap<(usize, usize), Time>,
    pub(crate) owed: usize,
    pub(crate) closed: usize,
}

impl Clients {
    fn granted(&mut self, client: (usize, usize), at: Time) {
        self.granted.insert(client);
        if let Some(healed) = self.healed.filter(|healed| *healed <= at) {
            self.granted_after.entry(client).or_insert(at - healed);
        }
    }

    pub(crate) fn all_have_held(&self) -> bool {
        let had = |process: usize, client: usize| self.granted.contains(&(process, client));
        (0..PROCESSES).all(|process| (0..CLIENTS).all(|client| had(process, client)))
    }

    /// Returns each client's name, and the time from the healing to its next lock; `None` if it has had no lock since.
    pub(crate) fn after_healing(&self) -> Vec<(String, Option<Time>)> {
        let clients = (0..PROCESSES).flat_map(|process| (0..CLIENTS).map(move |of| (process, of)));
        let after = |id| self.granted_after.get(&id).copied();
        clients.map(|(p, of)| (format!("p{p}, client {of}"), after((p, of)))).collect()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<Violation>,
    /// The lines of the journal around the first violation.
    pub(crate) extract: Vec<String>,
    pub(crate) journal: Vec<String>,
}

/// Titles of the sections in the totals, and names of the counts in these sections. Other modules use them too.
pub(crate) const CALLS: &str = "what callers saw";
pub(crate) const LOST: &str = "locks lost while held, by cause";
pub(crate) const GRANTED: &str = "locks granted";
pub(crate) const SEVERAL: &str = "locks granted, of several keys without a fencing token";
pub(crate) const SEVERAL_FENCED: &str = "locks granted, of several keys with one fencing token";
pub(crate) const READERS: &str = "locks granted, of readers";
pub(crate) const DOWNGRADED: &str = "writers that went on as readers";
pub(crate) const DOWNGRADE_CONFIRMED: &str =
    "writers that went on as readers, confirmed by a quorum in time";
pub(crate) const UNTRUSTED: &str = "refused: nodes are not to be trusted";

pub(crate) use self::leases::{
    ATTACHED, ATTACHED_FENCED, ATTACHED_SHARED, OPERATIONS, PROLONGED, SAME_MOMENT,
};

#[derive(Debug)]
pub(crate) struct Ledger {
    start: Time,
    held: Held,
    pub(crate) leases: Leases,
    pub(crate) numbers: Numbers,
    /// The reason why a failure of mutual exclusion is no violation in this round; `None` if it is a violation.
    outside: Option<&'static str>,
    pub(crate) has_faults: bool,
    pub(crate) clients: Clients,
    pub(crate) totals: Totals,
    violations: Vec<Violation>,
    journal: Vec<(Time, String)>,
}

impl Ledger {
    pub(crate) fn new(start: Time, outside: Option<&'static str>) -> Self {
        Self {
            start,
            held: Held::default(),
            leases: Leases::default(),
            numbers: Numbers::default(),
            outside,
            has_faults: false,
            clients: Clients::default(),
            totals: Totals::default(),
            violations: Vec::new(),
            journal: Vec::new(),
        }
    }

    pub(crate) fn note(&mut self, at: Time, what: impl Into<String>) {
        self.journal.push((at, what.into()));
    }

    pub(crate) fn violated(&mut self, at: Time, what: String) {
        self.note(at, format!("VIOLATION: {what}"));
        self.violations.push(Violation { at, what });
    }

    /// Handles a worker's message, and returns the reply.
    pub(crate) fn said(
        &mut self,
        process: usize,
        generation: u32,
        said: WorkerMessage,
    ) -> Option<ControllerMessage> {
        let heard = now();
        let id = |caller| (process, generation, caller);
        match said {
            WorkerMessage::Holds { caller, resources, grant } => {
                self.granted(id(caller), resources, grant)
            }
            WorkerMessage::StillHolds { caller, until } => {
                if let Some(hold) = self.held.by(id(caller)) {
                    hold.to = hold.to.max(until);
                }
            }
            WorkerMessage::Held { caller, until, lost } => self.ended(id(caller), until, lost),
            WorkerMessage::Refused { caller, why } => {
                let what = match why {
                    Refused::Contended => "refused: contended",
                    Refused::NoQuorum => "refused: no quorum",
                    Refused::NodesUntrusted => UNTRUSTED,
                    Refused::TooSlow => "refused: too slow",
                    Refused::Over => "refused: the lease is over",
                    Refused::Cancelled => "has cancelled its call",
                };
                self.totals.count(CALLS, what, 1);
                self.note(heard, format!("{}: {what}", name(id(caller))));
            }
            WorkerMessage::Reads { caller } => {
                let hold = self.held.by(id(caller))?;
                let numbers = self.numbers.read(&hold.resources, hold.fence);
                if numbers.is_none() {
                    self.note(heard, format!("{}: its fencing token is refused", name(id(caller))));
                }
                return Some(ControllerMessage::Numbers { caller, numbers });
            }
            WorkerMessage::Writes { caller, read, until } => {
                let hold = self.held.by(id(caller))?.clone();
                let all = hold.resources.iter().zip(read);
                // `count` visits every resource. So the holder writes to all of them, even after one write has failed.
                let written = all.filter(|(it, read)| self.writes(&hold, (**it, *read), until));
                let written = written.count() == hold.resources.len();
                return Some(ControllerMessage::Written { caller, written });
            }
            WorkerMessage::Downgrades { caller, at } => {
                let hold = self.held.by(id(caller))?;
                hold.reads_from = hold.reads_from.min(at);
                let (who, lock) = (name(id(caller)), hold.names());
                self.totals.count(CALLS, DOWNGRADED, 1);
                self.note(at, format!("{who}: becomes a reader of {lock}"));
            }
            WorkerMessage::Downgraded { caller, confirmed } => {
                self.totals.count(CALLS, DOWNGRADE_CONFIRMED, u64::from(confirmed));
                let how = if confirmed { "was confirmed" } else { "was not confirmed in time" };
                self.note(heard, format!("{}: that {how}", name(id(caller))));
            }
            WorkerMessage::Compares { caller, read, until } => {
                let hold = self.held.by(id(caller))?.clone();
                for (resource, known) in hold.resources.iter().zip(read) {
                    self.compares(&hold, (*resource, known), until);
                }
                return Some(ControllerMessage::Compared { caller });
            }
            WorkerMessage::Odd { caller, what } => {
                self.violated(heard, format!("{}: {what}", name(id(caller))));
            }
            WorkerMessage::Closed { client, owed } => {
                self.clients.closed += 1;
                self.clients.owed += owed;
                self.note(heard, format!("p{process}, client {client}: shut down, owes {owed}"));
            }
            WorkerMessage::Calls { caller, operation, lease, at } => {
                self.calls(id(caller), operation, lease);
                if let Some(lease) = lease.filter(|_| operation.may_end_lease()) {
                    self.ends(lease, at);
                }
            }
            WorkerMessage::Detached { caller, text, from, until } => {
                self.detached(id(caller), text, (from, until));
            }
            WorkerMessage::Prolonged { lease, text, asked, until } => {
                self.prolonged(lease, text, (asked, until));
            }
            WorkerMessage::Seeks { caller } => return Some(self.sought(id(caller))),
            WorkerMessage::Left => self.leases.left = heard,
        }
        None
    }

    fn granted(&mut self, id: Caller, resources: Vec<usize>, grant: Grant) {
        let Grant { asked, at, until, token, fence, is_reader, lease } = grant;
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
        let hold = Hold { holder, resources, token, fence, asked, from: at, to: until, reads_from };
        self.held.begin(id, hold);
        self.clients.granted((id.0, id.2 / CALLERS), at);
    }

    fn ended(&mut self, id: Caller, until: Time, lost: Option<String>) {
        let Some(lock) = self.held.end(id, until).map(Hold::names) else { return };
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
        let what = match self.numbers.is_still(resource, known, (until, is_fenced(resource)), at) {
            Ok(()) => return self.note(at, format!("{who}: compares the number for {lock}")),
            Err(is) => {
                format!("{who} reads {lock} and knows {known}, but another holder has written {is}")
            }
        };
        self.trusted(at, what, true);
    }

    /// Records a failure. A failure of mutual exclusion (`by_validity`) is a violation only if the round promises
    /// mutual exclusion.
    fn trusted(&mut self, at: Time, what: String, by_validity: bool) {
        match self.outside.filter(|_| by_validity) {
            Some(why) => self.note(at, format!("{what}, but {why}")),
            None => self.violated(at, what),
        }
    }

    pub(crate) fn held_in(&self, process: usize, at: Time) -> usize {
        self.held.count(process, at)
    }

    /// Ends the holds of a killed process at `alive_at`, shortly before the kill, so that no recorded hold is too long.
    pub(crate) fn killed(&mut self, process: usize, alive_at: Time) {
        self.held.killed(process, alive_at);
    }

    pub(crate) fn healed(&mut self, at: Time) {
        self.clients.healed = Some(at);
        self.has_faults = false;
        self.note(at, "everything is healed");
    }

    /// All holds so far. The end of a hold that still lasts is the end of the validity that its holder last reported.
    pub(crate) fn holds(&self) -> &[Hold] {
        &self.held.all
    }

    /// Returns the violations, the journal, and an extract of it: from `before` the first violation until `after` it.
    pub(crate) fn findings(&mut self, before: Time, after: Time) -> Findings {
        let mut violations = std::mem::take(&mut self.violations);
        violations.sort_by_key(|violation| violation.at);
        let first = violations.first().map_or(self.start, |violation| violation.at);
        let extract = self.journal(first - before, first + after);
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
    use quorlock_sim::time::SECOND;

    use super::*;
    use crate::holds::overlaps;

    /// Records a hold that ended long ago, so that every write comes too late.
    fn holds(ledger: &mut Ledger, process: usize, at: Time, until: Time) {
        let grant = Grant { asked: at, at, until, ..Grant::default() };
        ledger.said(process, 0, WorkerMessage::Holds { caller: 0, resources: vec![0], grant });
    }

    fn writes(caller: usize, read: u64, until: Time) -> WorkerMessage {
        WorkerMessage::Writes { caller, read: vec![read], until }
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
        ledger.said(0, 0, WorkerMessage::StillHolds { caller: 0, until: 120 });
        holds(&mut ledger, 1, 110, 200);
        assert_eq!(overlaps(ledger.holds()).len(), 1);
    }

    #[test]
    fn a_lost_update_of_two_holders_is_a_violation() {
        let mut ledger = Ledger::new(now(), None);
        let until = now() + 3600 * SECOND;
        holds(&mut ledger, 0, now(), until);
        holds(&mut ledger, 1, now(), until);
        let write = writes(0, 0, until);
        let written = Some(ControllerMessage::Written { caller: 0, written: true });
        assert_eq!(ledger.said(0, 0, write.clone()), written);
        assert!(ledger.violations.is_empty());
        assert_eq!(ledger.said(1, 0, write), written);
        assert_eq!(ledger.violations.len(), 1);
        assert!(ledger.violations[0].what.contains("p1a writes 1 over 1"), "{ledger:?}");
    }

    #[test]
    fn outside_the_assumptions_a_lost_update_is_no_violation_unless_it_had_a_fencing_token() {
        let mut ledger = Ledger::new(now(), Some("clocks are wrong"));
        let until = now() + 3600 * SECOND;
        holds(&mut ledger, 0, now(), until);
        ledger.said(0, 0, writes(0, 3, until));
        assert_eq!((ledger.numbers.witness().lost(), ledger.violations.len()), (3, 0));
        let grant = Grant { at: now(), until, fence: Some(7), ..Grant::default() };
        ledger.said(0, 0, WorkerMessage::Holds { caller: 1, resources: vec![3], grant });
        ledger.said(0, 0, writes(1, 3, until));
        assert_eq!((ledger.numbers.store().lost(), ledger.violations.len()), (3, 1));
    }

    #[test]
    fn a_change_is_noticed_by_a_reader_and_by_a_downgraded_writer() {
        let mut ledger = Ledger::new(now(), None);
        let (at, until) = (now(), now() + 3600 * SECOND);
        let grant = Grant { at, until, is_reader: true, ..Grant::default() };
        ledger.said(0, 0, WorkerMessage::Holds { caller: 0, resources: vec![1, 0], grant });
        let read = Some(ControllerMessage::Numbers { caller: 0, numbers: Some(vec![0, 0]) });
        assert_eq!(ledger.said(0, 0, WorkerMessage::Reads { caller: 0 }), read);
        let compares = |read| WorkerMessage::Compares { caller: 0, read, until };
        ledger.said(0, 0, compares(vec![0, 0]));
        holds(&mut ledger, 1, at, until);
        ledger.said(1, 0, writes(0, 0, until));
        assert!(ledger.violations.is_empty());
        ledger.said(0, 0, compares(vec![0, 0]));
        assert_eq!(ledger.violations.len(), 1);
        assert!(ledger.violations[0].what.contains("p0a reads orders and knows 0"), "{ledger:?}");
        ledger.said(1, 0, WorkerMessage::Downgrades { caller: 0, at: at + 1 });
        ledger.said(1, 0, WorkerMessage::Compares { caller: 0, read: vec![1], until });
        assert_eq!((ledger.violations.len(), ledger.holds()[1].reads_from), (1, at + 1));
        let counts = [SEVERAL, READERS, DOWNGRADED].map(|name| ledger.totals.get(CALLS, name));
        assert_eq!(counts, [1, 1, 1]);
    }
}
