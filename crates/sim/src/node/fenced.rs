//! The model node's fences: what the scripts of section 8 of the protocol do.

use quorlock_core::marker::Marker;
use quorlock_core::{Answer, Command, Counter, Key, Keys, Value};

use super::{ConnectionId, ModelNode, Stored};
use crate::mutants::{Mutant, is_active};
use crate::time::{SECOND, Time, US};

/// How far ahead of the node's clock a client's proposal may reach, in microseconds.
const AHEAD_MAX: u64 = 3_600 * (SECOND / US) as u64;

impl ModelNode {
    /// One of the commands with a counter. `None`: the script has failed.
    pub(super) fn carry_out_fenced(
        &mut self,
        by: ConnectionId,
        command: &Command,
        now: Time,
    ) -> Option<Answer> {
        let now_ms = self.now_ms(now);
        match command {
            Command::AcquireFenced { keys, value, ttl_ms, counter, proposal } => {
                let fence = self.counted(counter, by, now_ms)?;
                if self.is_any_in_the_way((keys, value), false, by, now_ms) {
                    let holding = Box::new(self.look_at(keys, None, by, now_ms));
                    return Some(Answer::RefusedFenced { fence, holding });
                }
                let time = u64::try_from(self.clock.at(now).div_euclid(US)).unwrap_or(0);
                let proposal = (*proposal).min(time + AHEAD_MAX);
                let next = (fence + 1).max(self.floor(&counter.marker)).max(proposal);
                if next >= Counter::LIMIT || self.write_error(true).is_some() {
                    return None;
                }
                self.count(counter, next, by, now_ms);
                self.grant((keys, value), *ttl_ms, by, now_ms);
                Some(Answer::GrantedFenced { fence: next })
            }
            Command::Raise { keys, value, counter, to } => {
                self.expire_all(keys, by, now_ms);
                if is_active(Mutant::RaisesEach)
                    && let Some(answer) = self.raise_each((keys, value), counter, *to, by, now_ms)
                {
                    return Some(answer);
                }
                if let Some(answer) = self.is_not_ours((keys, value))
                    && !is_active(Mutant::RaiseWithoutCompare)
                {
                    return Some(answer);
                }
                let fence = self.counted(counter, by, now_ms)?;
                let is_below = |key: &Key| self.fence_at(key).is_some_and(|fence| fence < *to);
                if fence <= *to && counter.keys.iter().any(is_below) {
                    if self.write_error(true).is_some() {
                        return None;
                    }
                    let below = counter.keys.iter().filter(|key| is_below(key)).cloned();
                    let below: Vec<Key> = below.collect();
                    if let Some(keys) = Keys::new(below) {
                        self.count(&Counter { keys, ..counter.clone() }, *to, by, now_ms);
                    }
                }
                Some(Answer::Raised { fence: fence.max(*to) })
            }
            Command::HealFenced { keys, value, ttl_ms, counter, to } => {
                if self.is_any_in_the_way((keys, value), true, by, now_ms) {
                    return Some(Answer::Refused);
                }
                let fence = self.counted(counter, by, now_ms)?;
                if fence > *to {
                    return Some(Answer::Superseded { fence });
                }
                if self.write_error(true).is_some() {
                    return None;
                }
                self.count(counter, *to, by, now_ms);
                self.grant((keys, value), *ttl_ms, by, now_ms);
                Some(Answer::GrantedFenced { fence: *to })
            }
            Command::ExtendFenced { keys, value, ttl_ms, counter } => {
                let (keys, value) = (keys.clone(), value.clone());
                let extend = Command::Extend { keys, value, ttl_ms: *ttl_ms };
                let answer = self.carry_out(by, &extend, now);
                if answer == Answer::Extended && self.write_error(false).is_none() {
                    let until = expiry(counter, now_ms);
                    for key in &*counter.keys {
                        if let Some(stored) = self.keys.get_mut(key) {
                            stored.expires_ms = match (stored.expires_ms, until) {
                                (Some(at), Some(until)) => Some(at.max(until)),
                                _ => None,
                            };
                        }
                    }
                }
                Some(answer)
            }
            _ => None,
        }
    }

    /// A mistake.
    fn raise_each(
        &mut self,
        (keys, value): (&Keys, &Value),
        counter: &Counter,
        to: u64,
        by: ConnectionId,
        now_ms: i64,
    ) -> Option<Answer> {
        let is_ours = |key: &Key| self.keys.get(key).is_some_and(|it| it.holds(value));
        let ours = keys.iter().zip(&*counter.keys).filter(|(key, _)| is_ours(key));
        let ours: Vec<Key> = ours.map(|(_, counter)| counter.clone()).collect();
        let ours = Keys::new(ours)?;
        let its = Counter { keys: ours, ..counter.clone() };
        if self.counted(&its, by, now_ms)? < to {
            self.count(&its, to, by, now_ms);
        }
        Some(Answer::Raised { fence: to })
    }

    /// The largest number that a lock's counters show; none is zero.
    pub fn fence(&self, counter: &Counter) -> Option<u64> {
        let mut all = counter.keys.iter().map(|key| self.fence_at(key));
        all.try_fold(0, |largest, fence| Some(fence?.max(largest)))
    }

    /// What one counter shows; none is zero.
    pub fn fence_at(&self, counter: &Key) -> Option<u64> {
        match self.keys.get(counter) {
            None => Some(0),
            Some(stored) => std::str::from_utf8(stored.value()?).ok()?.parse().ok(),
        }
    }

    fn counted(&mut self, counter: &Counter, by: ConnectionId, now_ms: i64) -> Option<u64> {
        self.expire_all(&counter.keys, by, now_ms);
        self.fence(counter)
    }

    fn count(&mut self, counter: &Counter, fence: u64, by: ConnectionId, now_ms: i64) {
        for key in &*counter.keys {
            let text = fence.to_string().into_bytes();
            self.put(key, Stored::text(text, expiry(counter, now_ms)), by);
        }
    }

    /// What the marker says that fences are not below.
    fn floor(&self, marker: &Key) -> u64 {
        let text = self.keys.get(marker).and_then(Stored::value);
        let text = text.and_then(|text| std::str::from_utf8(text).ok());
        text.and_then(Marker::parse).map_or(0, |marker| marker.floor)
    }
}

/// Until when a counter is kept; `None`: for ever, which is what a model asks for.
fn expiry(counter: &Counter, now_ms: i64) -> Option<i64> {
    i64::try_from(counter.ttl_ms).ok().map(|ttl_ms| now_ms + ttl_ms)
}
