//! A lock has one holder at a time. An overlap is a violation if the protocol promises this; otherwise it is counted.
//!
//! A detached lock has no holder, but until its end no other client may hold the lock, unless a caller that knows the
//! value has begun to attach or release it.

use std::collections::{BTreeMap, BTreeSet};

use quorlock_core::{
    Command, Entry, Key, Keys, LockId, Mode, Origin, Reading, Validity, Value, Verb,
};

use super::Checked;
use crate::count::{Count, Counts};
use crate::fact::{ClientId, Fact, FaultEvent};
use crate::guard::GuardId;
use crate::invariants::View;
use crate::plan::Outside;

pub(crate) const NAME: &str = "mutual exclusion";

pub(crate) const SENTENCE: &str = "Safety property: Mutual exclusion. At any given moment, only one \
     client can hold a lock. (paper) — promised while, per lock and ttl, fewer than 2Q−N votes of a \
     holder with exactly Q vanish early, clock rates stay within ε, steps within δ. (algorithm)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct MutualExclusion {
    counted: BTreeSet<(GuardId, GuardId)>,
    in_run: bool,
    /// The detached locks, each under the value that the nodes store.
    detached: BTreeMap<Vec<u8>, Detached>,
    /// Values that a caller has begun to attach or release, and callers' values that a command compared without the
    /// nonce. An extension of such a lock that was in flight at that time does not show that the lock is held.
    used: BTreeSet<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Detached {
    /// The guard that was detached. After an extension, `id.client` is the client that extended the lock.
    id: GuardId,
    keys: Keys,
    mode: Mode,
    /// The value that the caller chose; `None` if the client drew the value.
    value: Option<Value>,
    validity: Validity,
}

struct Holder<'a> {
    id: GuardId,
    keys: &'a Keys,
    mode: Mode,
}

impl MutualExclusion {
    /// Moves the recorded times back, and drops detached locks that have ended.
    pub(crate) fn rebase(&mut self, base: impl Fn(ClientId) -> Reading) {
        for it in self.detached.values_mut() {
            it.validity = it.validity.rebased(base(it.id.client));
        }
        self.detached.retain(|_, it| !it.validity.remaining(Reading::default()).is_zero());
    }

    /// Compares guards only after a grant, new votes, a clock jump or a pause. No other fact can begin an overlap.
    pub(crate) fn check(
        &mut self,
        fact: &Fact<'_>,
        view: &View<'_>,
        counts: &mut Counts,
    ) -> Checked {
        match fact {
            Fact::Granted { .. }
            | Fact::Changed { .. }
            | Fact::FaultEvent(FaultEvent::Resumed { .. } | FaultEvent::WallStepped { .. }) => {}
            Fact::Detached { guard, detached: Some(it) } => {
                self.note(*guard, &it.entry, &it.validity);
            }
            Fact::EntryExtended { client, entry, validity: Some(validity), .. } => {
                let before = self.detached.get(entry.value.as_bytes());
                let lock = before.map_or(LockId(0), |before| before.id.lock);
                self.note(GuardId { client: *client, lock }, entry, validity);
            }
            Fact::Ordered { client, ticket, command, .. } => {
                return self.ordered(*client, ticket.verb, command);
            }
            _ => return Ok(()),
        }
        self.compare(view, counts)
    }

    fn note(&mut self, id: GuardId, entry: &Entry, validity: &Validity) {
        let (keys, validity) = (entry.keys.clone(), validity.clone());
        let value = match &entry.origin {
            Origin::Taken(from) => Some(from.value.clone()),
            Origin::Absent | Origin::Detached(_) => None,
        };
        let is_used = |value: &Value| self.used.contains(value.as_bytes());
        if is_used(&entry.value) || value.as_ref().is_some_and(is_used) {
            return;
        }
        let it = Detached { id, keys, mode: entry.mode, value, validity };
        self.detached.insert(entry.value.as_bytes().to_vec(), it);
    }

    fn ordered(&mut self, client: ClientId, verb: Verb, command: &Command) -> Checked {
        let Some((keys, value)) = command.subject() else { return Ok(()) };
        if let Command::Attach { from, .. } = command {
            self.detached.remove(from.as_bytes());
            self.used.insert(from.as_bytes().to_vec());
        }
        // Such a command changes a lock with the same value, whichever attempt set it.
        if let Some(from) = command.taken().filter(|from| from.by_value) {
            self.used.insert(from.value.as_bytes().to_vec());
            let value = Some(&from.value);
            self.detached.retain(|_, it| it.value.as_ref() != value || !it.keys.contains(&keys[0]));
        }
        match verb {
            Verb::Release if self.detached.remove(value.as_bytes()).is_some() => {
                self.used.insert(value.as_bytes().to_vec());
            }
            Verb::Acquire | Verb::Heal if self.detached.contains_key(value.as_bytes()) => {
                return Err(format!("client {client} sets a detached lock: {command:?}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn compare(&mut self, view: &View<'_>, counts: &mut Counts) -> Checked {
        // Once a caller has extended or released by the value alone, other locks with that value are not protected.
        let is_exposed = |guard: &crate::guard::Guard| match &guard.request.origin {
            Origin::Taken(from) => self.used.contains(from.value.as_bytes()),
            Origin::Absent | Origin::Detached(_) => false,
        };
        let holds = |(id, guard): &(GuardId, &crate::guard::Guard)| {
            view.can_check(id.client)
                && guard.is_valid(view.reading(id.client))
                && !is_exposed(guard)
        };
        let stands = |it: &&Detached| {
            let client = it.id.client;
            view.can_check(client) && !it.validity.remaining(view.reading(client)).is_zero()
        };
        let guards = view.guards.iter().filter(holds).map(|(id, guard)| {
            let (keys, mode) = (&guard.request.keys, guard.hold.mode());
            Holder { id, keys, mode }
        });
        let detached = self.detached.values().filter(stands);
        let detached = detached.map(|it| Holder { id: it.id, keys: &it.keys, mode: it.mode });
        let holders: Vec<_> = guards.chain(detached).collect();
        for (place, one) in holders.iter().enumerate() {
            for other in &holders[place + 1..] {
                if !one.keys.overlaps(other.keys) || !one.mode.excludes(other.mode) {
                    continue;
                }
                let (id, other_id) = (one.id, other.id);
                if view.terms.outside.is_none() {
                    let is_in_both = |key: &&Key| other.keys.contains(key);
                    let key = one.keys.iter().find(is_in_both).unwrap_or(&one.keys[0]);
                    return Err(format!("{key} is held by {id} and by {other_id}"));
                }
                if self.counted.insert((id, other_id)) && !std::mem::replace(&mut self.in_run, true)
                {
                    counts.add(Count::Overlaps);
                    counts.add(match view.terms.outside {
                        Some(Outside::Amnesia) => Count::AmnesiaOverlaps,
                        Some(Outside::Losses) => Count::LossOverlaps,
                        Some(Outside::Clocks) | None => Count::ClockOverlaps,
                    });
                }
            }
        }
        Ok(())
    }
}
