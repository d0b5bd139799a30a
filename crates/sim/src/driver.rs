//! Carries out effects (the engine's outputs) and callers' actions on guards. Simulator and models share this code.

use quorlock_core::{
    Effect, Entry, Event, Evidence, LockId, NodeId, Reading, TicketedCommand, Token, Verb,
};

use crate::fact::{ClientId, Fact, NodeIndex};
use crate::guard::{Guard, GuardId, Guards};
use crate::ledger::Ledger;

pub(crate) trait Driver {
    /// Records a fact in the trace and the ledger, and checks the invariants.
    fn note(&mut self, fact: &Fact<'_>);

    fn guards(&mut self) -> &mut Guards;

    fn ledger(&self) -> &Ledger;

    fn reading(&self, client: ClientId) -> Reading;

    /// Accepts a command that the engine sends to a node.
    fn order(&mut self, client: ClientId, node: NodeIndex, order: TicketedCommand);

    /// Called when the engine has begun an attempt, before the first acquire of the attempt is sent.
    fn begun(&mut self, client: ClientId, lock: LockId, token: Token);

    fn carried_out(&mut self, client: ClientId, effect: &Effect);

    /// The lock that a caller without a guard extends by the request with this id. `None` for the id of any other call.
    fn entry_of(&self, _: ClientId, _: LockId) -> Option<Entry> {
        None
    }

    /// Appends an event to the end of the queue of a client's engine.
    fn ask(&mut self, client: ClientId, event: Event);

    fn forget(&mut self, guard: GuardId) {
        self.guards().remove(guard);
    }

    /// Records the answers and pushes that the engine is about to receive.
    fn note_event(&mut self, client: ClientId, event: &Event) {
        match event {
            Event::Answered { node, sent, answers, evidence } => {
                let (node, sent) = (node.index(), *sent);
                if *evidence != Evidence::NotRequired {
                    self.note(&Fact::Evidence { client, node, sent, evidence });
                }
                for (ticket, answer) in answers {
                    let ticket = *ticket;
                    self.note(&Fact::Answered { client, node, sent, ticket, answer });
                }
            }
            Event::Greeted { node, sent, evidence, .. } => {
                let (node, sent) = (node.index(), *sent);
                if *evidence != Evidence::NotRequired {
                    self.note(&Fact::Evidence { client, node, sent, evidence });
                }
                self.note(&Fact::Pushed { client, node, key: None });
            }
            Event::Pushed { node, keys } => {
                let key = keys.as_ref().and_then(|keys| keys.first());
                self.note(&Fact::Pushed { client, node: node.index(), key });
            }
            _ => {}
        }
    }

    /// Carries out all effects. `begun` contains the attempts that the engine has begun, with their tokens.
    fn carry_out_all(
        &mut self,
        client: ClientId,
        effects: &[Effect],
        mut begun: Vec<(LockId, Token)>,
    ) {
        for effect in effects {
            if let Effect::Send { ticket, .. } = effect
                && ticket.verb == Verb::Acquire
                && let Some(place) = begun.iter().position(|(lock, _)| *lock == ticket.lock)
            {
                let (lock, token) = begun.remove(place);
                self.begun(client, lock, token);
            }
            self.carry_out(client, effect);
            self.carried_out(client, effect);
        }
        // Attempts that begin with an inspection are still in `begun`, because the loop above found no acquire of them.
        for (lock, token) in begun {
            self.begun(client, lock, token);
        }
    }

    fn carry_out(&mut self, client: ClientId, effect: &Effect) {
        let of = |lock: &LockId| GuardId { client, lock: *lock };
        match effect {
            Effect::Send { nodes, ticket, command } => {
                for node in nodes.iter().map(NodeId::index) {
                    self.note(&Fact::Ordered { client, node, ticket: *ticket, command });
                    self.order(client, node, (*ticket, command.clone()));
                }
            }
            Effect::Acquired { lock, token, hold, attempts, handover_count, fence } => {
                let guard = of(lock);
                if let Some(request) = self.ledger().request(client, *lock).cloned() {
                    let value = self.ledger().value_of(token, &request.owner);
                    let id = (*token, *handover_count, *fence);
                    let made = Guard::new(request, value, id, hold.clone());
                    let before = self.guards().insert(guard, made);
                    assert!(before.is_none(), "{guard} is granted once");
                }
                self.note(&Fact::Granted { guard, attempts: *attempts });
            }
            Effect::NotAcquired { lock, refusal } => {
                self.note(&Fact::NotAcquired { client, lock: *lock, refusal });
            }
            Effect::Changed { lock, validity } => {
                let (guard, now) = (of(lock), self.reading(client));
                let held = self.guards().of_mut(guard);
                if held.and_then(|held| held.hold.update(validity.clone(), now)).is_some() {
                    self.tell_end(guard);
                }
                self.note(&Fact::Changed { guard, validity });
            }
            Effect::Lost { lock, cause } => {
                let (guard, cause) = (of(lock), *cause);
                self.note(&Fact::Lost { guard, cause });
                if let Some(held) = self.guards().of_mut(guard) {
                    held.is_lost = true;
                    held.hold.lose(cause);
                }
            }
            Effect::Extended { lock, outcome } => {
                self.note(&Fact::Extension { guard: of(lock), outcome });
            }
            Effect::Health { lock, is_confirmed, nodes, .. } => {
                let (guard, is_confirmed) = (of(lock), *is_confirmed);
                self.note(&Fact::Health { guard, is_confirmed, nodes });
            }
            Effect::Detached { lock, detached } => {
                self.note(&Fact::Detached { guard: of(lock), detached: detached.as_deref() });
                if detached.is_some() {
                    self.forget(of(lock));
                }
            }
            Effect::EntryExtended { lock, validity, .. } => {
                if let Some(entry) = self.entry_of(client, *lock) {
                    let (lock, entry, validity) = (*lock, &entry, validity.as_ref());
                    self.note(&Fact::EntryExtended { client, lock, entry, validity });
                }
            }
            Effect::Released { lock, report } => {
                self.note(&Fact::Released { guard: of(lock), report });
                self.forget(of(lock));
            }
            Effect::Waiting { lock, .. } => self.note(&Fact::Waiting { client, lock: *lock }),
            Effect::WaitEnded { lock } => self.note(&Fact::WaitEnded { client, lock: *lock }),
            Effect::TimedOut { node } => self.note(&Fact::TimedOut { client, node: node.index() }),
            Effect::Drained => self.note(&Fact::Drained { client }),
            Effect::Superseded { lock, fence } => {
                self.note(&Fact::Superseded { guard: of(lock), fence: *fence });
            }
            Effect::TrustState { node, trust_state } => {
                self.note(&Fact::TrustState { client, node: node.index(), trust_state });
            }
            Effect::FloorOfFew { node, .. } => {
                self.note(&Fact::FloorOfFew { client, node: node.index() });
            }
            Effect::Identified { .. } | Effect::Inspected { .. } => {}
        }
    }

    /// The holder notices that its guard has ended, and notifies the engine.
    fn tell_end(&mut self, guard: GuardId) {
        self.note(&Fact::EndSeen { guard });
        if let Some(held) = self.guards().of_mut(guard) {
            held.run_out = true;
        }
        self.ask(guard.client, Event::RunOut { lock: guard.lock });
    }

    /// The guard becomes a reader's guard before the engine learns of the downgrade.
    fn become_reader(&mut self, guard: GuardId) {
        let Some(held) = self.guards().of_mut(guard) else { return };
        if !held.hold.downgrade() {
            return;
        }
        held.fence = None;
        self.note(&Fact::Downgraded { guard });
        self.ask(guard.client, Event::Downgrade { lock: guard.lock });
    }

    /// Detaches a lock. The guard becomes invalid before the engine learns of it.
    fn detach(&mut self, guard: GuardId) {
        let Some(held) = self.guards().of_mut(guard) else { return };
        held.is_released = true;
        held.hold.release();
        self.note(&Fact::DetachAsked { guard });
        self.ask(guard.client, Event::Detach { lock: guard.lock });
    }

    /// Releases or drops a guard. The guard becomes invalid before the engine learns of the release (S14).
    fn release_guard(&mut self, guard: GuardId, report: bool) {
        let Some(held) = self.guards().of_mut(guard) else { return };
        held.is_released = true;
        held.hold.release();
        // Only a mutant leaves the guard valid here. Such a guard stays in the records until the nodes have answered
        // the release, so that invariants find it.
        let report = report || !held.hold.is_released();
        self.note(&Fact::ReleaseAsked { guard, report });
        if !report {
            self.forget(guard);
        }
        self.ask(guard.client, Event::Release { lock: guard.lock, report });
    }
}
