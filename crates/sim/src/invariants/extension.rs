//! After each tick, a lock's validity is exactly as long as the answers so far allow: every vote counts, unless the
//! node reported its key missing or overwritten. A command without a known result changes nothing.

use quorlock_core::{Answer, Extended, Verb};

use super::Checked;
use crate::fact::{Fact, span};
use crate::invariants::View;

pub(crate) const NAME: &str = "extension";

pub(crate) const SENTENCE: &str = "S11: E_i grows, or is dropped on proof of loss; nothing else. S12: \
     unknown replies change no E_i; a failed extension deletes nothing. (algorithm)";

pub(crate) fn check(fact: &Fact<'_>, view: &View<'_>) -> Checked {
    match fact {
        Fact::TickOver { client } => {
            let now = view.reading(*client);
            for (id, guard) in view.guards.iter() {
                let live = id.client == *client && guard.is_valid(now) && !guard.run_out;
                let Some(token) = view.ledger.of_guard(guard).filter(|_| live) else { continue };
                let claimed = guard.hold.validity().valid_for(now).as_nanos() as i64;
                let backed = view.ledger.valid_for(token, now);
                // If a client needs evidence, it ignores untrusted nodes' votes, so it may claim a shorter validity.
                if claimed > backed || claimed < backed && !view.ledger.needs_evidence(*client) {
                    let (claimed, backed) = (span(claimed), span(backed));
                    return Err(format!("{id} claims {claimed}, and has votes for {backed}"));
                }
            }
            Ok(())
        }
        Fact::Extension { guard: id, outcome: Extended::Confirmed } => {
            let token = view.guards.of(*id).and_then(|guard| view.ledger.of_guard(guard));
            match token {
                Some(token) if !view.terms.quorum.is_reached(token.extending.1) => {
                    let count = token.extending.1;
                    Err(format!("{id} is reported as extended, and {count} nodes have confirmed"))
                }
                _ => Ok(()),
            }
        }
        Fact::Answered { ticket, answer: Answer::Failed(_), .. } if ticket.verb == Verb::Extend => {
            Ok(())
        }
        _ => Ok(()),
    }
}
