//! Shows the demo. On a terminal, a few lines are rewritten below the lines that stay. Elsewhere a plain line is
//! written every second.

use std::io::{self, IsTerminal as _, Write as _};

use anstyle::Style;

use crate::window::Window;

pub(super) mod style {
    use anstyle::{AnsiColor, Style};

    pub(crate) const PLAIN: Style = Style::new();
    pub(crate) const BOLD: Style = Style::new().bold();
    pub(crate) const DIM: Style = Style::new().dimmed();
    pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
    pub(crate) const ODD: Style = AnsiColor::Yellow.on_default();
    pub(crate) const BAD: Style = AnsiColor::Red.on_default();
}

pub(super) type StyledLine = Vec<(Style, String)>;

pub(super) struct Screen {
    /// Number of lines that the next call replaces; `None` if the output is not a terminal.
    live: Option<usize>,
    colours: bool,
    size: Window,
}

impl Screen {
    /// Examines the output. `rows`: number of lines to rewrite.
    pub(super) fn new(rows: usize) -> Self {
        let size = Window::of(io::stdout());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = io::stdout().is_terminal() && !dumb;
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let live = terminal && size.rows > rows;
        let colours = terminal && !no_colour;
        let mut screen = Self { live: live.then_some(0), colours, size };
        screen.enter();
        screen
    }

    /// Call this when the terminal's size may have changed, or after another program had the terminal.
    pub(super) fn enter(&mut self) {
        self.size = Window::of(io::stdout());
        if self.is_live() {
            // Hides the cursor, which would jump.
            put("\x1b[?25l");
        }
    }

    /// Restores the terminal for other programs.
    pub(super) fn leave(&mut self) {
        self.erase();
        if self.is_live() {
            put("\x1b[?25h");
        }
    }

    /// Whether lines can be rewritten.
    pub(super) fn is_live(&self) -> bool {
        self.live.is_some()
    }

    pub(super) fn line(&mut self, style: Style, text: &str) {
        self.erase();
        let line = vec![(style, text.to_owned())];
        put(&format!("{}\n", self.render(&line, usize::MAX)));
    }

    /// Shows lines that the next call replaces. Call this only if the screen [`is_live`].
    ///
    /// [`is_live`]: Screen::is_live
    pub(super) fn show(&mut self, lines: &[StyledLine]) {
        let mut text = self.up();
        for line in lines {
            // A line that wraps would take two rows, so the number of rows to replace would be wrong. The rest of each
            // row is cleared after its text is written. To clear the row first would flicker.
            text += &self.render(line, self.size.line());
            text += "\x1b[K\n";
        }
        text += "\x1b[J";
        put(&text);
        self.live = Some(lines.len());
    }

    /// Removes the lines that the next call of `show` would replace.
    pub(super) fn erase(&mut self) {
        let up = self.up();
        if !up.is_empty() {
            put(&format!("{up}\x1b[J"));
            self.live = Some(0);
        }
    }

    /// Moves the cursor to the first of the lines to replace.
    fn up(&self) -> String {
        match self.live {
            None | Some(0) => String::new(),
            Some(lines) => format!("\r\x1b[{lines}A"),
        }
    }

    fn render(&self, line: &StyledLine, mut room: usize) -> String {
        let mut text = String::new();
        for (style, piece) in line {
            let shown: String = piece.chars().take(room).collect();
            room -= shown.chars().count();
            let style = if self.colours { *style } else { style::PLAIN };
            text += &format!("{style}{shown}{style:#}");
        }
        text
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Wraps the lines of a text at spaces. A word longer than `width` stays whole.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for long in text.lines() {
        let mut line = String::new();
        for word in long.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

fn put(text: &str) {
    // If the reader has closed the pipe, the demo still runs to its end.
    let _ = io::stdout().write_all(text.as_bytes());
    let _ = io::stdout().flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(colours: bool) -> Screen {
        Screen { live: None, colours, size: crate::window::USUAL }
    }

    #[test]
    fn a_line_is_cut_at_the_terminals_width_whatever_its_colours() {
        let line = vec![(style::BOLD, "abc".to_owned()), (style::PLAIN, "def".to_owned())];
        assert_eq!(screen(false).render(&line, 5), "abcde");
        assert_eq!(screen(true).render(&line, 5), "\x1b[1mabc\x1b[0mde");
        assert_eq!(screen(false).render(&line, 2), "ab");
    }

    #[test]
    fn texts_are_broken_at_spaces() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("one\n  two three", 8), ["one", "two", "three"]);
        assert_eq!(wrapped("incomprehensible word", 8), ["incomprehensible", "word"]);
    }
}
