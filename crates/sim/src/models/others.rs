//! Clients of two configurations that have one server in common. The last client of a model has the other
//! configuration. Its nodes are the last node of the first clients' list, and servers that they do not know.
//!
//! A client that has heard nothing of the shared server cannot know of the other configuration. So the first clients
//! have heard every node before their calls begin. The commands by which the two configurations compete for the shared
//! server take time; other commands about trust take none, as in all models.

use quorlock_core::marker::{Adoption, Cluster, Marker};
use quorlock_core::{Answer, Command, Quorum, RestartGuard, Rules};

use super::bounds::{Bounds, M1, TICK};
use super::rare_events::Rare;
use super::scenarios::{Scenario, negative, positive};
use super::steps::Step;
use super::world::NODES;
use crate::fact::{ClientId, NodeIndex};
use crate::node::{ModelNode, Run};
use crate::time::{MS, Time};

/// The server that both configurations have in their lists.
const SHARED: usize = NODES - 1;

/// The other configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Others {
    /// The number of its nodes. All but the shared one have its marker, and vote for its clients.
    pub(crate) nodes: usize,
    /// Whether the shared server has its marker too. Otherwise the server has its adoption.
    pub(crate) is_marked: bool,
}

/// The first client's list has three nodes. The shared server is the only node of the other configuration.
const ALONE: Bounds = Bounds {
    ttl: 1,
    drift: 0,
    node_fast: 0,
    attempts: [2; 3],
    breaks: 1,
    zombie_age: 1,
    guard: RestartGuard::Strict,
    alike: false,
    others: Some(Others { nodes: 1, is_marked: false }),
    ..M1
};

/// Two clients of the first configuration.
const TWO: Bounds = Bounds { clients: 3, attempts: [1, 1, 2], breaks: 0, prompt: true, ..ALONE };

/// The other configuration has a quorum without the shared server.
const QUORUM: Bounds = Bounds { others: Some(Others { nodes: 3, is_marked: false }), ..ALONE };

const MARKED: Bounds = Bounds { others: Some(Others { nodes: 1, is_marked: true }), ..ALONE };

pub(super) fn positives() -> Vec<Scenario> {
    let either = [
        Rare::Grant,
        Rare::GrantedToOthers,
        Rare::Replaced,
        Rare::OthersMarked,
        Rare::OthersLate,
        Rare::Barred,
    ];
    vec![
        positive(
            "M10 stray",
            "two configurations: an adoption is replaced, and a connection breaks",
            ALONE,
            (55_738, 169_313),
            &[&either[..], &[Rare::Break, Rare::KeyExpired, Rare::LostExpired]].concat(),
        ),
        positive(
            "M10 two",
            "two configurations: two clients replace an adoption at the same time",
            TWO,
            (217_896, 773_032),
            &[&either[..], &[Rare::InTurn, Rare::Contended]].concat(),
        ),
        positive(
            "M10 quorum",
            "two configurations: the other one has a quorum elsewhere, and its adoption bars",
            QUORUM,
            (1_298, 3_753),
            &[Rare::GrantedToOthers, Rare::Barred],
        ),
    ]
}

/// Models that need a mutant.
pub(super) fn negatives() -> Vec<Scenario> {
    let new =
        |name, about, mutant, bounds, after| negative(name, about, Some(mutant), bounds, after);
    vec![
        new(
            "no replacement",
            "an adoption of others does not bar, and stays",
            "an adoption of others is left alone",
            ALONE,
            14,
        ),
        new(
            "no count",
            "an adoption of others is replaced, whatever quorum they have elsewhere",
            "an adoption of others is replaced uncounted",
            QUORUM,
            11,
        ),
        new(
            "marker ignored",
            "a marker of others does not bar",
            "a marker of others bars nothing",
            MARKED,
            8,
        ),
        new(
            "not awaited",
            "a lock is granted before an adoption of others was replaced",
            "a replacement is not awaited",
            ALONE,
            14,
        ),
    ]
}

impl Bounds {
    /// Whether the invariants about single votes do not fit the model, so that mutual exclusion alone is checked.
    pub(super) fn is_exclusion_alone(&self) -> bool {
        self.replica.is_some() || self.others.is_some()
    }

    /// Whether this client has the other configuration.
    pub(crate) fn is_other(&self, client: ClientId) -> bool {
        self.others.is_some() && client + 1 == self.clients
    }

    /// The nodes of a client's configuration.
    pub(crate) fn quorum_of(&self, client: ClientId) -> Quorum {
        let others = self.others.filter(|_| self.is_other(client));
        let nodes = match (others, self.replica) {
            (Some(others), _) => others.nodes,
            (None, Some(_)) => 1,
            (None, None) => NODES,
        };
        match Quorum::majority(nodes) {
            Ok(quorum) => quorum,
            Err(error) => unreachable!("there are nodes: {error}"),
        }
    }

    /// The rules by which a client decides whether it trusts a node.
    pub(crate) fn rules_of(&self, client: ClientId) -> Rules {
        let rules = self.rules();
        if !self.is_other(client) {
            return rules;
        }
        let quorum = self.quorum_of(client);
        let names: Vec<_> = (0..quorum.nodes()).map(|node| format!("m{node}").into()).collect();
        let cluster = Cluster::new(&names, quorum.needed(), rules.cluster.max_ttl_ms());
        Rules { cluster, names, ..rules }
    }

    /// The index by which a client knows the node of this server. A node with a replica has two servers and one index.
    pub(crate) fn name(&self, client: ClientId, server: NodeIndex) -> NodeIndex {
        match self.replica {
            Some(_) => 0,
            None if self.is_other(client) => server - SHARED,
            None => server,
        }
    }

    /// The server that a client reaches under a node's name, in a model without a replica.
    pub(crate) fn server(&self, client: ClientId, node: NodeIndex) -> usize {
        node + if self.is_other(client) { SHARED } else { 0 }
    }

    /// Whether this command about trust takes time, because two configurations compete.
    pub(crate) fn competes(&self, command: &Command) -> bool {
        let changes =
            matches!(command, Command::Adopt { replaces: Some(_), .. } | Command::Mark { .. });
        self.others.is_some() && changes
    }

    /// Prepares a server for the other configuration. `age` is the age of its adoption.
    pub(crate) fn prepare_for_others(&self, server: usize, age: Time, node: &mut ModelNode) {
        let Some(others) = self.others.filter(|_| server >= SHARED) else { return };
        let rules = self.rules_of(self.clients - 1);
        let cluster = rules.cluster.clone();
        let marker =
            Marker { cluster, run_id: format!("{server:040x}").into(), promoted_at: -1, floor: 0 };
        if server > SHARED || others.is_marked {
            return node.set(&rules.marker, Some(marker.to_string().into_bytes()), None, 0);
        }
        node.delete(&rules.marker, 0);
        let wait_ms = u64::try_from(rules.quarantine().as_millis()).unwrap_or(u64::MAX);
        let text = Adoption { marker, wait_ms }.to_string();
        let left_ms = i64::try_from(Adoption::TTL_MS).unwrap_or(i64::MAX) - age / MS;
        node.set(&rules.adoption, Some(text.into_bytes()), Some(left_ms), 0);
        if age == 0 {
            node.run = Run::new(node.run.id, 0);
        }
    }

    /// The ages of the other configuration's adoption in the initial states: it has just begun, or its wait is over.
    pub(crate) fn ages(&self) -> [Time; 2] {
        let quarantine = self.rules().quarantine().as_nanos();
        let ticks = quarantine.div_ceil(TICK.unsigned_abs().into());
        [0, Time::try_from(ticks).unwrap_or(Time::MAX) * TICK]
    }
}

impl Step<'_> {
    /// The first clients examine every node, before their calls begin.
    pub(crate) fn hear_all(&mut self) {
        for client in (0..self.bounds.clients).filter(|client| !self.bounds.is_other(*client)) {
            (0..NODES).for_each(|node| self.greet(client, node));
            self.tell_all(client);
        }
    }

    /// Notes who was quicker on the shared server.
    pub(super) fn competed(&mut self, client: ClientId, command: &Command, answer: &Answer) {
        if !self.bounds.competes(command) {
            return;
        }
        match (answer, self.bounds.is_other(client)) {
            (Answer::Marked, true) => self.seen.add(Rare::OthersMarked),
            (Answer::NotMarked, true) => self.seen.add(Rare::OthersLate),
            (Answer::Adopting { .. }, false) => self.seen.add(Rare::Replaced),
            _ => {}
        }
    }
}
