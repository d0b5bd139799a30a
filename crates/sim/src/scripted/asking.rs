//! Constructors of requests for tests, and queries of a world's log.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Wait;
use quorlock_core::{
    Counter, Detached, DetachedFrom, Effect, Entry, EntryOf, Event, Extended, LockId, LossCause,
    Mode, NodeId, NodeOutcome, Origin, Reading, Refusal, ReleaseReport, Request, Retry, TakenFrom,
    Timing, TimingOptions, Value, Verb,
};

pub use super::ONE_WAY;
use super::{COUNTERS, EPOCH, ScriptedWorld};
use crate::count::Count;
use crate::driver::Driver as _;
use crate::guard::{Guard, GuardId};
use crate::time::MS;

/// The ttl of locks in tests, in milliseconds. The drift (the allowed clock error) is 1 % of it plus 2 ms: 12 ms.
pub const TTL: i64 = 1000;
/// The time in milliseconds for which a vote counts: the ttl minus the drift.
pub const TERM: i64 = 988;
/// The margin: the engine gives up a lock this number of milliseconds before the lock ends.
pub const MARGIN: i64 = 10;
/// The node timeout, in milliseconds.
pub const NODE_TIMEOUT: i64 = 50;
/// The longest time to make a connection, in milliseconds.
pub const CONNECT_TIMEOUT: i64 = 200;

/// The timing of locks in tests.
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

/// An acquire of `key` that waits without limit and is not extended.
pub fn request(key: &str) -> Request {
    Request {
        keys: key.into(),
        mode: Mode::Exclusive,
        prefix_bytes: 0,
        origin: Origin::Absent,
        owner: "".into(),
        timing: Timing::new(timing_options()).expect("the times go together"),
        wait: Wait::Forever,
        retry: Retry::default(),
        automatic: false,
        keeps_on_loss: false,
        yields_to_pollers: true,
        max_hold: Duration::from_secs(3600),
        progress: true,
        fenced: None,
    }
}

/// A request to take over a detached lock.
pub fn attach(detached: &Detached, request: Request) -> Request {
    let Entry { keys, mode, value, .. } = detached.entry.clone();
    let from = DetachedFrom { value, unanswered: detached.unanswered };
    Request { keys, mode, origin: Origin::Detached(Arc::new(from)), ..request }
}

/// The description of a detached lock with which a caller without a guard extends or releases the lock.
pub fn entry_of(detached: &Detached) -> EntryOf {
    let (entry, timing) = (detached.entry.clone(), request("any").timing);
    EntryOf { entry, timing, unanswered: detached.unanswered }
}

/// A request to take `key` with a value of the caller's own.
pub fn take(key: &str, value: &str) -> Request {
    let value = Value::of_caller(value.as_bytes());
    let nonce_key = format!("quorlock:take:{key}").into();
    let from = TakenFrom { value, nonce_key, by_value: false };
    Request { origin: Origin::Taken(Arc::new(from)), ..request(key) }
}

/// The same request, but with a fencing token.
pub fn fenced(request: Request) -> Request {
    let counter = Counter {
        keys: request.keys.map(|key| counter_of(key).into()),
        ttl_ms: 7 * 24 * 3_600_000,
        marker: "node".into(),
    };
    Request { fenced: Some(counter), ..request }
}

/// The key under which nodes store the counter for fencing tokens of the lock `key`.
pub fn counter_of(key: &str) -> String {
    format!("{COUNTERS}{key}")
}

/// An acquire of `key` with a single attempt.
pub fn once(key: &str) -> Request {
    Request { wait: Wait::Once, ..request(key) }
}

/// An acquire of `key` that waits for `ms` milliseconds.
pub fn waiting(key: &str, ms: u64) -> Request {
    Request { wait: Wait::For(Duration::from_millis(ms)), ..request(key) }
}

/// An acquire of `key` that waits without limit and is extended automatically.
pub fn automatic(key: &str) -> Request {
    Request { automatic: true, ..request(key) }
}

impl ScriptedWorld {
    /// The holder asks for an extension.
    pub fn extend(&mut self, lock: LockId) {
        self.tell(self.owner(lock), Event::Extend { lock });
    }

    /// The holder detaches its lock. The engine forgets the lock only when the test calls [`Self::forget_lock`].
    pub fn detach(&mut self, lock: LockId) {
        let client = self.owner(lock);
        self.world.detach(GuardId { client, lock });
        self.turn(client);
    }

    /// Reports to the engine that the holder has received the detached lock.
    pub fn forget_lock(&mut self, lock: LockId) {
        self.tell(self.owner(lock), Event::Forget { lock });
    }

    /// Acquires a lock, waits for the votes of all nodes, detaches the lock and forgets it.
    ///
    /// Panics if the lock is not detached.
    pub fn detach_new(&mut self, request: Request) -> Detached {
        let lock = self.hold(request);
        self.run_for(10);
        self.detach(lock);
        let detached = self.detached(lock).pop().and_then(|(_, it)| it).expect("it is detached");
        self.forget_lock(lock);
        detached
    }

    /// The times and results of detaching a lock. The result is `None` if the lock was lost.
    pub fn detached(&self, wanted: LockId) -> Vec<(i64, Option<Detached>)> {
        let detached = self.said(move |effect| match effect {
            Effect::Detached { lock, detached } if *lock == wanted => Some(detached.as_deref()),
            _ => None,
        });
        detached.map(|(at, it)| (at, it.cloned())).collect()
    }

    /// A caller of this client extends a lock without a guard.
    pub fn extend_entry(&mut self, client: usize, entry: EntryOf) -> LockId {
        let lock = self.new_lock(client);
        self.tell(client, Event::ExtendEntry { lock, entry, counter: None });
        lock
    }

    /// A caller of this client releases a lock without a guard.
    pub fn release_entry(&mut self, client: usize, entry: EntryOf) -> LockId {
        let lock = self.new_lock(client);
        let valid_for = entry.timing.ttl();
        self.tell(client, Event::ReleaseEntry { lock, entry, valid_for });
        lock
    }

    /// The time of the answer to [`Self::extend_entry`], the time in ms for which the lock was valid then (`None`:
    /// the extension failed), and the number of nodes that confirmed. `None` before the answer.
    pub fn entry_extended(&self, wanted: LockId) -> Option<(i64, Option<i64>, usize)> {
        let mut extended = self.said(move |effect| match effect {
            Effect::EntryExtended { lock, validity, nodes } if *lock == wanted => {
                let confirmed = nodes.iter().filter(|node| node.said == NodeOutcome::Granted);
                Some((validity.clone(), confirmed.count()))
            }
            _ => None,
        });
        let (at, (validity, confirmed)) = extended.next()?;
        let then = Reading::new(at * MS, EPOCH + at * MS);
        let valid_for = validity.map(|it| it.valid_for(then).as_millis() as i64);
        Some((at, valid_for, confirmed))
    }

    /// The holder, a writer, downgrades to a reader.
    pub fn downgrade(&mut self, lock: LockId) {
        let client = self.owner(lock);
        self.world.become_reader(GuardId { client, lock });
        self.turn(client);
    }

    /// The client that asked for the lock.
    pub fn owner(&self, lock: LockId) -> usize {
        self.owners[lock.0 as usize]
    }

    /// A lock's guard, if it was ever granted.
    pub fn find(&self, lock: LockId) -> Option<&Guard> {
        self.world.watch.guards.of(GuardId { client: self.owner(lock), lock })
    }

    /// The guard of a lock that was granted.
    ///
    /// Panics if the lock was not granted.
    pub fn guard(&self, lock: LockId) -> &Guard {
        self.find(lock).expect("the lock was granted")
    }

    /// All guards so far.
    pub fn all_guards(&self) -> impl Iterator<Item = (LockId, &Guard)> {
        self.world.watch.guards.iter().map(|(id, guard)| (id.lock, guard))
    }

    /// The number of times that two clients held one lock, in a world that may lose data.
    pub fn overlaps(&self) -> usize {
        self.world.record.counts.of(Count::Overlaps) as usize
    }

    /// Finds effects (outputs of the engine) in the log, with their times in milliseconds.
    fn said<'a, T>(
        &'a self,
        of: impl Fn(&'a Effect) -> Option<T> + 'a,
    ) -> impl Iterator<Item = (i64, T)> {
        self.log().iter().filter_map(move |(at, _, effect)| Some((*at, of(effect)?)))
    }

    /// The time of the grant in milliseconds, and the number of attempts until then.
    fn granted(&self, wanted: LockId) -> Option<(i64, u32)> {
        let mut granted = self.said(move |effect| match effect {
            Effect::Acquired { lock, attempts, .. } if *lock == wanted => Some(*attempts),
            _ => None,
        });
        granted.next()
    }

    /// The time of the grant in milliseconds.
    pub fn granted_at(&self, wanted: LockId) -> Option<i64> {
        self.granted(wanted).map(|(at, _)| at)
    }

    /// The number of attempts until the grant.
    ///
    /// Panics if the lock was never granted.
    pub fn attempts(&self, wanted: LockId) -> u32 {
        self.granted(wanted).expect("the lock was granted").1
    }

    /// The time in milliseconds at which the call failed, and the reason. `None` if it has not failed.
    pub fn refused(&self, wanted: LockId) -> Option<(i64, &Refusal)> {
        let mut refused = self.said(move |effect| match effect {
            Effect::NotAcquired { lock, refusal } if *lock == wanted => Some(refusal),
            _ => None,
        });
        refused.next()
    }

    /// The time in milliseconds at which the engine reported the lock as lost, and the cause. `None` without a report.
    pub fn lost(&self, wanted: LockId) -> Option<(i64, LossCause)> {
        let mut lost = self.said(move |effect| match effect {
            Effect::Lost { lock, cause } if *lock == wanted => Some(*cause),
            _ => None,
        });
        lost.next()
    }

    /// The times and outcomes of extensions that a caller asked for.
    pub fn extended(&self, wanted: LockId) -> Vec<(i64, Extended)> {
        let extended = self.said(move |effect| match effect {
            Effect::Extended { lock, outcome } if *lock == wanted => Some(outcome.clone()),
            _ => None,
        });
        extended.collect()
    }

    /// Notifications to the holder: the time, whether a quorum confirmed the lock, and the number of nodes that did.
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

    /// The time in milliseconds of the engine's report on the lock's release, and the report. `None` before the report.
    pub fn released(&self, wanted: LockId) -> Option<(i64, &ReleaseReport)> {
        let mut released = self.said(move |effect| match effect {
            Effect::Released { lock, report } if *lock == wanted => Some(report),
            _ => None,
        });
        released.next()
    }

    /// The times at which the engine reported that another holder has a larger fencing token, and these tokens.
    pub fn superseded(&self, wanted: LockId) -> Vec<(i64, u64)> {
        let superseded = self.said(move |effect| match effect {
            Effect::Superseded { lock, fence } if *lock == wanted => Some(*fence),
            _ => None,
        });
        superseded.collect()
    }

    /// The times at which the engine sent this kind of command for the lock to this node.
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

    /// The times at which an attempt failed and the call continued with a retry.
    pub fn retried(&self, wanted: LockId) -> Vec<i64> {
        let retried = self.said(move |effect| match effect {
            Effect::Waiting { lock, .. } => (*lock == wanted).then_some(()),
            _ => None,
        });
        retried.map(|(at, ())| at).collect()
    }

    /// Whether the guard is valid now.
    pub fn is_valid(&self, lock: LockId) -> bool {
        self.find(lock).is_some_and(|guard| guard.is_valid(self.reading()))
    }

    /// The fencing token of a lock.
    ///
    /// Panics if the lock has none.
    pub fn fence(&self, lock: LockId) -> u64 {
        self.guard(lock).fence.expect("the call asked for a fencing token")
    }

    /// The value of the counter for fencing tokens of the lock `key` on a node.
    pub fn counter(&self, node: usize, key: &str) -> Option<u64> {
        self.counter_at(node, &counter_of(key))
    }

    /// Sets the counter for fencing tokens of the lock `key` on each node: on the first node to `at[0]`, and so on.
    pub fn set_counters(&mut self, key: &str, at: &[u64]) {
        for (node, at) in at.iter().enumerate() {
            self.set_counter(node, &counter_of(key), *at);
        }
    }

    /// The time for which the lock is valid, in milliseconds.
    pub fn valid_for(&self, lock: LockId) -> i64 {
        self.guard(lock).hold.validity().valid_for(self.reading()).as_millis() as i64
    }

    /// The number of the guard's votes that have not expired.
    pub fn votes(&self, lock: LockId) -> usize {
        self.guard(lock).hold.validity().votes(self.reading())
    }
}
