//! Mutants: deliberate bugs in the driver, the calls, the guard and the node. Chaos and the cancellation sweep
//! (`tests/cancellation`) must catch them.
//!
//! They exist only in a build with `--cfg quorlock_mutants`, like those of the engine (`quorlock_core::mutants`). In
//! any other build `mutant!(…)` is the constant `false`. The variable `QUORLOCK_MUTANT`, which is read once, names the
//! mutant that is switched on in the whole process: one of this module or of the engine. Any other name is ignored,
//! because it may belong to another program.

use std::sync::OnceLock;

/// A deliberate bug in the driver, a call, the guard or the node.
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

/// Every mutant: its name, its layer, and whether the cancellation sweep must catch it. Mutants that the sweep need not
/// catch need real connections, or clocks that advance by themselves; docs/proof.md says which tests catch them.
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

/// Every mutant of this module and of the engine: its name, its layer, and whether the cancellation sweep must catch
/// it. The sweep need not catch those of the engine, because the simulator catches them.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    let engine = quorlock_core::mutants::ALL.iter().map(|(name, ..)| (*name, "engine", false));
    ALL.iter().map(|(name, layer, _, is_seen)| (*name, *layer, *is_seen)).chain(engine)
}

static ACTIVE: OnceLock<Option<Mutant>> = OnceLock::new();

pub(crate) fn is_active(mutant: Mutant) -> bool {
    active() == Some(mutant)
}

/// The mutant of this module that the environment names. If it names a mutant of the engine, switches on that mutant.
pub(crate) fn active() -> Option<Mutant> {
    *ACTIVE.get_or_init(|| {
        let name = std::env::var("QUORLOCK_MUTANT").ok()?;
        quorlock_core::mutants::switch_on(&name);
        ALL.iter().find(|(known, ..)| *known == name).map(|(_, _, mutant, _)| *mutant)
    })
}
