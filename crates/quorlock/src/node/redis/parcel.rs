//! A batch on its way to a server and back: what is written for it, and what its replies mean as they come.

use std::iter::once;

use quorlock_core::{Answer, BatchId, Command, Exchange, Form, MarkerSeen};
use tokio::sync::oneshot;

use super::codec::{Encoding, decode, encode, is_out_of_protocol, replies_to, usual};
use super::evidence::{Beside, marker_of};
use super::resp::{self, Reply};
use super::scripts::Scripts;

/// A batch, with what it takes to understand its replies.
#[derive(Debug, Default)]
pub(super) struct Parcel {
    pub(super) exchange: Exchange,
    pub(super) way: Encoding,
    /// What is asked beside the commands; so many replies to it come before theirs.
    pub(super) beside: Beside,
    pub(super) before: Vec<Reply>,
    pub(super) marker: MarkerSeen,
    /// The replies so far to a command that gets several.
    parts: Vec<Reply>,
    /// The parcel is the first on its connection.
    pub(super) is_first: bool,
    /// All replies so far fit their commands.
    pub(super) in_step: bool,
    /// How often the server had said that its data are others, before the first reply and before the last. `None`: the
    /// replies have not come.
    pub(super) flushes: Option<(u64, u64)>,
}

/// The receiver of a parcel that comes back.
pub(super) enum To {
    /// The line, for this batch.
    Pipeline(BatchId),
    /// A waiting task.
    Task(oneshot::Sender<Box<Parcel>>),
}

impl Parcel {
    /// Prepares to send. Forgets the replies of an earlier sending.
    pub(super) fn prepare(&mut self, way: Encoding, beside: Beside) {
        (self.way, self.beside) = (way, beside);
        self.before.clear();
        self.parts.clear();
        (self.marker, self.in_step, self.flushes) = (MarkerSeen::NotAsked, true, None);
        self.pass_over();
    }

    /// Takes the next reply.
    pub(super) fn take(&mut self, reply: Reply) {
        if self.before.len() < self.beside.before {
            self.before.push(reply);
            return;
        }
        let Some(command) = self.exchange.awaited() else {
            match marker_of(&reply, &self.exchange) {
                Some(marker) => self.marker = marker,
                None => self.in_step = false,
            }
            return;
        };
        if let Some(answer) = usual(command, &reply) {
            self.exchange.hear(Ok(answer));
            return self.pass_over();
        }
        let count = replies_to(command, self.way);
        let answer = if count == 1 {
            decode(command, self.way, &mut once(reply))
        } else {
            self.parts.push(reply);
            if self.parts.len() < count {
                return;
            }
            decode(command, self.way, &mut self.parts.drain(..))
        };
        self.hear(answer);
        self.pass_over();
    }

    /// Takes the last reply, which is the input's beginning, if it is a marker that can be read in place. Says how
    /// long it is.
    pub(super) fn take_marker(&mut self, input: &[u8]) -> Option<usize> {
        if !self.beside.has_marker() || self.exchange.awaited().is_some() {
            return None;
        }
        let (said, length) = resp::short_value(input)?;
        self.marker = self.exchange.marker(said);
        Some(length)
    }

    /// Answers the commands that get no reply.
    fn pass_over(&mut self) {
        while let Some(command) = self.exchange.awaited()
            && replies_to(command, self.way) == 0
        {
            let answer = decode(command, self.way, &mut std::iter::empty());
            self.hear(answer);
        }
    }

    fn hear(&mut self, answer: Result<Answer, Form>) {
        self.in_step &= !answer.as_ref().is_ok_and(is_out_of_protocol);
        self.exchange.hear(answer);
    }

    /// Notes that all replies have come.
    pub(super) fn is_answered(&mut self, flushes: (u64, u64)) {
        self.flushes = Some(flushes);
    }
}

/// The commands that were written last, as they were written: what goes to several nodes is encoded once.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    known: Vec<Known>,
    bytes: Vec<u8>,
    /// The place in `known` of the command that is likely to be next.
    next: usize,
}

#[derive(Debug)]
struct Known {
    command: Command,
    way: Encoding,
    start: usize,
    end: usize,
}

impl Encoder {
    /// Forgets all commands, because the next tick has others.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.bytes.clear();
        self.known.shrink_to(Self::KEPT);
        self.bytes.shrink_to(Self::KEPT * 100);
    }

    /// Commands whose memory is kept for the next tick; few ticks have more.
    pub(super) const KEPT: usize = 256;

    /// Writes the parcel's commands, and returns the number of their replies.
    pub(super) fn write(&mut self, parcel: &Parcel, scripts: &Scripts, out: &mut Vec<u8>) -> usize {
        let Parcel { exchange, way, .. } = parcel;
        // Another node is likely to be sent the same commands, in the same order.
        self.next = 0;
        let mut replies = 0;
        for command in exchange.to_send() {
            replies += replies_to(command, *way);
            self.write_one(command, *way, scripts, out);
        }
        replies
    }

    fn write_one(
        &mut self,
        command: &Command,
        way: Encoding,
        scripts: &Scripts,
        out: &mut Vec<u8>,
    ) {
        match self.known.get(self.next) {
            Some(known) if known.way == way && is_same(&known.command, command) => {
                self.next += 1;
                out.extend_from_slice(&self.bytes[known.start..known.end]);
            }
            Some(_) => encode(command, way, scripts, out),
            None => {
                let start = self.bytes.len();
                encode(command, way, scripts, &mut self.bytes);
                out.extend_from_slice(&self.bytes[start..]);
                let (command, end) = (command.clone(), self.bytes.len());
                self.known.push(Known { command, way, start, end });
                self.next += 1;
            }
        }
    }
}

/// Whether these are one command for several nodes. That two are equal may go unnoticed.
fn is_same(one: &Command, other: &Command) -> bool {
    use Command::{Acquire, Extend, ExtendShared, Release, ReleaseShared};
    // A value belongs to one attempt, and so to the same keys wherever it is named.
    match (one, other) {
        (Acquire { value: one, ttl_ms, .. }, Acquire { value: other, ttl_ms: theirs, .. })
        | (Extend { value: one, ttl_ms, .. }, Extend { value: other, ttl_ms: theirs, .. })
        | (
            ExtendShared { value: one, ttl_ms, .. },
            ExtendShared { value: other, ttl_ms: theirs, .. },
        ) => one.is_same(other) && ttl_ms == theirs,
        (Release { value: one, .. }, Release { value: other, .. })
        | (ReleaseShared { value: one, .. }, ReleaseShared { value: other, .. }) => {
            one.is_same(other)
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use quorlock_core::{Keys, Session, Token, Value};

    use super::super::codec::Delete;
    use super::*;

    fn acquire(key: &str, ttl_ms: u64) -> Command {
        let value = Value::new(&Token::new([7; 20]), "");
        Command::Acquire { keys: key.into(), value, ttl_ms }
    }

    fn parcel(commands: Vec<Command>, form: Form, delete: Option<Delete>) -> Parcel {
        let mut parcel = Parcel::default();
        *parcel.exchange.renew() = commands;
        Session::new(false).send(&mut parcel.exchange);
        parcel.prepare(
            Encoding { form, delete, watches: true, ..Encoding::default() },
            Beside::default(),
        );
        parcel
    }

    fn written(encoder: &mut Encoder, parcel: &Parcel, scripts: &Scripts) -> String {
        let mut out = Vec::new();
        encoder.write(parcel, scripts, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// Whatever was written before, and for whom.
    #[test]
    fn what_is_encoded_once_is_what_would_be_encoded_each_time() {
        let (scripts, shared) = (Scripts::new(), &mut Encoder::default());
        let [one, other] = [acquire("one", 1000), acquire("other", 1000)];
        let Command::Acquire { keys, value, .. } = one.clone() else { unreachable!() };
        let release = Command::Release { keys: keys.clone(), value: value.clone(), tell: true };
        let longer = Command::Acquire { keys: keys.clone(), value: value.clone(), ttl_ms: 2000 };
        let extend = Command::Extend { keys, value, ttl_ms: 1000 };
        let all = vec![one.clone(), other.clone(), release.clone(), extend, longer.clone()];
        for (commands, form, delete) in [
            (all.clone(), Form::Usual, None),
            (all.clone(), Form::Usual, None),
            (all.clone(), Form::Usual, Some(Delete::IfEq)),
            (all[1..].to_vec(), Form::Usual, None),
            (vec![longer.clone(), one.clone(), release.clone()], Form::Usual, None),
            (vec![acquire("one", 1000), other.clone()], Form::Usual, None),
            (all, Form::Text, None),
        ] {
            let parcel = parcel(commands, form, delete);
            let alone = written(&mut Encoder::default(), &parcel, &scripts);
            assert_eq!(written(shared, &parcel, &scripts), alone);
        }
        let before = shared.bytes.len();
        written(shared, &parcel(vec![one, other], Form::Usual, None), &scripts);
        assert_eq!(shared.bytes.len(), before, "they were known");
        shared.forget();
        assert!(shared.known.is_empty() && shared.bytes.is_empty());
    }

    #[test]
    fn each_command_is_told_its_own_replies() {
        let keys = Keys::from("k");
        let look = Command::Inspect { keys: keys.clone(), intents: None };
        let watch = Command::Watch { keys, intents: None };
        let mut parcel =
            parcel(vec![acquire("a", 1), watch, Command::Identify, look], Form::Usual, None);
        let replies = [
            Reply::Nil,
            Reply::Okay,
            Reply::Bytes(b"v".to_vec()),
            Reply::Int(5),
            Reply::Nil,
            Reply::Int(-2),
        ];
        for reply in replies {
            assert!(parcel.exchange.awaited().is_some());
            parcel.take(reply);
        }
        assert!(parcel.in_step && parcel.exchange.awaited().is_none());
        let (answers, _) = parcel.exchange.take();
        let [Answer::Refused, Answer::Watched(_), Answer::Identified, Answer::Seen(_)] =
            answers[..]
        else {
            panic!("{answers:?}")
        };
        // What comes behind all of them is what was asked behind them.
        parcel.take(Reply::Nil);
        assert_eq!((&parcel.marker, parcel.in_step), (&MarkerSeen::Missing, true));
        parcel.take(Reply::Okay);
        assert!(!parcel.in_step, "no marker is that");
    }
}
