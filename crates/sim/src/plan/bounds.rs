//! Consequences of a plan: how long its runs may take, and which promises hold in them.

use quorlock_core::RestartGuard;

use super::{CONNECT_TIMEOUT, Fault, Outside, Plan};
use crate::time::{SECOND, Time};

impl Plan {
    /// Whether a waiting call must get its lock when the faults have ended: the ttl of each lock is at least 20 round
    /// trips to a quorum, so nodes answer within the node timeout. Otherwise locks stay exclusive, but need not be
    /// granted.
    pub fn grants(&self) -> bool {
        let shortest =
            self.load.timings.iter().map(|timing| timing.ttl()).min().unwrap_or_default();
        self.wiring.distances.suit(&self.servers, shortest, self.wiring.one_way)
    }

    /// The timeout of a connection that is being made.
    pub(crate) fn connect_timeout(&self) -> Time {
        CONNECT_TIMEOUT + 4 * self.wiring.distances.longest()
    }

    /// The longest time from the end of the faults until a waiting call has its lock. Keys of crashed holders and keys
    /// that late commands set expire, clients reconnect, and then the waiting calls get the lock one after the other.
    pub fn bound(&self) -> Time {
        // A call tries to attach for at most one ttl, and its last attempt prolongs the keys by another ttl.
        let attaching = if self.later.leases.is_any() { 2 * self.load.max_ttl } else { 0 };
        let expiry = self.wiring.zombie_for + 3 * self.load.max_ttl + attaching + self.back_steps();
        let connect = 2 * SECOND
            + self.wiring.silence
            + self.wiring.replace_after
            + 2 * self.connect_timeout();
        // Some tens of round trips to far nodes: for connecting, for trusting the nodes, and for each waiting call.
        let distance = 60 * self.wiring.distances.longest();
        expiry + connect + 3 * SECOND + self.trust() + distance
    }

    /// The longest time until clients with a strict restart guard trust all nodes: one quarantine, a second one if the
    /// node was flushed meanwhile, the time by which the node's clock jumps back, and some identifications.
    fn trust(&self) -> Time {
        match self.guard {
            RestartGuard::Strict => 2 * (self.quarantine() + 4 * SECOND) + self.back_steps(),
            _ => 0,
        }
    }

    /// The time for which a node without its earlier data does not vote.
    pub fn quarantine(&self) -> Time {
        i64::try_from(self.rules().quarantine().as_nanos()).unwrap_or(i64::MAX)
    }

    /// The number of nodes that may lose their counters while tokens stay in order: all, if each floor (a node's lower
    /// bound) is above all tokens given out. Without floors, any two quorums must share a node that kept its counters.
    pub(crate) fn spare_counters(&self) -> usize {
        let (nodes, needed) = (self.servers.quorum.nodes(), self.servers.quorum.needed());
        match self.guard {
            // Clients have different restart guards. Those without a strict one ignore floors.
            RestartGuard::Strict if !self.later.modes.is_empty() => 2 * needed - nodes - 1,
            RestartGuard::Strict if self.clocks.sober => nodes,
            RestartGuard::Strict => needed - 1,
            _ => 2 * needed - nodes - 1,
        }
    }

    /// An estimate of the total time by which a node's clock jumps back during a run. Real totals are rarely larger.
    pub fn back_steps(&self) -> Time {
        let jumps = self.later.jumps.unwrap_or(0);
        if self.has(Fault::NodeSteps) || self.outside == Some(Outside::Clocks) {
            4 * self.load.max_ttl + jumps
        } else {
            jumps
        }
    }
}
