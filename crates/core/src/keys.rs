//! The entry of a lock on the nodes: its keys, its mode and its value.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

use crate::command::{Command, Counter, ExtendForm, ReleaseForm};
use crate::redlock::quorum::NodeSet;
use crate::token::{Key, Value};

/// The keys of one lock: at least one, no key twice, in byte order.
///
/// Most locks have one key. Their `Keys` is as small as the key, and needs no allocation of its own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Keys(Few);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Few {
    One(Key),
    /// An `Arc<Vec>` has a thin pointer, and so keeps the enum smaller than an `Arc<[Key]>` would.
    Several(Arc<Vec<Key>>),
}

impl Keys {
    /// Largest number of keys of a lock.
    pub const MAX: usize = 64;

    /// Sorts the keys. `None` if there is no key, a key twice, or more than [`Keys::MAX`] keys.
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

    /// Applies `to` to each key. `to` must keep the order of the keys.
    #[must_use]
    pub fn map(&self, to: impl FnMut(&Key) -> Key) -> Self {
        let mut to = to;
        match &self.0 {
            Few::One(key) => Self(Few::One(to(key))),
            Few::Several(keys) => Self(Few::Several(Arc::new(keys.iter().map(to).collect()))),
        }
    }

    /// The only key; `None` if there are several.
    pub fn single(&self) -> Option<&Key> {
        match &self.0 {
            Few::One(key) => Some(key),
            Few::Several(_) => None,
        }
    }

    /// Whether the two locks have a key in common.
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

/// The mode of a lock: writer or reader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Mode {
    /// A mutex, or the writer of a read-write lock. Excludes all other locks.
    #[default]
    Exclusive,
    /// A reader. Excludes exclusive locks only.
    Shared,
}

impl Mode {
    /// Whether two locks of one key in these modes exclude each other.
    pub const fn excludes(self, other: Self) -> bool {
        !matches!((self, other), (Self::Shared, Self::Shared))
    }
}

/// The entry of a lock on a node: its keys, its mode and its value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The keys of the lock.
    pub keys: Keys,
    /// Writer or reader.
    pub mode: Mode,
    /// The whole value, the same under each key. For a lock with a value of the caller, this is the nonce.
    pub value: Value,
    /// How the attempt sets the keys, and the value that it replaces, if any.
    pub origin: Origin,
}

/// The way in which an attempt sets the keys.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Origin {
    /// The keys are absent, and the attempt sets them to a value of its own.
    #[default]
    Absent,
    /// A process detached the lock, and the attempt replaces that process's value.
    Detached(Arc<DetachedFrom>),
    /// As `Absent`, but with a value that the caller chose. A nonce keeps holders with an equal value apart.
    Taken(Arc<TakenFrom>),
}

/// The entry of a detached lock that an attempt takes over.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DetachedFrom {
    /// The value of the detached lock, the same under each key.
    pub value: Value,
    /// Nodes that had not answered all commands of the process that detached the lock. A command in flight could set
    /// the value there after another client has had the lock. So these nodes are not asked for votes.
    pub unanswered: NodeSet,
}

/// A value that the caller chose for a lock of one key.
///
/// Several callers may use the same value. So each attempt also sets a nonce of its own under a second key, and its
/// later commands compare both. The nonce is the `value` of the [`Entry`] and of its commands.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TakenFrom {
    /// The caller's value.
    pub value: Value,
    /// The key of the nonce, which identifies the attempt.
    pub nonce_key: Key,
    /// Whether extensions and releases compare the value alone, and ignore the nonce on the node.
    pub by_value: bool,
}

impl Entry {
    /// The command that removes the entry from a node. With `tell`, the answer distinguishes an absent key from another
    /// client's value.
    pub(crate) fn release(&self, tell: bool) -> Command {
        let (keys, mode, value) = (self.keys.clone(), self.mode, self.value.clone());
        let form = match (&self.origin, mode) {
            (Origin::Detached(from), _) => {
                return Command::GiveBack { keys, mode, value, to: from.value.clone() };
            }
            (Origin::Taken(from), _) if mutant!(FailedTakeByValue) => {
                ReleaseForm::Taken(Arc::new(TakenFrom { by_value: true, ..(**from).clone() }))
            }
            (Origin::Taken(from), _) => ReleaseForm::Taken(from.clone()),
            (Origin::Absent, Mode::Exclusive) => ReleaseForm::Plain { tell },
            (Origin::Absent, Mode::Shared) => ReleaseForm::Shared,
        };
        Command::Release { keys, value, form }
    }

    /// The command that extends the entry on a node.
    pub(crate) fn extend(&self, ttl_ms: u64, counter: Option<&Counter>) -> Command {
        let form = match (&self.origin, self.mode, counter) {
            (Origin::Taken(from), ..) => ExtendForm::Taken(from.clone()),
            (_, Mode::Exclusive, None) => ExtendForm::Plain,
            (_, Mode::Exclusive, Some(counter)) => ExtendForm::Fenced { counter: counter.clone() },
            (_, Mode::Shared, _) => ExtendForm::Shared,
        };
        Command::Extend { keys: self.keys.clone(), value: self.value.clone(), ttl_ms, form }
    }

    /// The entry of the lock once it is held: an attached lock is then released and extended like any other.
    pub(crate) fn held(mut self) -> Self {
        if let Origin::Detached(_) = self.origin {
            self.origin = Origin::Absent;
        }
        self
    }
}

/// The infix between prefix and resource in the key of a writer's intent. Prefix and resource must not contain it.
const INTENT: &str = "quorlock:intent:";

/// The keys for the intents of writers that wait for these keys. The first `prefix_bytes` of each key are the client's
/// prefix.
pub fn intents(keys: &Keys, prefix_bytes: u16) -> Keys {
    let prefix_bytes = usize::from(prefix_bytes);
    keys.map(|key| {
        let (prefix, resource) = key.split_at_checked(prefix_bytes).unwrap_or(("", key));
        [prefix, INTENT, resource].concat().into()
    })
}

/// The lock's key for an intent's key; `None` for any other key.
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
    fn the_key_of_an_intent_follows_from_the_key_and_back() {
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
