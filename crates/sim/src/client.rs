//! A client: the production engine, ticks, pipelines and supervisors, and around them what the library's driver has
//! (`crates/quorlock/src/driver.rs`): what comes of a tick is carried out in order.

use std::collections::BTreeMap;
use std::time::Duration;

use quorlock_core::supervisor::Activity;
use quorlock_core::{
    Arrivals, BatchId, Engine, Event, Exchange, LockId, NodeId, NodePipeline, Reading, Session,
    Supervisor, Tick, Ticket, TicketedCommand,
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
    /// What has come in since the last turn.
    pub(crate) arrivals: Arrivals<Event>,
    pub(crate) ticks: Ticks,
    /// The longest round trip that the engine was ever told.
    pub(crate) slowest: Duration,
    pub(crate) callers: Vec<Caller>,
    pub(crate) locks: u64,
}

/// Whether a client's process lives, and runs.
#[derive(Default)]
pub(crate) struct Life {
    pub(crate) alive: bool,
    /// It stands still, with its whole machine or not; what happens to it meanwhile waits.
    pub(crate) still: Option<Still>,
    pub(crate) deferred: Vec<SimEvent>,
    /// It has been shut down, and owes nothing.
    pub(crate) drained: bool,
}

/// The driver's present turn, and when there is another.
#[derive(Default)]
pub(crate) struct Ticks {
    pub(crate) is_due: bool,
    /// It stands still within a turn, after it has read the clock.
    pub(crate) stalled: Option<ClientTick>,
    /// The number of the alarm that is set: an earlier one is not heard.
    pub(crate) timer: u64,
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
pub(crate) struct ClientTick {
    pub(crate) tick: Tick<Event>,
    /// The true reading after all of it had come in; what the tick's ought to be.
    pub(crate) honest: Reading,
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
    Waiting { lock: LockId },
    Holding { lock: LockId, until: Time, careless: bool },
    Over,
}

/// The way to a node, around the pipeline of the production client.
pub(crate) struct Transport {
    pub(crate) supervisor: Supervisor,
    pub(crate) wire: Option<WireId>,
    pub(crate) pipeline: NodePipeline,
    /// What the present turn gives to the pipeline when it is over.
    pub(crate) outbox: Vec<TicketedCommand>,
    /// Batches in flight that have not been answered.
    pub(crate) unanswered: BTreeMap<BatchId, Batch>,
    /// What is asked beside commands on the present connection, and in which form they are sent.
    pub(crate) session: Session,
    /// Batches that have failed with their connections; kept by mistake only.
    pub(crate) given_up: BTreeMap<BatchId, (Reading, Vec<Ticket>)>,
    pub(crate) signs: Signs,
    pub(crate) next_look: NextLook,
    /// The connections there have been.
    pub(crate) epoch: u64,
    pub(crate) dials: Dials,
}

/// What the node gives as signs of life.
#[derive(Default)]
pub(crate) struct Signs {
    /// When it last gave one, or was first asked after a pause.
    pub(crate) heard_at: Time,
    /// A probe has not been answered.
    pub(crate) is_probed: bool,
}

/// The supervisor's next look.
pub(crate) struct NextLook {
    /// An earlier one is not taken.
    pub(crate) number: u64,
    pub(crate) at: Time,
}

/// Attempts to connect.
#[derive(Default)]
pub(crate) struct Dials {
    /// The one that is under way.
    pub(crate) present: Option<u64>,
    pub(crate) count: u64,
}

/// Commands that travel together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) exchange: Exchange,
    /// On which connection, and when; `None`: it waits for one.
    pub(crate) sent: Option<(WireId, Reading)>,
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

    /// Who waits for this lock, or holds it.
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

    /// Something is awaited on the present connection.
    pub(crate) fn awaits(&self) -> bool {
        self.signs.is_probed || self.unanswered.values().any(|batch| batch.sent.is_some())
    }
}
