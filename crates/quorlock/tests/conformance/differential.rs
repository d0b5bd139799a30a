//! A differential test: each server and the store of `MemoryNode` execute the same random commands, and must give the
//! same answers, keys and pushes.

mod compare;
mod draw;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorlock_core::keys::intents;
use quorlock_core::store::{ConnectionId, Content, Kind, Store, Stored};
use quorlock_core::{Answer, Command, Key, Keys, ReleaseForm};
use quorlock_servers::resp::RespConnection;
use quorlock_servers::{Reply, Server, ServerBinary, ServerOptions};

use crate::common::all_servers;
use crate::node;
use crate::past::Past;
use crate::subject::Subject;

/// The number of steps for each server and seed.
const STEPS: usize = 5_500;

/// The clocks of server and test may differ by this much, in milliseconds.
const NEAR_MS: i64 = 6;

/// The connection of the reads that the test itself makes in the stores. It watches nothing, so it gets no push.
const NOBODY: ConnectionId = ConnectionId(u64::MAX);

#[tokio::test]
async fn every_server_behaves_like_the_store() {
    #[cfg(quorlock_mutants)]
    if let Ok(mutant) = std::env::var("QUORLOCK_MUTANT") {
        quorlock_core::mutants::switch_on(&mutant);
    }
    let fresh = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let fresh = fresh.unwrap_or_else(|| fastrand::u64(..));
    for binary in &all_servers() {
        for (seed, is_pinned) in [(200, true), (fresh, false)] {
            println!("{binary}, seed {seed} (SEED={seed} repeats it)");
            random_commands(binary, seed, is_pinned).await;
        }
        as_large_as_it_gets(binary).await;
    }
}

async fn random_commands(binary: &ServerBinary, seed: u64, is_pinned: bool) {
    let locks = || (0..3).map(|key| Key::from(format!("k{key}")));
    let fences = locks().map(|key| format!("fence:{key}").into());
    let intents = locks().map(|key| intents(&key.into(), 0)[0].clone());
    let others = ["node", "adopt", "nonce:k0", "nonce:k1"].map(Key::from);
    let mut pair = Pair::new(binary, seed, locks().chain(fences).chain(intents).chain(others));
    for _ in 0..STEPS {
        pair.step().await;
    }
    let Pair { seen, pushes, skipped, .. } = &pair;
    let compared: usize = seen.values().sum();
    println!("{compared} answers compared, {skipped} steps skipped, {pushes} pushes: {seen:?}");
    assert!(compared > STEPS / 2 && *skipped < STEPS / 4 && *pushes > 100);
    // A pinned seed must produce each of these answers.
    for (command, answer) in draw::MATTERS {
        let count = seen.get(&(command.to_string(), answer.to_string()));
        assert!(!is_pinned || count.is_some(), "{command} is never answered {answer}");
    }
}

/// Compares the answers about the largest set of keys, and about a key with the maximum number of readers.
async fn as_large_as_it_gets(binary: &ServerBinary) {
    let keys = Keys::new((0..Keys::MAX).map(|key| Key::from(format!("k{key:02}")))).unwrap();
    let words = intents(&keys, 0);
    let mut pair = Pair::new(binary, 0, keys.iter().chain(&*words).cloned());
    for commands in draw::large(&keys, &words) {
        pair.compare(0, commands).await;
    }
    assert_eq!(pair.skipped, 0);
}

struct Pair {
    random: fastrand::Rng,
    keys: Vec<Key>,
    subjects: [Subject; 2],
    /// A connection that acts as other clients.
    side: RespConnection,
    /// The first store executes a command at the earliest time at which the server may have done so, the second at the
    /// latest.
    stores: [Store; 2],
    /// Pushes that arrived and were not compared yet: the receiver, as an index into `subjects`, and the key.
    received: BTreeSet<(usize, Key)>,
    /// The commands that were sent before: an index into `subjects`, the command, and whether it had a single key. The
    /// server may lack the script of each command that is not in this set.
    known: BTreeSet<(usize, String, bool)>,
    /// How often each pair of command and answer was compared, so that the test notices a pair that never occurs.
    seen: BTreeMap<(String, String), usize>,
    pushes: usize,
    skipped: usize,
}

impl Pair {
    fn new(binary: &ServerBinary, seed: u64, keys: impl Iterator<Item = Key>) -> Self {
        let server = Server::start(binary, ServerOptions::default()).unwrap();
        let (url, mut side) = (server.url(), server.connect().unwrap());
        side.wait(Duration::from_secs(60)).unwrap();
        let past = Past::new(server).leaving_keys();
        let known = side.command(&["COMMAND", "INFO", "DELIFEQ", "DELEX"]).unwrap();
        let Reply::Array(known) = known else { panic!("{known:?}") };
        let deletes_natively = known.iter().any(|info| matches!(info, Reply::Array(_)));
        let store =
            |expires_at_once| Store::new(Kind { expires_at_once, deletes_natively, pushes: true });
        Self {
            random: fastrand::Rng::with_seed(seed),
            keys: keys.collect(),
            subjects: [(); 2].map(|()| Subject::new(&node(&url), past.clone())),
            side,
            stores: [store(true), store(false)],
            received: BTreeSet::new(),
            known: BTreeSet::new(),
            seen: BTreeMap::new(),
            pushes: 0,
            skipped: 0,
        }
    }

    async fn step(&mut self) {
        let by = self.random.usize(0..2);
        let commands = match self.random.u8(0..20) {
            0 => {
                tokio::time::sleep(Duration::from_millis(self.random.u64(0..30))).await;
                Vec::new()
            }
            1 | 2 => {
                let (key, content, ttl_ms) = self.draw_foreign();
                self.put(&key, content, ttl_ms);
                Vec::new()
            }
            3 if self.random.u8(0..10) == 0 => {
                self.flush().await;
                Vec::new()
            }
            3 => {
                self.keys.clone().iter().for_each(|key| self.put(key, None, None));
                Vec::new()
            }
            _ => {
                let mut commands = Vec::new();
                while commands.len() < 3 && (commands.is_empty() || self.random.bool()) {
                    commands.push(self.draw());
                    if self.may_be_asked_again(by, &commands[commands.len() - 1]) {
                        break;
                    }
                }
                commands
            }
        };
        self.compare(by, commands).await;
    }

    /// Whether the node may send this command a second time, after the rest of its batch. This happens if the server
    /// does not know the script yet, or if the node tries a faster command first.
    fn may_be_asked_again(&mut self, by: usize, command: &Command) -> bool {
        let is_plain = if let Command::Release { form: ReleaseForm::Plain { tell }, .. } = command {
            *tell
        } else if let Command::Inspect { keys, intents } | Command::Watch { keys, intents } =
            command
        {
            keys.single().is_some() && intents.is_none()
        } else {
            false
        };
        let is_single = draw::touched(command).len() == 1;
        self.known.insert((by, compare::command_name(command), is_single)) || is_plain
    }

    /// Executes a batch on the server and in both stores, and compares.
    async fn compare(&mut self, by: usize, commands: Vec<Command>) {
        let before = self.ends();
        let from = self.now_us();
        let answers = self.subjects[by].execute(commands.clone()).await;
        let to = self.now_us();
        let found = self.look();
        self.receive().await;
        let end = self.now_us();

        let window = from / 1000 - NEAR_MS..=end / 1000 + NEAR_MS;
        let ended: BTreeSet<&Key> =
            before.iter().filter(|(_, end)| end < window.start()).map(|(key, _)| key).collect();
        let connection = ConnectionId(by as u64);
        let stored = [(0, from), (1, to)].map(|(place, now_us)| {
            let execute = |it: &Command| self.stores[place].execute(connection, it, now_us);
            commands.iter().map(execute).collect::<Vec<Answer>>()
        });
        let ends = self.ends();
        let near: BTreeSet<&Key> = before
            .iter()
            .chain(&ends)
            .filter(|(_, end)| window.contains(end))
            .map(|(key, _)| key)
            .collect();
        let touched: BTreeSet<Key> = commands.iter().flat_map(draw::touched).collect();
        let is_skipped = touched.iter().any(|key| near.contains(key));
        let slack_ms = (end - from) / 1000 + 3;
        if is_skipped {
            self.skipped += 1;
        } else {
            let [early, late] = &stored;
            for (((command, answer), early), late) in
                commands.iter().zip(&answers).zip(early).zip(late)
            {
                compare::answers(command, answer, (early, late), slack_ms)
                    .unwrap_or_else(|why| panic!("{why} in {commands:?}"));
                let names = (compare::command_name(command), compare::name(answer));
                *self.seen.entry(names).or_default() += 1;
            }
            assert_eq!(answers.len(), commands.len());
        }

        // The test has read every key on the server, which deletes expired keys there. The stores must do the same.
        for key in &self.keys {
            let _ = self.stores[0].get(NOBODY, key, to);
            let _ = self.stores[1].get(NOBODY, key, end);
        }
        let mut expected = BTreeSet::new();
        for (ConnectionId(by), key) in self.stores.iter_mut().flat_map(Store::take_pushes) {
            expected.insert((by as usize, key));
        }
        let mut uncertain = Vec::new();
        for (key, found) in self.keys.iter().zip(found) {
            if near.contains(key) || is_skipped && touched.contains(key) {
                uncertain.push(key.clone());
                continue;
            }
            let of_key = |pushes: &BTreeSet<(usize, Key)>| {
                pushes.iter().filter(|(_, of)| of == key).map(|(by, _)| *by).collect()
            };
            let (pushed, mut due): (BTreeSet<usize>, BTreeSet<usize>) =
                (of_key(&self.received), of_key(&expected));
            if ended.contains(key) && pushed.contains(&by) {
                // A connection whose own command expires a key gets no push. If the server has expired the key earlier,
                // this connection gets a push. The test allows both.
                due.insert(by);
            }
            assert_eq!(pushed, due, "pushes of {key} after {commands:?}");
            self.pushes += pushed.len();
            self.received.retain(|(_, of)| of != key);
            let stores = self.stores.each_ref().map(|store| store.stored(key, i64::MIN));
            let found = compare::keys(found, stores, slack_ms)
                .unwrap_or_else(|why| panic!("{key} after {commands:?}: {why}"));
            self.stores.iter_mut().for_each(|store| store.load(key, found.clone()));
        }
        for key in uncertain {
            self.put(&key, Some(Content::Other), None);
            self.put(&key, None, None);
            self.receive().await;
            self.received.retain(|(_, of)| *of != key);
            self.stores.iter_mut().for_each(|store| drop(store.take_pushes()));
        }
    }

    /// The expiry times of all keys and readers in the stores.
    fn ends(&self) -> Vec<(Key, i64)> {
        let of = |(key, stored): (&Key, &Stored)| {
            let members = match &stored.content {
                Content::Scored(members) => members.values().copied().collect(),
                _ => Vec::new(),
            };
            let ends = stored.expires_ms.into_iter().chain(members);
            ends.map(|end| (key.clone(), end)).collect::<Vec<_>>()
        };
        self.stores.iter().flat_map(|store| store.all(i64::MIN).flat_map(of)).collect()
    }

    fn now_us(&mut self) -> i64 {
        compare::time_us(&self.side.command(&["TIME"]).unwrap())
    }

    /// The content of all keys on the server.
    fn look(&mut self) -> Vec<Option<Stored>> {
        let keys = self.keys.iter().flat_map(|key| {
            let zrange = vec!["ZRANGE", key, "0", "-1", "WITHSCORES"];
            [vec!["TIME"], vec!["PTTL", key], vec!["GET", key], zrange]
        });
        let commands: Vec<Vec<&str>> = keys.collect();
        let commands: Vec<&[&str]> = commands.iter().map(Vec::as_slice).collect();
        self.side.send(&commands).unwrap();
        let replies: Vec<Reply> = commands.iter().map(|_| self.side.reply().unwrap()).collect();
        replies.chunks(4).map(compare::read).collect()
    }

    /// Collects all pushes. Redis sends a push before the reply to a later command, here an inspection.
    async fn receive(&mut self) {
        // An expiry may have been pushed to one connection and not yet to the other, so each connection is asked twice.
        for (place, subject) in [0, 1, 0, 1].map(|place| (place, &self.subjects[place])) {
            let barrier = Command::Inspect { keys: "barrier".into(), intents: None };
            subject.execute(vec![barrier]).await;
            // `flatten` leaves out `None`, which means that everything may have changed, as after a reconnect.
            let keys = subject.pushed().into_iter().flatten();
            self.received.extend(keys.map(|key| (place, key)));
        }
    }

    /// Sets or deletes a key as another client would.
    fn put(&mut self, key: &Key, content: Option<Content>, ttl_ms: Option<i64>) {
        let now_us = self.now_us();
        let mut call = |words: &[&[u8]]| {
            let reply = self.side.command(words).unwrap();
            assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
        };
        let name = key.as_bytes();
        call(&[b"DEL", name]);
        match &content {
            None => {}
            Some(Content::Text(text)) => call(&[b"SET", name, text]),
            Some(Content::Other) => call(&[b"RPUSH", name, b"element"]),
            Some(Content::Scored(members)) => {
                for (member, score) in members {
                    call(&[b"ZADD", name, score.to_string().as_bytes(), member]);
                }
            }
        }
        if let Some(ttl_ms) = ttl_ms {
            call(&[b"PEXPIREAT", name, (now_us / 1000 + ttl_ms).to_string().as_bytes()]);
        }
        for store in &mut self.stores {
            match &content {
                Some(content) => store.put_there(key, content.clone(), ttl_ms, now_us),
                // At the time `i64::MIN` no key has expired, so the store notifies the watchers of an expired key too.
                None => drop(store.delete(key, i64::MIN)),
            }
        }
    }

    /// Deletes all keys. Each connection receives a push that everything has changed.
    async fn flush(&mut self) {
        self.receive().await;
        self.side.command(&["FLUSHALL"]).unwrap();
        self.stores.iter_mut().for_each(Store::flush);
        self.received.clear();
        for subject in &self.subjects {
            let barrier = Command::Inspect { keys: "barrier".into(), intents: None };
            subject.execute(vec![barrier]).await;
            assert!(subject.pushed().contains(&None), "all hear that everything has changed");
        }
    }
}
