//! Clients with a restart guard: answers have evidence (`INFO`, marker), and nodes restart, lose data or are replaced.

use std::sync::Arc;

use quorlock_core::{
    Command, Effect, Failure, FailureKind, LockId, NodeId, Quorum, Refusal, Rules, TrustState,
};

use super::{EPOCH, ScriptedWorld, guarded};
use crate::evidence_log::EvidenceLog;
use crate::fact::{Fact, FaultEvent, NodeIndex};
use crate::ledger::{Drift, Ledger};
use crate::node::{ModelNode, Run};
use crate::plan::{Modes, Plan};
use crate::time::{SECOND, Time};
use crate::world::World;

/// False information that a test puts into a node's `INFO`.
#[derive(Debug, Default)]
pub(super) struct Says {
    fields: Vec<(&'static str, &'static str)>,
    refuses: Option<&'static str>,
}

impl Says {
    fn info(&self, node: &ModelNode, now: Time) -> Result<Arc<str>, Failure> {
        if let Some(why) = self.refuses {
            return Err(Failure::new(FailureKind::Rejected).with_detail(why));
        }
        let info = node.info(now)?;
        let name = |line: &str| line.split_once(':').map_or("", |(name, _)| name).to_owned();
        let is_true = |line: &&str| self.fields.iter().all(|(field, _)| *field != name(line));
        let kept = info.lines().filter(is_true).map(str::to_owned);
        let said = self.fields.iter().map(|(field, value)| format!("{field}:{value}"));
        Ok(kept.chain(said).collect::<Vec<_>>().join("\r\n").into())
    }
}

impl World {
    /// The `INFO` of a node, with the changes that a test made.
    pub(crate) fn info(&self, node: NodeIndex) -> Result<Arc<str>, Failure> {
        let model = &self.servers[node].node;
        match &self.by_hand {
            Some(by_hand) => by_hand.says[node].info(model, self.now),
            None => model.info(self.now),
        }
    }

    /// Whether a test has taken away the clients' right to read locks.
    pub(crate) fn is_blind(&self) -> bool {
        self.by_hand.as_ref().is_some_and(|by_hand| by_hand.is_blind)
    }
}

impl ScriptedWorld {
    /// Creates one client for each element of `all`, the client's rules for trusting nodes. The nodes have been running
    /// for a while, send no pushes, and answer without delay. Mutual exclusion is checked even if nodes lose data.
    ///
    /// Panics if there are no rules, or no nodes in them.
    pub fn guarded(all: &[Rules]) -> Self {
        let rules = all.first().expect("there is a client");
        let quorum = Quorum::majority(rules.names.len()).expect("there are nodes");
        let mut plan = Plan::by_hand(quorum, rules.guard);
        plan.later.modes = Modes::new(all.iter().map(|rules| rules.guard).collect());
        plan.later.durable = rules.durable.iter().map(NodeId::index).collect();
        let log = EvidenceLog::new(rules, plan.later.modes.clone());
        let mut it = Self::without_clients(plan);
        it.world.watch.ledger = Ledger::new(quorum, Drift::default(), log);
        it.world.setting.rules = rules.clone();
        it.no_pushes();
        for (id, server) in it.world.servers.iter_mut().enumerate() {
            server.node.run = Run::new(id as u64, EPOCH - 100 * SECOND);
        }
        for rules in all {
            it.join(rules.clone());
        }
        it
    }

    /// Adds a client that has no information about the nodes yet.
    pub fn join(&mut self, rules: Rules) -> usize {
        self.join_with(guarded(self.quorum(), rules))
    }

    /// The server of a node.
    pub fn server(&self, node: usize) -> &ModelNode {
        &self.world.servers[node].node
    }

    /// A node's server, for changes by the test.
    pub fn server_mut(&mut self, node: usize) -> &mut ModelNode {
        &mut self.world.servers[node].node
    }

    /// The text under a key on a node.
    pub fn text(&self, node: usize, key: &str) -> Option<String> {
        let value = self.stored(node, key)?.value()?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    /// Changes a field in a node's `INFO`.
    pub fn say(&mut self, node: usize, field: &'static str, value: &'static str) {
        let fields = &mut self.world.by_hand_mut().says[node].fields;
        fields.retain(|(said, _)| *said != field);
        fields.push((field, value));
    }

    /// Makes a node answer `INFO` with this error.
    pub fn refuse_info(&mut self, node: usize, why: &'static str) {
        self.world.by_hand_mut().says[node].refuses = Some(why);
    }

    /// Kills a node and restarts it at once, with or without its data.
    pub fn restart(&mut self, node: usize, keeps_data: bool) {
        let (now, nodes) = (self.now(), self.node_count() as u64);
        let model = &mut self.world.servers[node].node;
        model.crash(keeps_data);
        model.run = Run::new(model.run.id + nodes, model.clock.at(now));
        self.world.note(&Fact::FaultEvent(FaultEvent::NodeCrashed {
            node,
            keeps_data,
            silent: false,
        }));
        self.world.note(&Fact::FaultEvent(FaultEvent::NodeStarted { node }));
        self.reconnect(node);
    }

    /// Replaces the server of a node by another server.
    pub fn replace(&mut self, node: usize, with: ModelNode) {
        self.world.servers[node].node = with;
        self.world.note(&Fact::FaultEvent(FaultEvent::NodeOverwritten { node }));
    }

    /// The result of a call, if it has ended.
    pub fn outcome(&self, lock: LockId) -> Option<Result<(), &Refusal>> {
        match self.granted_at(lock) {
            Some(_) => Some(Ok(())),
            None => self.refused(lock).map(|(_, refusal)| Err(refusal)),
        }
    }

    /// All commands that a client's engine sent so far, with the node of each.
    pub fn orders(&self, client: usize) -> impl Iterator<Item = (usize, &Command)> {
        let orders = self.log().iter().filter_map(move |(_, its, effect)| match effect {
            Effect::Send { nodes, command, .. } if *its == client => Some((nodes, command)),
            _ => None,
        });
        orders.flat_map(|(nodes, command)| nodes.iter().map(move |node| (node.index(), command)))
    }

    /// The number of nodes that a client trusts.
    pub fn trusted(&self, client: usize) -> usize {
        let trust_state = |node| self.engine(client).trust_state(node);
        self.quorum()
            .node_ids()
            .filter(|node| trust_state(*node) == Some(&TrustState::Trusted))
            .count()
    }
}
