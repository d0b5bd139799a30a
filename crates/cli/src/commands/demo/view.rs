//! The view of a running demo: the fault and the last answer of each node, and the current activity of the demo.

use std::collections::VecDeque;
use std::time::Duration;

use super::nodes::{Fate, NAMES};
use super::observer::{LockView, NodeView};
use super::screen::{StyledLine, style};
use super::worker::Hold;

/// Number of lines of [`View::panel`]: one for each node, and five more. A test checks it.
pub(super) const ROWS: usize = NAMES.len() + 5;

const ONE_SECOND: Duration = Duration::from_secs(1);

pub(super) struct View {
    began: Duration,
    fates: [Fate; NAMES.len()],
    /// Time of the last fault or repair of each node.
    changed: [Duration; NAMES.len()],
    answers: [NodeView; NAMES.len()],
    pub(super) activity: String,
    acquisitions: usize,
    /// Times of the acquisitions in the last second.
    recent: VecDeque<Duration>,
    last_holder: Option<usize>,
}

impl View {
    pub(super) fn new(began: Duration) -> Self {
        Self {
            began,
            fates: [Fate::Up; NAMES.len()],
            changed: [began; NAMES.len()],
            answers: NAMES.map(|_| NodeView::nothing("not asked yet")),
            activity: String::new(),
            acquisitions: 0,
            recent: VecDeque::new(),
            last_holder: None,
        }
    }

    pub(super) fn add(&mut self, hold: &Hold) {
        self.recent.push_back(Duration::from_nanos(hold.acquired_ns));
        self.acquisitions += 1;
        self.last_holder = Some(hold.worker);
    }

    pub(super) fn change(&mut self, place: usize, fate: Fate, now: Duration) {
        self.fates[place] = fate;
        self.changed[place] = now;
        self.answers[place] = NodeView::nothing("not asked since");
    }

    /// Stores the nodes' answers, except answers to questions from before the node's last change.
    pub(super) fn answer(&mut self, asked: Duration, answers: Vec<NodeView>) {
        for (place, answer) in answers.into_iter().enumerate() {
            if self.changed[place] <= asked {
                self.answers[place] = answer;
            }
        }
    }

    /// The time since the beginning, as it is printed at the start of a line.
    pub(super) fn stamp(&self, now: Duration) -> String {
        format!("{:4.1}s", now.saturating_sub(self.began).as_secs_f64())
    }

    /// The lines that the demo redraws on a terminal.
    pub(super) fn panel(&mut self, now: Duration) -> Vec<StyledLine> {
        let plain = |text: &str| (style::PLAIN, text.to_owned());
        let head = format!(
            "  {:4}  {:8}  {:9}  {}",
            "node", "is", "reply", "who holds the lock, as this node tells it"
        );
        let mut lines = vec![Vec::new(), vec![(style::DIM, head)]];
        lines.extend((0..NAMES.len()).map(|place| self.row(place, now)));
        let (all, rate) = (self.acquisitions, self.rate(now));
        let last = self.last_holder.map(|worker| format!("; last held by w{worker:02}"));
        let last = last.unwrap_or_default();
        let lock = format!("acquired {all} times, {rate} in the last second{last}");
        lines.push(Vec::new());
        lines.push(vec![plain("  now   "), (style::BOLD, self.activity.clone())]);
        lines.push(vec![plain("  lock  "), plain(&lock)]);
        lines
    }

    /// The line for an output that is not a terminal.
    pub(super) fn summary(&mut self, now: Duration) -> String {
        let nodes = (0..NAMES.len()).map(|place| {
            let text = match (self.fates[place], &self.answers[place].lock) {
                (Fate::Frozen, LockView::Nothing(_)) => "frozen",
                (Fate::Killed, LockView::Nothing(_)) => "killed",
                (_, LockView::Nothing(_)) => "silent",
                (_, LockView::Free) => "free",
                // A worker's owner text is `w03, pid 4711`; the line shows the part before the comma.
                (_, LockView::Held(owner, _)) => owner.split(',').next().unwrap_or_default(),
            };
            format!("{} {text:6}", NAMES[place])
        });
        let nodes: Vec<String> = nodes.collect();
        let (all, rate) = (self.acquisitions, self.rate(now));
        format!("{}  {}  {all:5} acquired, {rate}/s", self.stamp(now), nodes.join("  "))
    }

    fn row(&self, place: usize, now: Duration) -> StyledLine {
        let (fate_style, fate) = match self.fates[place] {
            Fate::Up => (style::GOOD, "up".to_owned()),
            Fate::Frozen => (style::ODD, "frozen".to_owned()),
            Fate::Killed => (style::BAD, "killed".to_owned()),
            Fate::Restarted => {
                let age = now.saturating_sub(self.changed[place]).as_secs_f64();
                (style::GOOD, format!("up {age:.1}s"))
            }
        };
        let NodeView { lock, round_trip } = &self.answers[place];
        let reply =
            round_trip.map_or_else(|| "yes".to_owned(), |time| format!("in {}", in_ms(time)));
        let (reply, text_style, text) = match lock {
            // The colour is that of the node's fault, because the fault is usually why the node does not answer.
            LockView::Nothing(why) => ("none".to_owned(), fate_style, why.clone()),
            LockView::Free => (reply, style::DIM, "free".to_owned()),
            LockView::Held(owner, left) => {
                let left = left.map(|left| format!("{:.2}s left", left.as_secs_f64()));
                let left = left.unwrap_or_else(|| "for ever".to_owned());
                (reply, style::PLAIN, format!("{owner}, {left}"))
            }
        };
        vec![
            (style::BOLD, format!("  {:4}  ", NAMES[place])),
            (fate_style, format!("{fate:8}  ")),
            (style::PLAIN, format!("{reply:9}  ")),
            (text_style, text),
        ]
    }

    /// Number of acquisitions in the last second.
    fn rate(&mut self, now: Duration) -> usize {
        let second_ago = now.saturating_sub(ONE_SECOND);
        while self.recent.front().is_some_and(|at| *at < second_ago) {
            self.recent.pop_front();
        }
        self.recent.len()
    }
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
        assert_eq!(View::new(Duration::ZERO).panel(Duration::ZERO).len(), ROWS);
    }
}
