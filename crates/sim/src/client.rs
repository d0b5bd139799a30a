//! A simulated client: the production engine, ticks, pipelines and supervisors. Like the library's driver
//! (`crates/quorlock/src/driver.rs`), the client carries out the effects (the engine's outputs) of a tick in order.

use std::collections::BTreeMap;
use std::time::Duration;

use quorlock_core::supervisor::Activity;
use quorlock_core::{
    Arrivals, BatchId, Engine, Exchange, LockId, NodeId, NodePipeline, ROUND_TRIPS_AWAITED,
    Reading, Session, Supervisor, Tick, Ticket, TicketedCommand,
};

use crate::network::WireId;
use crate::plan::Plan;
use crate::time::{Machine, Time, duration};
use crate::world::SimEvent;

pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) machine: Machine,
    pub(crate) life: Life,
    pub(crate) transports: Vec<Transport>,
    pub(crate) arrivals: Arrivals<()>,
    pub(crate) ticks: Ticks,
    /// The longest round trip that the engine has measured. The healing phase computes the longest back-off from it.
    pub(crate) slowest: Duration,
    pub(crate) callers: Vec<Caller>,
    pub(crate) locks: u64,
}

#[derive(Default)]
pub(crate) struct Life {
    pub(crate) alive: bool,
    /// Set while the process or its machine is paused. Events for the client wait in `deferred`.
    pub(crate) still: Option<Still>,
    pub(crate) deferred: Vec<SimEvent>,
    /// The client was shut down and owes no release (none that failed and must be sent again).
    pub(crate) drained: bool,
}

/// The driver's tick in progress, and its next timer.
#[derive(Default)]
pub(crate) struct Ticks {
    pub(crate) is_due: bool,
    /// The tick in progress, after it has read the clock. A stall delays the rest of the tick. `None` between ticks.
    pub(crate) stalled: Option<ClientTick>,
    /// Number of the latest timer. Earlier timers are ignored.
    pub(crate) timer: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Still {
    /// The whole machine is suspended: no process can read its clocks, so no check asks whether its guards are valid.
    pub(crate) clocks_stop: bool,
    /// Time by which the wall clock is set ahead at the end of the pause.
    pub(crate) catch_up: Time,
}

pub(crate) struct ClientTick {
    pub(crate) tick: Tick<()>,
    /// The correct reading, taken after all input had arrived. Invariants use it, because a mutant may falsify `tick`.
    pub(crate) honest: Reading,
}

/// A caller that asks for a lock, holds it and releases it, in a loop.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) state: CallerState,
    /// Incremented with each change of state. An event that was planned for an earlier generation is ignored.
    pub(crate) generation: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallerState {
    Idle,
    Waiting { lock: LockId },
    Holding { lock: LockId, until: Time, careless: bool },
    Over,
}

/// A client's transport to one node: the production pipeline, on simulated connections.
pub(crate) struct Transport {
    pub(crate) supervisor: Supervisor,
    pub(crate) wire: Option<WireId>,
    pub(crate) pipeline: NodePipeline,
    /// Commands of the present tick. The pipeline gets them when the tick is over.
    pub(crate) outbox: Vec<TicketedCommand>,
    /// Batches without replies: in flight, or waiting for a connection.
    pub(crate) unanswered: BTreeMap<BatchId, Batch>,
    pub(crate) session: Session,
    /// Whether the engine trusts the node on the present connection. `None` until the engine has decided, and batches
    /// wait for that.
    pub(crate) identified: Option<bool>,
    /// Batches whose connections failed: sending time and tickets. Only the mutant `VoteFromOldEpoch` keeps them.
    pub(crate) given_up: BTreeMap<BatchId, (Reading, Vec<Ticket>)>,
    pub(crate) signs: Signs,
    pub(crate) next_look: NextLook,
    /// Number of the present connection: the number of its dial.
    pub(crate) epoch: u64,
    pub(crate) dials: Dials,
}

#[derive(Default)]
pub(crate) struct Signs {
    /// The supervisor counts a node's silence from this time: the last reply, push, probe or new connection, or a batch
    /// that was sent when no other batch waited for a reply.
    pub(crate) heard_at: Time,
    pub(crate) is_probed: bool,
}

/// The next time at which the supervisor runs.
pub(crate) struct NextLook {
    /// Number of the latest timer. Earlier timers are ignored.
    pub(crate) number: u64,
    pub(crate) at: Time,
}

#[derive(Default)]
pub(crate) struct Dials {
    pub(crate) present: Option<u64>,
    pub(crate) count: u64,
    /// The time until which the present dial must have succeeded.
    pub(crate) latest: Time,
    /// The greeting of the present dial, once the node has accepted the connection.
    pub(crate) greeting: Option<Greeting>,
}

/// A greeting without a reply. The reply identifies the node, so no batch is sent before it.
#[derive(Clone, Copy)]
pub(crate) struct Greeting {
    pub(crate) wire: WireId,
    pub(crate) sent: Reading,
    pub(crate) sent_at: Time,
}

#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) exchange: Exchange,
    /// `None` while the batch waits for a connection.
    pub(crate) wire: Option<WireId>,
}

impl Client {
    pub(crate) fn new(
        engine: Engine,
        transports: Vec<Transport>,
        machine: Machine,
        callers: usize,
    ) -> Self {
        let idle = Caller { state: CallerState::Idle, generation: 0 };
        Self {
            engine,
            machine,
            life: Life { alive: true, ..Life::default() },
            transports,
            arrivals: Arrivals::new(),
            ticks: Ticks::default(),
            slowest: Duration::ZERO,
            callers: vec![idle; callers],
            locks: 0,
        }
    }

    /// The caller that waits for this lock or holds it.
    pub(crate) fn caller_of(&self, wanted: LockId) -> Option<usize> {
        self.callers.iter().position(|caller| match caller.state {
            CallerState::Waiting { lock } | CallerState::Holding { lock, .. } => lock == wanted,
            CallerState::Idle | CallerState::Over => false,
        })
    }
}

impl Transport {
    pub(crate) fn new(node: NodeId, plan: &Plan) -> Self {
        let [silence, replace_after] =
            [plan.wiring.silence, plan.wiring.replace_after].map(duration);
        Self {
            supervisor: Supervisor::new(silence).with_replace_after(replace_after),
            wire: None,
            pipeline: NodePipeline::new(node).with_batch_max(plan.wiring.batch_max),
            outbox: Vec::new(),
            unanswered: BTreeMap::new(),
            session: Session::default(),
            identified: None,
            given_up: BTreeMap::new(),
            signs: Signs::default(),
            next_look: NextLook { number: 0, at: Time::MAX },
            epoch: 0,
            dials: Dials::default(),
        }
    }

    pub(crate) fn activity(&self) -> Activity {
        Activity { is_awaited: self.awaits(), heard_at: duration(self.signs.heard_at) }
    }

    /// The connections of this transport: the present one, and the one that is being made.
    pub(crate) fn wires(&self) -> impl Iterator<Item = WireId> + use<> {
        self.wire.into_iter().chain(self.dials.greeting.map(|greeting| greeting.wire))
    }

    /// Adapts the silence that suspends the node to its distance, as the library does: a timely answer ends no
    /// suspension.
    pub(crate) fn note_round_trip(&mut self, round_trip: Duration, silence: Time) {
        let awaited = round_trip.saturating_mul(ROUND_TRIPS_AWAITED);
        self.supervisor.set_silence(duration(silence).max(awaited));
    }

    pub(crate) fn awaits(&self) -> bool {
        self.signs.is_probed || self.unanswered.values().any(|batch| batch.wire.is_some())
    }
}
