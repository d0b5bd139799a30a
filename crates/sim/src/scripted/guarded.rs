//! Clients with a restart guard: answers come with what the node says of itself, and nodes are started again, emptied,
//! promoted or exchanged.

use std::time::Duration;

use quorlock_core::{
    Answer, Command, Effect, Engine, Evidence, Failure, FailureKind, Key, LockId, MarkerSeen,
    NodeId, Quorum, Refusal, Rules, Ticket, TrustState,
};

use super::links::{NodeReplies, ScriptedLink};
use super::{EPOCH, ONE_WAY, ScriptedWorld};
use crate::driver::Driver;
use crate::evidence_log::EvidenceLog;
use crate::fact::{ClientId, Fact, FaultEvent, NodeIndex};
use crate::ledger::{Drift, Ledger};
use crate::node::{ConnectionId, ModelNode, Run};
use crate::plan::Modes;
use crate::time::{SECOND, Time, time};

/// What such a world has beside the others.
pub(super) struct Guarded {
    /// Where nodes are marked.
    pub(super) marker: Key,
    pub(super) quarantine: Time,
    /// What the operator has declared to forget nothing.
    pub(super) durable: Vec<NodeIndex>,
    /// A client takes every vote: locks may overlap.
    pub(super) may_overlap: bool,
}

/// What a node says of itself that is not so.
#[derive(Default)]
pub(super) struct Says {
    fields: Vec<(&'static str, &'static str)>,
    /// It says only this.
    refuses: Option<&'static str>,
}

impl Says {
    fn info(&self, node: &ModelNode, now: Time) -> Result<std::sync::Arc<str>, Failure> {
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

impl ScriptedWorld {
    /// A client with each of these rules; its nodes have been running for a while, tell nobody of changes, and are no
    /// time away. That no two hold one lock is checked whatever the nodes lose.
    ///
    /// # Panics
    /// If there are no rules, or no nodes in them.
    pub fn guarded(all: &[Rules]) -> Self {
        let rules = all.first().expect("there is a client");
        let quorum = Quorum::majority(rules.names.len()).expect("there are nodes");
        let mut world = Self::with(0, quorum);
        let modes = Modes::new(all.iter().map(|rules| rules.guard).collect());
        world.witness.watch.ledger =
            Ledger::new(quorum, Drift::default(), EvidenceLog::new(rules, modes));
        world.guarded = Some(Guarded {
            marker: rules.marker.clone(),
            quarantine: time(rules.quarantine()),
            durable: rules.durable.iter().map(NodeId::index).collect(),
            may_overlap: false,
        });
        world.no_pushes();
        for (id, node) in world.nodes.iter_mut().enumerate() {
            node.model.run = Run::new(id as u64, EPOCH - 100 * SECOND);
        }
        for rules in all {
            world.join(rules.clone());
        }
        world
    }

    /// One more client, which knows nothing of the nodes yet.
    pub fn join(&mut self, rules: Rules) -> usize {
        let client = self.engines.len();
        let round_trip = Duration::from_millis(2 * ONE_WAY.unsigned_abs());
        self.engines.push(Engine::guarded(self.quorum, rules).with_fixed_round_trip(round_trip));
        self.wires.asleep_until.push(0);
        let links = std::iter::repeat_with(ScriptedLink::new);
        self.wires.links.push(links.take(self.quorum.nodes()).collect());
        self.note(&Fact::Started { client });
        client
    }

    /// From here on two may hold one lock: a client takes every vote.
    pub fn promise_nothing(&mut self) {
        if let Some(guarded) = &mut self.guarded {
            guarded.may_overlap = true;
        }
    }

    /// A client does nothing any more.
    pub fn leave(&mut self, client: usize) {
        self.wires.asleep_until[client] = Time::MAX;
    }

    /// What a client sends to a node gets lost on the way; or does not any more.
    pub fn lose(&mut self, client: usize, node: usize, is_lost: bool) {
        let link = &mut self.wires.links[client][node];
        link.holds_back = is_lost.then_some(|_| true);
        link.held_back.clear();
    }

    /// Such commands of a client do not get to a node before they are let go; what comes behind them does.
    pub fn hold_back(&mut self, client: usize, node: usize, which: fn(&Command) -> bool) {
        self.wires.links[client][node].holds_back = Some(which);
    }

    /// What was held back is sent.
    pub fn let_go(&mut self, client: usize, node: usize) {
        let link = &mut self.wires.links[client][node];
        link.holds_back = None;
        for (ticket, command) in std::mem::take(&mut link.held_back) {
            self.send(client, node, ticket, command);
        }
    }

    /// Runs until so many milliseconds after the start, or until that has come which is waited for.
    pub fn run_till(&mut self, ms: i64, has_come: impl Fn(&Self) -> bool) {
        while !has_come(self) && self.step(ms * crate::time::MS) {}
    }

    /// A node's server.
    pub fn server(&self, node: usize) -> &ModelNode {
        &self.nodes[node].model
    }

    /// The same, to do with as one likes.
    pub fn server_mut(&mut self, node: usize) -> &mut ModelNode {
        &mut self.nodes[node].model
    }

    /// What is written under a key on a node.
    pub fn text(&self, node: usize, key: &str) -> Option<String> {
        let value = self.stored(node, key)?.value()?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    /// Of this a node says something else than is so.
    pub fn say(&mut self, node: usize, field: &'static str, value: &'static str) {
        let fields = &mut self.nodes[node].says.fields;
        fields.retain(|(said, _)| *said != field);
        fields.push((field, value));
    }

    /// A node does not say what it is, but this.
    pub fn refuse_info(&mut self, node: usize, why: &'static str) {
        self.nodes[node].says.refuses = Some(why);
    }

    /// A node's process ends and is started again at once, with its data or without.
    pub fn restart(&mut self, node: usize, keeps_data: bool) {
        let (now, nodes) = (self.now, self.nodes.len() as u64);
        let model = &mut self.nodes[node].model;
        model.crash(keeps_data);
        model.run = Run::new(model.run.id + nodes, model.clock.at(now));
        self.note(&Fact::FaultEvent(FaultEvent::NodeCrashed { node, keeps_data, silent: false }));
        self.note(&Fact::FaultEvent(FaultEvent::NodeStarted { node }));
        self.reconnect(node);
    }

    /// A node is another server, or has another's data.
    pub fn replace(&mut self, node: usize, with: ModelNode) {
        self.nodes[node].model = with;
        self.note(&Fact::FaultEvent(FaultEvent::NodeOverwritten { node }));
    }

    /// The connections to a node are new ones.
    pub fn reconnect(&mut self, node: usize) {
        for links in &mut self.wires.links {
            let link = &mut links[node];
            link.said = NodeReplies { epoch: link.said.epoch + 1, identified: false, flushes: 0 };
        }
    }

    /// A node says on its connections that its data are others.
    pub fn say_flushed(&mut self, node: usize) {
        self.wires.links.iter_mut().for_each(|links| links[node].said.flushes += 1);
    }

    /// A node carries out a command, and what a client wants to know beside that goes with the answer.
    pub(super) fn execute_proved(
        &mut self,
        client: ClientId,
        node: NodeIndex,
        ticket: Ticket,
        command: &Command,
    ) -> (Answer, Evidence) {
        let Some(marker) = self.guarded.as_ref().map(|it| it.marker.clone()) else {
            return (self.execute((client, false), node, ticket, command), Evidence::NotRequired);
        };
        let link = &mut self.wires.links[client][node];
        let identified = std::mem::replace(&mut link.said.identified, true);
        let (epoch, flushes, it) = (link.said.epoch, link.said.flushes, &self.nodes[node]);
        let asks = !identified || *command == Command::Identify;
        let info = asks.then(|| it.says.info(&it.model, self.now));
        let answer = self.execute((client, false), node, ticket, command);
        let marker = if info.is_some() || command.is_about_votes() {
            self.nodes[node].model.marker(ConnectionId(client as u64), &marker, self.now)
        } else {
            MarkerSeen::NotAsked
        };
        (answer, Evidence::Seen { epoch, flushes, info, marker })
    }

    /// How a call has ended: acquired, or why not.
    pub fn outcome(&self, lock: LockId) -> Option<Result<(), &Refusal>> {
        match self.granted_at(lock) {
            Some(_) => Some(Ok(())),
            None => self.refused(lock).map(|(_, refusal)| Err(refusal)),
        }
    }

    /// The commands that a client has given out so far, with the node that each is for.
    pub fn orders(&self, client: usize) -> impl Iterator<Item = (usize, &Command)> {
        let orders = self.log.iter().filter_map(move |(_, its, effect)| match effect {
            Effect::Send { nodes, command, .. } if *its == client => Some((nodes, command)),
            _ => None,
        });
        orders.flat_map(|(nodes, command)| nodes.iter().map(move |node| (node.index(), command)))
    }

    /// How many nodes a client trusts.
    pub fn trusted(&self, client: usize) -> usize {
        let trust_state = |node| self.engines[client].trust_state(node);
        self.quorum
            .node_ids()
            .filter(|node| trust_state(*node) == Some(&TrustState::Trusted))
            .count()
    }
}
