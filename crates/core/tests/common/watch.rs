//! The rules that hold in every world, whatever a test is about. Each is checked at every step, by
//! what went over the wire and by what the nodes really hold, never by asking the engine.

use std::collections::{BTreeMap, BTreeSet};

use quorlock_core::{Answer, Command, LockId, NodeId, Quorum, Reading, Ticket, Value, Verb};

use super::node::Node;
use super::world::Guard;

/// A client and a node.
type Between = (usize, NodeId);

#[derive(Debug)]
pub(crate) struct Watch {
    quorum: Quorum,
    /// No node has lost a key before its time, so that no two locks may overlap.
    pub(crate) assume_no_loss: bool,
    /// How often two clients held one lock, where that may be.
    pub(crate) overlaps: usize,
    /// Commands that were carried out after their connection had died.
    pub(crate) orphans: usize,
    /// Whose each value is: client, lock and round of the attempt.
    attempts: BTreeMap<Value, (usize, LockId, u32)>,
    /// What each command was about.
    commands: BTreeMap<(Between, Ticket), Value>,
    /// Where a value may be: it was asked for, and no release has been queued since.
    unreleased: BTreeSet<(Between, Value)>,
    /// When each attempt, or the raise of a hand-over, was first sent.
    began: BTreeMap<(Value, u32), i64>,
    /// What a node was last asked to raise its counter to.
    raised: BTreeMap<(Between, Value), u64>,
    /// How often a fence was shown that had to be raised first, or passed on.
    pub(crate) raises: usize,
    /// Who said yes to which value, before a release was queued.
    yes: BTreeSet<(Between, Value)>,
}

impl Watch {
    pub(crate) fn new(quorum: Quorum) -> Self {
        Self {
            quorum,
            assume_no_loss: true,
            overlaps: 0,
            orphans: 0,
            attempts: BTreeMap::new(),
            commands: BTreeMap::new(),
            began: BTreeMap::new(),
            raised: BTreeMap::new(),
            raises: 0,
            unreleased: BTreeSet::new(),
            yes: BTreeSet::new(),
        }
    }

    /// A command is given to a node.
    pub(crate) fn sent(
        &mut self,
        between: Between,
        ticket: Ticket,
        command: &Command,
        guards: &BTreeMap<LockId, Guard>,
        now: Reading,
    ) {
        // A lock that was handed over is the last guard's.
        let of_value = |value: &Value| {
            let same = guards.values().filter(|guard| guard.value() == *value);
            same.max_by_key(|guard| guard.turn)
        };
        let value = match command {
            Command::Acquire { value, .. }
            | Command::AcquireFenced { value, .. }
            | Command::HealFenced { value, .. } => {
                let attempt = (between.0, ticket.lock, ticket.round);
                if ticket.verb == Verb::Acquire {
                    let first = *self.attempts.entry(value.clone()).or_insert(attempt);
                    assert_eq!(first, attempt, "every attempt has a token of its own (S6)");
                    self.began.entry((value.clone(), 0)).or_insert(now.boot().as_nanos());
                } else {
                    let healed = of_value(value).expect("only a held lock is healed");
                    assert!(healed.is_valid(now) && healed.value() == *value, "healed while valid");
                }
                self.unreleased.insert((between, value.clone()));
                value
            }
            Command::Raise { value, to, .. } => {
                let unreleased = self.unreleased.contains(&(between, value.clone()));
                assert!(unreleased, "nothing is raised behind its release");
                let before = self.raised.insert((between, value.clone()), *to);
                assert!(before < Some(*to), "raised from {before:?} to {to}");
                if let Some(given_back) = of_value(value) {
                    let next = (value.clone(), given_back.turn + 1);
                    self.began.entry(next).or_insert(now.boot().as_nanos());
                    assert!(!given_back.is_valid(now), "invalid before the next one's fence (S14)");
                }
                value
            }
            Command::Extend { value, .. } | Command::ExtendFenced { value, .. } => {
                // The guard may be going: what is due comes before its release is looked at.
                let extended = of_value(value).expect("only a held lock is extended");
                let valid = !extended.validity.remaining(now).is_zero();
                assert!(valid && extended.value() == *value, "extended while valid");
                let released = !self.unreleased.contains(&(between, value.clone()));
                assert!(!released, "nothing is extended behind its release");
                value
            }
            Command::Release { value, .. } => {
                let valid = of_value(value).is_some_and(|guard| guard.is_valid(now));
                assert!(!valid, "invalid here before it is released there (S14)");
                self.unreleased.remove(&(between, value.clone()));
                self.yes.remove(&(between, value.clone()));
                value
            }
            _ => return,
        };
        let again = self.commands.insert((between, ticket), value.clone());
        // A raise is not the same again: it is to a larger number each time.
        let may = matches!(ticket.verb, Verb::Release | Verb::Raise);
        assert!(may || again.is_none(), "nothing but a release is sent twice (S8)");
    }

    /// A node's answer is delivered.
    pub(crate) fn answered(&mut self, between: Between, ticket: Ticket, answer: &Answer) {
        let Some(value) = self.commands.get(&(between, ticket)) else {
            return;
        };
        let unreleased = self.unreleased.contains(&(between, value.clone()));
        match answer {
            Answer::Granted | Answer::GrantedFenced { .. } | Answer::Extended if unreleased => {
                self.yes.insert((between, value.clone()));
            }
            Answer::Absent | Answer::Other => {
                self.yes.remove(&(between, value.clone()));
            }
            _ => {}
        }
    }

    /// A lock is handed out: no other is valid at this time.
    pub(crate) fn granted(
        &mut self,
        granted: &Guard,
        guards: &BTreeMap<LockId, Guard>,
        now: Reading,
    ) {
        assert!(granted.is_valid(now), "valid when it is handed out (S5)");
        assert!(granted.validity.valid_for(now) >= granted.request.timing.min_validity());
        let alike = |other: &Guard| (other.token, other.turn) == (granted.token, granted.turn);
        assert!(!guards.values().any(alike), "no two guards look alike (S24)");
        let of_same_key = guards.values().filter(|other| other.request.key == granted.request.key);
        let holders = of_same_key.filter(|other| other.is_valid(now)).count();
        assert!(holders == 0 || !self.assume_no_loss, "two clients hold one lock");
        self.overlaps += holders;
    }

    /// A fence is shown: no other is like it, it is larger than all that were shown before it was
    /// asked for, and a quorum of nodes have recorded it (S18).
    pub(crate) fn fenced(
        &mut self,
        granted: &Guard,
        guards: &BTreeMap<LockId, Guard>,
        nodes: &[Node],
    ) {
        let Some(counter) = &granted.request.fenced else {
            return assert_eq!(granted.fence, None);
        };
        let fence = granted.fence.expect("a fence was wanted");
        let began = self.began[&(granted.value(), granted.turn)];
        let same_key = guards.values().filter(|other| other.request.key == granted.request.key);
        for other in same_key {
            let Some(shown) = other.fence else {
                continue;
            };
            assert_ne!(shown, fence, "two guards show the same fence");
            let earlier = other.granted < began || self.assume_no_loss;
            assert!(!earlier || shown < fence, "{fence} is shown after {shown}");
        }
        let raised = |(between, value): &(Between, Value)| {
            between.0 == granted.client && *value == granted.value()
        };
        self.raises += usize::from(self.raised.keys().any(raised));
        let records = |node: &Node| {
            let stored = node.keys.get(&granted.request.key).and_then(|key| key.value.as_deref());
            node.counters.get(&counter.key) == Some(&fence)
                && stored == Some(granted.value().as_bytes())
        };
        let recorded = nodes.iter().filter(|node| records(node)).count();
        let enough = self.quorum.is_reached(recorded) || !self.assume_no_loss;
        assert!(enough, "{fence} is recorded on {recorded} nodes (S18)");
    }

    /// The votes of a lock are made known: each has been given, and was not given back (S1).
    pub(crate) fn votes(&self, guard: &Guard) {
        for node in self.quorum.node_ids() {
            let given = self.yes.contains(&((guard.client, node), guard.value()));
            assert!(
                given || !guard.validity.has_vote_of(node),
                "node {} never gave this vote, or lost it, or has it back (S1)",
                node.index()
            );
        }
    }

    /// While a guard is valid, a quorum of nodes really hold its value (S2).
    pub(crate) fn look(&self, nodes: &[Node], guards: &BTreeMap<LockId, Guard>, now: Reading) {
        if !self.assume_no_loss {
            return;
        }
        for guard in guards.values().filter(|guard| guard.is_valid(now)) {
            let holds = |node: &Node| {
                let stored = node.keys.get(&guard.request.key);
                let stored = stored
                    .filter(|stored| stored.expires.is_some_and(|at| now.boot().as_nanos() < at));
                stored
                    .is_some_and(|stored| stored.value.as_deref() == Some(guard.value().as_bytes()))
            };
            let votes = nodes.iter().filter(|node| holds(node)).count();
            assert!(self.quorum.is_reached(votes), "valid with {votes} votes: {guard:?}");
        }
    }

    /// Step 5, S15: whatever was asked for has been released, on every node.
    pub(crate) fn everything_was_released(&self) {
        assert!(self.unreleased.is_empty(), "never released: {:?}", self.unreleased);
        let released: BTreeSet<(Between, &Value)> = self
            .commands
            .iter()
            .filter(|((_, ticket), _)| ticket.verb == Verb::Release)
            .map(|((between, _), value)| (*between, value))
            .collect();
        for (value, (client, ..)) in &self.attempts {
            for node in self.quorum.node_ids() {
                let released = released.contains(&((*client, node), value));
                assert!(released, "no release of {value:?} on node {}", node.index());
            }
        }
    }

    /// Nothing of ours is left on any node.
    pub(crate) fn no_key_is_left(&self, nodes: &[Node]) {
        for stored in nodes.iter().flat_map(|node| node.keys.values()) {
            let ours =
                self.attempts.keys().any(|value| stored.value.as_deref() == Some(value.as_bytes()));
            assert!(!ours, "a key is left behind: {stored:?}");
        }
    }
}
