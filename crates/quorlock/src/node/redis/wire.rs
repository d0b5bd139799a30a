//! The wire to a server: a socket, the bytes to write, and the batches that await replies.
//!
//! One task owns a wire: it writes the batches and reads their replies. A server answers in the order of sending, so
//! each reply belongs to the oldest batch that still awaits one. A reply that no batch awaits, or bytes that are
//! not RESP, mean that the stream is out of step; every later reply would be taken for the answer to a wrong command
//! (S22). The wire is then closed, and the batches in flight end without their replies.
//!
//! Memory is bounded whatever the server sends, and a server that pushes too much loses its connection
//! ([`Allowance`]).

mod allowance;
mod stream;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quorlock_core::supervisor::Activity;
use quorlock_core::{Failure, FailureKind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use self::allowance::Allowance;
use super::resp::Reply;
use super::wire_batch::WireBatch;
use crate::node::PushSink;
use crate::text::for_people;

pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// Size of one read in bytes: replies to some hundred commands.
const READ_SIZE: usize = 16 * 1024;

/// The most reads in one poll, so that one server does not hold up the other servers.
const READS_MAX: usize = 64;

/// After this many pushes a poll ends, so that one server does not hold up the other servers.
const PUSHES_MAX: usize = 512;

/// The replies to one batch are kept whole up to this many bytes in total.
const REPLIES_KEPT: usize = 1024 * 1024;

/// Beyond [`REPLIES_KEPT`], this many bytes of each further reply are kept.
const REPLY_KEPT: usize = 4096;

pub(super) struct Wire {
    /// `None` once the wire is closed.
    socket: Option<Box<dyn Socket>>,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Batches that await replies, in the order of sending.
    in_flight: VecDeque<Box<WireBatch>>,
    /// Batches that have all their replies, or will not get them because the wire was closed.
    finished: VecDeque<Box<WireBatch>>,
    pushed: Pushed,
    /// Wakes the task that owns the wire.
    waker: Waker,
    /// Time of the server's last complete message, or of sending a later batch while no batch was in flight.
    pub(super) alive_at: Instant,
    end: End,
    /// Takes the values of replies in parts, also those parts that are not kept.
    pub(super) overflow: Option<Overflow>,
}

/// Takes bytes as they arrive.
pub(super) type Overflow = Box<dyn FnMut(&[u8]) + Send>;

#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    /// Length of the part of `bytes` that has been written.
    written: usize,
    /// Bytes queued since the connection opened.
    queued_total: u64,
    /// Writing has failed, because the server no longer reads. Nothing more is written.
    is_cut: bool,
}

struct Incoming {
    bytes: Vec<u8>,
    /// The range of `bytes` that is still to be read.
    unread: (usize, usize),
    /// The next reply is incomplete before the input has this length.
    needed: usize,
    /// Bytes of a long value that are still to come, and are dropped.
    surplus: usize,
}

/// The pushes: messages of the server that answer no command.
struct Pushed {
    push_sink: PushSink,
    /// Number of messages that all of the server's data were deleted or replaced.
    flushes: u64,
    allowance: Allowance,
    /// Number of pushes that the current poll has read, for [`PUSHES_MAX`].
    count: usize,
}

#[derive(Default)]
struct End {
    failure: Option<Failure>,
    last_words: Option<String>,
    /// Whether the wire was closed while a plain batch awaited its first reply.
    unanswered: bool,
}

impl End {
    /// Records why the wire was closed. A stream that was out of step stays the reason, whatever else happens.
    fn blame(&mut self, failure: Failure) {
        if self.failure.is_none() || failure.kind() == FailureKind::Protocol {
            self.failure = Some(failure);
        }
    }
}

/// The replies to [`Wire::ask_timed`].
pub(super) struct Replies {
    pub(super) replies: Vec<Reply>,
    /// The time to the first reply.
    pub(super) round_trip: Duration,
    /// Number of times that the server had announced, before the first and before the last reply, that its data were
    /// replaced.
    pub(super) flushes: (u64, u64),
}

impl Wire {
    pub(super) fn new(socket: Box<dyn Socket>, push_sink: PushSink) -> Self {
        let now = Instant::now();
        Self {
            socket: Some(socket),
            outgoing: Outgoing::default(),
            incoming: Incoming { bytes: vec![0; READ_SIZE], unread: (0, 0), needed: 1, surplus: 0 },
            in_flight: VecDeque::new(),
            finished: VecDeque::new(),
            pushed: Pushed { push_sink, flushes: 0, allowance: Allowance::new(now), count: 0 },
            waker: Waker::noop().clone(),
            alive_at: now,
            end: End::default(),
            overflow: None,
        }
    }

    /// Sends a batch. `write` appends its bytes to the output and returns the number of replies that it will get.
    /// The batch comes back from [`next_finished`](Self::next_finished).
    ///
    /// # Errors
    /// Returns the batch if the wire is closed; nothing was sent.
    pub(super) fn send(
        &mut self,
        mut batch: Box<WireBatch>,
        write: impl FnOnce(&mut Vec<u8>, &WireBatch) -> usize,
    ) -> Result<(), Box<WireBatch>> {
        let Self { socket: Some(socket), outgoing, waker, .. } = self else { return Err(batch) };
        let before = outgoing.bytes.len();
        let replies = write(&mut outgoing.bytes, &batch);
        outgoing.queued_total += (outgoing.bytes.len() - before) as u64;
        batch.expect_replies(replies, outgoing.queued_total);
        if replies == 0 {
            batch.finish(self.pushed.flushes);
            self.finished.push_back(batch);
            waker.wake_by_ref();
            return Ok(());
        }
        if self.in_flight.is_empty() {
            self.alive_at = Instant::now();
        }
        self.in_flight.push_back(batch);
        // `poll` writes the bytes that the socket does not take now.
        let written = outgoing.write_to(socket, &mut Context::from_waker(waker));
        if let Err(failure) = self.after_writing(written) {
            self.close(failure);
        }
        Ok(())
    }

    /// Sends `write`'s bytes and waits for all replies to them. `write` returns the number of replies.
    ///
    /// # Errors
    /// Returns why the wire was closed, before or after the bytes were sent.
    pub(super) async fn ask(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> usize,
    ) -> Result<Vec<Reply>, Failure> {
        Ok(self.ask_timed(write).await?.replies)
    }

    /// As [`ask`](Self::ask), and measures the time to the first reply.
    pub(super) async fn ask_timed(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> usize,
    ) -> Result<Replies, Failure> {
        let (asked_at, mut first_at) = (Instant::now(), None);
        let end = self.send_plain(write)?;
        poll_fn(|cx| {
            let _: Poll<()> = self.poll(cx);
            let is_unanswered = |it: &WireBatch| it.end == end && it.preamble.is_empty();
            if !self.in_flight.iter().any(|it| is_unanswered(it)) {
                first_at.get_or_insert_with(Instant::now);
            }
            // An earlier question whose future was dropped may have left its batch in `finished`.
            while let Some(mut batch) = self.next_finished() {
                if batch.end == end {
                    let replies = std::mem::take(&mut batch.preamble);
                    let round_trip =
                        first_at.map_or(Duration::ZERO, |at| at.duration_since(asked_at));
                    let replies = |flushes| Replies { replies, round_trip, flushes };
                    return Poll::Ready(batch.flushes.map(replies));
                }
            }
            if self.is_closed() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
        .ok_or_else(|| self.why_closed())
    }

    /// Sends bytes that are no commands of the engine. Returns [`WireBatch::end`], which identifies their batch.
    pub(super) fn send_plain(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> usize,
    ) -> Result<u64, Failure> {
        let mut bytes = Vec::new();
        let replies = write(&mut bytes);
        let write = |out: &mut Vec<u8>, _: &WireBatch| {
            out.extend_from_slice(&bytes);
            replies
        };
        match self.send(Box::new(WireBatch::plain(replies)), write) {
            Ok(()) => Ok(self.outgoing.queued_total),
            Err(_) => Err(Failure::unsent(FailureKind::Unreachable)),
        }
    }

    /// The oldest batch that has all its replies, or will not get them. If a poll has closed the wire because it was
    /// [out of step](Self::why_out_of_step), the replies to the batch do not count.
    pub(super) fn next_finished(&mut self) -> Option<Box<WireBatch>> {
        self.finished.pop_front()
    }

    /// Lets the server push once more for each of this many newly watched keys.
    pub(super) fn expect_pushes(&mut self, keys: usize) {
        self.pushed.allowance.grant(keys as u64);
    }

    /// Writes the bytes that the socket did not take earlier, and reads all replies that have arrived. Ready when the
    /// wire is closed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_closed() {
            return Poll::Ready(());
        }
        self.transfer(cx).map(|failure| self.close(failure))
    }

    /// Closes the wire. The batches in flight end without their replies.
    pub(super) fn close(&mut self, failure: Failure) {
        self.socket = None;
        self.end.blame(failure);
        if let Some(batch) = self.in_flight.front().filter(|batch| batch.is_plain) {
            self.end.unanswered = batch.preamble.is_empty();
            if let Some(Reply::Error(error)) = batch.preamble.last() {
                self.end.last_words = Some(error.clone());
            }
        }
        self.finished.append(&mut self.in_flight);
        self.waker.wake_by_ref();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.socket.is_none()
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// The failure of the commands that got no reply before the wire was closed.
    pub(super) fn why_closed(&self) -> Failure {
        self.end.failure.clone().unwrap_or_else(|| lost("connection lost"))
    }

    /// The failure if the stream was out of step: no reply that arrived in the same poll can be trusted.
    pub(super) fn why_out_of_step(&self) -> Option<&Failure> {
        self.end.failure.as_ref().filter(|failure| failure.kind() == FailureKind::Protocol)
    }

    /// The server's last reply before the wire was closed, if it was an error and a plain batch awaited more replies.
    pub(super) fn last_words(&self) -> Option<&str> {
        self.end.last_words.as_deref()
    }

    /// Whether the wire was closed while a plain batch awaited its first reply.
    pub(super) fn broke_unanswered(&self) -> bool {
        self.end.unanswered
    }

    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    /// Whether replies are awaited, and the time from `start` to `alive_at`.
    pub(super) fn activity(&self, start: Instant) -> Activity {
        let heard_at = self.alive_at.saturating_duration_since(start);
        Activity { is_awaited: self.is_busy(), heard_at }
    }
}

/// The failure of a stream whose replies no longer fit their commands.
fn out_of_step(detail: &str) -> Failure {
    Failure::new(FailureKind::Protocol).with_detail(detail)
}

/// The failure of commands in flight when the connection broke. Their effect is unknown.
fn broken(error: &io::Error) -> Failure {
    lost(&for_people(&error.to_string()))
}

pub(super) fn lost(detail: &str) -> Failure {
    Failure::new(FailureKind::Unreachable).with_detail(detail.to_owned())
}

#[cfg(test)]
mod tests;
