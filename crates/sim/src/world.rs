//! The world: the queue of future events, and the processes that handle them.
//!
//! The events are ordered by true time. Two runs of one plan are equal, to the nanosecond.

mod agenda;
mod callers;
mod clients;
mod faults;
mod greeting;
mod healing;
mod kinds;
mod leases;
mod nodes;
mod replicas;
mod scripts;
mod strays;
mod transports;
mod visits;

use std::collections::{BTreeMap, BTreeSet};

use quorlock_core::{
    Answer, BatchId, Entry, Evidence, Key, Keys, LockId, Reading, RestartGuard, Rules,
    TicketedCommand,
};

use self::agenda::Agenda;
use self::leases::SimLease;
use self::replicas::{Pair, Replicated};
use self::scripts::Script;
use self::visits::Visit;
use crate::checker::{Checker, Moment};
use crate::client::Client;
use crate::count::{Count, Counts};
use crate::evidence_log::EvidenceLog;
use crate::fact::{ClientId, Fact, FaultEvent, NodeIndex, point};
use crate::invariants::tally::Tally;
use crate::invariants::{Invariants, Surroundings, Terms, Violation};
use crate::ledger::{Drift, Ledger};
use crate::network::{Network, WireId};
use crate::node::ModelNode;
use crate::plan::{Fault, Plan};
use crate::random::Random;
use crate::scripted::ByHand;
use crate::time::{SECOND, Time};

#[derive(Debug)]
pub(crate) enum SimEvent {
    /// The driver runs a tick.
    Tick(ClientId),
    /// The driver continues its tick after a stall.
    Carry(ClientId),
    /// The engine's deadline has come. Only the event with the latest number counts.
    Timer(ClientId, u64),
    /// A batch or a probe reaches its node.
    Request(Box<Parcel>),
    /// A reply reaches the client.
    Reply {
        wire: WireId,
        reply: Box<Reply>,
    },
    /// A push reaches the client; `None`: all keys have changed.
    Push {
        wire: WireId,
        key: Option<Key>,
    },
    /// The client learns that a connection is broken.
    Broken(WireId),
    /// An attempt to connect ends.
    Dialled {
        client: ClientId,
        node: NodeIndex,
        dial: u64,
        in_time: bool,
    },
    /// The supervisor runs. Only the event with the latest number counts.
    Look {
        client: ClientId,
        node: NodeIndex,
        number: u64,
    },
    /// The next action of a caller is due.
    Caller {
        client: ClientId,
        caller: usize,
        generation: u32,
    },
    /// Callers use the detached lock that has this index in `World::leases`.
    Lease(usize),
    Visit(Visit),
    /// An event of a node with a replica, for example the promotion of the replica.
    Replicated(NodeIndex, Replicated),
    /// A fault begins.
    Fault(Fault),
    /// A fault ends, or a planned change happens.
    Mend(Mend),
}

#[derive(Clone, Debug)]
pub(crate) enum Mend {
    Resume(ClientId),
    SetWallRight(ClientId, Time),
    StartClient,
    EndClient(ClientId),
    /// A short-lived client has done what it started for.
    Depart(ClientId),
    StartNode(NodeIndex),
    Thaw(NodeIndex),
    Cure(NodeIndex),
    Vacate(NodeIndex, Key),
    KeepKeys(NodeIndex),
    /// Another program's value occupies the key of a lock for ever, as soon as the lock is free on this node.
    Litter(NodeIndex, Key),
    /// A jump of a node's clock, or of a client's wall clock, by this time. A negative time is a jump back.
    SetNode(NodeIndex, Time),
    SetWall(ClientId, Time),
    /// A client of another configuration marks the node, if its adoption is still there.
    MarkForOthers(NodeIndex, std::sync::Arc<str>),
    SendStraysAway(NodeIndex),
    Pause(ClientId, Time),
    /// The first node stops answering for longer than the time between two identifications of a node.
    Leave,
    /// The second node's name starts to lead to the first node's server.
    Merge,
}

#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    pub(crate) wire: WireId,
    /// `None` for a probe or a greeting.
    pub(crate) batch: Option<BatchId>,
    /// The greeting of a new connection, which makes the scripts known.
    pub(crate) greets: bool,
    pub(crate) orders: Vec<TicketedCommand>,
    /// The batch contains the text of each script instead of its hash.
    pub(crate) whole: bool,
    pub(crate) asked_evidence: Option<AskedEvidence>,
    pub(crate) duplicate: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) parcel: Parcel,
    pub(crate) answers: Vec<Answer>,
    pub(crate) evidence: Evidence,
    /// The indexes of the commands that were not carried out, because the node did not know their scripts.
    pub(crate) unknown: Vec<usize>,
}

/// Evidence (`INFO`, marker) that a batch requests in addition to its commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedEvidence {
    pub(crate) epoch: u64,
    /// `INFO`, read before the commands.
    pub(crate) info: bool,
    /// The marker (the key that shows that the node lost no data), read after the commands.
    pub(crate) marker: bool,
    /// The acknowledgement of the node's replica, requested after the marker.
    pub(crate) acknowledgement: bool,
}

pub(crate) struct Server {
    pub(crate) node: ModelNode,
    pub(crate) process: Process,
    pub(crate) stuck: Vec<Parcel>,
    /// The node died without closing its connections: messages to it are lost.
    pub(crate) silent: bool,
    /// Scripts that clients have loaded and the node has not dropped.
    pub(crate) known_scripts: BTreeSet<Script>,
    /// The total time by which jumps have set the node's clock ahead.
    pub(crate) ahead: Time,
    /// The time since which the node has lost nothing: its last start, flush or replacement of data.
    pub(crate) sound_since: Time,
    /// The node's clock jumped during a quarantine.
    pub(crate) has_jumped: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Process {
    Runs,
    Frozen,
    Down,
}

pub(crate) struct Streams {
    pub(crate) callers: Random,
    pub(crate) clients: Random,
    pub(crate) transports: Random,
    pub(crate) tokens: Random,
    pub(crate) healing: Random,
    pub(crate) faults: Vec<Random>,
    /// The stream for the faults and settings in `plan.later`. If they drew from other streams, old seeds would change.
    pub(crate) later: Random,
    pub(crate) scripts: Random,
    pub(crate) kinds: Random,
    pub(crate) leases: Random,
    pub(crate) replicas: Random,
    pub(crate) visits: Random,
    pub(crate) strays: Random,
}

/// The clocks and nodes, as a view for the invariants.
struct Stage<'a> {
    now: Time,
    clients: &'a [Client],
    servers: &'a [Server],
}

impl Surroundings for Stage<'_> {
    fn reading(&self, client: ClientId) -> Reading {
        self.clients[client].machine.read(self.now)
    }

    fn tick_reading(&self, client: ClientId) -> Reading {
        match &self.clients[client].ticks.stalled {
            Some(tick) => tick.honest,
            None => self.reading(client),
        }
    }

    fn can_check(&self, client: ClientId) -> bool {
        self.clients[client].life.alive
            && !self.clients[client].life.still.is_some_and(|still| still.clocks_stop)
    }

    fn node(&self, node: NodeIndex) -> &ModelNode {
        &self.servers[node].node
    }
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: Time,
    pub(crate) agenda: Agenda,
    pub(crate) clients: Vec<Client>,
    pub(crate) servers: Vec<Server>,
    /// The second servers of nodes with a replica. Empty, or one for each node.
    pairs: Vec<Pair>,
    pub(crate) network: Network,
    pub(crate) watch: Checker,
    pub(crate) random: Streams,
    pub(crate) progress: Progress,
    pub(crate) setting: Setting,
    pub(crate) record: Record,
    leases: Vec<SimLease>,
    /// The nodes when the first lock was detached, if the plan rolls them back to that.
    dumps: Vec<ModelNode>,
    /// For each pending request to extend a lock without a guard: the lock that it extends.
    pub(crate) extending: BTreeMap<(ClientId, LockId), Entry>,
    /// In a scripted world: the settings of the test, which replace callers, faults and random numbers.
    pub(crate) by_hand: Option<Box<ByHand>>,
}

#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) healing: bool,
    pub(crate) closing: bool,
    /// Clients whose callers lock for reading again and again during the healing phase.
    pub(crate) readers: Vec<ClientId>,
    runs: u64,
}

pub(crate) struct Setting {
    keys: Vec<Key>,
    wishes: Vec<Keys>,
    pub(crate) rules: Rules,
}

pub(crate) struct Record {
    pub(crate) counts: Counts,
    tally: Tally,
    violation: Option<Violation>,
    trace: Option<Vec<String>>,
}

/// The result of a run: counts, violation and trace.
#[derive(Debug)]
pub struct Outcome {
    /// The counts of the run's events.
    pub counts: Counts,
    /// The first violation of an invariant, if any.
    pub violation: Option<Violation>,
    /// The trace, if it was requested.
    pub trace: Vec<String>,
}

impl World {
    pub(crate) fn run(plan: &Plan, traced: bool) -> Outcome {
        let mut world = Self::new(plan.clone(), traced);
        world.live();
        Outcome {
            counts: world.record.counts,
            violation: world.record.violation,
            trace: world.record.trace.unwrap_or_default(),
        }
    }

    pub(crate) fn new(plan: Plan, traced: bool) -> Self {
        let seed = plan.seed;
        let mut world = Self {
            now: 0,
            agenda: Agenda::default(),
            clients: Vec::new(),
            servers: Vec::new(),
            pairs: Vec::new(),
            network: Network::new(&plan),
            watch: Checker::new(
                Ledger::new(
                    plan.servers.quorum,
                    Drift::default(),
                    EvidenceLog::new(&plan.rules(), plan.later.modes.clone()),
                ),
                Invariants::new(plan.servers.quorum.nodes(), plan.only.clone()),
            ),
            random: Streams {
                callers: Random::new(seed, 2),
                clients: Random::new(seed, 3),
                transports: Random::new(seed, 4),
                tokens: Random::new(seed, 5),
                healing: Random::new(seed, 6),
                later: Random::new(seed, 9),
                scripts: Random::new(seed, 12),
                kinds: Random::new(seed, 14),
                leases: Random::new(seed, 41),
                replicas: Random::new(seed, 43),
                visits: Random::new(seed, 46),
                strays: Random::new(seed, 49),
                faults: (0..Fault::ALL.len()).map(|i| Random::new(seed, 16 + i as u64)).collect(),
            },
            progress: Progress::default(),
            setting: Setting::new(&plan),
            record: Record {
                counts: Counts::default(),
                tally: Tally::default(),
                violation: None,
                trace: traced.then(Vec::new),
            },
            leases: Vec::new(),
            dumps: Vec::new(),
            extending: BTreeMap::new(),
            by_hand: None,
            plan,
        };
        world.set_up();
        world
    }

    fn set_up(&mut self) {
        self.start_servers();
        for _ in 0..self.plan.load.clients {
            self.start_client();
        }
        for fault in self.plan.faults.kinds.clone() {
            self.plan_fault(fault);
        }
        if self.plan.later.visits {
            self.plan_visit();
        }
        if self.plan.later.merges {
            let at = self.random.later.between(SECOND, 10 * SECOND);
            self.plan_in(at, SimEvent::Mend(Mend::Leave));
        }
        self.count_kinds();
        if self.plan.outside.is_some() {
            self.record.counts.add(Count::Outside);
        }
        if !self.plan.later.behind.is_empty() {
            self.record.counts.add(Count::ClocksBehind);
        }
        if !self.plan.later.modes.is_empty() {
            self.record.counts.add(Count::MixedModes);
        }
        if self.plan.guard == RestartGuard::Strict {
            self.record.counts.add(Count::Guarded);
        }
        if !self.plan.servers.down_to_the_end.is_empty() {
            self.record.counts.add(Count::MinorityDown);
        }
    }

    fn live(&mut self) {
        let faults_until = self.plan.faults.last_for;
        self.run_until(faults_until, |_| false);
        // Runs with replicas end here, because they check only mutual exclusion.
        if self.record.violation.is_none() && !self.plan.later.replicated {
            self.heal();
        }
        if self.record.violation.is_none() && !self.plan.later.replicated {
            self.end();
        }
    }

    pub(crate) fn run_until(&mut self, until: Time, over: impl Fn(&Self) -> bool) {
        while self.record.violation.is_none() && !over(self) {
            let Some((at, what)) = self.next_by(until) else { break };
            self.now = at;
            self.happen(what);
        }
        if self.record.violation.is_none() && !over(self) {
            self.now = until;
        }
    }

    pub(crate) fn happen(&mut self, what: SimEvent) {
        if let Some(client) = self.concerns(&what) {
            if !self.clients[client].life.alive {
                return;
            }
            if self.clients[client].life.still.is_some() {
                self.clients[client].life.deferred.push(what);
                return;
            }
        }
        match what {
            SimEvent::Tick(client) => self.tick(client),
            SimEvent::Carry(client) => self.carry_on(client),
            SimEvent::Timer(client, number) => {
                if self.clients[client].ticks.timer == number {
                    self.wake(client);
                }
            }
            SimEvent::Request(parcel) => self.receive(parcel),
            SimEvent::Reply { wire, reply } => self.reply(wire, *reply),
            SimEvent::Push { wire, key } => self.push(wire, key),
            SimEvent::Broken(wire) => self.broken(wire),
            SimEvent::Dialled { client, node, dial, in_time } => {
                self.dialled(client, node, dial, in_time);
            }
            SimEvent::Look { client, node, number } => {
                if self.clients[client].transports[node].next_look.number == number {
                    self.supervise(client, node);
                }
            }
            SimEvent::Caller { client, caller, generation } => {
                let it = self.clients[client].callers.get(caller);
                if it.is_some_and(|it| it.generation == generation) {
                    self.act(client, caller);
                }
            }
            SimEvent::Lease(lease) => self.use_lease(lease),
            SimEvent::Visit(visit) => self.visit(visit),
            SimEvent::Replicated(node, event) => self.replicated(node, event),
            SimEvent::Fault(fault) => self.strike(fault),
            SimEvent::Mend(mend) => self.mend(mend),
        }
    }

    /// Returns the client whose process must be running to handle this event. `None` if a client need not run.
    pub(crate) fn concerns(&self, what: &SimEvent) -> Option<ClientId> {
        match what {
            SimEvent::Tick(client)
            | SimEvent::Carry(client)
            | SimEvent::Timer(client, _)
            | SimEvent::Dialled { client, .. }
            | SimEvent::Look { client, .. }
            | SimEvent::Caller { client, .. } => Some(*client),
            SimEvent::Reply { wire, .. } | SimEvent::Push { wire, .. } | SimEvent::Broken(wire) => {
                Some(self.network.wires[*wire].client)
            }
            SimEvent::Request(_)
            | SimEvent::Lease(_)
            | SimEvent::Visit(_)
            | SimEvent::Replicated(..)
            | SimEvent::Fault(_)
            | SimEvent::Mend(_) => None,
        }
    }

    /// Records a fact in the trace and the ledger, and checks the invariants.
    pub(crate) fn note(&mut self, fact: &Fact<'_>) {
        if self.record.violation.is_some() {
            return;
        }
        if let Some(trace) = &mut self.record.trace {
            trace.push(format!("{}  {fact}", point(self.now)));
        }
        let stage = Stage { now: self.now, clients: &self.clients, servers: &self.servers };
        // The ledger keeps the longer-lasting of two votes of a node, as measured by the reading of the engine's tick.
        // By a later reading, after a pause or a jump of the wall clock, the other vote might last longer.
        let reading = match fact {
            Fact::Answered { client, .. } => Some(stage.tick_reading(*client)),
            _ => None,
        };
        let terms = Terms {
            quorum: self.plan.servers.quorum,
            outside: self.plan.outside,
            spare_counters: self.plan.spare_counters(),
            quarantine: i64::try_from(self.setting.rules.quarantine().as_nanos())
                .unwrap_or(i64::MAX),
            durable: &self.plan.later.durable,
        };
        let moment = Moment { now: self.now, reading, terms, around: &stage };
        let verdict = self.watch.note(fact, moment, &mut self.record.counts, |view, counts| {
            self.record.tally.note(fact, view, counts);
        });
        if let Err(violation) = verdict {
            assert!(self.by_hand.is_none(), "{violation}");
            if let Some(trace) = &mut self.record.trace {
                trace.push(format!("{}  !!! {violation}", point(self.now)));
            }
            self.record.violation = Some(violation);
        }
    }

    pub(crate) fn note_fault(&mut self, fault: FaultEvent) {
        self.note(&Fact::FaultEvent(fault));
    }

    pub(crate) fn violated(&mut self, invariant: &'static str, what: String) {
        let is_checked = self.plan.only.as_ref().is_none_or(|only| only == invariant);
        if self.record.violation.is_none() && is_checked {
            let violation = Violation { invariant, what, at: self.now };
            if let Some(trace) = &mut self.record.trace {
                trace.push(format!("{}  !!! {violation}", point(self.now)));
            }
            self.record.violation = Some(violation);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.record.violation.is_some()
    }
}
