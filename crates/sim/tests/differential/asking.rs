//! Asks a server as the library would.

use super::*;

const EXTEND: &str = include_str!("../../../quorlock/src/node/scripts/extend.lua");
const RELEASE: &str = include_str!("../../../quorlock/src/node/scripts/release.lua");
const ACQUIRE_FENCED: &str = include_str!("../../../quorlock/src/node/scripts/acquire_fenced.lua");
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
        let said: Vec<Vec<Vec<u8>>> = match command {
            Command::Acquire { key, value, ttl_ms } => vec![vec![
                bytes("SET"),
                bytes(key),
                value.as_bytes().to_vec(),
                bytes("NX"),
                bytes("PX"),
                bytes(&ttl_ms.to_string()),
            ]],
            Command::AcquireFenced { key, value, ttl_ms, counter, proposal } => {
                let keys = [key, &counter.key, &counter.marker];
                let rest = [*ttl_ms, counter.ttl_ms, *proposal];
                vec![fenced(ACQUIRE_FENCED, &keys, value, &rest)]
            }
            Command::Raise { key, value, counter, to } => {
                vec![fenced(RAISE, &[key, &counter.key], value, &[*to, counter.ttl_ms])]
            }
            Command::HealFenced { key, value, ttl_ms, counter, to } => {
                let rest = [*ttl_ms, *to, counter.ttl_ms];
                vec![fenced(HEAL_FENCED, &[key, &counter.key], value, &rest)]
            }
            Command::ExtendFenced { key, value, ttl_ms, counter } => {
                let rest = [*ttl_ms, counter.ttl_ms];
                vec![fenced(EXTEND, &[key, &counter.key], value, &rest)]
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

/// A call of a script of the fences.
fn fenced(text: &str, keys: &[&Key], value: &Value, rest: &[u64]) -> Vec<Vec<u8>> {
    let mut call = vec![b"EVAL".to_vec(), text.into(), keys.len().to_string().into_bytes()];
    call.extend(keys.iter().map(|key| key.as_bytes().to_vec()));
    call.push(value.as_bytes().to_vec());
    call.extend(rest.iter().map(|number| number.to_string().into_bytes()));
    call
}
