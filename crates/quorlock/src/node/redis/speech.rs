//! How each command is said to a server, and what its replies mean.

use std::time::Duration;

use quorlock_core::{Answer, Command, Failure, FailureKind, Holding, Key, Value};

use super::for_people;
use super::resp::{self, Reply};

const EXTEND: &str = include_str!("../scripts/extend.lua");
const RELEASE: &str = include_str!("../scripts/release.lua");

/// How a compare-and-something is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By a command of the server's own, where there is one; else by a script.
    Native(Delete),
    /// By a script that the server should know.
    Sha,
    /// By a script that it did not know.
    Text,
}

/// A command that deletes a key if it holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delete {
    /// `DELIFEQ key value`: Valkey from 9.0 on.
    IfEq,
    /// `DELEX key IFEQ value`: Redis from 8.4 on.
    Ex,
}

/// What a server can do, as it has said on this connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skills {
    /// It pushes when a key changes that was looked at.
    pub(super) watches: bool,
    /// The command that compares and deletes, if it has one of its own.
    pub(super) delete: Option<Delete>,
}

impl Skills {
    pub(super) fn way(self) -> Way {
        self.delete.map_or(Way::Sha, Way::Native)
    }

    /// Reads the answer to [`ASK_SKILLS`].
    pub(super) fn delete(known: &Reply) -> Option<Delete> {
        let Reply::List(known) = known else { return None };
        let has = |place: usize| known.get(place).is_some_and(|info| *info != Reply::Nil);
        match (has(0), has(1)) {
            (true, _) => Some(Delete::IfEq),
            (false, true) => Some(Delete::Ex),
            (false, false) => None,
        }
    }
}

/// Which of the commands does the server have that compare and delete?
pub(super) const ASK_SKILLS: [&str; 4] = ["COMMAND", "INFO", "DELIFEQ", "DELEX"];

/// The scripts.
pub(super) struct Scripts {
    extend: Script,
    release: Script,
}

struct Script {
    text: &'static str,
    /// By which a server knows it, once it has been loaded.
    hash: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, hash: sha1_smol::Sha1::from(text).hexdigest() }
    }

    fn call(&self, way: Way, key: &Key, value: &Value, rest: &[&[u8]], out: &mut Vec<u8>) {
        let (name, program) = match way {
            Way::Native(_) | Way::Sha => ("EVALSHA", &*self.hash),
            Way::Text => ("EVAL", self.text),
        };
        let words = [name.as_bytes(), program.as_bytes(), b"1", key.as_bytes(), value.as_bytes()];
        match rest {
            [] => resp::write(out, &words),
            rest => resp::write(out, &[&words, rest].concat()),
        }
    }
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self { extend: Script::new(EXTEND), release: Script::new(RELEASE) }
    }

    /// Their texts, to be loaded.
    pub(super) fn texts(&self) -> [&'static str; 2] {
        [self.extend.text, self.release.text]
    }

    /// Says a command; returns how many replies it gets.
    pub(super) fn say(
        &self,
        command: &Command,
        way: Way,
        watches: bool,
        out: &mut Vec<u8>,
    ) -> usize {
        match command {
            Command::Acquire { key, value, ttl_ms } => {
                let mut digits = itoa::Buffer::new();
                let ttl = digits.format(*ttl_ms).as_bytes();
                let words = [b"SET", key.as_bytes(), value.as_bytes(), b"NX", b"PX", ttl];
                resp::write(out, &words);
                1
            }
            Command::Extend { key, value, ttl_ms } => {
                let mut digits = itoa::Buffer::new();
                let ttl = digits.format(*ttl_ms).as_bytes();
                self.extend.call(way, key, value, &[ttl], out);
                1
            }
            Command::Release { key, value, .. } => {
                let (key_bytes, value_bytes) = (key.as_bytes(), value.as_bytes());
                match way {
                    Way::Native(Delete::IfEq) => {
                        resp::write(out, &[b"DELIFEQ", key_bytes, value_bytes]);
                    }
                    Way::Native(Delete::Ex) => {
                        resp::write(out, &[b"DELEX", key_bytes, b"IFEQ", value_bytes]);
                    }
                    Way::Sha | Way::Text => self.release.call(way, key, value, &[], out),
                }
                1
            }
            // CACHING is about the one command that follows it, so nothing may come in between: the
            // three are one command of ours, and go together.
            Command::Watch { key } if watches => {
                resp::write(out, &[b"CLIENT", b"CACHING", b"YES"]);
                1 + look(key, out)
            }
            Command::Inspect { key } | Command::Watch { key } => look(key, out),
            // A command of a later core: answered as out of protocol, since nothing is sent.
            _ => 0,
        }
    }
}

fn look(key: &Key, out: &mut Vec<u8>) -> usize {
    resp::write(out, &[b"GET", key.as_bytes()]);
    resp::write(out, &[b"PTTL", key.as_bytes()]);
    2
}

/// Reads one command's replies. An error says in which way to ask instead.
pub(super) fn translate(
    command: &Command,
    way: Way,
    watches: bool,
    replies: &mut impl Iterator<Item = Reply>,
) -> Result<Answer, Way> {
    let mut next = || replies.next().unwrap_or(Reply::Nil);
    Ok(match command {
        Command::Acquire { .. } => match next() {
            Reply::Okay => Answer::Granted,
            Reply::Nil => Answer::Refused,
            Reply::Error(error) => Answer::Failed(not_set(&error)),
            _ => out_of_protocol(),
        },
        Command::Extend { .. } => match next() {
            Reply::Int(1) => Answer::Extended,
            other => return absent_or_other(other, way),
        },
        Command::Release { tell, .. } => match (next(), way) {
            (Reply::Int(1), _) => Answer::Deleted,
            // Absent or another's: only the script tells which. It finds nothing of ours to delete.
            (Reply::Int(0), Way::Native(_)) if *tell => return Err(Way::Sha),
            (Reply::Int(0), Way::Native(_)) => Answer::NotOurs,
            (Reply::Error(error), Way::Native(_)) if code(&error) == "WRONGTYPE" => Answer::Other,
            (other, _) => return absent_or_other(other, way),
        },
        Command::Watch { .. } if watches => {
            let (caching, value, ttl) = (next(), next(), next());
            match (holding(value, ttl), caching) {
                (Answer::Seen(holding), Reply::Okay) => Answer::Watched(holding),
                (answer, _) => answer,
            }
        }
        Command::Inspect { .. } | Command::Watch { .. } => {
            let (value, ttl) = (next(), next());
            holding(value, ttl)
        }
        _ => Answer::Failed(Failure::unsent(FailureKind::Protocol)),
    })
}

fn absent_or_other(reply: Reply, way: Way) -> Result<Answer, Way> {
    match reply {
        Reply::Int(-1) => Ok(Answer::Absent),
        Reply::Int(0) => Ok(Answer::Other),
        Reply::Error(error) if code(&error) == "NOSCRIPT" && way != Way::Text => Err(Way::Text),
        other => Ok(unexpected(&other)),
    }
}

/// What `GET` and `PTTL` say together. They are two commands, so the key may have gone in between.
fn holding(value: Reply, ttl: Reply) -> Answer {
    let ttl = match ttl {
        Reply::Int(-2) => return Answer::Seen(Holding::Free),
        Reply::Int(ms) if ms < 0 => None,
        Reply::Int(ms) => Some(Duration::from_millis(ms.unsigned_abs())),
        other => return unexpected(&other),
    };
    match value {
        Reply::Nil => Answer::Seen(Holding::Free),
        Reply::Bytes(mut bytes) => {
            bytes.truncate(Holding::VALUE_BYTES_MAX);
            bytes.shrink_to_fit();
            Answer::Seen(Holding::Held { value: bytes, ttl })
        }
        Reply::Error(error) if code(&error) == "WRONGTYPE" => {
            Answer::Seen(Holding::OtherType { ttl })
        }
        other => unexpected(&other),
    }
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

pub(super) fn is_out_of_protocol(answer: &Answer) -> bool {
    matches!(answer, Answer::Failed(failure)
        if failure.kind() == FailureKind::Protocol && failure.may_have_been_executed())
}

/// An error that the server answered to one command, which may have done part of its work.
fn rejected(error: &str) -> Failure {
    // What a script may not do, Redis 7.0 tells without the code for it.
    let kind = if explanation(error).starts_with("The user executing the script") {
        FailureKind::Forbidden
    } else {
        kind_of(code(error))
    };
    Failure::new(kind).with_detail(for_people(error))
}

/// An error in answer to a `SET`. Those known by name come before the server does anything, so no
/// key was set: as good as unsent, and nothing is owed. Others may come from a proxy that has lost
/// its server, and say nothing.
fn not_set(error: &str) -> Failure {
    match kind_of(code(error)) {
        FailureKind::Rejected => rejected(error),
        kind => Failure::unsent(kind).with_detail(for_people(error)),
    }
}

/// The first word of an error.
pub(super) fn code(error: &str) -> &str {
    error.split(' ').next().unwrap_or_default()
}

/// The rest of it.
pub(super) fn explanation(error: &str) -> &str {
    error.split_once(' ').map_or("", |(_, rest)| rest)
}

pub(super) fn kind_of(code: &str) -> FailureKind {
    match code {
        "NOAUTH" | "WRONGPASS" => FailureKind::Unauthenticated,
        "NOPERM" => FailureKind::Forbidden,
        "READONLY" => FailureKind::ReadOnly,
        "LOADING" => FailureKind::Loading,
        "MASTERDOWN" => FailureKind::MasterDown,
        "OOM" => FailureKind::OutOfMemory,
        "MISCONF" => FailureKind::CannotPersist,
        "BUSY" => FailureKind::Busy,
        "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" | "TRYAGAIN" => FailureKind::Redirected,
        _ => FailureKind::Rejected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_are_known_by_the_hash_of_their_text() {
        // As `SCRIPT LOAD` answers.
        assert_eq!(Script::new("return 1").hash, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }

    #[test]
    fn an_error_has_a_code_and_perhaps_an_explanation() {
        assert_eq!(
            (code("NOPERM no rights"), explanation("NOPERM no rights")),
            ("NOPERM", "no rights")
        );
        assert_eq!((code("ERR"), explanation("ERR")), ("ERR", ""));
    }
}
