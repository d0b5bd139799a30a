//! A lock without a guard is one lock from its detach on. If another client has had the lock meanwhile, a copy of the
//! old value, for example in the older data of a restarted node, gives the lock to nobody.

use std::collections::{BTreeMap, BTreeSet};

use quorlock_core::{Command, Keys, LockId, Mode, Origin, Verb};

use super::Checked;
use crate::fact::{ClientId, Fact, FaultEvent, NodeIndex};
use crate::invariants::View;

pub(crate) const NAME: &str = "continuity";

pub(crate) const SENTENCE: &str = "S32, S10: a detached lock is attached, or extended without a guard, only if no value \
     that excludes it had a quorum since its detach. A node with older data whose clock is set back is outside: its old \
     keys outlive the quarantine. (algorithm)";

/// Models report no `Fact::Started`, so this stays empty there: their nodes never come back with older data.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Continuity {
    is_watching: bool,
    /// The detached locks, by value.
    leases: BTreeMap<Vec<u8>, Lease>,
    /// Attempts to attach, and extensions, that began when the lock was over. Earlier ones may have found the old lock.
    late: BTreeSet<(ClientId, LockId)>,
    /// The nodes that came back with older data, and those whose clock was set back.
    older: BTreeSet<NodeIndex>,
    set_back: BTreeSet<NodeIndex>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Lease {
    keys: Keys,
    mode: Mode,
    /// Another client has had a lock that excludes this one.
    is_over: bool,
}

impl Continuity {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Started { .. } => {
                self.is_watching =
                    view.terms.outside.is_none() && self.older.is_disjoint(&self.set_back);
            }
            Fact::FaultEvent(FaultEvent::NodeOverwritten { node }) => {
                self.older.insert(*node);
                self.is_watching &= !self.set_back.contains(node);
            }
            Fact::FaultEvent(FaultEvent::NodeStepped { node, by: ..0 }) => {
                self.set_back.insert(*node);
                self.is_watching &= !self.older.contains(node);
            }
            _ if !self.is_watching => {}
            Fact::Detached { detached: Some(detached), .. } => {
                let entry = &detached.entry;
                let (keys, mode, is_over) = (entry.keys.clone(), entry.mode, false);
                let value = entry.value.as_bytes().to_vec();
                self.leases.insert(value, Lease { keys, mode, is_over });
            }
            Fact::Ordered { client, ticket, command, .. } => {
                let is_of_call = || view.ledger.request(*client, ticket.lock).is_some();
                let value = if let Command::Attach { from, .. } = command {
                    from
                } else if ticket.verb == Verb::Extend
                    && !is_of_call()
                    && let Some((_, value)) = command.subject()
                {
                    value
                } else {
                    return Ok(());
                };
                if self.leases.get(value.as_bytes()).is_some_and(|lease| lease.is_over) {
                    self.late.insert((*client, ticket.lock));
                }
            }
            Fact::Granted { guard, .. } => {
                let Some(held) = view.guards.of(*guard) else { return Ok(()) };
                let is_attached = matches!(held.request.origin, Origin::Detached(_));
                if is_attached && self.late.contains(&(guard.client, guard.lock)) {
                    return Err(format!("{guard} attaches a lock that another client has had"));
                }
                // A client that was paused may be granted what it had long ago. Nobody may rely on that any more.
                if !held.is_valid(view.reading(guard.client)) {
                    return Ok(());
                }
                let (keys, mode) = (&held.request.keys, held.hold.mode());
                let is_excluded =
                    |it: &&mut Lease| it.keys.overlaps(keys) && it.mode.excludes(mode);
                self.leases.values_mut().filter(is_excluded).for_each(|it| it.is_over = true);
            }
            Fact::EntryExtended { client, lock, validity: Some(_), .. }
                if self.late.contains(&(*client, *lock)) =>
            {
                return Err(format!(
                    "client {client} extends a lock that another client has had meanwhile"
                ));
            }
            _ => {}
        }
        Ok(())
    }
}
