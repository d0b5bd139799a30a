//! The wire to a server: a socket, what is to be written to it, and who waits for what it says.
//!
//! Commands are written where they come up, in the task that has made them, and their replies are
//! read in the same task: so a command changes no task and no thread on its way to the socket and back. Replies belong to the commands in the order of sending. A reply
//! that nobody waits for, or that is none, means that the stream is out of step, and so would be all
//! that follows (S22): the wire is closed, and what waited for a reply is told that it got none.
//!
//! A server is not trusted to be modest: what is kept of what it says is bounded, whatever it says, and one
//! that [floods](Allowance) us with pushes is hung up on.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use quorlock_core::supervisor::Activity;
use quorlock_core::{BatchId, Failure, FailureKind};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::for_people;
use super::parcel::{Parcel, To};
use super::resp::{self, Found, Reply};
use crate::node::{Key, News};

/// A socket of whatever kind.
pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// So much is read at a time; replies to some hundred commands.
const READ_SIZE: usize = 16 * 1024;

/// A server that never stops talking is listened to for so long before others have their turn.
const READS_MAX: usize = 64;

/// And for so many pushes.
const PUSHES_MAX: usize = 512;

/// The replies to commands that were sent together are kept whole up to this; and so much more for each.
const REPLIES_KEPT: usize = 1024 * 1024;
const REPLY_KEPT: usize = 4096;

/// Commands go in, replies come out, and time is kept of when the server last said anything.
pub(super) struct Wire {
    inner: Mutex<Inner>,
    closed: AtomicBool,
    /// What [`Wire::busy`] and [`Wire::heard`] wait for.
    stir: Notify,
    /// Told when the wire is closed.
    close: Notify,
}

struct Inner {
    /// `None` once the wire is closed.
    socket: Option<Box<dyn Socket>>,
    out: Vec<u8>,
    /// Of `out`, so many bytes have been written.
    written: usize,
    input: Vec<u8>,
    /// Of `input`, what lies between is to be read.
    unread: (usize, usize),
    /// It is no use to look at it before it is so long.
    needed: usize,
    /// So many bytes that come next are the rest of a long value.
    surplus: usize,
    awaited: VecDeque<Awaited>,
    /// Parcels whose replies have come, or will not, for the line that has sent them.
    delivered: Vec<(BatchId, Box<Parcel>)>,
    /// So many bytes were ever to be sent.
    said: u64,
    /// How often the server has said that all of its data are gone, or others.
    flushes: u64,
    news: News,
    allowance: Allowance,
    /// So many pushes have come since others had their turn.
    pushes: usize,
    /// Wakes who reads.
    reader: Waker,
    /// When the server last gave a sign of life, or was first asked after a pause.
    alive_at: Instant,
    /// Somebody waits to be told when something is awaited again, or when the server next says anything.
    tell_busy: bool,
    tell_heard: bool,
    /// Why the wire was closed.
    failure: Option<Failure>,
    last_words: Option<String>,
}

/// Commands that were sent together, and what has been said to them so far.
struct Awaited {
    /// So many replies are still to come.
    missing: usize,
    /// Of all that was ever said, their end.
    end: u64,
    /// How long the replies are, as far as they are kept.
    kept: usize,
    /// How often the server had said that its data are others, when the first reply came.
    flushes: Option<u64>,
    taker: Taker,
}

/// Who takes the replies.
enum Taker {
    /// They are told all at once.
    Whole { replies: Vec<Reply>, done: oneshot::Sender<Vec<Reply>> },
    /// Each as it comes.
    Parcel { parcel: Box<Parcel>, to: To },
}

impl Wire {
    pub(super) fn new(socket: Box<dyn Socket>, news: News) -> Self {
        let inner = Inner {
            socket: Some(socket),
            out: Vec::new(),
            written: 0,
            input: vec![0; READ_SIZE],
            unread: (0, 0),
            needed: 1,
            surplus: 0,
            awaited: VecDeque::new(),
            delivered: Vec::new(),
            said: 0,
            flushes: 0,
            news,
            allowance: Allowance::new(Instant::now()),
            pushes: 0,
            reader: Waker::noop().clone(),
            alive_at: Instant::now(),
            tell_busy: false,
            tell_heard: false,
            failure: None,
            last_words: None,
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
            let before = inner.out.len();
            let missing = write(&mut inner.out, &mut taker);
            inner.said += (inner.out.len() - before) as u64;
            let mut awaited = Awaited { missing, end: inner.said, kept: 0, flushes: None, taker };
            if missing == 0 {
                // Nothing was asked, and this is what is said to it.
                awaited.flushes = Some(inner.flushes);
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
            if std::mem::take(&mut inner.tell_busy) {
                self.stir.notify_one();
            }
            // Whatever cannot be written at once is written by who reads.
            let reader = inner.reader.clone();
            inner.write_out(&mut Context::from_waker(&reader))
        };
        if let Poll::Ready(Err(error)) = result {
            self.close(broken(&error));
        }
        Ok(())
    }

    /// So many keys are watched now: each may be pushed once.
    pub(super) fn expect_pushes(&self, keys: usize) {
        self.lock().allowance.grant(keys as u64);
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
            (polled, inner.tell_heard && inner.alive_at != alive_at)
        };
        if is_heard {
            self.lock().tell_heard = false;
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

    /// Nothing may be expected of this wire any more.
    pub(super) fn close(&self, failure: Failure) {
        let reader = {
            let inner = &mut *self.lock();
            inner.socket = None;
            // That something was out of step is not hidden by what came of the connection then.
            if inner.failure.is_none() || failure.kind() == FailureKind::Protocol {
                inner.failure = Some(failure);
            }
            self.closed.store(true, Ordering::Release);
            if let Some(Awaited { taker: Taker::Whole { replies, .. }, .. }) = inner.awaited.front()
                && let Some(Reply::Error(error)) = replies.last()
            {
                inner.last_words = Some(error.clone());
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

    /// What became of commands whose replies did not come.
    pub(super) fn why_closed(&self) -> Failure {
        self.lock().failure.clone().unwrap_or_else(|| lost("connection lost"))
    }

    /// Something came that was no reply to anything: then nothing that came with it is to be trusted.
    pub(super) fn why_out_of_step(&self) -> Option<Failure> {
        let failure = self.lock().failure.clone();
        failure.filter(|failure| failure.kind() == FailureKind::Protocol)
    }

    /// The error that came before the wire was closed, where other replies were awaited as well.
    pub(super) fn last_words(&self) -> Option<String> {
        self.lock().last_words.clone()
    }

    /// What the traffic shows; its times are since `start`.
    pub(super) fn activity(&self, start: Instant) -> Activity {
        let inner = self.lock();
        let heard_at = inner.alive_at.saturating_duration_since(start);
        Activity { is_awaited: !inner.awaited.is_empty(), heard_at }
    }

    /// Waits until a reply is awaited.
    pub(super) async fn busy(&self) {
        {
            let inner = &mut *self.lock();
            if !inner.awaited.is_empty() {
                return;
            }
            inner.tell_busy = true;
        }
        self.stir.notified().await;
    }

    /// Waits until the server says anything.
    pub(super) async fn heard(&self) {
        self.lock().tell_heard = true;
        self.stir.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing is left half done by a panic that anything here would trip over.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Ready when the wire is to be closed, and why.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        if !self.reader.will_wake(cx.waker()) {
            self.reader = cx.waker().clone();
        }
        if let Poll::Ready(Err(error)) = self.write_out(cx) {
            return Poll::Ready(broken(&error));
        }
        self.pushes = 0;
        for _ in 0..READS_MAX {
            match ready!(self.read_in(cx)) {
                Ok(0) => return Poll::Ready(lost("the server has closed the connection")),
                Ok(_) => {}
                Err(error) => return Poll::Ready(broken(&error)),
            }
            if let Err(failure) = self.take_in() {
                return Poll::Ready(failure);
            }
            if self.pushes >= PUSHES_MAX {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(socket) = &mut self.socket else { return Poll::Ready(Ok(())) };
        while self.written < self.out.len() {
            let written = Pin::new(&mut *socket).poll_write(cx, &self.out[self.written..]);
            match ready!(written) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => self.written += count,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.out.clear();
        self.written = 0;
        Pin::new(socket).poll_flush(cx)
    }

    fn read_in(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(socket) = &mut self.socket else { return Poll::Ready(Ok(0)) };
        let mut room = ReadBuf::new(&mut self.input[self.unread.1..]);
        ready!(Pin::new(socket).poll_read(cx, &mut room))?;
        let count = room.filled().len();
        self.unread.1 += count;
        Poll::Ready(Ok(count))
    }

    /// Hands on what has been read. An error: the stream is out of step, or floods us.
    fn take_in(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        loop {
            let (start, end) = self.unread;
            let skipped = self.surplus.min(end - start);
            if skipped > 0 {
                self.alive_at = now;
            }
            self.surplus -= skipped;
            self.unread.0 += skipped;
            if end - self.unread.0 < self.needed {
                break;
            }
            let found = resp::read(&self.input[self.unread.0..end]);
            match found.map_err(|_| out_of_step("it says what no server of ours would say"))? {
                Found::Part { needed } => {
                    self.needed = needed;
                    break;
                }
                Found::Reply { reply, length, surplus } => {
                    // Bytes alone are no sign of life: they may be a line that never ends.
                    self.alive_at = now;
                    self.needed = 1;
                    self.unread.0 += length;
                    self.surplus = surplus;
                    self.hand_on(reply, length, now)?;
                }
            }
        }
        self.make_room();
        Ok(())
    }

    fn hand_on(&mut self, reply: Reply, length: usize, now: Instant) -> Result<(), Failure> {
        if let Reply::Push(push) = reply {
            self.pushes += 1;
            self.allowance.take(1 + length as u64 / 1024, now)?;
            if pass_on(push, &self.news) {
                self.flushes += 1;
            }
            return Ok(());
        }
        let written = self.said - (self.out.len() - self.written) as u64;
        let Some(awaited) = self.awaited.front_mut() else {
            return Err(out_of_step("it answered what nobody had asked"));
        };
        let reply = awaited.cut(reply, length)?;
        awaited.flushes.get_or_insert(self.flushes);
        match &mut awaited.taker {
            Taker::Whole { replies, .. } => replies.push(reply),
            Taker::Parcel { parcel, .. } => parcel.take(reply),
        }
        awaited.missing -= 1;
        if awaited.missing > 0 {
            return Ok(());
        }
        if written < awaited.end {
            return Err(out_of_step("it answered before it could have read the question"));
        }
        if let Some(awaited) = self.awaited.pop_front() {
            self.deliver(awaited);
        }
        Ok(())
    }

    /// All replies have come.
    fn deliver(&mut self, awaited: Awaited) {
        let flushes = (awaited.flushes.unwrap_or(self.flushes), self.flushes);
        match awaited.taker {
            // Who waited may have gone.
            Taker::Whole { replies, done } => drop(done.send(replies)),
            Taker::Parcel { mut parcel, to } => {
                parcel.is_answered(flushes);
                self.hand_back(parcel, to);
            }
        }
    }

    fn hand_back(&mut self, parcel: Box<Parcel>, to: To) {
        match to {
            To::Line(batch) => self.delivered.push((batch, parcel)),
            To::Task(done) => drop(done.send(parcel)),
        }
    }

    /// There must be room to read to, and for the whole of a reply of which there is a part.
    fn make_room(&mut self) {
        let (start, end) = self.unread;
        self.input.copy_within(start..end, 0);
        self.unread = (0, end - start);
        let wanted = if self.needed > READ_SIZE / 2 { self.needed + READ_SIZE } else { READ_SIZE };
        if wanted != self.input.len() {
            self.input.resize(wanted, 0);
            self.input.shrink_to_fit();
        }
    }
}

impl Awaited {
    /// The next reply, as far as it can be kept: strangers may have put long values under many keys of ours.
    /// All else that a server answers is short.
    fn cut(&mut self, reply: Reply, length: usize) -> Result<Reply, Failure> {
        if self.kept + length <= REPLIES_KEPT || length <= REPLY_KEPT {
            self.kept += length;
            return Ok(reply);
        }
        match reply {
            Reply::Bytes(mut bytes) => {
                bytes.truncate(REPLY_KEPT);
                bytes.shrink_to_fit();
                Ok(Reply::Bytes(bytes))
            }
            _ => Err(out_of_step("its answers are longer than any to such questions")),
        }
    }
}

/// How much a server may still push. It pushes once for each key that it was asked to watch, and when
/// all data is deleted; who pushes more than that by far is not heard for long.
#[derive(Debug)]
struct Allowance {
    left: u64,
    since: Instant,
}

impl Allowance {
    /// So many pushes at once, of up to a kilobyte each; longer ones count for more.
    const MAX: u64 = 65_536;

    /// So many a second that were not asked for.
    const PER_SECOND: u64 = 1024;

    fn new(now: Instant) -> Self {
        Self { left: Self::MAX, since: now }
    }

    fn grant(&mut self, more: u64) {
        self.left = self.left.saturating_add(more).min(Self::MAX);
    }

    fn take(&mut self, cost: u64, now: Instant) -> Result<(), Failure> {
        let seconds = now.duration_since(self.since).as_secs();
        if seconds > 0 {
            self.grant(seconds.saturating_mul(Self::PER_SECOND));
            self.since = now;
        }
        match self.left.checked_sub(cost) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Failure::new(FailureKind::Flooding).with_detail(format!(
                "it pushed {} messages more than it was asked for",
                Self::MAX
            ))),
        }
    }
}

/// What it says cannot be told apart any more.
fn out_of_step(detail: &str) -> Failure {
    Failure::new(FailureKind::Protocol).with_detail(detail)
}

/// Hands on which keys the server says have changed; nothing stands for all of them, and then the answer is
/// yes.
fn pass_on(push: Vec<Reply>, news: &News) -> bool {
    let mut push = push.into_iter();
    if push.next().and_then(text) != Some("invalidate".to_owned()) {
        return false;
    }
    match push.next() {
        // What is no text is no key of ours.
        Some(Reply::List(keys)) => {
            news.changed(keys.into_iter().filter_map(text).map(Key::from).collect());
        }
        Some(Reply::Nil) => {
            news.all_changed();
            return true;
        }
        _ => {}
    }
    false
}

fn text(reply: Reply) -> Option<String> {
    match reply {
        Reply::Bytes(bytes) => String::from_utf8(bytes).ok(),
        Reply::Text(text) => Some(text),
        _ => None,
    }
}

/// The connection broke with commands in it: what became of them is unknown.
fn broken(error: &io::Error) -> Failure {
    lost(&for_people(&error.to_string()))
}

fn lost(detail: &str) -> Failure {
    Failure::new(FailureKind::Unreachable).with_detail(detail.to_owned())
}

#[cfg(test)]
mod tests;
