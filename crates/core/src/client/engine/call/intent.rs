//! Word for readers that a writer waits, so that no others come before it.
//!
//! Readers that come and go can keep a lock held for ever. So a writer that finds readers in its way leaves an
//! *intent* on the nodes, under a key of its own for each key of the lock, and renews it. A node that has an intent lets
//! no new readers in (V13). Intents decide the order and never who holds: they are no votes, and no invariant S1 to
//! S29 rests on them. A client that does not heed intents, or leaves none, excludes and is excluded as before.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Call, Phase};
use crate::command::{Command, Holding};
use crate::ids::{LockId, Ticket, Verb};
use crate::keys::{Keys, Mode, intents};
use crate::time::{BootTime, Reading};
use crate::token::{Key, Value};

/// Nodes forget an intent after so long, or after the ttl of the lock, if that is shorter, unless it is said again.
const INTENT_TTL: Duration = Duration::from_secs(1);

/// What a call has said.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::client::engine) struct Intent {
    pub(in crate::client::engine) keys: Keys,
    value: Value,
    prefix_bytes: u16,
    pub(super) renew_at: BootTime,
}

/// An intent that is taken back: the command for all nodes, and whose readers may go on.
pub(in crate::client::engine) struct Withdrawal {
    pub(in crate::client::engine) ticket: Ticket,
    pub(in crate::client::engine) command: Command,
    pub(in crate::client::engine) keys: Keys,
}

impl Intent {
    /// What it says for these keys, and the rest.
    pub(in crate::client::engine) fn split(
        self,
        by: &Keys,
    ) -> (Option<Box<Self>>, Option<Box<Self>>) {
        let (part, rest): (Vec<Key>, Vec<Key>) =
            self.keys.iter().cloned().partition(|key| by.contains(key));
        let of = |keys| Some(Box::new(Self { keys: Keys::new(keys)?, ..self.clone() }));
        (of(part), of(rest))
    }

    /// What it takes to take it back.
    pub(in crate::client::engine) fn withdrawal(self, ticket: Ticket) -> Withdrawal {
        Withdrawal { ticket, command: self.withdraw(), keys: self.keys }
    }

    fn withdraw(&self) -> Command {
        let intents = intents(&self.keys, self.prefix_bytes);
        Command::Withdraw { intents, value: self.value.clone() }
    }
}

impl Call {
    /// Decides, after a look, whether readers are to wait for this call: what it takes back, and what it says.
    ///
    /// The call leaves an intent on all of its keys as soon as it sees readers. A key that is free at the moment keeps
    /// its intent, because readers would enter it while those of another key leave. Foreign keys and other writers'
    /// values end the intent only where they hold so many nodes of one key that a quorum of it is out of reach: then
    /// the call waits for somebody else than readers (V13).
    pub(in crate::client::engine) fn review_intent(
        &mut self,
        lock: LockId,
        now: Reading,
    ) -> (Option<Withdrawal>, Option<Command>) {
        let Phase::Looking { inspection, .. } = &self.phase else {
            return (None, None);
        };
        if self.request.mode == Mode::Shared || self.is_to_end(now) || mutant!(WritersSayNothing) {
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
        // Readers must not get in between, so the keys that stay wanted keep the value that is there.
        let (kept, rest) = self.intent.take().map_or((None, None), |intent| intent.split(&wanted));
        let withdrawn = rest.map(|intent| intent.withdrawal(self.announcement(lock)));
        let value = kept.map(|intent| intent.value).or_else(|| {
            // The token of an attempt that has failed: nobody else has it.
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

    /// What the next command for readers belongs to; each has one of its own.
    pub(in crate::client::engine) const fn announcement(&mut self, lock: LockId) -> Ticket {
        self.contention.said += 1;
        Ticket { lock, round: self.contention.said, verb: Verb::Announce }
    }

    /// The command to say it again, if it is time.
    pub(in crate::client::engine) fn renew_intent(&mut self, now: Reading) -> Option<Command> {
        let life = self.intent_life();
        let intent = self.intent.as_mut().filter(|it| it.renew_at.remaining(now).is_zero())?;
        intent.renew_at = now.after(life / 3);
        self.say_intent(true)
    }

    /// The command to say it again where it has gone, whether or not it is time.
    pub(in crate::client::engine) fn repeat_intent(&self) -> Option<Command> {
        self.say_intent(false)
    }

    fn say_intent(&self, renews: bool) -> Option<Command> {
        let intent = self.intent.as_ref()?;
        let (intents, value) = (intents(&intent.keys, intent.prefix_bytes), intent.value.clone());
        let ttl_ms = u64::try_from(self.intent_life().as_millis()).unwrap_or(u64::MAX);
        Some(Command::Announce { intents, value, ttl_ms, renews })
    }

    fn intent_life(&self) -> Duration {
        self.request.timing.ttl().min(INTENT_TTL)
    }

    /// Another writer's intent is in the place of this one: a look at it, to be told when it goes.
    pub(in crate::client::engine) fn watch_intent(&self) -> Option<Command> {
        let intent = self.intent.as_ref().filter(|_| self.is_to_watch())?;
        Some(Command::Watch { keys: intents(&intent.keys, intent.prefix_bytes), intents: None })
    }

    /// The intent of another call for keys of this one is its own from now on, and is said again at once: under the same
    /// value, unless this one has said something itself.
    pub(in crate::client::engine) fn take_over(
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

    pub(in crate::client::engine) fn shift_intent(&mut self, base: Reading) {
        if let Some(intent) = &mut self.intent {
            intent.renew_at = intent.renew_at.shifted(base);
        }
    }

    /// Its intent, which is its own no more, and what the command belongs to that takes it back.
    pub(in crate::client::engine) fn take_intent(
        &mut self,
        lock: LockId,
    ) -> Option<(Box<Intent>, Ticket)> {
        let intent = self.intent.take()?;
        Some((intent, self.announcement(lock)))
    }

    /// What it takes to take it back, if there is one.
    pub(in crate::client::engine) fn withdrawal(&mut self, lock: LockId) -> Option<Withdrawal> {
        let (intent, ticket) = self.take_intent(lock)?;
        Some(intent.withdrawal(ticket))
    }
}
