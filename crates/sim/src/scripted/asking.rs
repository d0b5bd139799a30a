//! What tests ask for, and what they read out of a world's log.

use std::time::Duration;

use quorlock_core::Wait;
use quorlock_core::{
    Counter, Effect, Event, Extended, LockId, LossCause, Mode, NodeId, NodeOutcome, Refusal,
    ReleaseReport, Request, Retry, Timing, TimingOptions, Verb,
};

pub use super::ONE_WAY;
use super::{COUNTERS, ScriptedWorld};
use crate::count::Count;
use crate::driver::Driver as _;
use crate::guard::{Guard, GuardId};

/// The ttl of the locks in tests, in milliseconds; margin 10 ms, drift 1 % and 2 ms.
pub const TTL: i64 = 1000;
/// How long a vote counts: ttl less drift.
pub const TERM: i64 = 988;
/// How long before the end a lock is given up.
pub const MARGIN: i64 = 10;
/// How long a node is waited for.
pub const NODE_TIMEOUT: i64 = 50;
/// How long a connection may take.
pub const CONNECT_TIMEOUT: i64 = 200;

/// The times of the locks in here.
pub fn timing_options() -> TimingOptions {
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
pub fn request(key: &str) -> Request {
    Request {
        keys: key.into(),
        mode: Mode::Exclusive,
        prefix_bytes: 0,
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
pub fn fenced(request: Request) -> Request {
    let counter = Counter {
        keys: request.keys.map(|key| counter_of(key).into()),
        ttl_ms: 7 * 24 * 3_600_000,
        marker: "node".into(),
    };
    Request { fenced: Some(counter), ..request }
}

/// Where a lock's fences are counted.
pub fn counter_of(key: &str) -> String {
    format!("{COUNTERS}{key}")
}

/// Wants `key`, tries once.
pub fn once(key: &str) -> Request {
    Request { wait: Wait::Once, ..request(key) }
}

/// Wants `key`, waits for so many milliseconds.
pub fn waiting(key: &str, ms: u64) -> Request {
    Request { wait: Wait::For(Duration::from_millis(ms)), ..request(key) }
}

/// Wants `key`, waits for ever, is extended.
pub fn automatic(key: &str) -> Request {
    Request { automatic: true, ..request(key) }
}

impl ScriptedWorld {
    /// The holder wants the lock extended.
    pub fn extend(&mut self, lock: LockId) {
        self.tell(self.owner(lock), Event::Extend { lock });
    }

    /// The holder, a writer, wants to be a reader from now on.
    pub fn downgrade(&mut self, lock: LockId) {
        let client = self.owner(lock);
        self.world.become_reader(GuardId { client, lock });
        self.turn(client);
    }

    /// Whose lock it is.
    pub fn owner(&self, lock: LockId) -> usize {
        self.owners[lock.0 as usize]
    }

    /// A lock's guard, if it was ever granted.
    pub fn find(&self, lock: LockId) -> Option<&Guard> {
        self.world.watch.guards.of(GuardId { client: self.owner(lock), lock })
    }

    /// The same of one that was.
    ///
    /// # Panics
    /// If it was not.
    pub fn guard(&self, lock: LockId) -> &Guard {
        self.find(lock).expect("it was granted")
    }

    /// All guards that there ever were.
    pub fn all_guards(&self) -> impl Iterator<Item = (LockId, &Guard)> {
        self.world.watch.guards.iter().map(|(id, guard)| (id.lock, guard))
    }

    /// How often two held one lock, where that may be.
    pub fn overlaps(&self) -> usize {
        self.world.record.counts.of(Count::Overlaps) as usize
    }

    /// What engines have said of something, and when, in milliseconds.
    fn said<'a, T>(
        &'a self,
        of: impl Fn(&'a Effect) -> Option<T> + 'a,
    ) -> impl Iterator<Item = (i64, T)> {
        self.log().iter().filter_map(move |(at, _, effect)| Some((*at, of(effect)?)))
    }

    /// When the lock was granted, in milliseconds, and in which attempt.
    fn granted(&self, wanted: LockId) -> Option<(i64, u32)> {
        let mut granted = self.said(move |effect| match effect {
            Effect::Acquired { lock, attempts, .. } if *lock == wanted => Some(*attempts),
            _ => None,
        });
        granted.next()
    }

    /// When the lock was granted, in milliseconds.
    pub fn granted_at(&self, wanted: LockId) -> Option<i64> {
        self.granted(wanted).map(|(at, _)| at)
    }

    /// In which of its attempts it was granted.
    ///
    /// # Panics
    /// If it never was.
    pub fn attempts(&self, wanted: LockId) -> u32 {
        self.granted(wanted).expect("it was granted").1
    }

    /// When and why it was refused.
    pub fn refused(&self, wanted: LockId) -> Option<(i64, &Refusal)> {
        let mut refused = self.said(move |effect| match effect {
            Effect::NotAcquired { lock, refusal } if *lock == wanted => Some(refusal),
            _ => None,
        });
        refused.next()
    }

    /// When and why it was lost.
    pub fn lost(&self, wanted: LockId) -> Option<(i64, LossCause)> {
        let mut lost = self.said(move |effect| match effect {
            Effect::Lost { lock, cause } if *lock == wanted => Some(*cause),
            _ => None,
        });
        lost.next()
    }

    /// When extensions that a caller asked for were over, and how.
    pub fn extended(&self, wanted: LockId) -> Vec<(i64, Extended)> {
        let extended = self.said(move |effect| match effect {
            Effect::Extended { lock, outcome } if *lock == wanted => Some(outcome.clone()),
            _ => None,
        });
        extended.collect()
    }

    /// When its holder was notified of the nodes' confirmations: whether a quorum confirmed, and how many nodes.
    pub fn health(&self, wanted: LockId) -> Vec<(i64, bool, usize)> {
        let health = self.said(move |effect| match effect {
            Effect::Health { lock, is_confirmed, nodes, .. } if *lock == wanted => {
                let confirmed = nodes.iter().filter(|node| node.said == NodeOutcome::Granted);
                Some((*is_confirmed, confirmed.count()))
            }
            _ => None,
        });
        health.map(|(at, (is_confirmed, nodes))| (at, is_confirmed, nodes)).collect()
    }

    /// When the nodes had answered its release, and what they said.
    pub fn released(&self, wanted: LockId) -> Option<(i64, &ReleaseReport)> {
        let mut released = self.said(move |effect| match effect {
            Effect::Released { lock, report } if *lock == wanted => Some(report),
            _ => None,
        });
        released.next()
    }

    /// When larger fences than the lock's were seen.
    pub fn superseded(&self, wanted: LockId) -> Vec<(i64, u64)> {
        let superseded = self.said(move |effect| match effect {
            Effect::Superseded { lock, fence } if *lock == wanted => Some(*fence),
            _ => None,
        });
        superseded.collect()
    }

    /// When a command of this kind was given to this node for this lock.
    pub fn sent(&self, lock: LockId, verb: Verb, to: usize) -> Vec<i64> {
        let sent = self.said(move |effect| match effect {
            Effect::Send { nodes, ticket, .. } => {
                (nodes.contains(NodeId::new(to)) && ticket.lock == lock && ticket.verb == verb)
                    .then_some(())
            }
            _ => None,
        });
        sent.map(|(at, ())| at).collect()
    }

    /// When an attempt for this lock failed, to be followed by another.
    pub fn retried(&self, wanted: LockId) -> Vec<i64> {
        let retried = self.said(move |effect| match effect {
            Effect::Waiting { lock, .. } => (*lock == wanted).then_some(()),
            _ => None,
        });
        retried.map(|(at, ())| at).collect()
    }

    /// Whether its guard says that it is held.
    pub fn is_valid(&self, lock: LockId) -> bool {
        self.find(lock).is_some_and(|guard| guard.is_valid(self.reading()))
    }

    /// Its fence.
    ///
    /// # Panics
    /// If it has none.
    pub fn fence(&self, lock: LockId) -> u64 {
        self.guard(lock).fence.expect("a fence was wanted")
    }

    /// What a node's counter stands at.
    pub fn counter(&self, node: usize, key: &str) -> Option<u64> {
        self.counter_at(node, &counter_of(key))
    }

    /// The nodes' counters stand there, each at its own.
    pub fn set_counters(&mut self, key: &str, at: &[u64]) {
        for (node, at) in at.iter().enumerate() {
            self.set_counter(node, &counter_of(key), *at);
        }
    }

    /// For how long the lock is valid, in milliseconds.
    pub fn valid_for(&self, lock: LockId) -> i64 {
        self.guard(lock).hold.validity().valid_for(self.reading()).as_millis() as i64
    }

    /// How many votes of it count.
    pub fn votes(&self, lock: LockId) -> usize {
        self.guard(lock).hold.validity().votes(self.reading())
    }
}
