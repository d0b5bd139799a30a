//! Distances between clients and nodes. A separate random stream draws them.

use std::time::Duration;

use quorlock_core::shortest_ttl;

use super::Servers;
use crate::network::Direction;
use crate::random::Random;
use crate::time::{MS, Time, duration};

/// The longest round trip to a node.
const FARTHEST: Time = 400 * MS;

/// For each node, the delay in each direction in addition to the usual one. Empty: all nodes are near.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Distances(Vec<[Time; 2]>);

impl Distances {
    /// Draws the distances of a plan: most plans have none. Returns the ttl as well, which is then longer than in other
    /// plans. In most plans with distances it is long enough for [`Distances::suit`].
    pub(super) fn draw(seed: u64, nodes: usize, ttl: Time) -> (Self, Time) {
        let random = &mut Random::new(seed, 45);
        if !random.percent(30) || super::later::is_named(seed) {
            return (Self::default(), ttl);
        }
        let ttl = random.pick(&[1, 2, 4, 8]) * 1000 * MS + ttl % (1000 * MS);
        let farthest = if random.percent(85) { (ttl / 22).min(FARTHEST) } else { FARTHEST };
        let distance = |_| {
            let round_trip = random.between(0, farthest);
            // The way there takes between none and all of the round trip.
            let there = random.between(0, round_trip);
            [there, round_trip - there]
        };
        (Self((0..nodes).map(distance).collect()), ttl)
    }

    /// Whether some nodes are far.
    pub const fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// The longest round trip to a node, without the usual delay and without jitter.
    pub fn longest(&self) -> Time {
        self.0.iter().map(|[there, back]| there + back).max().unwrap_or(0)
    }

    /// Whether a quorum of the nodes that are not `down` answers within the node timeout: the ttl is at least 20 round
    /// trips. With a shorter ttl a lock stays exclusive, but need not be granted.
    pub fn suit(&self, servers: &Servers, ttl: Duration, one_way: Time) -> bool {
        let (quorum, down) = (servers.quorum, &servers.down_to_the_end);
        let up = self.0.iter().enumerate().filter(|(node, _)| !down.contains(node));
        let mut round_trips: Vec<Time> = up.map(|(_, [there, back])| there + back).collect();
        round_trips.sort_unstable();
        let of_quorum = round_trips.get(quorum.needed() - 1).copied().unwrap_or(0);
        self.0.is_empty() || ttl >= shortest_ttl(duration(of_quorum + 2 * one_way))
    }

    pub(crate) fn of(&self, node: usize, way: Direction) -> Time {
        self.0.get(node).map_or(0, |distance| distance[way as usize])
    }
}
