//! A server's stream, replayed: what was under the locks' keys, and which votes that was.

mod readers;

use std::collections::BTreeMap;

use quorlock_sim::time::{MS, Time};

use super::{Record, SLACK, Vote};
use crate::monitor::{Command, Dump, LOSES, Log, REPLICA, Seen};
use crate::protocol::RESOURCES;
use crate::shim::ClockHistory;

/// The mark, as the library writes it.
pub(super) const MARKER: &str = "quorlock:node";

/// Under what a writer that waits says so, for each lock.
pub(crate) const INTENT: &str = "quorlock:intent:";

/// What changes nothing, and need not be told.
const READS: [&str; 9] =
    ["GET", "PTTL", "EXISTS", "GETRANGE", "TIME", "TYPE", "ZCOUNT", "ZRANGE", "ZSCORE"];

/// A key that would expire within so long may have been gone already: a server looks at its clock before
/// it begins, and tells the time when it has done it.
const NEARLY: Time = 30 * MS;

/// A server that was killed may have answered so shortly before that its stream does not show it.
const UNSAID: Time = 50 * MS;

/// A node may be asked in the same breath in which it is marked, so that the mark comes second. The
/// two seconds that quarantine is longer than it need be are for that, too.
const BREATH: Time = 500 * MS;

/// How a stream is to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) history: &'a ClockHistory,
    /// Keys vanish early, because somebody sets the clock wrong, and that is among what may be.
    pub(crate) is_wrong: bool,
    /// A node is marked before it votes.
    pub(crate) guarded: bool,
}

/// What may be under a lock's key: nobody knows for sure where one was set when the one before was
/// near its end, until something shows it. Only one of them is there.
#[derive(Clone, Debug, Default)]
struct Place {
    keys: Vec<Key>,
    /// There may be nothing, although there may be something.
    may_be_free: bool,
}

/// A lock's key.
#[derive(Clone, Debug)]
struct Key {
    /// Of a text exactly one.
    holders: Vec<Holder>,
    /// It is a sorted set.
    is_readers: bool,
    /// By the server's clock.
    expires: Time,
    /// The first moment at which that clock shows so. It may be set back behind that, and then nobody knows
    /// whether the key is there: a server takes away what has expired when it comes to it.
    ends: Time,
}

/// Who holds a key, alone or as one of the readers.
#[derive(Clone, Debug)]
struct Holder {
    value: String,
    /// Until when, by the server's clock: a text until it expires, a reader as its score says,
    until: Time,
    /// and when that is, if the key lives for so long.
    to: Time,
    /// The vote that it is, if it is one.
    vote: Option<usize>,
    /// Since when it has been there, if the server was not marked then.
    unmarked: Option<Time>,
}

impl Key {
    /// The server may have taken it away by now.
    fn may_be_gone(&self, shown: Time, at: Time) -> bool {
        self.expires <= shown + NEARLY || self.ends <= at + NEARLY
    }

    /// It is a text, and a script was given that.
    fn is_text_of(&self, given: &[String]) -> bool {
        !self.is_readers && self.holders.iter().any(|holder| given.contains(&holder.value))
    }
}

struct Replay<'a> {
    reading: Reading<'a>,
    record: Record,
    places: BTreeMap<usize, Place>,
    marker: Option<String>,
    /// The server's present run.
    run_id: String,
    /// What is in a marker that was made for it as it is: mostly one.
    fitting: Vec<String>,
    /// It repeats what its master does.
    is_replica: bool,
    /// It may have lost what was here, and has not said yet what it has.
    is_ambiguous: bool,
    /// What the script that runs was given.
    given: Vec<String>,
}

/// What a server's stream says.
pub(crate) fn replay(log: &Log, reading: Reading<'_>) -> Record {
    let mut replay = Replay {
        reading,
        record: Record::default(),
        places: BTreeMap::new(),
        marker: None,
        run_id: String::new(),
        fitting: Vec::new(),
        is_replica: false,
        is_ambiguous: false,
        given: Vec::new(),
    };
    for seen in &log.seen {
        match seen {
            Seen::Broken(at) => {
                replay.record.blind.push((at - UNSAID, at + SLACK));
                replay.is_ambiguous = true;
            }
            Seen::Line(heard, line) => {
                if let Some(command) = Command::parse(line) {
                    replay.takes(&command, *heard, &log.dumps);
                }
            }
        }
    }
    replay.record
}

impl Replay<'_> {
    fn takes(&mut self, command: &Command, heard: Time, dumps: &BTreeMap<String, Dump>) {
        let Command { at: shown, by_script, words } = command;
        let at = self.reading.history.showed(*shown, heard);
        if !by_script {
            self.given.clone_from(words);
        }
        let only_reads = words.first().is_none_or(|name| READS.contains(&&**name));
        if !only_reads && words.iter().any(|word| lock(word).is_some() || word == MARKER) {
            let by = if *by_script { "  script: " } else { "" };
            self.record.said.push((at, format!("{by}{}", words.join(" "))));
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let name = words.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
        if let ("EVAL", Some(dump)) =
            (name.as_str(), words.last().and_then(|word| dumps.get(*word)))
        {
            return self.is(dump, (*shown, at));
        }
        self.is_replica |= words[..] == ["ECHO", REPLICA];
        self.is_ambiguous |= words[..] == ["ECHO", LOSES];
        if self.is_replica {
            return;
        }
        match (name.as_str(), &words[1..]) {
            ("SET", [MARKER, text, ..]) => self.marked(text, at),
            ("SET", [key, value, options @ ..]) => {
                let is_new = options.contains(&"NX");
                let ttl = options.iter().skip_while(|option| **option != "PX").nth(1);
                let ttl = ttl.and_then(|ttl| ttl.parse().ok());
                if key.starts_with(INTENT) {
                    self.record.intents += 1;
                    // One that has no end is too long in any case.
                    let longest = &mut self.record.longest_intent;
                    *longest = (*longest).max(ttl.unwrap_or(i64::MAX));
                }
                if let (Some(resource), Some(ttl)) = (lock(key), ttl) {
                    self.set(resource, value, (*shown, at), ttl, is_new && !by_script);
                }
            }
            ("PEXPIRE", [key, ttl, ..]) if *by_script => {
                if let (Some(resource), Ok(ttl)) = (lock(key), ttl.parse()) {
                    self.extended(resource, (*shown, at), ttl);
                }
            }
            // With "XX", it only tries whether it may.
            ("ZADD", [key, score, value]) if *by_script => {
                if let (Some(resource), Ok(score)) = (lock(key), score.parse::<i64>()) {
                    self.joined(resource, value, (*shown, at), score * MS);
                }
            }
            ("ZREM", [key, value]) if *by_script => {
                if let Some(resource) = lock(key) {
                    self.left(resource, value, at);
                }
            }
            ("PEXPIREAT", [key, ms, ..]) if *by_script => {
                if let (Some(resource), Ok(ms)) = (lock(key), ms.parse::<i64>()) {
                    self.readers_expire(resource, ms * MS, (*shown, at));
                }
            }
            ("PTTL", [key, ..]) if *by_script => {
                if let Some(resource) = lock(key) {
                    self.found_long_enough(resource, at);
                }
            }
            ("DEL", [key, ..]) if *by_script => {
                if let Some(resource) = lock(key) {
                    let is_found = self.settle(resource);
                    let place = self.places.remove(&resource).unwrap_or_default();
                    // What was deleted may be what somebody has set after all was lost. The vote of who
                    // was there before excludes others none the less: the node is in quarantine.
                    if is_found || !self.is_ambiguous {
                        place.keys.iter().for_each(|key| self.ends(key, at));
                    }
                }
            }
            ("DELIFEQ", [key, value]) | ("DELEX", [key, _, value]) => {
                if let Some(place) = lock(key).and_then(|lock| self.places.get_mut(&lock)) {
                    let is_theirs = |key: &mut Key| key.is_text_of(&[(*value).to_owned()]);
                    let theirs = place.keys.extract_if(.., is_theirs);
                    let theirs: Vec<Key> = theirs.collect();
                    place.may_be_free |= !theirs.is_empty();
                    theirs.iter().for_each(|key| self.ends(key, at));
                }
            }
            // What it had granted is not taken back by that.
            ("FLUSHALL" | "FLUSHDB", _) => {
                self.places.clear();
                self.marker = None;
            }
            _ => {}
        }
    }

    fn is_marked(&self) -> bool {
        let fits = |text: &String| self.fitting.iter().any(|run| text.contains(run));
        !self.reading.guarded || self.marker.as_ref().is_some_and(fits)
    }

    /// All that it has, from its own mouth.
    fn is(&mut self, dump: &Dump, (shown, at): (Time, Time)) {
        self.is_replica = false;
        self.is_ambiguous = false;
        if !self.is_what_it_was(dump, (shown, at)) {
            self.fitting.clear();
        }
        self.run_id.clone_from(&dump.run_id);
        self.fitting.push(format!(" run_id={} promoted={} ", dump.run_id, dump.promoted));
        let find = |name: &str| dump.data.iter().find(|(key, ..)| key == name);
        self.marker = find(MARKER).map(|(_, text, _)| text.clone());
        let before = std::mem::take(&mut self.places);
        let history = self.reading.history;
        for (resource, name) in RESOURCES.iter().enumerate() {
            let Some((is_readers, all, expires)) = dumped(dump, name, shown) else { continue };
            let known = before.get(&resource).into_iter().flat_map(|place| &place.keys);
            let known: Vec<&Holder> = known.flat_map(|key| &key.holders).collect();
            let holders = all.into_iter().map(|(value, until)| {
                // Of one that was not there before it is not known whether it is a vote.
                let vote = known.iter().find(|it| it.value == value).and_then(|it| it.vote);
                let to = history.shows(until, at);
                Holder { value: value.to_owned(), until, to, vote, unmarked: None }
            });
            let (holders, ends) = (holders.collect(), history.shows(expires, at));
            let keys = vec![Key { holders, is_readers, expires, ends }];
            self.places.insert(resource, Place { keys, may_be_free: false });
        }
    }

    /// It has all that it had, in the same run: one that was to follow another and was a master again before
    /// it had anything from there. It tells of a promotion then, and has lost nothing; a client that has known it all
    /// along need not notice, and counts its votes.
    fn is_what_it_was(&self, dump: &Dump, (shown, at): (Time, Time)) -> bool {
        let find = |name: &str| dump.data.iter().find(|(key, ..)| key == name);
        let has_its_marker =
            self.marker.is_some() && find(MARKER).map(|(_, text, _)| text) == self.marker.as_ref();
        let has_its_keys = RESOURCES.iter().enumerate().all(|(resource, name)| {
            let place = self.places.get(&resource);
            let known = place.map(|place| place.keys.as_slice()).unwrap_or_default();
            match dumped(dump, name, shown) {
                // As it was extended last.
                Some((is_readers, all, expires)) => known.iter().any(|key| {
                    let is_there = |holder: &Holder| {
                        holder.until <= shown + NEARLY
                            || all.iter().any(|(value, until)| {
                                holder.value == *value && holder.until <= until + NEARLY
                            })
                    };
                    let is_known = |value: &str| key.holders.iter().any(|it| it.value == value);
                    key.is_readers == is_readers
                        && key.expires <= expires + NEARLY
                        && key.holders.iter().all(is_there)
                        && all.iter().any(|(value, _)| is_known(value))
                }),
                None => {
                    let may_be_free = place.is_none_or(|place| place.may_be_free);
                    let may_be_gone = |key: &Key| key.may_be_gone(shown, at);
                    may_be_free || known.is_empty() || known.iter().any(may_be_gone)
                }
            }
        });
        self.run_id == dump.run_id && has_its_marker && has_its_keys
    }

    fn marked(&mut self, text: &str, at: Time) {
        self.marker = Some(text.to_owned());
        if !self.is_marked() {
            return;
        }
        let votes = &mut self.record.votes;
        for (&resource, place) in &mut self.places {
            for Key { holders, is_readers, .. } in &mut place.keys {
                for holder in holders {
                    let from = holder.unmarked.take().filter(|from| at - from <= BREATH);
                    if let Some(from) = from {
                        holder.vote = Some(votes.len());
                        votes.push(holder.vote(resource, *is_readers, from));
                    }
                }
            }
        }
    }

    fn until(&self, shown: Time, at: Time, ttl_ms: i64) -> Time {
        // Set back, it keeps keys for longer; set forward, it owes what it does not keep.
        let kept = self.reading.history.shows(shown + ttl_ms * MS, at);
        if self.reading.is_wrong { kept.max(at + ttl_ms * MS) } else { kept }
    }

    fn set(
        &mut self,
        resource: usize,
        value: &str,
        (shown, at): (Time, Time),
        ttl_ms: i64,
        only_if_free: bool,
    ) {
        let place = self.places.entry(resource).or_default();
        if only_if_free {
            let may_be_gone = |key: &Key| key.may_be_gone(shown, at);
            let may_be_set = place.may_be_free || place.keys.iter().any(may_be_gone);
            if !may_be_set && !place.keys.is_empty() {
                return;
            }
            place.keys.retain(|key| key.expires + SLACK > shown);
        } else {
            place.keys.clear();
        }
        place.may_be_free = false;
        let (value, expires) = (value.to_owned(), shown + ttl_ms * MS);
        let to = self.until(shown, at, ttl_ms);
        let mut holder = Holder { value, until: expires, to, vote: None, unmarked: None };
        self.begins(&mut holder, resource, false, at);
        let ends = self.reading.history.shows(expires, at);
        let key = Key { holders: vec![holder], is_readers: false, expires, ends };
        self.places.entry(resource).or_default().keys.push(key);
    }

    /// It is a vote from then on, if the server is marked.
    fn begins(&mut self, holder: &mut Holder, resource: usize, is_readers: bool, at: Time) {
        if self.is_marked() {
            holder.vote = Some(self.record.votes.len());
            self.record.votes.push(holder.vote(resource, is_readers, at));
        } else {
            holder.unmarked = Some(at);
        }
    }

    /// A script has found there what it was given: what was set after that, was not.
    fn settle(&mut self, resource: usize) -> bool {
        let Some(place) = self.places.get_mut(&resource) else { return false };
        let found = place.keys.iter().position(|key| key.is_text_of(&self.given));
        let Some(found) = found else { return false };
        for none in place.keys.drain(found + 1..).flat_map(|key| key.holders) {
            if let Some(vote) = none.vote {
                let none = &mut self.record.votes[vote];
                none.to = none.from;
            }
        }
        place.keys.drain(..found);
        place.may_be_free = false;
        true
    }

    fn extended(&mut self, resource: usize, (shown, at): (Time, Time), ttl_ms: i64) {
        if !self.settle(resource) {
            return;
        }
        let (is_marked, to) = (self.is_marked(), self.until(shown, at, ttl_ms));
        let expires = shown + ttl_ms * MS;
        let ends = self.reading.history.shows(expires, at);
        let votes = &mut self.record.votes;
        for key in self.places.entry(resource).or_default().keys.iter_mut() {
            (key.expires, key.ends) = (key.expires.max(expires), key.ends.max(ends));
            for holder in &mut key.holders {
                (holder.until, holder.to) = (holder.until.max(expires), holder.to.max(to));
                match holder.vote {
                    _ if !is_marked => {}
                    Some(vote) => votes[vote].to = votes[vote].to.max(to),
                    None => {
                        holder.vote = Some(votes.len());
                        let vote = holder.vote(resource, false, at);
                        votes.push(Vote { to, ..vote });
                    }
                }
            }
        }
    }

    /// An extension has found its key, and looks how long it lives. Where the clock was set back that is long
    /// enough, and nothing else is done: set right again, the server owes what it has said.
    fn found_long_enough(&mut self, resource: usize, at: Time) {
        let is_owed = self.reading.is_wrong && self.is_marked();
        let Some(place) = self.places.get(&resource).filter(|_| is_owed) else { return };
        for holder in place.keys.iter().filter(|key| !key.is_readers).flat_map(|key| &key.holders) {
            let ttl = self.given.iter().skip_while(|word| **word != holder.value).nth(1);
            let ttl = ttl.and_then(|ttl| ttl.parse::<i64>().ok());
            if let (Some(vote), Some(ttl_ms)) = (holder.vote, ttl) {
                let vote = &mut self.record.votes[vote];
                vote.to = vote.to.max(at + ttl_ms * MS);
            }
        }
    }

    fn ends(&mut self, key: &Key, at: Time) {
        key.holders.iter().for_each(|holder| holder.ends(&mut self.record.votes, at));
    }
}

impl Holder {
    fn vote(&self, resource: usize, is_readers: bool, from: Time) -> Vote {
        Vote { resource, value: self.value.clone(), is_readers, from, to: self.to }
    }

    fn ends(&self, votes: &mut [Vote], at: Time) {
        if let Some(vote) = self.vote {
            votes[vote].to = votes[vote].to.min(at);
        }
    }
}

/// Whether readers hold it, who holds it until when, and when the key expires: by the server's clock.
type Dumped<'a> = (bool, Vec<(&'a str, Time)>, Time);

/// What a dump says of a lock; nothing if it is free.
fn dumped<'a>(dump: &'a Dump, name: &str, shown: Time) -> Option<Dumped<'a>> {
    let text = dump.data.iter().find(|(key, ..)| key == name).map(|(_, value, ttl)| {
        let expires = shown + ttl * MS;
        (false, vec![(value.as_str(), expires)], expires)
    });
    text.or_else(|| {
        let (_, readers, ttl) = dump.sets.iter().find(|(key, ..)| key == name)?;
        let all = readers.iter().map(|(value, score)| (value.as_str(), score * MS)).collect();
        Some((true, all, shown + ttl * MS))
    })
}

fn lock(key: &str) -> Option<usize> {
    RESOURCES.iter().position(|resource| *resource == key)
}
