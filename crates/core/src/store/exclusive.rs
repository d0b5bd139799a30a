//! Writers: locks that exclude all others.

use alloc::vec::Vec;

use super::{Executed, Ours, Store, Stored, Turn};
use crate::command::Answer;
use crate::keys::Keys;
use crate::token::Key;

impl Store {
    /// Sets all keys if all of them are free.
    pub(super) fn acquire(
        &mut self,
        (keys, value): Ours<'_>,
        ttl_ms: u64,
        is_heal: bool,
        turn: Turn,
    ) -> Executed {
        // A server that refuses writes rejects `SET`, which sets a single key, before it reads the key. The script for
        // several keys reads first, and fails at its first write.
        if keys.single().is_some() {
            self.check_write(true)?;
        }
        if mutant!(SetsWhatIsFree) && keys.single().is_none() {
            return Ok(self.set_what_is_free((keys, value), ttl_ms, turn));
        }
        if self.is_any_in_the_way((keys, value), is_heal, turn) {
            return Ok(Answer::Refused);
        }
        self.check_write(true)?;
        self.grant((keys, value), ttl_ms, turn);
        Ok(Answer::Granted)
    }

    /// A mutant, a deliberate bug for the tests: sets the free keys although others are not free.
    fn set_what_is_free(&mut self, (keys, value): Ours<'_>, ttl_ms: u64, turn: Turn) -> Answer {
        self.expire_all(keys, turn);
        let free = keys.iter().filter(|key| !self.keys.contains_key(*key)).cloned();
        let Some(free) = Keys::new(free.collect::<Vec<_>>()) else { return Answer::Refused };
        self.grant((&free, value), ttl_ms, turn);
        Answer::Granted
    }

    /// Whether a key prevents the grant because it is not free. In a heal of several keys, a key with this value does
    /// not prevent the grant, because the node may have lost only some of the keys.
    pub(super) fn is_any_in_the_way(
        &mut self,
        (keys, value): Ours<'_>,
        is_heal: bool,
        turn: Turn,
    ) -> bool {
        self.expire_all(keys, turn);
        let may_be_ours = is_heal && keys.single().is_none();
        let is_in_the_way = |stored: &Stored| {
            let is_ignored = mutant!(ReadersIgnored) && stored.is_of_readers();
            !(is_ignored || may_be_ours && stored.holds(value))
        };
        keys.iter().any(|key| self.keys.get(key).is_some_and(is_in_the_way))
    }

    /// Sets all keys to the value. No key expires earlier than before.
    pub(super) fn grant(&mut self, (keys, value): Ours<'_>, ttl_ms: u64, turn: Turn) {
        for key in &**keys {
            let until = turn.until(ttl_ms);
            let before = self.keys.get(key).filter(|stored| stored.holds(value));
            if before.and_then(|stored| stored.expires_ms).is_some_and(|at| at >= until) {
                continue;
            }
            self.put(key, Stored::text(value.as_bytes().to_vec(), Some(until)), turn);
        }
    }

    /// `None` if all keys hold the value. Otherwise the answer: `Other` if a key holds another value, else `Absent`.
    pub(super) fn is_not_ours(&self, (keys, value): Ours<'_>) -> Option<Answer> {
        let there = |key: &Key| self.keys.get(key).map(|stored| stored.holds(value));
        let all: Vec<Option<bool>> = keys.iter().map(there).collect();
        if all.contains(&Some(false)) {
            return Some(Answer::Other);
        }
        all.contains(&None).then_some(Answer::Absent)
    }

    pub(super) fn extend(&mut self, (keys, value): Ours<'_>, ttl_ms: u64, turn: Turn) -> Executed {
        self.expire_all(keys, turn);
        if let Some(answer) = self.is_not_ours((keys, value)) {
            return Ok(answer);
        }
        // The script reads first and fails at its first write, so it succeeds if it need not write.
        let write = self.check_write(false);
        let until = turn.until(ttl_ms);
        for key in &**keys {
            let Some(stored) = self.keys.get_mut(key) else { continue };
            if stored.expires_ms.is_none_or(|at| at < until) {
                write?;
                stored.expires_ms = Some(until);
                self.changed(key, Some(turn.by));
            }
        }
        Ok(Answer::Extended)
    }

    pub(super) fn release(&mut self, (keys, value): Ours<'_>, tell: bool, turn: Turn) -> Executed {
        self.expire_all(keys, turn);
        let is_native = self.kind.deletes_natively && keys.single().is_some();
        if is_native {
            self.check_write(false)?;
        }
        let is_ours = |stored: &Stored| stored.holds(value) || mutant!(ReleaseWithoutCompare);
        let ours = keys.iter().filter(|key| self.keys.get(*key).is_some_and(is_ours));
        let ours: Vec<Key> = ours.cloned().collect();
        let others = keys.iter().filter_map(|key| self.keys.get(key));
        let others: Vec<&Stored> = others.filter(|stored| !is_ours(stored)).collect();
        let answer = match &others[..] {
            [] if ours.len() == keys.len() => Answer::Deleted,
            // The native command shows that a key has another type, even without `tell`.
            [other] if is_native && other.value().is_none() => Answer::Other,
            _ if is_native && !tell => Answer::NotOurs,
            [] => Answer::Absent,
            _ => Answer::Other,
        };
        if !ours.is_empty() {
            self.check_write(false)?;
        }
        ours.iter().for_each(|key| self.take(key, turn));
        Ok(answer)
    }
}
