//! Text from the caller, as messages show it.

/// Escapes everything that a terminal or a log would not take for plain text. Text from servers goes through
/// [`shown`](quorlock_core::shown::shown) instead, which also shortens it.
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

/// The printable text between quotation marks.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text))
}
