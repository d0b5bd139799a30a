//! A recorded terminal session, as text: asciicast, version 2. Its first line is the size, and each
//! further line is a time in seconds and what was written then.

use std::path::Path;
use std::time::Duration;
use std::{env, fmt::Write as _};

use rustix::system::uname;
use serde_json::{Value, json};

use super::terminal::{Piece, watch};
use crate::cargo;

/// The width that the demo is made for.
const COLUMNS: u16 = 80;

/// So many that nothing leaves the terminal at its top.
const ROWS: u16 = 200;

/// A recorded terminal session.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TerminalSession {
    pub(super) title: String,
    pub(super) size: [u16; 2],
    pub(super) pieces: Vec<Piece>,
}

impl TerminalSession {
    /// Runs the demo and records it.
    ///
    /// # Errors
    /// Why there is no demo, or what it says that is nobody's business.
    pub(super) fn of_the_demo(workspace: &Path) -> Result<Self, String> {
        let mut demo = cargo(workspace);
        // Of cargo we hear errors only. Temporary files have the same names on every machine.
        demo.args(["xtask", "demo"]).env("CARGO_TERM_QUIET", "true");
        demo.env("TERM", "xterm-256color").env("TMPDIR", "/tmp").env_remove("NO_COLOR");
        let (pieces, status) = watch(demo, [COLUMNS, ROWS])?;
        let said: String = pieces.iter().map(|(_, text)| text.as_str()).collect();
        if !status.success() || !said.contains("VERDICT") {
            return Err(format!("the demo ended with {status}, and said:\n{said}"));
        }
        let here = workspace.display().to_string();
        let pieces = pieces.into_iter().map(|(at, text)| (at, text.replace(&here, ".")));
        let pieces = pieces.collect();
        let recording = Self { title: "cargo xtask demo".into(), size: [COLUMNS, ROWS], pieces };
        let home = env::var("HOME").unwrap_or_default();
        let host = uname().nodename().to_string_lossy().into_owned();
        recording.examine(&[&home, &host])?;
        Ok(recording)
    }

    /// Whether it says something that only this machine should know.
    fn examine(&self, private: &[&str]) -> Result<(), String> {
        let text: String = self.pieces.iter().map(|(_, text)| text.as_str()).collect();
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '-';
        let is_word = |word: &str| {
            text.match_indices(word).any(|(at, _)| {
                !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
            })
        };
        match private.iter().find(|word| word.len() > 1 && is_word(word)) {
            Some(word) => Err(format!("the recording contains {word:?}, which is this machine's")),
            None => Ok(()),
        }
    }

    /// As it is stored.
    pub(super) fn to_text(&self) -> String {
        let [width, height] = self.size;
        let head = json!({ "version": 2, "width": width, "height": height, "title": self.title });
        let mut text = format!("{head}\n");
        for (at, said) in &self.pieces {
            let said = Value::from(said.as_str());
            // Writing to a string does not fail.
            let _ = writeln!(text, "[{:.3}, \"o\", {said}]", at.as_secs_f64());
        }
        text
    }

    /// Reads what [`Self::to_text`] has written.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let parse = |line: &str| serde_json::from_str::<Value>(line).map_err(|why| why.to_string());
        let head = parse(lines.next().unwrap_or_default())?;
        let length = |name: &str| head[name].as_u64().and_then(|it| u16::try_from(it).ok());
        let (Some(2), Some(columns), Some(rows), Some(title)) =
            (head["version"].as_u64(), length("width"), length("height"), head["title"].as_str())
        else {
            return Err("no asciicast of version 2 with a title".to_owned());
        };
        let piece = |line| {
            let value = parse(line)?;
            let at = value[0].as_f64().and_then(|at| Duration::try_from_secs_f64(at).ok());
            match (at, value[1].as_str(), value[2].as_str()) {
                (Some(at), Some("o"), Some(said)) => Ok((at, said.to_owned())),
                _ => Err(format!("not a time, \"o\" and a text: {line}")),
            }
        };
        let pieces = lines.map(piece).collect::<Result<_, String>>()?;
        Ok(Self { title: title.to_owned(), size: [columns, rows], pieces })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(said: &str) -> TerminalSession {
        let pieces = vec![(Duration::from_millis(1250), said.to_owned())];
        TerminalSession { title: "a \"b\"".to_owned(), size: [80, 24], pieces }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let recording = recording("\u{1b}[1mä\r\n");
        assert_eq!(TerminalSession::read(&recording.to_text()), Ok(recording));
        assert!(TerminalSession::read("").is_err());
        assert!(TerminalSession::read("{\"version\": 3}").is_err());
        let head = "{\"version\": 2, \"width\": 1, \"height\": 1, \"title\": \"\"}";
        assert!(TerminalSession::read(&format!("{head}\n[1, \"i\", \"\"]")).is_err());
    }

    #[test]
    fn what_is_private_is_found() {
        let recording = recording("in /home/me/x on box: inbox");
        assert_eq!(recording.examine(&["", "/", "/home/you", "bo"]), Ok(()));
        assert!(recording.examine(&["/home/me"]).is_err());
        assert!(recording.examine(&["box"]).is_err());
    }
}
