//! The bounds of a model: times in ticks, and the numbers of faults and attempts.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::marker::Cluster;
use quorlock_core::{
    Counter, Delay, DetachedFrom, Key, Keys, Mode, NodeSet, Origin, Quorum, Request, RestartGuard,
    Retry, Rules, TakenFrom, Timing, TimingOptions, Value, Wait, Words,
};

use super::others::Others;
use super::replica::Replica;
use super::world::{CLIENTS, RESOURCES};
use crate::ledger::Drift;
use crate::time::{MS, SECOND, Time};

/// One tick. The engine's contention back-off (ten seconds) is shorter, so models do not explore when it ends. This
/// would multiply the states and prove nothing: a back-off decides which caller is next, not how many hold the lock.
pub(crate) const TICK: Time = 20 * SECOND;

/// The bounds of one model. The fields are flat, so that a model can be written as a change of another model (`..M1`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) clients: usize,
    pub(crate) modes: [Mode; CLIENTS],
    /// The keys of each client's lock, as indices into `RESOURCES`.
    pub(crate) keys: [&'static [usize]; CLIENTS],
    pub(crate) downgrades: [u8; CLIENTS],
    pub(crate) ttl: u32,
    /// The clock error that clients allow for during one ttl, in ticks.
    pub(crate) drift: u32,
    /// The largest number of ticks by which a node's clock may end a key early.
    pub(crate) node_fast: u32,
    /// If not zero, both clocks of a client may stop for one tick, and again after this number of ticks.
    pub(crate) client_slow: u8,
    /// The number of times that one of a client's two clocks stops while the other continues, for all clients together.
    pub(crate) suspends: u8,
    pub(crate) attempts: [u32; CLIENTS],
    pub(crate) extensions: [u8; CLIENTS],
    /// The largest age of a command, in ticks, when a node carries it out.
    pub(crate) command_age: u32,
    /// The largest age of a command, in ticks, when the client processes its answer.
    pub(crate) answer_age: u32,
    /// The largest number of links with messages in flight while time passes.
    pub(crate) slow_links: usize,
    /// For a paused client: the largest delay of its timers, and the largest age of the answers that it processes.
    pub(crate) pause: u32,
    pub(crate) pauses: u8,
    /// The number of keys that vanish early. A key vanishes only if its holder keeps a quorum without it.
    pub(crate) flushes: u8,
    /// The number of times that a node with a vote restarts without its data.
    pub(crate) restarts: u8,
    pub(crate) guard: RestartGuard,
    /// At the start, one of the nodes has just started without its data.
    pub(crate) fresh: bool,
    /// The number of the first client's connections that break. Commands in flight may still arrive.
    pub(crate) breaks: u8,
    /// The largest age, in ticks, of a command that arrives after its connection broke.
    pub(crate) zombie_age: u32,
    /// Nodes also answer inspections, in any order with other answers, and a refused client uses the adaptive retry
    /// delay. The nodes promise pushes but never send any, as if all pushes were lost.
    pub(crate) looks: bool,
    /// Each answer reaches its client at once.
    pub(crate) prompt: bool,
    /// The second client starts when the first has the lock.
    pub(crate) in_turn: bool,
    /// If set, the lock has fencing tokens, and this number of keys vanishes, at any time on any node. No time passes,
    /// so the model shows that the order of tokens does not depend on any clock.
    pub(crate) vanishing: Option<u8>,
    /// Clients with the same mode are interchangeable, so they are numbered in the order of their first commands.
    pub(crate) alike: bool,
    pub(crate) verbs: Verbs,
    /// If set, there is only one node, which has this replica.
    pub(crate) replica: Option<Replica>,
    /// If set, the last client has another configuration. Mutual exclusion alone is checked then.
    pub(crate) others: Option<Others>,
}

/// The way in which clients get and release their locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verbs {
    Plain,
    /// At the start, the first client has detached the lock. The other clients attach it, except the `rival` (if any),
    /// which acquires the lock.
    Attach {
        rival: Option<usize>,
    },
    /// All clients take the lock with the same value. A holder detaches its lock, then releases it as a caller without
    /// a guard. With `by_value`, the release compares only the value.
    Take {
        by_value: bool,
    },
}

/// Two interchangeable clients with one attempt each, on a network without delay. Node clocks may run fast.
pub(super) const M1: Bounds = Bounds {
    ttl: 4,
    drift: 2,
    node_fast: 1,
    client_slow: 0,
    suspends: 0,
    clients: 2,
    modes: [Mode::Exclusive; 3],
    keys: [&[0]; 3],
    downgrades: [0; 3],
    attempts: [1; 3],
    extensions: [0; 3],
    command_age: 0,
    answer_age: 0,
    slow_links: 0,
    pause: 4,
    pauses: 0,
    flushes: 0,
    restarts: 0,
    guard: RestartGuard::Off,
    fresh: false,
    breaks: 0,
    zombie_age: 0,
    looks: false,
    prompt: false,
    in_turn: false,
    vanishing: None,
    alike: true,
    verbs: Verbs::Plain,
    replica: None,
    others: None,
};

pub(super) const NETWORK: Bounds =
    Bounds { client_slow: 4, command_age: 1, answer_age: 2, slow_links: 1, ..M1 };

pub(super) const PAUSES: Bounds = Bounds { pauses: 1, ..M1 };

/// The first client extends its lock once. The second client only acquires the lock.
pub(super) const M4: Bounds =
    Bounds { node_fast: 0, extensions: [1, 0, 0], alike: false, in_turn: true, prompt: true, ..M1 };

/// Locks have fencing tokens, and no time passes. Keys vanish, so both clients may believe that they hold the lock.
pub(super) const M2: Bounds = Bounds { node_fast: 0, vanishing: Some(2), ..M1 };

/// At the start, one node has just restarted without its data. Later a second node restarts without its data. Answers
/// arrive at once. The longest ttl is two ticks, and a quarantine (the wait of a restarted node) is three ticks.
pub(super) const M3: Bounds = Bounds {
    ttl: 2,
    drift: 0,
    node_fast: 0,
    restarts: 1,
    fresh: true,
    guard: RestartGuard::Strict,
    prompt: true,
    in_turn: true,
    alike: false,
    ..M1
};

pub(super) const M5: Bounds = Bounds {
    ttl: 2,
    drift: 1,
    node_fast: 0,
    clients: 3,
    modes: [Mode::Shared, Mode::Shared, Mode::Exclusive],
    prompt: true,
    ..M1
};

pub(super) const DOWNGRADES: Bounds =
    Bounds { clients: 2, modes: [Mode::Exclusive; 3], downgrades: [1, 0, 0], ..M4 };

/// Three clients: the first locks one key, the second this key and another key, and the third only the other key.
pub(super) const M6: Bounds = Bounds {
    ttl: 1,
    drift: 0,
    node_fast: 0,
    clients: 3,
    keys: [&[0], &[0, 1], &[1]],
    prompt: true,
    in_turn: true,
    alike: false,
    ..M1
};

/// The clients' sets of keys have one key in common. Locks have fencing tokens, no time passes, and one key vanishes.
pub(super) const SETS: Bounds = Bounds { keys: [&[0, 1], &[1, 2], &[0]], vanishing: Some(1), ..M2 };

/// Two clients attach a lock that a third client has detached.
pub(super) const ATTACHES: Bounds = Bounds {
    node_fast: 0,
    clients: 3,
    attempts: [1, 2, 2],
    breaks: 1,
    zombie_age: 2,
    verbs: Verbs::Attach { rival: None },
    ..M1
};

/// One client attaches the detached lock, and another client acquires it.
pub(super) const RIVAL: Bounds = Bounds {
    attempts: [1, 2, 1],
    alike: false,
    verbs: Verbs::Attach { rival: Some(2) },
    ..ATTACHES
};

/// Three clients take one lock, and all use the same value.
pub(super) const TAKES: Bounds = Bounds {
    ttl: 1,
    drift: 0,
    node_fast: 0,
    clients: 3,
    prompt: true,
    in_turn: true,
    verbs: Verbs::Take { by_value: false },
    ..M1
};

/// One node with a replica that is promoted. The longest ttl is three ticks, and a quarantine is four ticks.
pub(super) const FAILOVER: Bounds = Bounds {
    ttl: 3,
    drift: 0,
    node_fast: 0,
    attempts: [1, 2, 1],
    extensions: [1, 0, 0],
    command_age: 1,
    answer_age: 1,
    slow_links: 1,
    zombie_age: 1,
    guard: RestartGuard::Strict,
    alike: false,
    replica: Some(Replica { own_write: true }),
    ..M1
};

/// The first client's connection breaks, and the client extends its lock on the old and on the new connection.
pub(super) const RECONNECTS: Bounds = Bounds {
    extensions: [2, 0, 0],
    command_age: 0,
    answer_age: 0,
    slow_links: 0,
    breaks: 1,
    in_turn: true,
    ..FAILOVER
};

impl Bounds {
    /// The request of a client. If there is a `lease`, the client attaches it.
    pub(crate) fn request(&self, client: usize, lease: Option<&DetachedFrom>) -> Request {
        let ticks = |ticks: u32| Duration::from_nanos(TICK.unsigned_abs()) * ticks;
        let options = TimingOptions {
            ttl: ticks(self.ttl),
            max_ttl: ticks(self.ttl),
            drift_ppm: u32::try_from(self.assumed().ppm).unwrap_or(0),
            drift_constant: Duration::ZERO,
            // Without a margin, an invariant fails even if the engine is wrong by a single tick.
            margin: Some(Duration::ZERO),
            node_timeout: Some(ticks(1).min(ticks(self.ttl) / 4)),
            ..TimingOptions::default()
        };
        let timing = match Timing::new(options) {
            Ok(timing) => timing,
            Err(error) => unreachable!("the bounds of a model fit together: {error}"),
        };
        Request {
            keys: self.keys_of(client),
            mode: self.modes[client],
            prefix_bytes: 0,
            origin: self.origin(client, lease),
            owner: "".into(),
            timing,
            wait: Wait::Forever,
            retry: Retry {
                delay: match self.vanishing {
                    Some(_) => Delay::Between { min: Duration::ZERO, max: Duration::ZERO },
                    None if self.looks => Delay::Adaptive { ceiling: ticks(1) },
                    None => Delay::Between { min: ticks(1), max: ticks(1) },
                },
                attempts_max: Some(self.attempts[client]),
            },
            automatic: false,
            keeps_on_loss: false,
            yields_to_pollers: true,
            max_hold: ticks(1000),
            progress: true,
            fenced: self.vanishing.map(|_| Counter {
                keys: self.keys_of(client).map(|key| format!("quorlock:fence:{key}").into()),
                ttl_ms: u64::MAX,
                marker: "quorlock:node".into(),
            }),
        }
    }

    fn origin(&self, client: usize, lease: Option<&DetachedFrom>) -> Origin {
        match (self.verbs, lease) {
            (Verbs::Attach { rival }, Some(lease)) if rival != Some(client) => {
                Origin::Detached(Arc::new(lease.clone()))
            }
            (Verbs::Take { .. }, _) => {
                let (value, nonce_key) = (Value::of_caller(b"worker"), "quorlock:take".into());
                Origin::Taken(Arc::new(TakenFrom { value, nonce_key, by_value: false }))
            }
            _ => Origin::Absent,
        }
    }

    pub(crate) const fn attaches(&self) -> bool {
        matches!(self.verbs, Verbs::Attach { .. })
    }

    fn keys_of(&self, client: usize) -> Keys {
        let keys = self.keys[client].iter().map(|place| Key::from(RESOURCES[*place]));
        Keys::new(keys).unwrap_or_else(|| unreachable!("there are keys, and all differ"))
    }

    /// The nodes of the first client's configuration.
    pub(crate) fn quorum(&self) -> Quorum {
        self.quorum_of(0)
    }

    /// The rules by which the first client decides whether it trusts a node.
    pub(crate) fn rules(&self) -> Rules {
        let quorum = self.quorum();
        let names: Vec<_> = (0..quorum.nodes()).map(|node| format!("n{node}").into()).collect();
        let max_ttl_ms = u64::from(self.ttl) * (TICK / MS).unsigned_abs();
        let cluster = Cluster::new(&names, quorum.needed(), max_ttl_ms);
        let (marker, adoption) = ("quorlock:node".into(), "quorlock:adopt".into());
        let durable = NodeSet::default();
        let words = Words::default();
        let replicas = self.replica.iter().map(|_| 1).collect();
        Rules { guard: self.guard, cluster, names, marker, adoption, replicas, durable, words }
    }

    /// The uptime in seconds that ends a quarantine (a restarted node's wait), rounded up to whole ticks. Models count
    /// a node's uptime up to this value, so that nodes with longer uptimes are one state.
    pub(crate) fn grown_s(&self) -> i64 {
        let quarantine = self.rules().quarantine().as_nanos();
        let ticks = quarantine.div_ceil(TICK.unsigned_abs().into());
        i64::try_from(ticks).unwrap_or(i64::MAX) * (TICK / SECOND)
    }

    /// The clock error that clients allow for, as a rate.
    pub(crate) fn assumed(&self) -> Drift {
        Drift { ppm: i64::from(self.drift) * 1_000_000 / i64::from(self.ttl), constant: 0 }
    }
}
