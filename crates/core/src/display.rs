//! Text and times as messages and logs display them. Text from nodes and other clients has no control characters there,
//! a bounded length and no complete token.
//!
//! Error replies, `INFO`, markers and adoptions of other clients, and the values of keys pass through these functions
//! before a message or a log shows them.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

/// Number of characters after which a line, such as a server's error, is cut.
pub const LINE_MAX: usize = 160;

/// Number of characters after which a word, such as a name or a version, is cut.
pub const WORD_MAX: usize = 64;

/// Number of characters after which another client's settings are cut. Settings contain the names of all nodes.
pub const SETTINGS_MAX: usize = 1000;

/// Characters at the beginning of a token that are shown.
const TOKEN_SHOWN: usize = 6;

/// A row of hexadecimal digits of at least this length may be a token.
const TOKEN_DIGITS: usize = 32;

/// A value of at most this length is shown in full, because it hides nothing: a token of this length could be guessed.
const WHOLE_MAX: usize = 8;

/// Returns a waiting time in whole seconds, rounded up, so the wait never takes longer than the message says.
pub fn seconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// Rounds a time up to whole milliseconds, because options accept no fraction.
pub fn ceil_ms(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// Formats a time as people write it, and a time of whole milliseconds as options accept it, without a fraction: `0s`,
/// `250ms`, `2500ms`, `25h`.
///
/// ```
/// use std::time::Duration;
/// use quorlock_core::display::{ceil_ms, exactly};
/// assert_eq!(exactly(Duration::from_millis(2500)), "2500ms");
/// assert_eq!(exactly(Duration::from_secs(90_000)), "25h");
/// assert_eq!(exactly(ceil_ms(Duration::from_micros(80_040))), "81ms");
/// ```
pub fn exactly(time: Duration) -> String {
    match (time.as_secs(), time.subsec_nanos()) {
        (0, 0) => "0s".into(),
        (seconds @ 3600.., 0) if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        (seconds @ 600.., 0) if seconds % 60 == 0 => format!("{}m", seconds / 60),
        (1.., ns @ 1..) if ns % 1_000_000 == 0 => format!("{}ms", time.as_millis()),
        _ => format!("{time:?}"),
    }
}

/// Escapes control characters, cuts whatever looks like a token to its beginning, and cuts the text to `max` characters
/// and an ellipsis.
///
/// ```
/// use quorlock_core::display::shown;
/// assert_eq!(shown("a\x1b[2J \"b\"", 80), "a\\u{1b}[2J \"b\"");
/// assert_eq!(shown("nodes=a,b,c", 7), "nodes=a…");
/// assert_eq!(shown("holds 0123456789abcdef0123456789abcdef01234567", 80), "holds 012345…");
/// ```
pub fn shown(text: &str, max: usize) -> String {
    let mut shown = String::new();
    let mut left = max;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        let (size, piece) = match (digits, c) {
            (TOKEN_DIGITS.., _) => {
                let mut start = String::from(&rest[..TOKEN_SHOWN]);
                start.push('…');
                (digits, start)
            }
            (1.., _) => (digits, String::from(&rest[..digits])),
            // Quotes are not escaped, because no program parses the text.
            (0, '\'' | '"' | '\\') => (1, String::from(c)),
            (0, c) => (c.len_utf8(), c.escape_debug().collect()),
        };
        let count = piece.chars().count();
        if count > left {
            shown.extend(piece.chars().take(if digits > 0 { left } else { 0 }));
            if !shown.ends_with('…') {
                shown.push('…');
            }
            return shown;
        }
        shown.push_str(&piece);
        left -= count;
        rest = &rest[size..];
    }
    shown
}

/// Formats the value of another client's key. If the value may be a token, only its beginning is shown.
///
/// ```
/// use quorlock_core::display::shown_value;
/// assert_eq!(shown_value(b"build-7"), "build-7");
/// assert_eq!(shown_value(b"6b1e64a6-9c28-4b1f-8f0e-3a6d6c1f0c11"), "6b1e64…");
/// ```
pub fn shown_value(value: &[u8]) -> String {
    // The function reads only the part that can be shown.
    let start = String::from_utf8_lossy(&value[..value.len().min(4 * (WHOLE_MAX + 1))]);
    match start.chars().count() {
        ..=WHOLE_MAX => shown(&start, 10 * WHOLE_MAX),
        _ => {
            let token: String = start.chars().take(TOKEN_SHOWN).collect();
            let mut shown = shown(&token, 10 * TOKEN_SHOWN);
            shown.push('…');
            shown
        }
    }
}

/// Formats the content of one of the library's own keys, if this version cannot parse the content: it is a later
/// version's text, or a value that may be a token.
///
/// ```
/// use quorlock_core::display::shown_text;
/// assert_eq!(shown_text("quorlock 2 nodes=a,b"), "quorlock 2 nodes=a,b");
/// assert_eq!(shown_text("something else"), "someth…");
/// ```
pub fn shown_text(text: &str) -> String {
    if text.starts_with("quorlock ") { shown(text, LINE_MAX) } else { shown_value(text.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn nothing_is_left_that_a_terminal_would_obey() {
        for c in (0..0x1_1000).chain(0xe_0000..0xe_1000).filter_map(char::from_u32) {
            let shown = shown(&format!("x{c}x"), 80);
            let is_plain =
                |c: char| !c.is_control() && !"\u{202e}\u{2066}\u{200b}\u{feff}".contains(c);
            assert!(shown.chars().all(is_plain), "{c:?}: {shown}");
        }
    }

    #[test]
    fn it_is_never_longer_than_it_may_be_and_never_has_a_token() {
        let token = "0123456789abcdef0123456789ABCDEF01234567";
        for max in 0..200 {
            for text in
                ["\u{1b}".repeat(70_000), token.repeat(2000), "é".repeat(300), "ab".repeat(9)]
            {
                let shown = shown(&text, max);
                assert!(shown.chars().count() <= max + 1, "{max}: {shown}");
                assert!(!shown.contains(token));
            }
        }
        assert_eq!(shown_value(token.as_bytes()), "012345…");
        assert_eq!(shown_value("ünïcödé!".as_bytes()), "ünïcödé!");
        assert_eq!(shown_value(&[0xff; 40]), "\u{fffd}".repeat(6) + "…");
        assert_eq!(shown(token, 4), "0123…");
    }
}
