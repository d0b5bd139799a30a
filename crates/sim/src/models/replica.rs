//! A node with a replica, as the only node of a model: the first server is the master, and the second one is promoted.
//!
//! A message in flight, or a client with a stale name, reaches the old master also after the promotion, as if the old
//! master had been frozen. The promoted server has a replica of its own that acknowledges everything at once, because
//! this lets the most votes count. The model has no state for this replica.

use quorlock_core::Command;

use super::bounds::Bounds;
use super::rare_events::Rare;
use super::steps::Step;
use super::world::{Call, ModelLink, ModelWorld};
use super::{Action, Timed};
use crate::driver::Driver;
use crate::fact::{ClientId, Fact, FaultEvent, NodeIndex};
use crate::node::{Health, ModelNode};

pub(crate) const OLD: usize = 0;
pub(crate) const NEW: usize = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Replica {
    /// Each client writes a key of its own before `WAIT`. Otherwise `WAIT` covers only the last write that a command on
    /// the same connection made, as in Redis from 7.2 on and in Valkey.
    pub(crate) own_write: bool,
}

impl Bounds {
    /// The answer to `WAIT` from a server whose replica has the awaited write; `None` in a model without a replica.
    pub(crate) fn acknowledged(&self) -> Option<u32> {
        self.replica.map(|_| 1)
    }
}

impl Timed {
    pub(super) fn replica_actions(&self, world: &ModelWorld, actions: &mut Vec<Action>) {
        let [old, new] = [OLD, NEW].map(|server| &world.nodes[server]);
        let lags = |client: ClientId| world.links[client][OLD].lags;
        let has_more = (0..self.bounds.clients).any(lags) || old.all(0).ne(new.all(0));
        if !world.promoted {
            actions.push(Action::Promote);
            actions.extend(has_more.then_some(Action::Replicate));
        }
        for (client, it) in world.clients.iter().enumerate().take(self.bounds.clients) {
            if world.promoted && it.server == OLD && it.call != Call::Over {
                actions.push(Action::Move(client));
            }
            if !world.links[client][OLD].answers.is_empty() {
                actions.push(Action::Unacknowledged(client));
            }
        }
    }

    /// Whether the server may execute the next command of this connection: no `WAIT` blocks the connection.
    pub(super) fn is_open(&self, link: &ModelLink) -> bool {
        self.bounds.replica.is_none() || link.answers.is_empty()
    }
}

impl Step<'_> {
    /// The index of the server that this client reaches under the node's name.
    pub(super) fn server(&self, client: ClientId, node: NodeIndex) -> usize {
        match self.bounds.replica {
            Some(_) => self.world.clients[client].server,
            None => self.bounds.server(client, node),
        }
    }

    /// Notes that the replica lags if this command wrote to the old master. `before` is the server before the command.
    pub(super) fn executed(
        &mut self,
        client: ClientId,
        server: usize,
        command: &Command,
        before: Option<ModelNode>,
    ) {
        let Some((replica, before)) = self.bounds.replica.zip(before) else { return };
        let wrote = before.all(0).ne(self.world.nodes[server].all(0));
        if server == OLD && (wrote || replica.own_write && command.is_about_votes()) {
            self.world.links[client][server].change().lags = true;
        }
    }

    pub(super) fn replicate(&mut self) {
        let master = self.world.nodes[OLD].clone();
        self.world.nodes[NEW].change().follow(&master);
        self.world.links.iter_mut().for_each(|links| links[OLD].change().lags = false);
    }

    pub(super) fn promote(&mut self) {
        self.seen.add(Rare::Promoted);
        self.world.promoted = true;
        let promoted = self.world.nodes[NEW].change();
        promoted.health = Health::Good;
        promoted.run.promoted_at = Some(1);
        self.note(&Fact::FaultEvent(FaultEvent::NodePromoted { node: self.bounds.name(0, NEW) }));
    }

    pub(super) fn move_on(&mut self, client: ClientId) {
        self.reconnect(client, OLD);
        self.world.clients[client].server = NEW;
        let epoch = self.world.links[client][OLD].epoch;
        self.world.links[client][NEW].change().epoch = epoch;
        self.tell_all(client);
    }
}
