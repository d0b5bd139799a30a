//! Counts of events in the runs. If an event's count stays zero, the event never happened, so the runs did not test it.

use std::fmt;

macro_rules! counts {
    ($($name:ident $text:literal,)*) => {
        /// An event that is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "the text beside each variant describes it")]
        pub enum Count { $($name,)* }

        impl Count {
            /// All events with their texts.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$name, $text),)*];
        }
    };
}

counts! {
    Grants "locks granted",
    GrantsAfterRetry "… after more than one attempt",
    HandOvers "… handed over within a process",
    GrantsByAll "… with the votes of all nodes",
    Contended "calls refused: contended",
    NoQuorum "calls refused: no quorum",
    TooSlow "calls refused: too slow",
    BusyHere "calls refused: busy in this process",
    Cancelled "calls cancelled",
    CancelledInVain "… while the grant was on its way",
    Expired "locks lost: expired",
    VotesGone "locks lost: votes gone",
    HoldLimit "locks lost: hold limit",
    Shutdown "locks lost: shutdown",
    SplitVotes "attempts that failed with votes in hand",
    LateGrants "grants that came after the decision, and raised the votes",
    VoidGrants "grants that came behind a queued release, and were void",
    Extensions "extensions confirmed",
    Unconfirmed "extensions not confirmed",
    PartialExtensions "… confirmed by some nodes",
    Heals "votes healed",
    ProofsOfLoss "proofs that a vote is gone",
    Released "releases: released",
    ReleasedLate "releases: expired",
    TakenByOther "releases: taken by another",
    Unknown "releases: unknown",
    Owed "releases sent again because they were owed",
    Zombies "commands carried out after their connection had died",
    ZombieVotes "… that set a key",
    Duplicates "commands carried out twice",
    DuplicateVotes "… that set a key",
    WaitEnded "waits ended by pushes",
    AfterPush "attempts after a push",
    Hasty "… before pushes of other nodes could arrive",
    Timeouts "node timeouts",
    Probes "connections probed without traffic",
    Suspensions "nodes suspended because they were silent",
    Replacements "connections replaced",
    Reconnections "connections made again",
    ConnectionsBroken "connections broken",
    ConnectionsRefused "connections that could not be made",
    Partitions "partitions",
    ClientCrashes "clients killed",
    HolderCrashes "… that held a lock",
    Pauses "clients paused",
    HolderPauses "… across the end of a lock",
    Stalls "clients paused within a turn, after the clock was read",
    Suspends "client machines suspended",
    BootStops "… and their boot clock with them",
    WallSteps "client wall clocks set",
    NodeCrashes "nodes killed that kept their data",
    NodeLosses "nodes killed that lost it, and stayed down for the longest ttl",
    NodeAmnesia "nodes killed that lost it, and started at once",
    Flushes "nodes flushed",
    Deletions "keys deleted by hand",
    NodeSteps "node clocks set",
    NodeFreezes "nodes frozen",
    NodeRefusals "nodes that refused",
    Occupied "keys occupied by something foreign",
    Restarts "nodes killed, and started at once with all their data",
    TailsLost "… without their last writes",
    Snapshots "… with an old snapshot",
    Promotions "lagging replicas that took their master's place",
    Replicas "nodes made replicas, and masters again, on the same connections",
    Evicting "nodes set to evict keys",
    NodesUntrusted "calls refused: unsafe",
    EarlyVotes "votes of nodes in their quarantine, which must not count",
    UnverifiedVotes "votes without the marker behind them, which must not count",
    Adoptions "nodes adopted",
    Rewritten "markers rewritten after a restart",
    FencedGrants "locks granted with a fencing token",
    Raises "counters raised",
    FencedHandOvers "fenced locks handed over within a process",
    SupersededHeals "heals refused because there was a larger fencing token",
    Superseded "holders notified of a larger fencing token",
    FencedOff "writes refused by the resource: a later holder had written",
    FencesLost "fencing tokens out of order, because counters were lost",
    JumpsBack "clocks of nodes set back during a quarantine",
    JumpsAhead "… ahead, which is outside",
    ClientJumps "clocks of clients set during a quarantine",
    StillBeforeAnswers "clients paused between request and reply, until little validity was left",
    StepsToTheMargin "clocks of clients set so that a lock came to its margin",
    ClocksBehind "runs in which nodes' clocks are hours behind",
    FewClocks "floors that rest on few clocks",
    Merges "names that came to lead to another node's server, which was away",
    Failovers "promotions of a replica while its master may still run",
    Unacknowledged "batches that the node's replica did not acknowledge in time",
    DurableRestarts "nodes declared durable that were started again",
    ScriptFlushes "nodes that forgot their scripts",
    AskedAgain "commands sent again, with their scripts",
    AskedTooLate "… not sent again, because it was too late",
    SeveralGrants "locks of several keys granted",
    SeveralHandOvers "… handed over within a process",
    SeveralHeals "… whose votes were healed",
    SharedGrants "locks granted to readers",
    SharedTogether "… while others read",
    SharedHeals "… whose votes were healed",
    Downgrades "writers that became readers",
    DowngradesConfirmed "… and confirmed by the nodes",
    Intents "intents of waiting writers left on nodes",
    HeldBack "readers refused for an intent alone",
    ForeignSets "keys occupied by a sorted set that readers did not make",
    Deaf "runs in which no intent reaches a node",
    ReadersStay "runs in which readers come and go to the end",
    DetachedLocks "locks detached",
    DetachedUnanswered "… with nodes that had not answered",
    Attaches "attempts of callers to attach a lock",
    Attached "… with success",
    AttachGone "… refused, because the lock was over",
    AttachContended "… refused, because another client had it",
    GivenBack "votes given back after a failed attach",
    LeasesExtended "extensions of locks without a guard",
    LeasesNotExtended "… not confirmed",
    TakenGrants "locks granted with the caller's value",
    EqualRefused "takes refused by an equal value",
    StaleNonces "commands refused for another nonce",
    ByValue "extensions and releases by the value alone",
    Visitors "clients that did one thing and ended",
    Strays "nodes that clients of another configuration began to adopt",
    StraysMarked "… and marked",
    StraysReplaced "adoptions of another configuration that clients asked to replace",
    RollBacks "quorums of nodes that came back with old data, in which a detached lock was held",
    Leftovers "foreign keys that stay to the end on a minority of nodes",
    MixedModes "runs in which not all clients use the restart guard",
    Guarded "runs with the restart guard",
    MinorityDown "runs with a minority of nodes out of order to the end",
    Outside "runs outside of the assumptions of mutual exclusion",
    Overlaps "… in which two held one lock at a time",
    AmnesiaOverlaps "… because a node had started at once without its data",
    LossOverlaps "… because votes vanished otherwise",
    ClockOverlaps "… because clocks were worse than assumed",
}

/// The number of times that each event happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counts(Vec<u64>);

impl Default for Counts {
    fn default() -> Self {
        Self(vec![0; Count::ALL.len()])
    }
}

impl Counts {
    /// Returns the count of an event.
    pub fn of(&self, what: Count) -> u64 {
        self.0[what as usize]
    }

    pub(crate) fn add(&mut self, what: Count) {
        self.0[what as usize] += 1;
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| *sum += more);
    }

    /// Returns the texts of events that never happened.
    pub fn never(&self) -> impl Iterator<Item = &'static str> {
        Count::ALL.iter().filter(|(what, _)| self.of(*what) == 0).map(|(_, text)| *text)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, text) in Count::ALL {
            writeln!(f, "{:>12}  {text}", self.of(*what))?;
        }
        Ok(())
    }
}
