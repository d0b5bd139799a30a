//! The result of a round with the library: what was done, and what the oracles found.

use std::collections::BTreeMap;

use quorlock_servers::proxy::Effect;
use quorlock_sim::time::Time;

use crate::act::Kind;
use crate::ledger::Findings;
use crate::oracles::{Keys, Rereading, Store, Witness};
use crate::tally::Tally;

/// The result of a round.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The round was stopped before its end, so some oracles were not asked.
    pub(crate) interrupted: bool,
    /// The faults that were injected.
    pub(crate) faults: Faults,
    /// How many calls ended in which way.
    pub(crate) tally: Tally,
    /// Whether a lock had two holders.
    pub(crate) exclusion: Exclusion,
    /// Whether fencing tokens were unique and grew.
    pub(crate) fences: Fences,
    /// The keys that were left on the nodes.
    pub(crate) keys: Keys,
    /// The time from the end of all faults until every client had had a lock again. `None`: at least one client had
    /// none by the end.
    pub(crate) healed: Option<Time>,
    /// The violations, and the journal of the round.
    pub(crate) findings: Findings,
}

/// The faults of a round: how often each was injected, and how often it took effect on a connection.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// How often the nemesis injected each kind.
    pub(crate) injected: BTreeMap<Kind, u64>,
    /// How often the proxies had each effect, in the order of [`EFFECTS`].
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

    /// Whether a fault of this kind took effect. A fault of a connection takes effect when a proxy applies it to a
    /// message or a connection; injecting it is not enough, because nothing may pass the proxy meanwhile.
    pub(crate) fn happened(&self, kind: Kind) -> bool {
        let effect_of_kind = match kind {
            Kind::Delay => Effect::Delayed,
            Kind::Hold | Kind::HoldOldConnections => Effect::Held,
            Kind::Drop => Effect::Dropped,
            Kind::Split => Effect::Split,
            Kind::HalfClose => Effect::HalfClosed,
            Kind::Truncate => Effect::Truncated,
            Kind::Reset => Effect::Reset,
            // A fault of a process or a server takes effect when it is injected.
            _ => return self.injected.contains_key(&kind),
        };
        let mut counts = EFFECTS.iter().zip(self.effects);
        self.injected.contains_key(&kind)
            && counts.any(|((effect, _), count)| *effect == effect_of_kind && count > 0)
    }
}

/// Each effect that the proxies count, and its name in the summary.
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

/// What was seen of mutual exclusion: one holder of a lock at a time.
#[derive(Debug, Default)]
pub(crate) struct Exclusion {
    /// Pairs of holders that held one lock at the same time, not both as readers.
    pub(crate) overlaps: usize,
    /// Readers that were let in while another one held the same lock.
    pub(crate) together: usize,
    /// The updates that holders without fences made, and how many were lost.
    pub(crate) witness: Witness,
    /// Whether what readers read stayed as it was.
    pub(crate) rereading: Rereading,
    /// `Some`: the round breaks an assumption of mutual exclusion, and this says which. Overlaps, lost updates of the
    /// witness and numbers that changed under readers are then counted, but they are not violations.
    pub(crate) outside: Option<&'static str>,
}

/// What was seen of fencing tokens.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    /// The store that refuses a write with a smaller fence than the last one; and how many updates it lost.
    pub(crate) store: Store,
    /// Holders with a fence.
    pub(crate) holders: usize,
    /// Pairs of these holders whose fences are the same or in the wrong order.
    pub(crate) disordered: usize,
}
