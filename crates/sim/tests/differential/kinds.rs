//! Locks of several keys, readers, downgrades and the word of writers that wait: as before, but that time passes within
//! a script. What ends within a few milliseconds of a command is not compared, and ends are the same but for so long.

use std::collections::BTreeMap;

use quorlock_core::keys::intents;
use quorlock_sim::node::{Content, Stored};

use super::*;

/// How many commands each server is given of each seed.
const STEPS: usize = 4_000;

/// What ends so soon before or after a command may or may not have ended for it, in milliseconds.
const NEAR_MS: i64 = 6;

/// What was compared.
#[derive(Debug, Default)]
pub(super) struct Told {
    compared: usize,
    skipped: usize,
    answers: BTreeMap<(String, String), usize>,
}

#[test]
fn every_server_has_readers_and_sets_of_keys_as_the_model_does() {
    const NAME: &str = "every_server_has_readers_and_sets_of_keys_as_the_model_does";
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
    // One of the day, so that not always the same is looked at; what is known to matter comes from the others.
    let fresh = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(today);
    for (place, binary) in servers.iter().enumerate() {
        for (seed, is_pinned) in [(200 + place as u64, true), (fresh, false)] {
            println!("{binary}, seed {seed} (SEED={seed} repeats it)");
            compare(binary, seed, is_pinned);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a number that no other day has, and no time")]
fn today() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(0))
}

/// In a pinned seed everything that matters must have happened.
fn compare(binary: &ServerBinary, seed: u64, is_pinned: bool) {
    let server = Server::start(binary, ServerOptions::default()).expect("it starts");
    let mut pair = Pair::new(&server, seed);
    for _ in 0..STEPS {
        pair.step_of_kinds();
    }
    let Told { compared, skipped, answers } = &pair.told;
    println!("{compared} compared, {skipped} skipped, {} pushes: {answers:?}", pair.seen.pushes);
    assert!(*compared > STEPS / 2 && pair.seen.pushes > 50);
    for (command, answer) in [
        ("Acquire", "Granted"),
        ("Heal", "Granted"),
        ("AcquireShared", "Granted"),
        ("AcquireShared", "Refused"),
        ("AcquireShared", "Failed"),
        ("HealShared", "Granted"),
        ("ExtendShared", "Extended"),
        ("ReleaseShared", "Deleted"),
        ("Downgrade", "Downgraded"),
        ("Downgrade", "Other"),
        ("AcquireFenced", "GrantedFenced"),
        ("AcquireFenced", "RefusedFenced"),
        ("Raise", "Raised"),
        ("HealFenced", "Superseded"),
    ] {
        let count = answers.get(&(command.to_owned(), answer.to_owned()));
        let is_enough = !is_pinned || count.is_some_and(|count| *count > 0);
        assert!(is_enough, "{command}: {answer} {count:?} times");
    }
}

/// The sets of keys that are locked.
fn sets() -> Vec<Keys> {
    let sets = [&["k0"][..], &["k1"], &["k0", "k1"], &["k1", "k2"], &["k0", "k1", "k2"]];
    sets.iter().filter_map(|keys| Keys::new(keys.iter().map(|key| Key::from(*key)))).collect()
}

/// The words by which a command or an answer begins.
fn name(shown: &impl std::fmt::Debug) -> String {
    let shown = format!("{shown:?}");
    shown.chars().take_while(|letter| letter.is_alphanumeric()).collect()
}

impl Pair {
    fn step_of_kinds(&mut self) {
        match self.random.below(20) {
            0 => std::thread::sleep(Duration::from_millis(self.random.below(30))),
            1 => self.interfere_with_kinds(),
            2 => self.clear(),
            _ => self.command_of_kinds(),
        }
        self.compare_pushes();
    }

    fn command_of_kinds(&mut self) {
        let by = self.random.below(2) as usize;
        let command = self.draw_of_kinds();
        self.last_by = by as u64;
        let touched = touched(&command);
        self.looked.extend(touched.iter().map(|key| (self.last_by, key.to_string())));
        if let Command::Watch { .. } = &command {
            self.asked.extend(touched.iter().map(|key| (self.last_by, key.to_string())));
        }
        let (answer, from, to) = self.ask(by, &command);
        if touched.iter().any(|key| self.is_near_end(key, from, to)) {
            self.told.skipped += 1;
            return touched.iter().for_each(|key| self.start_anew(key));
        }
        let connection = ConnectionId(by as u64);
        let early = self.early.execute(connection, &command, from);
        let late = self.late.execute(connection, &command, to);
        let took = Duration::from_nanos((to - from).unsigned_abs()) + Duration::from_millis(3);
        assert_eq!(name(&answer), name(&early), "{command:?}: {answer:?}, the model {early:?}");
        assert_eq!(name(&answer), name(&late), "{command:?}: {answer:?}, the model {late:?}");
        match (&answer, &early, &late) {
            (Answer::Seen(it), Answer::Seen(early), Answer::Seen(late))
            | (Answer::Watched(it), Answer::Watched(early), Answer::Watched(late)) => {
                is_between(&command, it, (early, late), took);
            }
            (
                Answer::RefusedFenced { fence, holding },
                Answer::RefusedFenced { fence: one, holding: early },
                Answer::RefusedFenced { fence: two, holding: late },
            ) => {
                assert_eq!((fence, fence), (one, two), "{command:?}");
                is_between(&command, holding, (early, late), took);
            }
            (
                Answer::GrantedFenced { fence },
                Answer::GrantedFenced { fence: early },
                Answer::GrantedFenced { fence: late },
            ) => {
                assert!(early <= fence && fence <= late, "{command:?}: {early} {fence} {late}");
                self.count(&command, *fence, to);
            }
            _ => assert_eq!((&answer, &answer), (&early, &late), "{command:?}"),
        }
        self.told.compared += 1;
        *self.told.answers.entry((name(&command), name(&answer))).or_default() += 1;
    }

    fn draw_of_kinds(&mut self) -> Command {
        let sets = sets();
        let keys = sets[self.random.below(sets.len() as u64) as usize].clone();
        let value = Value::new(&Token::new([self.random.below(4) as u8; Token::BYTES]), "");
        let ttl_ms = [25, 50, 10_000, 20_000][self.random.below(4) as usize];
        let words = intents(&keys, 0);
        let to = self.random.below(40);
        let counter = Counter {
            keys: keys.map(|key| format!("fence:{key}").into()),
            ttl_ms: 100_000_000,
            marker: "node".into(),
        };
        match self.random.below(27) {
            0 => Command::Acquire { keys, value, ttl_ms },
            1 | 2 => Command::Heal { keys, value, ttl_ms },
            3 => Command::Extend { keys, value, ttl_ms },
            4 => Command::Release { keys, value, tell: true },
            5..=7 => Command::AcquireShared { keys, intents: words, value, ttl_ms },
            8 | 9 => Command::HealShared { keys, value, ttl_ms },
            10 => Command::ExtendShared { keys, value, ttl_ms },
            11 | 12 => Command::ReleaseShared { keys, value },
            13 | 14 => Command::Downgrade { keys, value },
            15 => {
                let renews = self.random.below(2) == 0;
                Command::Announce { intents: words, value, ttl_ms: ttl_ms.min(50), renews }
            }
            16 => Command::Withdraw { intents: words, value },
            17 => {
                let proposal = [0, to, u64::MAX >> 12][self.random.below(3) as usize];
                Command::AcquireFenced { keys, value, ttl_ms, counter, proposal }
            }
            18 | 24..=26 => Command::Raise { keys, value, counter, to },
            19 => Command::HealFenced { keys, value, ttl_ms, counter, to },
            20 => Command::ExtendFenced { keys, value, ttl_ms, counter },
            21 => Command::Inspect { keys, intents: Some(words) },
            _ => Command::Watch { keys, intents: Some(words) },
        }
    }

    /// What somebody else might do, or a server that loses one key of several.
    fn interfere_with_kinds(&mut self) {
        let key: Key = format!("k{}", self.random.below(3)).into();
        let before = self.now();
        let long = before / 1_000_000 + 100_000;
        let foreign = |score: i64| Content::Scored([(b"a job".to_vec(), score)].into());
        let (content, ttl_ms) = match self.random.below(8) {
            0 => (Content::Text(b"another's".to_vec()), None),
            1 => (Content::Other, None),
            // A queue, say, with or without a time to live.
            2 => (foreign(7), None),
            3 => (foreign(7), Some(30_000)),
            4 => (foreign(long), Some(30_000)),
            5 => {
                let words = intents(&key.clone().into(), 0);
                return self.put_foreign(&words[0].clone(), Content::Other, None, before);
            }
            _ => return self.take_away(&key),
        };
        self.put_foreign(&key, content, ttl_ms, before);
    }

    /// All keys are gone, and all words of writers.
    fn clear(&mut self) {
        for key in (0..3).map(|key| Key::from(format!("k{key}"))) {
            self.take_away(&intents(&key.clone().into(), 0)[0]);
            self.take_away(&key);
        }
    }

    fn put_foreign(&mut self, key: &Key, content: Content, ttl_ms: Option<i64>, now: Time) {
        self.take_away(key);
        self.compare_pushes();
        match &content {
            Content::Text(text) => {
                self.other.ask(&[&[b"SET", key.as_bytes(), &text[..]]]);
            }
            Content::Scored(members) => {
                for (member, score) in members {
                    let score = score.to_string();
                    self.other.ask(&[&[b"ZADD", key.as_bytes(), score.as_bytes(), &member[..]]]);
                }
            }
            Content::Other => {
                self.other.ask(&[&["RPUSH", &**key, "element"]]);
            }
        }
        if let Some(ttl_ms) = ttl_ms {
            let at = now / 1_000_000 + ttl_ms;
            self.other.ask(&[&["PEXPIREAT", &**key, &at.to_string()]]);
        }
        for model in [&mut self.early, &mut self.late] {
            model.put_there(key, content.clone(), ttl_ms, now);
        }
    }

    /// Something at this key ends just now.
    fn is_near_end(&self, key: &Key, from: Time, to: Time) -> bool {
        let window = from / 1_000_000 - NEAR_MS..=to / 1_000_000 + NEAR_MS;
        let ends = |stored: &Stored| -> Vec<i64> {
            let members = match &stored.content {
                Content::Scored(members) => members.values().copied().collect(),
                _ => Vec::new(),
            };
            stored.expires_ms.into_iter().chain(members).collect()
        };
        [&self.early, &self.late].into_iter().any(|model| {
            let stored = model.all(0).find(|(known, _)| *known == key);
            stored.is_some_and(|(_, it)| ends(it).iter().any(|end| window.contains(end)))
        })
    }
}

/// All keys that a command may look at or change, but for counters and the marker.
fn touched(command: &Command) -> Vec<Key> {
    let (keys, more) = match command {
        Command::AcquireShared { keys, intents, .. } => (keys, Some(intents)),
        Command::Inspect { keys, intents } | Command::Watch { keys, intents } => {
            (keys, intents.as_ref())
        }
        Command::Announce { intents, .. } | Command::Withdraw { intents, .. } => (intents, None),
        Command::Acquire { keys, .. }
        | Command::Heal { keys, .. }
        | Command::Extend { keys, .. }
        | Command::Release { keys, .. }
        | Command::HealShared { keys, .. }
        | Command::ExtendShared { keys, .. }
        | Command::ReleaseShared { keys, .. }
        | Command::Downgrade { keys, .. }
        | Command::AcquireFenced { keys, .. }
        | Command::Raise { keys, .. }
        | Command::HealFenced { keys, .. }
        | Command::ExtendFenced { keys, .. } => (keys, None),
        other => panic!("there is no other command: {other:?}"),
    };
    keys.iter().chain(more.into_iter().flat_map(|more| more.iter())).cloned().collect()
}

/// The same holders, and their times to live lie between those of the two models.
fn is_between(
    command: &Command,
    said: &Holding,
    (early, late): (&Holding, &Holding),
    took: Duration,
) {
    for model in [early, late] {
        assert_eq!(without_times(said), without_times(model), "{command:?}");
    }
    let all = times(said).into_iter().zip(times(early).into_iter().zip(times(late)));
    for (said, (early, late)) in all {
        let fits = early.saturating_sub(took) <= said && said <= late + took;
        assert!(fits, "{command:?}: {said:?}, {early:?} to {late:?}");
    }
}

fn without_times(holding: &Holding) -> Vec<(String, Vec<Vec<u8>>)> {
    let one = |holding: &Holding| match holding {
        Holding::Held { value, ttl } | Holding::Announced { value, ttl } => {
            (format!("{} {}", name(holding), ttl.is_some()), vec![value.clone()])
        }
        Holding::OtherType { ttl } => (format!("OtherType {}", ttl.is_some()), Vec::new()),
        Holding::Shared { readers, count, .. } => {
            let mut values: Vec<_> = readers.iter().map(|reader| reader.value.clone()).collect();
            values.sort();
            (format!("Shared {count}"), values)
        }
        _ => (name(holding), Vec::new()),
    };
    holding.each().iter().map(one).collect()
}

fn times(holding: &Holding) -> Vec<Duration> {
    let one = |holding: &Holding| match holding {
        Holding::Held { ttl, .. } | Holding::OtherType { ttl } | Holding::Announced { ttl, .. } => {
            ttl.iter().copied().collect()
        }
        Holding::Shared { readers, ttl, .. } => {
            let mut readers: Vec<_> = readers.iter().map(|it| (&it.value, it.ttl)).collect();
            readers.sort();
            let readers = readers.into_iter().map(|(_, ttl)| ttl);
            [*ttl].into_iter().chain(readers).collect::<Vec<_>>()
        }
        _ => Vec::new(),
    };
    holding.each().iter().flat_map(one).collect()
}
