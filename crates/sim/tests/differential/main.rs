//! The model node against real servers: the same random commands, the same answers.
//!
//! A real server's clock goes on between two commands, so there are two models. One believes that
//! each command came as early as it can have come, and expires keys as early as any server; the other
//! believes the latest of both. Between the two lies what the server does. Where they differ in more
//! than a time to live, the key is just about to expire: then nothing is compared, and the key is
//! taken away.

mod asking;
mod kinds;
mod pushes;
mod replies;
#[path = "../common/resp3.rs"]
mod resp3;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::info::Info;
use quorlock_core::marker::Adoption;
use quorlock_core::{
    Adopted, Answer, Command, Counter, FailureKind, Holding, Key, Keys, Mode, Token, Value,
};
use quorlock_servers::{
    NotFound, REQUIRE_VARIABLE, Reply, Server, ServerBinary, ServerOptions, find_all, skip,
};
use quorlock_sim::node::{ConnectionId, Health, Kind, ModelNode};
use quorlock_sim::time::{Clock, Time};
use replies::{time, understand};
use resp3::RespConnection;

/// A connection that watches nothing.
const NOBODY: ConnectionId = ConnectionId(u64::MAX);

/// How many commands each server is given.
const STEPS: usize = 5_000;

#[test]
fn every_server_answers_as_the_model_does() {
    const NAME: &str = "every_server_answers_as_the_model_does";
    #[cfg(quorlock_mutants)]
    if let Ok(mutant) = std::env::var("QUORLOCK_MUTANT") {
        assert!(quorlock_sim::mutants::switch_on(&mutant), "{mutant:?} is no known mistake");
    }
    let servers = match find_all(None) {
        Ok(servers) => servers,
        Err(NotFound::Nowhere) if std::env::var_os(REQUIRE_VARIABLE).is_none() => {
            return skip(NAME, "no Redis or Valkey server found");
        }
        Err(help) => panic!("{NAME} needs a server: {help}"),
    };
    for (place, binary) in servers.iter().enumerate() {
        compare(binary, 100 + place as u64);
    }
}

fn compare(binary: &ServerBinary, seed: u64) {
    println!("{binary}, seed {seed}");
    let server = Server::start(binary, ServerOptions::default()).expect("it starts");
    let mut pair = Pair::new(&server, seed);
    for _ in 0..STEPS {
        pair.step();
    }
    println!("{:?}", pair.seen);
    let Seen { compared, skipped, lives, pushes, expired, fences, adopted } = pair.seen;
    assert!(fences > 80 && adopted > 15, "fences are given, nodes are marked");
    assert!(compared > STEPS / 2 && lives > 100 && pushes > 50 && expired > 5);
    assert!(skipped < compared / 10, "what is about to expire is the exception");
}

/// Of what the node says of itself, what the engine goes by.
#[test]
fn a_server_says_of_itself_what_the_model_says() {
    const NAME: &str = "a_server_says_of_itself_what_the_model_says";
    let servers = match find_all(None) {
        Ok(servers) => servers,
        Err(NotFound::Nowhere) if std::env::var_os(REQUIRE_VARIABLE).is_none() => {
            return skip(NAME, "no Redis or Valkey server found");
        }
        Err(help) => panic!("{NAME} needs a server: {help}"),
    };
    for binary in &servers {
        println!("{binary}");
        let server = Server::start(binary, ServerOptions::default()).expect("it starts");
        let mut real = RespConnection::open(&server);
        let kind = Kind { expires_at_once: true, deletes_natively: false, pushes: false };
        let mut model = ModelNode::new(Clock::new(time(&real.ask(&[&["TIME"]])[0]), 0), kind);
        let alike = |model: &ModelNode, real: &mut RespConnection| {
            let Reply::Bulk(Some(text)) = real.ask(&[&["INFO"]]).remove(0) else {
                panic!("no text")
            };
            let said = Info::parse(&String::from_utf8_lossy(&text)).expect("all is there");
            let modelled = model.info(0).expect("it is sound");
            let modelled = Info::parse(&modelled).expect("all is there");
            assert_eq!(said.run_id.len(), modelled.run_id.len());
            assert!((0..60).contains(&said.uptime_s) && modelled.uptime_s == 0);
            let parts = |info: &Info| {
                (info.is_master, info.is_cluster, info.is_loading, info.evicts_by.clone())
            };
            assert_eq!(parts(&said), parts(&modelled));
            assert_eq!(said.promoted_at.is_some(), modelled.promoted_at.is_some());
        };
        alike(&model, &mut real);
        real.ask(&[&["CONFIG", "SET", "maxmemory", "100mb"]]);
        real.ask(&[&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]]);
        model.run.evicts = true;
        alike(&model, &mut real);
        real.ask(&[&["REPLICAOF", "127.0.0.1", "1"]]);
        model.health = Health::ReadOnly(FailureKind::ReadOnly);
        alike(&model, &mut real);
        real.ask(&[&["REPLICAOF", "NO", "ONE"]]);
        model.health = Health::Good;
        model.run.promoted_at = Some(1);
        alike(&model, &mut real);
    }
}

/// What was compared.
#[derive(Debug, Default)]
struct Seen {
    compared: usize,
    skipped: usize,
    lives: usize,
    pushes: usize,
    expired: usize,
    fences: usize,
    adopted: usize,
}

struct Pair {
    random: Random,
    /// Two that watch, and one who does what somebody else might.
    connections: [RespConnection; 2],
    other: RespConnection,
    early: ModelNode,
    late: ModelNode,
    seen: Seen,
    told: kinds::Told,
    native: bool,
    /// Who has asked to be told of what, and has not been told.
    asked: BTreeSet<(u64, String)>,
    last_by: u64,
    /// Who has asked about what at all: a script that has seen enough does not look whether the other keys have expired.
    looked: BTreeSet<(u64, String)>,
}

impl Pair {
    fn new(server: &Server, seed: u64) -> Self {
        let mut other = RespConnection::open(server);
        let info = other.ask(&[&["COMMAND", "INFO", "DELIFEQ"]]).remove(0);
        let Reply::Array(known) = info else { panic!("{info:?}") };
        let native = known[0] != Reply::Bulk(None);
        let connections = [(); 2].map(|()| {
            let mut connection = RespConnection::open(server);
            let said = connection.ask(&[&["CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"]]);
            assert_eq!(said, [Reply::Simple("OK".into())]);
            connection
        });
        let model = |expires_at_once| {
            let kind = Kind { expires_at_once, deletes_natively: native, pushes: true };
            ModelNode::new(Clock::new(0, 0), kind)
        };
        let (early, late) = (model(true), model(false));
        let (random, seen) = (Random(seed), Seen::default());
        Self {
            random,
            connections,
            other,
            early,
            late,
            seen,
            told: kinds::Told::default(),
            native,
            asked: BTreeSet::new(),
            last_by: 0,
            looked: BTreeSet::new(),
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0 => std::thread::sleep(Duration::from_millis(self.random.below(30))),
            1 => self.interfere(),
            _ => self.command(),
        }
        self.compare_pushes();
    }

    /// One of the protocol's commands, on one of the connections that watch.
    fn command(&mut self) {
        let by = self.random.below(2) as usize;
        let key: Key = format!("k{}", self.random.below(3)).into();
        let value = Value::new(&Token::new([self.random.below(3) as u8; Token::BYTES]), "");
        let ttl_ms = [1, 5, 20, 50, 10_000][self.random.below(5) as usize];
        let tell = self.random.below(2) == 0;
        let fence = self.random.below(40);
        let counter = Counter {
            keys: Key::from(format!("fence:{key}")).into(),
            ttl_ms: 100_000_000,
            marker: "node".into(),
        };
        let keys = Keys::from(key.clone());
        let command = match self.random.below(16) {
            8 | 9 => {
                // What is proposed counts, or is too little, or the server's clock bounds it.
                let proposal = [0, fence, u64::MAX >> 12][self.random.below(3) as usize];
                Command::AcquireFenced { keys, value, ttl_ms, counter, proposal }
            }
            10 | 11 => Command::Raise { keys, value, counter, to: fence },
            12 => Command::HealFenced { keys, value, ttl_ms, counter, to: fence },
            13 => Command::ExtendFenced { keys, value, ttl_ms, counter },
            14 => self.adopt(),
            15 => self.mark(),
            0..=2 => Command::Acquire { keys, value, ttl_ms },
            3 => Command::Extend { keys, value, ttl_ms },
            4 => Command::Release { keys, value, tell },
            5 => Command::Inspect { keys, intents: None },
            _ => Command::Watch { keys, intents: None },
        };
        let key = match &command {
            Command::Adopt { key, .. } | Command::Mark { key, .. } => key.clone(),
            _ => key,
        };
        self.last_by = by as u64;
        if let Command::Watch { .. } = &command {
            self.asked.insert((self.last_by, key.to_string()));
        }
        let was_there = self.late.all(0).any(|(known, _)| *known == key);
        let (answer, from, to) = self.ask(by, &command);
        if !self.is_settled(&key, from, to) {
            self.seen.skipped += 1;
            return self.start_anew(&key);
        }
        let connection = ConnectionId(by as u64);
        let early = self.early.execute(connection, &command, from);
        let late = self.late.execute(connection, &command, to);
        match (&early, &late) {
            (Answer::Seen(early), Answer::Seen(late))
            | (Answer::Watched(early), Answer::Watched(late)) => {
                let is_watched = matches!(answer, Answer::Watched(_));
                assert_eq!(is_watched, matches!(command, Command::Watch { .. }));
                let (Answer::Seen(said) | Answer::Watched(said)) = &answer else {
                    panic!("{command:?}: the server says {answer:?}")
                };
                // A server goes by the time at which it began its turn, and that may have been a moment
                // before it was asked for it: then the key's last one.
                let was_last = said
                    .free_in(Mode::Exclusive)
                    .is_some_and(|left| left <= Duration::from_millis(25));
                if was_last && *early == Holding::Free && !matches!(said, Holding::Free) {
                    self.seen.skipped += 1;
                    return self.start_anew(&key);
                }
                self.compare_holding(&command, (early, late), said, to - from);
            }
            (
                Answer::RefusedFenced { fence: one, holding: early },
                Answer::RefusedFenced { fence: two, holding: late },
            ) => {
                let Answer::RefusedFenced { fence, holding } = &answer else {
                    panic!("{command:?}: the server says {answer:?}")
                };
                assert_eq!((fence, fence), (one, two), "{command:?}");
                self.compare_holding(&command, (early, late), holding, to - from);
            }
            (Answer::GrantedFenced { fence: early }, Answer::GrantedFenced { fence: late }) => {
                let Answer::GrantedFenced { fence } = &answer else {
                    panic!("{command:?}: the server says {answer:?}")
                };
                assert!(early <= fence && fence <= late, "{command:?}: {early} {fence} {late}");
                self.seen.fences += 1;
                self.count(&command, *fence, to);
            }
            (Answer::Adopting { text, age: early }, Answer::Adopting { text: same, age: late }) => {
                let Answer::Adopting { text: said, age } = &answer else {
                    panic!("{command:?}: the server says {answer:?}")
                };
                if said != text || said != same {
                    let since = [text, said, same].map(|text| since(text));
                    let is_between = since[0].1 <= since[1].1 && since[1].1 <= since[2].1;
                    let is_same = since.iter().all(|(text, _)| *text == since[0].0);
                    assert!(is_same && is_between, "{command:?}: {text} {said} {same}");
                    let value = said.as_bytes().to_vec();
                    for model in [&mut self.early, &mut self.late] {
                        model.set(&key, Some(value.clone()), Some(Adoption::TTL_MS as i64), to);
                    }
                }
                // When it was written is known no better than how long the writing took, then.
                let took = Duration::from_nanos((to - from).unsigned_abs() + 200_000_000);
                assert!(early.saturating_sub(took) <= *age, "{command:?}: {early:?}, {age:?}");
                assert!(*age <= *late + took, "{command:?}: {age:?}, {late:?}");
            }
            _ => {
                self.seen.adopted += usize::from(answer == Answer::Marked);
                assert_eq!(early, late, "{command:?}: the models agree");
                assert_eq!(answer, early, "{command:?}: as the model says");
            }
        }
        self.seen.compared += 1;
        let is_there = self.early.stored(&key, to).is_some();
        self.seen.expired += usize::from(was_there && answer == Answer::Granted && is_there);
    }

    /// The adoption that is there, as far as the models know, or one that is not.
    fn adoption(&mut self) -> Arc<str> {
        let key = Key::from("adopt");
        let there = self.late.all(0).find(|(known, _)| **known == key);
        let there = there.and_then(|(_, stored)| stored.value().cloned());
        match there.filter(|_| self.random.below(3) > 0) {
            Some(text) => String::from_utf8(text).expect("our text").into(),
            None => "another adoption".into(),
        }
    }

    /// An adoption of one of three texts, perhaps in place of another; of a node with a marker or without.
    fn adopt(&mut self) -> Command {
        let texts: [Arc<str>; 3] = [1, 2, 3].map(|text| format!("adoption {text}").into());
        let text = texts[self.random.below(3) as usize].clone();
        let replaces = (self.random.below(2) == 0).then(|| self.adoption());
        // Not too often: it takes the marker away.
        let seen = (self.random.below(3) == 0).then(|| self.marker_text());
        Command::Adopt { key: "adopt".into(), text, replaces, marker: "node".into(), seen }
    }

    fn marker_text(&mut self) -> Arc<str> {
        let floor = [10, 20, 3_000][self.random.below(3) as usize];
        let cluster = "quorlock 1 nodes=a quorum=1 max_ttl_ms=1000";
        format!("{cluster} run_id=x promoted=-1 floor={floor}").into()
    }

    /// A marker with a floor, in place of nothing or of another; by an adoption that is there or not, and
    /// that is old enough or not.
    fn mark(&mut self) -> Command {
        let [text, old] = [(); 2].map(|()| self.marker_text());
        let adoption = (self.random.below(2) == 0).then(|| Adopted {
            key: "adopt".into(),
            text: self.adoption(),
            age_ms: [0, 80_000_000][self.random.below(2) as usize],
        });
        let replaces = (self.random.below(3) > 0).then_some(old);
        Command::Mark { key: "node".into(), text, replaces, adoption }
    }

    /// The models count what the server does: what a clock was at the moment they cannot know.
    fn count(&mut self, command: &Command, fence: u64, now: Time) {
        let (Command::AcquireFenced { counter, .. } | Command::HealFenced { counter, .. }) =
            command
        else {
            panic!("{command:?} has a fence")
        };
        let (value, ttl_ms) = (fence.to_string().into_bytes(), counter.ttl_ms as i64);
        for model in [&mut self.early, &mut self.late] {
            for key in &*counter.keys {
                model.set(key, Some(value.clone()), Some(ttl_ms), now);
            }
        }
    }

    /// Values are the same, and the time to live lies between those of the two models.
    fn compare_holding(
        &mut self,
        command: &Command,
        (early, late): (&Holding, &Holding),
        said: &Holding,
        took: Time,
    ) {
        let without_ttl = |holding: &Holding| match holding {
            Holding::Held { value, ttl } => {
                let ttl = ttl.map(|_| Duration::ZERO);
                Holding::Held { value: value.clone(), ttl }
            }
            Holding::OtherType { ttl } => Holding::OtherType { ttl: ttl.map(|_| Duration::ZERO) },
            _ => Holding::Free,
        };
        assert_eq!(without_ttl(said), without_ttl(early), "{command:?}");
        assert_eq!(without_ttl(said), without_ttl(late), "{command:?}");
        let free_in = |holding: &Holding| holding.free_in(Mode::Exclusive);
        let (Some(early), Some(late), Some(said)) = (free_in(early), free_in(late), free_in(said))
        else {
            return;
        };
        // The one looked at the earliest time, the other at the latest; the server in between.
        let took = Duration::from_nanos(took.unsigned_abs()) + Duration::from_millis(1);
        assert!(early.saturating_sub(took) <= said, "{command:?}: {said:?}, at least {early:?}");
        assert!(said <= late + took, "{command:?}: {said:?}, at most {late:?}");
        self.seen.lives += 1;
    }

    /// Both models agree on whether there is such a key, at any time that it may have been.
    fn is_settled(&self, key: &Key, from: Time, to: Time) -> bool {
        self.early.stored(key, to).is_some() == self.late.stored(key, from).is_some()
    }

    /// What somebody else might do.
    fn interfere(&mut self) {
        let key: Key = format!("k{}", self.random.below(3)).into();
        let before = self.now();
        match self.random.below(4) {
            0 => self.take_away(&key),
            1 => {
                self.other.ask(&[&["SET", &*key, "another's"]]);
                let value = Some(b"another's".to_vec());
                self.early.set(&key, value.clone(), None, before);
                self.late.set(&key, value, None, before);
            }
            2 => {
                self.take_away(&key);
                self.compare_pushes();
                self.other.ask(&[&["RPUSH", &*key, "element"]]);
                self.early.set(&key, None, None, before);
                self.late.set(&key, None, None, before);
            }
            _ => {
                self.other.ask(&[&["FLUSHALL"]]);
                self.asked.clear();
                self.early.flush();
                self.late.flush();
                for connection in &mut self.connections {
                    connection.ask(&[&["PING"]]);
                    let told = connection.pushed.contains(&None);
                    assert!(told, "all are told that everything has changed");
                    connection.pushed.clear();
                }
            }
        }
    }

    /// Nobody has the key, nobody waits for it, and who was told of what is forgotten.
    fn start_anew(&mut self, key: &Key) {
        self.other.ask(&[&["SET", &**key, "anything"]]);
        self.take_away(key);
        // What was not compared may have moved its counter on.
        self.take_away(&format!("fence:{key}").into());
        for connection in &mut self.connections {
            connection.ask(&[&["PING"]]);
            connection.pushed.clear();
        }
        self.asked.retain(|(_, of)| **of != **key);
        self.pushes_of_models();
    }

    fn take_away(&mut self, key: &Key) {
        let before = self.now();
        let deleted = self.other.ask(&[&["DEL", &**key]]) == [Reply::Int(1)];
        let look = Command::Inspect { keys: key.clone().into(), intents: None };
        if deleted || self.late.stored(key, before).is_some() {
            self.forget(key, before);
        } else {
            self.early.execute(NOBODY, &look, before);
            self.late.execute(NOBODY, &look, before);
        }
    }

    /// Whether or not its time was over: the key is gone, and who watched is told.
    fn forget(&mut self, key: &Key, now: Time) {
        for model in [&mut self.early, &mut self.late] {
            model.set(key, None, None, now);
            model.delete(key, now);
        }
    }

    /// The server's own time.
    fn now(&mut self) -> Time {
        time(&self.other.ask(&[&["TIME"]])[0])
    }
}

/// What was to be written, and the time of day that the node has added.
fn since(text: &str) -> (&str, u64) {
    let (text, since) = text.split_once(" since=").expect("a node adds it");
    (text, since.parse().expect("a number"))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
