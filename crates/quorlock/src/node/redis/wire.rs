//! The wire to a server: a socket, what is to be written to it, and who waits for what it says.
//!
//! Commands are written in the task that has made them, and their replies are read in the same
//! task. So a command changes no task and no thread on its way to the socket and back. Replies
//! belong to the commands in the order of sending. If nobody waits for a reply, or it is not a
//! reply, the stream is out of step, and so would be all that follows (S22). The wire is then
//! closed, and what waited for a reply is told that it got none.
//!
//! A server is not trusted to be modest: what is kept of what it says is bounded, whatever it says, and one
//! that [floods](Allowance) us with pushes is hung up on.

mod allowance;
mod stream;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use quorlock_core::supervisor::Activity;
use quorlock_core::{BatchId, Failure, FailureKind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use self::allowance::Allowance;
use super::parcel::{Parcel, To};
use super::resp::Reply;
use crate::node::PushSink;
use crate::text::for_people;

pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// Bytes of one read: replies to some hundred commands.
const READ_SIZE: usize = 16 * 1024;

/// Reads in one turn, and pushes in one turn, before other servers have theirs.
const READS_MAX: usize = 64;

const PUSHES_MAX: usize = 512;

/// The replies to commands that were sent together are kept whole up to this; and so much more for each.
const REPLIES_KEPT: usize = 1024 * 1024;
const REPLY_KEPT: usize = 4096;

/// Commands go in, replies come out, and time is kept of when the server last said anything.
pub(super) struct Wire {
    inner: Mutex<Inner>,
    closed: AtomicBool,
    /// Wakes [`Wire::busy`] and [`Wire::heard`].
    stir: Notify,
    /// Wakes [`Wire::closed`].
    close: Notify,
}

struct Inner {
    /// `None` once the wire is closed.
    socket: Option<Box<dyn Socket>>,
    outgoing: Outgoing,
    incoming: Incoming,
    awaited: VecDeque<Awaited>,
    /// Parcels whose replies have come, or will not, for the line that has sent them.
    delivered: Vec<(BatchId, Box<Parcel>)>,
    pushed: Pushed,
    reader: Waker,
    /// When the server last gave a sign of life, or was first asked after a pause.
    alive_at: Instant,
    tell: Tell,
    end: End,
}

#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    /// Bytes of `bytes` that have been written.
    written: usize,
    /// Bytes queued since the connection opened.
    said: u64,
    /// The server no longer reads.
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

/// Messages that answer no command.
struct Pushed {
    push_sink: PushSink,
    /// Messages that all of the server's data are gone or replaced.
    flushes: u64,
    allowance: Allowance,
    /// Pushes in this turn.
    count: usize,
}

#[derive(Default)]
struct Tell {
    /// Wake [`Wire::busy`] when a command awaits a reply again.
    busy: bool,
    /// Wake [`Wire::heard`] at the server's next bytes.
    heard: bool,
}

#[derive(Default)]
struct End {
    failure: Option<Failure>,
    last_words: Option<String>,
    /// The wire was closed before the first reply.
    unanswered: bool,
}

impl End {
    /// That something was out of step is not hidden by what came of the connection then.
    fn blame(&mut self, failure: Failure) {
        if self.failure.is_none() || failure.kind() == FailureKind::Protocol {
            self.failure = Some(failure);
        }
    }
}

/// Commands that were sent together, and their replies so far.
struct Awaited {
    /// Replies that are still to come.
    missing: usize,
    /// Of all that was ever said, their end.
    end: u64,
    /// Bytes of the replies that are kept.
    kept: usize,
    /// How often the server had said that its data are others, when the first reply came.
    flushes: Option<u64>,
    taker: Taker,
}

enum Taker {
    /// A task that takes all replies at once.
    Whole { replies: Vec<Reply>, done: oneshot::Sender<Vec<Reply>> },
    /// A parcel that takes each reply as it comes.
    Parcel { parcel: Box<Parcel>, to: To },
}

impl Wire {
    pub(super) fn new(socket: Box<dyn Socket>, push_sink: PushSink) -> Self {
        let inner = Inner {
            socket: Some(socket),
            outgoing: Outgoing::default(),
            incoming: Incoming { bytes: vec![0; READ_SIZE], unread: (0, 0), needed: 1, surplus: 0 },
            awaited: VecDeque::new(),
            delivered: Vec::new(),
            pushed: Pushed {
                push_sink,
                flushes: 0,
                allowance: Allowance::new(Instant::now()),
                count: 0,
            },
            reader: Waker::noop().clone(),
            alive_at: Instant::now(),
            tell: Tell::default(),
            end: End::default(),
        };
        let (stir, close) = (Notify::new(), Notify::new());
        Self { inner: Mutex::new(inner), closed: AtomicBool::new(false), stir, close }
    }

    /// Sends commands. `write` appends them to what is to be sent, and says how many replies they
    /// get. The replies come all at once; if they do not come, [`why_closed`](Self::why_closed) tells
    /// why. An error means that the wire was closed before, and nothing has been sent.
    pub(super) fn send(
        &self,
        write: impl FnOnce(&mut Vec<u8>) -> usize,
    ) -> Result<oneshot::Receiver<Vec<Reply>>, Failure> {
        let (done, replies) = oneshot::channel();
        let taker = Taker::Whole { replies: Vec::new(), done };
        match self.send_to(taker, |out, _| write(out)) {
            Ok(()) => Ok(replies),
            Err(_) => Err(Failure::unsent(FailureKind::Unreachable)),
        }
    }

    /// Sends a batch; `write` as for [`send`](Self::send). It comes back to whom it says when all its replies have
    /// come, or will not. Given back at once: the wire was closed before, and nothing has been sent.
    pub(super) fn send_parcel(
        &self,
        parcel: Box<Parcel>,
        to: To,
        write: impl FnOnce(&mut Vec<u8>, &mut Parcel) -> usize,
    ) -> Result<(), Box<Parcel>> {
        let write = |out: &mut Vec<u8>, taker: &mut Taker| match taker {
            Taker::Parcel { parcel, .. } => write(out, parcel),
            Taker::Whole { .. } => 0,
        };
        match self.send_to(Taker::Parcel { parcel, to }, write) {
            Ok(()) | Err(Taker::Whole { .. }) => Ok(()),
            Err(Taker::Parcel { parcel, .. }) => Err(parcel),
        }
    }

    fn send_to(
        &self,
        mut taker: Taker,
        write: impl FnOnce(&mut Vec<u8>, &mut Taker) -> usize,
    ) -> Result<(), Taker> {
        let result = {
            let inner = &mut *self.lock();
            if inner.socket.is_none() {
                return Err(taker);
            }
            let outgoing = &mut inner.outgoing;
            let before = outgoing.bytes.len();
            let missing = write(&mut outgoing.bytes, &mut taker);
            outgoing.said += (outgoing.bytes.len() - before) as u64;
            let mut awaited =
                Awaited { missing, end: outgoing.said, kept: 0, flushes: None, taker };
            if missing == 0 {
                // Nothing was asked, and this is what is said to it.
                awaited.flushes = Some(inner.pushed.flushes);
                inner.deliver(awaited);
                inner.reader.wake_by_ref();
                return Ok(());
            }
            if inner.awaited.is_empty() {
                inner.alive_at = Instant::now();
            }
            if let Taker::Whole { replies, .. } = &mut awaited.taker {
                replies.reserve(missing);
            }
            inner.awaited.push_back(awaited);
            if std::mem::take(&mut inner.tell.busy) {
                self.stir.notify_one();
            }
            // Whatever cannot be written at once is written by who reads.
            let reader = inner.reader.clone();
            let written = inner.write_out(&mut Context::from_waker(&reader));
            inner.after_writing(written)
        };
        if let Err(failure) = result {
            self.close(failure);
        }
        Ok(())
    }

    /// Allows one push for each of this many watched keys.
    pub(super) fn expect_pushes(&self, keys: usize) {
        self.lock().pushed.allowance.grant(keys as u64);
    }

    /// Reads, and writes what could not be written at once, until the wire is closed.
    pub(super) async fn run(&self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    /// Reads what there is, and writes what could not be written at once. Ready when the wire is closed.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let (polled, is_heard) = {
            let inner = &mut *self.lock();
            let alive_at = inner.alive_at;
            let polled = inner.poll(cx);
            (polled, inner.tell.heard && inner.alive_at != alive_at)
        };
        if is_heard {
            self.lock().tell.heard = false;
            self.stir.notify_one();
        }
        polled.map(|failure| self.close(failure))
    }

    /// The same, for the line, whose parcels are added to `delivered`: those whose replies have come, and if the wire
    /// is closed, all. Their replies are to be believed only if it was not closed with
    /// [`why_out_of_step`](Self::why_out_of_step).
    pub(super) fn poll_parcels(
        &self,
        cx: &mut Context<'_>,
        delivered: &mut Vec<(BatchId, Box<Parcel>)>,
    ) {
        if !self.is_closed() {
            // The supervisor is told by `close`.
            let _: Poll<()> = self.poll(cx);
        }
        delivered.append(&mut self.lock().delivered);
    }

    /// Waits until the wire is closed, while another reads it.
    pub(super) async fn closed(&self) {
        while !self.is_closed() {
            self.close.notified().await;
        }
    }

    /// Closes the wire, and gives all commands in flight this failure.
    pub(super) fn close(&self, failure: Failure) {
        let reader = {
            let inner = &mut *self.lock();
            inner.socket = None;
            inner.end.blame(failure);
            self.closed.store(true, Ordering::Release);
            if let Some(Awaited { taker: Taker::Whole { replies, .. }, .. }) = inner.awaited.front()
            {
                inner.end.unanswered = replies.is_empty();
                if let Some(Reply::Error(error)) = replies.last() {
                    inner.end.last_words = Some(error.clone());
                }
            }
            // All that wait for replies are told now that none will come.
            for awaited in std::mem::take(&mut inner.awaited) {
                if let Taker::Parcel { parcel, to } = awaited.taker {
                    inner.hand_back(parcel, to);
                }
            }
            inner.reader.clone()
        };
        self.close.notify_one();
        reader.wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The failure of commands without a reply.
    pub(super) fn why_closed(&self) -> Failure {
        self.lock().end.failure.clone().unwrap_or_else(|| lost("connection lost"))
    }

    /// Something came that was no reply to anything: then nothing that came with it is to be trusted.
    pub(super) fn why_out_of_step(&self) -> Option<Failure> {
        let failure = self.lock().end.failure.clone();
        failure.filter(|failure| failure.kind() == FailureKind::Protocol)
    }

    /// The error that came before the wire was closed, where other replies were awaited as well.
    pub(super) fn last_words(&self) -> Option<String> {
        self.lock().end.last_words.clone()
    }

    /// The wire was closed before the first reply to a question.
    pub(super) fn broke_unanswered(&self) -> bool {
        self.lock().end.unanswered
    }

    /// The traffic so far, with times since `start`.
    pub(super) fn activity(&self, start: Instant) -> Activity {
        let inner = self.lock();
        let heard_at = inner.alive_at.saturating_duration_since(start);
        Activity { is_awaited: !inner.awaited.is_empty(), heard_at }
    }

    pub(super) async fn busy(&self) {
        {
            let inner = &mut *self.lock();
            if !inner.awaited.is_empty() {
                return;
            }
            inner.tell.busy = true;
        }
        self.stir.notified().await;
    }

    pub(super) async fn heard(&self) {
        self.lock().tell.heard = true;
        self.stir.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing is left half done by a panic that anything here would trip over.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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

fn lost(detail: &str) -> Failure {
    Failure::new(FailureKind::Unreachable).with_detail(detail.to_owned())
}

#[cfg(test)]
mod tests;
