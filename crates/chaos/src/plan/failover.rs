//! Rounds in which each node is a master with a replica, and in which masters fail.

use quorlock_sim::Random;
use quorlock_sim::time::{MS, Time};

use super::{AT_ONCE, Draw, FAULTS, PROCESSES, RoundPlan, Some as _};
use crate::act::{Act, Failover, Kind};

/// The ways in which a master fails. A round with replicas uses the one with the index seed modulo 3.
pub(crate) const FAILOVERS: [Kind; 3] = [Kind::MasterStops, Kind::MasterCutOff, Kind::MasterKilled];

/// Kinds of faults that a round may inject in addition to failovers.
const OTHERS: [Kind; 9] = [
    Kind::Delay,
    Kind::Hold,
    Kind::HoldOldConnections,
    Kind::Drop,
    Kind::HalfClose,
    Kind::Reset,
    Kind::Split,
    Kind::StopClient,
    Kind::KillClient,
];

impl RoundPlan {
    /// The number of replicas of each node.
    pub(crate) fn replicas(&self) -> u32 {
        u32::from(FAILOVERS.iter().any(|kind| self.has(*kind)))
    }

    /// Draws a round in which each node has a replica. Most of these rounds have one node.
    pub(crate) fn replicated(seed: u64) -> Self {
        let mut random = Random::new(seed, 3);
        let mut kinds = vec![FAILOVERS[usize::try_from(seed % 3).unwrap_or(0)]];
        kinds.extend(OTHERS.into_iter().filter(|_| random.percent(15)));
        let nodes = if random.percent(70) { 1 } else { 3 };
        let (quorum, max_ttl) = (nodes / 2 + 1, random.pick(&[400 * MS, 700 * MS, 900 * MS]));
        let (exact, guarded, outside) = (random.coin(), true, None);
        let events = Draw::of(random, (nodes, quorum, max_ttl), &kinds).events;
        let faults = FAULTS;
        Self { seed, nodes, quorum, max_ttl, exact, guarded, kinds, events, faults, outside }
    }
}

impl Draw {
    /// Lets a node's master fail and its replica take over. Until just before the faults end, both may answer clients.
    pub(super) fn failover(&mut self, kind: Kind) {
        let node = self.random.index(self.nodes);
        if self.is_out(node, 0, FAULTS) {
            return;
        }
        self.nodes_out.push((node, 0, FAULTS));
        let count = 1 + self.random.index(PROCESSES - 1);
        let stale = self.random.some(PROCESSES, count);
        let (closes, third) = (self.random.coin(), self.random.coin());
        let failover = Failover { kind, node, stale, closes, third };
        let at = self.random.between(FAULTS / 20, FAULTS / 6);
        let end = FAULTS - AT_ONCE;
        self.event(at, Some(kind), Act::Failover(failover.clone()));
        if kind == Kind::MasterStops {
            let span: Time = self.random.between(0, FAULTS * 2 / 3);
            self.event(at + span, None, Act::OldMasterContinues(failover.clone()));
        }
        self.event(end, None, Act::OldMasterLeaves(failover));
    }
}
