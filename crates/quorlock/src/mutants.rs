//! Mistakes in the shipped code, switched on from outside, to see that chaos and the cancellation sweep
//! catch them.
//!
//! They exist only in a build with `--cfg quorlock_mutants`, as those of the engine
//! (`quorlock_core::mutants`); in any other build `mutant!(…)` is the word `false`, and nothing is left of
//! it. `QUORLOCK_MUTANT` names the one that is made, in the whole process; it is read once. A name of the
//! engine's is handed on to it; one that nobody here knows is somebody else's.

use std::sync::OnceLock;

/// A mistake in the driver, a call, the guard or the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each has its words in `ALL`")]
pub enum Mutant {
    TokenReused,
    UntakenForgotten,
    NotDrained,
    CallersWaker,
    LossToldLate,
    CancelUnsent,
    DropKeeps,
    ReleaseUnsent,
    NobodyWoken,
    NothingProved,
    ModeNotTurned,
}

/// Every mistake: its name, the layer it is made in, and whether the cancellation sweep must catch it, as it
/// has been seen to. The others need real connections, or clocks that go on by themselves: docs/proof.md says
/// what sees them.
pub const ALL: &[(&str, &str, Mutant, bool)] = &[
    ("one token for all attempts", "driver", Mutant::TokenReused, true),
    ("a guard that nobody takes is forgotten", "driver", Mutant::UntakenForgotten, true),
    ("what is owed is not drained", "driver", Mutant::NotDrained, true),
    ("the driver waits with its caller's waker", "driver", Mutant::CallersWaker, true),
    ("a loss told behind its release", "driver", Mutant::LossToldLate, true),
    ("a dropped call is not cancelled", "call", Mutant::CancelUnsent, true),
    ("a dropped guard is not released", "guard", Mutant::DropKeeps, true),
    ("a release that is not sent", "guard", Mutant::ReleaseUnsent, true),
    ("a change that wakes nobody", "guard", Mutant::NobodyWoken, true),
    ("answers that are vouched for", "node", Mutant::NothingProved, false),
    ("a downgraded guard that stays a writer", "guard", Mutant::ModeNotTurned, true),
];

/// Each by its name, with the layer it is made in and whether the cancellation sweep must catch it: these, and
/// the engine's. Of those the sweep need not see any; the simulator does.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    let engine = quorlock_core::mutants::ALL.iter().map(|(name, ..)| (*name, "engine", false));
    ALL.iter().map(|(name, layer, _, is_seen)| (*name, *layer, *is_seen)).chain(engine)
}

static ACTIVE: OnceLock<Option<Mutant>> = OnceLock::new();

/// Whether this mistake is made.
pub(crate) fn is_active(mutant: Mutant) -> bool {
    active() == Some(mutant)
}

/// The mistake that the environment names, if it is one of these; the engine is told if it is one of its.
pub(crate) fn active() -> Option<Mutant> {
    *ACTIVE.get_or_init(|| {
        let name = std::env::var("QUORLOCK_MUTANT").ok()?;
        quorlock_core::mutants::switch_on(&name);
        ALL.iter().find(|(known, ..)| *known == name).map(|(_, _, mutant, _)| *mutant)
    })
}
