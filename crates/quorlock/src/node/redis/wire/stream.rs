//! Writes to the socket, reads from it, and gives replies to the batches that await them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use quorlock_core::Failure;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::{
    Incoming, Outgoing, PUSHES_MAX, READ_SIZE, READS_MAX, REPLIES_KEPT, REPLY_KEPT, Socket, Wire,
    broken, lost, out_of_step,
};
use crate::node::redis::resp::{self, Found, Reply};
use crate::node::{Key, PushSink};

impl Wire {
    /// Writes and reads as far as the socket allows. Ready, with the reason, when the wire must be closed.
    pub(super) fn transfer(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        if !self.waker.will_wake(cx.waker()) {
            self.waker = cx.waker().clone();
        }
        let written = match &mut self.socket {
            Some(socket) => self.outgoing.write_to(socket, cx),
            None => Poll::Ready(Ok(())),
        };
        if let Err(failure) = self.after_writing(written) {
            return Poll::Ready(failure);
        }
        self.pushed.count = 0;
        for _ in 0..READS_MAX {
            match ready!(self.read_in(cx)) {
                Ok(0) => return Poll::Ready(lost("the server has closed the connection")),
                Ok(_) => {}
                Err(error) => return Poll::Ready(broken(&error)),
            }
            if let Err(failure) = self.take_in() {
                return Poll::Ready(failure);
            }
            if self.pushed.count >= PUSHES_MAX {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Fails if the wire is to be closed because of a write error. A server that accepts no more clients sends an
    /// error, closes the connection and reads nothing. This error, which is the reply to a plain batch, must be read
    /// before the wire is closed.
    pub(super) fn after_writing(&mut self, written: Poll<io::Result<()>>) -> Result<(), Failure> {
        let Poll::Ready(Err(error)) = written else { return Ok(()) };
        match self.in_flight.front() {
            Some(batch) if batch.is_plain => self.outgoing.is_cut = true,
            _ => return Err(broken(&error)),
        }
        Ok(())
    }

    fn read_in(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &mut self.socket {
            Some(socket) => self.incoming.read_from(socket, cx),
            None => Poll::Ready(Ok(0)),
        }
    }

    /// Parses the received bytes, and gives each reply to its batch. Fails if the stream is out of step, or if the
    /// server pushes too much.
    fn take_in(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        loop {
            let (start, end) = self.incoming.unread;
            let skipped = self.incoming.surplus.min(end - start);
            if skipped > 0 {
                self.alive_at = now;
                if let Some(take) = &mut self.overflow {
                    take(&self.incoming.bytes[start..start + skipped]);
                }
            }
            self.incoming.surplus -= skipped;
            self.incoming.unread.0 += skipped;
            if end - self.incoming.unread.0 < self.incoming.needed {
                break;
            }
            let rest = &self.incoming.bytes[self.incoming.unread.0..end];
            // Nearly all replies are read in place, without building a `Reply`.
            if let Some(batch) = self.in_flight.front_mut()
                && let taken @ 1.. = batch.take_in_place(rest, self.pushed.flushes)
            {
                self.alive_at = now;
                self.incoming.needed = 1;
                self.incoming.unread.0 += taken;
                self.finish_oldest()?;
                continue;
            }
            let found = resp::read(rest);
            match found.map_err(|_| out_of_step("it says what no server of ours would say"))? {
                Found::Part { needed } => {
                    self.incoming.needed = needed;
                    break;
                }
                Found::Reply { reply, length, surplus } => {
                    // Only a whole reply is a sign of life: other bytes may belong to a line that never ends.
                    self.alive_at = now;
                    self.incoming.needed = 1;
                    self.incoming.unread.0 += length;
                    self.incoming.surplus = surplus;
                    if let (Some(take), Reply::Bytes(start)) = (&mut self.overflow, &reply) {
                        take(start);
                    }
                    self.hand_on(reply, length, now)?;
                }
            }
        }
        self.incoming.make_room();
        Ok(())
    }

    fn hand_on(&mut self, reply: Reply, length: usize, now: Instant) -> Result<(), Failure> {
        if let Reply::Push(push) = reply {
            self.pushed.count += 1;
            self.pushed.allowance.take(1 + length as u64 / 1024, now)?;
            if pass_on(&push, &self.pushed.push_sink) {
                self.pushed.flushes += 1;
            }
            return Ok(());
        }
        let Some(batch) = self.in_flight.front_mut() else {
            return Err(out_of_step("it answered what nobody had asked"));
        };
        let reply = cut(reply, length, &mut batch.bytes_kept)?;
        batch.take(reply);
        if !batch.in_step {
            // Closing the wire now keeps the replies of earlier batches from counting (S22).
            return Err(out_of_step("its answers do not fit"));
        }
        batch.count_off(self.pushed.flushes);
        self.finish_oldest()
    }

    /// Finishes the oldest batch if it has all its replies.
    #[inline]
    fn finish_oldest(&mut self) -> Result<(), Failure> {
        let Some(batch) = self.in_flight.front().filter(|batch| batch.is_complete()) else {
            return Ok(());
        };
        if self.outgoing.written_total() < batch.end {
            return Err(out_of_step("it answered before it could have read the question"));
        }
        if let Some(mut batch) = self.in_flight.pop_front() {
            batch.finish(self.pushed.flushes);
            self.finished.push_back(batch);
        }
        Ok(())
    }
}

impl Outgoing {
    pub(super) fn write_to(
        &mut self,
        socket: &mut Box<dyn Socket>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut {
            return Poll::Ready(Ok(()));
        }
        while self.written < self.bytes.len() {
            let written = Pin::new(&mut *socket).poll_write(cx, &self.bytes[self.written..]);
            match ready!(written) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => self.written += count,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.bytes.clear();
        self.written = 0;
        Pin::new(&mut *socket).poll_flush(cx)
    }

    fn written_total(&self) -> u64 {
        self.queued_total - (self.bytes.len() - self.written) as u64
    }
}

impl Incoming {
    fn read_from(
        &mut self,
        socket: &mut Box<dyn Socket>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(&mut self.bytes[self.unread.1..]);
        ready!(Pin::new(&mut *socket).poll_read(cx, &mut room))?;
        let count = room.filled().len();
        self.unread.1 += count;
        Poll::Ready(Ok(count))
    }

    /// Makes room for the next read, and for the whole of a reply that has arrived in part.
    fn make_room(&mut self) {
        let (start, end) = self.unread;
        self.bytes.copy_within(start..end, 0);
        self.unread = (0, end - start);
        let wanted = if self.needed > READ_SIZE / 2 { self.needed + READ_SIZE } else { READ_SIZE };
        if wanted != self.bytes.len() {
            self.bytes.resize(wanted, 0);
            self.bytes.shrink_to_fit();
        }
    }
}

/// Shortens a reply if its batch keeps many bytes already: other clients may have put long values under our keys, and
/// many commands may inspect many readers. All other replies are short.
fn cut(reply: Reply, length: usize, kept: &mut usize) -> Result<Reply, Failure> {
    if *kept + length <= REPLIES_KEPT || length <= REPLY_KEPT {
        *kept += length;
        return Ok(reply);
    }
    match reply {
        Reply::Bytes(mut bytes) => {
            bytes.truncate(REPLY_KEPT);
            bytes.shrink_to_fit();
            Ok(Reply::Bytes(bytes))
        }
        // Only commands that inspect many readers get lists this long. These commands fail.
        Reply::List(_) => {
            Ok(Reply::Error("ERR the replies to one batch are too long together".to_owned()))
        }
        _ => Err(out_of_step("its answers are longer than any to such questions")),
    }
}

/// Passes the changed keys to the push sink. Returns true if all keys may have changed, because the server named none.
fn pass_on(push: &[Reply], push_sink: &PushSink) -> bool {
    if push.first().and_then(Reply::text) != Some("invalidate") {
        return false;
    }
    match push.get(1) {
        // Our keys are text. A key that is no text is not ours, and is left out.
        Some(Reply::List(keys)) => {
            push_sink.changed(keys.iter().filter_map(Reply::text).map(Key::from).collect());
        }
        Some(Reply::Nil) => {
            push_sink.all_changed();
            return true;
        }
        _ => {}
    }
    false
}
