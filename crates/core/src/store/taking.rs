//! Locks with a value that the caller chose, each with a nonce under a second key.

use super::{Executed, Ours, Store, Stored, Turn};
use crate::command::Answer;
use crate::keys::TakenFrom;

impl Store {
    pub(super) fn acquire_taken(
        &mut self,
        ours: Ours<'_>,
        from: &TakenFrom,
        ttl_ms: u64,
        turn: Turn,
    ) -> Executed {
        self.expire_taken(ours, from, turn);
        if self.keys.contains_key(&ours.0[0]) {
            return Ok(Answer::Refused);
        }
        self.check_write(true)?;
        self.set_taken(ours, from, turn.until(ttl_ms), turn);
        Ok(Answer::Granted)
    }

    pub(super) fn extend_taken(
        &mut self,
        ours: Ours<'_>,
        from: &TakenFrom,
        ttl_ms: u64,
        turn: Turn,
    ) -> Executed {
        self.expire_taken(ours, from, turn);
        if let Some(answer) = self.is_not_taken(ours, from) {
            return Ok(answer);
        }
        self.check_write(false)?;
        let before = self.keys.get(&ours.0[0]).and_then(|stored| stored.expires_ms);
        let until = turn.until(ttl_ms);
        let nonce_before = self.keys.get(&from.nonce_key).cloned();
        self.set_taken(ours, from, before.map_or(until, |before| before.max(until)), turn);
        if let Some(before) = nonce_before.filter(|_| from.by_value && mutant!(NonceKept)) {
            self.put(&from.nonce_key, before, turn);
        }
        Ok(Answer::Extended)
    }

    pub(super) fn release_taken(
        &mut self,
        ours: Ours<'_>,
        from: &TakenFrom,
        turn: Turn,
    ) -> Executed {
        self.expire_taken(ours, from, turn);
        if let Some(answer) = self.is_not_taken(ours, from) {
            return Ok(answer);
        }
        self.check_write(false)?;
        self.take(&ours.0[0], turn);
        if self.keys.contains_key(&from.nonce_key) {
            self.take(&from.nonce_key, turn);
        }
        Ok(Answer::Deleted)
    }

    fn expire_taken(&mut self, (keys, _): Ours<'_>, from: &TakenFrom, turn: Turn) {
        self.expire_all(keys, turn);
        self.expire(&from.nonce_key, Some(turn.by), turn.now_ms());
    }

    fn set_taken(&mut self, (keys, nonce): Ours<'_>, from: &TakenFrom, until_ms: i64, turn: Turn) {
        for (key, value) in [(&keys[0], &from.value), (&from.nonce_key, nonce)] {
            self.put(key, Stored::text(value.as_bytes().to_vec(), Some(until_ms)), turn);
        }
    }

    /// `None` if the lock has this value and this attempt's nonce. Otherwise the answer. `by_value` ignores the nonce.
    fn is_not_taken(&self, (keys, nonce): Ours<'_>, from: &TakenFrom) -> Option<Answer> {
        let Some(stored) = self.keys.get(&keys[0]) else { return Some(Answer::Absent) };
        let is_same_attempt = from.by_value
            || mutant!(NonceIgnored)
            || self.keys.get(&from.nonce_key).is_some_and(|it| it.holds(nonce));
        (!(stored.holds(&from.value) && is_same_attempt)).then_some(Answer::Other)
    }
}
