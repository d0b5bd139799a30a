//! A model node: what one Redis server does with our commands, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use quorlock_core::{Answer, Command, Counter, Failure, FailureKind, Holding, Key, Value};

/// One millisecond in the nanoseconds of the virtual clock.
pub(crate) const MS: i64 = 1_000_000;

/// What the wall clocks show at the start.
pub(crate) const EPOCH: i64 = 1_000_000 * MS;

/// One server. Its clock may run fast, so that keys are gone before their time.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Node {
    pub(crate) keys: BTreeMap<Key, Stored>,
    /// Every command is answered by this error, and not carried out.
    pub(crate) failing: Option<FailureKind>,
    /// A lock can be taken and given back here, and not looked at: the user may not `GET`.
    pub(crate) blind: bool,
    /// How much the node's clock runs fast, in parts per million.
    pub(crate) fast_ppm: i64,
    /// The counters of locks with a fence. They outlive the locks, and a restart.
    pub(crate) counters: BTreeMap<Key, u64>,
}

/// What a key holds, and until when.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Stored {
    /// `None`: the key is not a string.
    pub(crate) value: Option<Vec<u8>>,
    /// `None`: never.
    pub(crate) expires: Option<i64>,
}

impl Node {
    /// Carries out one command, atomically.
    pub(crate) fn execute(&mut self, command: &Command, now: i64) -> Answer {
        if let Some(kind) = self.failing {
            // An error by name in answer to a `SET` says that no key was set.
            let declined =
                matches!(command, Command::Acquire { .. }) && kind != FailureKind::Rejected;
            let failure = if declined { Failure::unsent(kind) } else { Failure::new(kind) };
            return Answer::Failed(failure);
        }
        self.expire(now);
        match command {
            Command::Acquire { key, .. } if self.keys.contains_key(key) => Answer::Refused,
            Command::Acquire { key, value, ttl_ms } => {
                let expires = Some(self.expiry(*ttl_ms, now));
                let stored = Stored { value: Some(value.as_bytes().to_vec()), expires };
                self.keys.insert(key.clone(), stored);
                Answer::Granted
            }
            Command::Extend { key, value, ttl_ms } => {
                let expires = self.expiry(*ttl_ms, now);
                match self.keys.get_mut(key) {
                    Some(stored) if stored.value.as_deref() == Some(value.as_bytes()) => {
                        stored.expires = stored.expires.max(Some(expires));
                        Answer::Extended
                    }
                    Some(_) => Answer::Other,
                    None => Answer::Absent,
                }
            }
            Command::AcquireFenced { key, counter, .. } if self.keys.contains_key(key) => {
                let holding = Box::new(self.look(key, now));
                Answer::RefusedFenced { fence: self.counter(counter), holding }
            }
            Command::AcquireFenced { key, value, ttl_ms, counter, proposal } => {
                let in_an_hour = ((EPOCH + now) / 1000) as u64 + 3_600_000_000;
                let fence = (self.counter(counter) + 1).max((*proposal).min(in_an_hour));
                self.grant_fenced(key, value, *ttl_ms, counter, fence, now)
            }
            Command::HealFenced { key, .. } if self.keys.contains_key(key) => Answer::Refused,
            Command::HealFenced { key, value, ttl_ms, counter, to } => {
                match self.counter(counter) {
                    fence if fence > *to => Answer::Superseded { fence },
                    _ => self.grant_fenced(key, value, *ttl_ms, counter, *to, now),
                }
            }
            Command::ExtendFenced { key, value, ttl_ms, .. } => {
                let (key, value, ttl_ms) = (key.clone(), value.clone(), *ttl_ms);
                self.execute(&Command::Extend { key, value, ttl_ms }, now)
            }
            Command::Raise { key, value, counter, to } => match self.keys.get(key) {
                Some(stored) if stored.value.as_deref() == Some(value.as_bytes()) => {
                    let fence = self.counter(counter).max(*to);
                    self.counters.insert(counter.key.clone(), fence);
                    Answer::Raised { fence }
                }
                Some(_) => Answer::Other,
                None => Answer::Absent,
            },
            Command::Release { key, value, .. } => match self.keys.get(key) {
                Some(stored) if stored.value.as_deref() == Some(value.as_bytes()) => {
                    self.keys.remove(key);
                    Answer::Deleted
                }
                Some(_) => Answer::Other,
                None => Answer::Absent,
            },
            Command::Inspect { .. } | Command::Watch { .. } if self.blind => {
                Answer::Failed(Failure::new(FailureKind::Rejected))
            }
            Command::Inspect { key } => Answer::Seen(self.look(key, now)),
            Command::Watch { key } => Answer::Watched(self.look(key, now)),
            _ => unreachable!("there are no other commands"),
        }
    }

    fn grant_fenced(
        &mut self,
        key: &Key,
        value: &Value,
        ttl_ms: u64,
        counter: &Counter,
        fence: u64,
        now: i64,
    ) -> Answer {
        self.counters.insert(counter.key.clone(), fence);
        let (key, value) = (key.clone(), value.clone());
        let granted = self.execute(&Command::Acquire { key, value, ttl_ms }, now);
        assert_eq!(granted, Answer::Granted);
        Answer::GrantedFenced { fence }
    }

    fn counter(&self, counter: &Counter) -> u64 {
        self.counters.get(&counter.key).copied().unwrap_or(0)
    }

    /// Forgets the keys whose time is over.
    pub(crate) fn expire(&mut self, now: i64) {
        self.keys.retain(|_, stored| stored.expires.is_none_or(|at| now < at));
    }

    fn look(&self, key: &Key, now: i64) -> Holding {
        let Some(stored) = self.keys.get(key) else {
            return Holding::Free;
        };
        let ttl = stored.expires.map(|at| Duration::from_nanos((at - now) as u64));
        match &stored.value {
            Some(value) => Holding::Held { value: value.clone(), ttl },
            None => Holding::OtherType { ttl },
        }
    }

    /// Servers reckon in whole milliseconds.
    fn expiry(&self, ttl_ms: u64, now: i64) -> i64 {
        let ttl = ttl_ms as i64 * MS;
        now / MS * MS + ttl - ttl / 1_000_000 * self.fast_ppm
    }
}
