//! What the nodes keep of a lock: its value, under one key or several, as a writer's or a reader's.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

use crate::command::Command;
use crate::token::{Key, Value};

/// The keys of one lock: at least one, no key twice, in the order of their bytes.
///
/// Nearly every lock has one key. Then this is no larger than the key, and needs no allocation of its own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Keys(Few);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Few {
    One(Key),
    /// Behind a thin pointer, or all would be larger.
    Several(Arc<Vec<Key>>),
}

impl Keys {
    /// A lock has at most so many keys.
    pub const MAX: usize = 64;

    /// These keys, in order. `None` if there is no key, one key twice, or more than [`Keys::MAX`].
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Option<Self> {
        let mut keys: Vec<Key> = keys.into_iter().take(Self::MAX + 1).collect();
        keys.sort_unstable();
        let is_twice = keys.windows(2).any(|pair| pair[0] == pair[1]);
        match keys.len() {
            0 => None,
            1 => keys.pop().map(Self::from),
            count if is_twice || count > Self::MAX => None,
            _ => Some(Self(Few::Several(Arc::new(keys)))),
        }
    }

    /// Another key for each of these, in the same order.
    #[must_use]
    pub fn map(&self, to: impl FnMut(&Key) -> Key) -> Self {
        let mut to = to;
        match &self.0 {
            Few::One(key) => Self(Few::One(to(key))),
            Few::Several(keys) => Self(Few::Several(Arc::new(keys.iter().map(to).collect()))),
        }
    }

    /// The key, if there is but one.
    pub fn single(&self) -> Option<&Key> {
        match &self.0 {
            Few::One(key) => Some(key),
            Few::Several(_) => None,
        }
    }

    /// Some key is in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.iter().any(|key| other.contains(key))
    }
}

impl From<Key> for Keys {
    fn from(key: Key) -> Self {
        Self(Few::One(key))
    }
}

impl From<&str> for Keys {
    fn from(key: &str) -> Self {
        Self(Few::One(key.into()))
    }
}

impl Deref for Keys {
    type Target = [Key];

    fn deref(&self) -> &[Key] {
        match &self.0 {
            Few::One(key) => core::slice::from_ref(key),
            Few::Several(keys) => keys,
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Few::One(key) => key.fmt(f),
            Few::Several(keys) => keys.fmt(f),
        }
    }
}

/// Whom a lock excludes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Mode {
    /// All others: a mutex, or the writer of a read-write lock.
    #[default]
    Exclusive,
    /// Those that are exclusive: a reader.
    Shared,
}

impl Mode {
    /// Whether two locks of one key, in these modes, exclude each other.
    pub const fn excludes(self, other: Self) -> bool {
        !matches!((self, other), (Self::Shared, Self::Shared))
    }
}

/// What the nodes keep of a lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The keys of the lock.
    pub keys: Keys,
    /// Whether as a writer's or a reader's.
    pub mode: Mode,
    /// The whole value, the same under each key.
    pub value: Value,
}

impl Entry {
    /// The command that takes it from a node. `tell`: it matters what the node has instead of it.
    pub(crate) fn release(&self, tell: bool) -> Command {
        let (keys, value) = (self.keys.clone(), self.value.clone());
        match self.mode {
            Mode::Exclusive => Command::Release { keys, value, tell },
            Mode::Shared => Command::ReleaseShared { keys, value },
        }
    }
}

/// Stands in the names of the keys where writers that wait leave word, between prefix and resource. Neither may
/// contain it.
const INTENT: &str = "quorlock:intent:";

/// Where writers that wait for these keys leave word; the first `prefix_bytes` of each are the client's prefix.
pub fn intents(keys: &Keys, prefix_bytes: u16) -> Keys {
    let prefix_bytes = usize::from(prefix_bytes);
    keys.map(|key| {
        let (prefix, resource) = key.split_at_checked(prefix_bytes).unwrap_or(("", key));
        [prefix, INTENT, resource].concat().into()
    })
}

/// The key of the lock that such a key belongs to; `None` if it is no such key.
pub(crate) fn of_intent(intent: &str) -> Option<Key> {
    let (prefix, resource) = intent.split_once(INTENT)?;
    Some([prefix, resource].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn keys(names: &[&str]) -> Option<Keys> {
        Keys::new(names.iter().map(|name| Key::from(*name)))
    }

    #[test]
    fn the_order_in_which_keys_are_named_does_not_matter() {
        assert_eq!(keys(&["b", "a"]), keys(&["a", "b"]));
        assert_eq!(keys(&["b", "a"]).map(|keys| keys[0].clone()), Some("a".into()));
        assert_eq!(keys(&["a"]), Some("a".into()));
        assert_eq!(
            format!("{:?} {:?}", keys(&["a"]), keys(&["b", "a"])),
            r#"Some("a") Some(["a", "b"])"#
        );
    }

    #[test]
    fn no_key_a_key_twice_or_too_many_are_refused() {
        assert_eq!((keys(&[]), keys(&["a", "b", "a"])), (None, None));
        let many = |count: usize| Keys::new((0..count).map(|nth| format!("{nth:03}").into()));
        assert!(many(Keys::MAX).is_some() && many(Keys::MAX + 1).is_none());
    }

    #[test]
    fn a_lock_with_one_key_is_no_larger_than_the_key() {
        assert_eq!(size_of::<Keys>(), size_of::<Key>());
    }

    #[test]
    fn where_writers_leave_word_is_found_from_the_key_and_back() {
        let keys = keys(&["app:a", "app:b"]).unwrap();
        let intents = intents(&keys, 4);
        assert_eq!(*intents, ["app:quorlock:intent:a", "app:quorlock:intent:b"].map(Key::from));
        assert_eq!(of_intent(&intents[1]), Some(keys[1].clone()));
        assert_eq!(of_intent("app:a"), None);
    }

    #[test]
    fn only_two_readers_do_not_exclude_each_other() {
        use Mode::{Exclusive, Shared};
        let pairs = [(Exclusive, Exclusive), (Exclusive, Shared), (Shared, Exclusive)];
        assert!(pairs.iter().all(|(one, other)| one.excludes(*other)));
        assert!(!Shared.excludes(Shared));
    }
}
