//! Draws random commands, and random changes by other clients.

use std::sync::Arc;

use quorlock_core::keys::intents;
use quorlock_core::marker::Adoption;
use quorlock_core::store::Content;
use quorlock_core::{
    AcquireForm, Adopted, AttachForm, Command, Counter, ExtendForm, HealForm, Key, Keys, Mode,
    ReleaseForm, TakenFrom, Token, Value,
};

use super::Pair;

/// Pairs of command and answer that every pinned seed must produce.
pub(super) const MATTERS: [(&str, &str); 58] = [
    ("Acquire", "Granted"),
    ("Acquire", "Refused"),
    ("Heal", "Granted"),
    ("Heal", "Refused"),
    ("Extend", "Extended"),
    ("Extend", "Absent"),
    ("Extend", "Other"),
    ("Release", "Deleted"),
    ("Release", "Absent"),
    ("Release", "Other"),
    ("AcquireFenced", "GrantedFenced"),
    ("AcquireFenced", "RefusedFenced"),
    ("AcquireFenced", "Failed"),
    ("Raise", "Raised"),
    ("Raise", "Absent"),
    ("Raise", "Other"),
    ("Raise", "Failed"),
    ("HealFenced", "GrantedFenced"),
    ("HealFenced", "Superseded"),
    ("HealFenced", "Refused"),
    ("ExtendFenced", "Extended"),
    ("ExtendFenced", "Absent"),
    ("ExtendFenced", "Other"),
    ("AcquireShared", "Granted"),
    ("AcquireShared", "Refused"),
    ("AcquireShared", "Failed"),
    ("HealShared", "Granted"),
    ("HealShared", "Refused"),
    ("ExtendShared", "Extended"),
    ("ExtendShared", "Absent"),
    ("ExtendShared", "Other"),
    ("ReleaseShared", "Deleted"),
    ("ReleaseShared", "Absent"),
    ("ReleaseShared", "Other"),
    ("Downgrade", "Downgraded"),
    ("Downgrade", "Absent"),
    ("Downgrade", "Other"),
    ("Attach", "Granted"),
    ("Attach", "Absent"),
    ("Attach", "Other"),
    ("AttachFenced", "GrantedFenced"),
    ("AttachFenced", "RefusedFenced"),
    ("GiveBack", "Deleted"),
    ("GiveBack", "Absent"),
    ("GiveBack", "Other"),
    ("AcquireTaken", "Granted"),
    ("AcquireTaken", "Refused"),
    ("ExtendTaken", "Extended"),
    ("ExtendTaken", "Other"),
    ("ReleaseTaken", "Deleted"),
    ("ReleaseTaken", "Other"),
    ("Announce", "Announced"),
    ("Announce", "Other"),
    ("Withdraw", "Announced"),
    ("Inspect", "Seen"),
    ("Watch", "Watched"),
    ("Adopt", "Adopting"),
    ("Mark", "Marked"),
];

fn value(number: u8) -> Value {
    Value::new(&Token::new([number + 0xa0; Token::BYTES]), "somebody")
}

impl Pair {
    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.random.usize(..of.len())].clone()
    }

    pub(super) fn draw(&mut self) -> Command {
        let sets = [&["k0"][..], &["k1"], &["k0", "k1"], &["k1", "k2"], &["k0", "k1", "k2"]];
        let keys = self.pick(&sets).iter().map(|key| Key::from(*key));
        let keys = Keys::new(keys).unwrap();
        let value = value(self.random.u8(0..3));
        let ttl_ms = self.pick(&[25, 50, 10_000, 20_000, 40_000]);
        let words = intents(&keys, 0);
        let to = self.random.u64(0..40);
        let counter = Counter {
            keys: keys.map(|key| format!("fence:{key}").into()),
            ttl_ms: 100_000_000,
            marker: "node".into(),
        };
        match self.random.u8(0..45) {
            0 | 1 => Command::Acquire { keys, value, ttl_ms, form: AcquireForm::Plain },
            2 | 3 => Command::Heal { keys, value, ttl_ms, form: HealForm::Plain },
            4 | 5 => Command::Extend { keys, value, ttl_ms, form: ExtendForm::Plain },
            6 => {
                let form = ReleaseForm::Plain { tell: self.random.bool() };
                Command::Release { keys, value, form }
            }
            7..=9 => {
                let form = AcquireForm::Shared { intents: words };
                Command::Acquire { keys, value, ttl_ms, form }
            }
            10 | 11 => Command::Heal { keys, value, ttl_ms, form: HealForm::Shared },
            12 => Command::Extend { keys, value, ttl_ms, form: ExtendForm::Shared },
            13 | 14 => Command::Release { keys, value, form: ReleaseForm::Shared },
            15 | 16 => Command::Downgrade { keys, value },
            17 => {
                let renews = self.random.bool();
                Command::Announce { intents: words, value, ttl_ms, renews }
            }
            18 => Command::Withdraw { intents: words, value },
            19 | 20 => {
                // A client proposes a fencing token. The node raises its counter to the proposal, ignores one that is
                // too small, and cuts off one that is too far ahead of the server's clock.
                let proposal = self.pick(&[0, to, u64::MAX >> 12, u64::MAX]);
                let form = AcquireForm::Fenced { counter, proposal };
                Command::Acquire { keys, value, ttl_ms, form }
            }
            21..=23 | 40 | 41 => Command::Raise { keys, value, counter, to },
            24 => Command::Heal { keys, value, ttl_ms, form: HealForm::Fenced { counter, to } },
            25 => Command::Extend { keys, value, ttl_ms, form: ExtendForm::Fenced { counter } },
            26 => {
                let intents = self.random.bool().then_some(words);
                Command::Inspect { keys, intents }
            }
            29..=31 => {
                let (mode, from) = (self.pick(&[Mode::Exclusive, Mode::Shared]), value);
                let value = self.draw_new_value(&keys);
                Command::Attach { keys, from, value, ttl_ms, form: mode.into() }
            }
            32 | 39 => {
                let (from, form) = (value, AttachForm::Fenced { counter, proposal: to });
                let value = self.draw_new_value(&keys);
                Command::Attach { keys, from, value, ttl_ms, form }
            }
            33 | 34 => {
                let mode = self.pick(&[Mode::Exclusive, Mode::Shared]);
                let to = self.draw_new_value(&keys);
                Command::GiveBack { keys, mode, value, to }
            }
            35..=38 => self.draw_taken(value, ttl_ms),
            27 => self.draw_adopt(),
            28 => self.draw_mark(),
            _ => {
                let intents = self.random.bool().then_some(words);
                Command::Watch { keys, intents }
            }
        }
    }

    /// A value that the keys do not hold, because an attempt always has a new value.
    fn draw_new_value(&mut self, keys: &Keys) -> Value {
        let stored = keys.iter().filter_map(|key| self.stores[0].stored(key, i64::MIN));
        let held: Vec<&Vec<u8>> = stored.flat_map(|stored| stored.values()).collect();
        let is_new = |value: &Value| !held.iter().any(|held| *held == value.as_bytes());
        let new: Vec<Value> = (0..4).map(value).filter(is_new).collect();
        if new.is_empty() { value(4) } else { self.pick(&new) }
    }

    /// A command for a lock with the caller's value. The nonce may be that of another attempt.
    fn draw_taken(&mut self, value: Value, ttl_ms: u64) -> Command {
        let key = self.pick(&["k0", "k1"]);
        let nonce = Value::of_caller(self.pick(&["nonce 1", "nonce 2"]).as_bytes());
        let nonce_key = format!("nonce:{key}").into();
        let by_value = self.random.bool();
        let from = Arc::new(TakenFrom { value, nonce_key, by_value });
        let (keys, value) = (key.into(), nonce);
        match self.random.u8(0..3) {
            0 => Command::Acquire { keys, value, ttl_ms, form: AcquireForm::Taken(from) },
            1 => Command::Extend { keys, value, ttl_ms, form: ExtendForm::Taken(from) },
            _ => Command::Release { keys, value, form: ReleaseForm::Taken(from) },
        }
    }

    /// Usually the current text of the key, otherwise `other`.
    fn text_of(&mut self, key: &str, other: Arc<str>) -> Arc<str> {
        let there = self.stores[0].stored(key, i64::MIN).and_then(|stored| stored.value());
        let there = there.and_then(|text| str::from_utf8(text).ok()).map(Arc::from);
        there.filter(|_| self.random.u8(0..3) > 0).unwrap_or(other)
    }

    /// The command that starts a node's wait for a new marker by storing a text. The command may claim that the
    /// client has seen a marker, truly or not, and may replace the text of another wait.
    fn draw_adopt(&mut self) -> Command {
        let text = self.pick(&["adoption 1", "adoption 2"]).into();
        let replaces = self.random.bool().then(|| self.text_of("adopt", "another".into()));
        let is_there = self.stores[0].stored("node", i64::MIN).is_some();
        let is_seen = is_there == (self.random.u8(0..4) > 0);
        let seen = is_seen.then(|| self.text_of("node", "another".into()));
        Command::Adopt { key: "adopt".into(), text, replaces, marker: "node".into(), seen }
    }

    /// The command that writes a marker with a floor, the smallest fencing token. The command may replace another
    /// marker, and may require that the node's wait has begun some time ago.
    fn draw_mark(&mut self) -> Command {
        let floor = self.pick(&[10, 20, 3_000, 1_795_201_160_638_971_u64]);
        let text = self.pick(&[format!("any text floor={floor}"), format!("floor={floor} inside")]);
        let replaces = self.random.bool().then(|| self.text_of("node", "another".into()));
        let adoption = self.random.bool().then(|| Adopted {
            key: "adopt".into(),
            text: self.text_of("adopt", "another".into()),
            age_ms: self.pick(&[0, 80_000_000]),
        });
        Command::Mark { key: "node".into(), text: text.into(), replaces, adoption }
    }

    /// A change by another client, or the loss of one key.
    pub(super) fn draw_foreign(&mut self) -> (Key, Option<Content>, Option<i64>) {
        let life = Adoption::TTL_MS as i64;
        let ttl_ms = self.pick(&[None, Some(30_000), Some(50)]);
        if self.random.u8(0..4) == 0 {
            // Counters and markers with invalid content, or near the largest value.
            let at_end = (Counter::LIMIT - 2).to_string();
            let key = self.pick(&["fence:k0", "fence:k1", "node", "adopt"]);
            let texts = ["x", "-1", "", "+7", "5", "an adoption", &at_end];
            let text = Some(Content::Text(self.pick(&texts).as_bytes().to_vec()));
            let content = self.pick(&[text.clone(), text, Some(Content::Other), None]);
            let ends = [None, Some(life / 2), Some(life + 100_000), Some(30_000)];
            return (key.into(), content, self.pick(&ends));
        }
        let key = Key::from(self.pick(&["k0", "k1", "k2"]));
        let word = intents(&key.clone().into(), 0)[0].clone();
        let key = if self.random.u8(0..5) == 0 { word } else { key };
        let value = value(self.random.u8(0..3));
        let whole = value.as_bytes().to_vec();
        let now_ms = self.now_us() / 1000;
        let scored = |members: &[(&[u8], i64)]| {
            let members = members.iter().map(|(member, score)| (member.to_vec(), *score));
            Some(Content::Scored(members.collect()))
        };
        match self.random.u8(0..12) {
            0..=2 => (key, None, None),
            3 => (key, Some(Content::Other), ttl_ms),
            // The value of a lock, and similar values that must not match it.
            4 => (key, Some(Content::Text(whole)), ttl_ms),
            5 => (key, Some(Content::Text(whole[..whole.len() - 1].to_vec())), ttl_ms),
            6 => (key, Some(Content::Text([&whole[..], b" "].concat())), ttl_ms),
            7 => (key, Some(Content::Text(whole.to_ascii_uppercase())), ttl_ms),
            // A sorted set of an application.
            8 => (key, scored(&[(b"a job", 7), (&whole, 8)]), ttl_ms),
            // Sorted sets that expire before or after their last member.
            9 => {
                let off = self.pick(&[-1_000, 1_000]);
                let end = now_ms + 30_000 + off;
                (key, scored(&[(b"other", now_ms + 9_000), (&whole, end)]), Some(30_000))
            }
            // Readers. One of them may have expired.
            _ => {
                let other = self.pick(&[-100, 9_000, 30_000]);
                let ours = self.pick(&[-200, 20_000, 30_000]);
                let members = [
                    (&b"other"[..], now_ms + other),
                    (&whole, now_ms + ours),
                    (b"x", now_ms + 30_000),
                ];
                (key, scored(&members), Some(30_000))
            }
        }
    }
}

/// All keys that a command may read or change.
pub(super) fn touched(command: &Command) -> Vec<Key> {
    let all = |parts: &[&Keys]| parts.iter().flat_map(|keys| keys.iter().cloned()).collect();
    match command {
        Command::Acquire { keys, form: AcquireForm::Shared { intents }, .. } => {
            all(&[keys, intents])
        }
        Command::Inspect { keys, intents } | Command::Watch { keys, intents } => {
            all(&[keys, intents.as_ref().unwrap_or(keys)])
        }
        Command::Announce { intents, .. } | Command::Withdraw { intents, .. } => all(&[intents]),
        Command::Acquire { keys, form: AcquireForm::Fenced { counter, .. }, .. }
        | Command::Heal { keys, form: HealForm::Fenced { counter, .. }, .. }
        | Command::Extend { keys, form: ExtendForm::Fenced { counter }, .. }
        | Command::Attach { keys, form: AttachForm::Fenced { counter, .. }, .. }
        | Command::Raise { keys, counter, .. } => {
            all(&[keys, &counter.keys, &counter.marker.clone().into()])
        }
        Command::Acquire { keys, .. }
        | Command::Heal { keys, .. }
        | Command::Extend { keys, .. }
        | Command::Release { keys, .. }
        | Command::Attach { keys, .. }
        | Command::GiveBack { keys, .. }
        | Command::Downgrade { keys, .. } => {
            let nonce_key = command.taken().map(|from| from.nonce_key.clone());
            keys.iter().cloned().chain(nonce_key).collect()
        }
        Command::Identify | Command::Adopt { .. } | Command::Mark { .. } => {
            vec!["node".into(), "adopt".into()]
        }
    }
}

/// Batches with the maximum number of keys, and with the maximum number of readers.
pub(super) fn large(keys: &Keys, words: &Keys) -> Vec<Vec<Command>> {
    let (value, ttl_ms) = (value(0), 60_000);
    let look = || Command::Inspect { keys: keys.clone(), intents: Some(words.clone()) };
    let one = Keys::from(keys[0].clone());
    let reader = |number: u32| {
        let bytes: Vec<u8> = number.to_be_bytes().into_iter().cycle().take(Token::BYTES).collect();
        Value::new(&Token::new(bytes.try_into().unwrap()), "a reader")
    };
    let shared = |number: u32| {
        let form = AcquireForm::Shared { intents: one.map(|key| format!("intent:{key}").into()) };
        Command::Acquire { keys: one.clone(), value: reader(number), ttl_ms, form }
    };
    let heal = |number: u32| {
        let (keys, value) = (one.clone(), reader(number));
        Command::Heal { keys, value, ttl_ms: 2 * ttl_ms, form: HealForm::Shared }
    };
    let leave = |number: u32| {
        let (keys, value) = (one.clone(), reader(number));
        Command::Release { keys, value, form: ReleaseForm::Shared }
    };
    let both = || (keys.clone(), value.clone());
    let acquire = {
        let (keys, value) = both();
        Command::Acquire { keys, value, ttl_ms, form: AcquireForm::Plain }
    };
    let extend = {
        let (keys, value) = both();
        Command::Extend { keys, value, ttl_ms: 2 * ttl_ms, form: ExtendForm::Plain }
    };
    let (intents, renews) = (words.clone(), true);
    // Each command is a batch of its own, because a script that the server does not know is repeated after the rest of
    // its batch.
    let singles = [
        acquire,
        extend,
        Command::Downgrade { keys: keys.clone(), value: value.clone() },
        look(),
        Command::Announce { intents, value: value.clone(), ttl_ms, renews },
        look(),
        Command::Release { keys: keys.clone(), value: value.clone(), form: ReleaseForm::Shared },
        Command::Withdraw { intents: words.clone(), value: value.clone() },
        shared(0),
        leave(0),
    ];
    let full = vec![shared(1024), heal(1024), heal(0), look(), leave(1), shared(1024), shared(1)];
    singles.into_iter().map(|it| vec![it]).chain([(0..1024).map(shared).collect(), full]).collect()
}
