//! Text from callers and servers, as messages show it.

use quorlock_core::display::{LINE_MAX, shown};

/// Escapes control characters in text from the caller, for terminals and logs.
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

/// Makes one printable line of bounded length from a server's text. Cuts off the arguments of an unknown command, which
/// the server repeats and which may be a password or a token.
pub(crate) fn for_people(text: &str) -> String {
    let text = text.split(", with args beginning with").next().unwrap_or_default();
    shown(text.trim().trim_end_matches('.'), LINE_MAX)
}
