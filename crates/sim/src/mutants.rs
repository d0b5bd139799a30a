//! Mistakes that can be switched on, to see that they are caught.
//!
//! The engine has most of them (`quorlock_core::mutants`); those in here belong to what the simulator
//! stands for: connections, clocks, the node's scripts. They exist only in a build with
//! `--cfg quorlock_mutants`, which nobody makes but `cargo xtask mutants`; in any other build
//! [`is_active`] is the constant `false`.

/// A mistake in what the simulator stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// The node's script deletes the key whoever's it is.
    ReleaseWithoutCompare,
    /// The driver reads a clock that stops while the machine is suspended.
    ClockStopsInSuspend,
    /// The driver hands on answers that come after their connection was given up.
    VoteFromOldEpoch,
    /// The node's script raises the counter whoever holds the key.
    RaiseWithoutCompare,
    /// The node's script marks a node whichever adoption it finds there, and however short a time ago that was begun.
    AnyAdoption,
    /// The node's script takes a reader from a key, and leaves the key's end as it was.
    ReaderLeavesEnd,
    /// The node's script sets those of several keys that are free, and says that it has granted them.
    SetsWhatIsFree,
    /// The node's script takes any sorted set for one of readers.
    AnySetReads,
    /// The node's script prolongs a reader's time wherever anybody reads.
    AnyReaderExtends,
    /// The node's script raises each counter whose key is ours, and says that all are raised.
    RaisesEach,
    /// The node's script heals no reader where a writer has said that it waits.
    IntentStopsHeal,
    /// The node's script leaves a writer's value to a reader's release.
    WriterStays,
    /// The node sets a writer's key in the place of readers.
    ReadersIgnored,
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

    /// Name, layer, switch, and the invariant that is expected to catch it.
    const OWN: &[(&str, &str, Mutant, &str)] = &[
        (
            "release without compare",
            "node's script",
            Mutant::ReleaseWithoutCompare,
            "token ownership",
        ),
        ("clock that stops in suspend", "driver", Mutant::ClockStopsInSuspend, "mutual exclusion"),
        ("vote from an old epoch", "driver", Mutant::VoteFromOldEpoch, "votes"),
        (
            "fence raised without token check",
            "node's script",
            Mutant::RaiseWithoutCompare,
            "fencing",
        ),
        ("catch-up before quarantine", "node's script", Mutant::AnyAdoption, "quarantine"),
        (
            "a reader's release leaves the key's end",
            "node's script",
            Mutant::ReaderLeavesEnd,
            "token ownership",
        ),
        (
            "several keys: what is free is set",
            "node's script",
            Mutant::SetsWhatIsFree,
            "token ownership",
        ),
        (
            "any sorted set taken for one of readers",
            "node's script",
            Mutant::AnySetReads,
            "token ownership",
        ),
        (
            "a reader counts without its own member",
            "node's script",
            Mutant::AnyReaderExtends,
            "stored",
        ),
        ("each counter raised by itself", "node's script", Mutant::RaisesEach, "fencing"),
        ("an intent obeyed by a heal", "node's script", Mutant::IntentStopsHeal, "intents"),
        (
            "a writer let in among readers",
            "node's script",
            Mutant::ReadersIgnored,
            "token ownership",
        ),
        (
            "a reader's release leaves a writer's value",
            "node's script",
            Mutant::WriterStays,
            "stored",
        ),
    ];

    /// Whether a mistake is made.
    pub fn is_active(mutant: Mutant) -> bool {
        ACTIVE.load(Ordering::Relaxed) == mutant as u8
    }

    /// All names, the layer of each, and the invariant that is expected to catch it.
    pub fn all() -> impl Iterator<Item = [&'static str; 3]> {
        let engines = quorlock_core::mutants::ALL.iter();
        let engines = engines.map(|(name, _, expected)| [*name, "engine", *expected]);
        engines.chain(OWN.iter().map(|(name, layer, _, expected)| [*name, *layer, *expected]))
    }

    /// From now on the mistake of this name is made, in the whole process. Returns whether there is
    /// one.
    pub fn switch_on(name: &str) -> bool {
        let own = OWN.iter().find(|(known, ..)| *known == name);
        if let Some((_, _, mutant, _)) = own {
            ACTIVE.store(*mutant as u8, Ordering::Relaxed);
        }
        own.is_some() || quorlock_core::mutants::switch_on(name)
    }
}
