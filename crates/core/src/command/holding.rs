//! The state of a lock's keys, as nodes report it.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::keys::Mode;
use crate::shown::shown_value;
use crate::token::Value;

/// The state of a lock's keys.
///
/// `Debug` shows the beginning of a value: it may be a holder's token.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Holding {
    /// There is no such key: the lock is free on this node.
    Free,
    /// The key holds a value.
    Held {
        /// The value; cut to [`Holding::VALUE_BYTES_MAX`] bytes.
        value: Vec<u8>,
        /// Time until it expires; `None`: never, so it is no lock of this family.
        ttl: Option<Duration>,
    },
    /// Readers hold the key: shared locks of this family.
    Shared {
        /// The readers that the node reported; at most [`Holding::READERS_MAX`].
        readers: Vec<Reader>,
        /// How many readers there are.
        count: usize,
        /// Time until the last of them has ended.
        ttl: Duration,
    },
    /// A writer that waits has announced itself: no reader is let in any more. Told only to who asks as a reader, and
    /// only where readers hold the key or nobody does.
    Announced {
        /// The writer's value for this, as [`Holding::Held`] has it.
        value: Vec<u8>,
        /// Time until that expires.
        ttl: Option<Duration>,
    },
    /// The key is of another type. Something foreign holds the name; it is never deleted.
    OtherType {
        /// Time until it expires; `None`: never.
        ttl: Option<Duration>,
    },
    /// Of a lock with several keys, what each of them holds, in the order of the keys; not all are free.
    Several(Vec<Holding>),
}

/// One reader of a key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reader {
    /// The value that it stored.
    pub value: Vec<u8>,
    /// Time until it ends.
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
    /// More of a foreign value than this is not kept.
    pub const VALUE_BYTES_MAX: usize = 512;

    /// At most this number of a key's readers is listed.
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

    /// Of each key of the lock, what it holds.
    pub fn each(&self) -> &[Self] {
        match self {
            Self::Several(holdings) => holdings,
            one => core::slice::from_ref(one),
        }
    }

    /// All keys that are held are held by this value.
    pub(crate) fn is_of(&self, value: &Value) -> bool {
        let bytes = &value.as_bytes()[..value.as_bytes().len().min(Self::VALUE_BYTES_MAX)];
        let is_its = |holding: &Self| matches!(holding, Self::Held { value, .. } if value == bytes);
        let is_free = |holding: &Self| *holding == Self::Free;
        self.each().iter().all(|it| is_its(it) || is_free(it)) && self.each().iter().any(is_its)
    }

    /// Time until the keys have no holder any more that excludes this mode, if nobody does anything: zero if there is
    /// none, `None` if that is never.
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

    /// All holders of the keys are readers, and there is at least one.
    pub fn is_shared_alone(&self) -> bool {
        let mut held = self.each().iter().filter(|holding| **holding != Self::Free).peekable();
        held.peek().is_some() && held.all(|holding| matches!(holding, Self::Shared { .. }))
    }
}
