//! Commands that read the holders of keys.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Content, Store, Stored, Turn};
use crate::command::{Holding, Reader};
use crate::keys::Keys;
use crate::token::Key;

impl Store {
    /// Returns the holders of the keys. With `intents`, also the writers with an intent, because readers wait for them.
    pub(super) fn look_at(&mut self, keys: &Keys, intents: Option<&Keys>, turn: Turn) -> Holding {
        self.expire_all(keys, turn);
        if let Some(intents) = intents {
            self.expire_all(intents, turn);
        }
        let holdings = keys.iter().enumerate().map(|(place, key)| {
            let intent = intents.and_then(|intents| self.keys.get(&intents[place]));
            self.look(key, intent, turn)
        });
        Holding::of_all(holdings.collect())
    }

    fn look(&self, key: &Key, intent: Option<&Stored>, turn: Turn) -> Holding {
        let now_ms = turn.now_ms();
        let left = |at: i64| Duration::from_millis(u64::try_from(at - now_ms).unwrap_or(0));
        let announced = intent.map(|stored| Holding::Announced {
            value: stored.value().map(|value| shortened(value)).unwrap_or_default(),
            ttl: stored.expires_ms.map(left),
        });
        let Some(stored) = self.keys.get(key) else {
            return announced.unwrap_or(Holding::Free);
        };
        let ttl = stored.expires_ms.map(left);
        match (&stored.content, ttl) {
            (Content::Text(value), _) => Holding::Held { value: shortened(value), ttl },
            (Content::Scored(members), Some(ttl)) if stored.is_of_readers() => {
                let lives = |(_, end): &(&Vec<u8>, &i64)| !self.has_ended(**end, now_ms);
                let mut living: Vec<(&Vec<u8>, &i64)> = members.iter().filter(lives).collect();
                living.sort_by_key(|(value, end)| (**end, *value));
                let count = living.len();
                let reader = |(value, end): (&Vec<u8>, &i64)| Reader {
                    value: shortened(value),
                    ttl: left(*end),
                };
                // If the key has too many readers for the answer, the answer contains those that end last.
                let first = count.saturating_sub(Holding::READERS_MAX);
                let readers = living.into_iter().skip(first).map(reader).collect();
                let shared = match count {
                    0 => Holding::Free,
                    _ => Holding::Shared { readers, count, ttl },
                };
                announced.unwrap_or(shared)
            }
            _ => Holding::OtherType { ttl },
        }
    }
}

/// The part of a value that the answer contains.
fn shortened(value: &[u8]) -> Vec<u8> {
    value[..value.len().min(Holding::VALUE_BYTES_MAX)].to_vec()
}
