//! What the tests ask for, and what they read out of a world's log.

use std::time::Duration;

use quorlock_core::engine::Wait;
use quorlock_core::{
    Counter, Effect, Extended, LockId, LossCause, NodeId, Refusal, ReleaseReport, Request, Retry,
    Timing, TimingOptions, Verb,
};

use super::world::{Guard, World};

/// The ttl of the locks in here; margin 10 ms, drift 1 % and 2 ms.
pub(crate) const TTL: i64 = 1000;
/// How long a vote counts: ttl less drift.
pub(crate) const TERM: i64 = 988;
/// How long before the end a lock is given up.
pub(crate) const MARGIN: i64 = 10;
/// How long a node is waited for.
pub(crate) const NODE_TIMEOUT: i64 = 50;
/// How long a connection may take.
pub(crate) const CONNECT_TIMEOUT: i64 = 200;
/// From the client to a node, or back, unless set otherwise; all in milliseconds.
pub(crate) const ONE_WAY: i64 = 1;

/// The times of the locks in here.
pub(crate) fn timing_options() -> TimingOptions {
    let ms = |ms: i64| Duration::from_millis(ms as u64);
    TimingOptions {
        ttl: ms(TTL),
        margin: Some(ms(MARGIN)),
        node_timeout: Some(ms(NODE_TIMEOUT)),
        connect_timeout: ms(CONNECT_TIMEOUT),
        ..TimingOptions::default()
    }
}

/// Wants `key`, waits for ever, does not extend.
pub(crate) fn request(key: &str) -> Request {
    Request {
        key: key.into(),
        owner: "".into(),
        timing: Timing::new(timing_options()).expect("the times go together"),
        wait: Wait::Forever,
        retry: Retry::default(),
        automatic: false,
        keeps_on_loss: false,
        max_hold: Duration::from_secs(3600),
        progress: true,
        fenced: None,
    }
}

/// The same lock with a fence.
pub(crate) fn fenced(request: Request) -> Request {
    let counter = Counter {
        key: counter_of(&request.key).into(),
        ttl_ms: 7 * 24 * 3_600_000,
        marker: "node".into(),
    };
    Request { fenced: Some(counter), ..request }
}

/// Where a lock's fences are counted.
pub(crate) fn counter_of(key: &str) -> String {
    format!("fence of {key}")
}

pub(crate) fn once(key: &str) -> Request {
    Request { wait: Wait::Once, ..request(key) }
}

pub(crate) fn waiting(key: &str, ms: u64) -> Request {
    Request { wait: Wait::For(Duration::from_millis(ms)), ..request(key) }
}

pub(crate) fn automatic(key: &str) -> Request {
    Request { automatic: true, ..request(key) }
}

impl World {
    /// When the lock was granted, in milliseconds.
    pub(crate) fn granted_at(&self, wanted: LockId) -> Option<i64> {
        self.log.iter().find_map(|(at, _, effect)| match effect {
            Effect::Acquired { lock, .. } if *lock == wanted => Some(*at),
            _ => None,
        })
    }

    pub(crate) fn refused(&self, wanted: LockId) -> Option<(i64, &Refusal)> {
        self.log.iter().find_map(|(at, _, effect)| match effect {
            Effect::NotAcquired { lock, refusal } if *lock == wanted => Some((*at, refusal)),
            _ => None,
        })
    }

    pub(crate) fn lost(&self, wanted: LockId) -> Option<(i64, LossCause)> {
        self.log.iter().find_map(|(at, _, effect)| match effect {
            Effect::Lost { lock, cause } if *lock == wanted => Some((*at, *cause)),
            _ => None,
        })
    }

    pub(crate) fn extended(&self, wanted: LockId) -> Vec<(i64, Extended)> {
        let extended = self.log.iter().filter_map(|(at, _, effect)| match effect {
            Effect::Extended { lock, outcome } if *lock == wanted => Some((*at, outcome.clone())),
            _ => None,
        });
        extended.collect()
    }

    pub(crate) fn released(&self, wanted: LockId) -> Option<(i64, &ReleaseReport)> {
        self.log.iter().find_map(|(at, _, effect)| match effect {
            Effect::Released { lock, report } if *lock == wanted => Some((*at, report)),
            _ => None,
        })
    }

    /// By which larger fence the lock's was told to be superseded.
    pub(crate) fn superseded(&self, wanted: LockId) -> Vec<(i64, u64)> {
        let superseded = self.log.iter().filter_map(|(at, _, effect)| match effect {
            Effect::Superseded { lock, fence } if *lock == wanted => Some((*at, *fence)),
            _ => None,
        });
        superseded.collect()
    }

    /// When a command of this kind was given to this node for this lock.
    pub(crate) fn sent(&self, lock: LockId, verb: Verb, to: usize) -> Vec<i64> {
        let sent = self.log.iter().filter_map(|(at, _, effect)| match effect {
            Effect::Send { nodes, ticket, .. }
                if nodes.contains(NodeId::new(to))
                    && ticket.lock == lock
                    && ticket.verb == verb =>
            {
                Some(*at)
            }
            _ => None,
        });
        sent.collect()
    }

    /// When an attempt for this lock failed, to be followed by another.
    pub(crate) fn retried(&self, wanted: LockId) -> Vec<i64> {
        let retried = self.log.iter().filter_map(|(at, _, effect)| match effect {
            Effect::Waiting { lock, .. } if *lock == wanted => Some(*at),
            _ => None,
        });
        retried.collect()
    }

    pub(crate) fn guard(&self, lock: LockId) -> &Guard {
        &self.guards[&lock]
    }

    pub(crate) fn is_valid(&self, lock: LockId) -> bool {
        self.guards.get(&lock).is_some_and(|guard| guard.is_valid(self.reading()))
    }

    pub(crate) fn fence(&self, lock: LockId) -> u64 {
        self.guard(lock).fence.expect("a fence was wanted")
    }

    /// What a node's counter stands at.
    pub(crate) fn counter(&self, node: usize, key: &str) -> Option<u64> {
        self.nodes[node].counters.get(counter_of(key).as_str()).copied()
    }

    /// The nodes' counters stand there, each at its own.
    pub(crate) fn set_counters(&mut self, key: &str, at: &[u64]) {
        for (node, at) in self.nodes.iter_mut().zip(at) {
            node.counters.insert(counter_of(key).into(), *at);
        }
    }

    /// For how long the lock is valid, in milliseconds.
    pub(crate) fn valid_for(&self, lock: LockId) -> i64 {
        self.guard(lock).validity.valid_for(self.reading()).as_millis() as i64
    }

    pub(crate) fn votes(&self, lock: LockId) -> usize {
        self.guard(lock).validity.votes(self.reading())
    }
}
