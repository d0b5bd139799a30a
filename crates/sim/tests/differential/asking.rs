//! Asks a server as the library would.

use super::*;

const EXTEND: &str = include_str!("../../../quorlock/src/node/scripts/extend.lua");
const RELEASE: &str = include_str!("../../../quorlock/src/node/scripts/release.lua");
const ACQUIRE_FENCED: &str = concat!(
    include_str!("../../../quorlock/src/node/scripts/holding.lua"),
    include_str!("../../../quorlock/src/node/scripts/acquire_fenced.lua")
);
const RAISE: &str = include_str!("../../../quorlock/src/node/scripts/raise.lua");
const HEAL_FENCED: &str = include_str!("../../../quorlock/src/node/scripts/heal_fenced.lua");
const ADOPT: &str = include_str!("../../../quorlock/src/node/scripts/adopt.lua");
const MARK: &str = include_str!("../../../quorlock/src/node/scripts/mark.lua");

impl Pair {
    /// Says a command in the server's language, between two looks at its clock, all at once.
    pub(super) fn ask(&mut self, by: usize, command: &Command) -> (Answer, Time, Time) {
        let bytes = |text: &str| text.as_bytes().to_vec();
        let script = |text: &str, key: &Key, value: &Value| {
            let value = value.as_bytes().to_vec();
            vec![bytes("EVAL"), bytes(text), bytes("1"), bytes(key), value]
        };
        let native = self.native;
        let key = key_of(command);
        let said: Vec<Vec<Vec<u8>>> = match command {
            Command::Acquire { value, ttl_ms, .. } => vec![vec![
                bytes("SET"),
                bytes(key),
                value.as_bytes().to_vec(),
                bytes("NX"),
                bytes("PX"),
                bytes(&ttl_ms.to_string()),
            ]],
            Command::AcquireFenced { value, ttl_ms, counter, proposal, .. } => {
                let keys = [key, &counter.keys[0], &counter.marker];
                let rest = [*ttl_ms, counter.ttl_ms, *proposal];
                vec![fenced(ACQUIRE_FENCED, &keys, value, &rest)]
            }
            Command::Raise { value, counter, to, .. } => {
                vec![fenced(RAISE, &[key, &counter.keys[0]], value, &[*to, counter.ttl_ms])]
            }
            Command::HealFenced { value, ttl_ms, counter, to, .. } => {
                let rest = [*ttl_ms, *to, counter.ttl_ms];
                vec![fenced(HEAL_FENCED, &[key, &counter.keys[0]], value, &rest)]
            }
            Command::ExtendFenced { value, ttl_ms, counter, .. } => {
                let rest = [*ttl_ms, counter.ttl_ms];
                vec![fenced(EXTEND, &[key, &counter.keys[0]], value, &rest)]
            }
            Command::Adopt { key, text, replaces, marker, seen } => {
                let [old, seen] = [replaces, seen].map(|text| text.as_deref().unwrap_or_default());
                vec![["EVAL", ADOPT, "2", key, marker, text, old, seen].map(bytes).to_vec()]
            }
            Command::Mark { key, text, replaces, adoption } => {
                let how = if replaces.is_some() { "instead" } else { "new" };
                let old = replaces.as_deref().unwrap_or_default();
                vec![match adoption {
                    None => ["EVAL", MARK, "1", key, text, how, old].map(bytes).to_vec(),
                    Some(it) => {
                        let age = it.age_ms.to_string();
                        let rest = [text, how, old, &it.text, &age];
                        let words = [["EVAL", MARK, "2", key, &it.key].as_slice(), &rest].concat();
                        words.into_iter().map(bytes).collect()
                    }
                }]
            }
            Command::Extend { value, ttl_ms, .. } => {
                let mut call = script(EXTEND, key, value);
                call.push(bytes(&ttl_ms.to_string()));
                vec![call]
            }
            Command::Release { value, tell: false, .. } if native => {
                vec![vec![bytes("DELIFEQ"), bytes(key), value.as_bytes().to_vec()]]
            }
            Command::Release { value, .. } => vec![script(RELEASE, key, value)],
            Command::Watch { .. } => vec![
                vec![bytes("CLIENT"), bytes("CACHING"), bytes("YES")],
                vec![bytes("GET"), bytes(key)],
                vec![bytes("PTTL"), bytes(key)],
            ],
            Command::Inspect { .. } => {
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

/// The key that a command is about.
fn key_of(command: &Command) -> &Key {
    match command {
        Command::Acquire { keys, .. }
        | Command::AcquireFenced { keys, .. }
        | Command::Raise { keys, .. }
        | Command::HealFenced { keys, .. }
        | Command::Extend { keys, .. }
        | Command::ExtendFenced { keys, .. }
        | Command::Release { keys, .. }
        | Command::Watch { keys, .. }
        | Command::Inspect { keys, .. } => &keys[0],
        Command::Adopt { key, .. } | Command::Mark { key, .. } => key,
        other => panic!("there is no other command: {other:?}"),
    }
}

/// A call of a script of the fences.
fn fenced(text: &str, keys: &[&Key], value: &Value, rest: &[u64]) -> Vec<Vec<u8>> {
    let mut call = vec![b"EVAL".to_vec(), text.into(), keys.len().to_string().into_bytes()];
    call.extend(keys.iter().map(|key| key.as_bytes().to_vec()));
    call.push(value.as_bytes().to_vec());
    call.extend(rest.iter().map(|number| number.to_string().into_bytes()));
    call
}
