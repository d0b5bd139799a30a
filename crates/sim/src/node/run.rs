//! What a model node says of itself, and the marker and the adoption on it.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::marker::Adoption;
use quorlock_core::{Adopted, Answer, Failure, FailureKind, Key, MarkerSeen};

use super::{ConnectionId, Content, Health, ModelNode, Stored, failed};
use crate::mutants::{Mutant, is_active};
use crate::time::{SECOND, Time, US};

/// One run of a server's process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Run {
    /// New with every start.
    pub id: u64,
    /// What its wall clock showed when it began, in whole seconds.
    pub started_s: i64,
    /// It was a replica, and was promoted at this offset.
    pub promoted_at: Option<i64>,
    /// It deletes keys when its memory is full.
    pub evicts: bool,
    /// It keeps a log of what is written.
    pub keeps_log: bool,
}

impl Run {
    /// A run that begins with the wall clock at `wall`.
    pub const fn new(id: u64, wall: Time) -> Self {
        let started_s = wall.div_euclid(SECOND);
        Self { id, started_s, promoted_at: None, evicts: false, keeps_log: false }
    }
}

impl ModelNode {
    /// `INFO`: what matters of it, as a server says it.
    pub fn info(&self, now: Time) -> Result<Arc<str>, Failure> {
        let loading = match self.health {
            Health::Refusing(FailureKind::Loading) => 1,
            Health::Refusing(kind) => return Err(Failure::new(kind)),
            Health::Garbled => return Err(Failure::new(FailureKind::Rejected)),
            _ => 0,
        };
        let role = match self.health {
            Health::ReadOnly(FailureKind::ReadOnly) => "slave",
            _ => "master",
        };
        let Run { id, started_s, promoted_at, evicts, keeps_log } = self.run;
        let wall = self.clock.at(now);
        let uptime = wall.div_euclid(SECOND) - started_s;
        let time = wall.div_euclid(US);
        let (limit, policy) = if evicts { (1_000_000, "allkeys-lru") } else { (0, "noeviction") };
        let (old, offset) = (u8::from(promoted_at.is_some()), promoted_at.unwrap_or(-1));
        Ok(format!(
            "redis_mode:standalone\r\nrun_id:{id:040x}\r\nserver_time_usec:{time}\r\n\
             uptime_in_seconds:{uptime}\r\nrole:{role}\r\nmaster_replid2:{old:040}\r\n\
             second_repl_offset:{offset}\r\nmaxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\n\
             loading:{loading}\r\nasync_loading:0\r\naof_enabled:{}\r\n",
            u8::from(keeps_log)
        )
        .into())
    }

    /// `GET` of a key that holds text.
    pub fn get(
        &mut self,
        by: ConnectionId,
        key: &Key,
        now: Time,
    ) -> Result<Option<String>, Failure> {
        match self.health {
            Health::Refusing(kind) => return Err(Failure::new(kind)),
            Health::Garbled => return Err(Failure::new(FailureKind::Rejected)),
            _ => {}
        }
        self.expire(key, Some(by), self.now_ms(now));
        match self.keys.get(key) {
            None => Ok(None),
            Some(Stored { content: Content::Text(text), .. }) => {
                Ok(Some(String::from_utf8_lossy(text).into_owned()))
            }
            Some(_) => Err(Failure::new(FailureKind::Rejected)),
        }
    }

    /// What a look at its marker behind other commands shows.
    pub fn marker(&mut self, by: ConnectionId, key: &Key, now: Time) -> MarkerSeen {
        match self.get(by, key, now) {
            Ok(None) => MarkerSeen::Missing,
            Ok(Some(text)) => MarkerSeen::Text(text.into()),
            Err(failure) => MarkerSeen::Failed(failure),
        }
    }

    /// Writes the adoption if there is none, or this other one, and takes the marker away if it is as it
    /// was seen; says what is there then.
    pub(super) fn adopt(
        &mut self,
        (key, text): (&Key, &Arc<str>),
        replaces: Option<&Arc<str>>,
        (marker, seen): (&Key, Option<&Arc<str>>),
        by: ConnectionId,
        now: Time,
    ) -> Option<Answer> {
        let now_ms = self.now_ms(now);
        self.expire(marker, Some(by), now_ms);
        let is_as_seen = match (self.keys.get(marker), seen) {
            (None, None) => true,
            (Some(stored), _) if stored.value().is_none() => return None,
            (Some(stored), Some(seen)) => stored.is_text(seen),
            _ => false,
        };
        if !is_as_seen {
            return Some(Answer::NotMarked);
        }
        if seen.is_some() {
            if self.write_error(false).is_some() {
                return None;
            }
            self.take(marker, by);
        }
        self.expire(key, Some(by), now_ms);
        let there = self.keys.get(key);
        let write = match there {
            None => true,
            Some(stored) => replaces.is_some_and(|old| stored.is_text(old)),
        };
        if write {
            if self.write_error(true).is_some() {
                return None;
            }
            let expires_ms = Some(now_ms + Adoption::TTL_MS as i64);
            let value = format!("{text} since={}", self.now_us(now)).into_bytes();
            self.put(key, Stored::text(value, expires_ms), by);
        }
        let stored = self.keys.get(key)?;
        let text = String::from_utf8_lossy(stored.value()?).into();
        let age = age_ms(stored, now_ms)?;
        Some(Answer::Adopting { text, age: Duration::from_millis(age.try_into().unwrap_or(0)) })
    }

    /// Writes the marker, if what must be there is.
    pub(super) fn mark(
        &mut self,
        (key, text): (&Key, &Arc<str>),
        replaces: Option<&Arc<str>>,
        adoption: Option<&Adopted>,
        by: ConnectionId,
        now_ms: i64,
    ) -> Answer {
        self.expire(key, Some(by), now_ms);
        let fits = match (self.keys.get(key), replaces) {
            (None, None) => true,
            (Some(stored), Some(old)) => stored.is_text(old),
            _ => false,
        };
        let adopted = adoption.is_none_or(|it| {
            self.expire(&it.key, Some(by), now_ms);
            self.keys.get(&it.key).is_some_and(|stored| {
                let age = age_ms(stored, now_ms).unwrap_or(-1);
                let old_enough = i64::try_from(it.age_ms).is_ok_and(|needed| age >= needed);
                stored.is_text(&it.text) && old_enough || is_active(Mutant::AnyAdoption)
            })
        });
        if !fits || !adopted {
            return Answer::NotMarked;
        }
        self.put(key, Stored::text(text.as_bytes().to_vec(), None), by);
        if let Some(it) = adoption {
            self.take(&it.key, by);
        }
        Answer::Marked
    }

    /// An answer that says why there is none.
    pub(super) fn script_failed(&self, command: &quorlock_core::Command) -> Answer {
        failed(command, self.write_error(true).unwrap_or(FailureKind::Rejected))
    }
}

impl Stored {
    /// Whether it holds this text.
    fn is_text(&self, text: &str) -> bool {
        self.value().is_some_and(|value| value == text.as_bytes())
    }
}

/// How old an adoption is.
fn age_ms(stored: &Stored, now_ms: i64) -> Option<i64> {
    Some(Adoption::TTL_MS as i64 - (stored.expires_ms? - now_ms))
}
