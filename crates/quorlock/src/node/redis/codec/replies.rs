//! Decodes the replies to each command.

use std::time::Duration;

use quorlock_core::{Answer, Command, Counter, Failure, FailureKind, Form, Holding, Keys, Reader};

use super::errors::{code, explanation, not_set, rejected};
use super::{Encoding, is_seen_by_script};
use crate::node::redis::resp::Reply;

/// Reads a short and frequent reply at the beginning of the input without building a [`Reply`]. Returns the answer,
/// which is that of [`decode`], and the length of the reply. `None` if [`decode`] must read the reply.
#[inline]
pub(in crate::node::redis) fn decode_in_place(
    command: &Command,
    input: &[u8],
) -> Option<(Answer, usize)> {
    let answer = match (command, input) {
        (Command::Acquire { keys, .. }, [b'+', b'O', b'K', b'\r', b'\n', ..])
            if keys.single().is_some() =>
        {
            return Some((Answer::Granted, 5));
        }
        (Command::Extend { .. }, [b':', b'1', b'\r', b'\n', ..]) => Answer::Extended,
        (Command::Release { .. }, [b':', b'1', b'\r', b'\n', ..]) => Answer::Deleted,
        _ => return None,
    };
    Some((answer, 4))
}

/// Decodes the replies to one command. The error is the form in which the command must be sent again.
pub(in crate::node::redis) fn decode(
    command: &Command,
    way: Encoding,
    replies: &mut impl Iterator<Item = Reply>,
) -> Result<Answer, Form> {
    if let Some(failure) = way.refusal(command) {
        return Ok(Answer::Failed(failure));
    }
    let mut next = || replies.next().unwrap_or(Reply::Nil);
    Ok(match command {
        Command::Acquire { keys, .. } | Command::Heal { keys, .. } if keys.single().is_some() => {
            match next() {
                Reply::Okay => Answer::Granted,
                Reply::Nil => Answer::Refused,
                Reply::Error(error) => Answer::Failed(not_set(&error)),
                _ => out_of_protocol(),
            }
        }
        Command::Acquire { .. }
        | Command::AcquireShared { .. }
        | Command::Heal { .. }
        | Command::HealShared { .. }
        | Command::Take { .. } => {
            return granted_or_refused(next(), way);
        }
        Command::Attach { .. } => match next() {
            Reply::Int(1) => Answer::Granted,
            other => return absent_or_other(other, way, not_set),
        },
        Command::Extend { .. }
        | Command::ExtendFenced { .. }
        | Command::ExtendShared { .. }
        | Command::ExtendTaken { .. } => match next() {
            Reply::Int(1) => Answer::Extended,
            other => return absent_or_other(other, way, rejected),
        },
        Command::Downgrade { .. } => match next() {
            Reply::Int(1) => Answer::Downgraded,
            other => return absent_or_other(other, way, rejected),
        },
        Command::AcquireFenced { keys, .. } | Command::AttachFenced { keys, .. } => match next() {
            Reply::Int(fence) => fenced(fence, |fence| Answer::GrantedFenced { fence }),
            Reply::List(told) => refused_fenced(told, keys),
            other => return no_script(other, way, not_set),
        },
        Command::HealFenced { to, .. } => match next() {
            Reply::Int(1) => Answer::GrantedFenced { fence: *to },
            Reply::Int(0) => Answer::Refused,
            Reply::List(counter) => counted(counter, |fence| Answer::Superseded { fence }),
            other => return no_script(other, way, not_set),
        },
        Command::Raise { .. } => match next() {
            Reply::List(counter) => counted(counter, |fence| Answer::Raised { fence }),
            other => return absent_or_other(other, way, rejected),
        },
        Command::Release { keys, tell, .. } if way.own_delete(keys).is_some() => match next() {
            Reply::Int(1) => Answer::Deleted,
            // The key is absent, or another client has it. If the answer must `tell` which, the script finds out. The
            // script deletes nothing, because the key is not ours.
            Reply::Int(0) if *tell => return Err(Form::Script),
            Reply::Int(0) => Answer::NotOurs,
            Reply::Error(error) if is_other_type(&error) => Answer::Other,
            other => return absent_or_other(other, way, rejected),
        },
        Command::Release { .. }
        | Command::ReleaseShared { .. }
        | Command::GiveBack { .. }
        | Command::ReleaseTaken { .. } => match next() {
            Reply::Int(1) => Answer::Deleted,
            other => return absent_or_other(other, way, rejected),
        },
        Command::Announce { .. } => match next() {
            Reply::Int(1) => Answer::Announced,
            Reply::Int(0) => Answer::Other,
            other => return no_script(other, way, rejected),
        },
        // After each of these replies, the key no longer holds our intent, by which a waiting writer keeps new readers
        // out.
        Command::Withdraw { .. } => match next() {
            Reply::Int(-1..=1) => Answer::Announced,
            other => return no_script(other, way, rejected),
        },
        Command::Watch { keys, intents } if way.watches => {
            let is_watched = next() == Reply::Okay;
            match look(keys, intents.as_ref(), way, next)? {
                Answer::Seen(holding) if is_watched => Answer::Watched(holding),
                answer => answer,
            }
        }
        Command::Inspect { keys, intents } | Command::Watch { keys, intents } => {
            return look(keys, intents.as_ref(), way, next);
        }
        Command::Adopt { .. } => match next() {
            Reply::List(adoption) => adopting(adoption),
            Reply::Int(0) => Answer::NotMarked,
            other => unexpected(&other),
        },
        Command::Mark { .. } => match next() {
            Reply::Int(1) => Answer::Marked,
            Reply::Int(0) => Answer::NotMarked,
            other => unexpected(&other),
        },
        Command::Identify => Answer::Identified,
        // A later version of the core may have other commands. The encoder sends nothing for them.
        _ => Answer::Failed(Failure::unsent(FailureKind::Protocol)),
    })
}

fn granted_or_refused(reply: Reply, way: Encoding) -> Result<Answer, Form> {
    match reply {
        Reply::Int(1) => Ok(Answer::Granted),
        Reply::Int(0) => Ok(Answer::Refused),
        other => no_script(other, way, not_set),
    }
}

fn absent_or_other(
    reply: Reply,
    way: Encoding,
    failure: fn(&str) -> Failure,
) -> Result<Answer, Form> {
    match reply {
        Reply::Int(-1) => Ok(Answer::Absent),
        Reply::Int(0) => Ok(Answer::Other),
        other => no_script(other, way, failure),
    }
}

/// Handles a reply that is not an answer. Either the server does not know the script, so the command must be sent with
/// the script's text, or the command failed.
fn no_script(reply: Reply, way: Encoding, failure: fn(&str) -> Failure) -> Result<Answer, Form> {
    match reply {
        Reply::Error(error) if code(&error) == "NOSCRIPT" && way.form != Form::Text => {
            Err(Form::Text)
        }
        Reply::Error(error) => Ok(Answer::Failed(failure(&error))),
        _ => Ok(out_of_protocol()),
    }
}

/// Checks that a counter is in the range in which the scripts' arithmetic is exact (S20).
fn fenced(fence: i64, answer: impl FnOnce(u64) -> Answer) -> Answer {
    match u64::try_from(fence) {
        Ok(fence) if fence < Counter::LIMIT => answer(fence),
        // The reply is valid, but the counter is exhausted. This affects only this lock.
        Ok(_) => Answer::Failed(rejected("ERR the fencing counter is at its end")),
        Err(_) => out_of_protocol(),
    }
}

fn counted(counter: Vec<Reply>, answer: impl FnOnce(u64) -> Answer) -> Answer {
    match *counter {
        [Reply::Int(counter)] => fenced(counter, answer),
        _ => out_of_protocol(),
    }
}

/// Decodes a refusal with the counter and the state of each key.
fn refused_fenced(told: Vec<Reply>, keys: &Keys) -> Answer {
    let mut told = told.into_iter();
    let Some(Reply::Int(fence)) = told.next() else { return out_of_protocol() };
    match holdings(told, keys) {
        Some(holding) => {
            fenced(fence, |fence| Answer::RefusedFenced { fence, holding: Box::new(holding) })
        }
        None => out_of_protocol(),
    }
}

fn adopting(adoption: Vec<Reply>) -> Answer {
    match &*adoption {
        [Reply::Bytes(text), Reply::Int(age)] => Answer::Adopting {
            text: String::from_utf8_lossy(text).into(),
            age: Duration::from_millis(u64::try_from(*age).unwrap_or(0)),
        },
        _ => out_of_protocol(),
    }
}

/// Reads the replies to a command that inspects keys.
fn look(
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
        Reply::List(told) => {
            Ok(holdings(told.into_iter(), keys).map_or_else(out_of_protocol, Answer::Seen))
        }
        other => no_script(other, way, rejected),
    }
}

/// Combines the replies to `GET` and `PTTL`. The key may have expired between these commands. If the key is no text,
/// the script must find out whether readers hold it.
fn holding(value: Reply, ttl: Reply) -> Result<Answer, Form> {
    let ttl = match ttl {
        Reply::Int(-2) => return Ok(Answer::Seen(Holding::Free)),
        Reply::Int(ttl) => remaining(ttl),
        other => return Ok(unexpected(&other)),
    };
    Ok(match value {
        Reply::Nil => Answer::Seen(Holding::Free),
        Reply::Bytes(value) => Answer::Seen(Holding::Held { value: shortened(value), ttl }),
        Reply::Error(error) if code(&error) == "WRONGTYPE" => return Err(Form::Script),
        other => unexpected(&other),
    })
}

/// Whether the error says that the key does not hold text. `DELEX` reports this without an error code.
fn is_other_type(error: &str) -> bool {
    code(error) == "WRONGTYPE" || explanation(error).starts_with("Key should be of string type")
}

/// Reads a script's list of the keys' states; `None` if it does not fit the keys.
fn holdings(told: impl ExactSizeIterator<Item = Reply>, keys: &Keys) -> Option<Holding> {
    if told.len() != keys.len() {
        return None;
    }
    Some(Holding::of_all(told.map(holding_of_one).collect::<Option<_>>()?))
}

fn holding_of_one(told: Reply) -> Option<Holding> {
    let told = match told {
        Reply::Int(-2) => return Some(Holding::Free),
        Reply::List(told) => told,
        _ => return None,
    };
    let mut told = told.into_iter();
    let (Reply::Bytes(what), Reply::Int(ttl)) = (told.next()?, told.next()?) else { return None };
    let ttl = remaining(ttl);
    Some(match (&*what, told.next(), told.len()) {
        (b"held", Some(Reply::Bytes(value)), 0) => Holding::Held { value: shortened(value), ttl },
        (b"announced", Some(Reply::Bytes(value)), 0) => {
            Holding::Announced { value: shortened(value), ttl }
        }
        (b"other", None, 0) => Holding::OtherType { ttl },
        (b"shared", Some(Reply::Int(count)), _) => {
            let mut readers = Vec::new();
            while let Some(value) = told.next() {
                let (Reply::Bytes(value), Reply::Int(ttl)) = (value, told.next()?) else {
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

fn unexpected(reply: &Reply) -> Answer {
    match reply {
        Reply::Error(error) => Answer::Failed(rejected(error)),
        _ => out_of_protocol(),
    }
}

fn out_of_protocol() -> Answer {
    Answer::Failed(Failure::new(FailureKind::Protocol))
}

pub(in crate::node::redis) fn is_out_of_protocol(answer: &Answer) -> bool {
    matches!(answer, Answer::Failed(failure)
        if failure.kind() == FailureKind::Protocol && failure.may_have_been_executed())
}

#[cfg(test)]
mod tests {
    use quorlock_core::{Key, Token, Value};

    use super::super::Delete;
    use super::*;
    use crate::node::redis::resp::{self, Found};

    fn value() -> Value {
        Value::new(&Token::new([7; 20]), "")
    }

    fn keys(names: &[&str]) -> Keys {
        Keys::new(names.iter().map(|name| Key::from(*name))).unwrap()
    }

    fn ways() -> impl Iterator<Item = Encoding> {
        [None, Some(Delete::IfEq), Some(Delete::Ex)].into_iter().flat_map(|delete| {
            [Form::Usual, Form::Script, Form::Text].map(|form| Encoding {
                form,
                delete,
                watches: true,
                ..Encoding::default()
            })
        })
    }

    #[test]
    fn a_usual_reply_is_read_in_place_as_it_is_decoded() {
        let mut known = 0;
        for keys in [keys(&["k"]), keys(&["a", "b"])] {
            let value = value();
            let commands = [
                Command::Acquire { keys: keys.clone(), value: value.clone(), ttl_ms: 1 },
                Command::Heal { keys: keys.clone(), value: value.clone(), ttl_ms: 1 },
                Command::Extend { keys: keys.clone(), value: value.clone(), ttl_ms: 1 },
                Command::Release { keys: keys.clone(), value: value.clone(), tell: true },
                Command::Release { keys: keys.clone(), value: value.clone(), tell: false },
                Command::Inspect { keys, intents: None },
            ];
            for command in &commands {
                for input in ["+OK\r\n:", ":1\r\n_", ":0\r\n", ":-1\r\n", "_\r\n", ":1", "+OK\r"] {
                    let Some((answer, length)) = decode_in_place(command, input.as_bytes()) else {
                        continue;
                    };
                    known += 1;
                    let Ok(Found::Reply { reply, length: read, surplus: 0 }) =
                        resp::read(input.as_bytes())
                    else {
                        panic!("{input:?} is incomplete")
                    };
                    assert_eq!(length, read, "{input:?}");
                    for way in ways() {
                        let decoded = decode(command, way, &mut [reply.clone()].into_iter());
                        assert_eq!(decoded, Ok(answer.clone()), "{command:?}, {input:?}, {way:?}");
                    }
                }
            }
        }
        assert_eq!(known, 7, "all but the grant of several keys");
    }

    fn text(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    fn seen(keys: &Keys, told: Vec<Reply>) -> Result<Answer, Form> {
        let command = Command::Inspect { keys: keys.clone(), intents: None };
        let way = Encoding { form: Form::Script, ..Encoding::default() };
        decode(&command, way, &mut [Reply::List(told)].into_iter())
    }

    #[test]
    fn what_a_script_tells_of_each_key_is_read() {
        let (long, ttl) = ("x".repeat(600), Some(Duration::from_millis(5)));
        let shared = [text("shared"), Reply::Int(5), Reply::Int(70)].into_iter();
        let shared = shared.chain([text(&long), Reply::Int(5), text("v"), Reply::Int(3)]);
        let told = vec![
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
                seen(&keys(&["k"]), vec![told[place].clone()]),
                Ok(Answer::Seen(holding.clone()))
            );
        }
        let all = keys(&["a", "b", "c", "d", "e"]);
        assert_eq!(seen(&all, told.clone()), Ok(Answer::Seen(Holding::Several(expected))));
        let free = vec![Reply::Int(-2); 5];
        assert_eq!(seen(&all, free), Ok(Answer::Seen(Holding::Free)));
        assert!(is_out_of_protocol(&seen(&all, told[1..].to_vec()).unwrap()), "one is missing");
    }

    #[test]
    fn what_no_script_of_ours_tells_is_out_of_protocol() {
        let shared = |rest: &[Reply]| {
            let start = [text("shared"), Reply::Int(5)].into_iter();
            Reply::List(start.chain(rest.iter().cloned()).collect())
        };
        for told in [
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
            let answer = seen(&keys(&["k"]), vec![told.clone()]).unwrap();
            assert!(is_out_of_protocol(&answer), "{told:?}");
        }
    }

    #[test]
    fn no_more_readers_are_kept_than_are_shown() {
        let mut told = vec![text("shared"), Reply::Int(5), Reply::Int(1000)];
        (0..1000).for_each(|_| told.extend([text("v"), Reply::Int(1)]));
        let seen = seen(&keys(&["k"]), vec![Reply::List(told)]);
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
        let unknown = Reply::Error("NOSCRIPT No matching script.".to_owned());
        assert_eq!(decode(&command, way, &mut [unknown].into_iter()), Err(Form::Text));
    }

    #[test]
    fn a_value_that_is_there_already_was_given_to_this_server_before() {
        let (keys, value) = (keys(&["k"]), value());
        let intents = keys.clone();
        let command = Command::AcquireShared { keys, intents, value, ttl_ms: 1 };
        let error = Reply::Error("SAMESERVER the value is already one of the readers".to_owned());
        let answer = decode(&command, Encoding::default(), &mut [error].into_iter());
        let Ok(Answer::Failed(failure)) = answer else { panic!("{answer:?}") };
        assert_eq!(failure.kind(), FailureKind::SameServer);
        assert!(!failure.may_have_been_executed());
    }
}
