//! What commands about readers do to the keys.

use std::collections::BTreeMap;
use std::time::Duration;

use quorlock_core::{Answer, Failure, FailureKind, Keys, Value};
use tokio::time::Instant;

use super::executing::left;
use super::{Content, Entry, Inner};

/// A key has no more readers than this.
const READERS_MAX: usize = 1024;

/// What a key holds, for whoever has a certain value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// His value, as a writer's; until then, if it expires.
    Writer {
        ends: Option<Instant>,
    },
    /// His value, among the readers, until then.
    Reader {
        ends: Instant,
    },
    /// So many readers, without him.
    Readers(usize),
    /// What excludes him.
    Another,
}

impl Found {
    const fn is_his(self) -> bool {
        matches!(self, Self::Writer { .. } | Self::Reader { .. })
    }

    /// Until when it counts for him.
    const fn ends(self) -> Option<Instant> {
        match self {
            Self::Writer { ends } => ends,
            Self::Reader { ends } => Some(ends),
            _ => None,
        }
    }
}

impl Inner {
    pub(super) fn acquire_shared(
        &mut self,
        keys: &Keys,
        intents: &Keys,
        value: &Value,
        ttl_ms: u64,
    ) -> Answer {
        if keys.iter().any(|key| self.keys.get(&**key).is_some_and(|entry| entry.lists(value))) {
            return Answer::Failed(Failure::unsent(FailureKind::SameServer));
        }
        let is_free = |found| matches!(found, Found::Nothing | Found::Readers(..READERS_MAX));
        let is_announced = intents.iter().any(|intent| {
            self.keys.get(&**intent).is_some_and(|announced| !announced.holds(value))
        });
        if is_announced || !self.found(keys, value).all(is_free) {
            return Answer::Refused;
        }
        self.add(keys, value, Some(after(ttl_ms)));
        Answer::Granted
    }

    pub(super) fn heal_shared(&mut self, keys: &Keys, value: &Value, ttl_ms: u64) -> Answer {
        let is_free = |found: Found| {
            found.is_his() || matches!(found, Found::Nothing | Found::Readers(..READERS_MAX))
        };
        if !self.found(keys, value).all(is_free) {
            return Answer::Refused;
        }
        self.add(keys, value, Some(after(ttl_ms)));
        Answer::Granted
    }

    pub(super) fn extend_shared(&mut self, keys: &Keys, value: &Value, ttl_ms: u64) -> Answer {
        if let Err(answer) = self.is_his(keys, value) {
            return answer;
        }
        self.add(keys, value, Some(after(ttl_ms)));
        Answer::Extended
    }

    pub(super) fn downgrade(&mut self, keys: &Keys, value: &Value) -> Answer {
        if let Err(answer) = self.is_his(keys, value) {
            return answer;
        }
        self.add(keys, value, None);
        Answer::Downgraded
    }

    pub(super) fn release_shared(&mut self, keys: &Keys, value: &Value) -> Answer {
        let is_his = self.is_his(keys, value);
        for key in &**keys {
            match self.keys.get(&**key).map_or(Found::Nothing, |entry| entry.found(value)) {
                Found::Writer { .. } => drop(self.remove(key)),
                Found::Reader { .. } => {
                    let Some(entry) = self.keys.get_mut(&**key) else { continue };
                    if entry.take(value) {
                        self.tell(key);
                    } else {
                        self.remove(key);
                    }
                }
                Found::Nothing | Found::Readers(_) | Found::Another => {}
            }
        }
        is_his.map_or_else(|answer| answer, |()| Answer::Deleted)
    }

    pub(super) fn readers_of(&self, key: &str) -> Vec<(Vec<u8>, Duration)> {
        let readers = self.keys.get(key).and_then(Entry::readers);
        let readers = readers.into_iter().flatten();
        readers.map(|(value, ends)| (value.clone(), left(ends))).collect()
    }

    #[cfg(any(test, feature = "conformance"))]
    pub(super) fn members_of(&self, key: &str) -> Vec<(Vec<u8>, Duration)> {
        let Some(Content::SortedSet(members)) = self.keys.get(key).map(|it| &it.content) else {
            return Vec::new();
        };
        let mut members: Vec<_> =
            members.iter().map(|(value, ends)| (value.clone(), left(*ends))).collect();
        members.sort_by_key(|(_, left)| *left);
        members
    }

    fn found(&self, keys: &Keys, value: &Value) -> impl Iterator<Item = Found> {
        keys.iter().map(|key| self.keys.get(&**key).map_or(Found::Nothing, |it| it.found(value)))
    }

    /// The keys all hold this value, as a writer's or a reader's; or what is answered if they do not.
    fn is_his(&self, keys: &Keys, value: &Value) -> Result<(), Answer> {
        if self.found(keys, value).any(|found| found == Found::Another) {
            return Err(Answer::Other);
        }
        if self.found(keys, value).all(Found::is_his) { Ok(()) } else { Err(Answer::Absent) }
    }

    /// Makes the value a reader's, until it would end and until then. A writer's that does not end and is not given
    /// an end stays a writer's.
    fn add(&mut self, keys: &Keys, value: &Value, until: Option<Instant>) {
        for key in &**keys {
            let found = self.keys.get(&**key).map_or(Found::Nothing, |entry| entry.found(value));
            let Some(ends) = found.ends().max(until) else { continue };
            let set = Content::SortedSet(BTreeMap::new());
            let entry = self
                .keys
                .entry(key.to_string())
                .or_insert(Entry { content: Content::Other, expires: None });
            if !matches!(entry.content, Content::SortedSet(_)) {
                entry.content = set;
            }
            entry.add(value, ends);
            self.tell(key);
        }
    }
}

impl Entry {
    /// Who shares the key, and until when; `None` if it is no shared lock.
    pub(super) fn readers(&self) -> Option<impl Iterator<Item = (&Vec<u8>, Instant)>> {
        let Content::SortedSet(members) = &self.content else { return None };
        let (last, expires) = (*members.values().max()?, self.expires?);
        // A key that does not expire with its last reader is somebody else's.
        let gap = last.saturating_duration_since(expires) + expires.saturating_duration_since(last);
        let now = Instant::now();
        let counts = move |(_, ends): &(&Vec<u8>, &Instant)| now < **ends;
        (gap <= Duration::from_millis(1))
            .then(|| members.iter().filter(counts).map(|(value, ends)| (value, *ends)))
    }

    /// It is a shared lock, and this is among its readers, also if it has ended.
    fn lists(&self, value: &Value) -> bool {
        let Content::SortedSet(members) = &self.content else { return false };
        self.readers().is_some() && members.contains_key(value.as_bytes())
    }

    fn found(&self, value: &Value) -> Found {
        if self.holds(value) {
            return Found::Writer { ends: self.expires };
        }
        let Some(readers) = self.readers() else { return Found::Another };
        let mut count = 0;
        for (other, ends) in readers {
            if other == value.as_bytes() {
                return Found::Reader { ends };
            }
            count += 1;
        }
        Found::Readers(count)
    }

    /// Adds a reader, or lets it count until then.
    fn add(&mut self, value: &Value, ends: Instant) {
        let Content::SortedSet(members) = &mut self.content else { return };
        let now = Instant::now();
        members.retain(|_, ends| now < *ends);
        members.insert(value.as_bytes().to_vec(), ends);
        self.expires = members.values().max().copied();
    }

    /// Takes a reader away. Returns whether there are others.
    fn take(&mut self, value: &Value) -> bool {
        let Content::SortedSet(members) = &mut self.content else { return false };
        let now = Instant::now();
        members.retain(|other, ends| now < *ends && other != value.as_bytes());
        self.expires = members.values().max().copied();
        !members.is_empty()
    }
}

fn after(ttl_ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ttl_ms)
}
