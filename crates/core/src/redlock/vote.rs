//! Votes, and the validity of a lock that follows from a quorum of them.
//!
//! A vote stores a reading of two clocks from before its request, and not its end on one clock. Each clock can show too
//! little time: the boot clock after a virtual machine was paused, the wall clock after it was set back. So the larger
//! of the two elapsed times counts.

use alloc::boxed::Box;
use core::time::Duration;

use crate::loss::LossCause;
use crate::redlock::quorum::{FEW, NODE_COUNT_MAX, NodeId, NodeSet, Quorum};
use crate::time::{BootTime, Reading, nanos};

/// The votes of one held lock and how long they make it valid.
///
/// A vote counts from a reading *before* its command was sent, and all votes of a lock have the same term: the end of a
/// vote is E = t_send + T − (ε·T + δ) (invariant S2). The record keeps the reading instead of the end, because the
/// larger of the elapsed times on two clocks counts (docs/algorithm.md, Clocks).
///
/// The lock is valid until the **Q-th largest** end of its votes, and the holder gives it up `margin` earlier. The
/// validity is computed for the time of each question and never cached.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Validity {
    held: NodeSet,
    /// For each node, the clock reading before its vote was requested (S4); zero without a vote.
    sent: Sent,
    quorum: Quorum,
    term_ns: u64,
    margin_ns: u64,
}

/// The limit of the automatic extension of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HoldLimit {
    /// The ttl that an extension asks for.
    pub ttl: Duration,
    /// No extension reaches beyond this time.
    pub until: BootTime,
}

impl HoldLimit {
    pub(crate) fn allows_extension(&self, now: Reading) -> bool {
        mutant!(MaxHoldIgnored) || now.after(self.ttl) <= self.until
    }
}

/// For each node, the reading before its vote was requested. The usual number of nodes needs no allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Sent {
    Few([Reading; FEW]),
    Many(Box<[Reading; NODE_COUNT_MAX]>),
}

impl Sent {
    fn new(nodes: usize) -> Self {
        match nodes {
            ..=FEW => Self::Few([Reading::default(); FEW]),
            _ => Self::Many(Box::new([Reading::default(); NODE_COUNT_MAX])),
        }
    }

    fn all(&self) -> &[Reading] {
        match self {
            Self::Few(all) => all,
            Self::Many(all) => &**all,
        }
    }

    fn of(&mut self, node: NodeId) -> &mut Reading {
        match self {
            Self::Few(all) => &mut all[node.index()],
            Self::Many(all) => &mut all[node.index()],
        }
    }
}

impl Validity {
    /// The validity of votes that count for `term`. `votes` has an item per node: the time of sending if the node
    /// granted, read before the first byte could leave (S4).
    ///
    /// # Panics
    /// If `votes` does not have one item per node.
    pub fn new(
        votes: impl IntoIterator<Item = Option<Reading>>,
        quorum: Quorum,
        term: Duration,
        margin: Duration,
    ) -> Self {
        let (mut held, mut sent) = (NodeSet::default(), Sent::new(quorum.nodes()));
        let mut votes = votes.into_iter();
        for node in quorum.node_ids() {
            let vote = votes.next();
            assert!(vote.is_some(), "one place per node");
            if let Some(vote) = vote.flatten() {
                held.insert(node);
                *sent.of(node) = vote;
            }
        }
        assert!(votes.next().is_none(), "one place per node");
        Self { held, sent, quorum, term_ns: nanos(term), margin_ns: nanos(margin) }
    }

    /// The remaining validity under the protocol's assumptions: the Q-th largest remaining time of the votes.
    pub fn valid_for(&self, now: Reading) -> Duration {
        Duration::from_nanos(self.nanos_left(now))
    }

    /// The time for which the holder may rely on the lock, which ends `margin` before the validity.
    pub fn remaining(&self, now: Reading) -> Duration {
        Duration::from_nanos(self.nanos_left(now).saturating_sub(self.margin_ns))
    }

    /// Whether the holder may rely on the lock for longer than `time`. Equivalent to a comparison with
    /// [`Validity::remaining`], but counts the votes instead of sorting them.
    pub fn lasts(&self, time: Duration, now: Reading) -> bool {
        let reserved = self.margin_ns.saturating_add(nanos(time));
        let Some(age_limit) = self.term_ns.checked_sub(reserved) else { return false };
        let mut missing =
            self.quorum.needed() - usize::from(mutant!(QuorumLessOne) && self.quorum.needed() > 1);
        // A plain loop, because this runs with every answer and with every query of a guard.
        for (node, sent) in self.sent.all().iter().enumerate() {
            if self.held.contains(NodeId::new(node)) && now.nanos_since(*sent) < age_limit {
                missing -= 1;
                if missing == 0 {
                    return true;
                }
            }
        }
        false
    }

    /// The cause if time alone ended the validity; `None` while the holder may rely on the lock. `limit` is the limit
    /// of the automatic extension. The guard and the engine both use this function, so they report the same cause.
    pub(crate) fn why_over(&self, limit: Option<HoldLimit>, now: Reading) -> Option<LossCause> {
        if self.lasts(Duration::ZERO, now) {
            return None;
        }
        Some(match limit {
            _ if self.lasts_by_boot_clock(now) => LossCause::ClockJumped,
            Some(limit) if !limit.allows_extension(now) => LossCause::HoldLimit,
            _ => LossCause::Expired,
        })
    }

    /// Whether a quorum of votes would still count by the boot clock alone, with more time left than the two clocks may
    /// differ by. If so, a jump of the wall clock ended the votes.
    fn lasts_by_boot_clock(&self, now: Reading) -> bool {
        let left = self.term_ns - self.term_ns / 100;
        let reserved = self.margin_ns.saturating_add(CLOCKS_DIFFER_NS);
        let outlives = |sent: Reading| {
            let age = u64::try_from(now.boot().as_nanos().saturating_sub(sent.boot().as_nanos()));
            left.saturating_sub(age.unwrap_or(0)) > reserved
        };
        let votes = self.sent_when().filter(|sent| outlives(*sent)).count();
        self.quorum.is_reached(votes)
    }

    /// The number of votes that still count.
    pub fn votes(&self, now: Reading) -> usize {
        self.sent_when().filter(|sent| now.nanos_since(*sent) < self.term_ns).count()
    }

    /// The number of votes that last for as long as the holder may rely on the lock. A node that has not confirmed the last
    /// extension has an earlier vote, which ends sooner.
    pub fn lasting_votes(&self, now: Reading) -> usize {
        let needed = self.nanos_left(now).saturating_sub(self.margin_ns).max(1);
        let left = |sent: &Reading| self.term_ns.saturating_sub(now.nanos_since(*sent));
        self.sent_when().filter(|sent| left(sent) >= needed).count()
    }

    /// Whether this node's vote is held. A vote that has expired is still held.
    pub fn has_vote_of(&self, node: NodeId) -> bool {
        self.held.contains(node)
    }

    /// The time at which this node's vote was requested, also if the vote has expired.
    pub fn asked_when(&self, node: NodeId) -> Option<Reading> {
        self.held.contains(node).then(|| self.sent.all()[node.index()])
    }

    /// The nodes whose vote is held, also if the vote has expired.
    pub(crate) const fn held(&self) -> NodeSet {
        self.held
    }

    /// Sets a node's vote if it lasts longer than the present one (S11).
    pub(crate) fn raise(&mut self, node: NodeId, sent: Reading, now: Reading) {
        let old = self.sent.all()[node.index()];
        let left = |sent: Reading| self.term_ns.saturating_sub(now.nanos_since(sent));
        if !self.held.contains(node) || left(old) < left(sent) {
            self.held.insert(node);
            *self.sent.of(node) = sent;
        }
    }

    /// Removes a vote that an answer proved gone (S11).
    pub(crate) fn drop_vote(&mut self, node: NodeId) {
        self.held.remove(node);
        *self.sent.of(node) = Reading::default();
    }

    /// The remaining time of the Q-th youngest vote. Until that vote expires, Q votes are valid.
    fn nanos_left(&self, now: Reading) -> u64 {
        // An insertion sort of the Q youngest votes, because this runs several times per lock.
        let mut youngest = [u64::MAX; NODE_COUNT_MAX];
        let less = usize::from(mutant!(QuorumLessOne) && self.quorum.needed() > 1);
        let youngest = &mut youngest[..self.quorum.needed() - less];
        for (node, sent) in self.sent.all().iter().enumerate() {
            if self.held.contains(NodeId::new(node)) {
                let mut age = now.nanos_since(*sent);
                for place in &mut *youngest {
                    (*place, age) = (age.min(*place), age.max(*place));
                }
            }
        }
        self.term_ns.saturating_sub(youngest[youngest.len() - 1])
    }

    fn sent_when(&self) -> impl Iterator<Item = Reading> {
        let votes = self.quorum.node_ids().zip(self.sent.all());
        votes.filter(|(node, _)| self.held.contains(*node)).map(|(_, sent)| *sent)
    }

    /// The same votes with times such that `base` becomes zero; see [`Engine::rebased`](crate::Engine::rebased).
    #[must_use]
    pub fn rebased(&self, base: Reading) -> Self {
        let mut rebased = self.clone();
        rebased.shift(base);
        rebased
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        for node in self.held.iter() {
            let sent = self.sent.of(node);
            *sent = sent.shifted(base);
        }
    }
}

/// Allowed difference between the two clocks of a machine, in addition to 1 % of the term.
const CLOCKS_DIFFER_NS: u64 = 2_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;
    const SECOND: Duration = Duration::from_secs(1);

    fn at(ms: i64) -> Reading {
        Reading::new(ms * MS, ms * MS)
    }

    fn validity(sent_ms: &[Option<i64>]) -> Validity {
        let votes = sent_ms.iter().map(|sent| sent.map(at));
        let quorum = Quorum::majority(sent_ms.len()).unwrap();
        Validity::new(votes, quorum, SECOND, Duration::from_millis(20))
    }

    #[test]
    fn a_lock_is_valid_until_the_quorum_th_largest_end_of_its_votes() {
        let validity = validity(&[Some(0), Some(10), Some(20), None, Some(30)]);
        assert_eq!(validity.valid_for(at(30)), Duration::from_millis(980));
        assert_eq!(validity.remaining(at(30)), Duration::from_millis(960));
        assert!(validity.lasts(Duration::from_nanos(959_999_999), at(30)));
        assert!(!validity.lasts(Duration::from_millis(960), at(30)));
        assert_eq!(validity.votes(at(30)), 4);
        assert_eq!(validity.votes(at(1005)), 3);
        assert_eq!(validity.lasting_votes(at(30)), 4, "all within the margin");
    }

    #[test]
    fn a_vote_that_was_not_confirmed_again_does_not_last() {
        let validity = validity(&[Some(0), Some(330), None, Some(335), Some(340)]);
        assert_eq!((validity.votes(at(350)), validity.lasting_votes(at(350))), (4, 3));
        assert_eq!(validity.lasting_votes(at(2000)), 0);
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
        validity.raise(NodeId::new(0), at(50), at(200));
        assert_eq!(validity.valid_for(at(200)), Duration::from_millis(900));
        validity.raise(NodeId::new(0), at(150), at(200));
        assert_eq!(validity.valid_for(at(200)), Duration::from_millis(950));
        validity.drop_vote(NodeId::new(0));
        assert_eq!(validity.valid_for(at(200)), Duration::ZERO);
    }

    #[test]
    fn a_wall_clock_that_jumps_ahead_ends_only_the_votes_sent_before() {
        let before = Reading::new(0, 0);
        let after = Reading::new(10 * MS, 5000 * MS);
        let quorum = Quorum::new(2, 2).unwrap();
        let validity = Validity::new([Some(before), Some(after)], quorum, SECOND, Duration::ZERO);
        let now = Reading::new(20 * MS, 5010 * MS);
        assert_eq!(validity.votes(now), 1);
        assert_eq!(validity.valid_for(now), Duration::ZERO);
        assert!(validity.lasts_by_boot_clock(now));
        let late = Reading::new(1005 * MS, 1007 * MS);
        assert!(!validity.lasts_by_boot_clock(late), "both clocks agree that the time has passed");
    }

    #[test]
    fn without_one_vote_that_was_dropped_validities_are_alike() {
        let mut dropped = validity(&[Some(100), Some(50), None]);
        dropped.drop_vote(NodeId::new(0));
        assert_eq!(dropped, validity(&[None, Some(50), None]));
    }
}
