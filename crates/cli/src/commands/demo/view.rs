//! The view of a running demo: the fault and the last answer of each node, and the current activity of the demo.

use std::time::Duration;

use super::nodes::NAMES;
use super::observer::{LockView, NodeView};
use super::screen::{StyledLine, style};

/// Number of lines of [`View::panel`]: one for each node, and five more. A test checks it.
pub(super) const ROWS: usize = NAMES.len() + 5;

pub(super) struct View {
    pub(super) elapsed: Duration,
    pub(super) fates: [Fate; NAMES.len()],
    pub(super) seen: [NodeView; NAMES.len()],
    pub(super) activity: String,
    pub(super) acquisitions: usize,
    pub(super) last_second: usize,
    pub(super) last_holder: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Up,
    /// Stopped by SIGSTOP.
    Frozen,
    Killed,
    /// Restarted without its data, at this time since the beginning.
    RestartedAt(Duration),
}

impl View {
    /// The lines that the demo redraws on a terminal.
    pub(super) fn panel(&self) -> Vec<StyledLine> {
        let plain = |text: &str| (style::PLAIN, text.to_owned());
        let dim = |text: String| vec![(style::DIM, text)];
        let mut lines = vec![Vec::new()];
        lines.push(dim(format!(
            "  {:4}  {:8}  {:9}  {}",
            "node", "is", "reply", "who holds the lock, as this node tells it"
        )));
        lines.extend((0..NAMES.len()).map(|place| self.row(place)));
        lines.push(Vec::new());
        lines.push(vec![plain("  now   "), (style::BOLD, self.activity.clone())]);
        lines.push(vec![plain("  lock  "), plain(&self.lock())]);
        lines
    }

    /// The line for an output that is not a terminal.
    pub(super) fn summary(&self) -> String {
        let nodes = (0..NAMES.len()).map(|place| {
            let says = match (self.fates[place], &self.seen[place].lock) {
                (Fate::Frozen, LockView::Nothing(_)) => "frozen",
                (Fate::Killed, LockView::Nothing(_)) => "killed",
                (_, LockView::Nothing(_)) => "silent",
                (_, LockView::Free) => "free",
                // A worker's owner text is `w03, pid 4711`; the line shows the part before the comma.
                (_, LockView::Held(owner, _)) => owner.split(',').next().unwrap_or_default(),
            };
            format!("{} {says:6}", NAMES[place])
        });
        let nodes: Vec<String> = nodes.collect();
        let (all, rate) = (self.acquisitions, self.last_second);
        format!("{}  {}  {all:5} acquired, {rate}/s", stamp(self.elapsed), nodes.join("  "))
    }

    fn row(&self, place: usize) -> StyledLine {
        let (fate_style, fate) = match self.fates[place] {
            Fate::Up => (style::GOOD, "up".to_owned()),
            Fate::Frozen => (style::ODD, "frozen".to_owned()),
            Fate::Killed => (style::BAD, "killed".to_owned()),
            Fate::RestartedAt(at) => {
                let age = self.elapsed.saturating_sub(at).as_secs_f64();
                (style::GOOD, format!("up {age:.1}s"))
            }
        };
        let seen = &self.seen[place];
        let (reply, says_style, says) = match &seen.lock {
            // The reason has the colour of the fate, because the fate is usually why the node does not answer.
            LockView::Nothing(why) => ("none".to_owned(), fate_style, why.clone()),
            LockView::Free => (self.reply(place), style::DIM, "free".to_owned()),
            LockView::Held(owner, left) => {
                let left = left.map(|left| format!("{:.2}s left", left.as_secs_f64()));
                let says = format!("{owner}, {}", left.unwrap_or_else(|| "for ever".to_owned()));
                (self.reply(place), style::PLAIN, says)
            }
        };
        vec![
            (style::BOLD, format!("  {:4}  ", NAMES[place])),
            (fate_style, format!("{fate:8}  ")),
            (style::PLAIN, format!("{reply:9}  ")),
            (says_style, says),
        ]
    }

    /// The node's round trip if one was measured, else `yes`.
    fn reply(&self, place: usize) -> String {
        let round_trip = self.seen[place].round_trip;
        round_trip.map_or_else(|| "yes".to_owned(), |time| format!("in {}", in_ms(time)))
    }

    fn lock(&self) -> String {
        let last = self.last_holder.map(|worker| format!("; last held by w{worker:02}"));
        let (all, rate) = (self.acquisitions, self.last_second);
        format!("acquired {all} times, {rate} in the last second{}", last.unwrap_or_default())
    }
}

/// A time since the beginning, as it is printed at the start of a line.
pub(super) fn stamp(elapsed: Duration) -> String {
    format!("{:4.1}s", elapsed.as_secs_f64())
}

/// A short time in milliseconds: with two decimals below 10 ms, without decimals from there on.
pub(super) fn in_ms(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1000.0;
    if millis < 10.0 { format!("{millis:.2}ms") } else { format!("{millis:.0}ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_panel_has_as_many_lines_as_the_screen_keeps_for_it() {
        let view = View {
            elapsed: Duration::ZERO,
            fates: [Fate::RestartedAt(Duration::ZERO); NAMES.len()],
            seen: NAMES.map(NodeView::nothing),
            activity: String::new(),
            acquisitions: 0,
            last_second: 0,
            last_holder: None,
        };
        assert_eq!(view.panel().len(), ROWS);
    }
}
