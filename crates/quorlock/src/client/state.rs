//! The state of a client: its settings, its nodes and what it shares with its guards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorlock_core::{FailureKind, Keys, LockId, NodeOutcome, NodeResult, Quorum, Timing};

use crate::common::Common;
use crate::driver::Metrics;
use crate::error::{Impatient, InvalidRequest};
use crate::node::ClientNode;
use crate::options::{ClientTimes, LockOptions};
use crate::own_keys::RESERVED;

pub(crate) struct ClientState {
    pub(crate) common: Arc<Common>,
    pub(crate) quorum: Quorum,
    pub(crate) prefix: Box<str>,
    pub(crate) options: LockOptions,
    pub(crate) times: ClientTimes,
    /// The checked times of `options`.
    pub(crate) timing: Timing,
    pub(crate) nodes: Vec<ClientNode>,
    /// Number of servers; the custom nodes come behind them in `nodes`.
    pub(crate) servers: usize,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) next_lock: AtomicU64,
}

impl ClientState {
    /// The first node whose usual round trip is longer than the time that the call waited for its answer.
    pub(crate) fn impatient(
        &self,
        node_timeout: Duration,
        results: &[NodeResult],
    ) -> Option<Impatient> {
        let nodes = self.common.names.iter().zip(&self.metrics.nodes).zip(results);
        nodes.into_iter().find_map(|((node, metrics), report)| {
            let round_trip = Duration::from_nanos(metrics.round_trip_ns.load(Ordering::Relaxed));
            let silent = matches!(&report.said, NodeOutcome::Failed(failure) if failure.kind() == FailureKind::Silent);
            (silent && round_trip > node_timeout)
                .then(|| Impatient { node: node.clone(), round_trip, node_timeout })
        })
    }

    pub(crate) fn new_lock(&self) -> LockId {
        LockId(self.next_lock.fetch_add(1, Ordering::Relaxed))
    }

    /// The keys of resources whose names have been checked. Without a prefix, a clone of the names.
    pub(crate) fn keys(&self, resources: &Keys) -> Result<Keys, InvalidRequest> {
        if self.prefix.is_empty() {
            return Ok(resources.clone());
        }
        let keys = resources.map(|resource| format!("{}{resource}", self.prefix).into());
        // The prefix may end with `quor`, and the name begin with `lock:`. So the whole key is checked.
        match keys.iter().any(|key| key.contains(RESERVED)) {
            true => Err(InvalidRequest::ResourceReserved),
            false => Ok(keys),
        }
    }
}
