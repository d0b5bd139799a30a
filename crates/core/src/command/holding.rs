//! The state of a lock's keys, as nodes report it.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::display::shown_value;
use crate::keys::Mode;
use crate::token::Value;

/// The state of a lock's keys.
///
/// `Debug` shows only the beginning of a value, because the value may be a holder's token.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Holding {
    /// The key is absent: the lock is free on this node.
    Free,
    /// The key holds a value.
    Held {
        /// The value; cut to [`Holding::VALUE_BYTES_MAX`] bytes.
        value: Vec<u8>,
        /// Time until the key expires; `None` if it never expires, which means that the value is no lock.
        ttl: Option<Duration>,
    },
    /// Readers hold the key.
    Shared {
        /// The readers that the node reported; at most [`Holding::READERS_MAX`].
        readers: Vec<Reader>,
        /// The number of readers.
        count: usize,
        /// Time until the last reader ends.
        ttl: Duration,
    },
    /// A waiting writer has an intent, so the node refuses new readers. Only an inspection by a reader gets this state,
    /// and only if readers hold the key or it is free.
    Announced {
        /// The value of the intent, cut like that of [`Holding::Held`].
        value: Vec<u8>,
        /// Time until the intent expires; `None` if it never expires.
        ttl: Option<Duration>,
    },
    /// The key has a type that locks do not have. The library never deletes it.
    OtherType {
        /// Time until the key expires; `None` if it never expires.
        ttl: Option<Duration>,
    },
    /// The states of several keys, in the order of the keys. At least one is not free.
    Several(Vec<Holding>),
}

/// One reader of a key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reader {
    /// The reader's value.
    pub value: Vec<u8>,
    /// Time until the reader ends.
    pub ttl: Duration,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = shown_value(&self.value);
        f.debug_struct("Reader").field("value", &value).field("ttl", &self.ttl).finish()
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => f.write_str("Free"),
            Self::Held { value, ttl } => {
                let value = shown_value(value);
                f.debug_struct("Held").field("value", &value).field("ttl", ttl).finish()
            }
            Self::Shared { readers, count, ttl } => f
                .debug_struct("Shared")
                .field("readers", readers)
                .field("count", count)
                .field("ttl", ttl)
                .finish(),
            Self::Announced { value, ttl } => {
                let value = shown_value(value);
                f.debug_struct("Announced").field("value", &value).field("ttl", ttl).finish()
            }
            Self::OtherType { ttl } => f.debug_struct("OtherType").field("ttl", ttl).finish(),
            Self::Several(holdings) => f.debug_tuple("Several").field(holdings).finish(),
        }
    }
}

impl Holding {
    /// The number of bytes to which a reported value is cut.
    pub const VALUE_BYTES_MAX: usize = 512;

    /// The largest number of a key's readers that an answer lists.
    pub const READERS_MAX: usize = 64;

    /// Combines the states of the keys of one lock.
    pub fn of_all(mut holdings: Vec<Self>) -> Self {
        match holdings.pop() {
            Some(only) if holdings.is_empty() => only,
            Some(last) if last != Self::Free || holdings.iter().any(|it| *it != Self::Free) => {
                holdings.push(last);
                Self::Several(holdings)
            }
            _ => Self::Free,
        }
    }

    /// Returns the state of each key.
    pub fn each(&self) -> &[Self] {
        match self {
            Self::Several(holdings) => holdings,
            one => core::slice::from_ref(one),
        }
    }

    /// Whether all keys hold this value or are free, and at least one of them holds it.
    pub(crate) fn is_of(&self, value: &Value) -> bool {
        let bytes = &value.as_bytes()[..value.as_bytes().len().min(Self::VALUE_BYTES_MAX)];
        let is_its = |holding: &Self| matches!(holding, Self::Held { value, .. } if value == bytes);
        let is_free = |holding: &Self| *holding == Self::Free;
        self.each().iter().all(|it| is_its(it) || is_free(it)) && self.each().iter().any(is_its)
    }

    /// Returns the time until the last holder that excludes this mode expires: zero if there is none, `None` if a
    /// holder never expires.
    pub fn free_in(&self, mode: Mode) -> Option<Duration> {
        match self {
            Self::Free => Some(Duration::ZERO),
            Self::Shared { .. } if mode == Mode::Shared => Some(Duration::ZERO),
            Self::Shared { ttl, .. } => Some(*ttl),
            Self::Held { ttl, .. } | Self::OtherType { ttl } => *ttl,
            Self::Announced { ttl, .. } => *ttl,
            Self::Several(holdings) => {
                holdings.iter().try_fold(Duration::ZERO, |longest, holding| {
                    holding.free_in(mode).map(|it| it.max(longest))
                })
            }
        }
    }
}
