//! Mutants: deliberate bugs that can be switched on at run time, to show that tests and the simulator catch them.
//!
//! This module exists only with `--cfg quorlock_mutants`, which `cargo xtask mutants` sets for a separate target
//! directory. In any other build `mutant!(…)` is the constant `false`. It is not a cargo feature, because cargo unifies
//! features across all packages of a build, so mutants could get into a product.

use core::sync::atomic::{AtomicU8, Ordering};

/// A deliberate bug in the engine, or in the store's version of a server's scripts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each has its words in `ALL` or `SCRIPTS`")]
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
    UptimeOffByTwo,
    OldEpochCounts,
    NoVerificationOnReconnect,
    FlushKeepsTrust,
    QuarantinedCounts,
    DuplicatesCount,
    HealCountsInQuarantine,
    AdoptionOutlivesPromotion,
    NoWriteBack,
    FenceRecordedAbove,
    HandOverRecordedAbove,
    LateVoteKeepsRecord,
    MaxHoldIgnored,
    TokenLimitIgnored,
    HandOversUnlimited,
    HandOverWithinMargin,
    HealNotReached,
    FloorFromOwnClock,
    AdoptionAgeBelieved,
    AdoptionBegunAnewBelieved,
    BegunBeforeAllElse,
    AnswersMixed,
    AnswersOutOfOrder,
    BrokenIsUnsent,
    AskedAgainLate,
    TimedByAnswer,
    CachedNow,
    GuardValidAgain,
    EndUntold,
    ReleaseBeforeInvalid,
    UptimeBelieved,
    UptimeUnsigned,
    AttachNotGivenBack,
    ValueReleaseOwed,
    DetachListsNone,
    TextTrusted,
    DuplicateReturns,
    DurableUnasked,
    DurableWaivesAdoption,
    SilentKept,
    MarkerUnasked,
    MarkerChangeUnseen,
    ChangedMarkerTrusted,
    AgainMisplaced,
    DeadlineOutOfRow,
    DowngradeBeforeMode,
    DowngradeProlongs,
    OldAnswersDrop,
    WritersSayNothing,
    FailureUntold,
    RecoveryUntold,
    IntentLeavesFreeKeys,
    OneForeignKeyEndsIntent,
    ReleaseWithoutCompare,
    RaiseWithoutCompare,
    AnyAdoption,
    ReaderLeavesEnd,
    SetsWhatIsFree,
    AnySetReads,
    AnyReaderExtends,
    RaisesEach,
    IntentStopsHeal,
    ReadersIgnored,
    WriterStays,
}

/// Every mutant of the engine: its description, the mutant, and the invariant of the simulator that must catch it.
pub const ALL: &[(&str, Mutant, &str)] = &[
    ("no clock check after the quorum", Mutant::NoClockCheck, "clock check"),
    ("validity from the reply time", Mutant::ValidityFromReply, "validity"),
    ("quorum less one", Mutant::QuorumLessOne, "validity"),
    ("token reused across attempts", Mutant::TokenReused, "token ownership"),
    ("extension shortens", Mutant::ExtensionShortens, "token ownership"),
    ("extension counts unknown replies", Mutant::ExtensionCountsUnknown, "extension"),
    ("failed extension releases", Mutant::FailedExtensionReleases, "invalid first"),
    ("loss not latched", Mutant::LossNotLatched, "latched"),
    ("absent answer keeps its vote", Mutant::AbsentKeepsVote, "extension"),
    ("no release to timed-out nodes", Mutant::NoReleaseToTimedOut, "released everywhere"),
    ("waiters trust the push alone", Mutant::WaitersTrustPush, "deadlock free"),
    ("wake at the first push", Mutant::WakeAtFirstPush, "waking"),
    ("late grant counted behind a queued release", Mutant::LateGrantBehindRelease, "votes"),
    ("drift 0", Mutant::NoDrift, "validity"),
    ("elapsed by the boot clock alone", Mutant::BootClockAlone, "validity"),
    ("quarantined vote counted", Mutant::QuarantinedCounts, "quarantine"),
    ("uptime off by 2 s", Mutant::UptimeOffByTwo, "quarantine"),
    ("verification skipped on reconnect", Mutant::NoVerificationOnReconnect, "quarantine"),
    ("a flush push voids nothing", Mutant::FlushKeepsTrust, "quarantine"),
    ("same server twice", Mutant::DuplicatesCount, "quarantine"),
    ("heal counted in quarantine", Mutant::HealCountsInQuarantine, "quarantine"),
    ("adoption outlives a promotion", Mutant::AdoptionOutlivesPromotion, "quarantine"),
    ("no write-back", Mutant::NoWriteBack, "fencing"),
    ("fence recorded on F >= t", Mutant::FenceRecordedAbove, "fencing"),
    ("hand-over raise counted on F >= t'", Mutant::HandOverRecordedAbove, "fencing"),
    ("late vote does not restart the raise", Mutant::LateVoteKeepsRecord, "fencing"),
    ("max_hold ignored", Mutant::MaxHoldIgnored, "hold limit"),
    ("max_hold for each guard alone", Mutant::TokenLimitIgnored, "hold limit"),
    ("hand-overs without limit", Mutant::HandOversUnlimited, "hold limit"),
    ("hand-over within the margin", Mutant::HandOverWithinMargin, "clock check"),
    ("a healed node not noted as reached", Mutant::HealNotReached, "owed"),
    ("floor from the own clock alone", Mutant::FloorFromOwnClock, "fencing"),
    ("an adoption's age believed", Mutant::AdoptionAgeBelieved, "waits"),
    ("an attempt begun before all is done", Mutant::BegunBeforeAllElse, "released everywhere"),
    ("a vote counted from its answer", Mutant::TimedByAnswer, "validity"),
    ("answers told to other commands", Mutant::AnswersMixed, "votes"),
    ("answers told out of order", Mutant::AnswersOutOfOrder, "in order"),
    ("a broken connection had sent nothing", Mutant::BrokenIsUnsent, "released everywhere"),
    ("a script asked again behind its release", Mutant::AskedAgainLate, "in order"),
    ("a clock read before the events are taken", Mutant::CachedNow, "clock check"),
    ("release sent before marking invalid", Mutant::ReleaseBeforeInvalid, "invalid first"),
    ("a guard valid again after its loss", Mutant::GuardValidAgain, "latched"),
    ("an end that was seen is not told", Mutant::EndUntold, "latched"),
    ("a new adoption's age believed", Mutant::AdoptionBegunAnewBelieved, "waits"),
    ("an uptime believed", Mutant::UptimeBelieved, "waits"),
    ("uptime unsigned", Mutant::UptimeUnsigned, "waits"),
    ("a duplicate's return unseen", Mutant::DuplicateReturns, "quarantine"),
    ("declared durable, whatever it says", Mutant::DurableUnasked, "waits"),
    ("durable waives the adoption", Mutant::DurableWaivesAdoption, "quarantine"),
    ("a silent connection is never replaced", Mutant::SilentKept, "deadlock free"),
    ("votes without a look at the marker", Mutant::MarkerUnasked, "deadlock free"),
    ("a marker that changed is taken for the last one", Mutant::MarkerChangeUnseen, "quarantine"),
    ("another marker keeps a node trusted", Mutant::ChangedMarkerTrusted, "quarantine"),
    ("what was asked again told to others", Mutant::AgainMisplaced, "votes"),
    ("a deadline behind a later one", Mutant::DeadlineOutOfRow, "owed"),
    ("mode turned after the downgrade", Mutant::DowngradeBeforeMode, "mode first"),
    ("a downgrade prolongs its vote", Mutant::DowngradeProlongs, "validity"),
    ("what a writer was answered drops a reader's vote", Mutant::OldAnswersDrop, "extension"),
    ("a writer that waits says nothing", Mutant::WritersSayNothing, "no starvation"),
    ("an extension without a quorum is not told", Mutant::FailureUntold, "announced"),
    ("that a quorum confirms again is not told", Mutant::RecoveryUntold, "announced"),
    ("an intent leaves keys that are free", Mutant::IntentLeavesFreeKeys, "no starvation"),
    ("one foreign key ends an intent", Mutant::OneForeignKeyEndsIntent, "no starvation"),
];

/// Every mutant of a server's scripts: its description, the mutant, and the invariant of the simulator that must catch
/// it.
pub const SCRIPTS: &[(&str, Mutant, &str)] = &[
    ("release without compare", Mutant::ReleaseWithoutCompare, "token ownership"),
    ("fence raised without token check", Mutant::RaiseWithoutCompare, "fencing"),
    ("catch-up before quarantine", Mutant::AnyAdoption, "quarantine"),
    ("a reader's release leaves the key's end", Mutant::ReaderLeavesEnd, "token ownership"),
    ("several keys: what is free is set", Mutant::SetsWhatIsFree, "token ownership"),
    ("any sorted set taken for one of readers", Mutant::AnySetReads, "token ownership"),
    ("a reader counts without its own member", Mutant::AnyReaderExtends, "stored"),
    ("each counter raised by itself", Mutant::RaisesEach, "fencing"),
    ("an intent obeyed by a heal", Mutant::IntentStopsHeal, "intents"),
    ("a writer let in among readers", Mutant::ReadersIgnored, "token ownership"),
    ("a reader's release leaves a writer's value", Mutant::WriterStays, "stored"),
];

static ACTIVE: AtomicU8 = AtomicU8::new(u8::MAX);

/// Switches on the mutant with this description in the whole process. Returns whether there is such a mutant.
pub fn switch_on(name: &str) -> bool {
    let found = ALL.iter().chain(SCRIPTS).find(|(known, ..)| *known == name);
    if let Some((_, mutant, _)) = found {
        ACTIVE.store(*mutant as u8, Ordering::Relaxed);
    }
    found.is_some()
}

/// Whether this mutant is switched on.
pub fn is_active(mutant: Mutant) -> bool {
    ACTIVE.load(Ordering::Relaxed) == mutant as u8
}
