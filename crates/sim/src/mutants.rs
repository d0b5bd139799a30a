//! Mistakes that can be switched on, to see that they are caught.
//!
//! The engine and the nodes' scripts have most of them (`quorlock_core::mutants`); those in here belong to the
//! simulator's drivers. They exist only in a build with
//! `--cfg quorlock_mutants`, which nobody makes but `cargo xtask mutants`; in any other build
//! [`is_active`] is the constant `false`.

/// A mistake in the simulator's drivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// The driver reads a clock that stops while the machine is suspended.
    ClockStopsInSuspend,
    /// The driver hands on answers that come after their connection was given up.
    VoteFromOldEpoch,
}

#[cfg(not(quorlock_mutants))]
/// Whether a mistake is made.
pub const fn is_active(_: Mutant) -> bool {
    false
}

#[cfg(not(quorlock_mutants))]
/// There are no mistakes in this build.
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

    /// Name, switch, and the invariant that is expected to catch it.
    const OWN: &[(&str, Mutant, &str)] = &[
        ("clock that stops in suspend", Mutant::ClockStopsInSuspend, "mutual exclusion"),
        ("vote from an old epoch", Mutant::VoteFromOldEpoch, "votes"),
    ];

    /// Whether a mistake is made.
    pub fn is_active(mutant: Mutant) -> bool {
        ACTIVE.load(Ordering::Relaxed) == mutant as u8
    }

    /// All names, the layer of each, and the invariant that is expected to catch it.
    pub fn all() -> impl Iterator<Item = [&'static str; 3]> {
        let of =
            |layer| move |(name, _, expected): &(&'static str, _, _)| [*name, layer, *expected];
        let engine = quorlock_core::mutants::ALL.iter().map(of("engine"));
        let scripts = quorlock_core::mutants::SCRIPTS.iter().map(of("node's script"));
        engine
            .chain(scripts)
            .chain(OWN.iter().map(|(name, _, expected)| [*name, "driver", *expected]))
    }

    /// From now on the mistake of this name is made, in the whole process. Returns whether there is
    /// one.
    pub fn switch_on(name: &str) -> bool {
        let own = OWN.iter().find(|(known, ..)| *known == name);
        if let Some((_, mutant, _)) = own {
            ACTIVE.store(*mutant as u8, Ordering::Relaxed);
        }
        own.is_some() || quorlock_core::mutants::switch_on(name)
    }
}
