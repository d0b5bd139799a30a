//! A holder is notified before its lock ends if no quorum confirms it any more, and when a quorum confirms it again.

use std::collections::BTreeMap;
use std::time::Duration;

use quorlock_core::{LockId, Reading, Ticket, Verb};

use super::Checked;
use crate::fact::{ClientId, Fact};
use crate::guard::GuardId;
use crate::invariants::View;

pub(crate) const NAME: &str = "announced";

pub(crate) const SENTENCE: &str = "V15: when it is clear that no quorum confirms an extension, at the latest one \
     node timeout after it was sent, the holder is notified while the lock is held. It is notified when a quorum \
     confirms again. (algorithm)";

/// For each held lock, its extensions since the last grant or hand-over. The key of this map comes from `lock_of`.
/// Models report no `Fact::Started`, which sets `is_watching`, so this record stays empty there.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Announced {
    is_watching: bool,
    locks: BTreeMap<(ClientId, LockId), Rounds>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Rounds {
    /// True if the last notification to the holder said that no quorum confirms the lock.
    is_unconfirmed: bool,
    latest: Option<Round>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Round {
    number: u32,
    began: Reading,
    answers: usize,
    /// True if in this round a quorum confirmed the lock, or the holder was notified that no quorum does.
    is_decided: bool,
}

impl Announced {
    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Started { .. } => self.is_watching = true,
            _ if !self.is_watching => {}
            // Forgets earlier extensions, because the engine notifies a holder only of extensions since its grant.
            Fact::Granted { guard, .. } | Fact::ReleaseAsked { guard, .. } => {
                self.locks.remove(&lock_of(*guard, view));
            }
            Fact::Ordered { client, ticket, .. } if ticket.verb == Verb::Extend => {
                self.begin(*client, *ticket, view.tick_reading(*client));
            }
            Fact::Answered { client, ticket, .. } if ticket.verb == Verb::Extend => {
                let rounds = self.locks.get_mut(&(*client, ticket.lock));
                let round = rounds.and_then(|rounds| rounds.latest.as_mut());
                if let Some(round) = round.filter(|round| round.number == ticket.round) {
                    round.answers += 1;
                }
            }
            // A guard that was dropped needs no notification.
            Fact::Health { guard, is_confirmed, .. } if view.guards.of(*guard).is_some() => {
                let confirmed = confirmations(*guard, view);
                let is_reached = view.terms.quorum.is_reached(confirmed);
                // An answer that comes after the end of the lock confirms nothing.
                let now = view.tick_reading(guard.client);
                let is_held = view.guards.of(*guard).is_some_and(|held| held.is_valid(now));
                let is_wrong = match is_confirmed {
                    true => !is_reached,
                    false => is_reached && is_held && !view.ledger.needs_evidence(guard.client),
                };
                if is_wrong {
                    let what = if *is_confirmed { "confirmed" } else { "not confirmed" };
                    return Err(format!("{guard} is reported as {what}, by {confirmed} nodes"));
                }
                let rounds = self.locks.entry(lock_of(*guard, view)).or_default();
                rounds.is_unconfirmed = !is_confirmed;
                if let Some(round) = &mut rounds.latest {
                    round.is_decided = true;
                }
            }
            Fact::TickOver { client } => return self.check_reported(*client, view),
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, client: ClientId, ticket: Ticket, now: Reading) {
        let rounds = self.locks.entry((client, ticket.lock)).or_default();
        if rounds.latest.as_ref().is_none_or(|round| round.number < ticket.round) {
            let (number, began) = (ticket.round, now);
            rounds.latest = Some(Round { number, began, answers: 0, is_decided: false });
        }
    }

    /// Checks that this tick sent every notification to a holder that was due.
    fn check_reported(&mut self, client: ClientId, view: &View<'_>) -> Checked {
        let now = view.tick_reading(client);
        for (id, guard) in view.guards.iter().filter(|(id, _)| id.client == client) {
            if guard.hold.ended().is_some() || guard.run_out {
                continue;
            }
            let Some(rounds) = self.locks.get_mut(&lock_of(id, view)) else { continue };
            let Some(round) = rounds.latest.as_mut().filter(|round| !round.is_decided) else {
                continue;
            };
            let confirmed = confirmations(id, view);
            if view.terms.quorum.is_reached(confirmed) {
                round.is_decided = true;
                if rounds.is_unconfirmed && !view.ledger.needs_evidence(client) {
                    return Err(format!(
                        "a quorum confirms {id} again, and the holder is not notified"
                    ));
                }
                continue;
            }
            // The checker does not know the round trip, so it takes the largest value of an adaptive node timeout.
            let timeout = guard.request.timing.node_timeout(Duration::MAX);
            let is_over = round.began.after(timeout).remaining(now).is_zero();
            let open = view.terms.quorum.nodes() - round.answers;
            if view.terms.quorum.is_out_of_reach(confirmed, if is_over { 0 } else { open }) {
                return Err(format!(
                    "{confirmed} nodes confirm {id}, and the holder is not notified"
                ));
            }
        }
        Ok(())
    }
}

/// The key of a guard's record. After a hand-over, tickets still have the lock id of the token's first guard.
fn lock_of(guard: GuardId, view: &View<'_>) -> (ClientId, LockId) {
    let token = view.guards.of(guard).and_then(|held| view.ledger.of_guard(held));
    (guard.client, token.map_or(guard.lock, |token| token.lock))
}

/// The number of nodes that confirmed the lock in the latest round of extensions.
fn confirmations(guard: GuardId, view: &View<'_>) -> usize {
    let token = view.guards.of(guard).and_then(|held| view.ledger.of_guard(held));
    token.map_or(0, |token| token.extending.1)
}
