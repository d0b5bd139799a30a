//! Detached locks. A detached lock has no holder, but other clients cannot get the lock until its lease ends.

use quorlock_sim::time::{MS, Time};

use super::{Caller, Ledger, name};
use crate::clock::now;
use crate::holds::Hold;
use crate::protocol::{ControllerMessage, Operation};
use crate::totals::{CALLS, OPERATIONS};

pub(crate) const ATTACHED: &str = "leases attached";
pub(crate) const ATTACHED_SHARED: &str = "leases attached, of readers";
pub(crate) const ATTACHED_FENCED: &str = "leases attached, with a larger fencing token";
pub(crate) const SAME_MOMENT: &str = "leases that two processes got for the same moment";
pub(crate) const PROLONGED: &str = "leases extended";

/// All callers that get a lease within this time after its text was made use it at the end of this time, and compete.
const GATHERING: Time = 40 * MS;

/// The number of processes that get the same text of a lease.
const USERS: usize = 2;

#[derive(Debug, Default)]
pub(crate) struct Leases {
    all: Vec<Lease>,
    /// The end of the latest operation that may leave a key on the nodes for a ttl.
    pub(crate) left: Time,
}

#[derive(Debug)]
struct Lease {
    /// The index of the `Hold` for the time without a holder. No other client may get the lock in this time.
    hold: usize,
    /// The process that detached the lock.
    from: usize,
    text: String,
    due: Time,
    users: Vec<usize>,
    /// The end of the lease, according to its newest text.
    until: Time,
    /// The time of the first call (attach or release) that may end the lease early.
    ended: Time,
    /// The latest time up to which a quorum of nodes certainly stored the lock without a break since it was detached.
    proved: Time,
    is_attached: bool,
}

impl Lease {
    /// The time until which no other client may get the lock. A failed attach and a release may both end the lease
    /// early, so the end in the text counts only up to the start of such a call.
    fn end(&self) -> Time {
        self.proved.max(self.until.min(self.ended))
    }
}

impl Ledger {
    pub(super) fn calls(&mut self, id: Caller, operation: Operation, lease: Option<usize>) {
        self.totals.count(OPERATIONS, operation.name(), u64::from(self.has_faults));
        if let Some(place) = lease {
            self.note(now(), format!("{}: {} of lease {place}", name(id), operation.name()));
        }
    }

    /// Answers a caller that seeks a lease of another process.
    pub(super) fn sought(&mut self, (process, ..): Caller) -> ControllerMessage {
        let at = now();
        let is_fit = |lease: &Lease| {
            let is_new = lease.from != process && !lease.users.contains(&process);
            is_new && lease.users.len() < USERS && lease.until > at
        };
        let lease = self.leases.all.iter().rposition(is_fit).map(|place| {
            let lease = &mut self.leases.all[place];
            lease.users.push(process);
            let is_second = lease.users.len() == USERS && lease.due > at;
            self.totals.count(CALLS, SAME_MOMENT, u64::from(is_second));
            (place, lease.text.clone(), lease.due.max(at))
        });
        ControllerMessage::Lease { lease }
    }

    pub(super) fn detached(&mut self, id: Caller, text: String, (from, until): (Time, Time)) {
        let Some(held) = self.end(id, from) else { return };
        let place = self.leases.all.len();
        let what = format!("detaches {}: lease {place}, until {}", held.names(), self.when(until));
        self.note(from, format!("{}: {what}", name(id)));
        let holder = format!("lease {place} of {}", name(id));
        // The fencing token is left out, because the holder's own record already has it.
        let hold = Hold { holder, from, to: until, fence: None, ..held };
        let lease = Lease {
            hold: self.holds.len(),
            from: id.0,
            text,
            due: now() + GATHERING,
            users: Vec::new(),
            until,
            ended: Time::MAX,
            proved: from,
            is_attached: false,
        };
        self.holds.push(hold);
        self.leases.all.push(lease);
    }

    /// Records the beginning of a call that may end the lease.
    pub(super) fn ends(&mut self, place: usize, at: Time) {
        self.change(place, |lease| lease.ended = lease.ended.min(at));
    }

    pub(super) fn prolonged(&mut self, place: usize, text: String, (asked, until): (Time, Time)) {
        self.totals.count(CALLS, PROLONGED, 1);
        self.note(now(), format!("lease {place} is extended until {}", self.when(until)));
        self.change(place, |lease| {
            lease.proved = lease.proved.max(asked);
            lease.until = lease.until.max(until);
            lease.due = now() + GATHERING;
            lease.text = text;
            lease.users.clear();
        });
    }

    /// Records a successful attach, which proves that the nodes have stored the lock without a break until `at`.
    pub(super) fn attached(&mut self, who: &str, place: usize, at: Time) {
        if std::mem::replace(&mut self.leases.all[place].is_attached, true) {
            self.trusted(
                at,
                format!("{who} attaches lease {place}, which was attached before"),
                true,
            );
        }
        self.change(place, |lease| lease.proved = lease.proved.max(at));
    }

    fn change(&mut self, place: usize, change: impl FnOnce(&mut Lease)) {
        let lease = &mut self.leases.all[place];
        change(lease);
        self.holds[lease.hold].to = lease.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holds::overlaps;
    use crate::protocol::{Grant, WorkerMessage};

    /// A lock that process 0 held from 10 and detached at 20. By its text, the lease ends at 100.
    fn detached() -> Ledger {
        let mut ledger = Ledger::new(0, None);
        holds(&mut ledger, 0, (10, 90), None);
        let text = "lease".to_owned();
        ledger.said((0, 0, 0), WorkerMessage::Detached { text, from: 20, until: 100 });
        ledger
    }

    fn holds(ledger: &mut Ledger, process: usize, (at, until): (Time, Time), lease: Option<usize>) {
        let resources = vec![0];
        let grant = Grant { resources, asked: at, at, until, lease, ..Grant::default() };
        ledger.said((process, 0, 0), WorkerMessage::Holds { grant });
    }

    fn calls(ledger: &mut Ledger, process: usize, operation: Operation, at: Time) {
        let lease = Some(0);
        ledger.said((process, 0, 0), WorkerMessage::Calls { operation, lease, at });
    }

    #[test]
    fn nobody_else_gets_a_detached_lock_until_its_lease_ends() {
        for (at, count) in [(99, 1), (100, 0)] {
            let mut ledger = detached();
            holds(&mut ledger, 1, (at, 200), None);
            assert_eq!(overlaps(ledger.holds()).len(), count, "{at}");
        }
    }

    #[test]
    fn a_release_or_a_failed_attach_may_end_a_lease_and_an_extension_shows_that_it_goes_on() {
        let mut ledger = detached();
        calls(&mut ledger, 1, Operation::ReleaseLease, 40);
        assert_eq!(ledger.holds()[1].to, 40);
        ledger.prolonged(0, String::new(), (50, 150));
        assert_eq!(ledger.holds()[1].to, 50);
        let mut ledger = detached();
        ledger.prolonged(0, String::new(), (50, 150));
        calls(&mut ledger, 1, Operation::Attach, 120);
        assert_eq!(ledger.holds()[1].to, 120);
    }

    #[test]
    fn a_lease_has_one_new_holder_and_nobody_had_the_lock_in_between() {
        let mut ledger = detached();
        calls(&mut ledger, 1, Operation::Attach, 30);
        holds(&mut ledger, 2, (35, 36), None);
        holds(&mut ledger, 1, (40, 45), Some(0));
        assert_eq!((overlaps(ledger.holds()).len(), ledger.violations.len()), (1, 0));
        holds(&mut ledger, 2, (50, 60), Some(0));
        assert!(ledger.violations[0].what.contains("p2a attaches lease 0, which"), "{ledger:?}");
    }

    #[test]
    fn two_other_processes_get_a_new_lease_for_the_same_moment() {
        let mut ledger = detached();
        ledger.change(0, |lease| lease.until = Time::MAX);
        let mut at = Vec::new();
        for process in [0, 1, 1, 2, 3] {
            let ControllerMessage::Lease { lease, .. } = ledger.sought((process, 0, 0)) else {
                panic!("another message")
            };
            at.extend(lease.map(|(.., at)| (process, at)));
        }
        assert!(matches!(at[..], [(1, one), (2, two)] if one == two), "{at:?}");
        assert_eq!(ledger.totals.get(CALLS, SAME_MOMENT), 1);
    }
}
