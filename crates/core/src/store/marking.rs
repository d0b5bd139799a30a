//! The marker of a server, which shows that no data was lost, and the adoption, which starts the wait for a new marker.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use super::{Content, Executed, Store, Stored, Turn};
use crate::command::{Adopted, Answer, FailureKind};
use crate::marker::Adoption;
use crate::token::Key;

const LIFE_MS: i64 = Adoption::TTL_MS as i64;

impl Store {
    /// `GET` of a key that holds text.
    pub fn get(
        &mut self,
        by: super::ConnectionId,
        key: &Key,
        now_us: i64,
    ) -> Result<Option<String>, FailureKind> {
        match self.health {
            super::Health::Refusing(kind) => return Err(kind),
            super::Health::Garbled => return Err(FailureKind::Rejected),
            _ => {}
        }
        Ok(self.text(key, Turn { by, now_us })?.map(|text| String::from_utf8_lossy(text).into()))
    }

    /// Starts the wait for a new marker, if the adoption has the text `replaces`, and the marker the text `seen`.
    pub(super) fn adopt(
        &mut self,
        (key, text): (&Key, &str),
        marker: &Key,
        (replaces, seen): (Option<&str>, Option<&str>),
        turn: Turn,
    ) -> Executed {
        // The script treats an empty text as an absent one.
        let [replaces, seen] = [replaces, seen].map(|text| text.unwrap_or_default().as_bytes());
        let marked = self.text(marker, turn)?;
        let is_marked = marked.is_some();
        if marked.unwrap_or_default() != seen {
            return Ok(Answer::NotMarked);
        }
        if is_marked {
            self.check_write(false)?;
            self.take(marker, turn);
        }
        let there = self.text(key, turn)?;
        if there.is_none_or(|there| there == replaces) {
            self.check_write(true)?;
            let value = format!("{text} since={}", turn.now_us).into_bytes();
            let until = Some(turn.now_ms() + LIFE_MS);
            self.put(key, Stored::text(value, until), turn);
        }
        let stored = self.keys.get_mut(key).ok_or(FailureKind::Rejected)?;
        // The age of an adoption follows from its expiry. An adoption without an expiry, or with one that is too late,
        // counts as written now.
        let latest = turn.now_ms() + LIFE_MS;
        stored.expires_ms = Some(stored.expires_ms.map_or(latest, |end| end.min(latest)));
        let age = u64::try_from(age_ms(stored, turn)).unwrap_or(0);
        let text = stored.value().map(|text| String::from_utf8_lossy(text).into());
        let (text, age) = (text.unwrap_or_default(), Duration::from_millis(age));
        Ok(Answer::Adopting { text, age })
    }

    pub(super) fn mark(
        &mut self,
        (key, text): (&Key, &str),
        replaces: Option<&str>,
        adoption: Option<&Adopted>,
        turn: Turn,
    ) -> Executed {
        self.check_write(true)?;
        let fits = self.text(key, turn)? == replaces.map(str::as_bytes);
        if !fits || !self.is_adopted(adoption, turn)? {
            return Ok(Answer::NotMarked);
        }
        self.put(key, Stored::text(text.as_bytes().to_vec(), None), turn);
        if let Some(adopted) = adoption {
            self.take(&adopted.key, turn);
        }
        Ok(Answer::Marked)
    }

    fn is_adopted(&mut self, adopted: Option<&Adopted>, turn: Turn) -> Result<bool, FailureKind> {
        let Some(Adopted { key, text, age_ms: needed }) = adopted else { return Ok(true) };
        let is_same = self.text(key, turn)? == Some(text.as_bytes());
        let needed = i64::try_from(*needed).unwrap_or(i64::MAX);
        Ok(self.keys.get(key).is_some_and(|stored| {
            let is_old = stored.expires_ms.is_some() && age_ms(stored, turn) >= needed;
            is_same && is_old || mutant!(AnyAdoption)
        }))
    }

    /// The text of a key; `None` if the key is absent. A key of another type is an error.
    pub(super) fn text(&mut self, key: &Key, turn: Turn) -> Result<Option<&[u8]>, FailureKind> {
        self.expire(key, Some(turn.by), turn.now_ms());
        match self.keys.get(key).map(|stored| &stored.content) {
            None => Ok(None),
            Some(Content::Text(text)) => Ok(Some(text)),
            Some(_) => Err(FailureKind::Rejected),
        }
    }
}

/// The age of an adoption in milliseconds. It follows from the time until the adoption expires.
fn age_ms(stored: &Stored, turn: Turn) -> i64 {
    let end = stored.expires_ms.unwrap_or(turn.now_ms() + LIFE_MS);
    LIFE_MS - (end - turn.now_ms())
}
