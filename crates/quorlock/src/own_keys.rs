//! The library's own keys on the nodes.

use quorlock_core::Key;

/// Each of the library's own keys is the prefix, this word and a name. No prefix and no key of a lock contains the word,
/// because a lock on `app:quorlock:node` would overwrite the marker of clients with the prefix `app:`.
pub const RESERVED: &str = "quorlock:";

/// The name of the marker.
pub(crate) const MARKER: &str = "node";

/// The own key with this name.
pub(crate) fn own_key(prefix: &str, name: &str) -> Key {
    format!("{prefix}{RESERVED}{name}").into()
}
