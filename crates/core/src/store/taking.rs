//! Locks with a value that the caller chose, each with a nonce under a second key.

use super::{Store, Stored, Turn};
use crate::command::{Answer, Command, FailureKind, Taken};

impl Store {
    pub(super) fn carry_out_taken(
        &mut self,
        command: &Command,
        turn: Turn,
    ) -> Result<Answer, FailureKind> {
        let (Command::Take { taken, .. }
        | Command::ExtendTaken { taken, .. }
        | Command::ReleaseTaken { taken, .. }) = command
        else {
            return Err(FailureKind::Rejected);
        };
        for key in [&taken.key, &taken.nonce_key] {
            self.expire(key, Some(turn.by), turn.now_ms());
        }
        match command {
            Command::Take { ttl_ms, .. } => {
                if self.keys.contains_key(&taken.key) {
                    return Ok(Answer::Refused);
                }
                self.check_write(true)?;
                self.set_taken(taken, turn.until(*ttl_ms), turn);
                Ok(Answer::Granted)
            }
            Command::ExtendTaken { ttl_ms, by_value, .. } => {
                if let Some(answer) = self.is_not_taken(taken, *by_value) {
                    return Ok(answer);
                }
                self.check_write(false)?;
                let before = self.keys.get(&taken.key).and_then(|stored| stored.expires_ms);
                let until = turn.until(*ttl_ms);
                let nonce_before = self.keys.get(&taken.nonce_key).cloned();
                self.set_taken(taken, before.map_or(until, |before| before.max(until)), turn);
                if let Some(before) = nonce_before.filter(|_| *by_value && mutant!(NonceKept)) {
                    self.put(&taken.nonce_key, before, turn);
                }
                Ok(Answer::Extended)
            }
            Command::ReleaseTaken { by_value, .. } => {
                if let Some(answer) = self.is_not_taken(taken, *by_value) {
                    return Ok(answer);
                }
                self.check_write(false)?;
                self.take(&taken.key, turn);
                if self.keys.contains_key(&taken.nonce_key) {
                    self.take(&taken.nonce_key, turn);
                }
                Ok(Answer::Deleted)
            }
            _ => Err(FailureKind::Rejected),
        }
    }

    fn set_taken(&mut self, taken: &Taken, until_ms: i64, turn: Turn) {
        for (key, value) in [(&taken.key, &taken.value), (&taken.nonce_key, &taken.nonce)] {
            self.put(key, Stored::text(value.as_bytes().to_vec(), Some(until_ms)), turn);
        }
    }

    /// `None` if the lock has this value and this attempt's nonce. Otherwise the answer. `by_value` ignores the nonce.
    fn is_not_taken(&self, taken: &Taken, by_value: bool) -> Option<Answer> {
        let Some(stored) = self.keys.get(&taken.key) else { return Some(Answer::Absent) };
        let nonce = self.keys.get(&taken.nonce_key);
        let is_same_attempt = by_value
            || mutant!(NonceIgnored)
            || nonce.is_some_and(|nonce| nonce.holds(&taken.nonce));
        (!(stored.holds(&taken.value) && is_same_attempt)).then_some(Answer::Other)
    }
}
