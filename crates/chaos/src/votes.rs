//! Oracle 4: what each server did, replayed from its `MONITOR` stream, says for how long it had voted
//! for whom. Whoever held a lock must have had the votes of a quorum all the time.
//!
//! A vote is a key that was set while the server was marked for its present run: what is granted
//! before that, quarantined nodes grant, and it is none. A vote ends when its key is deleted, or would
//! have expired; also if the server lost its data before that: then it must not vote for anybody else
//! so soon, and that is what the mark is for.

use std::collections::BTreeMap;

use quorlock_sim::time::{MS, Time};

use crate::monitor::{Command, Dump, LOSES, Log, REPLICA, Seen};
use crate::oracles::Hold;
use crate::protocol::RESOURCES;
use crate::shim::ClockHistory;

/// The mark, as the library writes it.
const MARKER: &str = "quorlock:node";

/// How exact times are when a clock is read here and another one there.
const SLACK: Time = 2 * MS;

/// A key that would expire within so long may have been gone already: a server looks at its clock before
/// it begins, and tells the time when it has done it.
const NEARLY: Time = 30 * MS;

/// A server that was killed may have answered so shortly before that its stream does not show it.
const UNSAID: Time = 50 * MS;

/// A node may be asked in the same breath in which it is marked, so that the mark comes second. The
/// two seconds that quarantine is longer than it need be are for that, too.
const BREATH: Time = 500 * MS;

/// A vote, on the clock that all share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vote {
    pub(crate) resource: usize,
    pub(crate) value: String,
    pub(crate) from: Time,
    pub(crate) to: Time,
}

/// What a node did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) votes: Vec<Vote>,
    /// When anything may have been granted that was not seen.
    pub(crate) blind: Vec<(Time, Time)>,
    /// What it said of locks and its mark, for whoever has to understand what came of it.
    pub(crate) said: Vec<(Time, String)>,
}

impl Record {
    /// Adds another server's at the same address.
    pub(crate) fn add(&mut self, other: Self) {
        self.votes.extend(other.votes);
        self.blind.extend(other.blind);
        self.said.extend(other.said);
    }
}

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
    value: String,
    /// By the server's clock.
    expires: Time,
    /// The first moment at which that clock shows so. It may be set back behind that, and then nobody knows
    /// whether the key is there: a server takes away what has expired when it comes to it.
    ends: Time,
    /// The vote that it is, if it is one.
    vote: Option<usize>,
    /// When it was set, if the server was not marked then.
    unmarked: Option<Time>,
}

impl Key {
    /// The server may have taken it away by now.
    fn may_be_gone(&self, shown: Time, at: Time) -> bool {
        self.expires <= shown + NEARLY || self.ends <= at + NEARLY
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
        let only_reads = words.first().is_none_or(|name| name == "GET" || name == "PTTL");
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
                if let (Some(resource), Some(ttl)) = (lock(key), ttl) {
                    self.set(resource, value, (*shown, at), ttl, is_new && !by_script);
                }
            }
            ("PEXPIRE", [key, ttl, ..]) if *by_script => {
                if let (Some(resource), Ok(ttl)) = (lock(key), ttl.parse()) {
                    self.extended(resource, (*shown, at), ttl);
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
                    let theirs = place.keys.extract_if(.., |key| key.value == *value);
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
        for (resource, name) in RESOURCES.iter().enumerate() {
            let Some((_, value, ttl)) = find(name) else { continue };
            // Of one that was not there before it is not known whether it is a vote.
            let mut known = before.get(&resource).into_iter().flat_map(|place| &place.keys);
            let vote = known.find(|key| key.value == *value).and_then(|key| key.vote);
            let expires = shown + ttl * MS;
            let ends = self.reading.history.shows(expires, at);
            let key = Key { value: value.clone(), expires, ends, vote, unmarked: None };
            self.places.insert(resource, Place { keys: vec![key], may_be_free: false });
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
            match find(name) {
                // As it was extended last.
                Some((_, value, ttl)) => known
                    .iter()
                    .any(|key| key.value == *value && key.expires <= shown + ttl * MS + NEARLY),
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
        let (reading, votes) = (self.reading, &mut self.record.votes);
        let keys = self.places.iter_mut();
        let keys = keys.flat_map(|(lock, place)| place.keys.iter_mut().map(move |key| (lock, key)));
        for (resource, key) in keys {
            let from = key.unmarked.take().filter(|from| at - from <= BREATH);
            if let Some(from) = from {
                key.vote = Some(votes.len());
                let to = reading.history.shows(key.expires, from);
                votes.push(Vote { resource: *resource, value: key.value.clone(), from, to });
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
        let is_marked = self.is_marked();
        let (value, expires) = (value.to_owned(), shown + ttl_ms * MS);
        let vote = is_marked.then_some(self.record.votes.len());
        if is_marked {
            let to = self.until(shown, at, ttl_ms);
            self.record.votes.push(Vote { resource, value: value.clone(), from: at, to });
        }
        let unmarked = (!is_marked).then_some(at);
        let ends = self.reading.history.shows(expires, at);
        let key = Key { value, expires, ends, vote, unmarked };
        self.places.entry(resource).or_default().keys.push(key);
    }

    /// A script has found there what it was given: what was set after that, was not.
    fn settle(&mut self, resource: usize) -> bool {
        let Some(place) = self.places.get_mut(&resource) else { return false };
        let is_given = |key: &Key| self.given.contains(&key.value);
        let Some(found) = place.keys.iter().position(is_given) else { return false };
        for none in place.keys.drain(found + 1..).filter_map(|key| key.vote) {
            let none = &mut self.record.votes[none];
            none.to = none.from;
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
        let ends = self.reading.history.shows(shown + ttl_ms * MS, at);
        let votes = &mut self.record.votes;
        for key in self.places.entry(resource).or_default().keys.iter_mut() {
            key.expires = key.expires.max(shown + ttl_ms * MS);
            key.ends = key.ends.max(ends);
            match key.vote {
                _ if !is_marked => {}
                Some(vote) => votes[vote].to = votes[vote].to.max(to),
                None => {
                    key.vote = Some(votes.len());
                    votes.push(Vote { resource, value: key.value.clone(), from: at, to });
                }
            }
        }
    }

    /// An extension has found its key, and looks how long it lives. Where the clock was set back that is long
    /// enough, and nothing else is done: set right again, the server owes what it has said.
    fn found_long_enough(&mut self, resource: usize, at: Time) {
        let is_owed = self.reading.is_wrong && self.is_marked();
        let Some(place) = self.places.get(&resource).filter(|_| is_owed) else { return };
        for key in &place.keys {
            let ttl = self.given.iter().skip_while(|word| **word != key.value).nth(1);
            let ttl = ttl.and_then(|ttl| ttl.parse::<i64>().ok());
            if let (Some(vote), Some(ttl_ms)) = (key.vote, ttl) {
                let vote = &mut self.record.votes[vote];
                vote.to = vote.to.max(at + ttl_ms * MS);
            }
        }
    }

    fn ends(&mut self, key: &Key, at: Time) {
        if let Some(vote) = key.vote {
            let vote = &mut self.record.votes[vote];
            vote.to = vote.to.min(at);
        }
    }
}

fn lock(key: &str) -> Option<usize> {
    RESOURCES.iter().position(|resource| *resource == key)
}

/// What became of the holds that were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VoteCheck<'a> {
    pub(crate) judged: u64,
    /// Of these nobody can say: too many nodes were not seen.
    pub(crate) blind: u64,
    /// These had too few votes: which, since when, and how many.
    pub(crate) short: Vec<(&'a Hold, Time, usize)>,
}

/// Whether every hold had so many votes for all of its time.
pub(crate) fn check_votes<'a>(holds: &'a [Hold], nodes: &[Record], quorum: usize) -> VoteCheck<'a> {
    let mut vote_check = VoteCheck::default();
    // By what is asked for: a round has thousands of votes.
    let mut votes: BTreeMap<&str, Vec<(usize, &Vote)>> = BTreeMap::new();
    for (node, record) in nodes.iter().enumerate() {
        for vote in &record.votes {
            let token = vote.value.split(' ').next().unwrap_or_default();
            votes.entry(token).or_default().push((node, vote));
        }
    }
    for hold in holds.iter().filter(|hold| hold.from < hold.to) {
        // One that was handed on has the token that its nodes have, and a number.
        let token = hold.token.split('/').next().unwrap_or_default();
        let its = votes.get(token).map(Vec::as_slice).unwrap_or_default();
        let its: Vec<_> = its.iter().filter(|(_, vote)| vote.resource == hold.resource).collect();
        let unseen = |record: &Record| {
            record.blind.iter().any(|(from, to)| *from <= hold.to && *to >= hold.asked)
        };
        let blind: Vec<bool> = nodes.iter().map(unseen).collect();
        let alive = |at: Time, node: usize| {
            its.iter()
                .any(|(of, vote)| *of == node && (vote.from - SLACK..vote.to + SLACK).contains(&at))
        };
        let count = |at: Time, with_blind: bool| {
            let nodes =
                (0..nodes.len()).filter(|node| with_blind && blind[*node] || alive(at, *node));
            nodes.count()
        };
        // It gets fewer only when one ends.
        let ends = its.iter().map(|(_, vote)| vote.to + SLACK);
        let mut moments: Vec<Time> = ends.filter(|at| (hold.from..hold.to).contains(at)).collect();
        moments.push(hold.from);
        moments.sort_unstable();
        let lowest = |with_blind| moments.iter().find(|at| count(**at, with_blind) < quorum);
        match (lowest(false), lowest(true)) {
            (None, _) => vote_check.judged += 1,
            (Some(_), None) => vote_check.blind += 1,
            (Some(_), Some(at)) => {
                vote_check.judged += 1;
                vote_check.short.push((hold, *at, count(*at, true)));
            }
        }
    }
    vote_check
}

#[cfg(test)]
mod tests;
