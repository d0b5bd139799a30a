//! Shows the demo. On a terminal, a panel is rewritten below the lines that stay. Elsewhere all lines stay.

use std::io::{self, IsTerminal as _};

use anstyle::Style;

use crate::terminal_size::{TerminalSize, USUAL, cut};

pub(super) mod style {
    use anstyle::{AnsiColor, Style};

    pub(crate) const PLAIN: Style = Style::new();
    pub(crate) const BOLD: Style = Style::new().bold();
    pub(crate) const DIM: Style = Style::new().dimmed();
    pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
    pub(crate) const ODD: Style = AnsiColor::Yellow.on_default();
    pub(crate) const BAD: Style = AnsiColor::Red.on_default();
}

/// Width of a paragraph, which fits a terminal of 80 columns.
const COLUMNS: usize = 78;

/// Standard output. Between two calls, the cursor is at the place of the panel's first line.
pub(super) struct Screen {
    /// Whether standard output is a terminal on which the panel can be rewritten.
    pub(super) is_live: bool,
    has_colours: bool,
    size: TerminalSize,
}

impl Screen {
    pub(super) fn new() -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_live = io::stdout().is_terminal() && !is_dumb;
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let mut screen = Self { is_live, has_colours: is_live && !is_plain, size: USUAL };
        screen.enter();
        screen
    }

    /// Call this when the terminal's size may have changed, or after another program had the terminal.
    pub(super) fn enter(&mut self) {
        self.size = TerminalSize::of(io::stdout());
        if self.is_live {
            // Hides the cursor, which would jump.
            put("\x1b[?25l");
        }
    }

    /// Removes the panel, and restores the terminal for other programs.
    pub(super) fn leave(&self) {
        if self.is_live {
            put("\r\x1b[J\x1b[?25h");
        }
    }

    /// Writes a lasting line in place of the panel. The next call of `show` draws the panel below this line.
    pub(super) fn line(&self, style: Style, text: &str) {
        let clear = if self.is_live { "\r\x1b[J" } else { "" };
        put(&format!("{clear}{}\n", self.styled(style, text)));
    }

    /// Writes a text in lines that begin with `first` or, from the second line on, with `rest`.
    pub(super) fn paragraph(&self, style: Style, [first, rest]: [&str; 2], text: &str) {
        let mut start = first;
        for line in wrapped(text, COLUMNS - first.chars().count()) {
            self.line(style, &format!("{start}{line}"));
            start = rest;
        }
    }

    pub(super) fn show(&self, panel: &[(Style, String)]) {
        let panel = &panel[..panel.len().min(self.size.rows.saturating_sub(1))];
        // The rest of each row is cleared after its text is written. To clear the row first would flicker.
        let end_of_line = if self.is_live { "\x1b[K\n" } else { "\n" };
        let mut text = String::new();
        for (style, line) in panel {
            // A line that wraps would take two rows, and the cursor would not return to the first line.
            text += &self.styled(*style, &cut(line, self.size.line()));
            text += end_of_line;
        }
        if self.is_live {
            text = format!("\r{text}\x1b[J\x1b[{}A", panel.len());
        }
        put(&text);
    }

    fn styled(&self, style: Style, text: &str) -> String {
        let style = if self.has_colours { style } else { style::PLAIN };
        format!("{style}{text}{style:#}")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Breaks the lines of a text at spaces. A word longer than `width` stays whole.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (place, word) in text.lines().flat_map(|line| line.split_whitespace().enumerate()) {
        let has_room = |line: &String| line.chars().count() + 1 + word.chars().count() <= width;
        match lines.last_mut() {
            Some(line) if place > 0 && has_room(line) => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn put(text: &str) {
    // If the reader has closed the pipe, the demo still runs to its end.
    let _ = crate::output::write(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_broken_at_spaces() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("one\n  two three", 8), ["one", "two", "three"]);
        assert_eq!(wrapped("incomprehensible word", 8), ["incomprehensible", "word"]);
    }
}
