//! The state of a model: clients with the production engine, three model nodes, and the messages between them. Times
//! count from the present, so the present is always zero.
//!
//! The model has its own links in place of the production `NodePipeline`. A pipeline has neither equality nor a hash,
//! numbers its batches, and keeps clock readings that a model cannot shift, so equal states could not be recognised.
//! Batches would also multiply the states. Every run of the simulator uses pipelines, so they are covered there.

use std::collections::VecDeque;
use std::time::Duration;

use quorlock_core::marker::Marker;
use quorlock_core::{
    Answer, Command, DetachedFrom, Engine, Evidence, LockId, Reading, RestartGuard, Ticket, Token,
};

use super::bounds::{Bounds, TICK};
use super::shared::Shared;
use crate::checker::Checker;
use crate::evidence_log::EvidenceLog;
use crate::fact::{ClientId, NodeIndex};
use crate::guard::{Guard, GuardId};
use crate::invariants::Invariants;
use crate::ledger::Ledger;
use crate::node::{Kind, ModelNode, Run};
use crate::plan::Modes;
use crate::time::{Clock, Time};

/// The number of nodes in a list.
pub(crate) const NODES: usize = 3;
/// The number of servers. Most models have one for each node, and the others are never reached.
pub(crate) const SERVERS: usize = 5;
pub(crate) const CLIENTS: usize = 3;

/// The lock id of each client's only call.
pub(crate) const LOCK: LockId = LockId(0);

pub(crate) const RESOURCES: [&str; 3] = ["orders", "jobs", "mails"];

pub(crate) const NOW: Reading = Reading::new(0, 0);

/// The name of the invariant checked at a grant: no other client has a valid guard.
pub(crate) const HANDED_OUT: &str = "handed out";

#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct ModelWorld {
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) nodes: [Shared<ModelNode>; SERVERS],
    pub(crate) links: [[Shared<ModelLink>; SERVERS]; CLIENTS],
    pub(crate) watch: Shared<Checker>,
    /// The lock that the first client detached before the start; `None` if it detached no lock.
    pub(crate) lease: Option<DetachedFrom>,
    /// The remaining budgets: how often each event may still happen.
    pub(crate) flushes: u8,
    pub(crate) vanishing: u8,
    pub(crate) restarts: u8,
    pub(crate) breaks: u8,
    pub(crate) suspends: u8,
    pub(crate) pauses: u8,
    /// The replica was promoted.
    pub(crate) promoted: bool,
    /// The violated invariant, if any. A state with a violation has no successors.
    pub(crate) violation: Option<&'static str>,
}

#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct Client {
    pub(crate) engine: Shared<Engine>,
    pub(crate) call: Call,
    pub(crate) attempts: u8,
    pub(crate) extensions: u8,
    pub(crate) downgrades: u8,
    /// The number of ticks until the client's clock may fall behind again.
    pub(crate) steady_for: u8,
    pub(crate) held: bool,
    /// The number of ticks for which the client has been paused.
    pub(crate) paused: u8,
    /// If the node has a replica: the server that the client's connection leads to.
    pub(crate) server: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Call {
    NotYet,
    Waiting,
    Holding,
    Over,
}

/// A message, the ticket (lock, round and verb) of its command, and the sending time of the command.
pub(crate) type Sent<T> = (Reading, Ticket, T);

/// Messages between a client and a node, in order. Commands of a dead connection are `zombies`.
#[derive(Clone, Default, PartialEq, Hash, Debug)]
pub(crate) struct ModelLink {
    pub(crate) commands: VecDeque<Sent<Command>>,
    pub(crate) answers: VecDeque<Sent<(Answer, Evidence)>>,
    pub(crate) zombies: VecDeque<Sent<Command>>,
    /// The number of the connection, and whether the client has read the node's `INFO` on it.
    pub(crate) epoch: u64,
    pub(crate) identified: bool,
    /// If the node has a replica: the replica lacks the write that a `WAIT` on this connection would cover.
    pub(crate) lags: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    Even,
    /// Both clocks stop for this tick, because they run slow.
    Slow,
    /// The boot clock stops: the host suspended the machine.
    BootStops,
    /// The wall clock stops. This simulates a jump back.
    WallStops,
}

impl Pace {
    pub(crate) const fn advance(self) -> Reading {
        match self {
            Self::Even => Reading::new(TICK, TICK),
            Self::Slow => NOW,
            Self::BootStops => Reading::new(0, TICK),
            Self::WallStops => Reading::new(TICK, 0),
        }
    }
}

pub(crate) fn engine(bounds: &Bounds, client: ClientId) -> Engine {
    Engine::guarded(bounds.quorum_of(client), bounds.rules_of(client))
        .with_fixed_round_trip(Duration::ZERO)
}

pub(crate) fn token(client: ClientId, attempt: u8) -> Token {
    Token::new([16 * (client as u8 + 10) + attempt; Token::BYTES])
}

impl ModelWorld {
    /// All initial states. `only` names the single invariant to check.
    pub(crate) fn all(bounds: &Bounds, only: Option<&str>) -> Vec<Self> {
        match bounds.fresh {
            true => (0..NODES).map(|fresh| Self::new(bounds, only, Some(fresh), 0)).collect(),
            false if bounds.others.is_some() => {
                bounds.ages().map(|age| Self::new(bounds, only, None, age)).into()
            }
            false => vec![Self::new(bounds, only, None, 0)],
        }
    }

    fn new(bounds: &Bounds, only: Option<&str>, fresh: Option<NodeIndex>, age: Time) -> Self {
        let rules = bounds.rules();
        let client = |id: ClientId| Client {
            engine: Shared::new(engine(bounds, id)),
            call: Call::NotYet,
            attempts: 0,
            extensions: 0,
            downgrades: 0,
            steady_for: 0,
            held: false,
            paused: 0,
            server: 0,
        };
        // The worst kind of node for a client: a key expires as early as allowed.
        let kind = Kind { expires_at_once: true, deletes_natively: false, pushes: bounds.looks };
        let node = |id: NodeIndex| {
            let mut node = ModelNode::new(Clock::new(0, 0), kind);
            node.run = Run { started_s: -bounds.grown_s(), ..Run::new(id as u64, 0) };
            if fresh == Some(id) {
                node.run = Run::new(id as u64, 0);
            } else if bounds.guard != RestartGuard::Off {
                let (cluster, run_id) = (rules.cluster.clone(), format!("{id:040x}").into());
                let marker = Marker { cluster, run_id, promoted_at: -1, floor: 0 };
                node.set(&rules.marker, Some(marker.to_string().into_bytes()), None, 0);
            }
            bounds.prepare_for_others(id, age, &mut node);
            Shared::new(node)
        };
        let link = Shared::new(ModelLink::default());
        let evidence_log = EvidenceLog::new(&rules, Modes::default());
        let watch = Checker::new(
            Ledger::new(bounds.quorum(), bounds.assumed(), evidence_log),
            Invariants::new(bounds.quorum().nodes(), only.map(str::to_owned)),
        );
        Self {
            clients: std::array::from_fn(client),
            nodes: std::array::from_fn(node),
            links: std::array::from_fn(|_| std::array::from_fn(|_| link.clone())),
            watch: Shared::new(watch),
            lease: None,
            flushes: bounds.flushes,
            vanishing: bounds.vanishing.unwrap_or(0),
            restarts: bounds.restarts,
            breaks: bounds.breaks,
            suspends: bounds.suspends,
            pauses: bounds.pauses,
            promoted: false,
            violation: None,
        }
    }

    pub(crate) fn guard(&self, client: ClientId) -> Option<&Guard> {
        self.watch.guards.of(GuardId { client, lock: LOCK })
    }

    pub(crate) fn has_keys(&self, node: NodeIndex) -> bool {
        RESOURCES.iter().any(|key| self.nodes[node].stored(key, 0).is_some())
    }

    /// The value under the first key on a node, and the remaining time of that key.
    pub(crate) fn stored(&self, node: NodeIndex) -> Option<(&[u8], Time)> {
        let stored = self.nodes[node].stored(RESOURCES[0], 0)?;
        Some((stored.value()?, stored.expires_ms? * crate::time::MS))
    }

    pub(crate) fn seal(&mut self) {
        self.clients.iter_mut().for_each(|client| client.engine.seal());
        self.nodes.iter_mut().for_each(Shared::seal);
        self.links.iter_mut().flatten().for_each(Shared::seal);
        self.watch.seal();
    }
}

impl ModelLink {
    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.answers.is_empty() && self.zombies.is_empty()
    }
}
