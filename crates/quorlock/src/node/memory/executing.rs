//! What each command does to the keys, and what is answered to it.

use std::time::Duration;

use quorlock_core::marker::Adoption;
use quorlock_core::{Adopted, Answer, Command, Counter, Failure, FailureKind, Holding, Value};
use tokio::time::Instant;

use super::{Entry, Inner, Mode};
use crate::clock::Clock;

impl Inner {
    pub(super) fn execute(&mut self, commands: Vec<Command>) -> Vec<Answer> {
        if let Mode::Failing(kind) = self.mode {
            return vec![Answer::Failed(Failure::new(kind)); commands.len()];
        }
        self.expire();
        commands.into_iter().map(|command| self.answer(command)).collect()
    }

    fn answer(&mut self, command: Command) -> Answer {
        match command {
            Command::Acquire { key, value, ttl_ms } => {
                if self.keys.contains_key(&*key) {
                    return Answer::Refused;
                }
                self.set_text(&key, value.as_bytes(), Some(ttl_ms));
                Answer::Granted
            }
            Command::Extend { key, value, ttl_ms } => match self.keys.get_mut(&*key) {
                None => Answer::Absent,
                Some(entry) if entry.holds(&value) => {
                    entry.live_for(ttl_ms);
                    self.tell(&key);
                    Answer::Extended
                }
                Some(_) => Answer::Other,
            },
            Command::Release { key, value, .. } => match self.keys.get(&*key) {
                None => Answer::Absent,
                Some(entry) if entry.holds(&value) => {
                    self.remove(&key);
                    Answer::Deleted
                }
                Some(_) => Answer::Other,
            },
            Command::Inspect { key } => Answer::Seen(self.look(&key)),
            Command::Watch { key } => {
                self.watched.insert(key.to_string());
                Answer::Watched(self.look(&key))
            }
            Command::AcquireFenced { key, value, ttl_ms, counter, proposal } => {
                let Ok(fence) = self.counter(&counter.key) else { return no_counter() };
                let holding = self.look(&key);
                if holding != Holding::Free {
                    return Answer::RefusedFenced { fence, holding: Box::new(holding) };
                }
                let fence =
                    (fence + 1).max(self.floor(&counter.marker)).max(proposal.min(latest()));
                if fence >= Counter::LIMIT {
                    return no_counter();
                }
                self.set_text(&counter.key, fence.to_string(), Some(counter.ttl_ms));
                self.set_text(&key, value.as_bytes(), Some(ttl_ms));
                Answer::GrantedFenced { fence }
            }
            Command::HealFenced { key, value, ttl_ms, counter, to } => {
                if self.keys.contains_key(&*key) {
                    return Answer::Refused;
                }
                match self.counter(&counter.key) {
                    Ok(fence) if fence > to => return Answer::Superseded { fence },
                    Ok(_) => {}
                    Err(()) => return no_counter(),
                }
                self.set_text(&counter.key, to.to_string(), Some(counter.ttl_ms));
                self.set_text(&key, value.as_bytes(), Some(ttl_ms));
                Answer::GrantedFenced { fence: to }
            }
            Command::Raise { key, value, counter, to } => match self.keys.get(&*key) {
                None => Answer::Absent,
                Some(entry) if entry.holds(&value) => {
                    let Ok(fence) = self.counter(&counter.key) else { return no_counter() };
                    if fence < to {
                        self.set_text(&counter.key, to.to_string(), Some(counter.ttl_ms));
                    }
                    Answer::Raised { fence: fence.max(to) }
                }
                Some(_) => Answer::Other,
            },
            Command::ExtendFenced { key, value, ttl_ms, counter } => {
                let answer = self.answer(Command::Extend { key, value, ttl_ms });
                if answer == Answer::Extended
                    && let Some(kept) = self.keys.get_mut(&*counter.key)
                {
                    kept.live_for(counter.ttl_ms);
                }
                answer
            }
            Command::Identify => Answer::Identified,
            Command::Adopt { key, text, replaces, marker, seen } => {
                if self.text(&marker) != seen.as_deref().map(str::as_bytes) {
                    return Answer::NotMarked;
                }
                if seen.is_some() {
                    self.remove(&marker);
                }
                let there = self.text(&key);
                if there.is_none() || there == replaces.as_deref().map(str::as_bytes) {
                    self.adopted_us = time_us().max(self.adopted_us + 1);
                    let text = format!("{text} since={}", self.adopted_us);
                    self.set_text(&key, text.as_bytes(), Some(Adoption::TTL_MS));
                }
                // Its age is told by its expiry. One without counts anew.
                if let Some(entry) =
                    self.keys.get_mut(&*key).filter(|entry| entry.expires.is_none())
                {
                    entry.live_for(Adoption::TTL_MS);
                }
                let text = String::from_utf8_lossy(self.text(&key).unwrap_or_default()).into();
                Answer::Adopting { text, age: self.age(&key).unwrap_or_default() }
            }
            Command::Mark { key, text, replaces, adoption } => {
                let is_as_expected = self.text(&key) == replaces.as_deref().map(str::as_bytes);
                let is_adopted = adoption.as_ref().is_none_or(|Adopted { key, text, age_ms }| {
                    let age = Duration::from_millis(*age_ms);
                    self.text(key) == Some(text.as_bytes())
                        && self.age(key).is_some_and(|old| old >= age)
                });
                if !is_as_expected || !is_adopted {
                    return Answer::NotMarked;
                }
                self.set_text(&key, text.as_bytes(), None);
                if let Some(adopted) = adoption {
                    self.remove(&adopted.key);
                }
                Answer::Marked
            }
            _ => Answer::Failed(Failure::unsent(FailureKind::Protocol)),
        }
    }

    /// A lock's counter; an error if there is something else.
    fn counter(&self, key: &str) -> Result<u64, ()> {
        match self.keys.get(key).map(|entry| entry.value.as_deref()) {
            None => Ok(0),
            Some(Some(digits)) if digits.iter().all(u8::is_ascii_digit) => {
                str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(())
            }
            Some(_) => Err(()),
        }
    }

    /// Where the marker says that fences begin.
    fn floor(&self, marker: &str) -> u64 {
        let marker = self.text(marker).and_then(|text| str::from_utf8(text).ok());
        let floor = marker.and_then(|text| text.rsplit_once("floor=")?.1.parse().ok());
        floor.unwrap_or(0)
    }

    /// How old an adoption is; `None` if it does not expire, as one does.
    fn age(&self, key: &str) -> Option<Duration> {
        let left = self.keys.get(key).and_then(Entry::ttl)?;
        Some(Duration::from_millis(Adoption::TTL_MS).saturating_sub(left))
    }

    fn text(&self, key: &str) -> Option<&[u8]> {
        self.keys.get(key).and_then(|entry| entry.value.as_deref())
    }

    fn set_text(&mut self, key: &str, text: impl Into<Vec<u8>>, ttl_ms: Option<u64>) {
        let mut entry = Entry { value: Some(text.into()), expires: None };
        if let Some(ttl_ms) = ttl_ms {
            entry.live_for(ttl_ms);
        }
        self.set(key, entry);
    }

    fn look(&self, key: &str) -> Holding {
        self.keys.get(key).map_or(Holding::Free, Entry::holding)
    }

    pub(super) fn set(&mut self, key: &str, entry: Entry) {
        self.keys.insert(key.to_owned(), entry);
        self.tell(key);
    }

    pub(super) fn remove(&mut self, key: &str) -> bool {
        let removed = self.keys.remove(key).is_some();
        self.tell(key);
        removed
    }

    /// Tells of a change those who wait for it. Of an expiry nobody is told, as of a server's
    /// nobody is told in time.
    pub(super) fn tell(&mut self, key: &str) {
        if self.watched.remove(key) {
            self.listeners.iter().for_each(|push_sink| push_sink.changed(vec![key.into()]));
        }
    }

    pub(super) fn expire(&mut self) {
        let now = Instant::now();
        self.keys.retain(|_, entry| entry.expires.is_none_or(|expires| now < expires));
    }
}

impl Entry {
    fn holds(&self, value: &Value) -> bool {
        self.value.as_deref() == Some(value.as_bytes())
    }

    /// Never shorter than it would; but no longer for ever.
    fn live_for(&mut self, ttl_ms: u64) {
        let expires = Instant::now() + Duration::from_millis(ttl_ms);
        self.expires = self.expires.max(Some(expires));
    }

    pub(super) fn ttl(&self) -> Option<Duration> {
        self.expires.map(|expires| expires.saturating_duration_since(Instant::now()))
    }

    fn holding(&self) -> Holding {
        match &self.value {
            None => Holding::OtherType { ttl: self.ttl() },
            Some(value) => {
                let shown = value.len().min(Holding::VALUE_BYTES_MAX);
                Holding::Held { value: value[..shown].to_vec(), ttl: self.ttl() }
            }
        }
    }
}

/// The time of day.
fn time_us() -> u64 {
    u64::try_from(Clock::Tokio.now().real_ns() / 1000).unwrap_or(0)
}

/// No client's clock is believed further ahead than this: an hour after the node's own.
fn latest() -> u64 {
    time_us() + Duration::from_secs(3600).as_micros() as u64
}

fn no_counter() -> Answer {
    let failure = Failure::new(FailureKind::Rejected);
    Answer::Failed(failure.with_detail("the fence counter is no number, or at its end"))
}
