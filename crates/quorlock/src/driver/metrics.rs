//! Counters and measurements of a client.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Mutex, PoisonError};

use quorlock_core::{Reading, RestartGuard, TrustState};

use crate::node::NodeState;
use crate::stats::NodeTrustState;

/// Figures that the driver keeps up to date for [`Client::stats`](crate::Client::stats).
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) locks_held: AtomicUsize,
    pub(crate) calls_waiting: AtomicUsize,
    pub(crate) releases_owed: AtomicUsize,
    pub(crate) wakeups: AtomicU64,
    pub(crate) nodes: Vec<NodeMetrics>,
}

#[derive(Debug, Default)]
pub(crate) struct NodeMetrics {
    /// The smoothed round trip in nanoseconds; zero before the first answer.
    pub(crate) round_trip_ns: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) commands: AtomicU64,
    /// Whether the node's votes count; `None` without a restart guard.
    trust_state: Mutex<Option<TrustState>>,
}

impl Metrics {
    pub(crate) fn new(nodes: usize, guard: RestartGuard) -> Self {
        let node = || NodeMetrics {
            trust_state: Mutex::new((guard != RestartGuard::Off).then_some(TrustState::Unverified)),
            ..NodeMetrics::default()
        };
        Self {
            locks_held: AtomicUsize::new(0),
            calls_waiting: AtomicUsize::new(0),
            releases_owed: AtomicUsize::new(0),
            wakeups: AtomicU64::new(0),
            nodes: (0..nodes).map(|_| node()).collect(),
        }
    }
}

impl NodeMetrics {
    pub(crate) fn trust_state(&self, state: &NodeState, now: Reading) -> NodeTrustState {
        let trust_state = self.trust_state.lock().unwrap_or_else(PoisonError::into_inner);
        trust_state.as_ref().map_or(NodeTrustState::Unguarded, |trust_state| {
            NodeTrustState::new(trust_state, state, now)
        })
    }

    pub(super) fn set_trust_state(&self, trust_state: TrustState) {
        *self.trust_state.lock().unwrap_or_else(PoisonError::into_inner) = Some(trust_state);
    }
}
