//! How much room there is on a terminal.

use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// How many characters fit beside and below each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// The size where the terminal does not tell, and the width elsewhere.
pub(crate) const USUAL: Window = Window { columns: 80, rows: 24 };

impl Window {
    /// As of now: people change it.
    pub(crate) fn of(terminal: impl AsFd) -> Self {
        match tcgetwinsize(terminal) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                Self { columns: size.ws_col.into(), rows: size.ws_row.into() }
            }
            _ => USUAL,
        }
    }

    /// The width of a line that is written over: one that filled the row might wrap, and what wraps
    /// stays behind.
    pub(crate) const fn line(self) -> usize {
        self.columns.saturating_sub(1)
    }
}

/// The text, or as much of it as there is room for.
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
