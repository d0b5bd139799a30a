//! Word for readers that a writer waits, so that no others come before it.
//!
//! Readers that come and go can keep a lock held for ever. So a writer that finds readers alone in its way leaves an
//! *intent* on the nodes, under a key of its own for each key of the lock, and renews it. A node that
//! knows of one lets no new readers in. That is about the order, not about safety. A client that does not heed it, or
//! leaves none, excludes and is excluded as before.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Call, Phase};
use crate::command::{Command, Holding};
use crate::engine::{LockId, Ticket, Verb};
use crate::keys::{Keys, Mode, intents};
use crate::time::{BootTime, Reading};
use crate::token::{Key, Value};

/// Nodes forget an intent after so long, or after the ttl of the lock, if that is shorter, unless it is said again.
const INTENT_TTL: Duration = Duration::from_secs(1);

/// What a call has said.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::engine) struct Intent {
    pub(in crate::engine) keys: Keys,
    value: Value,
    prefix_bytes: u16,
    pub(super) renew_at: BootTime,
}

/// An intent that is taken back: the command for all nodes, and whose readers may go on.
pub(in crate::engine) struct Withdrawal {
    pub(in crate::engine) ticket: Ticket,
    pub(in crate::engine) command: Command,
    pub(in crate::engine) keys: Keys,
}

impl Intent {
    /// What it says for these keys, and the rest.
    pub(in crate::engine) fn split(self, by: &Keys) -> (Option<Box<Self>>, Option<Box<Self>>) {
        let (part, rest): (Vec<Key>, Vec<Key>) =
            self.keys.iter().cloned().partition(|key| by.contains(key));
        let of = |keys| Some(Box::new(Self { keys: Keys::new(keys)?, ..self.clone() }));
        (of(part), of(rest))
    }

    /// What it takes to take it back.
    pub(in crate::engine) fn withdrawal(self, ticket: Ticket) -> Withdrawal {
        Withdrawal { ticket, command: self.withdraw(), keys: self.keys }
    }

    fn withdraw(&self) -> Command {
        let intents = intents(&self.keys, self.prefix_bytes);
        Command::Withdraw { intents, value: self.value.clone() }
    }
}

impl Call {
    /// After a look: the commands that follow from it. An intent is left if readers alone hold the keys, and taken back if
    /// anybody else does.
    pub(in crate::engine) fn review_intent(&mut self, now: Reading) -> [Option<Command>; 2] {
        let Some(wanted) = self.wanted_intent(now).filter(|_| !mutant!(WritersSayNothing)) else {
            return [None, None];
        };
        if wanted.as_ref() == self.intent.as_ref().map(|intent| &intent.keys) {
            return [None, None];
        }
        // The intent for keys that are wanted still must not be absent for a moment, or readers get in.
        let (kept, rest) = match (self.intent.take(), &wanted) {
            (Some(intent), Some(wanted)) => intent.split(wanted),
            (intent, _) => (None, intent),
        };
        let withdrawn = rest.map(|intent| intent.withdraw());
        let value = kept.map(|intent| intent.value).or_else(|| {
            // The token of an attempt that has failed: nobody else has it.
            Some(Value::new(self.history.token.as_ref()?, &self.request.owner))
        });
        let Some((keys, value)) = wanted.zip(value) else {
            return [withdrawn, None];
        };
        let prefix_bytes = self.request.prefix_bytes;
        self.intent = Some(Box::new(Intent { keys, value, prefix_bytes, renew_at: now.boot() }));
        [withdrawn, self.renew_intent(now)]
    }

    /// For which keys an intent should be there, by what was just seen. `None`: what is there may stay.
    fn wanted_intent(&self, now: Reading) -> Option<Option<Keys>> {
        let Phase::Looking { inspection, .. } = &self.phase else {
            return None;
        };
        if self.request.mode == Mode::Shared || self.is_to_end(now) {
            return None;
        }
        let seen = || inspection.asked().filter_map(|node| inspection.seen(node));
        let mut held = seen().filter(|holding| **holding != Holding::Free).peekable();
        held.peek()?;
        if !held.all(Holding::is_shared_alone) {
            return Some(None);
        }
        let is_shared = |place: &usize| {
            let mut holdings = seen().filter_map(|holding| holding.each().get(*place));
            holdings.any(|holding| matches!(holding, Holding::Shared { .. }))
        };
        let all = &self.request.keys;
        let shared = (0..all.len()).filter(is_shared);
        Some(Keys::new(shared.map(|place| all[place].clone())))
    }

    /// What the next command for readers belongs to; each has one of its own.
    pub(in crate::engine) const fn announcement(&mut self, lock: LockId) -> Ticket {
        self.contention.said += 1;
        Ticket { lock, round: self.contention.said, verb: Verb::Announce }
    }

    /// The command to say it again, if it is time.
    pub(in crate::engine) fn renew_intent(&mut self, now: Reading) -> Option<Command> {
        let ttl = self.request.timing.ttl().min(INTENT_TTL);
        let intent = self.intent.as_mut().filter(|it| it.renew_at.remaining(now).is_zero())?;
        intent.renew_at = now.after(ttl / 3);
        let (intents, value) = (intents(&intent.keys, intent.prefix_bytes), intent.value.clone());
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        Some(Command::Announce { intents, value, ttl_ms })
    }

    /// The intent of another call for keys of this one is its own from now on, and is said again at once: under the same
    /// value, unless this one has said something itself.
    pub(in crate::engine) fn take_over(
        &mut self,
        intent: Box<Intent>,
        now: Reading,
    ) -> [Option<Command>; 2] {
        let mut withdrawn = None;
        match &mut self.intent {
            Some(ours) => {
                withdrawn = Some(intent.withdraw());
                let keys = ours.keys.iter().chain(intent.keys.iter()).cloned();
                ours.keys = Keys::new(keys).unwrap_or_else(|| ours.keys.clone());
            }
            None => self.intent = Some(intent),
        }
        if let Some(ours) = &mut self.intent {
            ours.renew_at = now.boot();
        }
        [withdrawn, self.renew_intent(now)]
    }

    pub(in crate::engine) fn shift_intent(&mut self, base: Reading) {
        if let Some(intent) = &mut self.intent {
            intent.renew_at = intent.renew_at.shifted(base);
        }
    }

    /// Its intent, which is its own no more, and what the command belongs to that takes it back.
    pub(in crate::engine) fn take_intent(&mut self, lock: LockId) -> Option<(Box<Intent>, Ticket)> {
        let intent = self.intent.take()?;
        Some((intent, self.announcement(lock)))
    }

    /// What it takes to take it back, if there is one.
    pub(in crate::engine) fn withdrawal(&mut self, lock: LockId) -> Option<Withdrawal> {
        let (intent, ticket) = self.take_intent(lock)?;
        Some(intent.withdrawal(ticket))
    }
}
