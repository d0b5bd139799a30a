//! What each command does to the keys, and what is answered to it.

use std::time::Duration;

use quorlock_core::marker::Adoption;
use quorlock_core::{
    Adopted, Answer, Command, Counter, Failure, FailureKind, Holding, Key, Keys, Reader, Value,
};
use tokio::time::Instant;

use super::{Content, Entry, Inner, Mode};
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
            Command::Acquire { keys, value, ttl_ms } => {
                if self.is_any_there(&keys) {
                    return Answer::Refused;
                }
                self.hold(&keys, &value, ttl_ms);
                Answer::Granted
            }
            Command::Heal { keys, value, ttl_ms } => {
                if !self.may_be_healed(&keys, &value) {
                    return Answer::Refused;
                }
                self.hold(&keys, &value, ttl_ms);
                Answer::Granted
            }
            Command::Extend { keys, value, ttl_ms } => match self.held(&keys, &value) {
                Ok(()) => {
                    self.live_for(&keys, ttl_ms);
                    Answer::Extended
                }
                Err(answer) => answer,
            },
            Command::Release { keys, value, .. } => self.release(&keys, &value),
            Command::Inspect { keys, intents } => {
                Answer::Seen(self.look_at_all(&keys, intents.as_ref()))
            }
            Command::Watch { keys, intents } => {
                let watched = keys.iter().chain(intents.iter().flat_map(|intents| intents.iter()));
                self.watched.extend(watched.map(ToString::to_string));
                Answer::Watched(self.look_at_all(&keys, intents.as_ref()))
            }
            Command::AcquireFenced { keys, value, ttl_ms, counter, proposal } => {
                let Ok(fence) = self.counter(&counter.keys) else { return no_counter() };
                let holding = self.look_at_all(&keys, None);
                if holding != Holding::Free {
                    return Answer::RefusedFenced { fence, holding: Box::new(holding) };
                }
                let fence =
                    (fence + 1).max(self.floor(&counter.marker)).max(proposal.min(latest()));
                if fence >= Counter::LIMIT {
                    return no_counter();
                }
                self.count(counter.keys.iter(), fence, counter.ttl_ms);
                self.hold(&keys, &value, ttl_ms);
                Answer::GrantedFenced { fence }
            }
            Command::HealFenced { keys, value, ttl_ms, counter, to } => {
                if !self.may_be_healed(&keys, &value) {
                    return Answer::Refused;
                }
                match self.counter(&counter.keys) {
                    Ok(fence) if fence > to => return Answer::Superseded { fence },
                    Ok(_) => {}
                    Err(()) => return no_counter(),
                }
                self.count(counter.keys.iter(), to, counter.ttl_ms);
                self.hold(&keys, &value, ttl_ms);
                Answer::GrantedFenced { fence: to }
            }
            Command::Raise { keys, value, counter, to } => {
                if let Err(answer) = self.held(&keys, &value) {
                    return answer;
                }
                let Ok(fence) = self.counter(&counter.keys) else { return no_counter() };
                if fence <= to {
                    let is_below = |key: &&Key| self.count_of(key).is_ok_and(|count| count < to);
                    let below: Vec<Key> = counter.keys.iter().filter(is_below).cloned().collect();
                    self.count(below.iter(), to, counter.ttl_ms);
                }
                Answer::Raised { fence: fence.max(to) }
            }
            Command::ExtendFenced { keys, value, ttl_ms, counter } => {
                let answer = self.answer(Command::Extend { keys, value, ttl_ms });
                if answer == Answer::Extended {
                    self.live_for(&counter.keys, counter.ttl_ms);
                }
                answer
            }
            Command::AcquireShared { keys, intents, value, ttl_ms } => {
                self.acquire_shared(&keys, &intents, &value, ttl_ms)
            }
            Command::HealShared { keys, value, ttl_ms } => self.heal_shared(&keys, &value, ttl_ms),
            Command::ExtendShared { keys, value, ttl_ms } => {
                self.extend_shared(&keys, &value, ttl_ms)
            }
            Command::ReleaseShared { keys, value } => self.release_shared(&keys, &value),
            Command::Downgrade { keys, value } => self.downgrade(&keys, &value),
            Command::Announce { intents, value, ttl_ms, renews } => {
                let mut answer = Answer::Announced;
                for key in &*intents {
                    match self.keys.get(&**key).map(|entry| entry.holds(&value)) {
                        Some(false) => answer = Answer::Other,
                        Some(true) if !renews => {}
                        _ => self.set_text(key, value.as_bytes(), Some(ttl_ms)),
                    }
                }
                answer
            }
            Command::Withdraw { intents, value } => {
                self.release(&intents, &value);
                Answer::Announced
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

    fn is_any_there(&self, keys: &Keys) -> bool {
        keys.iter().any(|key| self.keys.contains_key(&**key))
    }

    /// Whether a vote for these keys may be given again that was lost, wholly or in part.
    fn may_be_healed(&self, keys: &Keys, value: &Value) -> bool {
        let is_ours = |key: &Key| self.keys.get(&**key).is_none_or(|entry| entry.holds(value));
        if keys.single().is_some() { !self.is_any_there(keys) } else { keys.iter().all(is_ours) }
    }

    /// The keys all hold this value; or what is answered if they do not.
    fn held(&self, keys: &Keys, value: &Value) -> Result<(), Answer> {
        let mut all_there = Ok(());
        for key in &**keys {
            match self.keys.get(&**key) {
                None => all_there = Err(Answer::Absent),
                Some(entry) if entry.holds(value) => {}
                Some(_) => return Err(Answer::Other),
            }
        }
        all_there
    }

    /// Makes all of these hold the value for so long; what is there is this value.
    fn hold(&mut self, keys: &Keys, value: &Value, ttl_ms: u64) {
        for key in &**keys {
            match self.keys.get_mut(&**key) {
                None => self.set_text(key, value.as_bytes(), Some(ttl_ms)),
                Some(entry) => {
                    entry.live_for(ttl_ms);
                    self.tell(key);
                }
            }
        }
    }

    /// Those that are there live for so long, never shorter than they would.
    fn live_for(&mut self, keys: &Keys, ttl_ms: u64) {
        for key in &**keys {
            if let Some(entry) = self.keys.get_mut(&**key) {
                entry.live_for(ttl_ms);
                self.tell(key);
            }
        }
    }

    fn release(&mut self, keys: &Keys, value: &Value) -> Answer {
        let held = self.held(keys, value);
        for key in &**keys {
            if self.keys.get(&**key).is_some_and(|entry| entry.holds(value)) {
                self.remove(key);
            }
        }
        held.map_or_else(|answer| answer, |()| Answer::Deleted)
    }

    fn count<'a>(&mut self, counters: impl Iterator<Item = &'a Key>, to: u64, ttl_ms: u64) {
        for key in counters {
            self.set_text(key, to.to_string(), Some(ttl_ms));
        }
    }

    /// The largest of a lock's counters; an error if there is something else.
    fn counter(&self, keys: &Keys) -> Result<u64, ()> {
        keys.iter().try_fold(0, |largest, key| Ok(self.count_of(key)?.max(largest)))
    }

    fn count_of(&self, key: &str) -> Result<u64, ()> {
        match self.keys.get(key).map(|entry| &entry.content) {
            None => Ok(0),
            Some(Content::Text(digits)) if digits.iter().all(u8::is_ascii_digit) => {
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

    pub(super) fn text(&self, key: &str) -> Option<&[u8]> {
        self.keys.get(key).and_then(Entry::text)
    }

    fn set_text(&mut self, key: &str, text: impl Into<Vec<u8>>, ttl_ms: Option<u64>) {
        let mut entry = Entry { content: Content::Text(text.into()), expires: None };
        if let Some(ttl_ms) = ttl_ms {
            entry.live_for(ttl_ms);
        }
        self.set(key, entry);
    }

    /// What each of the keys holds; or, if that excludes no readers, what is announced to them.
    fn look_at_all(&self, keys: &Keys, intents: Option<&Keys>) -> Holding {
        let announced = |place: usize| self.keys.get(&**intents?.get(place)?);
        let holdings = keys.iter().enumerate().map(|(place, key)| {
            let holding = self.keys.get(&**key).map_or(Holding::Free, Entry::holding);
            match (announced(place), holding) {
                (Some(word), Holding::Free | Holding::Shared { .. }) => Holding::Announced {
                    value: word.text().map(shortened).unwrap_or_default(),
                    ttl: word.ttl(),
                },
                (_, holding) => holding,
            }
        });
        Holding::of_all(holdings.collect())
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
    pub(super) fn text(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Text(text) => Some(text),
            Content::SortedSet(_) | Content::Other => None,
        }
    }

    pub(super) fn holds(&self, value: &Value) -> bool {
        self.text() == Some(value.as_bytes())
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
        match (&self.content, self.readers()) {
            (Content::Text(value), _) => Holding::Held { value: shortened(value), ttl: self.ttl() },
            (Content::SortedSet(_), Some(readers)) => {
                let ttl = self.ttl().unwrap_or_default();
                let mut readers: Vec<Reader> = readers
                    .map(|(value, ends)| Reader { value: shortened(value), ttl: left(ends) })
                    .collect();
                readers.sort_by_key(|reader| reader.ttl);
                let count = readers.len();
                readers.drain(..count.saturating_sub(Holding::READERS_MAX));
                Holding::Shared { readers, count, ttl }
            }
            (Content::SortedSet(_) | Content::Other, _) => Holding::OtherType { ttl: self.ttl() },
        }
    }
}

/// Of a value, what is shown.
fn shortened(value: &[u8]) -> Vec<u8> {
    value[..value.len().min(Holding::VALUE_BYTES_MAX)].to_vec()
}

/// Time until then.
pub(super) fn left(ends: Instant) -> Duration {
    ends.saturating_duration_since(Instant::now())
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
