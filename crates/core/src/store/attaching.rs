//! Taking a lock over from another value, and giving it back.

use super::{Executed, Ours, Store, Stored, Turn};
use crate::command::{Answer, FailureKind};
use crate::keys::{Keys, Mode};
use crate::token::Value;

impl Store {
    pub(super) fn attach(
        &mut self,
        (keys, mode): (&Keys, Mode),
        (from, value): (&Value, &Value),
        ttl_ms: u64,
        turn: Turn,
    ) -> Executed {
        self.expire_all(keys, turn);
        let refusal = match mode {
            Mode::Exclusive => self.is_not_ours((keys, from)),
            Mode::Shared => self.does_not_read((keys, from), turn),
        };
        if let Some(answer) = refusal {
            return Ok(answer);
        }
        if mode == Mode::Shared && self.is_any_a_reader((keys, value), turn) {
            return Err(FailureKind::SameServer);
        }
        self.check_write(false)?;
        if ttl_ms > 0 && mutant!(GivenAwayTwice) {
            return Ok(Answer::Granted);
        }
        match mode {
            Mode::Exclusive => self.replace((keys, value), ttl_ms, turn),
            Mode::Shared => self.replace_reader((keys, from, value), turn.until(ttl_ms), turn),
        }
        Ok(Answer::Granted)
    }

    pub(super) fn give_back(
        &mut self,
        (keys, mode): (&Keys, Mode),
        (value, to): (&Value, &Value),
        turn: Turn,
    ) -> Executed {
        match self.attach((keys, mode), (value, to), 0, turn)? {
            Answer::Granted => Ok(Answer::Deleted),
            answer => Ok(answer),
        }
    }

    /// Sets the keys, all of which exist, to the value. If the ttl is zero, a key without an expiry still gets none.
    pub(super) fn replace(&mut self, (keys, value): Ours<'_>, ttl_ms: u64, turn: Turn) {
        for key in &**keys {
            let until = turn.until(ttl_ms);
            let expires_ms = match self.keys.get(key).and_then(|stored| stored.expires_ms) {
                Some(before) => Some(before.max(until)),
                None => (ttl_ms > 0).then_some(until),
            };
            self.put(key, Stored::text(value.as_bytes().to_vec(), expires_ms), turn);
        }
    }
}
