//! The state of a client: its settings, its nodes and what it shares with its guards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorlock_core::{Counter, Keys, LockId, Quorum, Timing};

use crate::client::context::ClientContext;
use crate::driver::Metrics;
use crate::error::InvalidRequest;
use crate::node::ClientNode;
use crate::options::{ClientTimes, LockOptions};
use crate::own_keys::{MARKER, RESERVED, counter, own_key};

pub(crate) struct ClientState {
    pub(crate) context: Arc<ClientContext>,
    pub(crate) quorum: Quorum,
    pub(crate) options: LockOptions,
    pub(crate) times: ClientTimes,
    /// The times of `options`. They are checked, and fit each other.
    pub(crate) timing: Timing,
    pub(crate) nodes: Vec<ClientNode>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) next_lock: AtomicU64,
}

impl ClientState {
    /// The times of a lock with this ttl. The client's options set its other times.
    pub(crate) fn timing_with(&self, ttl: Duration) -> Result<Timing, InvalidRequest> {
        let options = LockOptions::new().ttl(ttl).max_hold(HOLD_MAX).or(&self.options);
        // The client's other times may not fit this ttl. Then defaults that follow from the ttl replace them.
        options.check(self.times).or_else(|_| {
            let drift = self.options.drift;
            LockOptions { drift, ..LockOptions::new().ttl(ttl).max_hold(HOLD_MAX) }
                .check(self.times)
        })
    }

    pub(crate) fn new_lock(&self) -> LockId {
        LockId(self.next_lock.fetch_add(1, Ordering::Relaxed))
    }

    /// The keys of resources whose names have been checked. Without a prefix, a clone of the names.
    pub(crate) fn keys(&self, resources: &Keys) -> Result<Keys, InvalidRequest> {
        if self.context.prefix.is_empty() {
            return Ok(resources.clone());
        }
        let keys = resources.map(|resource| format!("{}{resource}", self.context.prefix).into());
        // The prefix may end with `quor`, and the name begin with `lock:`. So the whole key is checked.
        match keys.iter().any(|key| key.contains(RESERVED)) {
            true => Err(InvalidRequest::ResourceReserved),
            false => Ok(keys),
        }
    }

    /// The counter of the lock's fencing tokens. A counter that expired while the lock is held would start again at one,
    /// so its ttl is much longer than a hold.
    pub(crate) fn counter(&self, resources: &Keys, max_hold: Duration) -> Counter {
        let prefix = &self.context.prefix;
        let ttl = (2 * max_hold.min(HOLD_MAX)).max(COUNTER_TTL_MIN);
        Counter {
            keys: resources.map(|resource| counter(prefix, resource)),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            marker: own_key(prefix, MARKER),
        }
    }
}

/// The shortest ttl of a counter of fencing tokens.
const COUNTER_TTL_MIN: Duration = Duration::from_secs(7 * 24 * 3600);

/// A fencing counter's ttl covers holds of up to this time. Servers refuse a ttl of more than some 10^8 years.
const HOLD_MAX: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);
