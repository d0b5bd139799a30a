//! The model node against real servers: the same random commands, the same answers.
//!
//! A real server's clock goes on between two commands, so there are two models. One believes that
//! each command came as early as it can have come, and expires keys as early as any server; the other
//! believes the latest of both. Between the two lies what the server does. Where they differ in more
//! than a time to live, the key is just about to expire: then nothing is compared, and the key is
//! taken away.

#[path = "common/resp3.rs"]
mod resp3;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use quorlock_core::{Answer, Command, Holding, Key, Token, Value};
use quorlock_servers::{
    NotFound, REQUIRE_VARIABLE, Server, ServerBinary, ServerOptions, find_all, skip,
};
use quorlock_sim::node::{Connection as ConnectionId, Kind, ModelNode};
use quorlock_sim::time::{Clock, Time};
use resp3::{Connection, Reply};

const EXTEND: &str = include_str!("../../quorlock/src/node/scripts/extend.lua");
const RELEASE: &str = include_str!("../../quorlock/src/node/scripts/release.lua");

/// A connection that watches nothing.
const NOBODY: ConnectionId = ConnectionId(u64::MAX);

/// How many commands each server is given.
const STEPS: usize = 3_000;

#[test]
fn every_server_answers_as_the_model_does() {
    const NAME: &str = "every_server_answers_as_the_model_does";
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
    let url = server.url();
    let (_, socket) = url.split_once("://").expect("a URL");
    let mut pair = Pair::new(PathBuf::from(socket), seed);
    for _ in 0..STEPS {
        pair.step();
    }
    println!("{:?}", pair.seen);
    let Seen { compared, skipped, lives, pushes, expired } = pair.seen;
    assert!(compared > STEPS / 2 && lives > 100 && pushes > 50 && expired > 5);
    assert!(skipped < compared / 10, "what is about to expire is the exception");
}

/// What was compared.
#[derive(Debug, Default)]
struct Seen {
    compared: usize,
    skipped: usize,
    lives: usize,
    pushes: usize,
    expired: usize,
}

struct Pair {
    random: Random,
    /// Two that watch, and one who does what somebody else might.
    connections: [Connection; 2],
    other: Connection,
    early: ModelNode,
    late: ModelNode,
    seen: Seen,
    native: bool,
    /// Who has asked to be told of what, and has not been told.
    asked: BTreeSet<(u64, String)>,
    last_by: u64,
}

impl Pair {
    fn new(socket: PathBuf, seed: u64) -> Self {
        let mut other = Connection::open(&socket);
        let info = other.ask(&[&["COMMAND", "INFO", "DELIFEQ"]]).remove(0);
        let Reply::Many(known) = info else { panic!("{info:?}") };
        let native = known[0] != Reply::Nothing;
        let connections = [(); 2].map(|()| {
            let mut connection = Connection::open(&socket);
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
            native,
            asked: BTreeSet::new(),
            last_by: 0,
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
        let command = match self.random.below(8) {
            0..=2 => Command::Acquire { key: key.clone(), value, ttl_ms },
            3 => Command::Extend { key: key.clone(), value, ttl_ms },
            4 => Command::Release { key: key.clone(), value, tell },
            5 => Command::Inspect { key: key.clone() },
            _ => Command::Watch { key: key.clone() },
        };
        self.last_by = by as u64;
        if let Command::Watch { key } = &command {
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
                self.compare_holding(&command, (early, late), said, to - from);
            }
            _ => {
                assert_eq!(early, late, "{command:?}: the models agree");
                assert_eq!(answer, early, "{command:?}: as the model says");
            }
        }
        self.seen.compared += 1;
        let is_there = self.early.stored(&key, to).is_some();
        self.seen.expired += usize::from(was_there && answer == Answer::Granted && is_there);
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
        let (Some(early), Some(late), Some(said)) =
            (early.free_in(), late.free_in(), said.free_in())
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
        let look = Command::Inspect { key: key.clone() };
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

    /// Who is told of what: the same as the models say, but that a server may find out at any time
    /// that a key's time is over.
    fn compare_pushes(&mut self) {
        let mut told: BTreeSet<(u64, String)> = BTreeSet::new();
        for (place, connection) in self.connections.iter_mut().enumerate() {
            connection.ask(&[&["PING"]]);
            let keys = std::mem::take(&mut connection.pushed).into_iter().flatten();
            told.extend(keys.map(|key| (place as u64, key)));
        }
        for one in &told {
            assert!(self.asked.remove(one), "{one:?} is told without having asked");
        }
        let now = self.now();
        let mut expected = self.pushes_of_models();
        for key in 0..3 {
            let key: Key = format!("k{key}").into();
            let of_key = |set: &BTreeSet<(u64, String)>| {
                set.iter().filter(|(_, of)| **of == *key).cloned().collect::<BTreeSet<_>>()
            };
            // Who finds a key expired is not told; but the server may have found it before.
            let finder: BTreeSet<_> = [(self.last_by, key.to_string())].into();
            let fits = |told: &BTreeSet<_>, expected: &BTreeSet<_>| {
                told.is_superset(expected) && (told - expected).is_subset(&finder)
            };
            let gone = self.early.stored(&key, now).is_none();
            let same = of_key(&told) == of_key(&expected);
            if !same && (gone || !fits(&of_key(&told), &of_key(&expected))) {
                // The server has found it expired before anybody asked.
                assert!(gone, "{key} is there: told {told:?}, expected {expected:?}");
                if !of_key(&told).is_empty() {
                    self.forget(&key, now);
                }
                expected.extend(self.pushes_of_models());
                let (told, expected) = (of_key(&told), of_key(&expected));
                assert!(told.is_empty() || fits(&told, &expected), "{told:?}, {expected:?}");
            }
        }
        self.seen.pushes += told.len();
    }

    fn pushes_of_models(&mut self) -> BTreeSet<(u64, String)> {
        let both = [&mut self.early, &mut self.late];
        let pushes = both.into_iter().flat_map(ModelNode::take_pushes);
        pushes.map(|(ConnectionId(by), key)| (by, key.to_string())).collect()
    }

    /// The server's own time.
    fn now(&mut self) -> Time {
        time(&self.other.ask(&[&["TIME"]])[0])
    }

    /// Says a command in the server's language, between two looks at its clock, all at once.
    fn ask(&mut self, by: usize, command: &Command) -> (Answer, Time, Time) {
        let bytes = |text: &str| text.as_bytes().to_vec();
        let script = |text: &str, key: &Key, value: &Value| {
            let value = value.as_bytes().to_vec();
            vec![bytes("EVAL"), bytes(text), bytes("1"), bytes(key), value]
        };
        let native = self.native;
        let said: Vec<Vec<Vec<u8>>> = match command {
            Command::Acquire { key, value, ttl_ms } => vec![vec![
                bytes("SET"),
                bytes(key),
                value.as_bytes().to_vec(),
                bytes("NX"),
                bytes("PX"),
                bytes(&ttl_ms.to_string()),
            ]],
            Command::Extend { key, value, ttl_ms } => {
                let mut call = script(EXTEND, key, value);
                call.push(bytes(&ttl_ms.to_string()));
                vec![call]
            }
            Command::Release { key, value, tell: false } if native => {
                vec![vec![bytes("DELIFEQ"), bytes(key), value.as_bytes().to_vec()]]
            }
            Command::Release { key, value, .. } => vec![script(RELEASE, key, value)],
            Command::Watch { key } => vec![
                vec![bytes("CLIENT"), bytes("CACHING"), bytes("YES")],
                vec![bytes("GET"), bytes(key)],
                vec![bytes("PTTL"), bytes(key)],
            ],
            Command::Inspect { key } => {
                vec![vec![bytes("GET"), bytes(key)], vec![bytes("PTTL"), bytes(key)]]
            }
            other => panic!("there is no other command: {other:?}"),
        };
        let clock = vec![bytes("TIME")];
        let mut all: Vec<&[Vec<u8>]> = vec![&clock];
        all.extend(said.iter().map(Vec::as_slice));
        all.push(&clock);
        let replies = self.connections[by].ask(&all);
        let (from, to) = (time(&replies[0]), time(&replies[replies.len() - 1]));
        (understand(command, native, &replies[1..replies.len() - 1]), from, to)
    }
}

fn understand(command: &Command, native: bool, replies: &[Reply]) -> Answer {
    match (command, replies) {
        (Command::Acquire { .. }, [Reply::Simple(_)]) => Answer::Granted,
        (Command::Acquire { .. }, [Reply::Nothing]) => Answer::Refused,
        (Command::Extend { .. }, [Reply::Int(1)]) => Answer::Extended,
        (Command::Release { .. }, [Reply::Int(1)]) => Answer::Deleted,
        (Command::Release { tell: false, .. }, [Reply::Error(error)])
            if error.starts_with("WRONGTYPE") =>
        {
            Answer::Other
        }
        (Command::Extend { .. } | Command::Release { .. }, [Reply::Int(-1)]) => Answer::Absent,
        (Command::Release { tell: false, .. }, [Reply::Int(0)]) if native => Answer::NotOurs,
        (Command::Extend { .. } | Command::Release { .. }, [Reply::Int(0)]) => Answer::Other,
        (Command::Watch { .. }, [Reply::Simple(_), value, ttl]) => {
            Answer::Watched(holding(value, ttl))
        }
        (Command::Inspect { .. }, [value, ttl]) => Answer::Seen(holding(value, ttl)),
        other => panic!("the server says {other:?}"),
    }
}

fn holding(value: &Reply, ttl: &Reply) -> Holding {
    let ttl = match ttl {
        Reply::Int(-2) => return Holding::Free,
        Reply::Int(-1) => None,
        Reply::Int(ms) => Some(Duration::from_millis(ms.unsigned_abs())),
        other => panic!("PTTL says {other:?}"),
    };
    match value {
        Reply::Nothing => Holding::Free,
        Reply::Bulk(value) => Holding::Held { value: value.clone(), ttl },
        Reply::Error(error) if error.starts_with("WRONGTYPE") => Holding::OtherType { ttl },
        other => panic!("GET says {other:?}"),
    }
}

fn time(reply: &Reply) -> Time {
    let Reply::Many(parts) = reply else { panic!("TIME says {reply:?}") };
    let [seconds, micros] = [0, 1].map(|place| match &parts[place] {
        Reply::Bulk(digits) => std::str::from_utf8(digits).expect("digits").parse::<i64>(),
        other => panic!("TIME says {other:?}"),
    });
    seconds.expect("a number") * 1_000_000_000 + micros.expect("a number") * 1_000
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
