//! Votes: small leases of their own, and the validity that a quorum of them makes.

use alloc::vec::Vec;
use core::time::Duration;

use crate::quorum::{NODE_COUNT_MAX, NodeId, Quorum};
use crate::time::Reading;

/// One node's vote: it counts from the moment *before* it was asked for, for its term.
///
/// Its end, E = t_send + T − (ε·T + δ), is invariant S2. The reading pair is kept instead of the
/// end, so that each vote's elapsed time is the larger of both clocks' (section 8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Vote {
    sent: Reading,
    term_ns: u64,
}

impl Vote {
    /// A vote asked for at `sent` (read before the first byte could leave, S4) for `term`.
    pub const fn new(sent: Reading, term: Duration) -> Self {
        let nanos = term.as_nanos();
        let term_ns = if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 };
        Self { sent, term_ns }
    }

    /// How long the vote still counts.
    pub fn remaining(&self, now: Reading) -> Duration {
        Duration::from_nanos(self.nanos_left(now))
    }

    /// The same in nanoseconds.
    fn nanos_left(&self, now: Reading) -> u64 {
        self.term_ns.saturating_sub(now.nanos_since(self.sent))
    }

    pub(crate) fn shifted(self, base: Reading) -> Self {
        Self { sent: self.sent.shifted(base), ..self }
    }
}

/// The votes of one held lock and how long they make it valid.
///
/// The lock is valid until the **Q-th largest** end of its votes; it is given up `margin` earlier.
/// Read, never remembered: every question takes the time it is asked at.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Validity {
    votes: Vec<Option<Vote>>,
    quorum: Quorum,
    margin: Duration,
}

impl Validity {
    /// The validity of these votes, one place per node.
    ///
    /// # Panics
    /// If there is not one place per node.
    pub fn new(votes: Vec<Option<Vote>>, quorum: Quorum, margin: Duration) -> Self {
        assert_eq!(votes.len(), quorum.nodes(), "one place per node");
        Self { votes, quorum, margin }
    }

    /// How long the lock is valid under the protocol's assumptions: the Q-th largest remaining.
    pub fn valid_for(&self, now: Reading) -> Duration {
        // Asked several times in the life of every lock, so it neither sorts nor divides: the
        // largest so far, in falling order, through which each vote sinks to its place.
        let mut largest = [0; NODE_COUNT_MAX];
        let less = usize::from(mutant!(QuorumLessOne) && self.quorum.needed() > 1);
        let largest = &mut largest[..self.quorum.needed() - less];
        for vote in self.votes.iter().flatten() {
            let mut left = vote.nanos_left(now);
            for place in &mut *largest {
                (*place, left) = (left.max(*place), left.min(*place));
            }
        }
        Duration::from_nanos(largest[largest.len() - 1])
    }

    /// How long the holder may rely on the lock: until `margin` before the end of its validity.
    pub fn remaining(&self, now: Reading) -> Duration {
        self.valid_for(now).saturating_sub(self.margin)
    }

    /// How many votes still count.
    pub fn votes(&self, now: Reading) -> usize {
        self.votes.iter().flatten().filter(|vote| vote.nanos_left(now) > 0).count()
    }

    /// This node's vote is held, or was until it ran out.
    pub fn has_vote_of(&self, node: NodeId) -> bool {
        self.votes[node.index()].is_some()
    }

    /// Puts in a vote if it counts for longer than the one that is there (S11).
    pub(crate) fn raise(&mut self, node: NodeId, vote: Vote, now: Reading) {
        let slot = &mut self.votes[node.index()];
        if slot.is_none_or(|old| old.nanos_left(now) < vote.nanos_left(now)) {
            *slot = Some(vote);
        }
    }

    /// Takes out a vote that is proved to be gone (S11).
    pub(crate) fn drop_vote(&mut self, node: NodeId) {
        self.votes[node.index()] = None;
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        for vote in self.votes.iter_mut().flatten() {
            *vote = vote.shifted(base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const MS: i64 = 1_000_000;

    fn at(ms: i64) -> Reading {
        Reading::new(ms * MS, ms * MS)
    }

    fn validity(sent_ms: &[Option<i64>]) -> Validity {
        let term = Duration::from_millis(1000);
        let votes = sent_ms.iter().map(|sent| sent.map(|ms| Vote::new(at(ms), term))).collect();
        let quorum = Quorum::majority(sent_ms.len()).unwrap();
        Validity::new(votes, quorum, Duration::from_millis(20))
    }

    #[test]
    fn a_lock_is_valid_until_the_quorum_th_largest_end_of_its_votes() {
        let validity = validity(&[Some(0), Some(10), Some(20), None, Some(30)]);
        assert_eq!(validity.valid_for(at(30)), Duration::from_millis(980));
        assert_eq!(validity.remaining(at(30)), Duration::from_millis(960));
        assert_eq!(validity.votes(at(30)), 4);
        assert_eq!(validity.votes(at(1005)), 3);
        assert_eq!(validity.valid_for(at(2000)), Duration::ZERO);
    }

    #[test]
    fn fewer_votes_than_the_quorum_are_no_validity_at_all() {
        assert_eq!(
            validity(&[Some(0), Some(0), None, None, None]).valid_for(at(0)),
            Duration::ZERO
        );
    }

    #[test]
    fn an_end_grows_or_is_dropped_and_nothing_else() {
        let mut validity = validity(&[Some(100)]);
        validity.raise(NodeId::new(0), Vote::new(at(50), Duration::from_millis(1000)), at(200));
        assert_eq!(validity.valid_for(at(200)), Duration::from_millis(900));
        validity.raise(NodeId::new(0), Vote::new(at(150), Duration::from_millis(1000)), at(200));
        assert_eq!(validity.valid_for(at(200)), Duration::from_millis(950));
        validity.drop_vote(NodeId::new(0));
        assert_eq!(validity.valid_for(at(200)), Duration::ZERO);
    }

    #[test]
    fn a_wall_clock_that_jumps_ahead_ends_only_the_votes_sent_before() {
        let term = Duration::from_millis(1000);
        let before = Vote::new(Reading::new(0, 0), term);
        let after = Vote::new(Reading::new(10 * MS, 5000 * MS), term);
        let validity = Validity::new(
            vec![Some(before), Some(after)],
            Quorum::new(2, 2).unwrap(),
            Duration::ZERO,
        );
        let now = Reading::new(20 * MS, 5010 * MS);
        assert_eq!(validity.votes(now), 1);
        assert_eq!(validity.valid_for(now), Duration::ZERO);
    }
}
