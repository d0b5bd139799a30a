//! What happened in the runs. An event that never happens is a fault that is not really injected.

use std::fmt;

macro_rules! counts {
    ($($name:ident $text:literal,)*) => {
        /// Something that is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "each has its words beside it")]
        pub enum Count { $($name,)* }

        impl Count {
            /// All of them.
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
    PartialExtensions "… of which some node confirmed",
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
    Woken "waits ended by pushes",
    AfterPush "attempts after a push",
    Hasty "… before other nodes could have told as well",
    Timeouts "node timeouts",
    Probes "connections probed without traffic",
    Suspensions "nodes suspended for being silent",
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
    FencedGrants "locks granted with a fence",
    Raises "counters raised",
    FencedHandOvers "fenced locks handed over within a process",
    SupersededHeals "heals refused because there was a larger fence",
    Superseded "holders told of a larger fence",
    FencedOff "writes refused by the resource: a later holder had written",
    FencesLost "fences out of order, because counters were lost",
    JumpsBack "clocks of nodes set back while they were waited for",
    JumpsAhead "… ahead, which is outside",
    ClientJumps "clocks of clients set while nodes were waited for",
    StillBeforeAnswers "clients paused between asking and hearing, until hardly anything was left",
    StepsToTheMargin "clocks of clients set so that a lock came to its margin",
    ClocksBehind "runs in which nodes' clocks are hours behind",
    FewClocks "floors that rest on few clocks",
    Merges "names that came to lead to another node's server, which was away",
    DurableRestarts "nodes declared durable that were started again",
    ScriptFlushes "nodes that forgot their scripts",
    AskedAgain "commands asked again, with their scripts",
    AskedTooLate "… for which it was too late",
    SeveralGrants "locks of several keys granted",
    SeveralHandOvers "… handed over within a process",
    SeveralHeals "… whose votes were healed",
    SharedGrants "locks granted to readers",
    SharedTogether "… while others read",
    SharedHeals "… whose votes were healed",
    Downgrades "writers that became readers",
    DowngradesConfirmed "… as nodes were told in time",
    Intents "words of writers that wait, left on nodes",
    HeldBack "readers refused for such a word alone",
    ForeignSets "keys occupied by a sorted set that is none of readers",
    Deaf "runs in which no such word reaches a node",
    ReadersStay "runs in which readers come and go to the end",
    Leftovers "foreign keys that stay to the end on a minority of nodes",
    MixedModes "runs with clients of which not all look at nodes",
    Guarded "runs with the restart guard",
    MinorityDown "runs with a minority of nodes out of order to the end",
    Outside "runs outside of the assumptions of mutual exclusion",
    Overlaps "… in which two held one lock at a time",
    AmnesiaOverlaps "… because a node had started at once without its data",
    LossOverlaps "… because votes vanished otherwise",
    ClockOverlaps "… because clocks were worse than assumed",
}

/// How often everything happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counts(Vec<u64>);

impl Default for Counts {
    fn default() -> Self {
        Self(vec![0; Count::ALL.len()])
    }
}

impl Counts {
    /// How often something happened.
    pub fn of(&self, what: Count) -> u64 {
        self.0[what as usize]
    }

    pub(crate) fn add(&mut self, what: Count) {
        self.0[what as usize] += 1;
    }

    /// Adds up two runs.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| *sum += more);
    }

    /// What never happened.
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
