//! The size of the terminal, and texts cut to its width.

use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// In characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TerminalSize {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// The size if the terminal does not report one, and the width without a terminal.
pub(crate) const USUAL: TerminalSize = TerminalSize { columns: 80, rows: 24 };

impl TerminalSize {
    pub(crate) fn of(terminal: impl AsFd) -> Self {
        match tcgetwinsize(terminal) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                Self { columns: size.ws_col.into(), rows: size.ws_row.into() }
            }
            _ => USUAL,
        }
    }

    /// Length of the longest line that can be replaced. A line that fills the row might wrap, and its second row would
    /// remain on the screen.
    pub(crate) const fn line(self) -> usize {
        self.columns.saturating_sub(1)
    }
}

/// The text, cut to this number of characters.
pub(crate) fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let kept = text.chars().take(room.saturating_sub(1));
    kept.chain(['…']).take(room).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_cut_and_shows_it() {
        assert_eq!(cut("waiting", 7), "waiting");
        assert_eq!(cut("wäiting", 6), "wäiti…");
        assert_eq!(cut("waiting", 1), "…");
        assert_eq!(cut("waiting", 0), "");
        assert_eq!(USUAL.line(), 79);
    }
}
