//! Decodes the replies to each command.

use std::time::Duration;

use quorlock_core::{
    AcquireForm, Answer, AttachForm, Command, Counter, Failure, FailureKind, Form, HealForm, Keys,
    ReleaseForm,
};

use super::Encoding;
use super::errors::{code, explanation, not_set, rejected};
use super::holdings::{holdings, look};
use crate::node::redis::resp::Reply;

/// Reads a short and frequent reply at the beginning of the input without building a [`Reply`]. Returns the answer,
/// which is that of [`decode`], and the length of the reply. `None` if [`decode`] must read the reply.
#[inline]
pub(in crate::node::redis) fn decode_in_place(
    command: &Command,
    input: &[u8],
) -> Option<(Answer, usize)> {
    let answer = match (command, input) {
        (
            Command::Acquire { keys, form: AcquireForm::Plain, .. },
            [b'+', b'O', b'K', b'\r', b'\n', ..],
        ) if keys.single().is_some() => return Some((Answer::Granted, 5)),
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
        Command::Acquire { keys, form: AcquireForm::Plain, .. }
        | Command::Heal { keys, form: HealForm::Plain, .. }
            if keys.single().is_some() =>
        {
            match next() {
                Reply::Okay => Answer::Granted,
                Reply::Nil => Answer::Refused,
                Reply::Error(error) => Answer::Failed(not_set(&error)),
                _ => out_of_protocol(),
            }
        }
        Command::Acquire { keys, form: AcquireForm::Fenced { .. }, .. }
        | Command::Attach { keys, form: AttachForm::Fenced { .. }, .. } => match next() {
            Reply::Int(fence) => fenced(fence, |fence| Answer::GrantedFenced { fence }),
            Reply::List(parts) => refused_fenced(parts, keys),
            other => return no_script(other, way, not_set),
        },
        Command::Heal { form: HealForm::Fenced { to, .. }, .. } => match next() {
            Reply::Int(1) => Answer::GrantedFenced { fence: *to },
            Reply::Int(0) => Answer::Refused,
            Reply::List(counter) => counted(counter, |fence| Answer::Superseded { fence }),
            other => return no_script(other, way, not_set),
        },
        Command::Acquire { .. } | Command::Heal { .. } => match next() {
            Reply::Int(1) => Answer::Granted,
            Reply::Int(0) => Answer::Refused,
            other => return no_script(other, way, not_set),
        },
        Command::Attach { .. } => match next() {
            Reply::Int(1) => Answer::Granted,
            other => return absent_or_other(other, way, not_set),
        },
        Command::Extend { .. } => match next() {
            Reply::Int(1) => Answer::Extended,
            other => return absent_or_other(other, way, rejected),
        },
        Command::Downgrade { .. } => match next() {
            Reply::Int(1) => Answer::Downgraded,
            other => return absent_or_other(other, way, rejected),
        },
        Command::Raise { .. } => match next() {
            Reply::List(counter) => counted(counter, |fence| Answer::Raised { fence }),
            other => return absent_or_other(other, way, rejected),
        },
        Command::Release { keys, form: ReleaseForm::Plain { tell }, .. }
            if way.own_delete(keys).is_some() =>
        {
            match next() {
                Reply::Int(1) => Answer::Deleted,
                // The key is absent, or another client has it. If the answer must `tell` which, the script finds out.
                // The script deletes nothing, because the key is not ours.
                Reply::Int(0) if *tell => return Err(Form::Script),
                Reply::Int(0) => Answer::NotOurs,
                Reply::Error(error) if is_other_type(&error) => Answer::Other,
                other => return absent_or_other(other, way, rejected),
            }
        }
        Command::Release { .. } | Command::GiveBack { .. } => match next() {
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
    })
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
pub(super) fn no_script(
    reply: Reply,
    way: Encoding,
    failure: fn(&str) -> Failure,
) -> Result<Answer, Form> {
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
fn refused_fenced(parts: Vec<Reply>, keys: &Keys) -> Answer {
    let mut parts = parts.into_iter();
    let Some(Reply::Int(fence)) = parts.next() else { return out_of_protocol() };
    match holdings(parts, keys) {
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

/// Whether the error says that the key does not hold text. `DELEX` reports this without an error code.
fn is_other_type(error: &str) -> bool {
    code(error) == "WRONGTYPE" || explanation(error).starts_with("Key should be of string type")
}

pub(super) fn unexpected(reply: &Reply) -> Answer {
    match reply {
        Reply::Error(error) => Answer::Failed(rejected(error)),
        _ => out_of_protocol(),
    }
}

pub(super) fn out_of_protocol() -> Answer {
    Answer::Failed(Failure::new(FailureKind::Protocol))
}

pub(in crate::node::redis) fn is_out_of_protocol(answer: &Answer) -> bool {
    matches!(answer, Answer::Failed(failure)
        if failure.kind() == FailureKind::Protocol && failure.may_have_been_executed())
}

#[cfg(test)]
mod tests {
    use quorlock_core::{Counter, ExtendForm, Key, TakenFrom, Token, Value};

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
        let from = TakenFrom { value: value(), nonce_key: Key::from("nonce"), by_value: false };
        let from = std::sync::Arc::new(from);
        for keys in [keys(&["k"]), keys(&["a", "b"])] {
            let counter = Counter { keys: keys.clone(), marker: Key::from("marker"), ttl_ms: 1 };
            let acquire = |form| {
                let (keys, value) = (keys.clone(), value());
                Command::Acquire { keys, value, ttl_ms: 1, form }
            };
            let extend = |form| {
                let (keys, value) = (keys.clone(), value());
                Command::Extend { keys, value, ttl_ms: 1, form }
            };
            let release = |form| Command::Release { keys: keys.clone(), value: value(), form };
            let commands = [
                acquire(AcquireForm::Plain),
                acquire(AcquireForm::Fenced { counter: counter.clone(), proposal: 1 }),
                acquire(AcquireForm::Shared { intents: keys.clone() }),
                acquire(AcquireForm::Taken(from.clone())),
                Command::Heal {
                    keys: keys.clone(),
                    value: value(),
                    ttl_ms: 1,
                    form: HealForm::Plain,
                },
                extend(ExtendForm::Plain),
                extend(ExtendForm::Fenced { counter }),
                extend(ExtendForm::Shared),
                extend(ExtendForm::Taken(from.clone())),
                release(ReleaseForm::Plain { tell: true }),
                release(ReleaseForm::Plain { tell: false }),
                release(ReleaseForm::Shared),
                release(ReleaseForm::Taken(from.clone())),
                Command::Inspect { keys: keys.clone(), intents: None },
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
        assert_eq!(known, 17, "the grant of one key, and eight replies for one key and for two");
    }

    #[test]
    fn a_value_that_is_there_already_was_given_to_this_server_before() {
        let (keys, value) = (keys(&["k"]), value());
        let intents = keys.clone();
        let command =
            Command::Acquire { keys, value, ttl_ms: 1, form: AcquireForm::Shared { intents } };
        let error = Reply::Error("SAMESERVER the value is already one of the readers".to_owned());
        let answer = decode(&command, Encoding::default(), &mut [error].into_iter());
        let Ok(Answer::Failed(failure)) = answer else { panic!("{answer:?}") };
        assert_eq!(failure.kind(), FailureKind::SameServer);
        assert!(!failure.may_have_been_executed());
    }
}
