//! Clients that start, do one thing and end, as a command line does. They know nothing about the nodes, and their
//! command waits for the first connections.
//!
//! In plans with `later.rolls_back`, a quorum of nodes comes back with old data, in which a detached lock is still held
//! although another client has had it since. Visitors then extend the lock by its old text again and again.

use std::time::Duration;

use quorlock_core::{Event, Origin, Request, Wait};

use super::{Mend, Process, SimEvent, World};
use crate::client::{Caller, CallerState};
use crate::count::Count;
use crate::driver::Driver;
use crate::fact::{ClientId, FaultEvent};
use crate::node::ModelNode;
use crate::time::{MS, Time, duration};

/// An action of visitors, or of nodes for them. The number is the index of a detached lock in `World::leases`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Visit {
    /// A visitor does something, and another one comes later.
    Any,
    /// One visitor releases a detached lock by its text, and another one takes its place.
    Succeed(usize),
    /// A quorum of nodes restarts with the data that it had when the lock was detached.
    RollBack(usize),
    /// A visitor extends the lock by its text, and further ones do so this many times.
    Extend(usize, u64),
}

impl World {
    pub(super) fn plan_visit(&mut self) {
        let mean = self.plan.faults.last_for / 6;
        let span = self.random.visits.span(mean);
        self.plan_in(span, SimEvent::Visit(Visit::Any));
    }

    /// In a plan with rollbacks, copies the nodes' data when the first lock is detached, and plans the rest.
    pub(super) fn may_roll_back(&mut self, lease: usize) {
        if self.plan.later.rolls_back && self.dumps.is_empty() {
            self.dumps = self.servers.iter().map(|server| server.node.clone()).collect();
            let ttl = self.plan.load.max_ttl;
            let random = &mut self.random.visits;
            let (soon, later) = (random.between(0, ttl / 16), random.between(ttl / 6, ttl / 3));
            self.plan_in(soon, SimEvent::Visit(Visit::Succeed(lease)));
            self.plan_in(later, SimEvent::Visit(Visit::RollBack(lease)));
        }
    }

    pub(super) fn visit(&mut self, visit: Visit) {
        if self.progress.healing {
            return;
        }
        match visit {
            Visit::Any => {
                self.visit_any();
                self.plan_visit();
            }
            Visit::Succeed(lease) => {
                let visitor = self.start_visitor();
                self.extend_or_release(lease, Some(visitor), true);
                let (visitor, ttl) = (self.start_visitor(), self.plan.load.max_ttl);
                let request = self.leases[lease].request.clone();
                let (origin, wait) = (Origin::Absent, Wait::For(duration(ttl / 4)));
                self.ask_beside(visitor, Request { origin, wait, ..request });
            }
            Visit::RollBack(lease) => {
                self.roll_back();
                // The last extension comes when the nodes' quarantine is over.
                let left = 8 * self.plan.quarantine() / self.plan.load.max_ttl;
                let left = left.unsigned_abs();
                self.plan_in(5 * MS, SimEvent::Visit(Visit::Extend(lease, left)));
            }
            Visit::Extend(lease, left) => {
                let visitor = self.start_visitor();
                self.extend_or_release(lease, Some(visitor), false);
                let ttl = self.plan.load.max_ttl;
                let span = self.random.visits.between(ttl / 8, ttl / 3);
                if let Some(left) = left.checked_sub(1) {
                    self.plan_in(span, SimEvent::Visit(Visit::Extend(lease, left)));
                }
            }
        }
    }

    fn visit_any(&mut self) {
        let visitor = self.start_visitor();
        let lease = match self.leases.len() {
            0 => None,
            count => Some(self.random.visits.index(count)),
        };
        match (self.random.visits.below(4), lease) {
            (0, Some(lease)) => self.extend_or_release(lease, Some(visitor), true),
            (1, Some(lease)) => self.extend_or_release(lease, Some(visitor), false),
            (2, _) => {
                let (lock, wish) = (self.new_lock(visitor), self.random.visits.word() as usize);
                let keys = self.setting.wishes[wish % self.setting.wishes.len()].clone();
                let timeout = Duration::from_millis(50);
                let connect_timeout = duration(self.plan.connect_timeout());
                self.ask(visitor, Event::Inspect { lock, keys, timeout, connect_timeout });
            }
            _ => {
                let request = self.draw_request(visitor);
                self.ask_beside(visitor, request);
            }
        }
    }

    fn start_visitor(&mut self) -> ClientId {
        self.record.counts.add(Count::Visitors);
        let over = Caller { state: CallerState::Over, generation: 0 };
        let usual = std::mem::take(&mut self.plan.load.callers);
        let visitor = self.start_client();
        self.plan.load.callers = usual;
        self.clients[visitor].callers = vec![over; usual];
        let ttl = self.plan.load.max_ttl;
        let span = self.random.visits.between(ttl / 4, 2 * ttl);
        self.plan_in(span, SimEvent::Mend(Mend::Depart(visitor)));
        visitor
    }

    /// A visitor closes. It ends when it owes no release any more.
    pub(super) fn depart(&mut self, client: ClientId) {
        let (life, again) = (&self.clients[client].life, self.plan.load.max_ttl / 4);
        if !life.alive || self.progress.healing {
            return;
        }
        if life.drained {
            return self.end_client(client);
        }
        if life.still.is_none() {
            self.note_fault(FaultEvent::ClientShutDown { client });
            self.ask(client, Event::Close);
        }
        self.plan_in(again, SimEvent::Mend(Mend::Depart(client)));
    }

    fn roll_back(&mut self) {
        let (needed, nodes, now) =
            (self.plan.servers.quorum.needed(), self.servers.len(), self.now);
        let first = self.random.visits.index(nodes);
        self.record.counts.add(Count::RollBacks);
        for node in (0..needed).map(|place| (first + place) % nodes) {
            if self.servers[node].process != Process::Runs {
                continue;
            }
            self.kill_node(node, true, false);
            let dump: ModelNode = self.dumps[node].clone();
            self.servers[node].node.copy(&dump, now);
            self.note_fault(FaultEvent::NodeOverwritten { node });
            let down: Time = self.random.visits.between(0, 5 * MS);
            self.plan_in(down, SimEvent::Mend(Mend::StartNode(node)));
        }
    }
}
