//! What is counted of what callers say.

use std::collections::BTreeMap;

/// How many calls ended in which way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) granted: u64,
    /// Of these: locks of several keys, and those of them with a fence for all,
    pub(crate) several: u64,
    pub(crate) several_fenced: u64,
    /// those of readers,
    pub(crate) readers: u64,
    /// those of writers that wanted to be readers later, and were by the word of a quorum.
    pub(crate) downgraded: u64,
    pub(crate) downgrades_confirmed: u64,
    pub(crate) contended: u64,
    pub(crate) no_quorum: u64,
    pub(crate) not_safe: u64,
    pub(crate) too_slow: u64,
    pub(crate) cancelled: u64,
    /// Locks that were lost, by cause.
    pub(crate) lost: BTreeMap<String, u64>,
    /// Holders that were stopped or killed.
    pub(crate) stopped_holding: u64,
    pub(crate) killed_holding: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        let Self {
            granted,
            several,
            several_fenced,
            readers,
            downgraded,
            downgrades_confirmed,
            contended,
            no_quorum,
            not_safe,
            too_slow,
            cancelled,
            lost,
            stopped_holding,
            killed_holding,
        } = other;
        self.granted += granted;
        self.several += several;
        self.several_fenced += several_fenced;
        self.readers += readers;
        self.downgraded += downgraded;
        self.downgrades_confirmed += downgrades_confirmed;
        self.contended += contended;
        self.no_quorum += no_quorum;
        self.not_safe += not_safe;
        self.too_slow += too_slow;
        self.cancelled += cancelled;
        self.stopped_holding += stopped_holding;
        self.killed_holding += killed_holding;
        for (cause, count) in lost {
            *self.lost.entry(cause.clone()).or_default() += count;
        }
    }
}
