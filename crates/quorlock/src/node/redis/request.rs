//! A request on the wire: a batch's commands, the evidence (`INFO`, marker) that is requested with them, and the
//! answers.

use std::iter::once;

use quorlock_core::{Answer, BatchId, Command, Exchange, Form, MarkerSeen};

use super::codec::{Encoding, decode, encode, is_out_of_protocol, replies_to, usual};
use super::evidence::{Beside, marker_of};
use super::resp::{self, Reply};
use super::scripts::Scripts;

/// Commands that are sent together, and their replies so far. There are three groups of replies, in this order: those
/// to the questions before the commands, those to the commands, and the marker.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// `None` for a plain request, which has no commands.
    pub(super) batch: Option<BatchId>,
    pub(super) exchange: Exchange,
    pub(super) encoding: Encoding,
    pub(super) beside: Beside,
    /// The replies that precede the replies to the commands.
    pub(super) before: Vec<Reply>,
    pub(super) marker: MarkerSeen,
    /// The replies so far to a command that gets several.
    parts: Vec<Reply>,
    /// The request is the first on its connection.
    pub(super) is_first: bool,
    /// All replies so far fit their commands.
    pub(super) in_step: bool,
    /// Replies that are still to come.
    missing: usize,
    /// Bytes queued on the connection up to the end of this request.
    end: u64,
    /// Bytes of replies that are kept.
    pub(super) bytes_kept: usize,
    first_flushes: Option<u64>,
    /// Number of the server's announcements that its data were replaced, before the first reply and before the last.
    /// `None` until all replies have arrived.
    pub(super) flushes: Option<(u64, u64)>,
}

pub(super) type Requests = Vec<Box<Request>>;

impl Request {
    /// A request whose replies are kept as they are.
    pub(super) fn plain(replies: usize) -> Self {
        Self { beside: Beside::plain(replies), in_step: true, ..Self::default() }
    }

    pub(super) fn batch(batch: BatchId, commands: Vec<Command>) -> Self {
        Self { batch: Some(batch), exchange: Exchange::new(commands), ..Self::default() }
    }

    pub(super) fn is_plain(&self) -> bool {
        self.batch.is_none()
    }

    /// Prepares to send the batch, or commands of it again. Drops the replies that an earlier sending got.
    pub(super) fn prepare(&mut self, encoding: Encoding, beside: Beside) {
        (self.encoding, self.beside) = (encoding, beside);
        self.before.clear();
        self.parts.clear();
        (self.marker, self.in_step) = (MarkerSeen::NotAsked, true);
        self.pass_over();
    }

    /// Notes how many replies the request will get, and where it ends in the connection's output.
    pub(super) fn expect_replies(&mut self, count: usize, end: u64) {
        (self.missing, self.end, self.bytes_kept) = (count, end, 0);
        (self.first_flushes, self.flushes) = (None, None);
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

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
        let count = replies_to(command, self.encoding);
        let answer = if count == 1 {
            decode(command, self.encoding, &mut once(reply))
        } else {
            self.parts.push(reply);
            if self.parts.len() < count {
                return;
            }
            decode(command, self.encoding, &mut self.parts.drain(..))
        };
        self.answer(answer);
        self.pass_over();
    }

    /// Takes the reply at the input's beginning if it is a usual one: an answer of a few bytes, or a short marker.
    /// Returns the length of the reply.
    #[inline]
    pub(super) fn take_in_place(&mut self, input: &[u8]) -> Option<usize> {
        if self.before.len() < self.beside.before {
            return None;
        }
        match self.exchange.awaited() {
            Some(command) => {
                let (answer, length) = usual(command, input)?;
                self.exchange.answer(Ok(answer));
                self.pass_over();
                Some(length)
            }
            None if self.beside.has_marker() && self.missing == 1 => {
                let (value, length) = resp::short_value(input)?;
                self.marker = self.exchange.marker(value);
                Some(length)
            }
            None => None,
        }
    }

    /// Answers the next commands as long as the server sends no reply to them.
    #[inline]
    fn pass_over(&mut self) {
        while let Some(command) = self.exchange.awaited()
            && replies_to(command, self.encoding) == 0
        {
            let answer = decode(command, self.encoding, &mut std::iter::empty());
            self.answer(answer);
        }
    }

    fn answer(&mut self, answer: Result<Answer, Form>) {
        self.in_step &= !answer.as_ref().is_ok_and(is_out_of_protocol);
        self.exchange.answer(answer);
    }

    /// Counts a reply that arrived after this many announcements of replaced data. Returns whether it was the last
    /// reply.
    #[inline]
    pub(super) fn count_off(&mut self, flushes: u64) -> bool {
        self.first_flushes.get_or_insert(flushes);
        self.missing -= 1;
        self.missing == 0
    }

    /// Notes that all replies have arrived, after this many announcements of replaced data.
    pub(super) fn finish(&mut self, flushes: u64) {
        self.flushes = Some((self.first_flushes.unwrap_or(flushes), flushes));
    }
}

/// The commands of this tick and their bytes: a command for several nodes is encoded once.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    known: Vec<Known>,
    bytes: Vec<u8>,
    /// The index in `known` of the command that is likely to be next.
    next: usize,
}

#[derive(Debug)]
struct Known {
    command: Command,
    encoding: Encoding,
    start: usize,
    end: usize,
    replies: usize,
}

impl Encoder {
    /// Forgets the commands of a tick.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.bytes.clear();
        self.known.shrink_to(Self::KEPT);
        self.bytes.shrink_to(Self::KEPT * 100);
    }

    /// Memory for this many commands is reused in the next tick; few ticks have more.
    pub(super) const KEPT: usize = 256;

    /// Writes the request's commands, and returns the number of their replies.
    pub(super) fn write(
        &mut self,
        request: &Request,
        scripts: &Scripts,
        out: &mut Vec<u8>,
    ) -> usize {
        // Most nodes get the same commands in the same order, so the search for known commands starts at the first.
        self.next = 0;
        let mut replies = 0;
        for command in request.exchange.to_send() {
            replies += self.write_one(command, request.encoding, scripts, out);
        }
        replies
    }

    /// Writes a command, and returns the number of its replies.
    fn write_one(
        &mut self,
        command: &Command,
        encoding: Encoding,
        scripts: &Scripts,
        out: &mut Vec<u8>,
    ) -> usize {
        match self.known.get(self.next) {
            Some(known) if known.encoding == encoding && is_same(&known.command, command) => {
                self.next += 1;
                out.extend_from_slice(&self.bytes[known.start..known.end]);
                known.replies
            }
            Some(_) => {
                encode(command, encoding, scripts, out);
                replies_to(command, encoding)
            }
            None => {
                let start = self.bytes.len();
                encode(command, encoding, scripts, &mut self.bytes);
                out.extend_from_slice(&self.bytes[start..]);
                let (replies, end) = (replies_to(command, encoding), self.bytes.len());
                let command = command.clone();
                self.known.push(Known { command, encoding, start, end, replies });
                self.next += 1;
                replies
            }
        }
    }
}

/// Whether the commands are equal. Compares the pointers of values, not their bytes. So equal commands of different
/// attempts may count as different.
fn is_same(one: &Command, other: &Command) -> bool {
    use Command::{Acquire, Extend, ExtendShared, Release, ReleaseShared};
    // A value belongs to one attempt and so always to the same keys, which need no comparison.
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

    fn request(commands: Vec<Command>, form: Form, delete: Option<Delete>) -> Request {
        let mut request = Request::batch(BatchId(0), commands);
        Session::new(false).send(&mut request.exchange);
        request.prepare(
            Encoding { form, delete, watches: true, ..Encoding::default() },
            Beside::default(),
        );
        request
    }

    fn written(encoder: &mut Encoder, request: &Request, scripts: &Scripts) -> String {
        let mut out = Vec::new();
        encoder.write(request, scripts, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// The encoder's output does not depend on the commands that it wrote before.
    #[test]
    fn a_command_that_is_encoded_once_has_the_bytes_that_each_node_would_encode() {
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
            let request = request(commands, form, delete);
            let alone = written(&mut Encoder::default(), &request, &scripts);
            assert_eq!(written(shared, &request, &scripts), alone);
        }
        let before = shared.bytes.len();
        written(shared, &request(vec![one, other], Form::Usual, None), &scripts);
        assert_eq!(shared.bytes.len(), before, "they were known");
        shared.forget();
        assert!(shared.known.is_empty() && shared.bytes.is_empty());
    }

    #[test]
    fn each_command_gets_its_own_replies() {
        let keys = Keys::from("k");
        let look = Command::Inspect { keys: keys.clone(), intents: None };
        let watch = Command::Watch { keys, intents: None };
        let mut request =
            request(vec![acquire("a", 1), watch, Command::Identify, look], Form::Usual, None);
        let replies = [
            Reply::Nil,
            Reply::Okay,
            Reply::Bytes(b"v".to_vec()),
            Reply::Int(5),
            Reply::Nil,
            Reply::Int(-2),
        ];
        for reply in replies {
            assert!(request.exchange.awaited().is_some());
            request.take(reply);
        }
        assert!(request.in_step && request.exchange.awaited().is_none());
        let (answers, _) = request.exchange.take();
        let [Answer::Refused, Answer::Watched(_), Answer::Identified, Answer::Seen(_)] =
            answers[..]
        else {
            panic!("{answers:?}")
        };
        // The reply that follows the replies to the commands is the marker.
        request.take(Reply::Nil);
        assert_eq!((&request.marker, request.in_step), (&MarkerSeen::Missing, true));
        request.take(Reply::Okay);
        assert!(!request.in_step, "a marker is no status");
    }
}
