//! A client: the production engine, and around it what the library's driver has.
//!
//! As the driver in `crates/quorlock/src/driver.rs`: all that has come in goes through the engine
//! under one reading of the clock taken after it came in; answers before asks, then the time; what
//! comes of it is carried out in order.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use quorlock_core::{
    Answer, Command, Engine, Event, FailureKind, LockId, Proof, Quorum, Reading, Ticket,
};

use crate::network::ConnectionId;
use crate::time::{Machine, Time};
use crate::world::Happening;

/// A command and what it belongs to.
pub(crate) type Order = (Ticket, Command);

/// At most so many batches are in flight to one node.
pub(crate) const IN_FLIGHT_MAX: usize = 4;

pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) machine: Machine,
    pub(crate) alive: bool,
    /// It stands still, with its whole machine or not; what happens to it meanwhile waits.
    pub(crate) still: Option<Still>,
    pub(crate) deferred: Vec<Happening>,
    pub(crate) lines: Vec<Line>,
    /// What has come in since the last turn.
    pub(crate) answered: Vec<Event>,
    pub(crate) asked: Vec<Event>,
    pub(crate) turn_is_due: bool,
    /// It stands still within a turn, after it has read the clock.
    pub(crate) stalled: Option<Turn>,
    /// The last reading of the last turn.
    pub(crate) last_reading: Reading,
    pub(crate) alarm: u64,
    /// Smoothed, in nanoseconds, by node.
    round_trips: Vec<u64>,
    /// The longest round trip that the engine was ever told.
    pub(crate) slowest: Duration,
    pub(crate) callers: Vec<Caller>,
    pub(crate) locks: u64,
    pub(crate) drained: bool,
}

/// How a client stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Still {
    /// Nobody can look at its clocks.
    pub(crate) clocks_stop: bool,
    /// How much the wall clock is set ahead when it goes on.
    pub(crate) catch_up: Time,
}

/// What one turn of the driver deals with.
pub(crate) struct Turn {
    pub(crate) now: Reading,
    /// The true reading after all of it had come in; what `now` ought to be.
    pub(crate) honest: Reading,
    pub(crate) answered: Vec<Event>,
    pub(crate) asked: Vec<Event>,
}

/// A caller: wants a lock, holds it, gives it back, again and again.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) state: CallerState,
    /// What was planned for an earlier state is not for this one.
    pub(crate) generation: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallerState {
    Idle,
    Waiting { lock: LockId, key: usize },
    Holding { lock: LockId, until: Time, careless: bool },
    Over,
}

/// The way to a node: what waits, what is in flight.
pub(crate) struct Line {
    pub(crate) link: Link,
    pub(crate) wire: Option<ConnectionId>,
    pub(crate) waiting: VecDeque<Order>,
    pub(crate) in_flight: VecDeque<Batch>,
    /// Batches that have failed with their connections; kept by mistake only.
    pub(crate) given_up: BTreeMap<u64, Batch>,
    pub(crate) alive_at: Time,
    /// A look at the silence is planned.
    pub(crate) watched: bool,
    /// The connections there have been, and whether the node has said on this one what it is.
    pub(crate) epoch: u64,
    pub(crate) greeted: bool,
    /// The attempt to connect that is under way.
    pub(crate) dial: Option<u64>,
    pub(crate) dials: u64,
    pub(crate) failures: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Link {
    Connecting,
    Up,
    Suspended,
    Down(FailureKind),
}

/// Commands that travel together.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) id: u64,
    /// `None`: it waits for a connection.
    pub(crate) sent: Option<(ConnectionId, Reading)>,
    /// The engine has been told that it waits.
    pub(crate) announced: bool,
    pub(crate) orders: Vec<Order>,
    pub(crate) answers: Option<Vec<Answer>>,
    /// What came with them.
    pub(crate) proof: Proof,
}

impl Client {
    pub(crate) fn new(engine: Engine, quorum: Quorum, machine: Machine, callers: usize) -> Self {
        let lines = quorum.node_ids().map(|_| Line::new()).collect();
        let idle = Caller { state: CallerState::Idle, generation: 0 };
        Self {
            engine,
            machine,
            alive: true,
            still: None,
            deferred: Vec::new(),
            lines,
            answered: Vec::new(),
            asked: Vec::new(),
            turn_is_due: false,
            stalled: None,
            last_reading: machine.read(0),
            alarm: 0,
            round_trips: vec![0; quorum.nodes()],
            slowest: Duration::ZERO,
            callers: vec![idle; callers],
            locks: 0,
            drained: false,
        }
    }

    /// Who waits for this lock, or holds it.
    pub(crate) fn caller_of(&self, wanted: LockId) -> Option<usize> {
        self.callers.iter().position(|caller| match caller.state {
            CallerState::Waiting { lock, .. } | CallerState::Holding { lock, .. } => lock == wanted,
            CallerState::Idle | CallerState::Over => false,
        })
    }

    /// An eighth of each new round trip goes into the smoothed one, as in the driver.
    pub(crate) fn observe(&mut self, event: &Event, now: Reading) {
        let Event::Answered { node, sent, answers, .. } = event else { return };
        if answers.iter().all(|(_, answer)| matches!(answer, Answer::Failed(_))) {
            return;
        }
        let smoothed = &mut self.round_trips[node.index()];
        let new = u64::try_from(crate::time::elapsed(*sent, now)).unwrap_or(0).max(1);
        *smoothed = match *smoothed {
            0 => new.min(100_000_000),
            old => old - old / 8 + new.min((4 * old).max(100_000_000)) / 8,
        }
        .max(1);
    }

    /// The round trip to a quorum: the Q-th smallest of those known.
    pub(crate) fn round_trip(&self, quorum: Quorum) -> Duration {
        let mut known: Vec<u64> = self.round_trips.iter().copied().filter(|it| *it > 0).collect();
        known.sort_unstable();
        let place = quorum.needed().min(known.len());
        Duration::from_nanos(place.checked_sub(1).map_or(0, |place| known[place]))
    }
}

impl Line {
    fn new() -> Self {
        Self {
            link: Link::Connecting,
            wire: None,
            waiting: VecDeque::new(),
            in_flight: VecDeque::new(),
            given_up: BTreeMap::new(),
            alive_at: 0,
            watched: false,
            epoch: 0,
            greeted: false,
            dial: None,
            dials: 0,
            failures: 0,
        }
    }

    /// Something is awaited on the present connection.
    pub(crate) fn awaits(&self) -> bool {
        self.in_flight.iter().any(|batch| batch.sent.is_some() && batch.answers.is_none())
    }
}
