//! Judges the holds and numbers of workers at the end of a round, by observations from outside. Neither quorlock nor its
//! engine is asked. Oracles 1 and 3 are in [`holds`](crate::holds), 2 and 6 in [`shared_numbers`](crate::shared_numbers),
//! 4 in [`leftover_keys`](crate::leftover_keys), and 5 in [`ledger`](crate::ledger).

use quorlock_servers::proxy::Effect;

use crate::clock::seconds;
use crate::holds::{Hold, Pair, disordered, overlaps, together};
use crate::ledger::{
    ATTACHED, ATTACHED_FENCED, ATTACHED_SHARED, DOWNGRADE_CONFIRMED, Ledger, PROLONGED,
    SAME_MOMENT, SEVERAL, SEVERAL_FENCED, UNTRUSTED, Violation,
};
use crate::plan::{FAILOVERS, KINDS};
use crate::protocol::RESOURCES;
use crate::round::{AT_ONCE, EFFECTS};
use crate::totals::{CALLS, CHECKED, CONNECTIONS, FAULTS, OUTSIDE, WRONG};

/// Names of counts.
pub(crate) const OVERLAPS: &str = "two holders at the same time, not both readers";
pub(crate) const LOST_UPDATES: &str = "updates lost by trust in validity";
const CHANGED: &str = "numbers that changed while readers held the lock";
const LOST_FENCED: &str = "updates lost by the store that checks fencing tokens";
const DISORDERED: &str = "fencing tokens that were not larger than one before";
const TOGETHER: &str = "readers let in while another one held the same lock";
pub(crate) const WRITES: &str = "increments without a fencing token";
const COMPARED: &str = "numbers that readers compared";
const FENCED_WRITES: &str = "increments with a fencing token";
const REFUSED: &str = "writes and reads refused because of an old fencing token";
const FENCED: &str = "holders with a fencing token";

/// Counts that must not be zero after enough rounds: each kind of fault, the effect of each connection fault, and the
/// events that each oracle checks.
pub(crate) fn needed(has_clocks: bool) -> Vec<(&'static str, &'static str)> {
    let kinds = KINDS.iter().flat_map(|kinds| kinds.iter());
    let kinds = kinds.filter(|kind| has_clocks || !kind.moves_clock());
    let mut needed: Vec<_> = kinds.map(|kind| (FAULTS, kind.name())).collect();
    // `NoServer` and `Late` are left out, because they occur only by chance.
    let effects =
        EFFECTS.iter().filter(|(effect, _)| !matches!(effect, Effect::NoServer | Effect::Late));
    needed.extend(effects.map(|(_, name)| (CONNECTIONS, *name)));
    needed.extend(
        [TOGETHER, WRITES, COMPARED, FENCED_WRITES, REFUSED, FENCED, AT_ONCE]
            .map(|name| (CHECKED, name)),
    );
    needed.extend(
        [
            SEVERAL,
            SEVERAL_FENCED,
            DOWNGRADE_CONFIRMED,
            UNTRUSTED,
            ATTACHED,
            ATTACHED_SHARED,
            ATTACHED_FENCED,
            SAME_MOMENT,
            PROLONGED,
        ]
        .map(|name| (CALLS, name)),
    );
    needed
}

/// Counts that must not be zero after enough rounds in which nodes have replicas.
pub(crate) fn needed_with_replicas() -> Vec<(&'static str, &'static str)> {
    let failovers = FAILOVERS.iter().map(|kind| (FAULTS, kind.name()));
    failovers.chain([(CHECKED, WRITES), (CHECKED, FENCED_WRITES)]).collect()
}

/// Adds what the oracles find to the ledger.
pub(crate) fn judge(ledger: &mut Ledger) {
    let found: Vec<_> = overlaps(ledger.holds())
        .into_iter()
        .map(|pair| {
            let (what, both) = pair.overlap();
            (pair.second.from, format!("{what}, for {}", seconds(both)))
        })
        .collect();
    let wrong: Vec<Violation> = disordered(ledger.holds()).into_iter().map(in_disorder).collect();
    // Beyond the assumptions of the protocol, broken mutual exclusion is counted separately and is no violation.
    let exclusion = if ledger.outside.is_some() { OUTSIDE } else { WRONG };
    let (plain, fenced) = (ledger.numbers.sum(false), ledger.numbers.sum(true));
    let comparisons = ledger.numbers.comparisons;
    let holders = ledger.holds().iter().filter(|hold| hold.fence.is_some()).count();
    let readers = together(ledger.holds());
    for (section, name, count) in [
        (exclusion, OVERLAPS, found.len() as u64),
        (exclusion, LOST_UPDATES, plain.lost()),
        (exclusion, CHANGED, comparisons.changed),
        (WRONG, LOST_FENCED, fenced.lost()),
        (WRONG, DISORDERED, wrong.len() as u64),
        (CHECKED, TOGETHER, readers as u64),
        (CHECKED, WRITES, plain.writes),
        (CHECKED, "writes after the end of their lock: refused", plain.refused),
        (CHECKED, COMPARED, comparisons.made),
        (CHECKED, "comparisons after the end of their lock", comparisons.too_late),
        (CHECKED, FENCED_WRITES, fenced.writes),
        (CHECKED, REFUSED, fenced.refused),
        (CHECKED, FENCED, holders as u64),
    ] {
        ledger.totals.count(section, name, count);
    }
    for (at, what) in found {
        ledger.trusted(at, what, true);
    }
    for Violation { at, what } in wrong {
        ledger.violated(at, what);
    }
}

fn in_disorder(Pair { first: before, second: hold, resource }: Pair<'_>) -> Violation {
    let fence = |hold: &Hold| hold.fence.unwrap_or_default();
    let what = format!(
        "{} gets fence {} of {}, after {} was shown {}",
        hold.holder,
        fence(hold),
        RESOURCES[resource],
        before.holder,
        fence(before)
    );
    Violation { at: hold.from, what }
}
