//! The messages between keeper, guardian and exec step.
//!
//! Three processes of one binary talk over two socket pairs, a line of JSON for each message. No sender ever blocks: a
//! stopped guardian must not stop the keeper, and the guardian must keep working if the keeper is stopped.
//!
//! A process gets its socket as its standard input, because that is the one place where it can find a descriptor
//! without unsafe code. The user's own input travels with the first message, and takes its place again before anything
//! else happens.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::stdio;
use serde::{Deserialize, Serialize};

use super::clock::Moment;
use super::kill_policy::{Deadlines, Ending, Killed};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// From the keeper: guard the command that the guardian's arguments contain.
    Start { keeper_group: i32, deadlines: Deadlines },
    /// From the keeper: the lock is now valid until a later or an earlier time.
    Deadlines(Deadlines),
    /// From the keeper: the lock is lost. The command gets SIGTERM now, and SIGKILL at the time `kill`.
    Terminate { kill: Moment },
    /// From the keeper: send this signal to the command.
    Signal(i32),
    /// From the guardian to the exec step: become the command, unless a deadline has come or process `guardian` is no
    /// longer the parent. `unblock`: bits of the signals to unblock.
    Go { guardian: i32, unblock: u64, deadlines: Deadlines },
    /// From the exec step, and passed on by the guardian: exec failed.
    CannotRun { errno: i32 },
    /// From the guardian: a system call that it needs has failed.
    Broken { errno: i32 },
    /// From guardian or exec step: a deadline had come before the command started, so it was not started.
    TooLate,
    /// From the guardian: the command runs, in this process group.
    Started { group: i32 },
    /// From the guardian: the command stopped, and the keeper has the terminal again.
    Stopped { signal: i32 },
    /// From the guardian: a stopped command was continued.
    Continued,
    /// From the guardian: it is about to end the command to protect the lock.
    Ending(Killed),
    /// From the guardian: the command ended by itself, and no process of it is left.
    Ended(Ending),
    /// From the guardian: it ended the command to protect the lock, and no process of the command is left.
    Killed(Killed),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Message(Message),
    Nothing,
    /// The peer has closed the socket, and all of its messages have been read.
    Closed,
}

#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    unread: Vec<u8>,
}

impl Channel {
    pub(crate) fn new(socket: impl Into<OwnedFd>) -> Self {
        Self { socket: socket.into(), unread: Vec::new() }
    }

    /// Takes the socket out of standard input, restores the user's input, which came with the first message, and
    /// returns that message.
    ///
    /// # Errors
    /// Standard input is not such a socket, or the peer has closed it.
    pub(crate) fn from_stdin() -> io::Result<(Self, Message)> {
        let socket = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), FIRST_OWN_FD)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut passed_fd = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; BYTES_AT_A_TIME];
        let received = rustix::io::retry_on_intr(|| {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(&socket, &mut parts, &mut passed_fd, PASSED_FD)
        })?;
        let stdin = passed_fd.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let mut channel = Self { socket, unread: bytes[..received.bytes].to_vec() };
        let (Next::Message(message), Some(stdin)) = (channel.next(), stdin) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        stdio::dup2_stdin(stdin)?;
        Ok((channel, message))
    }

    /// Sends a message together with the sender's own standard input.
    ///
    /// # Errors
    /// The peer has closed the socket.
    pub(crate) fn send_with_stdin(&self, message: Message) -> io::Result<()> {
        let stdin = [stdio::stdin()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut passed_fd = SendAncillaryBuffer::new(&mut space);
        passed_fd.push(SendAncillaryMessage::ScmRights(&stdin));
        let line = line(message)?;
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(&line)], &mut passed_fd, QUIET)
        })?;
        whole(sent, &line)
    }

    /// Sends a message, or returns an error at once.
    ///
    /// # Errors
    /// `WouldBlock` if the peer has not read for a long time. Another error if the peer has closed the socket.
    pub(crate) fn send(&self, message: Message) -> io::Result<()> {
        let flags = QUIET | SendFlags::DONTWAIT;
        let line = line(message)?;
        let sent = rustix::io::retry_on_intr(|| rustix::net::send(&self.socket, &line, flags))?;
        whole(sent, &line)
    }

    /// The next message that has arrived. Never waits.
    pub(crate) fn next(&mut self) -> Next {
        let mut bytes = [0; BYTES_AT_A_TIME];
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let message = serde_json::from_slice(&self.unread[..end]);
                self.unread.drain(..=end);
                // A line that is no message comes from another program, so the channel counts as closed.
                return message.map_or(Next::Closed, Next::Message);
            }
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Next::Closed,
                Ok((count, _)) => self.unread.extend_from_slice(&bytes[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Next::Nothing,
                // If the peer died with unread messages, the connection was reset, and the read fails.
                Err(_) => return Next::Closed,
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn line(message: Message) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&message)?;
    line.push(b'\n');
    Ok(line)
}

/// A socket takes a line this short as a whole or not at all. The peer cannot read a part of a line, so a partial write
/// counts as a broken connection.
fn whole(sent: usize, line: &[u8]) -> io::Result<()> {
    if sent == line.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// The command must not inherit the received descriptor. Without this flag (not on Linux), `dup2_stdin` closes it.
#[cfg(target_os = "linux")]
const PASSED_FD: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const PASSED_FD: RecvFlags = RecvFlags::empty();

/// With this flag, a send to a peer that has closed the socket fails and raises no SIGPIPE. On a system without the
/// flag, SIGPIPE is ignored, as in every Rust program.
#[cfg(target_os = "linux")]
const QUIET: SendFlags = SendFlags::NOSIGNAL;
#[cfg(not(target_os = "linux"))]
const QUIET: SendFlags = SendFlags::empty();

/// Size of one read; longer than any message.
const BYTES_AT_A_TIME: usize = 1024;

/// The smallest number for the socket: smaller numbers are the standard streams.
const FIRST_OWN_FD: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guardian::kill_policy::{KilledBy, Why};

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let kill = Moment { boot_ns: 9, real_ns: u64::MAX };
        let deadlines = Deadlines { term: Moment { boot_ns: 7, real_ns: 8 }, kill };
        let messages = [
            Message::Start { keeper_group: 4711, deadlines },
            Message::Go { guardian: 12, unblock: u64::MAX, deadlines },
            Message::Ended(Ending::Signaled { signal: 9 }),
            Message::Killed(Killed { by: KilledBy::Kill, why: Why::ClockJumped, at_ns: u64::MAX }),
        ];
        let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
        let (left, mut right) = (Channel::new(left), Channel::new(right));
        for message in messages {
            left.send(message).unwrap();
        }
        for message in messages {
            assert_eq!(right.next(), Next::Message(message));
        }
        assert_eq!(right.next(), Next::Nothing);
        drop(left);
        assert_eq!(right.next(), Next::Closed);
    }

    #[test]
    fn a_full_socket_refuses_and_does_not_block() {
        let (left, _right) = std::os::unix::net::UnixStream::pair().unwrap();
        let left = Channel::new(left);
        let error = loop {
            if let Err(error) = left.send(Message::Continued) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
