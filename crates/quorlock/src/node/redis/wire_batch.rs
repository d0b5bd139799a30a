//! A batch on the wire: its commands, the evidence (`INFO`, marker) that is requested with them, and the answers.

use std::iter::once;

use quorlock_core::{Answer, Commands, Exchange, Failure, Form, MarkerSeen};

use super::codec::{Encoding, decode, decode_in_place, encode, is_out_of_protocol, replies_to};
use super::evidence::{EvidenceQuestions, acknowledged, marker_of};
use super::lacking::Lacking;
use super::resp::{self, Reply};
use super::scripts::Scripts;

/// Bytes that are sent together, and the replies so far. The replies come in the order of the questions: preamble,
/// commands, epilogue (the marker, then two replies about the replicas).
#[derive(Debug, Default)]
pub(super) struct WireBatch {
    /// The bytes are no commands of the engine, and the replies are kept as they are.
    pub(super) is_plain: bool,
    pub(super) exchange: Exchange,
    pub(super) encoding: Encoding,
    pub(super) questions: EvidenceQuestions,
    /// The replies to the preamble.
    pub(super) preamble: Vec<Reply>,
    pub(super) marker: MarkerSeen,
    /// Number of replicas that acknowledged the batch, or the error of its write or `WAIT`; `None` before the replies.
    pub(super) acknowledged: Option<Result<u32, Failure>>,
    /// The replies so far to a command that gets several, or to the write and `WAIT` that follow the marker.
    parts: Vec<Reply>,
    /// The batch is the first on its connection.
    pub(super) is_first: bool,
    /// All replies so far fit their commands.
    pub(super) in_step: bool,
    missing: usize,
    /// Bytes queued on the connection up to the end of this batch.
    pub(super) end: u64,
    /// Bytes of the replies that the batch has kept so far.
    pub(super) bytes_kept: usize,
    first_flushes: Option<u64>,
    /// Number of the server's announcements that its data were replaced, before the first reply and before the last.
    /// `None` until all replies have arrived.
    pub(super) flushes: Option<(u64, u64)>,
}

pub(super) type WireBatches = Vec<Box<WireBatch>>;

impl WireBatch {
    pub(super) fn plain(replies: usize) -> Self {
        let questions = EvidenceQuestions::plain(replies);
        Self { is_plain: true, questions, in_step: true, ..Self::default() }
    }

    /// Prepares to send the batch, or commands of it again. Drops the replies that an earlier sending got.
    pub(super) fn prepare(&mut self, encoding: Encoding, questions: EvidenceQuestions) {
        (self.encoding, self.questions) = (encoding, questions);
        self.preamble.clear();
        self.parts.clear();
        (self.marker, self.in_step) = (MarkerSeen::NotAsked, true);
        self.acknowledged = None;
        (self.first_flushes, self.flushes) = (None, None);
        self.pass_over();
    }

    /// Notes how many replies the batch will get, and where it ends in the connection's output.
    pub(super) fn expect_replies(&mut self, count: usize, end: u64) {
        (self.missing, self.end, self.bytes_kept) = (count, end, 0);
        (self.first_flushes, self.flushes) = (None, None);
    }

    pub(super) fn take(&mut self, reply: Reply) {
        if self.preamble.len() < self.questions.preamble_replies {
            self.in_step &= self.is_plain || self.questions.fits(self.preamble.len(), &reply);
            self.preamble.push(reply);
            return;
        }
        let Some(command) = self.exchange.awaited() else {
            return self.take_epilogue(reply);
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

    /// Takes the marker, or a reply after the marker that is about the node's replicas.
    fn take_epilogue(&mut self, reply: Reply) {
        if self.questions.request.acknowledgement && self.missing <= 2 {
            self.parts.push(reply);
            if let [write, wait] = &*self.parts {
                self.acknowledged = acknowledged(write, wait);
                self.in_step &= self.acknowledged.is_some();
            }
            return;
        }
        match marker_of(&reply, &self.exchange) {
            Some(marker) => self.marker = marker,
            None => self.in_step = false,
        }
    }

    /// Takes replies from the beginning of the input while each is an answer of a few bytes, or a short marker.
    /// Returns the number of bytes taken.
    ///
    /// `flushes` is the number of times that the server announced, on this connection and before these replies, that
    /// all of its data was deleted or replaced.
    #[inline]
    pub(super) fn take_in_place(&mut self, input: &[u8], flushes: u64) -> usize {
        // If the server lacks a command or a right, some commands were not sent and get no reply.
        let are_all_sent = self.encoding.lacking == Lacking::default();
        if !are_all_sent || self.preamble.len() < self.questions.preamble_replies {
            return 0;
        }
        let mut taken = 0;
        let mut count = self.exchange.answer_while(|command| {
            let (answer, length) = decode_in_place(command, input.get(taken..)?)?;
            taken += length;
            Some(answer)
        });
        self.pass_over();
        if self.exchange.awaited().is_none()
            && self.questions.request.marker
            && self.missing == count + self.questions.epilogue_replies()
            && let Some((value, length)) = input.get(taken..).and_then(resp::short_value)
        {
            self.marker = self.exchange.marker(value);
            taken += length;
            count += 1;
        }
        if count > 0 {
            self.first_flushes.get_or_insert(flushes);
            self.missing -= count;
        }
        taken
    }

    /// Answers the next commands in place of the server if they were not sent, because the server sends no reply to
    /// them.
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

    /// Counts a reply that arrived after this many announcements of replaced data.
    pub(super) fn count_off(&mut self, flushes: u64) {
        self.first_flushes.get_or_insert(flushes);
        self.missing -= 1;
    }

    /// Whether the server has sent any reply. None is due if no command of the batch was sent.
    pub(super) const fn has_replies(&self) -> bool {
        self.first_flushes.is_some()
    }

    pub(super) const fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Notes that all replies have arrived, after this many announcements of replaced data.
    pub(super) fn finish(&mut self, flushes: u64) {
        self.flushes = Some((self.first_flushes.unwrap_or(flushes), flushes));
    }
}

/// The bytes of the commands of one tick (one round of the driver). A command for several nodes is encoded once.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    /// The commands of this tick, while they are handed to the transports.
    commands: Option<Commands>,
    /// The encoding of the first batch with these commands. A node with another encoding gets its own bytes.
    encoding: Option<Encoding>,
    /// For each command, the range of its bytes and the number of its replies; `None` until a batch has the command.
    encoded: Vec<Option<Encoded>>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Encoded {
    start: usize,
    end: usize,
    replies: usize,
}

impl Encoder {
    /// Begins to hand these commands to the transports.
    pub(crate) fn begin(&mut self, commands: &Commands) {
        self.encoded.resize(commands.len(), None);
        (self.commands, self.encoding) = (Some(commands.clone()), None);
    }

    /// Forgets the commands.
    pub(crate) fn end(&mut self) {
        (self.commands, self.encoding) = (None, None);
        self.encoded.clear();
        self.bytes.clear();
        self.encoded.shrink_to(Self::KEPT);
        self.bytes.shrink_to(Self::KEPT * 100);
    }

    /// Memory for this many commands is reused in the next tick; few ticks have more.
    pub(super) const KEPT: usize = 256;

    /// Writes the batch's commands, and returns the number of their replies.
    pub(super) fn write(
        &mut self,
        batch: &WireBatch,
        scripts: &Scripts,
        out: &mut Vec<u8>,
    ) -> usize {
        let (exchange, encoding) = (&batch.exchange, batch.encoding);
        let is_shared = self.commands.as_ref().is_some_and(|commands| exchange.is_of(commands))
            && *self.encoding.get_or_insert(encoding) == encoding;
        let mut replies = 0;
        if !is_shared {
            for (_, command) in exchange.to_send() {
                encode(command, encoding, scripts, out);
                replies += replies_to(command, encoding);
            }
            return replies;
        }
        // The range of bytes that are not copied yet. Commands whose bytes lie side by side are copied together.
        let (mut start, mut end) = (0, 0);
        for (place, (_, command)) in exchange.to_send_of_list() {
            let encoded = self.encoded[place].unwrap_or_else(|| {
                let start = self.bytes.len();
                encode(command, encoding, scripts, &mut self.bytes);
                let replies = replies_to(command, encoding);
                Encoded { start, end: self.bytes.len(), replies }
            });
            self.encoded[place] = Some(encoded);
            if encoded.start != end {
                out.extend_from_slice(&self.bytes[start..end]);
                start = encoded.start;
            }
            end = encoded.end;
            replies += encoded.replies;
        }
        out.extend_from_slice(&self.bytes[start..end]);
        replies
    }
}

#[cfg(test)]
mod tests {
    use quorlock_core::{
        AcquireForm, BatchId, Command, EvidenceRequest, ExtendForm, Keys, LockId, NodeId,
        NodePipeline, NodeState, Reading, ReleaseForm, Session, Ticket, Token, Value, Verb,
    };

    use super::super::codec::Delete;
    use super::*;

    fn acquire(key: &str, ttl_ms: u64) -> Command {
        let value = Value::new(&Token::new([7; 20]), "");
        Command::Acquire { keys: key.into(), value, ttl_ms, form: AcquireForm::Plain }
    }

    fn prepared(exchange: Exchange, encoding: Encoding) -> WireBatch {
        let mut batch = WireBatch { exchange, ..WireBatch::default() };
        Session::new(false).prepare(&mut batch.exchange);
        batch.prepare(encoding, EvidenceQuestions::default());
        batch
    }

    fn written(encoder: &mut Encoder, batch: &WireBatch, scripts: &Scripts) -> String {
        let mut out = Vec::new();
        encoder.write(batch, scripts, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// The encoder's output does not depend on the commands that it wrote before.
    #[test]
    fn a_command_that_is_encoded_once_has_the_bytes_that_each_node_would_encode() {
        let (scripts, shared) = (Scripts::new(), &mut Encoder::default());
        let one = acquire("one", 1000);
        let Command::Acquire { keys, value, .. } = one.clone() else { unreachable!() };
        let form = ReleaseForm::Plain { tell: true };
        let release = Command::Release { keys: keys.clone(), value: value.clone(), form };
        let extend = Command::Extend { keys, value, ttl_ms: 1000, form: ExtendForm::Plain };
        let all = [one, acquire("other", 1000), release, extend, Command::Identify];
        let ticket = Ticket { lock: LockId(1), round: 1, verb: Verb::Acquire };
        let commands = Commands::new(all.map(|command| (ticket, command)).to_vec());
        let former = Commands::new(commands.to_vec());
        let all = [0, 1, 2, 3, 4];
        let usual = Encoding { watches: true, ..Encoding::default() };
        let deletes = Encoding { delete: Some(Delete::IfEq), ..usual };
        let text = Encoding { form: Form::Text, ..usual };
        // A server that lacks all commands gets no bytes.
        let lacking = Encoding { lacking: Lacking::of_infos(&[const { Reply::Nil }; 64]), ..usual };
        for first in [usual, lacking] {
            shared.begin(&commands);
            for (encoding, list, members) in [
                (first, &commands, &all[1..3]),
                (usual, &commands, &all[..]),
                (usual, &commands, &all[..]),
                (deletes, &commands, &[0, 2, 3]),
                (usual, &former, &[1, 2]),
                (usual, &commands, &[4, 1, 3]),
                (text, &commands, &all),
                (lacking, &commands, &all),
            ] {
                let separate = members.iter().map(|place| list[*place].1.clone()).collect();
                let alone = prepared(Exchange::new(BatchId(0), separate), encoding);
                let alone = written(&mut Encoder::default(), &alone, &scripts);
                let mut pipeline = NodePipeline::new(NodeId::new(0));
                let (mut exchange, now) = (Exchange::default(), Reading::new(0, 0));
                pipeline.push(list, members, &NodeState::Up, now, &mut Vec::new());
                pipeline.next_batch(&NodeState::Up, now, &mut exchange, &mut Vec::new());
                assert_eq!(written(shared, &prepared(exchange, encoding), &scripts), alone);
            }
            assert_eq!(shared.encoded.iter().flatten().count(), all.len());
            shared.end();
            assert!(shared.encoded.is_empty() && shared.bytes.is_empty());
        }
        assert_eq!(Commands::strong_count(&commands), 1, "the list can be reused");
    }

    /// The server gets only the release and the `Watch`, because the user may not use `SET`. The reply to the `Watch`
    /// must not become the answer to the acquire.
    #[test]
    fn a_command_that_was_not_sent_gets_no_reply_of_a_later_one() {
        let keys = Keys::from("k");
        let value = Value::new(&Token::new([7; 20]), "");
        let form = ReleaseForm::Plain { tell: false };
        let release = Command::Release { keys: keys.clone(), value, form };
        let watch = Command::Watch { keys, intents: None };
        // The second of the tested rights is that to SET.
        let rights = [Reply::List(vec![Reply::Int(2)])];
        let lacking = Lacking::default().with_rights(&rights, false);
        let encoding = Encoding { watches: true, lacking, ..Encoding::default() };
        let commands = vec![release, acquire("a", 1), watch];
        let mut batch = prepared(Exchange::new(BatchId(0), commands), encoding);
        batch.expect_replies(4, 0);
        assert_eq!(batch.take_in_place(b":1\r\n+OK\r\n$1\r\nv\r\n:5\r\n", 0), 0);
        for reply in [Reply::Int(1), Reply::Okay, Reply::Bytes(b"v".to_vec()), Reply::Int(5)] {
            batch.take(reply);
            batch.count_off(0);
        }
        let (answers, _) = batch.exchange.take();
        let [(_, Answer::Deleted), (_, Answer::Failed(_)), (_, Answer::Watched(_))] = answers[..]
        else {
            panic!("{answers:?}")
        };
        assert!(batch.is_complete());
    }

    #[test]
    fn each_command_gets_its_own_replies() {
        let keys = Keys::from("k");
        let look = Command::Inspect { keys: keys.clone(), intents: None };
        let watch = Command::Watch { keys, intents: None };
        let commands = vec![acquire("a", 1), watch, Command::Identify, look];
        let encoding = Encoding { watches: true, ..Encoding::default() };
        let mut batch = prepared(Exchange::new(BatchId(0), commands), encoding);
        let replies = [
            Reply::Nil,
            Reply::Okay,
            Reply::Bytes(b"v".to_vec()),
            Reply::Int(5),
            Reply::Nil,
            Reply::Int(-2),
        ];
        for reply in replies {
            assert!(batch.exchange.awaited().is_some());
            batch.take(reply);
        }
        assert!(batch.in_step && batch.exchange.awaited().is_none());
        let (answers, _) = batch.exchange.take();
        let [
            (_, Answer::Refused),
            (_, Answer::Watched(_)),
            (_, Answer::Identified),
            (_, Answer::Seen(_)),
        ] = answers[..]
        else {
            panic!("{answers:?}")
        };
        // The reply that follows the replies to the commands is the marker.
        batch.take(Reply::Nil);
        assert_eq!((&batch.marker, batch.in_step), (&MarkerSeen::Missing, true));
        batch.take(Reply::Okay);
        assert!(!batch.in_step, "a marker is no status");
    }

    /// A value in the place of the reply to `WAIT` shows that the stream is out of step (S22).
    #[test]
    fn a_marker_is_read_in_its_place_only() {
        let request = EvidenceRequest { info: false, marker: true, acknowledgement: true };
        let mut batch =
            prepared(Exchange::new(BatchId(0), vec![acquire("a", 1)]), Encoding::default());
        batch.questions = EvidenceQuestions::new(request, false, None);
        batch.expect_replies(1 + batch.questions.epilogue_replies(), 0);
        let input = b"+OK\r\n$1\r\nm\r\n+OK\r\n$1\r\n1\r\n";
        assert_eq!(batch.take_in_place(input, 0), 12, "the grant and the marker");
        batch.take(Reply::Okay);
        batch.count_off(0);
        assert_eq!(batch.take_in_place(&input[17..], 0), 0);
        batch.take(Reply::Bytes(b"1".to_vec()));
        assert_eq!((&batch.marker, batch.in_step), (&MarkerSeen::Text("m".into()), false));
    }
}
