//! Mistakes that can be put back, to see that the chaos with commands finds them.
//!
//! They exist only in a build with `--cfg quorlock_mutants`, where the environment variable
//! `QUORLOCK_MUTANT` names the one that keeper and guardian make. In any other build
//! [`is_active`] is the constant `false`.

/// A mistake that was made once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    /// No deadline moves to an earlier time: a validity that shrinks is not told, the wall clock says
    /// nothing, and after a loss SIGKILL comes when it was due anyway. A loss releases at once.
    DeadlinesOnlyGrow,
    /// Every loss is taken for the end of the validity, of which the guardian knows: it is told of none.
    /// A loss releases at once.
    TerminateUnlessExpired,
    /// Instead of a dead or stopped guardian the keeper ends the command's own group, no more.
    TakeOverOfTheGroupOnly,
    /// In the place of a guardian that is silent the keeper kills the processes that it sees, one by one, and
    /// not again.
    OneKillInItsPlace,
    /// The command's own end counts as the end of all of it.
    ReleaseBeforeGone,
}

#[cfg(not(quorlock_mutants))]
/// Whether a mistake is made.
pub(crate) const fn is_active(_: Mutant) -> bool {
    false
}

/// Whether a mistake is made. A name that is unknown here is one of the library's.
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
