//! How each command is said to a server, and what its replies mean.

use std::time::Duration;

use quorlock_core::{Answer, Command, Counter, Failure, FailureKind, Form, Holding, Key};

use super::for_people;
use super::resp::{self, Reply};
use super::scripts::Scripts;

/// How a compare-and-something is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum CompareMethod {
    /// By a command of the server's own, where there is one; else by a script.
    Native(Delete),
    /// By a script that the server should know.
    #[default]
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
pub(super) struct Capabilities {
    /// It pushes when a key changes that was looked at.
    pub(super) watches: bool,
    /// The command that compares and deletes, if it has one of its own.
    pub(super) delete: Option<Delete>,
    /// It tells several sections of its `INFO` at a time: Redis and Valkey from 7.0 on.
    pub(super) sections: bool,
}

impl Capabilities {
    /// How commands are said in this form.
    pub(super) fn method(self, form: Form) -> CompareMethod {
        match form {
            Form::Usual => self.delete.map_or(CompareMethod::Sha, CompareMethod::Native),
            Form::Script => CompareMethod::Sha,
            Form::Text => CompareMethod::Text,
        }
    }

    /// Reads the answer to [`ASK_CAPABILITIES`].
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
pub(super) const ASK_CAPABILITIES: [&str; 4] = ["COMMAND", "INFO", "DELIFEQ", "DELEX"];

/// How many replies a command gets. `watches`: the server can push.
pub(super) const fn replies_to(command: &Command, watches: bool) -> usize {
    match command {
        Command::Watch { .. } if watches => 3,
        Command::Inspect { .. } | Command::Watch { .. } => 2,
        Command::Acquire { .. }
        | Command::AcquireFenced { .. }
        | Command::Extend { .. }
        | Command::ExtendFenced { .. }
        | Command::HealFenced { .. }
        | Command::Raise { .. }
        | Command::Release { .. }
        | Command::Adopt { .. }
        | Command::Mark { .. } => 1,
        // What the first asks for is said beside the commands: see `proof`. The others are commands of a later core:
        // answered as out of protocol, since nothing is sent.
        _ => 0,
    }
}

/// How many of these ask to be told when a key changes.
pub(super) fn count_watches<'a>(commands: impl Iterator<Item = &'a Command>) -> usize {
    commands.filter(|command| matches!(command, Command::Watch { .. })).count()
}

/// Says a command.
pub(super) fn encode(
    command: &Command,
    method: CompareMethod,
    watches: bool,
    scripts: &Scripts,
    out: &mut Vec<u8>,
) {
    let mut digits = [itoa::Buffer::new(); 3];
    let [first, second, third] = &mut digits;
    match command {
        Command::Acquire { key, value, ttl_ms } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            // The same as `resp::write`, with what is always the same put together already.
            out.extend_from_slice(b"*6\r\n$3\r\nSET\r\n");
            resp::word(out, key.as_bytes());
            resp::word(out, value.as_bytes());
            out.extend_from_slice(b"$2\r\nNX\r\n$2\r\nPX\r\n");
            resp::word(out, ttl);
        }
        Command::Extend { key, value, ttl_ms } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            scripts.extend.call(method, [key.as_bytes()], [value.as_bytes(), ttl], out)
        }
        Command::ExtendFenced { key, value, ttl_ms, counter } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            let keep = second.format(counter.ttl_ms).as_bytes();
            let keys = [key.as_bytes(), counter.key.as_bytes()];
            scripts.extend.call(method, keys, [value.as_bytes(), ttl, keep], out)
        }
        Command::AcquireFenced { key, value, ttl_ms, counter, proposal } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            let keep = second.format(counter.ttl_ms).as_bytes();
            let proposal = third.format(*proposal).as_bytes();
            let keys = [key.as_bytes(), counter.key.as_bytes(), counter.marker.as_bytes()];
            scripts.acquire_fenced.call(method, keys, [value.as_bytes(), ttl, keep, proposal], out)
        }
        Command::Raise { key, value, counter, to } => {
            let to = first.format(*to).as_bytes();
            let keep = second.format(counter.ttl_ms).as_bytes();
            let keys = [key.as_bytes(), counter.key.as_bytes()];
            scripts.raise.call(method, keys, [value.as_bytes(), to, keep], out)
        }
        Command::HealFenced { key, value, ttl_ms, counter, to } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            let to = second.format(*to).as_bytes();
            let keep = third.format(counter.ttl_ms).as_bytes();
            let keys = [key.as_bytes(), counter.key.as_bytes()];
            scripts.heal_fenced.call(method, keys, [value.as_bytes(), ttl, to, keep], out)
        }
        Command::Release { key, value, .. } => {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            match method {
                CompareMethod::Native(Delete::IfEq) => resp::write(out, &[b"DELIFEQ", key, value]),
                CompareMethod::Native(Delete::Ex) => {
                    resp::write(out, &[b"DELEX", key, b"IFEQ", value])
                }
                CompareMethod::Sha | CompareMethod::Text => {
                    scripts.release.call(method, [key], [value], out)
                }
            }
        }
        // CACHING is about the one command that follows it, so nothing may come in between: the
        // three are one command of ours, and go together.
        Command::Watch { key } if watches => {
            resp::write(out, &[b"CLIENT", b"CACHING", b"YES"]);
            look(key, out);
        }
        Command::Inspect { key } | Command::Watch { key } => look(key, out),
        // The next two are rare: servers need not know them.
        Command::Adopt { key, text, replaces, marker, seen } => {
            let [replaces, seen] = [replaces, seen].map(|text| text.as_deref().unwrap_or_default());
            let texts = [text.as_bytes(), replaces.as_bytes(), seen.as_bytes()];
            scripts.adopt.call(CompareMethod::Text, [key.as_bytes(), marker.as_bytes()], texts, out)
        }
        Command::Mark { key, text, replaces, adoption } => {
            let how = if replaces.is_some() { "instead" } else { "new" };
            let old = replaces.as_deref().unwrap_or_default().as_bytes();
            let (key, text) = (key.as_bytes(), text.as_bytes());
            match adoption {
                None => {
                    scripts.mark.call(CompareMethod::Text, [key], [text, how.as_bytes(), old], out)
                }
                Some(adopted) => {
                    let age = first.format(adopted.age_ms).as_bytes();
                    let (other, adoption) = (adopted.key.as_bytes(), adopted.text.as_bytes());
                    let rest = [text, how.as_bytes(), old, adoption, age];
                    scripts.mark.call(CompareMethod::Text, [key, other], rest, out)
                }
            }
        }
        _ => {}
    }
}

fn look(key: &Key, out: &mut Vec<u8>) {
    resp::write(out, &[b"GET", key.as_bytes()]);
    resp::write(out, &[b"PTTL", key.as_bytes()]);
}

/// What nearly all commands are answered; else `None`. The same as [`decode`] says, without its detours.
pub(super) const fn usual(command: &Command, reply: &Reply) -> Option<Answer> {
    match (command, reply) {
        (Command::Acquire { .. }, Reply::Okay) => Some(Answer::Granted),
        (Command::Extend { .. }, Reply::Int(1)) => Some(Answer::Extended),
        (Command::Release { .. }, Reply::Int(1)) => Some(Answer::Deleted),
        _ => None,
    }
}

/// Reads one command's replies. An error says in which form to ask instead.
pub(super) fn decode(
    command: &Command,
    method: CompareMethod,
    watches: bool,
    replies: &mut impl Iterator<Item = Reply>,
) -> Result<Answer, Form> {
    let mut next = || replies.next().unwrap_or(Reply::Nil);
    Ok(match command {
        Command::Acquire { .. } => match next() {
            Reply::Okay => Answer::Granted,
            Reply::Nil => Answer::Refused,
            Reply::Error(error) => Answer::Failed(not_set(&error)),
            _ => out_of_protocol(),
        },
        Command::Extend { .. } | Command::ExtendFenced { .. } => match next() {
            Reply::Int(1) => Answer::Extended,
            other => return absent_or_other(other, method),
        },
        Command::AcquireFenced { .. } => match next() {
            Reply::Int(fence) => fenced(fence, |fence| Answer::GrantedFenced { fence }),
            Reply::List(held) => refused_fenced(held),
            other => return no_script(other, method, not_set),
        },
        Command::HealFenced { to, .. } => match next() {
            Reply::Int(1) => Answer::GrantedFenced { fence: *to },
            Reply::Int(0) => Answer::Refused,
            Reply::List(counter) => counted(counter, |fence| Answer::Superseded { fence }),
            other => return no_script(other, method, not_set),
        },
        Command::Raise { .. } => match next() {
            Reply::List(counter) => counted(counter, |fence| Answer::Raised { fence }),
            other => return absent_or_other(other, method),
        },
        Command::Release { tell, .. } => match (next(), method) {
            (Reply::Int(1), _) => Answer::Deleted,
            // Absent or another's: only the script tells which. It finds nothing of ours to delete.
            (Reply::Int(0), CompareMethod::Native(_)) if *tell => return Err(Form::Script),
            (Reply::Int(0), CompareMethod::Native(_)) => Answer::NotOurs,
            (Reply::Error(error), CompareMethod::Native(_)) if code(&error) == "WRONGTYPE" => {
                Answer::Other
            }
            (other, _) => return absent_or_other(other, method),
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
        _ => Answer::Failed(Failure::unsent(FailureKind::Protocol)),
    })
}

fn absent_or_other(reply: Reply, method: CompareMethod) -> Result<Answer, Form> {
    match reply {
        Reply::Int(-1) => Ok(Answer::Absent),
        Reply::Int(0) => Ok(Answer::Other),
        other => no_script(other, method, rejected),
    }
}

/// No answer: because the script was not known, or in another way.
fn no_script(
    reply: Reply,
    method: CompareMethod,
    failure: fn(&str) -> Failure,
) -> Result<Answer, Form> {
    match reply {
        Reply::Error(error) if code(&error) == "NOSCRIPT" && method != CompareMethod::Text => {
            Err(Form::Text)
        }
        Reply::Error(error) => Ok(Answer::Failed(failure(&error))),
        _ => Ok(out_of_protocol()),
    }
}

/// A fence is a number that the scripts can reckon with (S20).
fn fenced(fence: i64, answer: impl FnOnce(u64) -> Answer) -> Answer {
    match u64::try_from(fence) {
        Ok(fence) if fence < Counter::LIMIT => answer(fence),
        // The server has said what it has; that nobody can go on from there concerns this lock alone.
        Ok(_) => Answer::Failed(rejected("ERR the fence counter is at its end")),
        Err(_) => out_of_protocol(),
    }
}

fn counted(counter: Vec<Reply>, answer: impl FnOnce(u64) -> Answer) -> Answer {
    match *counter {
        [Reply::Int(counter)] => fenced(counter, answer),
        _ => out_of_protocol(),
    }
}

/// The counter and who holds the lock: its ttl, and its value unless it is no string.
fn refused_fenced(held: Vec<Reply>) -> Answer {
    let mut held = held.into_iter();
    let (Some(Reply::Int(fence)), Some(ttl)) = (held.next(), held.next()) else {
        return out_of_protocol();
    };
    let value = held.next().unwrap_or_else(|| Reply::Error("WRONGTYPE".to_owned()));
    match holding(value, ttl) {
        Answer::Seen(holding) => {
            fenced(fence, |fence| Answer::RefusedFenced { fence, holding: Box::new(holding) })
        }
        other => other,
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
pub(super) fn rejected(error: &str) -> Failure {
    // What a script may not do, Redis 7.0 tells without the code for it.
    let kind = if explanation(error).starts_with("The user executing the script") {
        FailureKind::Forbidden
    } else {
        kind_of(code(error))
    };
    Failure::new(kind).with_detail(for_people(error))
}

/// An error in answer to a command that sets a lock. Those known by name come before the server does anything, so no
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
    use quorlock_core::{Token, Value};

    use super::*;

    #[test]
    fn the_usual_answers_are_what_the_long_way_says() {
        let (key, value) = (Key::from("k"), Value::new(&Token::new([7; 20]), ""));
        let commands = [
            Command::Acquire { key: key.clone(), value: value.clone(), ttl_ms: 1 },
            Command::Extend { key: key.clone(), value: value.clone(), ttl_ms: 1 },
            Command::Release { key: key.clone(), value: value.clone(), tell: true },
            Command::Release { key: key.clone(), value, tell: false },
            Command::Inspect { key },
        ];
        let ways = [
            CompareMethod::Native(Delete::IfEq),
            CompareMethod::Native(Delete::Ex),
            CompareMethod::Sha,
            CompareMethod::Text,
        ];
        let mut known = 0;
        for command in &commands {
            for reply in [Reply::Okay, Reply::Int(1), Reply::Int(0), Reply::Int(-1), Reply::Nil] {
                let Some(answer) = usual(command, &reply) else { continue };
                known += 1;
                for method in ways {
                    let long = decode(command, method, true, &mut [reply.clone()].into_iter());
                    assert_eq!(long, Ok(answer.clone()), "{command:?}, {reply:?}, {method:?}");
                }
            }
        }
        assert_eq!(known, 4);
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
