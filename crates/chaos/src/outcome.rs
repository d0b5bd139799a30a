//! What came of a round.

use std::collections::BTreeMap;

use quorlock_servers::proxy::Effect;
use quorlock_sim::time::Time;

use crate::act::Kind;
use crate::ledger::{Account, Tally};
use crate::oracles::{Keys, Store, Witness};

/// See above.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// It was left before its end; some oracles were not asked.
    pub(crate) interrupted: bool,
    pub(crate) faults: Faults,
    pub(crate) tally: Tally,
    pub(crate) exclusion: Exclusion,
    pub(crate) fences: Fences,
    pub(crate) keys: Keys,
    /// When the last client had a lock again after everything was healed; nothing if one had none.
    pub(crate) healed: Option<Time>,
    pub(crate) account: Account,
}

/// What was done to everything.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) injected: BTreeMap<Kind, u64>,
    /// What the proxies did; in the order of [`EFFECTS`].
    pub(crate) effects: [u64; EFFECTS.len()],
}

impl Faults {
    pub(crate) fn add(&mut self, other: &Self) {
        for (kind, count) in &other.injected {
            *self.injected.entry(*kind).or_default() += count;
        }
        for (sum, count) in self.effects.iter_mut().zip(other.effects) {
            *sum += count;
        }
    }

    /// It was not only ordered, but something has passed that it was done to.
    pub(crate) fn happened(&self, kind: Kind) -> bool {
        let touched = match kind {
            Kind::Delay => Effect::Delayed,
            Kind::Hold | Kind::HoldOld => Effect::Held,
            Kind::Drop => Effect::Dropped,
            Kind::Split => Effect::Split,
            Kind::HalfClose => Effect::HalfClosed,
            Kind::Truncate => Effect::Truncated,
            Kind::Reset => Effect::Reset,
            // What is done to a process is done when it was ordered.
            _ => return self.injected.contains_key(&kind),
        };
        let mut counts = EFFECTS.iter().zip(self.effects);
        self.injected.contains_key(&kind)
            && counts.any(|((effect, _), count)| *effect == touched && count > 0)
    }
}

/// What is counted, and what it is called.
pub(crate) const EFFECTS: [(Effect, &str); 10] = [
    (Effect::Accepted, "connections made"),
    (Effect::NoServer, "connections to a node that was down"),
    (Effect::Delayed, "messages delayed"),
    (Effect::Held, "messages held"),
    (Effect::Late, "messages that came after their connection was closed"),
    (Effect::Dropped, "messages dropped"),
    (Effect::Split, "messages split"),
    (Effect::HalfClosed, "connections half-closed"),
    (Effect::Truncated, "connections cut off in the middle of a message"),
    (Effect::Reset, "connections reset"),
];

/// Whether one at a time held a lock.
#[derive(Debug, Default)]
pub(crate) struct Exclusion {
    pub(crate) overlaps: usize,
    pub(crate) witness: Witness,
    pub(crate) votes: Votes,
    /// Why overlaps, lost updates of the witness and votes that are missing are nobody's fault; then
    /// they are counted, and no violations.
    pub(crate) outside: Option<&'static str>,
}

/// What the servers' own streams say of the holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Votes {
    /// Holders of whom it was looked at.
    pub(crate) judged: u64,
    /// Holders of whom nobody can say whether they had the votes.
    pub(crate) blind: u64,
    /// Holders that had not, for some of their time.
    pub(crate) short: usize,
}

/// What became of fences.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    pub(crate) store: Store,
    /// Holders with a fence, and pairs of them whose fences are the same or in the wrong order.
    pub(crate) holders: usize,
    pub(crate) disordered: usize,
}
