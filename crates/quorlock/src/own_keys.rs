//! The library's own keys on the nodes: the key prefix, [`RESERVED`] and a name.

use quorlock_core::Key;

/// The word in each of the library's own keys. No prefix and no key of a lock contains the word, because a lock on
/// `app:quorlock:node` would overwrite the marker of clients with the prefix `app:`.
pub const RESERVED: &str = "quorlock:";

/// The name of the marker, which shows that the node has not lost its data.
pub const MARKER: &str = "node";

/// The name of the adoption, a key that begins a node's wait for a new marker.
pub(crate) const ADOPTION: &str = "adopt";

/// The name of the registration, a key that names the database in which a server has its locks.
pub const DATABASE: &str = "database";

/// The name of the key that a client writes before it asks a node's replicas for their acknowledgement.
pub const REPLICATED: &str = "replicated";

pub(crate) fn own_key(prefix: &str, name: &str) -> Key {
    format!("{prefix}{RESERVED}{name}").into()
}

/// The key of the counter of fencing tokens for this resource.
pub(crate) fn counter(prefix: &str, resource: &str) -> Key {
    own_key(prefix, &format!("fence:{resource}"))
}

/// The key of the nonce of a lock on this resource with a value of the caller.
pub(crate) fn nonce(prefix: &str, resource: &str) -> Key {
    [prefix, RESERVED, "take:", resource].concat().into()
}

/// The key prefix at the start of a marker's key; `None` if the key is no marker's.
pub fn prefix_of_marker(key: &str) -> Option<&str> {
    key.strip_suffix(MARKER)?.strip_suffix(RESERVED)
}
