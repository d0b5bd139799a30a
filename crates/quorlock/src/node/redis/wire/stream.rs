//! What is written and read, and to whom what was read is handed on.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use quorlock_core::Failure;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::{
    Awaited, Incoming, Inner, Outgoing, PUSHES_MAX, READ_SIZE, READS_MAX, REPLIES_KEPT, REPLY_KEPT,
    Socket, Taker, broken, lost, out_of_step,
};
use crate::node::redis::parcel::{Parcel, To};
use crate::node::redis::resp::{self, Found, Reply};
use crate::node::{Key, PushSink};

impl Inner {
    /// Ready, with the reason, when the wire must be closed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        if !self.reader.will_wake(cx.waker()) {
            self.reader = cx.waker().clone();
        }
        let written = self.write_out(cx);
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

    pub(super) fn write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Some(socket) if !self.outgoing.is_cut => self.outgoing.write_to(socket, cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Whether writing goes on, or why the wire is to be closed. A server that takes no more clients says so, closes
    /// the connection, and reads nothing: what it says to a greeting is read to its end first.
    pub(super) fn after_writing(&mut self, written: Poll<io::Result<()>>) -> Result<(), Failure> {
        let Poll::Ready(Err(error)) = written else { return Ok(()) };
        match self.awaited.front() {
            Some(Awaited { taker: Taker::Whole { .. }, .. }) => self.outgoing.is_cut = true,
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

    /// Hands on what has been read. An error: the stream is out of step, or floods us.
    fn take_in(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        loop {
            let (start, end) = self.incoming.unread;
            let skipped = self.incoming.surplus.min(end - start);
            if skipped > 0 {
                self.alive_at = now;
            }
            self.incoming.surplus -= skipped;
            self.incoming.unread.0 += skipped;
            if end - self.incoming.unread.0 < self.incoming.needed {
                break;
            }
            let rest = &self.incoming.bytes[self.incoming.unread.0..end];
            // What ends nearly every batch about votes is looked at where it is.
            if let Some(length) = self.awaited.front_mut().and_then(|it| it.take_marker(rest)) {
                self.alive_at = now;
                self.incoming.needed = 1;
                self.incoming.unread.0 += length;
                self.count_off()?;
                continue;
            }
            let found = resp::read(rest);
            match found.map_err(|_| out_of_step("it says what no server of ours would say"))? {
                Found::Part { needed } => {
                    self.incoming.needed = needed;
                    break;
                }
                Found::Reply { reply, length, surplus } => {
                    // Bytes alone are no sign of life: they may be a line that never ends.
                    self.alive_at = now;
                    self.incoming.needed = 1;
                    self.incoming.unread.0 += length;
                    self.incoming.surplus = surplus;
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
            if pass_on(push, &self.pushed.push_sink) {
                self.pushed.flushes += 1;
            }
            return Ok(());
        }
        let Some(awaited) = self.awaited.front_mut() else {
            return Err(out_of_step("it answered what nobody had asked"));
        };
        let reply = awaited.cut(reply, length)?;
        match &mut awaited.taker {
            Taker::Whole { replies, .. } => replies.push(reply),
            Taker::Parcel { parcel, .. } => parcel.take(reply),
        }
        self.count_off()
    }

    #[inline]
    fn count_off(&mut self) -> Result<(), Failure> {
        let written = self.outgoing.sent();
        let Some(awaited) = self.awaited.front_mut() else { return Ok(()) };
        awaited.flushes.get_or_insert(self.pushed.flushes);
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
    pub(super) fn deliver(&mut self, awaited: Awaited) {
        let flushes = (awaited.flushes.unwrap_or(self.pushed.flushes), self.pushed.flushes);
        match awaited.taker {
            // Who waited may have gone.
            Taker::Whole { replies, done } => drop(done.send(replies)),
            Taker::Parcel { mut parcel, to } => {
                parcel.is_answered(flushes);
                self.hand_back(parcel, to);
            }
        }
    }

    pub(super) fn hand_back(&mut self, parcel: Box<Parcel>, to: To) {
        match to {
            To::Pipeline(batch) => self.delivered.push((batch, parcel)),
            To::Task(done) => drop(done.send(parcel)),
        }
    }
}

impl Outgoing {
    fn write_to(
        &mut self,
        socket: &mut Box<dyn Socket>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
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

    /// Bytes written since the connection opened.
    fn sent(&self) -> u64 {
        self.said - (self.bytes.len() - self.written) as u64
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

    /// There must be room to read to, and for the whole of a reply of which there is a part.
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

impl Awaited {
    /// The last reply, if it is a marker that can be read where it is; it is short. Says how long.
    fn take_marker(&mut self, input: &[u8]) -> Option<usize> {
        match &mut self.taker {
            Taker::Parcel { parcel, .. } if self.missing == 1 => parcel.take_marker(input),
            _ => None,
        }
    }

    /// The next reply, as far as it can be kept: strangers may have put long values under many keys of ours, and
    /// many may look at many readers. All else that a server answers is short.
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
            // Many looks at many readers may be so long. Those that are not kept have failed.
            Reply::List(_) => {
                Ok(Reply::Error("ERR the replies to one batch are too long together".to_owned()))
            }
            _ => Err(out_of_step("its answers are longer than any to such questions")),
        }
    }
}

/// Hands on which keys the server says have changed; nothing stands for all of them, and then the answer is
/// yes.
fn pass_on(push: Vec<Reply>, push_sink: &PushSink) -> bool {
    let mut push = push.into_iter();
    if push.next().and_then(text) != Some("invalidate".to_owned()) {
        return false;
    }
    match push.next() {
        // What is no text is no key of ours.
        Some(Reply::List(keys)) => {
            push_sink.changed(keys.into_iter().filter_map(text).map(Key::from).collect());
        }
        Some(Reply::Nil) => {
            push_sink.all_changed();
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
