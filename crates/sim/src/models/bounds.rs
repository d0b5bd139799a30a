//! How large a model is: times in ticks, budgets in numbers.

use std::time::Duration;

use quorlock_core::Wait;
use quorlock_core::marker::Cluster;
use quorlock_core::{
    Counter, Delay, Key, Keys, Mode, NodeSet, Request, RestartGuard, Retry, Rules, Timing,
    TimingOptions, Words,
};

use super::world::{CLIENTS, RESOURCES};
use crate::ledger::Drift;
use crate::time::{MS, SECOND, Time};

/// One tick. So long that the engine's back-off (ten seconds) is over after one: it
/// say who is next, never how many hold, and would only multiply the states.
pub(crate) const TICK: Time = 20 * SECOND;

/// The bounds of one model: flat, so that a model is written down as what it has beside another (`..M1`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How many clients there are.
    pub(crate) clients: usize,
    /// Whom each of them excludes.
    pub(crate) modes: [Mode; CLIENTS],
    /// Which keys each of them locks, by their places.
    pub(crate) keys: [&'static [usize]; CLIENTS],
    /// How often each of them becomes a reader at most.
    pub(crate) downgrades: [u8; CLIENTS],
    /// How long a node keeps a key.
    pub(crate) ttl: u32,
    /// The error of clocks that the clients allow for, per ttl.
    pub(crate) drift: u32,
    /// A node's clock may end a key early by this much.
    pub(crate) node_fast: u32,
    /// A client's clock may stand still for one tick, and again after so many; zero: never.
    pub(crate) client_slow: u8,
    /// How often all in all one of a client's two clocks may stand still while the other goes on.
    pub(crate) suspends: u8,
    /// How many attempts each client makes at most.
    pub(crate) attempts: [u32; CLIENTS],
    /// How many extensions each client asks for at most.
    pub(crate) extensions: [u8; CLIENTS],
    /// How old a command may be when a node carries it out.
    pub(crate) command_age: u32,
    /// How old it may be when its answer is dealt with: the way there and back.
    pub(crate) answer_age: u32,
    /// On so many links at a time things are under way for longer than no time at all.
    pub(crate) slow_links: usize,
    /// How late a client may be for its own timers, and how old an answer may be by then, if it
    /// stands still.
    pub(crate) pause: u32,
    /// How often all in all a client stands still.
    pub(crate) pauses: u8,
    /// How many keys vanish early, of those that vanish without bringing a holder below a quorum.
    pub(crate) flushes: u8,
    /// How often all in all a node with a vote is started again without its data; and what the clients
    /// make of what nodes say of themselves.
    pub(crate) restarts: u8,
    pub(crate) guard: RestartGuard,
    /// One node, whichever, has been started a moment before without its data.
    pub(crate) fresh: bool,
    /// How many connections of the first client break; what was under way on them may still arrive.
    pub(crate) breaks: u8,
    /// How old a command may be when it arrives after its connection broke.
    pub(crate) zombie_age: u32,
    /// Looks at who holds the lock are answered, too, in any order with all else, and who has been refused
    /// retries as the nodes say. They promise to tell of a change, and never do.
    pub(crate) looks: bool,
    /// Answers are dealt with as soon as they are given.
    pub(crate) prompt: bool,
    /// The second client comes when the first has got the lock.
    pub(crate) in_turn: bool,
    /// The lock has a fence, no time passes, and so many keys vanish, whenever and wherever they like:
    /// what holds then rests on no clock.
    pub(crate) vanishing: Option<u8>,
    /// The clients, or those that want the same mode, do the same, so that it may be called the first one whose command comes first.
    pub(crate) alike: bool,
}

impl Bounds {
    /// What a client asks for.
    pub(crate) fn request(&self, client: usize) -> Request {
        let ticks = |ticks: u32| Duration::from_nanos(TICK.unsigned_abs()) * ticks;
        let options = TimingOptions {
            ttl: ticks(self.ttl),
            max_ttl: ticks(self.ttl),
            drift_ppm: u32::try_from(self.assumed().ppm).unwrap_or(0),
            drift_constant: Duration::ZERO,
            // None, so that a mistake of one tick shows.
            margin: Some(Duration::ZERO),
            node_timeout: Some(ticks(1).min(ticks(self.ttl) / 4)),
            ..TimingOptions::default()
        };
        let timing = match Timing::new(options) {
            Ok(timing) => timing,
            Err(error) => unreachable!("the bounds of a model go together: {error}"),
        };
        Request {
            keys: self.keys_of(client),
            mode: self.modes[client],
            prefix_bytes: 0,
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
            max_hold: ticks(1000),
            progress: true,
            fenced: self.vanishing.map(|_| Counter {
                keys: self.keys_of(client).map(|key| format!("quorlock:fence:{key}").into()),
                ttl_ms: u64::MAX,
                marker: "quorlock:node".into(),
            }),
        }
    }

    fn keys_of(&self, client: usize) -> Keys {
        let keys = self.keys[client].iter().map(|place| Key::from(RESOURCES[*place]));
        Keys::new(keys).unwrap_or_else(|| unreachable!("no key twice, and one at least"))
    }

    /// What the clients measure nodes by.
    pub(crate) fn rules(&self, nodes: usize, needed: usize) -> Rules {
        let names: Vec<_> = (0..nodes).map(|node| format!("n{node}").into()).collect();
        let max_ttl_ms = u64::from(self.ttl) * (TICK / MS).unsigned_abs();
        let cluster = Cluster::new(&names, needed, max_ttl_ms);
        let (marker, adoption) = ("quorlock:node".into(), "quorlock:adopt".into());
        let durable = NodeSet::default();
        let words = Words::default();
        Rules { guard: self.guard, cluster, names, marker, adoption, durable, words }
    }

    /// A node that has been running for so many seconds, in whole ticks, is through its quarantine: more
    /// makes no difference to anybody.
    pub(crate) fn grown_s(&self) -> i64 {
        let quarantine = self.rules(1, 1).quarantine().as_nanos();
        let ticks = quarantine.div_ceil(TICK.unsigned_abs().into());
        i64::try_from(ticks).unwrap_or(i64::MAX) * (TICK / SECOND)
    }

    /// The drift that is allowed for, as a rate.
    pub(crate) fn assumed(&self) -> Drift {
        Drift { ppm: i64::from(self.drift) * 1_000_000 / i64::from(self.ttl), constant: 0 }
    }
}
