//! What is shown while the demo runs: what was done to each node, what it says, what is going on.

use std::time::Duration;

use super::nodes::NAMES;
use super::observer::{Seen, Told};
use super::screen::{StyledLine, style};

/// How many lines [`View::panel`] has.
pub(super) const ROWS: usize = 10;

/// A moment of the demo.
pub(super) struct View {
    /// Since the beginning.
    pub(super) elapsed: Duration,
    /// What was done to the nodes.
    pub(super) fates: [Fate; 5],
    /// What they say.
    pub(super) seen: [Seen; 5],
    /// What is going on.
    pub(super) now: String,
    /// How often the lock was held so far.
    pub(super) acquisitions: usize,
    /// How often in the last second.
    pub(super) last_second: usize,
    /// Who held it last.
    pub(super) last_holder: Option<usize>,
}

/// What was done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing.
    Up,
    /// It was stopped where it stood.
    Frozen,
    /// It was killed.
    Killed,
    /// It was started again, empty, at this time since the beginning.
    Again(Duration),
}

impl View {
    /// The picture, for a terminal.
    pub(super) fn panel(&self) -> Vec<StyledLine> {
        let plain = |text: &str| (style::PLAIN, text.to_owned());
        let dim = |text: String| vec![(style::DIM, text)];
        let mut lines = vec![Vec::new()];
        lines.push(dim(format!(
            "  {:4}  {:8}  {:9}  {}",
            "node", "is", "answers", "who holds the lock, as this node tells it"
        )));
        lines.extend((0..NAMES.len()).map(|place| self.row(place)));
        lines.push(Vec::new());
        lines.push(vec![plain("  now   "), (style::BOLD, self.now.clone())]);
        lines.push(vec![plain("  lock  "), plain(&self.lock())]);
        lines
    }

    /// One line, for whatever is not a terminal.
    pub(super) fn summary(&self) -> String {
        let nodes = (0..NAMES.len()).map(|place| {
            let says = match (self.fates[place], &self.seen[place].lock) {
                (Fate::Frozen, Told::Nothing(_)) => "frozen",
                (Fate::Killed, Told::Nothing(_)) => "killed",
                (_, Told::Nothing(_)) => "silent",
                (_, Told::Free) => "free",
                (_, Told::Held(owner, _)) => owner.split(',').next().unwrap_or_default(),
            };
            format!("{} {says:6}", NAMES[place])
        });
        let nodes: Vec<String> = nodes.collect();
        let (all, rate) = (self.acquisitions, self.last_second);
        format!("{}  {}  {all:5} acquired, {rate}/s", stamp(self.elapsed), nodes.join("  "))
    }

    fn row(&self, place: usize) -> StyledLine {
        let (style, fate) = match self.fates[place] {
            Fate::Up => (style::GOOD, "up".to_owned()),
            Fate::Frozen => (style::ODD, "frozen".to_owned()),
            Fate::Killed => (style::BAD, "killed".to_owned()),
            Fate::Again(at) => {
                let age = self.elapsed.saturating_sub(at).as_secs_f64();
                (style::GOOD, format!("up {age:.1}s"))
            }
        };
        let seen = &self.seen[place];
        let (answers, says_style, says) = match &seen.lock {
            Told::Nothing(why) => ("no".to_owned(), style, why.clone()),
            Told::Free => (self.answers(place), style::DIM, "free".to_owned()),
            Told::Held(owner, left) => {
                let left = left.map(|left| format!("{:.2}s left", left.as_secs_f64()));
                let says = format!("{owner}, {}", left.unwrap_or_else(|| "for ever".to_owned()));
                (self.answers(place), style::PLAIN, says)
            }
        };
        vec![
            (style::BOLD, format!("  {:4}  ", NAMES[place])),
            (style, format!("{fate:8}  ")),
            (style::PLAIN, format!("{answers:9}  ")),
            (says_style, says),
        ]
    }

    fn answers(&self, place: usize) -> String {
        self.seen[place].round_trip.map_or_else(|| "yes".to_owned(), in_ms)
    }

    fn lock(&self) -> String {
        let last = self.last_holder.map(|worker| format!("; last held by w{worker:02}"));
        let (all, rate) = (self.acquisitions, self.last_second);
        format!("acquired {all} times, {rate} in the last second{}", last.unwrap_or_default())
    }
}

/// A time since the beginning, as it stands before a line.
pub(super) fn stamp(elapsed: Duration) -> String {
    format!("{:4.1}s", elapsed.as_secs_f64())
}

/// A short time: in milliseconds, with one decimal where it tells something.
pub(super) fn in_ms(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1000.0;
    if millis < 10.0 { format!("{millis:.2}ms") } else { format!("{millis:.0}ms") }
}
