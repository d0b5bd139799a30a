//! Decodes the states of keys, as a script or `GET` and `PTTL` report them.

use std::time::Duration;

use quorlock_core::{Answer, Form, Holding, Keys, Reader};

use super::errors::{code, rejected};
use super::replies::{no_script, out_of_protocol, unexpected};
use super::{Encoding, is_seen_by_script};
use crate::node::redis::resp::Reply;

/// Reads the replies to a command that inspects keys.
pub(super) fn look(
    keys: &Keys,
    intents: Option<&Keys>,
    way: Encoding,
    mut next: impl FnMut() -> Reply,
) -> Result<Answer, Form> {
    if !is_seen_by_script(keys, intents, way) {
        let (value, ttl) = (next(), next());
        return holding(value, ttl);
    }
    match next() {
        Reply::List(states) => {
            Ok(holdings(states.into_iter(), keys).map_or_else(out_of_protocol, Answer::Seen))
        }
        other => no_script(other, way, rejected),
    }
}

/// Combines the replies to `GET` and `PTTL`. The key may have expired between these commands. If the key is no text,
/// the script must find out whether readers hold it.
fn holding(value: Reply, ttl: Reply) -> Result<Answer, Form> {
    let Reply::Int(ttl) = ttl else { return Ok(unexpected(&ttl)) };
    let (is_gone, ttl) = (ttl == -2, remaining(ttl));
    Ok(match value {
        Reply::Nil => Answer::Seen(Holding::Free),
        Reply::Bytes(_) | Reply::Error(_) if is_gone => Answer::Seen(Holding::Free),
        Reply::Bytes(value) => Answer::Seen(Holding::Held { value: shortened(value), ttl }),
        Reply::Error(error) if code(&error) == "WRONGTYPE" => return Err(Form::Script),
        other => unexpected(&other),
    })
}

/// Reads a script's list of the keys' states; `None` if it does not fit the keys.
pub(super) fn holdings(
    states: impl ExactSizeIterator<Item = Reply>,
    keys: &Keys,
) -> Option<Holding> {
    if states.len() != keys.len() {
        return None;
    }
    Some(Holding::of_all(states.map(holding_of_one).collect::<Option<_>>()?))
}

fn holding_of_one(state: Reply) -> Option<Holding> {
    let parts = match state {
        Reply::Int(-2) => return Some(Holding::Free),
        Reply::List(parts) => parts,
        _ => return None,
    };
    let mut parts = parts.into_iter();
    let (Reply::Bytes(what), Reply::Int(ttl)) = (parts.next()?, parts.next()?) else { return None };
    let ttl = remaining(ttl);
    Some(match (&*what, parts.next(), parts.len()) {
        (b"held", Some(Reply::Bytes(value)), 0) => Holding::Held { value: shortened(value), ttl },
        (b"announced", Some(Reply::Bytes(value)), 0) => {
            Holding::Announced { value: shortened(value), ttl }
        }
        (b"other", None, 0) => Holding::OtherType { ttl },
        (b"shared", Some(Reply::Int(count)), _) => {
            let mut readers = Vec::new();
            while let Some(value) = parts.next() {
                let (Reply::Bytes(value), Reply::Int(ttl)) = (value, parts.next()?) else {
                    return None;
                };
                let ttl = remaining(ttl).unwrap_or_default();
                readers.push(Reader { value: shortened(value), ttl });
            }
            readers.truncate(Holding::READERS_MAX);
            let count = usize::try_from(count).ok()?;
            Holding::Shared { readers, count, ttl: ttl.unwrap_or_default() }
        }
        _ => return None,
    })
}

/// Cuts a stored value to the length that an answer keeps.
fn shortened(mut value: Vec<u8>) -> Vec<u8> {
    value.truncate(Holding::VALUE_BYTES_MAX);
    value.shrink_to_fit();
    value
}

/// The remaining time in a `PTTL` reply; `None` if the key does not expire.
fn remaining(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use quorlock_core::{Command, Key};

    use super::super::{decode, is_out_of_protocol};
    use super::*;

    fn keys(names: &[&str]) -> Keys {
        Keys::new(names.iter().map(|name| Key::from(*name))).unwrap()
    }

    fn text(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    fn seen(keys: &Keys, states: Vec<Reply>) -> Result<Answer, Form> {
        let command = Command::Inspect { keys: keys.clone(), intents: None };
        let way = Encoding { form: Form::Script, ..Encoding::default() };
        decode(&command, way, &mut [Reply::List(states)].into_iter())
    }

    #[test]
    fn the_states_of_keys_in_a_scripts_list_are_read() {
        let (long, ttl) = ("x".repeat(600), Some(Duration::from_millis(5)));
        let shared = [text("shared"), Reply::Int(5), Reply::Int(70)].into_iter();
        let shared = shared.chain([text(&long), Reply::Int(5), text("v"), Reply::Int(3)]);
        let states = vec![
            Reply::Int(-2),
            Reply::List(vec![text("held"), Reply::Int(-1), text(&long)]),
            Reply::List(vec![text("other"), Reply::Int(5)]),
            Reply::List(vec![text("announced"), Reply::Int(5), text("")]),
            Reply::List(shared.collect()),
        ];
        let cut = long.as_bytes()[..Holding::VALUE_BYTES_MAX].to_vec();
        let reader = |value: &[u8], ttl| Reader { value: value.to_vec(), ttl };
        let readers =
            vec![reader(&cut, Duration::from_millis(5)), reader(b"v", Duration::from_millis(3))];
        let expected = vec![
            Holding::Free,
            Holding::Held { value: cut, ttl: None },
            Holding::OtherType { ttl },
            Holding::Announced { value: Vec::new(), ttl },
            Holding::Shared { readers, count: 70, ttl: Duration::from_millis(5) },
        ];
        for (place, holding) in expected.iter().enumerate() {
            assert_eq!(
                seen(&keys(&["k"]), vec![states[place].clone()]),
                Ok(Answer::Seen(holding.clone()))
            );
        }
        let all = keys(&["a", "b", "c", "d", "e"]);
        assert_eq!(seen(&all, states.clone()), Ok(Answer::Seen(Holding::Several(expected))));
        let free = vec![Reply::Int(-2); 5];
        assert_eq!(seen(&all, free), Ok(Answer::Seen(Holding::Free)));
        assert!(is_out_of_protocol(&seen(&all, states[1..].to_vec()).unwrap()), "one is missing");
    }

    #[test]
    fn a_state_that_no_script_returns_is_out_of_protocol() {
        let shared = |rest: &[Reply]| {
            let start = [text("shared"), Reply::Int(5)].into_iter();
            Reply::List(start.chain(rest.iter().cloned()).collect())
        };
        for state in [
            Reply::Int(-1),
            Reply::Nil,
            text("held"),
            Reply::List(Vec::new()),
            Reply::List(vec![text("held"), Reply::Int(1)]),
            Reply::List(vec![text("held"), Reply::Int(1), Reply::Int(1)]),
            Reply::List(vec![text("held"), Reply::Int(1), text("v"), text("v")]),
            Reply::List(vec![text("other"), text("v")]),
            Reply::List(vec![text("other"), Reply::Int(1), text("v")]),
            Reply::List(vec![text("free"), Reply::Int(1)]),
            shared(&[]),
            shared(&[Reply::Int(-1)]),
            shared(&[Reply::Int(1), text("v")]),
            shared(&[Reply::Int(1), Reply::Int(1), text("v")]),
        ] {
            let answer = seen(&keys(&["k"]), vec![state.clone()]).unwrap();
            assert!(is_out_of_protocol(&answer), "{state:?}");
        }
    }

    #[test]
    fn no_more_readers_are_kept_than_are_shown() {
        let mut states = vec![text("shared"), Reply::Int(5), Reply::Int(1000)];
        (0..1000).for_each(|_| states.extend([text("v"), Reply::Int(1)]));
        let seen = seen(&keys(&["k"]), vec![Reply::List(states)]);
        let Ok(Answer::Seen(Holding::Shared { readers, count, .. })) = seen else {
            panic!("{seen:?}")
        };
        assert_eq!((readers.len(), count), (Holding::READERS_MAX, 1000));
    }

    #[test]
    fn a_key_that_is_no_text_is_looked_at_by_the_script() {
        let command = Command::Inspect { keys: keys(&["k"]), intents: None };
        let wrong = Reply::Error("WRONGTYPE Operation".to_owned());
        let replies = || [wrong.clone(), Reply::Int(5)].into_iter();
        assert_eq!(decode(&command, Encoding::default(), &mut replies()), Err(Form::Script));
        let way = Encoding { form: Form::Script, ..Encoding::default() };
        let free =
            |value| decode(&command, Encoding::default(), &mut [value, Reply::Int(-2)].into_iter());
        assert_eq!(free(wrong), Ok(Answer::Seen(Holding::Free)), "it has expired meanwhile");
        assert!(is_out_of_protocol(&free(Reply::Int(1)).unwrap()), "no reply to GET");
        let unknown = Reply::Error("NOSCRIPT No matching script.".to_owned());
        assert_eq!(decode(&command, way, &mut [unknown].into_iter()), Err(Form::Text));
    }
}
