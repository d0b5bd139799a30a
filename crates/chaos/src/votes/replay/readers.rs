//! What scripts do to the sorted sets that hold readers.

use quorlock_sim::time::{MS, Time};

use super::{Holder, Key, NEARLY, Replay, SLACK};

impl Replay<'_> {
    /// A script has made it one of the readers, or has extended it. That nobody was there but readers is certain, and
    /// who came shortly before may have been there and be gone.
    pub(super) fn joined(
        &mut self,
        resource: usize,
        value: &str,
        (shown, at): (Time, Time),
        until: Time,
    ) {
        let given = self.given.iter().skip_while(|word| *word != value).nth(1);
        let ttl_ms = given.and_then(|ttl| ttl.parse::<i64>().ok());
        let kept = self.reading.history.shows(until, at);
        // As with texts: see `until`. Who was a writer may stay for as long as its key would have.
        let owed = at + ttl_ms.map_or(until - shown, |ttl_ms| ttl_ms * MS);
        let to = if self.reading.is_wrong { kept.max(owed) } else { kept };
        let place = self.places.entry(resource).or_default();
        let is_over = |key: &Key| key.expires < shown - NEARLY && key.ends < at - NEARLY;
        place.keys.retain(|key| key.is_readers && !is_over(key));
        place.may_be_free = false;
        // It does not expire until a script says so.
        let (expires, ends) = (Time::MAX, Time::MAX);
        let mut key = place.keys.pop().unwrap_or_else(|| Key {
            holders: Vec::new(),
            is_readers: true,
            expires,
            ends,
        });
        match key.holders.iter_mut().find(|holder| holder.value == *value) {
            Some(holder) => {
                (holder.until, holder.to) = (holder.until.max(until), holder.to.max(to));
                match holder.vote {
                    Some(vote) => self.record.votes[vote].to = holder.to,
                    None => {
                        let mut its = holder.clone();
                        self.begins(&mut its, resource, true, at);
                        its.unmarked = its.unmarked.and(holder.unmarked);
                        *holder = its;
                    }
                }
            }
            None => {
                let value = value.to_owned();
                let mut holder = Holder { value, until, to, vote: None, unmarked: None };
                self.begins(&mut holder, resource, true, at);
                key.holders.push(holder);
            }
        }
        self.places.entry(resource).or_default().keys.push(key);
    }

    /// A script has taken it from the readers.
    pub(super) fn left(&mut self, resource: usize, value: &str, at: Time) {
        let Some(place) = self.places.get_mut(&resource) else { return };
        let mut is_found = false;
        for key in place.keys.iter_mut().filter(|key| key.is_readers) {
            for holder in key.holders.extract_if(.., |holder| holder.value == *value) {
                is_found = true;
                holder.ends(&mut self.record.votes, at);
            }
        }
        if is_found {
            // With the last of them the key is gone; and a text was not there.
            place.keys.retain(|key| key.is_readers && !key.holders.is_empty());
            place.may_be_free |= place.keys.is_empty();
        }
    }

    /// A script says when the readers' key expires. None of them is there for longer.
    pub(super) fn readers_expire(
        &mut self,
        resource: usize,
        expires: Time,
        (shown, at): (Time, Time),
    ) {
        let Some(place) = self.places.get_mut(&resource) else { return };
        let ends = self.reading.history.shows(expires, at);
        let is_there = |key: &&mut Key| key.is_readers && key.expires >= shown - NEARLY;
        for key in place.keys.iter_mut().filter(is_there) {
            (key.expires, key.ends) = (expires, ends);
            for holder in &key.holders {
                if let Some(vote) = holder.vote {
                    let is_cut = holder.until > expires + SLACK;
                    let to = if is_cut { holder.to.min(ends) } else { holder.to };
                    self.record.votes[vote].to = to;
                }
            }
        }
    }
}
