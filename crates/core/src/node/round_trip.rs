//! Estimates the duration of a round trip from the nodes' answers.
//!
//! No guarantee depends on the estimate. It decides how long an attempt waits for a node, and how long waiting calls
//! pause between their attempts.

use alloc::vec::Vec;
use core::time::Duration;

use crate::redlock::quorum::{NODE_COUNT_MAX, NodeId, Quorum};
use crate::time::nanos;

/// Lower bound of the estimate. On a faster network the time to wake a task counts more than the round trip itself.
pub(crate) const ROUND_TRIP_MIN: Duration = Duration::from_micros(50);

/// The cap of a later round trip: this, or four times the node's smoothed round trip if that is longer.
const OUTLIER_NS: u64 = 100_000_000;

/// The round trips to the nodes of one client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RoundTrips {
    /// Smoothed round trip to each node, in nanoseconds; zero before the node's first answer.
    nodes: Vec<u64>,
    /// A fixed estimate that replaces the measured round trips; `None` if the measured ones count.
    fixed: Option<Duration>,
    /// The cached round trip to a quorum; `None` if it was not computed since the last answer of a node.
    to_quorum: Option<Duration>,
}

impl RoundTrips {
    pub(crate) fn new(quorum: Quorum) -> Self {
        Self { nodes: alloc::vec![0; quorum.nodes()], fixed: None, to_quorum: None }
    }

    pub(crate) const fn fixed(round_trip: Duration) -> Self {
        Self { nodes: Vec::new(), fixed: Some(round_trip), to_quorum: None }
    }

    /// Begins with the round trip of the greeting on a new connection, which counts in full. The connection may lead to
    /// another server than the one before, so earlier round trips do not count. The connect timeout bounds it.
    pub(crate) fn begin(&mut self, node: NodeId, round_trip: Duration) {
        if let Some(smoothed) = self.nodes.get_mut(node.index()) {
            *smoothed = nanos(round_trip).max(1);
            self.to_quorum = None;
        }
    }

    /// Adds a measured round trip with the weight of one eighth; the first one counts in full. A node that was stopped
    /// for a while answers late. Such an outlier is capped, so that later calls do not wait as long as the node was
    /// stopped.
    pub(crate) fn observe(&mut self, node: NodeId, round_trip: Duration) {
        let Some(smoothed) = self.nodes.get_mut(node.index()) else { return };
        let new = nanos(round_trip).max(1);
        let usual = match *smoothed {
            0 => new,
            old => old - old / 8 + new.min(old.saturating_mul(4).max(OUTLIER_NS)) / 8,
        };
        *smoothed = usual.max(1);
        self.to_quorum = None;
    }

    /// The round trip to a node from which its timeout follows: zero before its first answer.
    pub(crate) fn to(&self, node: NodeId) -> Duration {
        self.fixed.unwrap_or_else(|| self.of(node).unwrap_or_default())
    }

    /// The longest round trip to any node; zero before the first answer.
    pub(crate) fn longest(&self) -> Duration {
        let nanos = self.nodes.iter().copied().max().unwrap_or_default();
        self.fixed.unwrap_or(Duration::from_nanos(nanos))
    }

    /// The smoothed round trip to a node; `None` before its first answer.
    pub(crate) fn of(&self, node: NodeId) -> Option<Duration> {
        let nanos = self.nodes.get(node.index()).copied().filter(|nanos| *nanos > 0);
        nanos.map(Duration::from_nanos)
    }

    /// The round trip to a quorum of Q nodes: the Q-th smallest round trip of all nodes that have ever answered.
    pub(crate) fn latest(&mut self, quorum: Quorum) -> Duration {
        if let Some(known) = self.fixed.or(self.to_quorum) {
            return known;
        }
        *self.to_quorum.insert(self.estimate(quorum))
    }

    /// As [`latest`](Self::latest), but does not cache the result.
    pub(crate) fn estimate(&self, quorum: Quorum) -> Duration {
        if let Some(fixed) = self.fixed {
            return fixed;
        }
        // An insertion sort of the Q smallest round trips.
        let mut smallest = [0; NODE_COUNT_MAX];
        let smallest = &mut smallest[..quorum.needed()];
        for mut nanos in self.nodes.iter().copied().filter(|nanos| *nanos > 0) {
            for place in &mut *smallest {
                if *place == 0 {
                    *place = nanos;
                    break;
                }
                (*place, nanos) = (nanos.min(*place), nanos.max(*place));
            }
        }
        Duration::from_nanos(smallest.iter().copied().max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn node(index: usize) -> NodeId {
        NodeId::new(index)
    }

    #[test]
    fn the_round_trip_to_a_quorum_is_that_of_the_slowest_node_that_it_needs() {
        let quorum = Quorum::majority(5).unwrap();
        let mut it = RoundTrips::new(quorum);
        assert_eq!(it.latest(quorum), Duration::ZERO);
        for (index, millis) in [(0, 9), (1, 1), (2, 5), (3, 7)] {
            it.observe(node(index), millis * MS);
        }
        assert_eq!(it.latest(quorum), 7 * MS);
        assert_eq!((it.of(node(2)), it.of(node(4))), (Some(5 * MS), None));
        it.observe(node(4), 6 * MS);
        assert_eq!(it.latest(quorum), 6 * MS);
    }

    #[test]
    fn an_outlier_counts_no_more_than_four_usual_ones_or_a_tenth_of_a_second() {
        let quorum = Quorum::majority(1).unwrap();
        let mut it = RoundTrips::new(quorum);
        it.observe(node(0), 8 * MS);
        it.observe(node(0), Duration::from_secs(30));
        assert_eq!(it.latest(quorum), 7 * MS + Duration::from_micros(12_500));
        let mut it = RoundTrips::new(quorum);
        it.observe(node(0), 80 * MS);
        it.observe(node(0), Duration::from_secs(30));
        assert_eq!(it.latest(quorum), 110 * MS);
    }
    #[test]
    fn a_connection_begins_with_the_round_trip_of_its_greeting() {
        let quorum = Quorum::majority(1).unwrap();
        let mut it = RoundTrips::new(quorum);
        assert_eq!(it.to(node(0)), Duration::ZERO);
        it.begin(node(0), 400 * MS);
        assert_eq!((it.to(node(0)), it.longest()), (400 * MS, 400 * MS), "in full");
        it.begin(node(0), 8 * MS);
        assert_eq!(it.to(node(0)), 8 * MS, "a new connection may lead elsewhere");
        let first = &mut RoundTrips::new(quorum);
        first.observe(node(0), 400 * MS);
        assert_eq!(first.to(node(0)), 400 * MS);
    }
}
