//! A lock has one holder at a time. An overlap is a violation if the protocol promises this; otherwise it is counted.

use std::collections::BTreeSet;

use super::Checked;
use crate::count::{Count, Counts};
use crate::fact::{Fact, FaultEvent};
use crate::guard::GuardId;
use crate::plan::Outside;
use crate::view::View;

pub(crate) const NAME: &str = "mutual exclusion";

pub(crate) const SENTENCE: &str = "Safety property: Mutual exclusion. At any given moment, only one \
     client can hold a lock. (paper) — promised while, per lock and ttl, fewer than 2Q−N votes of a \
     holder with exactly Q vanish early, clock rates stay within ε, steps within δ. (protocol, 12)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct MutualExclusion {
    counted: BTreeSet<(GuardId, GuardId)>,
    in_run: bool,
}

impl MutualExclusion {
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
            _ => return Ok(()),
        }
        let holds = |(id, guard): &(GuardId, &crate::guard::Guard)| {
            view.can_look(id.client) && guard.is_valid(view.reading(id.client))
        };
        let holders: Vec<_> = view.guards.iter().filter(holds).collect();
        for (place, (one, guard)) in holders.iter().enumerate() {
            for (other, held) in &holders[place + 1..] {
                let (keys, other_keys) = (&guard.request.keys, &held.request.keys);
                if !keys.overlaps(other_keys) || !guard.hold.mode().excludes(held.hold.mode()) {
                    continue;
                }
                if view.terms.outside.is_none() {
                    let key = keys.iter().find(|key| other_keys.contains(key)).unwrap_or(&keys[0]);
                    return Err(format!("{key} is held by {one} and by {other}"));
                }
                if self.counted.insert((*one, *other)) && !std::mem::replace(&mut self.in_run, true)
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
