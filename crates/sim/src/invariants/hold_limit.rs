//! No holder keeps a lock for longer than its call allows, and no process keeps a lock from other processes by
//! handing it over again and again.

use std::collections::BTreeMap;

use quorlock_core::{Command, Reading};

use super::Checked;
use crate::fact::{Fact, span};
use crate::guard::{Guard, GuardId};
use crate::invariants::View;
use crate::time::elapsed;

pub(crate) const NAME: &str = "hold limit";

pub(crate) const SENTENCE: &str = "Per node token ≤ 64 turns and ≤ T/10 in all. max_hold counts per guard \
     and per node token. Automatic extension every T/3, bounded by max_hold. (algorithm)";

/// The first grant of each token, and the limits of its extensions. Models report no `Fact::Started`, which sets
/// `is_watching`, so this record stays empty there.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct HoldLimit {
    is_watching: bool,
    tokens: BTreeMap<Vec<u8>, Term>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Term {
    began: Reading,
    /// Times on the boot clock (ns) when the lock must end, for all holders of the token together and for this guard.
    token_until: i64,
    guard_until: i64,
}

impl HoldLimit {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Started { .. } => self.is_watching = true,
            Fact::Granted { guard: id, .. } if self.is_watching => {
                if let Some(guard) = view.guards.of(*id) {
                    return self.granted(*id, guard, view.tick_reading(id.client));
                }
            }
            Fact::Ordered { client, command, .. } => {
                let Command::Extend { ttl_ms, .. } = command else { return Ok(()) };
                if command.taken().is_some() {
                    return Ok(());
                }
                let term =
                    command.subject().and_then(|(_, value)| self.tokens.get(value.as_bytes()));
                let Some(term) = term else { return Ok(()) };
                let until =
                    view.tick_reading(*client).boot().as_nanos() + *ttl_ms as i64 * 1_000_000;
                if until > term.guard_until {
                    let over = span(until - term.guard_until);
                    return Err(format!("client {client} extends a lock {over} past its max_hold"));
                }
            }
            Fact::Detached { detached: Some(detached), .. } => {
                self.tokens.remove(detached.entry.value.as_bytes());
            }
            Fact::Released { guard, .. } => self.forget(*guard, view),
            _ => {}
        }
        Ok(())
    }

    fn granted(&mut self, id: GuardId, guard: &Guard, now: Reading) -> Checked {
        let max_hold = guard.request.max_hold.as_nanos() as i64;
        let until = now.boot().as_nanos() + max_hold;
        let value = guard.value().as_bytes().to_vec();
        if guard.handover_count == 0 {
            let term = Term { began: now, token_until: until, guard_until: until };
            self.tokens.insert(value, term);
            return Ok(());
        }
        let Some(term) = self.tokens.get_mut(&value) else {
            return Err(format!("{id} is handed over, and no guard had the lock before"));
        };
        term.guard_until = term.token_until.min(until);
        let (handover_count, held) = (guard.handover_count, elapsed(term.began, now));
        if handover_count > 64 || held > guard.request.timing.ttl_ms() as i64 * 100_000 {
            let held = span(held);
            return Err(format!(
                "{id} is handed over as turn {handover_count}, {held} after the grant"
            ));
        }
        Ok(())
    }

    /// Drops the record of a lost lock, because the engine releases the keys of the lock and no longer extends them.
    fn forget(&mut self, id: GuardId, view: &View<'_>) {
        if let Some(guard) = view.guards.of(id).filter(|guard| guard.is_lost) {
            self.tokens.remove(guard.value().as_bytes());
        }
    }
}
