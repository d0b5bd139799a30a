//! The ledger: what went over the wire, per token. Kept from the facts alone, without asking the
//! engine, so that what the engine claims can be held against it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use quorlock_core::{
    Answer, Command, Keys, LockId, Quorum, Reading, Request, Ticket, Token, Value, Verb,
};

use crate::evidence_log::{EvidenceLog, Void};
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::guard::Guard;
use crate::time::{MS, Time, elapsed};

/// What is known of every token.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ledger {
    quorum: Quorum,
    drift: Drift,
    /// Which answers count.
    evidence_log: EvidenceLog,
    requests: BTreeMap<(ClientId, LockId), Request>,
    tokens: BTreeMap<Arc<[u8]>, TokenRecord>,
    commands: BTreeMap<(ClientId, Ticket), Arc<[u8]>>,
    /// The tokens of a call, in the order of its attempts.
    of_call: BTreeMap<(ClientId, LockId), Vec<Arc<[u8]>>>,
}

/// The error of clocks that is allowed for: ε in parts per million, δ in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Drift {
    pub(crate) ppm: i64,
    pub(crate) constant: Time,
}

impl Default for Drift {
    /// The paper's and the library's: 1 % and 2 ms.
    fn default() -> Self {
        Self { ppm: 10_000, constant: 2 * MS }
    }
}

/// What is known of one token.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TokenRecord {
    /// Whose.
    pub(crate) client: ClientId,
    /// Which call's.
    pub(crate) lock: LockId,
    /// Which keys.
    pub(crate) keys: Keys,
    /// How long a vote counts: T − (ε·T + δ), in nanoseconds.
    pub(crate) term: i64,
    /// Node by node.
    pub(crate) nodes: Vec<NodeRecord>,
    /// The latest round of extending, and how many nodes have confirmed in it.
    pub(crate) extending: (u32, usize),
    /// How many nodes have said that they have deleted it.
    pub(crate) deleted: usize,
    /// It was asked for as a reader's.
    pub(crate) is_shared: bool,
    /// From this round on it is asked for as a reader's, if it was a writer's before.
    downgraded_in: Option<u32>,
}

/// What is known of one token on one node.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NodeRecord {
    /// Something but a release has been given to the node.
    pub(crate) asked: bool,
    /// A release has been given to the node: whatever was granted is void for ever (S1).
    pub(crate) released: bool,
    /// When the command was sent that the node's latest yes answers.
    pub(crate) yes: Option<Reading>,
    /// The same of those before it. A client that asks for proofs may not have counted the latest, for reasons of its
    /// own; and once a clock was set, an earlier one may count for longer.
    earlier: Vec<Reading>,
    /// When the command was sent that proved the vote gone.
    pub(crate) gone: Option<Reading>,
    /// When the command was sent that the latest yes answers which must not count, and why.
    pub(crate) void: Option<(Reading, Void)>,
    /// What the node has said that its counter shows.
    pub(crate) recorded: Option<u64>,
}

/// The keys and the value that a command is about, if it is about a lock and says whose.
pub(crate) const fn subject(command: &Command) -> Option<(&Keys, &Value)> {
    match command {
        Command::Acquire { keys, value, .. }
        | Command::Heal { keys, value, .. }
        | Command::AcquireFenced { keys, value, .. }
        | Command::Raise { keys, value, .. }
        | Command::HealFenced { keys, value, .. }
        | Command::Extend { keys, value, .. }
        | Command::ExtendFenced { keys, value, .. }
        | Command::Release { keys, value, .. }
        | Command::AcquireShared { keys, value, .. }
        | Command::HealShared { keys, value, .. }
        | Command::ExtendShared { keys, value, .. }
        | Command::ReleaseShared { keys, value }
        | Command::Downgrade { keys, value } => Some((keys, value)),
        _ => None,
    }
}

impl Ledger {
    pub(crate) fn new(quorum: Quorum, drift: Drift, evidence_log: EvidenceLog) -> Self {
        Self {
            quorum,
            drift,
            evidence_log,
            requests: BTreeMap::new(),
            tokens: BTreeMap::new(),
            commands: BTreeMap::new(),
            of_call: BTreeMap::new(),
        }
    }

    /// What was asked for.
    pub(crate) fn request(&self, client: ClientId, lock: LockId) -> Option<&Request> {
        self.requests.get(&(client, lock))
    }

    /// Whether this value is one of ours.
    pub(crate) fn knows(&self, value: &[u8]) -> bool {
        self.tokens.contains_key(value)
    }

    /// What is known of a guard's token.
    pub(crate) fn of_guard(&self, guard: &Guard) -> Option<&TokenRecord> {
        self.tokens.get(guard.value().as_bytes())
    }

    /// The value that the nodes were given for this token of that owner.
    pub(crate) fn value_of(&self, token: &Token, owner: &str) -> Value {
        let plain = Value::new(token, "");
        let from = Bound::Included(plain.as_bytes());
        let given = self.tokens.range::<[u8], _>((from, Bound::Unbounded)).next();
        let given = given.filter(|(given, _)| given.starts_with(plain.as_bytes()));
        let since_ms = given.and_then(|(given, _)| Value::since_ms_of(given)).unwrap_or(0);
        Value::dated(token, owner, Reading::new(0, since_ms as Time * MS))
    }

    /// The tokens of a call, in the order of its attempts.
    pub(crate) fn of_call(
        &self,
        client: ClientId,
        lock: LockId,
    ) -> impl Iterator<Item = &TokenRecord> {
        let values = self.of_call.get(&(client, lock)).into_iter().flatten();
        values.filter_map(|value| self.tokens.get(value))
    }

    /// What is known of the token that a command was about.
    pub(crate) fn of_ticket(&self, client: ClientId, ticket: Ticket) -> Option<&TokenRecord> {
        self.tokens.get(self.commands.get(&(client, ticket))?)
    }

    /// All tokens.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = &TokenRecord> {
        self.tokens.values()
    }

    /// For how long a token's votes make a lock at most, by section 2 of the protocol: the Q-th largest
    /// remaining time.
    pub(crate) fn valid_for(&self, token: &TokenRecord, now: Reading) -> i64 {
        let left = |sent: Reading| (token.term - elapsed(sent, now)).max(0);
        let best = |node: &NodeRecord| {
            node.yes.into_iter().chain(node.earlier.iter().copied()).map(left).max().unwrap_or(0)
        };
        self.of_quorum(token.nodes.iter().map(best))
    }

    /// The same, if votes counted that must not.
    pub(crate) fn valid_for_with_void(&self, token: &TokenRecord, now: Reading) -> i64 {
        let left = |sent: Reading| (token.term - elapsed(sent, now)).max(0);
        self.of_quorum(token.nodes.iter().map(|node| {
            let void = node.void.map_or(0, |(sent, _)| left(sent));
            node.yes.map_or(0, left).max(void)
        }))
    }

    /// Only what is proved counts, for this client.
    pub(crate) fn needs_evidence(&self, client: ClientId) -> bool {
        self.evidence_log.are_needed(client)
    }

    fn of_quorum(&self, left: impl Iterator<Item = i64>) -> i64 {
        let mut left: Vec<i64> = left.collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        left[self.quorum.needed() - 1]
    }

    /// The same with another origin of time for each client's clocks. What is of no interest any more
    /// is forgotten: votes are void where a release is queued (S1).
    pub(crate) fn rebase(&mut self, base: impl Fn(ClientId) -> Reading) {
        for token in self.tokens.values_mut() {
            let base = base(token.client);
            for node in &mut token.nodes {
                let kept = |at: Option<Reading>| at.filter(|_| !node.released);
                (node.yes, node.gone) = (kept(node.yes), kept(node.gone));
                node.yes = node.yes.map(|at| at.shifted(base));
                node.earlier.clear();
                node.gone = node.gone.map(|at| at.shifted(base));
                node.void = node.void.filter(|_| !node.released);
                node.void = node.void.map(|(at, why)| (at.shifted(base), why));
            }
            if token.nodes.iter().all(|node| node.released) {
                (token.extending, token.deleted) = ((0, 0), 0);
            }
        }
    }

    /// A client is done with everything.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.evidence_log.forget(client);
    }

    /// Notes a fact; `now` is what the client's clocks show.
    pub(crate) fn note(&mut self, fact: &Fact<'_>, now: Option<Reading>) {
        match fact {
            Fact::Wanted { client, lock, request } => {
                self.requests.insert((*client, *lock), (*request).clone());
            }
            Fact::Ordered { client, node, ticket, command } => {
                self.ordered(*client, *node, *ticket, command);
            }
            Fact::Proved { client, node, evidence, .. } => {
                self.evidence_log.note(*client, *node, evidence)
            }
            // What the network repeats is answered to nobody.
            Fact::Executed { client, node, ticket, early: true, duplicate: false, .. }
                if ticket.verb != Verb::Trust =>
            {
                self.evidence_log.note_early(*client, *node, *ticket);
            }
            Fact::Told { client, node, sent, ticket, answer } => {
                if let Answer::Failed(failure) = answer {
                    self.evidence_log.note_failure(*client, *node, failure);
                }
                if let Some(now) = now {
                    self.told(*client, *node, *sent, *ticket, answer, now);
                }
            }
            _ => {}
        }
    }

    fn ordered(&mut self, client: ClientId, node: NodeIndex, ticket: Ticket, command: &Command) {
        let Some((keys, value)) = subject(command) else { return };
        let value = match self.tokens.get_key_value(value.as_bytes()) {
            Some((known, _)) => known.clone(),
            None => self.open(client, ticket.lock, keys, value.as_bytes().into()),
        };
        if let Some(token) = self.tokens.get_mut(&value) {
            token.nodes[node].asked |= !command.is_release();
            token.is_shared |=
                matches!(command, Command::AcquireShared { .. } | Command::HealShared { .. });
            if matches!(command, Command::Downgrade { .. }) {
                token.downgraded_in = Some(ticket.round);
            }
            match ticket.verb {
                Verb::Release => token.nodes[node].released = true,
                Verb::Extend if token.extending.0 != ticket.round => {
                    token.extending = (ticket.round, 0);
                }
                _ => {}
            }
        }
        self.commands.entry((client, ticket)).or_insert(value);
    }

    fn open(&mut self, client: ClientId, lock: LockId, keys: &Keys, value: Arc<[u8]>) -> Arc<[u8]> {
        // By the paper's and the protocol's formula, not by what the engine reckons.
        let ttl = self.requests.get(&(client, lock)).map_or(0, |it| it.timing.ttl_ms() as i64);
        let term = ttl * MS - ttl * self.drift.ppm - self.drift.constant;
        let nodes = vec![NodeRecord::default(); self.quorum.nodes()];
        let (extending, deleted, keys) = ((0, 0), 0, keys.clone());
        let record = TokenRecord {
            client,
            lock,
            keys,
            term,
            nodes,
            extending,
            deleted,
            is_shared: false,
            downgraded_in: None,
        };
        self.tokens.insert(value.clone(), record);
        self.of_call.entry((client, lock)).or_default().push(value.clone());
        value
    }

    fn told(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        sent: Reading,
        ticket: Ticket,
        answer: &Answer,
        now: Reading,
    ) {
        let Some(value) = self.commands.get(&(client, ticket)) else { return };
        let Some(token) = self.tokens.get_mut(value) else { return };
        let distrust_reason = self.evidence_log.distrust_reason(client, node, ticket);
        if ticket.verb == Verb::Extend
            && matches!(answer, Answer::Extended | Answer::Downgraded)
            && distrust_reason.is_none()
            && token.extending.0 == ticket.round
        {
            token.extending.1 += 1;
        }
        token.deleted += usize::from(*answer == Answer::Deleted);
        // What was asked as a writer may have been carried out when it was a reader's already, and says nothing.
        let is_outdated = token.downgraded_in.is_some_and(|round| ticket.round < round);
        let record = &mut token.nodes[node];
        match answer {
            Answer::Granted | Answer::GrantedFenced { .. } | Answer::Extended
                if distrust_reason.is_some() =>
            {
                record.void = distrust_reason.map(|why| (sent, why));
            }
            Answer::Granted | Answer::GrantedFenced { .. } | Answer::Extended
                if !record.released =>
            {
                if let Answer::GrantedFenced { fence } = answer {
                    record.recorded = Some(*fence);
                }
                let outdated = record.gone.is_some_and(|gone| sent.boot() < gone.boot());
                let later = |old: Reading| elapsed(sent, now) < elapsed(old, now);
                if !outdated && record.yes.is_none_or(later) {
                    let before = record.yes.replace(sent);
                    record.earlier.extend(before.filter(|_| self.evidence_log.are_needed(client)));
                }
            }
            Answer::Raised { fence } if distrust_reason.is_none() => record.recorded = Some(*fence),
            Answer::Absent | Answer::Other
                if matches!(ticket.verb, Verb::Extend | Verb::Raise)
                    && distrust_reason.is_none()
                    && !is_outdated =>
            {
                record.yes = None;
                record.earlier.clear();
                let later = |old: Reading| old.boot() < sent.boot();
                if record.gone.is_none_or(later) {
                    record.gone = Some(sent);
                }
            }
            _ => {}
        }
    }
}
