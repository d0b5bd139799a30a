//! Text from callers and servers, as messages show it.

use quorlock_core::shown::{LINE_MAX, shown};

/// Escapes everything that a terminal or a log would not take for plain text. For text from the caller.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\'' | '"' | '\\' => printable.push(c),
            _ => printable.extend(c.escape_debug()),
        }
    }
    printable
}

pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text))
}

/// One printable line of a bounded length, for text from a server. A server repeats the arguments of an unknown command,
/// such as a password or a token; those are cut off.
pub(crate) fn for_people(text: &str) -> String {
    let text = text.split(", with args beginning with").next().unwrap_or_default();
    shown(text.trim().trim_end_matches('.'), LINE_MAX)
}
