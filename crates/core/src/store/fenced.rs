//! Fencing tokens: the scripts of docs/wire.md, "What a node does".

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::{Executed, Ours, Store, Stored, Turn};
use crate::command::{Answer, Counter, FailureKind};
use crate::keys::Keys;
use crate::token::{Key, Value};

/// How far a client's proposal of a fencing token may be ahead of the server's clock, in microseconds.
const AHEAD_MAX: u64 = 3_600 * 1_000_000;

impl Store {
    pub(super) fn raise(
        &mut self,
        (keys, value): Ours<'_>,
        counter: &Counter,
        to: u64,
        turn: Turn,
    ) -> Executed {
        self.expire_all(keys, turn);
        if mutant!(RaisesEach)
            && let Some(answer) = self.raise_each((keys, value), counter, to, turn)
        {
            return Ok(answer);
        }
        if let Some(answer) = self.is_not_ours((keys, value))
            && !mutant!(RaiseWithoutCompare)
        {
            return Ok(answer);
        }
        let fence = self.counted(counter, turn)?;
        let is_below = |key: &&Key| self.fence_at(key).is_some_and(|fence| fence < to);
        let below: Vec<Key> = counter.keys.iter().filter(is_below).cloned().collect();
        if fence <= to
            && let Some(keys) = Keys::new(below)
        {
            self.check_write(true)?;
            self.count(&Counter { keys, ..counter.clone() }, to, turn);
        }
        Ok(Answer::Raised { fence: fence.max(to) })
    }

    pub(super) fn heal_fenced(
        &mut self,
        ours: Ours<'_>,
        ttl_ms: u64,
        (counter, to): (&Counter, u64),
        turn: Turn,
    ) -> Executed {
        if self.is_any_in_the_way(ours, true, turn) {
            return Ok(Answer::Refused);
        }
        let fence = self.counted(counter, turn)?;
        if fence > to {
            return Ok(Answer::Superseded { fence });
        }
        self.check_write(true)?;
        self.count(counter, to, turn);
        self.grant(ours, ttl_ms, turn);
        Ok(Answer::GrantedFenced { fence: to })
    }

    pub(super) fn extend_fenced(
        &mut self,
        ours: Ours<'_>,
        ttl_ms: u64,
        counter: &Counter,
        turn: Turn,
    ) -> Executed {
        let answer = self.extend(ours, ttl_ms, turn)?;
        if answer == Answer::Extended && self.check_write(false).is_ok() {
            self.expire_all(&counter.keys, turn);
            let until = expiry(counter, turn);
            for key in &*counter.keys {
                if let Some(stored) = self.keys.get_mut(key) {
                    stored.expires_ms = until
                        .map(|until| stored.expires_ms.map_or(until, |before| before.max(until)));
                }
            }
        }
        Ok(answer)
    }

    /// Acquires a lock with a fencing token. With `from`, the keys must hold this value; otherwise they must be free.
    pub(super) fn acquire_fenced(
        &mut self,
        (keys, value): Ours<'_>,
        from: Option<&Value>,
        ttl_ms: u64,
        (counter, proposal): (&Counter, u64),
        turn: Turn,
    ) -> Executed {
        let fence = self.counted(counter, turn)?;
        let is_refused = match from {
            None => self.is_any_in_the_way((keys, value), false, turn),
            Some(from) => {
                self.expire_all(keys, turn);
                self.is_not_ours((keys, from)).is_some()
            }
        };
        if is_refused {
            let holding = Box::new(self.look_at(keys, None, turn));
            return Ok(Answer::RefusedFenced { fence, holding });
        }
        let latest = u64::try_from(turn.now_us).unwrap_or(0) + AHEAD_MAX;
        let proposal = proposal.min(latest);
        let floor = self.floor(&counter.marker, turn)?;
        let next = (fence + 1).max(floor).max(proposal);
        self.check_write(true)?;
        if next >= Counter::LIMIT {
            return Err(FailureKind::Rejected);
        }
        self.count(counter, next, turn);
        match from {
            None => self.grant((keys, value), ttl_ms, turn),
            Some(_) => self.replace((keys, value), ttl_ms, turn),
        }
        Ok(Answer::GrantedFenced { fence: next })
    }

    /// A mutant, a deliberate bug for the tests: raises only the counters whose keys hold the value.
    fn raise_each(
        &mut self,
        (keys, value): Ours<'_>,
        counter: &Counter,
        to: u64,
        turn: Turn,
    ) -> Option<Answer> {
        let is_ours = |key: &Key| self.keys.get(key).is_some_and(|it| it.holds(value));
        let ours = keys.iter().zip(&*counter.keys).filter(|(key, _)| is_ours(key));
        let ours: Vec<Key> = ours.map(|(_, counter)| counter.clone()).collect();
        let its = Counter { keys: Keys::new(ours)?, ..counter.clone() };
        if self.counted(&its, turn).ok()? < to {
            self.count(&its, to, turn);
        }
        Some(Answer::Raised { fence: to })
    }

    /// The largest number of a lock's counters. An absent counter counts as zero. `None` if a counter is no number.
    pub fn fence(&self, counter: &Counter) -> Option<u64> {
        let mut all = counter.keys.iter().map(|key| self.fence_at(key));
        all.try_fold(0, |largest, fence| Some(fence?.max(largest)))
    }

    /// The number of one counter; zero if it is absent, `None` if its content is no number.
    pub fn fence_at(&self, counter: &Key) -> Option<u64> {
        let Some(stored) = self.keys.get(counter) else { return Some(0) };
        number(stored.value()?)
    }

    fn counted(&mut self, counter: &Counter, turn: Turn) -> Result<u64, FailureKind> {
        self.expire_all(&counter.keys, turn);
        self.fence(counter).ok_or(FailureKind::Rejected)
    }

    fn count(&mut self, counter: &Counter, fence: u64, turn: Turn) {
        for key in &*counter.keys {
            let text = fence.to_string().into_bytes();
            self.put(key, Stored::text(text, expiry(counter, turn)), turn);
        }
    }

    /// Returns the floor in the node's marker key: the number below which no token is given out.
    fn floor(&mut self, marker: &Key, turn: Turn) -> Result<u64, FailureKind> {
        let digits = |text: &[u8]| {
            let text = core::str::from_utf8(text).ok()?;
            number(text.rsplit_once("floor=")?.1.as_bytes())
        };
        Ok(self.text(marker, turn)?.and_then(digits).unwrap_or(0))
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_number = digits.iter().all(u8::is_ascii_digit);
    core::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

/// The expiry of a counter; `None` if it never expires, as in the models.
fn expiry(counter: &Counter, turn: Turn) -> Option<i64> {
    i64::try_from(counter.ttl_ms).ok().map(|ttl_ms| turn.now_ms() + ttl_ms)
}
