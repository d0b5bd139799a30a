//! Mistakes that can be switched on while the program runs, to see that tests and the simulator
//! catch them.
//!
//! This module exists only in a build with `--cfg quorlock_mutants`, which nobody makes but
//! `cargo xtask mutants`, in a target directory of its own. In any other build `mutant!(…)` is the
//! word `false`, and nothing is left of it. It is no feature of cargo's: those unify into whatever
//! else is built.

use core::sync::atomic::{AtomicU8, Ordering};

/// A mistake in the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each has its words in `ALL`")]
pub enum Mutant {
    NoClockCheck,
    ValidityFromReply,
    QuorumLessOne,
    TokenReused,
    ExtensionShortens,
    ExtensionCountsUnknown,
    FailedExtensionReleases,
    LossNotLatched,
    AbsentKeepsVote,
    NoReleaseToTimedOut,
    WaitersTrustPush,
    WakeAtFirstPush,
    LateGrantBehindRelease,
    NoDrift,
    BootClockAlone,
}

/// Every mistake and its name.
pub const ALL: &[(&str, Mutant)] = &[
    ("no clock check after the quorum", Mutant::NoClockCheck),
    ("validity from the reply time", Mutant::ValidityFromReply),
    ("quorum less one", Mutant::QuorumLessOne),
    ("token reused across attempts", Mutant::TokenReused),
    ("extension shortens", Mutant::ExtensionShortens),
    ("extension counts unknown replies", Mutant::ExtensionCountsUnknown),
    ("failed extension releases", Mutant::FailedExtensionReleases),
    ("loss not latched", Mutant::LossNotLatched),
    ("absent answer keeps its vote", Mutant::AbsentKeepsVote),
    ("no release to timed-out nodes", Mutant::NoReleaseToTimedOut),
    ("waiters trust the push alone", Mutant::WaitersTrustPush),
    ("wake at the first push", Mutant::WakeAtFirstPush),
    ("late grant counted behind a queued release", Mutant::LateGrantBehindRelease),
    ("drift 0", Mutant::NoDrift),
    ("elapsed by the boot clock alone", Mutant::BootClockAlone),
];

static ACTIVE: AtomicU8 = AtomicU8::new(u8::MAX);

/// From now on the mistake of this name is made, in the whole process. Returns whether there is one.
pub fn switch_on(name: &str) -> bool {
    let found = ALL.iter().find(|(known, _)| *known == name);
    if let Some((_, mutant)) = found {
        ACTIVE.store(*mutant as u8, Ordering::Relaxed);
    }
    found.is_some()
}

/// Whether this mistake is made.
pub fn is_active(mutant: Mutant) -> bool {
    ACTIVE.load(Ordering::Relaxed) == mutant as u8
}
