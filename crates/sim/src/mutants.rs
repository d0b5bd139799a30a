//! Mutants: deliberate bugs that can be switched on, to show that the invariants catch them.
//!
//! Most mutants are in the engine and the nodes' scripts (`quorlock_core::mutants`). The mutants here are in the
//! simulator's drivers. Mutants exist only in a build with `--cfg quorlock_mutants`, which `cargo xtask mutants` makes.
//! In other builds [`is_active`] is the constant `false`.

/// A deliberate bug in the simulator's drivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// The driver reads a clock that stops while the machine is suspended.
    ClockStopsInSuspend,
    /// The driver passes on answers of a connection that was given up.
    VoteFromOldEpoch,
}

#[cfg(not(quorlock_mutants))]
/// Whether this mutant is switched on.
pub const fn is_active(_: Mutant) -> bool {
    false
}

#[cfg(not(quorlock_mutants))]
/// Switches on a mutant by its name. Returns whether the mutant exists: never in this build.
pub const fn switch_on(_: &str) -> bool {
    false
}

#[cfg(quorlock_mutants)]
pub use self::switches::{all, is_active, switch_on};

#[cfg(quorlock_mutants)]
mod switches {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Mutant;

    static ACTIVE: AtomicU8 = AtomicU8::new(u8::MAX);

    /// Name, mutant, and the invariant that should catch it.
    const OWN: &[(&str, Mutant, &str)] = &[
        ("clock that stops in suspend", Mutant::ClockStopsInSuspend, "mutual exclusion"),
        ("vote from an old epoch", Mutant::VoteFromOldEpoch, "votes"),
    ];

    /// Whether this mutant is switched on.
    pub fn is_active(mutant: Mutant) -> bool {
        ACTIVE.load(Ordering::Relaxed) == mutant as u8
    }

    /// The name and layer of each mutant, and the invariant that should catch it.
    pub fn all() -> impl Iterator<Item = [&'static str; 3]> {
        let of =
            |layer| move |(name, _, expected): &(&'static str, _, _)| [*name, layer, *expected];
        let engine = quorlock_core::mutants::ALL.iter().map(of("engine"));
        let scripts = quorlock_core::mutants::SCRIPTS.iter().map(of("node's script"));
        engine
            .chain(scripts)
            .chain(OWN.iter().map(|(name, _, expected)| [*name, "driver", *expected]))
    }

    /// Switches on a mutant for the whole process, by its name. Returns whether the mutant exists.
    pub fn switch_on(name: &str) -> bool {
        let own = OWN.iter().find(|(known, ..)| *known == name);
        if let Some((_, mutant, _)) = own {
            ACTIVE.store(*mutant as u8, Ordering::Relaxed);
        }
        own.is_some() || quorlock_core::mutants::switch_on(name)
    }
}
