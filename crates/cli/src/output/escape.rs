//! The last step before text leaves this process: nothing is left in it that a terminal would obey.
//!
//! Most text of others is escaped and cut where it is read. These functions see all that is printed, so a place that
//! was forgotten does no harm.

use std::fmt::{Display, Write as _};

/// Whether a terminal obeys the character, or shows the text behind it in another order.
fn is_obeyed(c: char) -> bool {
    let reorders = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || reorders
}

/// Text for people. Line feeds stay, because messages have several lines.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if is_obeyed(c) && c != '\n' => plain.extend(c.escape_default()),
            c => plain.push(c),
        }
    }
    plain
}

/// A value of any bytes for a terminal, as one line.
pub(crate) fn one_line(value: &[u8]) -> String {
    let mut line = String::with_capacity(value.len());
    for chunk in value.utf8_chunks() {
        line += &plain(chunk.valid()).replace('\n', "\\n");
        chunk.invalid().iter().for_each(|byte| line += &format!("\\x{byte:02x}"));
    }
    line
}

/// The JSON as one line, with the line feed. JSON has such characters only in strings, where they can be escaped.
pub(crate) fn json_line(json: impl Display) -> String {
    let mut line = String::new();
    for c in json.to_string().chars() {
        // Writing to a string never fails. All of these characters have at most four digits.
        let _ = match c {
            c if is_obeyed(c) => write!(line, "\\u{:04x}", u32::from(c)),
            c => line.write_char(c),
        };
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn nothing_is_left_that_a_terminal_obeys_and_json_means_the_same() {
        let obeyed = (0..0x20).chain(0x7f..0xa0).chain([0x61c, 0x200e, 0x200f, 0x2028, 0x2029]);
        let obeyed = obeyed.chain(0x202a..0x202f).chain(0x2066..0x206a).filter_map(char::from_u32);
        for c in obeyed {
            let text = format!("x{c}y");
            assert!(c == '\n' || !plain(&text).contains(c), "{c:?}");
            assert!(!one_line(text.as_bytes()).contains(c), "{c:?}");
            let line = json_line(json!({ "a": text }));
            assert!(!line.trim_end_matches('\n').contains(c), "{c:?}");
            assert_eq!(serde_json::from_str::<Value>(&line).expect("JSON"), json!({ "a": text }));
        }
        assert_eq!(plain("é\u{9b}2J\n"), "é\\u{9b}2J\n");
        assert_eq!(one_line(b"a\xff\nb"), "a\\xff\\nb");
    }
}
