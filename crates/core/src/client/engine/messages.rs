//! What goes into the engine and what comes out: events and effects, and what they are made of.

use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Command};
use crate::ids::{LockId, Ticket};
use crate::keys::Keys;
use crate::loss::LossCause;
use crate::node::evidence::Evidence;
use crate::node::trust::TrustState;
use crate::redlock::acquire::{FailureReason, NodeResult};
use crate::redlock::hold::Hold;
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::redlock::release::ReleaseReport;
use crate::redlock::vote::Validity;
use crate::request::Request;
use crate::time::Reading;
use crate::token::{Key, Token};

/// What happens to the engine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A caller wants a lock.
    Acquire {
        /// A new id.
        lock: LockId,
        /// What is wanted.
        request: Request,
    },
    /// The caller has lost interest before the lock was granted.
    Cancel {
        /// The call that ends.
        lock: LockId,
    },
    /// A node has answered; `sent` was read before the first byte could leave (S4).
    Answered {
        /// The node that this is about.
        node: NodeId,
        /// When the commands were sent.
        sent: Reading,
        /// What shows that the answers may count.
        evidence: Evidence,
        /// The answers, in the order of the commands.
        answers: Vec<(Ticket, Answer)>,
    },
    /// Commands for this node wait for a connection, which has a bound of its own.
    Connecting {
        /// The node that this is about.
        node: NodeId,
    },
    /// The commands that waited for a connection are being sent.
    Connected {
        /// The node that this is about.
        node: NodeId,
    },
    /// A node says, unasked, that keys have changed which were looked at with [`Command::Watch`].
    /// Needs no order with respect to answers, and may tell too much.
    Pushed {
        /// The node that this is about.
        node: NodeId,
        /// The keys; `None`: all of them, or the node has a new connection, on which it has been
        /// asked to watch nothing yet.
        keys: Option<Vec<Key>>,
    },
    /// The holder wants the lock extended now.
    Extend {
        /// The lock that this is about.
        lock: LockId,
    },
    /// The holder, a writer, is a reader from now on (and has latched that). Answered by [`Effect::Extended`].
    Downgrade {
        /// The lock that this is about.
        lock: LockId,
    },
    /// The holder has seen the lock run out (and has latched that): it is lost.
    RunOut {
        /// The lock that this is about.
        lock: LockId,
    },
    /// The holder gives the lock back. The guard is invalid already (S14).
    Release {
        /// The lock that this is about.
        lock: LockId,
        /// Whether [`Effect::Released`] is wanted.
        report: bool,
    },
    /// Somebody asks who holds a lock.
    Inspect {
        /// A new id.
        lock: LockId,
        /// The keys to look at.
        keys: Keys,
        /// How long to wait for the nodes.
        timeout: Duration,
    },
    /// No new calls; those that wait end, what is held is released, what is owed is drained.
    Close,
    /// Time has passed.
    Wake,
}

/// What the engine needs from outside for each attempt.
pub trait Entropy {
    /// A token fresh from the operating system's generator, never used before (S6), and a random word for
    /// the delay after the attempt. `lock` is the call whose attempt begins; a simulator notes it.
    fn draw(&mut self, lock: LockId) -> (Token, u64);
}

impl<F: FnMut(LockId) -> (Token, u64)> Entropy for F {
    fn draw(&mut self, lock: LockId) -> (Token, u64) {
        self(lock)
    }
}

/// What the driver is to do, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Give this command to each of these nodes, behind all earlier ones. Never twice (S8).
    Send {
        /// The nodes to send it to.
        nodes: NodeSet,
        /// To come back with each answer.
        ticket: Ticket,
        /// What to ask.
        command: Command,
    },
    /// The lock is held.
    Acquired {
        /// The lock that this is about.
        lock: LockId,
        /// The token of the successful attempt.
        token: Token,
        /// What the guard knows of it.
        hold: Hold,
        /// How many attempts it took.
        attempts: u32,
        /// How often the lock was handed over within this process before, under this token. Token
        /// and turn together are unique to the guard (S24).
        handover_count: u32,
        /// The fence, if one was wanted: larger than that of every earlier holder.
        fence: Option<u64>,
    },
    /// The lock is not held, and will not be.
    NotAcquired {
        /// The call that this is about.
        lock: LockId,
        /// Why it was refused.
        refusal: Refusal,
    },
    /// An attempt failed, or others were seen to hold the lock before the first; there will be another.
    Waiting {
        /// The call that this is about.
        lock: LockId,
        /// What happened so far.
        report: AttemptReport,
    },
    /// The votes of a held lock have changed.
    Changed {
        /// The lock that this is about.
        lock: LockId,
        /// The votes as they are now.
        validity: Validity,
    },
    /// The answer to [`Event::Extend`], and to [`Event::Downgrade`].
    Extended {
        /// The lock that this is about.
        lock: LockId,
        /// How it went.
        outcome: Extended,
    },
    /// A quorum does not confirm that the lock is held, or confirms it again (V15). Also: which nodes confirm it has
    /// changed, or may have. There is none while all nodes confirm.
    Health {
        /// The lock that this is about.
        lock: LockId,
        /// Whether a quorum confirmed the latest extension.
        is_confirmed: bool,
        /// The answers end the lock: [`Effect::Lost`] follows.
        is_lost: bool,
        /// What each node said to it.
        nodes: Vec<NodeResult>,
    },
    /// A node that had lost the lock's vote has given a larger fence since: another may have come
    /// after us, and resources may refuse ours. The lock is held as before, by the votes of others.
    Superseded {
        /// The lock that this is about.
        lock: LockId,
        /// The larger number.
        fence: u64,
    },
    /// Whether a node's votes count has changed, or from when on they do. For people.
    TrustState {
        /// The node that this is about.
        node: NodeId,
        /// As it is now.
        trust_state: TrustState,
    },
    /// A node that had lost its fences' counters is given a floor. It rests on the clocks of fewer
    /// other nodes than a quorum, because no more could be reached. If all of these are behind, its
    /// fences may be too. For people.
    FloorOfFew {
        /// The node that this is about.
        node: NodeId,
        /// The clocks of how many others it rests on, beside the node's own.
        clocks: usize,
    },
    /// The lock is lost; terminal.
    Lost {
        /// The lock that this is about.
        lock: LockId,
        /// Why it was lost.
        cause: LossCause,
    },
    /// The answer to [`Event::Release`], if it was wanted.
    Released {
        /// The lock that this is about.
        lock: LockId,
        /// How it went.
        report: ReleaseReport,
    },
    /// The answer to [`Event::Inspect`].
    Inspected {
        /// The inspection that this answers.
        lock: LockId,
        /// What each node said.
        nodes: Vec<NodeResult>,
    },
    /// A node did not answer in time. For statistics.
    TimedOut {
        /// The node that this is about.
        node: NodeId,
    },
    /// A waiting call goes on because nodes pushed that the lock has changed. For statistics.
    Woken {
        /// The call that this is about.
        lock: LockId,
    },
    /// After [`Event::Close`]: nothing is owed any more.
    Drained,
}

/// Where the engine's effects go, in order, while it handles an event.
///
/// A driver carries each of them out as it comes: a command goes from where it is decided to the queues of its nodes
/// without a stop in between. A `Vec` keeps them, for simulators, models and tests.
pub trait Sink {
    /// Takes the next effect.
    fn push(&mut self, effect: Effect);
}

impl Sink for Vec<Effect> {
    fn push(&mut self, effect: Effect) {
        Self::push(self, effect);
    }
}

/// What happened in a call so far.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AttemptReport {
    /// Why the last attempt failed.
    pub why: FailureReason,
    /// How many attempts there were.
    pub attempts: u32,
    /// Time since the call.
    pub elapsed: Duration,
    /// What each node said in the last attempt.
    pub nodes: Vec<NodeResult>,
}

/// Why a call ended without the lock. The nodes keep nothing of it: releases are queued.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Refusal {
    /// What kind of end it was.
    pub kind: RefusalKind,
    /// How many attempts there were.
    pub attempts: u32,
    /// Time since the call.
    pub elapsed: Duration,
    /// What each node said in the last attempt; empty if there was none.
    pub nodes: Vec<NodeResult>,
    /// When a quorum may be free by expiry alone, counted from the last look at the nodes.
    pub retry_after: Option<Duration>,
}

/// The kinds of end without the lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum RefusalKind {
    /// Others hold the lock or want it.
    Contended,
    /// Another caller of this process holds the lock or wants it; no node was asked.
    BusyHere,
    /// Too few nodes answered.
    NoQuorum,
    /// A quorum granted, but too late.
    TooSlow,
    /// Too many nodes are not trusted, or not yet, for a quorum.
    NodesUntrusted,
    /// The client was shut down.
    Closed,
}

/// How an extension went.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Extended {
    /// A quorum confirmed.
    Confirmed,
    /// The lock is not held any more.
    Lost(LossCause),
    /// It would reach past `max_hold`; the lock is held until its validity ends.
    HoldLimit,
    /// Too few nodes confirmed in time; the lock is held as long as before, or longer.
    Unconfirmed(Vec<NodeResult>),
}
