//! What a look at the model node's keys shows.

use std::time::Duration;

use quorlock_core::{Holding, Key, Keys, Reader};

use super::{ConnectionId, Content, ModelNode, Stored};

impl ModelNode {
    /// What the keys hold; for a reader also where a writer has said that it waits.
    pub(super) fn look_at(
        &mut self,
        keys: &Keys,
        intents: Option<&Keys>,
        by: ConnectionId,
        now_ms: i64,
    ) -> Holding {
        self.expire_all(keys, by, now_ms);
        if let Some(intents) = intents {
            self.expire_all(intents, by, now_ms);
        }
        let holdings = keys.iter().enumerate().map(|(place, key)| {
            let intent = intents.and_then(|intents| self.keys.get(&intents[place]));
            self.look(key, intent, now_ms)
        });
        Holding::of_all(holdings.collect())
    }

    fn look(&self, key: &Key, intent: Option<&Stored>, now_ms: i64) -> Holding {
        let left = |at: i64| Duration::from_millis(u64::try_from(at - now_ms).unwrap_or(0));
        let announced = intent.map(|stored| Holding::Announced {
            value: stored.value().cloned().unwrap_or_default(),
            ttl: stored.expires_ms.map(left),
        });
        let Some(stored) = self.keys.get(key) else {
            return announced.unwrap_or(Holding::Free);
        };
        let ttl = stored.expires_ms.map(left);
        match (&stored.content, ttl) {
            (Content::Text(value), _) => Holding::Held { value: value.clone(), ttl },
            (Content::Scored(members), Some(ttl)) if stored.is_of_readers() => {
                let lives = |(_, end): &(&Vec<u8>, &i64)| !self.has_ended(**end, now_ms);
                let mut living: Vec<(&Vec<u8>, &i64)> = members.iter().filter(lives).collect();
                living.sort_by_key(|(value, end)| (**end, *value));
                let count = living.len();
                let reader = |(value, end): (&Vec<u8>, &i64)| Reader {
                    value: value.clone(),
                    ttl: left(*end),
                };
                // Those are told that end last.
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
