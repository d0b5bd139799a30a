//! Rare events. A model lists those that must occur while it is explored: it has not tested an event that never occurs.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! rare {
    ($($name:ident $text:literal,)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Rare { $($name,)* }

        const TEXTS: &[&str] = &[$($text,)*];
    };
}

rare! {
    Grant "a lock is granted",
    InTurn "both clients have held it in turn",
    Retry "a grant after a retry",
    TooSlow "a quorum that came too late",
    Contended "an attempt lost to another",
    LateGrant "a vote that came after the decision",
    KeyExpired "a key expires",
    FastClock "a key expires early, by a fast clock",
    Pause "a client stands still",
    SlowClock "a client's clock falls behind",
    OneClock "a client's clocks go apart",
    LostExpired "a lock is lost: expired",
    LostVotesGone "a lock is lost: votes gone",
    Extended "an extension is confirmed",
    Unconfirmed "an extension is not confirmed",
    ProofOfLoss "a node says that a vote is gone",
    Heal "a vote is healed",
    Flush "a key vanishes",
    Break "a connection breaks",
    BreakUnanswered "a connection breaks before an answer",
    ZombieSet "a key is set after its connection broke",
    Watched "a node promises to tell of a change",
    Raise "a counter is raised",
    Vanished "a key vanishes, wherever it likes",
    Restarted "a node is started again without its data",
    RestartedHeld "a node that voted for a lock which is held is started again",
    Voided "a vote does not count, for its node is in its quarantine",
    Adopted "a node is marked after its quarantine",
    Reordered "a command overtakes one on a dead connection",
    Together "two read at a time",
    Downgrade "a writer becomes a reader",
    FirstAttaches "the first of two clients attaches the lock",
    SecondAttaches "the second of two clients attaches the lock",
    GivenBack "a failed attach gives a vote back",
    Split "an attach fails, and each of two clients has a vote",
    RivalAcquires "a client acquires the lock after its lease has ended",
    EqualKept "a release leaves the equal value of another client",
    Promoted "the replica is promoted",
    Acknowledged "the replica has acknowledged a vote",
    Unacknowledged "a vote does not count, because the replica has not acknowledged it",
    GrantedByOld "the old master grants a lock after the promotion",
    GrantedByNew "the promoted server grants a lock that counts",
    Replaced "the adoption of another configuration is replaced",
    OthersMarked "another configuration marks the shared server",
    OthersLate "another configuration comes too late to mark the shared server",
    GrantedToOthers "a lock is granted to a client of the other configuration",
    Barred "a call ends, because nodes have another configuration or are in quarantine",
}

impl Rare {
    pub(crate) const fn text(self) -> &'static str {
        TEXTS[self as usize]
    }
}

/// For each rare event, the number of steps in which it occurred.
pub(crate) struct Witnesses([AtomicU64; TEXTS.len()]);

impl Default for Witnesses {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; TEXTS.len()])
    }
}

impl Witnesses {
    pub(crate) fn add(&self, what: Rare) {
        self.0[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, what: Rare) -> u64 {
        self.0[what as usize].load(Ordering::Relaxed)
    }
}
