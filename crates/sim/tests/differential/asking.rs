//! Asks a server as the library would.

use super::*;

/// A script's text, by its name.
macro_rules! script {
    ($name:literal) => {
        include_str!(concat!("../../../quorlock/src/node/scripts/", $name, ".lua"))
    };
    // With what it takes to know readers.
    ($name:literal with readers) => {
        concat!(script!("holding"), script!($name))
    };
}

impl Pair {
    /// Says a command in the server's language, between two looks at its clock, all at once.
    pub(super) fn ask(&mut self, by: usize, command: &Command) -> (Answer, Time, Time) {
        let mut said = said(command, self.native);
        if matches!(command, Command::Watch { .. }) {
            said.insert(0, words(&["CLIENT", "CACHING", "YES"]));
        }
        let clock = words(&["TIME"]);
        let mut all: Vec<&[Vec<u8>]> = vec![&clock];
        all.extend(said.iter().map(Vec::as_slice));
        all.push(&clock);
        let replies = self.connections[by].ask(&all);
        let (from, to) = (time(&replies[0]), time(&replies[replies.len() - 1]));
        (understand(command, self.native, &replies[1..replies.len() - 1]), from, to)
    }
}

fn said(command: &Command, native: bool) -> Vec<Vec<Vec<u8>>> {
    let call = match command {
        Command::Acquire { keys, value, ttl_ms } | Command::Heal { keys, value, ttl_ms } => {
            let ttl = ttl_ms.to_string();
            match (keys.single(), command) {
                (Some(key), _) => {
                    let mut set = words(&["SET", key, "", "NX", "PX", &ttl]);
                    set[2] = value.as_bytes().to_vec();
                    set
                }
                (None, Command::Acquire { .. }) => {
                    eval(script!("acquire"), &[keys], value, &[&ttl])
                }
                (None, _) => eval(script!("heal"), &[keys], value, &[&ttl]),
            }
        }
        Command::Extend { keys, value, ttl_ms } => {
            eval(script!("extend"), &[keys], value, &[&ttl_ms.to_string()])
        }
        Command::Release { keys, value, tell: false } if native && keys.single().is_some() => {
            vec![b"DELIFEQ".to_vec(), keys[0].as_bytes().to_vec(), value.as_bytes().to_vec()]
        }
        Command::Release { keys, value, .. } | Command::Withdraw { intents: keys, value } => {
            eval(script!("release"), &[keys], value, &[])
        }
        Command::AcquireFenced { keys, value, ttl_ms, counter, proposal } => {
            let rest = [*ttl_ms, counter.ttl_ms, *proposal].map(|number| number.to_string());
            let marker = Keys::from(counter.marker.clone());
            let all = [keys, &counter.keys, &marker];
            let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
            eval(script!("acquire_fenced" with readers), &all, value, &rest)
        }
        Command::Raise { keys, value, counter, to } => {
            let (to, keep) = (to.to_string(), counter.ttl_ms.to_string());
            eval(script!("raise"), &[keys, &counter.keys], value, &[&to, &keep])
        }
        Command::HealFenced { keys, value, ttl_ms, counter, to } => {
            let (ttl, to, keep) = (ttl_ms.to_string(), to.to_string(), counter.ttl_ms.to_string());
            eval(script!("heal_fenced"), &[keys, &counter.keys], value, &[&ttl, &to, &keep])
        }
        Command::ExtendFenced { keys, value, ttl_ms, counter } => {
            let (ttl, keep) = (ttl_ms.to_string(), counter.ttl_ms.to_string());
            eval(script!("extend"), &[keys, &counter.keys], value, &[&ttl, &keep])
        }
        Command::AcquireShared { keys, intents, value, ttl_ms } => {
            let ttl = ttl_ms.to_string();
            let text = script!("acquire_shared" with readers);
            eval(text, &[keys, intents], value, &[&ttl, "new"])
        }
        Command::HealShared { keys, value, ttl_ms } => {
            let ttl = ttl_ms.to_string();
            eval(script!("acquire_shared" with readers), &[keys], value, &[&ttl, "again"])
        }
        Command::ExtendShared { keys, value, ttl_ms } => {
            let ttl = ttl_ms.to_string();
            eval(script!("extend_shared" with readers), &[keys], value, &[&ttl])
        }
        Command::ReleaseShared { keys, value } => {
            eval(script!("release_shared" with readers), &[keys], value, &[])
        }
        Command::Downgrade { keys, value } => {
            eval(script!("downgrade" with readers), &[keys], value, &[])
        }
        Command::Announce { intents, value, ttl_ms, renews } => {
            let renews = u8::from(*renews).to_string();
            eval(script!("announce"), &[intents], value, &[&ttl_ms.to_string(), &renews])
        }
        Command::Watch { keys, intents } | Command::Inspect { keys, intents } => {
            return look(keys, intents.as_ref());
        }
        Command::Adopt { key, text, replaces, marker, seen } => {
            let [old, seen] = [replaces, seen].map(|text| text.as_deref().unwrap_or_default());
            words(&["EVAL", script!("adopt"), "2", key, marker, text, old, seen])
        }
        Command::Mark { key, text, replaces, adoption } => {
            let how = if replaces.is_some() { "instead" } else { "new" };
            let old = replaces.as_deref().unwrap_or_default();
            let mark = script!("mark");
            match adoption {
                None => words(&["EVAL", mark, "1", key, text, how, old]),
                Some(it) => {
                    let age = it.age_ms.to_string();
                    words(&["EVAL", mark, "2", key, &it.key, text, how, old, &it.text, &age])
                }
            }
        }
        other => panic!("there is no other command: {other:?}"),
    };
    vec![call]
}

/// A single key that holds a text, or nothing, is looked at by two commands of the server's own.
fn look(keys: &Keys, intents: Option<&Keys>) -> Vec<Vec<Vec<u8>>> {
    if let (Some(key), None) = (keys.single(), intents) {
        return vec![words(&["GET", key]), words(&["PTTL", key])];
    }
    let count = keys.len().to_string();
    let all: Vec<&Keys> = [keys].into_iter().chain(intents).collect();
    let mut call = words(&["EVAL", script!("look" with readers)]);
    call.extend(named(&all));
    call.push(count.into_bytes());
    vec![call]
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// How many keys there are, and which.
fn named(all: &[&Keys]) -> Vec<Vec<u8>> {
    let keys: Vec<&Key> = all.iter().flat_map(|keys| keys.iter()).collect();
    let count = keys.len().to_string().into_bytes();
    [count].into_iter().chain(keys.into_iter().map(|key| key.as_bytes().to_vec())).collect()
}

/// A call of a script.
fn eval(text: &str, keys: &[&Keys], value: &Value, rest: &[&str]) -> Vec<Vec<u8>> {
    let mut call = words(&["EVAL", text]);
    call.extend(named(keys));
    call.push(value.as_bytes().to_vec());
    call.extend(words(rest));
    call
}
