//! Readers: a sorted set at the lock's own key. The members are the readers' values, a score is the time at which the
//! reader ends, and the key expires with the last of them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Content, Executed, Ours, Store, Stored, Turn};
use crate::command::{Answer, FailureKind};
use crate::keys::{Keys, intents};
use crate::token::{Key, Value};

/// Largest number of readers of a key.
pub const READERS_MAX: usize = 1024;

/// The relation of a key to one reader's value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Free,
    /// The key has readers, and this value is not among them.
    Readers,
    /// The value is among the readers.
    Reads,
    /// The value is among the readers, but has expired.
    HasRead,
    /// The key holds the value as a writer's: a downgrade is under way.
    Writes,
    Foreign,
}

impl Store {
    pub(super) fn heal_reader(
        &mut self,
        (keys, value): Ours<'_>,
        ttl_ms: u64,
        turn: Turn,
    ) -> Executed {
        self.expire_all(keys, turn);
        let all = self.conditions((keys, value), turn);
        let is_full = |key: &Key| self.is_full(key, turn);
        let is_new = |it: &Standing| matches!(it, Standing::Readers | Standing::HasRead);
        let is_refused = all.contains(&Standing::Foreign)
            || mutant!(IntentStopsHeal) && self.is_any_announced(keys)
            || all.iter().zip(&**keys).any(|(it, key)| is_new(it) && is_full(key));
        if is_refused {
            return Ok(Answer::Refused);
        }
        self.check_write(true)?;
        self.read_until((keys, value), turn.until(ttl_ms), turn);
        Ok(Answer::Granted)
    }

    pub(super) fn extend_reader(
        &mut self,
        (keys, value): Ours<'_>,
        ttl_ms: u64,
        turn: Turn,
    ) -> Executed {
        self.expire_all(keys, turn);
        if let Some(answer) = self.does_not_read((keys, value), turn) {
            return Ok(answer);
        }
        self.check_write(false)?;
        self.read_until((keys, value), turn.until(ttl_ms), turn);
        Ok(Answer::Extended)
    }

    pub(super) fn downgrade(&mut self, (keys, value): Ours<'_>, turn: Turn) -> Executed {
        self.expire_all(keys, turn);
        if let Some(answer) = self.does_not_read((keys, value), turn) {
            return Ok(answer);
        }
        // A value without an expiry stays a writer's, because no reader may stay for ever.
        let ends = |stored: &Stored| stored.holds(value) && stored.expires_ms.is_some();
        let is_text = |key: &&Key| self.keys.get(*key).is_some_and(ends);
        let texts: Vec<Key> = keys.iter().filter(is_text).cloned().collect();
        if let Some(texts) = Keys::new(texts) {
            self.check_write(false)?;
            // The reader ends no later than the key would have, so the vote counts no longer than before.
            self.read_until((&texts, value), i64::MIN, turn);
        }
        Ok(Answer::Downgraded)
    }

    pub(super) fn announce(
        &mut self,
        (intents, value): Ours<'_>,
        ttl_ms: u64,
        renews: bool,
        turn: Turn,
    ) -> Executed {
        self.expire_all(intents, turn);
        let holds = |key: &&Key| self.keys.get(*key).map(|stored| stored.holds(value));
        let is_ours = intents.iter().all(|key| holds(&key) != Some(false));
        let is_set = |key: &&Key| holds(key).is_none_or(|is_own| is_own && renews);
        let to_set: Vec<Key> = intents.iter().filter(is_set).cloned().collect();
        if !to_set.is_empty() {
            self.check_write(true)?;
        }
        for key in to_set {
            let until = Some(turn.until(ttl_ms));
            self.put(&key, Stored::text(value.as_bytes().to_vec(), until), turn);
        }
        Ok(if is_ours { Answer::Announced } else { Answer::Other })
    }

    pub(super) fn withdraw(&mut self, (intents, value): Ours<'_>, turn: Turn) -> Executed {
        self.expire_all(intents, turn);
        let is_ours = |key: &&Key| self.keys.get(*key).is_some_and(|it| it.holds(value));
        let ours: Vec<Key> = intents.iter().filter(is_ours).cloned().collect();
        if !ours.is_empty() {
            self.check_write(false)?;
        }
        ours.iter().for_each(|key| self.take(key, turn));
        Ok(Answer::Announced)
    }

    /// Whether a key has a writer's intent. Only a mutant, a deliberate bug, lets an intent prevent a heal.
    fn is_any_announced(&self, keys: &Keys) -> bool {
        intents(keys, 0).iter().any(|intent| self.keys.contains_key(intent))
    }

    pub(super) fn add_reader(
        &mut self,
        (keys, value): Ours<'_>,
        intents: &Keys,
        ttl_ms: u64,
        turn: Turn,
    ) -> Executed {
        self.expire_all(keys, turn);
        self.expire_all(intents, turn);
        let all = self.conditions((keys, value), turn);
        if self.is_any_a_reader((keys, value), turn) {
            return Err(FailureKind::SameServer);
        }
        let is_refused = all.iter().any(|it| matches!(it, Standing::Foreign | Standing::Writes))
            || intents
                .iter()
                .any(|intent| self.keys.get(intent).is_some_and(|it| !it.holds(value)))
            || keys.iter().any(|key| self.is_full(key, turn));
        if is_refused {
            return Ok(Answer::Refused);
        }
        self.check_write(true)?;
        self.read_until((keys, value), turn.until(ttl_ms), turn);
        Ok(Answer::Granted)
    }

    pub(super) fn remove_reader(&mut self, (keys, value): Ours<'_>, turn: Turn) -> Executed {
        self.expire_all(keys, turn);
        let all = self.conditions((keys, value), turn);
        let is_there = |it: &Standing| match it {
            Standing::Writes => !mutant!(WriterStays),
            it => *it == Standing::Reads,
        };
        if all.iter().any(is_there) {
            self.check_write(false)?;
        }
        for (key, _) in keys.iter().zip(&all).filter(|(_, it)| is_there(it)) {
            let Some(Stored { content: Content::Scored(members), .. }) = self.keys.get(key) else {
                self.take(key, turn);
                continue;
            };
            let mut left = members.clone();
            left.remove(value.as_bytes());
            left.retain(|_, end| !self.has_ended(*end, turn.now_ms()));
            if mutant!(ReaderLeavesEnd)
                && !left.is_empty()
                && let Some(Stored { content, .. }) = self.keys.get_mut(key)
            {
                *content = Content::Scored(left);
                continue;
            }
            self.put_readers(key, left, turn);
        }
        Ok(match all {
            _ if all.iter().all(is_there) => Answer::Deleted,
            _ if all.contains(&Standing::Foreign) => Answer::Other,
            _ => Answer::Absent,
        })
    }

    /// Adds the value to the readers of all keys until `until`. The value ends no earlier than before. Expired readers
    /// are removed.
    fn read_until(&mut self, (keys, value): Ours<'_>, until: i64, turn: Turn) {
        for key in &**keys {
            let until = self.end_of(key, value).map_or(until, |end| end.max(until));
            let mut members = match self.keys.get(key).map(|stored| &stored.content) {
                Some(Content::Scored(members)) => members.clone(),
                _ => BTreeMap::new(),
            };
            members.retain(|_, end| !self.has_ended(*end, turn.now_ms()));
            members.insert(value.as_bytes().to_vec(), until);
            self.put_readers(key, members, turn);
        }
    }

    /// Whether the value is a reader's in at least one of the keys, even if that reader has expired.
    pub(super) fn is_any_a_reader(&self, (keys, value): Ours<'_>, turn: Turn) -> bool {
        let all = self.conditions((keys, value), turn);
        all.iter().any(|it| matches!(it, Standing::Reads | Standing::HasRead))
    }

    /// Makes `value` a reader in the place of `from`, until `until`, but no earlier than `from` would have ended.
    pub(super) fn replace_reader(
        &mut self,
        (keys, from, value): (&Keys, &Value, &Value),
        until: i64,
        turn: Turn,
    ) {
        for key in &**keys {
            let until = self.end_of(key, from).map_or(until, |end| end.max(until));
            let mut members = match self.keys.get(key).map(|stored| &stored.content) {
                Some(Content::Scored(members)) => members.clone(),
                _ => BTreeMap::new(),
            };
            members.retain(|_, end| !self.has_ended(*end, turn.now_ms()));
            members.remove(from.as_bytes());
            members.insert(value.as_bytes().to_vec(), until);
            self.put_readers(key, members, turn);
        }
    }

    /// Stores the readers of a key, which expires with the last of them. Deletes the key if all of them have ended.
    fn put_readers(&mut self, key: &Key, members: BTreeMap<Vec<u8>, i64>, turn: Turn) {
        let last =
            members.values().copied().max().filter(|end| !self.has_ended(*end, turn.now_ms()));
        match last {
            Some(_) => {
                self.put(key, Stored { content: Content::Scored(members), expires_ms: last }, turn)
            }
            None => self.take(key, turn),
        }
    }

    /// Returns the answer if some key has this value neither as a reader's nor, during a downgrade, as a writer's.
    pub(super) fn does_not_read(&self, (keys, value): Ours<'_>, turn: Turn) -> Option<Answer> {
        let all = self.conditions((keys, value), turn);
        if all.contains(&Standing::Foreign) {
            return Some(Answer::Other);
        }
        let reads = |it: &Standing| {
            matches!(it, Standing::Reads | Standing::Writes)
                || *it == Standing::Readers && mutant!(AnyReaderExtends)
        };
        (!all.iter().all(reads)).then_some(Answer::Absent)
    }

    fn conditions(&self, (keys, value): Ours<'_>, turn: Turn) -> Vec<Standing> {
        keys.iter().map(|key| self.standing(key, value, turn)).collect()
    }

    fn standing(&self, key: &Key, value: &Value, turn: Turn) -> Standing {
        let Some(stored) = self.keys.get(key) else { return Standing::Free };
        match &stored.content {
            Content::Text(_) if stored.holds(value) => Standing::Writes,
            Content::Scored(members) if stored.is_of_readers() || mutant!(AnySetReads) => {
                match members.get(value.as_bytes()) {
                    None => Standing::Readers,
                    Some(end) if self.has_ended(*end, turn.now_ms()) => Standing::HasRead,
                    Some(_) => Standing::Reads,
                }
            }
            _ => Standing::Foreign,
        }
    }

    /// Returns the expiry of this value as a reader's or a writer's; `None` without the value or an expiry.
    fn end_of(&self, key: &Key, value: &Value) -> Option<i64> {
        let stored = self.keys.get(key)?;
        match &stored.content {
            Content::Scored(members) => members.get(value.as_bytes()).copied(),
            _ => stored.expires_ms.filter(|_| stored.holds(value)),
        }
    }

    fn is_full(&self, key: &Key, turn: Turn) -> bool {
        let Some(Content::Scored(members)) = self.keys.get(key).map(|stored| &stored.content)
        else {
            return false;
        };
        members.values().filter(|end| !self.has_ended(**end, turn.now_ms())).count() >= READERS_MAX
    }
}

impl Stored {
    /// Whether this is a sorted set of readers, which expires with its last member. Other sorted sets belong to other
    /// programs. So does an exclusive lock of symfony/lock, which has the member `__write__`.
    pub fn is_of_readers(&self) -> bool {
        let Content::Scored(members) = &self.content else { return false };
        let last = members.values().max();
        self.expires_ms.zip(last).is_some_and(|(at, last)| (at - last).abs() <= 1)
            && !members.contains_key(b"__write__".as_slice())
    }
}
