//! What keeper, guardian and exec step tell each other.
//!
//! Three processes of one binary talk over two socket pairs, so the format needs no versions and
//! no byte order: a message is a frame of fixed size. Nothing here ever blocks the sender. A
//! stopped guardian must not stop the keeper, and a stopped keeper must not stop the guardian,
//! whose whole reason is to go on when the keeper does not.
//!
//! A process gets its socket as its standard input, the one place where it can be found without
//! naming a raw descriptor; the input that the user meant travels as the first message's luggage
//! and takes its place again before anything else happens.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::stdio;

use super::clock::Moment;
use super::kill_policy::{Deadlines, Ending, Killed, KilledBy, Why};

/// One message, of any of the conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Keeper: guard the command on your command line; my process group is `keeper_group`.
    Start { keeper_group: i32, deadlines: Deadlines },
    /// Keeper: the lock is valid for longer now, or for a shorter time.
    Deadlines(Deadlines),
    /// Keeper: the lock is lost; end the command now, and by force at that time.
    Terminate { kill: Moment },
    /// Keeper: pass this signal on.
    Signal(i32),
    /// Guardian to exec step: go, unless the time is up. `guardian` must still be your parent;
    /// unblock these signals.
    Go { guardian: i32, unblock: u64, deadlines: Deadlines },
    /// Exec step to guardian, guardian to keeper: exec failed with this errno.
    CannotRun { errno: i32 },
    /// Guardian: I could not do my work, for this errno.
    Broken { errno: i32 },
    /// Exec step, guardian: the time was up before the command was started, so it was not.
    TooLate,
    /// Guardian: the command runs, in this process group.
    Started { group: i32 },
    /// Guardian: the command stopped; the terminal is the keeper's again.
    Stopped { signal: i32 },
    /// Guardian: the command goes on.
    Continued,
    /// Guardian: I am about to end the command for the lock's sake.
    Ending(Killed),
    /// Guardian: the command ended, and nothing of it is left.
    Ended(Ending),
    /// Guardian: the command was ended for the lock's sake, and nothing of it is left.
    Killed(Killed),
}

/// What [`Channel::next`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A message.
    Message(Message),
    /// Nothing, for now.
    Nothing,
    /// The peer is gone and everything it said has been read.
    Closed,
}

/// One end of a conversation.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    unread: Vec<u8>,
}

impl Channel {
    /// Speaks over `socket`.
    pub(crate) fn new(socket: impl Into<OwnedFd>) -> Self {
        Self { socket: socket.into(), unread: Vec::new() }
    }

    /// Takes the socket out of standard input, puts there what came with the first message, and
    /// returns that message.
    ///
    /// # Errors
    /// When standard input is no such socket, or the peer has gone.
    pub(crate) fn from_stdin() -> io::Result<(Self, Message)> {
        let socket = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), FIRST_OWN_FD)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut passed_fd = RecvAncillaryBuffer::new(&mut space);
        let mut frame = [0; FRAME];
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(
                &socket,
                &mut [IoSliceMut::new(&mut frame)],
                &mut passed_fd,
                PASSED_FD,
            )
        })?;
        let message = Message::decode(frame).filter(|_| received.bytes == FRAME);
        let stdin = passed_fd.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let (Some(message), Some(stdin)) = (message, stdin) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        stdio::dup2_stdin(stdin)?;
        Ok((Self::new(socket), message))
    }

    /// Sends a message, with the sender's own standard input as luggage.
    ///
    /// # Errors
    /// When the peer has gone.
    pub(crate) fn send_with_stdin(&self, message: Message) -> io::Result<()> {
        let stdin = [stdio::stdin()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut passed_fd = SendAncillaryBuffer::new(&mut space);
        passed_fd.push(SendAncillaryMessage::ScmRights(&stdin));
        let frame = message.encode();
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(&frame)], &mut passed_fd, QUIET)
        })?;
        whole(sent)
    }

    /// Sends a message, at once or not at all.
    ///
    /// # Errors
    /// `WouldBlock` when the peer has not read for long, another one when it has gone.
    pub(crate) fn send(&self, message: Message) -> io::Result<()> {
        let flags = QUIET | SendFlags::DONTWAIT;
        let frame = message.encode();
        whole(rustix::io::retry_on_intr(|| rustix::net::send(&self.socket, &frame, flags))?)
    }

    /// The next message that has arrived; never waits.
    pub(crate) fn next(&mut self) -> Next {
        let mut buffer = [0_u8; 16 * FRAME];
        loop {
            if let Some((frame, rest)) = self.unread.split_first_chunk::<FRAME>() {
                let message = Message::decode(*frame);
                self.unread = rest.to_vec();
                // Only another program could send what has no meaning; it is no keeper of ours.
                return message.map_or(Next::Closed, Next::Message);
            }
            match rustix::net::recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Next::Closed,
                Ok((count, _)) => self.unread.extend_from_slice(&buffer[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Next::Nothing,
                // A peer that died with unread messages resets the connection.
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

impl Message {
    fn encode(self) -> [u8; FRAME] {
        let by_deadlines = |Deadlines { term, kill }: Deadlines, last| {
            [term.boot_ns, term.real_ns, kill.boot_ns, kill.real_ns, last]
        };
        let (kind, int, numbers) = match self {
            Self::Start { keeper_group, deadlines } => {
                (0, keeper_group, by_deadlines(deadlines, 0))
            }
            Self::Deadlines(deadlines) => (1, 0, by_deadlines(deadlines, 0)),
            Self::Terminate { kill } => (2, 0, [kill.boot_ns, kill.real_ns, 0, 0, 0]),
            Self::Signal(signal) => (3, signal, [0; 5]),
            Self::Go { guardian, unblock, deadlines } => {
                (4, guardian, by_deadlines(deadlines, unblock))
            }
            Self::CannotRun { errno } => (5, errno, [0; 5]),
            Self::Broken { errno } => (6, errno, [0; 5]),
            Self::TooLate => (7, 0, [0; 5]),
            Self::Started { group } => (8, group, [0; 5]),
            Self::Stopped { signal } => (9, signal, [0; 5]),
            Self::Continued => (10, 0, [0; 5]),
            Self::Ended(Ending::Exited { code }) => (11, code, [0; 5]),
            Self::Ended(Ending::Signaled { signal }) => (12, signal, [0; 5]),
            Self::Killed(Killed { by, why, at_ns }) => {
                let kind = if by == KilledBy::Term { 13 } else { 14 };
                (kind, why as i32, [at_ns, 0, 0, 0, 0])
            }
            Self::Ending(Killed { by, why, at_ns }) => {
                let kind = if by == KilledBy::Term { 15 } else { 16 };
                (kind, why as i32, [at_ns, 0, 0, 0, 0])
            }
        };
        let mut frame = [0; FRAME];
        frame[..4].copy_from_slice(&u32::to_ne_bytes(kind));
        frame[4..8].copy_from_slice(&i32::to_ne_bytes(int));
        for (place, number) in frame[8..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&u64::to_ne_bytes(number));
        }
        frame
    }

    fn decode(frame: [u8; FRAME]) -> Option<Self> {
        let (kind, rest) = frame.split_first_chunk::<4>()?;
        let (int, rest) = rest.split_first_chunk::<4>()?;
        let int = i32::from_ne_bytes(*int);
        let mut numbers = [0; 5];
        for (number, bytes) in numbers.iter_mut().zip(rest.chunks_exact(8)) {
            *number = u64::from_ne_bytes(bytes.try_into().ok()?);
        }
        let [first, second, third, fourth, last] = numbers;
        let term = Moment { boot_ns: first, real_ns: second };
        let deadlines = Deadlines { term, kill: Moment { boot_ns: third, real_ns: fourth } };
        Some(match u32::from_ne_bytes(*kind) {
            0 => Self::Start { keeper_group: int, deadlines },
            1 => Self::Deadlines(deadlines),
            2 => Self::Terminate { kill: term },
            3 => Self::Signal(int),
            4 => Self::Go { guardian: int, unblock: last, deadlines },
            5 => Self::CannotRun { errno: int },
            6 => Self::Broken { errno: int },
            7 => Self::TooLate,
            8 => Self::Started { group: int },
            9 => Self::Stopped { signal: int },
            10 => Self::Continued,
            11 => Self::Ended(Ending::Exited { code: int }),
            12 => Self::Ended(Ending::Signaled { signal: int }),
            kind @ 13..=16 => {
                let by = if kind % 2 == 1 { KilledBy::Term } else { KilledBy::Kill };
                let whys = [Why::Lost, Why::TimeUp, Why::ClockJumped];
                let why = whys.into_iter().find(|why| *why as i32 == int)?;
                let killed = Killed { by, why, at_ns: first };
                if kind < 15 { Self::Killed(killed) } else { Self::Ending(killed) }
            }
            _ => return None,
        })
    }
}

/// A frame is far smaller than what a socket takes in one piece; half of one would leave the two
/// ends out of step, so it counts as a broken connection.
fn whole(sent: usize) -> io::Result<()> {
    if sent == FRAME { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// What comes must not be left to the command. Where this is unknown the descriptor is closed
/// before there is one.
#[cfg(target_os = "linux")]
const PASSED_FD: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const PASSED_FD: RecvFlags = RecvFlags::empty();

/// A peer that is gone is an error and no signal. Where this is unknown SIGPIPE is ignored, as in
/// every Rust program.
#[cfg(target_os = "linux")]
const QUIET: SendFlags = SendFlags::NOSIGNAL;
#[cfg(not(target_os = "linux"))]
const QUIET: SendFlags = SendFlags::empty();

/// kind, one `i32`, five `u64`.
const FRAME: usize = 48;

/// Above the standard streams.
const FIRST_OWN_FD: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_survives_the_way() {
        let kill = Moment { boot_ns: 9, real_ns: u64::MAX };
        let deadlines = Deadlines { term: Moment { boot_ns: 7, real_ns: 8 }, kill };
        let messages = [
            Message::Start { keeper_group: 4711, deadlines },
            Message::Deadlines(deadlines),
            Message::Terminate { kill },
            Message::Signal(15),
            Message::Go { guardian: 12, unblock: 1 << 63, deadlines },
            Message::CannotRun { errno: 2 },
            Message::Broken { errno: 3 },
            Message::TooLate,
            Message::Started { group: 5 },
            Message::Stopped { signal: 20 },
            Message::Continued,
            Message::Ended(Ending::Exited { code: 255 }),
            Message::Ended(Ending::Signaled { signal: 9 }),
            Message::Killed(Killed { by: KilledBy::Term, why: Why::ClockJumped, at_ns: 6 }),
            Message::Killed(Killed { by: KilledBy::Kill, why: Why::TimeUp, at_ns: u64::MAX }),
            Message::Killed(Killed { by: KilledBy::Kill, why: Why::Lost, at_ns: 0 }),
            Message::Ending(Killed { by: KilledBy::Term, why: Why::TimeUp, at_ns: 1 }),
            Message::Ending(Killed { by: KilledBy::Kill, why: Why::Lost, at_ns: 2 }),
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
