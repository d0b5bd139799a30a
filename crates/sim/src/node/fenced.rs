//! The model node's fences: what the scripts of section 8 of the protocol do.

use quorlock_core::marker::Marker;
use quorlock_core::{Answer, Command, Counter, Key, Value};

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
            Command::AcquireFenced { key, value, ttl_ms, counter, proposal } => {
                let fence = self.counted(counter, by, now_ms)?;
                self.expire(key, Some(by), now_ms);
                if self.keys.contains_key(key) {
                    let holding = Box::new(self.look(key, now_ms));
                    return Some(Answer::RefusedFenced { fence, holding });
                }
                let time = u64::try_from(self.clock.at(now).div_euclid(US)).unwrap_or(0);
                let proposal = (*proposal).min(time + AHEAD_MAX);
                let next = (fence + 1).max(self.floor(&counter.marker)).max(proposal);
                if next >= Counter::LIMIT || self.write_error(true).is_some() {
                    return None;
                }
                self.count(counter, next, by, now_ms);
                self.grant((key, value), *ttl_ms, by, now_ms);
                Some(Answer::GrantedFenced { fence: next })
            }
            Command::Raise { key, value, counter, to } => {
                self.expire(key, Some(by), now_ms);
                match self.keys.get(key) {
                    _ if is_active(Mutant::RaiseWithoutCompare) => {}
                    None => return Some(Answer::Absent),
                    Some(stored) if stored.holds(value) => {}
                    Some(_) => return Some(Answer::Other),
                }
                let fence = self.counted(counter, by, now_ms)?;
                if fence < *to {
                    if self.write_error(true).is_some() {
                        return None;
                    }
                    self.count(counter, *to, by, now_ms);
                }
                Some(Answer::Raised { fence: fence.max(*to) })
            }
            Command::HealFenced { key, value, ttl_ms, counter, to } => {
                self.expire(key, Some(by), now_ms);
                if self.keys.contains_key(key) {
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
                self.grant((key, value), *ttl_ms, by, now_ms);
                Some(Answer::GrantedFenced { fence: *to })
            }
            Command::ExtendFenced { key, value, ttl_ms, counter } => {
                let extend =
                    Command::Extend { key: key.clone(), value: value.clone(), ttl_ms: *ttl_ms };
                let answer = self.carry_out(by, &extend, now);
                if answer == Answer::Extended && self.write_error(false).is_none() {
                    let until = expiry(counter, now_ms);
                    if let Some(stored) = self.keys.get_mut(&counter.key) {
                        stored.expires_ms = match (stored.expires_ms, until) {
                            (Some(at), Some(until)) => Some(at.max(until)),
                            _ => None,
                        };
                    }
                }
                Some(answer)
            }
            _ => None,
        }
    }

    /// What a counter shows; none is zero.
    pub fn fence(&self, counter: &Counter) -> Option<u64> {
        match self.keys.get(&counter.key) {
            None => Some(0),
            Some(stored) => std::str::from_utf8(stored.value.as_deref()?).ok()?.parse().ok(),
        }
    }

    fn counted(&mut self, counter: &Counter, by: ConnectionId, now_ms: i64) -> Option<u64> {
        self.expire(&counter.key, Some(by), now_ms);
        self.fence(counter)
    }

    fn count(&mut self, counter: &Counter, fence: u64, by: ConnectionId, now_ms: i64) {
        let value = Some(fence.to_string().into_bytes());
        let expires_ms = expiry(counter, now_ms);
        self.put(&counter.key, Stored { value, expires_ms }, by);
    }

    fn grant(&mut self, (key, value): (&Key, &Value), ttl_ms: u64, by: ConnectionId, now_ms: i64) {
        let expires_ms = Some(now_ms + ttl_ms as i64);
        self.put(key, Stored { value: Some(value.as_bytes().to_vec()), expires_ms }, by);
    }

    /// What the marker says that fences are not below.
    fn floor(&self, marker: &Key) -> u64 {
        let text = self.keys.get(marker).and_then(|stored| stored.value.as_deref());
        let text = text.and_then(|text| std::str::from_utf8(text).ok());
        text.and_then(Marker::parse).map_or(0, |marker| marker.floor)
    }
}

/// Until when a counter is kept; `None`: for ever, which is what a model asks for.
fn expiry(counter: &Counter, now_ms: i64) -> Option<i64> {
    i64::try_from(counter.ttl_ms).ok().map(|ttl_ms| now_ms + ttl_ms)
}
