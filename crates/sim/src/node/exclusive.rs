//! The model node's writers: locks that exclude all others.

use quorlock_core::{Answer, Command, FailureKind, Key, Keys, Value};

use super::{ConnectionId, ModelNode, Stored, failed};
use crate::mutants::{Mutant, is_active};

impl ModelNode {
    /// Sets all keys, if nothing is in the way on any of them.
    pub(super) fn acquire(
        &mut self,
        command: &Command,
        (keys, value): (&Keys, &Value),
        ttl_ms: u64,
        by: ConnectionId,
        now_ms: i64,
    ) -> Answer {
        // `SET` is refused before it looks. A script looks first, and fails when it comes to the writing.
        if let Some(kind) = self.write_error(true).filter(|_| keys.single().is_some()) {
            return failed(command, kind);
        }
        let is_heal = matches!(command, Command::Heal { .. });
        if is_active(Mutant::SetsWhatIsFree) && keys.single().is_none() {
            return self.set_what_is_free((keys, value), ttl_ms, by, now_ms);
        }
        if self.is_any_in_the_way((keys, value), is_heal, by, now_ms) {
            return Answer::Refused;
        }
        if let Some(kind) = self.write_error(true) {
            return failed(command, kind);
        }
        self.grant((keys, value), ttl_ms, by, now_ms);
        Answer::Granted
    }

    /// A mistake.
    fn set_what_is_free(
        &mut self,
        (keys, value): (&Keys, &Value),
        ttl_ms: u64,
        by: ConnectionId,
        now_ms: i64,
    ) -> Answer {
        self.expire_all(keys, by, now_ms);
        let free = keys.iter().filter(|key| !self.keys.contains_key(*key)).cloned();
        let Some(free) = Keys::new(free.collect::<Vec<_>>()) else { return Answer::Refused };
        self.grant((&free, value), ttl_ms, by, now_ms);
        Answer::Granted
    }

    /// Whether a key is not free. To a heal of several keys its own value is not in the way: on a node that has lost a
    /// part of them, the vote is lost all the same.
    pub(super) fn is_any_in_the_way(
        &mut self,
        (keys, value): (&Keys, &Value),
        is_heal: bool,
        by: ConnectionId,
        now_ms: i64,
    ) -> bool {
        self.expire_all(keys, by, now_ms);
        let may_be_ours = is_heal && keys.single().is_none();
        let is_in_the_way = |stored: &Stored| {
            let is_ignored = stored.is_of_readers() && is_active(Mutant::ReadersIgnored);
            !(is_ignored || may_be_ours && stored.holds(value))
        };
        keys.iter().any(|key| self.keys.get(key).is_some_and(is_in_the_way))
    }

    /// All keys hold the value, never shorter than they would.
    pub(super) fn grant(
        &mut self,
        (keys, value): (&Keys, &Value),
        ttl_ms: u64,
        by: ConnectionId,
        now_ms: i64,
    ) {
        for key in &**keys {
            let until = now_ms + ttl_ms as i64;
            let before = self.keys.get(key).filter(|stored| stored.holds(value));
            if before.and_then(|stored| stored.expires_ms).is_some_and(|at| at >= until) {
                continue;
            }
            self.put(key, Stored::text(value.as_bytes().to_vec(), Some(until)), by);
        }
    }

    /// What there is instead of this value, if it is not under all keys.
    pub(super) fn is_not_ours(&self, (keys, value): (&Keys, &Value)) -> Option<Answer> {
        let there = |key: &Key| self.keys.get(key).map(|stored| stored.holds(value));
        let all: Vec<Option<bool>> = keys.iter().map(there).collect();
        if all.contains(&Some(false)) {
            return Some(Answer::Other);
        }
        all.contains(&None).then_some(Answer::Absent)
    }

    /// Prolongs all keys, if they hold the value.
    pub(super) fn extend(
        &mut self,
        (keys, value): (&Keys, &Value),
        ttl_ms: u64,
        by: ConnectionId,
        now_ms: i64,
    ) -> Result<Answer, FailureKind> {
        self.expire_all(keys, by, now_ms);
        if let Some(answer) = self.is_not_ours((keys, value)) {
            return Ok(answer);
        }
        // The script reads first, and fails when it comes to the writing.
        let write_error = self.write_error(false);
        let until = now_ms + ttl_ms as i64;
        for key in &**keys {
            let Some(stored) = self.keys.get_mut(key) else { continue };
            if stored.expires_ms.is_none_or(|at| at < until) {
                if let Some(kind) = write_error {
                    return Err(kind);
                }
                stored.expires_ms = Some(until);
                self.changed(key, Some(by));
            }
        }
        Ok(Answer::Extended)
    }

    /// Deletes those of the keys that hold the value.
    pub(super) fn release(
        &mut self,
        (keys, value): (&Keys, &Value),
        tell: bool,
        by: ConnectionId,
        now_ms: i64,
    ) -> Result<Answer, FailureKind> {
        self.expire_all(keys, by, now_ms);
        let write_error = self.write_error(false);
        let is_native = self.kind.deletes_natively && keys.single().is_some();
        if let Some(kind) = write_error.filter(|_| is_native) {
            return Err(kind);
        }
        let is_ours =
            |stored: &Stored| stored.holds(value) || is_active(Mutant::ReleaseWithoutCompare);
        let ours = keys.iter().filter(|key| self.keys.get(*key).is_some_and(is_ours));
        let ours: Vec<Key> = ours.cloned().collect();
        let others = keys.iter().filter_map(|key| self.keys.get(key));
        let others: Vec<&Stored> = others.filter(|stored| !is_ours(stored)).collect();
        let answer = match &others[..] {
            [] if ours.len() == keys.len() => Answer::Deleted,
            // The native command knows another type when it sees one.
            [other] if is_native && other.value().is_none() => Answer::Other,
            _ if is_native && !tell => Answer::NotOurs,
            [] => Answer::Absent,
            _ => Answer::Other,
        };
        if let Some(kind) = write_error.filter(|_| !ours.is_empty()) {
            return Err(kind);
        }
        ours.iter().for_each(|key| self.take(key, by));
        Ok(answer)
    }
}
