//! The events that the engine handles, and the effects that it produces.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Command, Counter, Failure};
use crate::ids::{LockId, Ticket};
use crate::keys::{Entry, Keys};
use crate::loss::LossCause;
use crate::node::evidence::Evidence;
use crate::node::trust::TrustState;
use crate::redlock::acquire::{FailureReason, NodeResult};
use crate::redlock::held_lock::Detached;
use crate::redlock::hold::Hold;
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::redlock::release::ReleaseReport;
use crate::redlock::vote::Validity;
use crate::request::Request;
use crate::time::Reading;
use crate::timing::Timing;
use crate::token::{Key, Token};

/// An input of the engine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A caller wants a lock.
    Acquire {
        /// A new id for the call.
        lock: LockId,
        /// The requested lock.
        request: Request,
    },
    /// The caller cancels its call before the grant.
    Cancel {
        /// The call to end.
        lock: LockId,
    },
    /// A node answered a batch of commands.
    Answered {
        /// The node that answered.
        node: NodeId,
        /// A clock reading that was taken before the first byte of the batch could leave (S4).
        sent: Reading,
        /// The evidence (the node's `INFO` and marker) that the votes in the answers count.
        evidence: Evidence,
        /// The answers, in the order of the commands.
        answers: Vec<(Ticket, Answer)>,
    },
    /// Commands for a node wait for a connection, which has a timeout of its own.
    Connecting {
        /// The node without a connection.
        node: NodeId,
    },
    /// A new connection was made. The node has answered the greeting, which identifies it before any command is sent.
    /// The answer is [`Effect::Identified`]; commands for the node wait for it.
    Greeted {
        /// The node.
        node: NodeId,
        /// Number of the connection, counted from one.
        connection: u64,
        /// A clock reading that was taken before the first byte of the greeting could leave.
        sent: Reading,
        /// The time from the greeting to the first reply.
        round_trip: Duration,
        /// The node's `INFO` and marker, read with the greeting.
        evidence: Evidence,
    },
    /// The connection is up, and the waiting commands are being sent.
    Connected {
        /// The connected node.
        node: NodeId,
    },
    /// A node pushed that keys have changed after a [`Command::Watch`]. Pushes and answers may arrive in any order, and
    /// a push may name keys that did not change.
    Pushed {
        /// The node that pushed.
        node: NodeId,
        /// The changed keys. `None`: any key may have changed, perhaps because a new connection has lost the watches.
        keys: Option<Vec<Key>>,
    },
    /// The holder requests an extension. The answer is [`Effect::Extended`].
    Extend {
        /// The lock to extend.
        lock: LockId,
    },
    /// The holder turns from writer to reader, and has latched the new mode. The answer is [`Effect::Extended`].
    Downgrade {
        /// The lock to downgrade.
        lock: LockId,
    },
    /// The holder saw the end of the validity, and has latched the loss.
    RunOut {
        /// The lost lock.
        lock: LockId,
    },
    /// The holder releases the lock. The guard is invalid already (S14).
    Release {
        /// The lock to release.
        lock: LockId,
        /// Whether the holder awaits [`Effect::Released`].
        report: bool,
    },
    /// The holder detaches the lock. The engine stops extending the lock, waits for the
    /// nodes' answers for at most one node timeout, and answers with [`Effect::Detached`].
    Detach {
        /// The lock to detach.
        lock: LockId,
    },
    /// No guard holds the lock any more: its holder received [`Effect::Detached`], or leaves a lock with the caller's
    /// value on the nodes. The engine forgets the lock, and sends no release.
    Forget {
        /// The lock to forget.
        lock: LockId,
    },
    /// A caller extends a lock that no guard of this client holds. The answer is [`Effect::EntryExtended`].
    ExtendEntry {
        /// A new id for the request.
        lock: LockId,
        /// The lock on the nodes.
        entry: EntryOf,
        /// The counter of the lock's fencing tokens, if it has one.
        counter: Option<Counter>,
    },
    /// A caller releases a lock that no guard of this client holds. The answer is [`Effect::Released`].
    ReleaseEntry {
        /// A new id for the request.
        lock: LockId,
        /// The lock on the nodes.
        entry: EntryOf,
        /// The time for which the lock is still valid at the time of the call, as far as the caller knows. Zero: it is
        /// over.
        valid_for: Duration,
    },
    /// A caller asks for the holder of a lock. The answer is [`Effect::Inspected`].
    Inspect {
        /// A new id for the inspection.
        lock: LockId,
        /// The keys of the lock.
        keys: Keys,
        /// The shortest timeout of the nodes' answers. A distant node is awaited for as long as an attempt with the
        /// default times awaits it.
        timeout: Duration,
        /// The timeout of a connection that is still being made. It comes on top of the timeout of the answer.
        connect_timeout: Duration,
    },
    /// The client closes: it accepts no new calls, ends waiting calls, releases held locks, and waits for owed
    /// releases, which have failed and are sent again.
    Close,
    /// Time has passed, so deadlines may be due.
    Wake,
}

/// A lock on the nodes that no guard of this client holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EntryOf {
    /// The lock's keys, mode and value on each node.
    pub entry: Entry,
    /// The ttl, the timeouts and the margins of the lock.
    pub timing: Timing,
    /// Nodes on which an old command may still set the key, so their votes do not count ([`Detached::unanswered`]).
    pub unanswered: NodeSet,
}

/// The source of randomness for attempts.
pub trait Entropy {
    /// Draws a token that was never used before (S6) from the operating system's generator, and a random word for the
    /// delay after the attempt. `lock` is the call that begins the attempt.
    fn draw(&mut self, lock: LockId) -> (Token, u64);
}

impl<F: FnMut(LockId) -> (Token, u64)> Entropy for F {
    fn draw(&mut self, lock: LockId) -> (Token, u64) {
        self(lock)
    }
}

/// An output of the engine, which the driver executes in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Queue this command for each of these nodes, behind all earlier commands. The engine emits no command twice (S8).
    Send {
        /// The receiving nodes.
        nodes: NodeSet,
        /// The ticket (lock, round and verb) that each answer must bring back.
        ticket: Ticket,
        /// The command to send.
        command: Command,
    },
    /// The call has its lock.
    Acquired {
        /// The id of the call, and from now on of the lock.
        lock: LockId,
        /// The token of the successful attempt.
        token: Token,
        /// The state from which the guard decides whether it is valid.
        hold: Hold,
        /// Number of attempts of the call.
        attempts: u32,
        /// Number of earlier hand-overs within this process under this token. Together with the token it identifies the
        /// guard (S24).
        handover_count: u32,
        /// The fencing token, if the call requested one. It is larger than those of all earlier holders.
        fence: Option<u64>,
    },
    /// The call ended without the lock.
    NotAcquired {
        /// The ended call.
        lock: LockId,
        /// The reason why the call got no lock.
        refusal: Refusal,
    },
    /// An attempt failed, or an inspection found another holder, and the call continues to wait.
    Waiting {
        /// The waiting call.
        lock: LockId,
        /// The report of the call's last attempt.
        report: AttemptReport,
    },
    /// The votes of a held lock changed.
    Changed {
        /// The held lock.
        lock: LockId,
        /// The new votes, from which the validity is computed.
        validity: Validity,
    },
    /// The answer to [`Event::Extend`] and [`Event::Downgrade`].
    Extended {
        /// The lock of the event.
        lock: LockId,
        /// The outcome of the extension or downgrade.
        outcome: Extended,
    },
    /// A quorum no longer confirms the lock, or confirms it again (V15). The engine also emits this effect when the set
    /// of confirming nodes may have changed, but not while all nodes confirm.
    Health {
        /// The held lock.
        lock: LockId,
        /// Whether a quorum confirmed the latest extension.
        is_confirmed: bool,
        /// Whether the answers end the lock. [`Effect::Lost`] follows.
        is_lost: bool,
        /// The answer of each node to the extension.
        nodes: Vec<NodeResult>,
    },
    /// A node that lost the lock's vote gave a larger fencing token to another client. Resources may refuse the
    /// holder's token. The lock stays held by the votes of the other nodes.
    Superseded {
        /// The held lock.
        lock: LockId,
        /// The larger fencing token of the other client.
        fence: u64,
    },
    /// Whether the node was identified on this connection: its votes count there. Until the next such effect, commands
    /// that prolong a lock without a guard are sent only on a connection on which it was
    /// ([`NodePipeline::decline`](crate::NodePipeline::decline)). Always true if the restart guard is not strict.
    Identified {
        /// The node.
        node: NodeId,
        /// Number of the connection, counted from one.
        connection: u64,
        /// Whether the node's votes count on this connection.
        is_trusted: bool,
    },
    /// A node's trust state changed: whether its votes count, or the time from which they count.
    TrustState {
        /// The node.
        node: NodeId,
        /// The node's new trust state.
        trust_state: TrustState,
    },
    /// A node that lost its counters of fencing tokens received its floor, the smallest token that it gives out, from
    /// the clocks of fewer nodes than a quorum, because no more nodes could be reached. If all of these clocks are
    /// slow, the node's fencing tokens may be too small.
    FloorOfFew {
        /// The node with the floor.
        node: NodeId,
        /// Number of other nodes whose clocks were read.
        clocks: usize,
    },
    /// The lock is lost for good.
    Lost {
        /// The lost lock.
        lock: LockId,
        /// The cause of the loss.
        cause: LossCause,
    },
    /// The answer to [`Event::Detach`].
    Detached {
        /// The lock of the event.
        lock: LockId,
        /// The detached lock; `None` if the lock is lost, or too few nodes have answered.
        detached: Option<Box<Detached>>,
    },
    /// The answer to [`Event::ExtendEntry`].
    EntryExtended {
        /// The id of the request.
        lock: LockId,
        /// The validity of the votes that were prolonged; `None` if they are fewer than a quorum.
        validity: Option<Validity>,
        /// The answer of each node.
        nodes: Vec<NodeResult>,
    },
    /// The answer to [`Event::Release`] with a report, and to [`Event::ReleaseEntry`].
    Released {
        /// The released lock.
        lock: LockId,
        /// The outcome of the release.
        report: ReleaseReport,
    },
    /// The answer to [`Event::Inspect`].
    Inspected {
        /// The id of the inspection.
        lock: LockId,
        /// The answer of each node.
        nodes: Vec<NodeResult>,
        /// For each node, the reason why its answer that the lock is free does not count. `None` if that answer counts,
        /// or if the node did not answer.
        doubts: Vec<Option<Failure>>,
    },
    /// A node did not answer in time. Only statistics use this.
    TimedOut {
        /// The silent node.
        node: NodeId,
    },
    /// A push ended the pause of a waiting call. Only statistics use this.
    WaitEnded {
        /// The call.
        lock: LockId,
    },
    /// The client closed, and no release is in flight or waits to be sent again.
    Drained,
}

/// The receiver of the engine's effects.
///
/// A driver executes each effect as it arrives, so commands reach their nodes' queues without an intermediate copy. A
/// `Vec` collects the effects for simulators, models and tests.
pub trait Sink {
    /// Takes the next effect.
    fn push(&mut self, effect: Effect);
}

impl Sink for Vec<Effect> {
    fn push(&mut self, effect: Effect) {
        Self::push(self, effect);
    }
}

/// The last attempt of a waiting call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AttemptReport {
    /// The reason why the attempt failed.
    pub why: FailureReason,
    /// Number of attempts of the call so far.
    pub attempts: u32,
    /// Time since the call began.
    pub elapsed: Duration,
    /// The answer of each node in the last attempt.
    pub nodes: Vec<NodeResult>,
}

/// The end of a call without the lock. Releases for its attempts are queued.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Refusal {
    /// The reason why the call ended without the lock.
    pub kind: RefusalKind,
    /// Number of attempts of the call.
    pub attempts: u32,
    /// Time since the call began.
    pub elapsed: Duration,
    /// The answer of each node in the last attempt; empty if there was no attempt.
    pub nodes: Vec<NodeResult>,
    /// Time from the nodes' last answers until a quorum may be free by expiry, or may be trusted; `None` if unknown.
    pub retry_after: Option<Duration>,
}

/// The reason why a call ended without the lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum RefusalKind {
    /// Another client holds the lock or contends for it.
    Contended,
    /// Another caller of this process holds the lock or contends for it. No node was asked.
    BusyHere,
    /// The detached lock that the call attaches is not on enough nodes any more: it expired, or was released.
    Gone,
    /// Too few nodes answered.
    NoQuorum,
    /// A quorum granted, but too late.
    TooSlow,
    /// The votes of too many nodes do not count, or do not count yet.
    NodesUntrusted,
    /// The client closed.
    Closed,
}

/// The outcome of an extension.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Extended {
    /// A quorum confirmed.
    Confirmed,
    /// The lock is lost.
    Lost(LossCause),
    /// An extension would exceed `max_hold`. The lock is held until its validity ends.
    HoldLimit,
    /// Too few nodes confirmed in time. The validity is the same as before, or longer.
    Unconfirmed(Vec<NodeResult>),
}
