//! Deliberate bugs (mutants). A chaos test that runs commands must detect each of them.
//!
//! They exist only in a build with `--cfg quorlock_mutants`. There the environment variable `QUORLOCK_MUTANT` names the
//! active mutant of keeper and guardian. In any other build [`is_active`] is the constant `false`.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    /// No deadline moves to an earlier time: the guardian does not get a validity that shrinks, the wall clock does not
    /// count, and after a loss SIGKILL comes at the last deadline. A loss releases the lock at once.
    DeadlinesOnlyGrow,
    /// The guardian gets no message about a loss. A loss releases the lock at once.
    TerminateUnlessExpired,
    /// The keeper, in the place of a dead or stopped guardian, ends only the command's own group.
    TakeOverOfTheGroupOnly,
    /// The keeper, in the place of a silent guardian, kills the processes that it sees, one by one, and only once.
    OneKillInItsPlace,
    /// The end of the command's own process counts as the end of all its processes.
    ReleaseBeforeGone,
}

#[cfg(not(quorlock_mutants))]
pub(crate) const fn is_active(_: Mutant) -> bool {
    false
}

/// Whether this mutant is active. The library has mutants of its own, so other names are ignored.
#[cfg(quorlock_mutants)]
pub(crate) fn is_active(mutant: Mutant) -> bool {
    use std::sync::OnceLock;
    static ACTIVE: OnceLock<Option<Mutant>> = OnceLock::new();
    let active = ACTIVE.get_or_init(|| {
        let name = std::env::var("QUORLOCK_MUTANT").ok()?;
        ALL.iter().find(|(known, _)| *known == name).map(|(_, mutant)| *mutant)
    });
    *active == Some(mutant)
}

#[cfg(quorlock_mutants)]
const ALL: &[(&str, Mutant)] = &[
    ("deadlines only grow", Mutant::DeadlinesOnlyGrow),
    ("terminate only unless expired", Mutant::TerminateUnlessExpired),
    ("take-over of the leader's group only", Mutant::TakeOverOfTheGroupOnly),
    ("one kill in a guardian's place", Mutant::OneKillInItsPlace),
    ("release before the group is gone", Mutant::ReleaseBeforeGone),
];
