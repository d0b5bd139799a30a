//! The ledger records, per token, the commands and answers that clients and nodes exchanged. It is built from facts
//! alone, so that the engine's claims can be checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{
    AcquireForm, Answer, Command, HealForm, Key, LockId, Quorum, Reading, Request, Ticket, Token,
    Value, Verb,
};

use crate::evidence_log::{EvidenceLog, Void};
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::guard::Guard;
use crate::time::{MS, Time, elapsed};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ledger {
    quorum: Quorum,
    drift: Drift,
    evidence_log: EvidenceLog,
    requests: BTreeMap<(ClientId, LockId), Request>,
    tokens: BTreeMap<Arc<[u8]>, TokenRecord>,
    commands: BTreeMap<(ClientId, Ticket), Arc<[u8]>>,
    of_call: BTreeMap<(ClientId, LockId), Vec<Arc<[u8]>>>,
    of_callers: BTreeSet<Vec<u8>>,
}

/// The clock error that the protocol allows for: ε in parts per million, δ in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Drift {
    pub(crate) ppm: i64,
    pub(crate) constant: Time,
}

impl Default for Drift {
    /// The clock error that the Redlock paper and the library allow for: 1 % and 2 ms.
    fn default() -> Self {
        Self { ppm: 10_000, constant: 2 * MS }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TokenRecord {
    pub(crate) client: ClientId,
    pub(crate) lock: LockId,
    pub(crate) keys: Vec<Key>,
    /// How long a vote counts, in nanoseconds: T − (ε·T + δ). T is the ttl; [`Drift`] contains ε and δ.
    pub(crate) term: i64,
    pub(crate) nodes: Vec<NodeRecord>,
    /// The number of the latest round of extensions, and the number of nodes that confirmed the lock in this round.
    pub(crate) extending: (u32, usize),
    /// The number of `Deleted` answers that the client got for this token.
    pub(crate) deleted: usize,
    pub(crate) is_shared: bool,
    /// No client of the simulator has to release the lock: a process detached it, or a caller extends it by its value.
    pub(crate) is_detached: bool,
    /// The first round of extensions that a downgraded writer sends as a reader. `None` without a downgrade.
    downgraded_in: Option<u32>,
}

#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NodeRecord {
    /// The engine has given out a command for this node, other than a release.
    pub(crate) asked: bool,
    /// The engine has given out a release for this node, so the node's votes are void for ever (S1).
    pub(crate) released: bool,
    /// The sending time of the command that the node's latest vote answers. `None` without a vote.
    pub(crate) yes: Option<Reading>,
    /// The sending times of earlier votes. An earlier vote matters if the client lacks the evidence (`INFO` and marker)
    /// for the latest vote, or if a clock jump made the earlier vote last longer.
    earlier: Vec<Reading>,
    /// The sending time of the command whose answer showed that the node no longer has the vote. `None`: no answer did.
    pub(crate) gone: Option<Reading>,
    /// The latest vote that must not count: the sending time of its command, and the reason.
    pub(crate) void: Option<(Reading, Void)>,
    pub(crate) recorded: Option<u64>,
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
            of_callers: BTreeSet::new(),
        }
    }

    pub(crate) fn request(&self, client: ClientId, lock: LockId) -> Option<&Request> {
        self.requests.get(&(client, lock))
    }

    pub(crate) fn knows(&self, value: &[u8]) -> bool {
        self.tokens.contains_key(value) || self.of_callers.contains(value)
    }

    /// Whether the lock with this value was detached, so no client has to release it.
    pub(crate) fn is_detached(&self, value: &[u8]) -> bool {
        self.tokens.get(value).is_some_and(|token| token.is_detached)
    }

    pub(crate) fn of_guard(&self, guard: &Guard) -> Option<&TokenRecord> {
        self.tokens.get(guard.value().as_bytes())
    }

    /// The value that nodes store for this token and owner.
    pub(crate) fn value_of(&self, token: &Token, owner: &str) -> Value {
        let plain = Value::new(token, "");
        let from = Bound::Included(plain.as_bytes());
        let given = self.tokens.range::<[u8], _>((from, Bound::Unbounded)).next();
        let given = given.filter(|(given, _)| given.starts_with(plain.as_bytes()));
        let since_ms = given.and_then(|(given, _)| Value::since_ms_of(given)).unwrap_or(0);
        let foreign_seen_ms = given.and_then(|(given, _)| Value::foreign_seen_ms_of(given));
        // `Value::dated` adds a millisecond to the age, so this closure subtracts one.
        let age = |seen_ms: u64| Duration::from_millis(since_ms.saturating_sub(seen_ms + 1));
        let now = Reading::new(0, since_ms as Time * MS);
        Value::dated(token, owner, now, foreign_seen_ms.map(age))
    }

    pub(crate) fn of_call(
        &self,
        client: ClientId,
        lock: LockId,
    ) -> impl Iterator<Item = &TokenRecord> {
        let values = self.of_call.get(&(client, lock)).into_iter().flatten();
        values.filter_map(|value| self.tokens.get(value))
    }

    /// The record of the token in the command with this ticket (lock, round and verb).
    pub(crate) fn of_ticket(&self, client: ClientId, ticket: Ticket) -> Option<&TokenRecord> {
        self.tokens.get(self.commands.get(&(client, ticket))?)
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = &TokenRecord> {
        self.tokens.values()
    }

    /// How long the token's votes make a lock valid: the remaining time of the Q-th longest vote (Q: the quorum).
    pub(crate) fn valid_for(&self, token: &TokenRecord, now: Reading) -> i64 {
        let left = |sent: Reading| (token.term - elapsed(sent, now)).max(0);
        let best = |node: &NodeRecord| {
            node.yes.into_iter().chain(node.earlier.iter().copied()).map(left).max().unwrap_or(0)
        };
        self.of_quorum(token.nodes.iter().map(best))
    }

    /// Like `valid_for`, but includes the votes that must not count. A guard that claims more than `valid_for` and at
    /// most this time counts such a vote.
    pub(crate) fn valid_for_with_void(&self, token: &TokenRecord, now: Reading) -> i64 {
        let left = |sent: Reading| (token.term - elapsed(sent, now)).max(0);
        self.of_quorum(token.nodes.iter().map(|node| {
            let void = node.void.map_or(0, |(sent, _)| left(sent));
            node.yes.map_or(0, left).max(void)
        }))
    }

    /// Whether this client counts a vote only if evidence (`INFO` and marker) came with it.
    pub(crate) fn needs_evidence(&self, client: ClientId) -> bool {
        self.evidence_log.are_needed(client)
    }

    /// Whether this marker or adoption is of the clients' configuration.
    pub(crate) fn is_of_cluster(&self, text: &str) -> bool {
        self.evidence_log.is_of_cluster(text)
    }

    fn of_quorum(&self, left: impl Iterator<Item = i64>) -> i64 {
        let mut left: Vec<i64> = left.collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        left[self.quorum.needed() - 1]
    }

    /// A model counts times from the present. When time passes, this moves all recorded readings back. It also drops
    /// the votes of nodes with a queued release, because the release makes them void (S1).
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

    pub(crate) fn forget(&mut self, client: ClientId) {
        self.evidence_log.forget(client);
    }

    /// Records a fact. `now` is the time on the client's clocks; only `Fact::Answered` needs it.
    pub(crate) fn note(&mut self, fact: &Fact<'_>, now: Option<Reading>) {
        match fact {
            Fact::Wanted { client, lock, request } => {
                self.requests.insert((*client, *lock), (*request).clone());
            }
            Fact::Ordered { client, node, ticket, command } => {
                self.ordered(*client, *node, *ticket, command);
            }
            Fact::Detached { guard, detached: Some(detached) } => {
                let value = detached.entry.value.as_bytes();
                if let Some(token) = self.tokens.get_mut(value) {
                    debug_assert!(token.client == guard.client, "its holder detaches a lock");
                    token.is_detached = true;
                }
            }
            Fact::Evidence { client, node, evidence, .. } => {
                self.evidence_log.note(*client, *node, evidence)
            }
            // A duplicate delivery is ignored, because its reply reaches no client.
            Fact::Executed { client, node, ticket, early: true, duplicate: false, .. }
                if ticket.verb != Verb::Trust =>
            {
                self.evidence_log.note_early(*client, *node, *ticket);
            }
            Fact::Answered { client, node, sent, ticket, answer } => {
                if let Answer::Failed(failure) = answer {
                    self.evidence_log.note_failure(*client, *node, failure);
                }
                if let Some(now) = now {
                    self.on_answer(*client, *node, *sent, *ticket, answer, now);
                }
            }
            _ => {}
        }
    }

    fn ordered(&mut self, client: ClientId, node: NodeIndex, ticket: Ticket, command: &Command) {
        let Some((keys, value)) = command.subject() else { return };
        let value = match self.tokens.get_key_value(value.as_bytes()) {
            Some((known, _)) => known.clone(),
            None => self.open(client, ticket.lock, keys, value.as_bytes().into()),
        };
        if let Command::Acquire { form: AcquireForm::Taken(from), .. } = command {
            self.of_callers.insert(from.value.as_bytes().to_vec());
        }
        let has_call = self.requests.contains_key(&(client, ticket.lock));
        if let Some(token) = self.tokens.get_mut(&value) {
            token.nodes[node].asked |= !command.is_release();
            token.is_detached |= !has_call;
            token.is_shared |= matches!(
                command,
                Command::Acquire { form: AcquireForm::Shared { .. }, .. }
                    | Command::Heal { form: HealForm::Shared, .. }
            );
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

    fn open(
        &mut self,
        client: ClientId,
        lock: LockId,
        keys: &[Key],
        value: Arc<[u8]>,
    ) -> Arc<[u8]> {
        // How long a vote counts, by the formula of the paper and the protocol, without the engine's code.
        let ttl = self.requests.get(&(client, lock)).map_or(0, |it| it.timing.ttl_ms() as i64);
        let term = ttl * MS - ttl * self.drift.ppm - self.drift.constant;
        let nodes = vec![NodeRecord::default(); self.quorum.nodes()];
        let (extending, deleted, keys) = ((0, 0), 0, keys.to_vec());
        let record = TokenRecord {
            client,
            lock,
            keys,
            term,
            nodes,
            extending,
            deleted,
            is_shared: false,
            is_detached: false,
            downgraded_in: None,
        };
        self.tokens.insert(value.clone(), record);
        self.of_call.entry((client, lock)).or_default().push(value.clone());
        value
    }

    fn on_answer(
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
        // A node may carry out a writer's command after the downgrade. The answer then proves nothing about the reader.
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
