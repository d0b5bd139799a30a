//! Only a client that knows the whole value changes a key, and no two attempts share a value.

use std::collections::BTreeMap;

use quorlock_core::{
    AcquireForm, Answer, AttachForm, Command, ExtendForm, HealForm, Key, LockId, Mode, ReleaseForm,
    TakenFrom, Value, Verb,
};

use super::Checked;
use crate::fact::{ClientId, Fact, FaultEvent, NodeIndex};
use crate::invariants::View;
use crate::node::{Content, Stored};
use crate::time::{MS, Time};

pub(crate) const NAME: &str = "token ownership";

pub(crate) const SENTENCE: &str = "This is important in order to avoid removing a lock that was \
     created by another client. (paper) — S6: fresh token per attempt. S7: delete/extend only by \
     atomic compare of the whole value. S16: no key without a time to live. (algorithm)";

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TokenOwnership {
    /// The keys of each node at the last check.
    seen: Vec<BTreeMap<Key, Stored>>,
    attempts: BTreeMap<Vec<u8>, (ClientId, LockId, u32)>,
}

impl TokenOwnership {
    pub(crate) fn new(nodes: usize) -> Self {
        Self { seen: vec![BTreeMap::new(); nodes], attempts: BTreeMap::new() }
    }

    pub(crate) fn rebase(&mut self, by: Time) {
        for seen in &mut self.seen {
            for stored in seen.values_mut() {
                stored.shift(-by / MS);
            }
            seen.retain(|_, stored| stored.expires_ms.is_none_or(|at| at > 0));
        }
    }

    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Ordered { client, ticket, command, .. } if ticket.verb == Verb::Acquire => {
                let Some((_, value)) = command.subject() else { return Ok(()) };
                let attempt = (*client, ticket.lock, ticket.round);
                let known = self.attempts.entry(value.as_bytes().to_vec()).or_insert(attempt);
                if *known != attempt {
                    return Err(format!("{value:?} is used in two attempts"));
                }
                Ok(())
            }
            Fact::Executed { node, command, answer, .. } => {
                self.executed(*node, command, answer, view)
            }
            Fact::FaultEvent(
                FaultEvent::NodeCrashed { node, .. }
                | FaultEvent::NodeStepped { node, .. }
                | FaultEvent::NodeFlushed { node }
                | FaultEvent::NodeOverwritten { node }
                | FaultEvent::KeyDeleted { node }
                | FaultEvent::KeyOccupied { node }
                | FaultEvent::KeyVacated { node },
            ) => {
                self.seen[*node].clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A lock with the caller's value changes only by a command with the lock's nonce, or by one that compares only the
    /// value.
    fn executed_by_value(
        &mut self,
        node: NodeIndex,
        (command, from): (&Command, &TakenFrom),
        answer: &Answer,
        view: &View<'_>,
    ) -> Checked {
        let Some((keys, own_nonce)) = command.subject() else { return Ok(()) };
        let key = &keys[0];
        let [before, nonce_before] = [key, &from.nonce_key].map(|key| {
            let after = view.node(node).stored(key, view.now).cloned();
            let seen = &mut self.seen[node];
            let before = match &after {
                Some(stored) => seen.insert(key.clone(), stored.clone()),
                None => seen.remove(key),
            };
            before.filter(|stored| view.node(node).is_alive(stored, view.now))
        });
        let after = view.node(node).stored(key, view.now);
        let Some(before) = before else { return Ok(()) };
        // A change of the node's clock or data clears the record, so the nonce may be unknown.
        let is_same = || nonce_before.is_none_or(|nonce| nonce.holds(own_nonce));
        let is_ours =
            before.holds(&from.value) && !command.sets_a_lock() && (from.by_value || is_same());
        if !is_ours && (after != Some(&before) || *answer == Answer::Granted) {
            return Err(format!("{command:?} has changed another's {key} on node {node}"));
        }
        Ok(())
    }

    fn executed(
        &mut self,
        node: NodeIndex,
        command: &Command,
        answer: &Answer,
        view: &View<'_>,
    ) -> Checked {
        if let Some(from) = command.taken() {
            return self.executed_by_value(node, (command, from), answer, view);
        }
        let Some((keys, value)) = command.subject() else { return Ok(()) };
        let from = if let Command::Attach { from, .. } = command { Some(from) } else { None };
        let is_granted = matches!(answer, Answer::Granted | Answer::GrantedFenced { .. });
        for key in &**keys {
            let after = view.node(node).stored(key, view.now).cloned();
            let before = match &after {
                Some(stored) => self.seen[node].insert(key.clone(), stored.clone()),
                None => self.seen[node].remove(key),
            };
            let before = before.filter(|stored| view.node(node).is_alive(stored, view.now));
            if is_granted && after.as_ref().is_none_or(|stored| stored.expires_ms.is_none()) {
                return Err(format!("node {node} has granted {key} without a time to live"));
            }
            let Some(before) = before else { continue };
            let change = KeyChange { before: &before, after: after.as_ref(), value, from };
            let wrong = match is_of_readers(command) {
                true => {
                    change.is_wrong_for_readers(command, |end| view.node(node).lives(end, view.now))
                }
                false => change.is_wrong_for_writers(command, is_granted),
            };
            if let Some(wrong) = wrong {
                return Err(format!("{command:?} has {wrong} {key} on node {node}"));
            }
        }
        Ok(())
    }
}

/// A key before and after a command.
struct KeyChange<'a> {
    before: &'a Stored,
    after: Option<&'a Stored>,
    value: &'a Value,
    /// The value that an attach replaces; `None` for other commands.
    from: Option<&'a Value>,
}

impl KeyChange<'_> {
    /// Returns words for the error message, if a writer's command must not make this change.
    fn is_wrong_for_writers(&self, command: &Command, is_granted: bool) -> Option<&'static str> {
        let is_from = self.from.is_some_and(|from| self.before.holds(from));
        let is_ours = self.before.holds(self.value) || is_from;
        let is_heal = matches!(command, Command::Heal { .. });
        let may_be_ours =
            is_heal && command.subject().is_some_and(|(keys, _)| keys.len() > 1) || is_from;
        match self.after {
            Some(_) if is_granted && !(is_ours && may_be_ours) => Some("granted, which was there,"),
            Some(after) if !is_ours && after != self.before => Some("changed another's"),
            None if !is_ours => Some("deleted another's"),
            Some(after) if after.expires_ms < self.before.expires_ms => {
                Some("shortened the life of")
            }
            _ => None,
        }
    }

    /// Returns words for the error message, if a reader's command must not make this change. Other readers must stay as
    /// they are, and the key must live as long as its last reader.
    fn is_wrong_for_readers(
        &self,
        command: &Command,
        lives: impl Fn(i64) -> bool,
    ) -> Option<&'static str> {
        let (own, from) = (self.value.as_bytes(), self.from.map(Value::as_bytes));
        let before = readers(Some(self.before));
        let is_from = self.from.is_some_and(|from| self.before.holds(from));
        if !self.before.holds(self.value) && !is_from && before.is_none() {
            return (self.after != Some(self.before)).then_some("changed another's");
        }
        // `GiveBack` replaces the reader's value by the value from before the attach. It is not checked here.
        if let Command::GiveBack { .. } = command {
            return None;
        }
        let others = |members: Option<&BTreeMap<Vec<u8>, i64>>| -> BTreeMap<Vec<u8>, i64> {
            let its = members.into_iter().flatten();
            let is_own = |value: &Vec<u8>| value == own || Some(&value[..]) == from;
            let its = its.filter(|(value, end)| !is_own(value) && lives(**end));
            its.map(|(value, end)| (value.clone(), *end)).collect()
        };
        let after = readers(self.after);
        if others(before) != others(after) {
            return Some("changed other readers of");
        }
        let ends = |stored: Option<&Stored>| {
            let as_reader = readers(stored).and_then(|members| members.get(own)).copied();
            let as_writer = || stored.filter(|stored| stored.holds(self.value))?.expires_ms;
            as_reader.or_else(as_writer).filter(|end| lives(*end))
        };
        let is_release = matches!(command, Command::Release { form: ReleaseForm::Shared, .. });
        if !is_release && ends(self.after) < ends(Some(self.before)) {
            return Some("shortened a reader's time at");
        }
        let last = after.and_then(|members| members.values().max());
        let is_last = last.copied() == self.after.and_then(|stored| stored.expires_ms);
        (after.is_some() && !is_last).then_some("left an end that is not the last reader's at")
    }
}

fn readers(stored: Option<&Stored>) -> Option<&BTreeMap<Vec<u8>, i64>> {
    match &stored?.content {
        Content::Scored(members) if stored?.is_of_readers() => Some(members),
        _ => None,
    }
}

const fn is_of_readers(command: &Command) -> bool {
    matches!(
        command,
        Command::Acquire { form: AcquireForm::Shared { .. }, .. }
            | Command::Heal { form: HealForm::Shared, .. }
            | Command::Extend { form: ExtendForm::Shared, .. }
            | Command::Release { form: ReleaseForm::Shared, .. }
            | Command::Downgrade { .. }
            | Command::Attach { form: AttachForm::Shared, .. }
            | Command::GiveBack { mode: Mode::Shared, .. }
    )
}
