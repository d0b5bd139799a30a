//! Readers that come and go do not keep a writer waiting for ever. A waiting writer gets the lock before readers that
//! come later, on every key of its lock.
//!
//! Two checks show this together. In runs in which readers keep coming, the healing phase bounds the time until every
//! writer has its lock, unless the faults of the run keep intents (notes of waiting writers) off the nodes. The check
//! in this file covers every run: a node that stores a writer's intent for a key admits no new reader until the last
//! intent expires. Only these events end that:
//!
//! - The writer's call ends.
//! - Another call of the same process wants one of the keys, and may get the lock first.
//! - The writer's inspection has found, for one key, holders other than readers on too many nodes to leave a quorum.
//! - The writer's attempt has failed, and no node has refused it.

use std::collections::{BTreeMap, BTreeSet};

use quorlock_core::{
    AcquireForm, Answer, Command, Holding, Key, Keys, LockId, Mode, Quorum, Ticket, Value, Verb,
};

use super::Checked;
use crate::fact::{ClientId, Fact, NodeIndex};
use crate::invariants::View;
use crate::time::Time;

pub(crate) const NAME: &str = "no starvation";

pub(crate) const SENTENCE: &str = "Writers do not starve: an intent stays on every key of the call's set until the \
     grant, the end of the call, or a look that finds non-readers on so many nodes of one key that the rest is below Q. \
     (kinds, 1)";

const INTENT: &str = "quorlock:intent:";

type CallId = (ClientId, LockId);

/// Waiting calls and intents. Models report no `Fact::Started`, which sets `is_watching`, so this stays empty there.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct NoStarvation {
    is_watching: bool,
    /// Waiting calls: keys, mode, and the start of the wait.
    calls: BTreeMap<CallId, (Keys, Mode, Time)>,
    writers: BTreeMap<CallId, Writer>,
    /// Cancelled calls for which the engine may still make other calls wait. The `bool` says whether a tick has begun
    /// since the cancellation. That tick handles the cancellation.
    leaving: BTreeMap<CallId, bool>,
}

/// The intents of a writer, and the nodes on which it has found holders other than readers.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Writer {
    words: BTreeMap<(NodeIndex, Key), Word>,
    /// `ordered`: the newest round that wrote intents. Intents of rounds up to number `excused` need not stop readers.
    ordered: u32,
    excused: u32,
    /// The number of the last inspection, and, for each key, the nodes with holders other than readers. If the nodes
    /// without such holders are no quorum, intents sent before the end of the inspection need not stop readers.
    look: (u32, BTreeMap<usize, BTreeSet<NodeIndex>>),
    /// The round number of the last attempt, and whether a node has refused it.
    attempt: (u32, bool),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Word {
    value: Value,
    since: Time,
    until_ms: i64,
    is_taken_back: bool,
}

impl Writer {
    fn is_excused(&mut self) {
        self.words.clear();
        self.excused = self.ordered;
    }

    /// Whether, for one key, holders other than readers are on too many nodes to leave a quorum.
    fn waits_for_others(&self, quorum: Quorum) -> bool {
        let left = |nodes: &BTreeSet<NodeIndex>| quorum.nodes() - nodes.len();
        self.look.1.values().any(|nodes| left(nodes) < quorum.needed())
    }
}

impl NoStarvation {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Started { .. } => self.is_watching = true,
            _ if !self.is_watching => {}
            Fact::Wanted { client, lock, request } => {
                let call = (*client, *lock);
                self.calls.insert(call, (request.keys.clone(), request.mode, view.now));
                if request.mode == Mode::Exclusive {
                    self.writers.insert(call, Writer::default());
                }
                self.has_company(*client, &request.keys);
            }
            Fact::Granted { guard, .. } => self.is_over((guard.client, guard.lock)),
            Fact::NotAcquired { client, lock, .. } => self.is_over((*client, *lock)),
            Fact::Cancelled { client, lock } => {
                self.writers.remove(&(*client, *lock));
                self.leaving.insert((*client, *lock), false);
            }
            Fact::Tick { client } => {
                let leaving = self.leaving.iter_mut().filter(|(call, _)| call.0 == *client);
                leaving.for_each(|(_, has_begun)| *has_begun = true);
            }
            Fact::TickOver { client } => {
                let leaving = core::mem::take(&mut self.leaving).into_iter();
                let is_handled =
                    |(call, has_begun): &(CallId, bool)| call.0 == *client && *has_begun;
                let (handled, leaving): (BTreeMap<_, _>, _) = leaving.partition(is_handled);
                self.leaving = leaving;
                handled.into_keys().for_each(|call| self.is_over(call));
            }
            Fact::Ordered { client, ticket, .. } => {
                if let Some(writer) = self.writers.get_mut(&(*client, ticket.lock)) {
                    ordered(writer, *ticket, view.ledger.needs_evidence(*client));
                    if writer.waits_for_others(view.terms.quorum) {
                        writer.is_excused();
                    }
                }
            }
            Fact::Answered { client, node, ticket, answer, .. } => {
                if let Some(writer) = self.writers.get_mut(&(*client, ticket.lock)) {
                    note(writer, *node, *ticket, answer, view);
                }
            }
            Fact::Executed { node, client, ticket, command, answer, zombie, duplicate, .. } => {
                let executed = (*node, *client, *ticket);
                match command {
                    Command::Announce { intents, value, .. } if !zombie && !duplicate => {
                        self.says(executed, intents, value, view);
                    }
                    Command::Withdraw { intents, value } if !zombie && !duplicate => {
                        self.takes_back(executed, intents, value);
                    }
                    Command::Acquire { keys, form: AcquireForm::Shared { .. }, .. }
                        if **answer == Answer::Granted =>
                    {
                        return self.lets_in(executed, keys, view);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn is_over(&mut self, call: CallId) {
        self.writers.remove(&call);
        if let Some((keys, ..)) = self.calls.remove(&call) {
            self.has_company(call.0, &keys);
        }
    }

    /// Called when another call of the process begins or ends. Writers of the process with overlapping keys may let
    /// that call go first, so their intents so far need not stop readers.
    fn has_company(&mut self, client: ClientId, keys: &Keys) {
        for (call, writer) in &mut self.writers {
            if call.0 == client && self.calls.get(call).is_some_and(|(its, ..)| its.overlaps(keys))
            {
                writer.is_excused();
            }
        }
    }

    fn is_alone(&self, call: CallId) -> bool {
        let Some((keys, ..)) = self.calls.get(&call) else { return false };
        let mut others =
            self.calls.iter().filter(|(other, _)| other.0 == call.0 && **other != call);
        !others.any(|(_, (its, ..))| its.overlaps(keys))
    }

    fn says(
        &mut self,
        (node, client, ticket): (NodeIndex, ClientId, Ticket),
        intents: &Keys,
        value: &Value,
        view: &View<'_>,
    ) {
        let call = (client, ticket.lock);
        if !self.is_alone(call) {
            return;
        }
        let Some(writer) = self.writers.get_mut(&call) else { return };
        if ticket.round <= writer.excused {
            return;
        }
        for intent in &**intents {
            let stored = view.node(node).stored(intent, view.now);
            let until_ms = stored.filter(|it| it.holds(value)).and_then(|it| it.expires_ms);
            let (Some(until_ms), Some(key)) = (until_ms, intent.strip_prefix(INTENT)) else {
                continue;
            };
            let place = (node, Key::from(key));
            let before = writer.words.get(&place).filter(|word| !word.is_taken_back);
            let since = before.map_or(view.now, |word| word.since);
            let word = Word { value: value.clone(), since, until_ms, is_taken_back: false };
            writer.words.insert(place, word);
        }
    }

    fn takes_back(
        &mut self,
        (node, client, _): (NodeIndex, ClientId, Ticket),
        intents: &Keys,
        value: &Value,
    ) {
        let its = self.writers.iter_mut().filter(|(call, _)| call.0 == client);
        for ((on, key), word) in its.flat_map(|(_, writer)| &mut writer.words) {
            let is_it = intents.iter().any(|intent| intent.strip_prefix(INTENT) == Some(&**key));
            word.is_taken_back |= *on == node && is_it && word.value == *value;
        }
    }

    fn lets_in(
        &self,
        (node, client, ticket): (NodeIndex, ClientId, Ticket),
        keys: &Keys,
        view: &View<'_>,
    ) -> Checked {
        let call = (client, ticket.lock);
        let Some((.., wanted)) = self.calls.get(&call) else { return Ok(()) };
        if self.leaving.contains_key(&call) {
            return Ok(());
        }
        for ((waits, lock), writer) in &self.writers {
            for key in &**keys {
                let Some(word) = writer.words.get(&(node, key.clone())) else { continue };
                let lives = word.since < *wanted && view.node(node).lives(word.until_ms, view.now);
                let intent = [INTENT, key].concat();
                let stands = || {
                    let stored = view.node(node).stored(&intent, view.now);
                    stored.is_some_and(|stored| stored.holds(&word.value))
                };
                if lives && (word.is_taken_back || stands()) {
                    return Err(format!(
                        "node {node} lets a later reader of {key} in, client {client}, and client \
                         {waits} waits there for lock {}",
                        lock.0
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A release ends an attempt. If no node refused the attempt, readers do not block the writer, so its intents need not
/// stop readers. If the client needs evidence (`INFO` and marker), this check does not know which refusals count for
/// the client, and never requires that the intents stop readers.
fn ordered(writer: &mut Writer, ticket: Ticket, needs_evidence: bool) {
    match ticket.verb {
        Verb::Announce => writer.ordered = writer.ordered.max(ticket.round),
        Verb::Acquire if writer.attempt.0 != ticket.round => writer.attempt = (ticket.round, false),
        Verb::Release if needs_evidence || !writer.attempt.1 => writer.is_excused(),
        _ => {}
    }
}

fn note(writer: &mut Writer, node: NodeIndex, ticket: Ticket, answer: &Answer, view: &View<'_>) {
    match answer {
        Answer::Refused | Answer::RefusedFenced { .. } if writer.attempt.0 == ticket.round => {
            writer.attempt.1 = true;
        }
        Answer::Seen(holding) | Answer::Watched(holding) if ticket.verb == Verb::Inspect => {
            if ticket.round < writer.look.0 {
                return;
            }
            if ticket.round > writer.look.0 {
                writer.look = (ticket.round, BTreeMap::new());
            }
            for (place, holding) in holding.each().iter().enumerate() {
                if !matches!(holding, Holding::Free | Holding::Shared { .. }) {
                    writer.look.1.entry(place).or_default().insert(node);
                }
            }
            if writer.waits_for_others(view.terms.quorum) {
                writer.is_excused();
            }
        }
        _ => {}
    }
}
