//! The intent of a waiting writer, which keeps new readers out.
//!
//! Readers that come and go can hold a lock forever. So a writer that finds readers leaves an *intent* on the nodes,
//! under a separate key for each key of the lock, and renews it. A node with an intent refuses new readers (V13).
//! Intents affect only the order of holders. They are not votes, and no invariant S1 to S29 depends on them: a client
//! that ignores intents still excludes other clients and is excluded by them.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Call, Context, Effect, Engine, Phase};
use crate::client::local_queue::LocalQueue;
use crate::command::{Answer, Command, Holding};
use crate::ids::{LockId, NodeAnswer, Ticket, Verb};
use crate::keys::{Keys, Mode, intents, of_intent};
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::time::{BootTime, Reading};
use crate::token::{Key, Value};

/// Longest life of an intent without a renewal. A shorter ttl of the lock shortens it.
const INTENT_TTL: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Intent {
    pub(super) keys: Keys,
    value: Value,
    prefix_bytes: u16,
    pub(super) renew_at: BootTime,
}

/// The withdrawal of an intent: the command for all nodes, and the keys that readers may acquire again.
pub(super) struct Withdrawal {
    pub(super) ticket: Ticket,
    pub(super) command: Command,
    pub(super) keys: Keys,
}

impl Intent {
    /// Splits the intent in two: the part for the keys in `by`, and the part for its other keys.
    pub(super) fn split(self, by: &Keys) -> (Option<Box<Self>>, Option<Box<Self>>) {
        let (part, rest): (Vec<Key>, Vec<Key>) =
            self.keys.iter().cloned().partition(|key| by.contains(key));
        let of = |keys| Some(Box::new(Self { keys: Keys::new(keys)?, ..self.clone() }));
        (of(part), of(rest))
    }

    pub(super) fn withdrawal(self, ticket: Ticket) -> Withdrawal {
        Withdrawal { ticket, command: self.withdraw(), keys: self.keys }
    }

    fn withdraw(&self) -> Command {
        let intents = intents(&self.keys, self.prefix_bytes);
        Command::Withdraw { intents, value: self.value.clone() }
    }
}

impl Call {
    /// Decides after an inspection whether the call sets, keeps or withdraws its intent. Returns the withdrawal of the
    /// former intent and the command that sets the new one, if they are needed.
    ///
    /// The call sets an intent for all of its keys as soon as it sees readers. The intent covers free keys too: new
    /// readers would otherwise acquire them while the call waits for the readers of another key. If foreign keys or
    /// other writers put a quorum for one key out of reach, the call withdraws the intent, because it does not wait for
    /// readers then (V13).
    pub(super) fn review_intent(
        &mut self,
        lock: LockId,
        now: Reading,
    ) -> (Option<Withdrawal>, Option<Command>) {
        let Phase::Looking { inspection, .. } = &self.phase else {
            return (None, None);
        };
        let is_of_no_use = self.request.mode == Mode::Shared || self.request.attaches();
        if is_of_no_use || self.is_to_end(now) || mutant!(WritersSayNothing) {
            return (None, None);
        }
        let (mut readers, mut is_for_others) = (Vec::new(), false);
        for (place, key) in self.request.keys.iter().enumerate() {
            let seen = inspection.asked().filter_map(|node| inspection.seen(node));
            let seen = seen.filter_map(|holding| holding.each().get(place));
            let (shared, others): (Vec<_>, Vec<_>) = seen
                .filter(|holding| **holding != Holding::Free)
                .partition(|holding| matches!(holding, Holding::Shared { .. }));
            let left = inspection.quorum().nodes() - others.len();
            is_for_others |= inspection.quorum().is_out_of_reach(left, 0)
                || mutant!(OneForeignKeyEndsIntent) && !others.is_empty();
            readers.extend((!shared.is_empty()).then(|| key.clone()));
        }
        if is_for_others {
            return (self.withdrawal(lock), None);
        }
        let is_wanted = self.intent.is_some() || !readers.is_empty();
        let wanted = match mutant!(IntentLeavesFreeKeys) {
            true => Keys::new(readers),
            false => is_wanted.then(|| self.request.keys.clone()),
        };
        let Some(wanted) = wanted else {
            return (None, None);
        };
        if self.intent.as_ref().is_some_and(|intent| intent.keys == wanted) {
            return (None, None);
        }
        // Keys that stay in the intent keep their value, so that no reader acquires them in between.
        let (kept, rest) = self.intent.take().map_or((None, None), |intent| intent.split(&wanted));
        let withdrawn = rest.map(|intent| intent.withdrawal(self.announcement(lock)));
        let value = kept.map(|intent| intent.value).or_else(|| {
            // An intent's value must be unique to this call, so it contains a token that the call drew.
            Some(Value::new(self.history.token.as_ref()?, &self.request.owner))
        });
        let Some(value) = value else {
            return (withdrawn, None);
        };
        let prefix_bytes = self.request.prefix_bytes;
        self.intent =
            Some(Box::new(Intent { keys: wanted, value, prefix_bytes, renew_at: now.boot() }));
        (withdrawn, self.renew_intent(now))
    }

    /// The ticket (lock, round and verb) of the next command about the intent.
    pub(super) const fn announcement(&mut self, lock: LockId) -> Ticket {
        self.contention.announcements += 1;
        Ticket { lock, round: self.contention.announcements, verb: Verb::Announce }
    }

    /// The command that renews the intent, if its renewal is due.
    pub(super) fn renew_intent(&mut self, now: Reading) -> Option<Command> {
        let life = self.intent_life();
        let intent = self.intent.as_mut().filter(|it| it.renew_at.has_come(now))?;
        intent.renew_at = now.after(life / 3);
        self.announce_command(true)
    }

    /// The command that sets the intent again on nodes that lost it; `None` without an intent.
    pub(super) fn repeat_intent(&self) -> Option<Command> {
        self.announce_command(false)
    }

    fn announce_command(&self, renews: bool) -> Option<Command> {
        let intent = self.intent.as_ref()?;
        let (intents, value) = (intents(&intent.keys, intent.prefix_bytes), intent.value.clone());
        let ttl_ms = u64::try_from(self.intent_life().as_millis()).unwrap_or(u64::MAX);
        Some(Command::Announce { intents, value, ttl_ms, renews })
    }

    fn intent_life(&self) -> Duration {
        self.request.timing.ttl().min(INTENT_TTL)
    }

    /// The command that requests a push when another writer's intent for these keys changes; `None` if not needed.
    pub(super) fn watch_intent(&self) -> Option<Command> {
        let intent = self.intent.as_ref().filter(|_| self.is_to_watch())?;
        Some(Command::Watch { keys: intents(&intent.keys, intent.prefix_bytes), intents: None })
    }

    /// Takes over the intent of another call of this process, and renews it at once. The intent keeps its value, unless
    /// this call already has an intent.
    pub(super) fn take_over(
        &mut self,
        intent: Box<Intent>,
        ticket: Ticket,
        now: Reading,
    ) -> (Option<Withdrawal>, Option<Command>) {
        let mut withdrawn = None;
        match &mut self.intent {
            Some(ours) => {
                withdrawn = Some(intent.clone().withdrawal(ticket));
                let more = intent.keys.iter().filter(|key| !ours.keys.contains(key));
                let keys = ours.keys.iter().chain(more).cloned();
                ours.keys = Keys::new(keys).unwrap_or_else(|| ours.keys.clone());
            }
            None => self.intent = Some(intent),
        }
        if let Some(ours) = &mut self.intent {
            ours.renew_at = now.boot();
        }
        (withdrawn, self.renew_intent(now))
    }

    pub(super) fn shift_intent(&mut self, base: Reading) {
        if let Some(intent) = &mut self.intent {
            intent.renew_at = intent.renew_at.shifted(base);
        }
    }

    /// Removes the intent from the call. Returns it with the ticket for its withdrawal; `None` without an intent.
    pub(super) fn take_intent(&mut self, lock: LockId) -> Option<(Box<Intent>, Ticket)> {
        let intent = self.intent.take()?;
        Some((intent, self.announcement(lock)))
    }

    pub(super) fn withdrawal(&mut self, lock: LockId) -> Option<Withdrawal> {
        let (intent, ticket) = self.take_intent(lock)?;
        Some(intent.withdrawal(ticket))
    }
}

impl Engine {
    /// Updates the call's intent, which keeps new readers out, after an inspection.
    pub(super) fn review_intent(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(&lock) else {
            return;
        };
        let (withdrawal, announcement) = call.review_intent(lock, cx.now);
        if let Some(withdrawal) = withdrawal {
            self.withdraw(withdrawal, cx);
        }
        self.announce(lock, self.quorum.all(), announcement, cx);
    }

    pub(super) fn announce(
        &mut self,
        lock: LockId,
        nodes: NodeSet,
        command: Option<Command>,
        cx: &mut Context<'_>,
    ) {
        if let Some((call, command)) = self.calls.get_mut(&lock).zip(command) {
            cx.emit(Effect::Send { nodes, ticket: call.announcement(lock), command });
        }
    }

    /// Withdraws an intent, and wakes waiting readers of this process. Nodes do not push to them, because a server
    /// pushes nothing to the connection that made the change.
    pub(super) fn withdraw(&mut self, withdrawal: Withdrawal, cx: &mut Context<'_>) {
        let keys = self.send_withdrawal(withdrawal, cx);
        for node in self.quorum.all().iter() {
            self.note_change(node, Some(&keys), |call| call.mode == Mode::Shared, cx);
        }
    }

    /// Sends a withdrawal. A closing client waits for the answers.
    pub(super) fn send_withdrawal(
        &mut self,
        Withdrawal { ticket, command, keys }: Withdrawal,
        cx: &mut Context<'_>,
    ) -> Keys {
        self.closing.withdrawals.insert(ticket, self.quorum.all());
        cx.emit(Effect::Send { nodes: self.quorum.all(), ticket, command });
        keys
    }

    /// Handles the answer to a command about an intent. A closing client waits until its withdrawals are answered.
    ///
    /// If a node has the intent of another process's writer, the call requests a push about that intent, and sets its
    /// own intent as soon as the other intent is gone. A wait for the next renewal would let readers in (V13).
    pub(super) fn on_announced(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let NodeAnswer { node, ticket, answer, .. } = answer;
        if let Some(unanswered) = self.closing.withdrawals.get_mut(&ticket) {
            unanswered.remove(node);
            if unanswered.is_empty() {
                self.closing.withdrawals.remove(&ticket);
                if self.closing.drains_by.is_some() {
                    self.review_drained(cx);
                }
            }
        }
        let call = self.calls.get(&ticket.lock);
        let command = match answer {
            Answer::Other => call.and_then(Call::watch_intent),
            Answer::Seen(seen) | Answer::Watched(seen) if seen.each().contains(&Holding::Free) => {
                call.and_then(Call::repeat_intent)
            }
            _ => None,
        };
        self.announce(ticket.lock, NodeSet::only(node), command, cx);
    }

    /// Sets the intents of waiting writers again, because a push reported that other writers' intents for these keys
    /// are gone. `None` means that any key may have changed.
    pub(super) fn repeat_intents(
        &mut self,
        node: NodeId,
        keys: Option<&[Key]>,
        cx: &mut Context<'_>,
    ) {
        let queues: Vec<&LocalQueue> = match keys {
            Some(keys) => keys.iter().filter_map(|key| self.keys.queue(&of_intent(key)?)).collect(),
            None => self.keys.queues().collect(),
        };
        let active = queues.into_iter().flat_map(LocalQueue::active);
        let active: BTreeSet<LockId> = active.map(|place| place.lock).collect();
        for lock in active {
            let command = self.calls.get(&lock).and_then(|call| call.repeat_intent());
            self.announce(lock, NodeSet::only(node), command, cx);
        }
    }

    /// Passes an intent, which keeps new readers out, from a call that yielded its turn or ended to the active writers
    /// of these keys. If each writer withdrew its own intent, readers would acquire the lock whenever the active writer
    /// changes, and all writers could starve. The rest of the intent is withdrawn, because readers must not wait for a
    /// writer that waits for callers of its own process.
    pub(super) fn pass_intent_on(
        &mut self,
        intent: Option<(Box<Intent>, Ticket)>,
        cx: &mut Context<'_>,
    ) {
        let Some((mut intent, ticket)) = intent else {
            return;
        };
        if self.closing.has_begun {
            return self.withdraw(intent.withdrawal(ticket), cx);
        }
        self.reactivate_writers(&intent.keys, cx.now);
        let writers = self.keys.active(&intent.keys).filter(|it| it.mode == Mode::Exclusive);
        let writers: BTreeSet<LockId> = writers.map(|it| it.lock).collect();
        for to in writers {
            // A caller that holds the lock already is not a call any more, and needs no intent.
            let Some(call) = self.calls.get_mut(&to) else {
                continue;
            };
            let (part, rest) = intent.split(&call.request.keys);
            if let Some(part) = part {
                let ticket = call.announcement(to);
                let (withdrawal, announcement) = call.take_over(part, ticket, cx.now);
                Self::index_call(&mut self.deadlines, to, call);
                if let Some(withdrawal) = withdrawal {
                    self.send_withdrawal(withdrawal, cx);
                }
                self.announce(to, self.quorum.all(), announcement, cx);
            }
            match rest {
                Some(rest) => intent = rest,
                None => return,
            }
        }
        self.withdraw(intent.withdrawal(ticket), cx);
    }

    /// Makes writers that yielded their turn active again, if they request one of these keys and no caller blocks them.
    /// They continue their pause, and yield again to the next caller.
    fn reactivate_writers(&mut self, wanted: &Keys, now: Reading) {
        for lock in self.local.yielded.clone() {
            let Some(Call { request, phase, .. }) = self.calls.get(&lock) else {
                continue;
            };
            if let Phase::Yielded { until } = *phase
                && request.mode == Mode::Exclusive
                && request.keys.iter().any(|key| wanted.contains(key))
                && self.keys.active(&request.keys).next().is_none()
            {
                self.join(lock, Some(until), now);
                if let Some(call) = self.calls.get_mut(&lock)
                    && let Phase::Pausing { yields_from, .. } = &mut call.phase
                {
                    yields_from.get_or_insert(now.boot());
                }
            }
        }
    }
}
