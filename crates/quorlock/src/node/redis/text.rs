//! Text from a server, as messages show it.

use quorlock_core::shown::{LINE_MAX, shown};

/// One printable line of a bounded length. A server repeats the arguments of a command that it does not know, such as
/// a password or a token; those are cut off.
pub(super) fn for_people(text: &str) -> String {
    let text = text.split(", with args beginning with").next().unwrap_or_default();
    shown(text.trim(), LINE_MAX)
}
