//! The running demo: handles events, waits, and draws.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

use super::nodes::{FiveNodes, NAMES};
use super::observer::NodeView;
use super::result::{DemoResult, Observed, Phase};
use super::screen::{Screen, style, wrapped};
use super::tally::Tally;
use super::view::{Fate, View, stamp};
use super::worker::{Hold, Report};
use super::workers::Workers;
use super::{Event, now};
use crate::options::Refused;
use crate::output::nanos;

const DRAW_EVERY: Duration = Duration::from_millis(200);

const SUMMARY_EVERY: Duration = Duration::from_secs(1);

/// Time between a change and the line that shows it.
const SETTLE: Duration = Duration::from_millis(300);

/// Indent of a continued line: as wide as a [`stamp`].
const INDENT: &str = "     ";

/// Width of the story, which fits a terminal of 80 columns.
const STORY_COLUMNS: usize = 70;
const QUOTE_COLUMNS: usize = 68;

/// Limit of the time for the workers' last calls.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// The reason for an early end of the demo.
#[derive(Debug)]
pub(super) enum DemoEnd {
    Signal(Signal),
    Failed(String),
    Refused(Refused),
}

impl DemoEnd {
    pub(super) fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

pub(super) struct Stage {
    /// Declared before the nodes and so dropped before them. Otherwise the workers would report errors.
    workers: Workers,
    pub(super) nodes: FiveNodes,
    events: Receiver<Event>,
    screen: Screen,
    record: Record,
    picture: Frame,
    began: Duration,
    draw_at: Duration,
    /// The answer to the demo's own call.
    answer: Option<Result<(), String>>,
}

struct Record {
    counter: PathBuf,
    tally: Tally,
    phases: Vec<Phase>,
    faults: Vec<String>,
}

impl Record {
    fn end_phase(&mut self, at_ns: u64) {
        if let Some(last) = self.phases.last_mut() {
            last.to_ns = at_ns;
        }
    }

    fn evaluate(&self, places: String) -> DemoResult {
        let counter = std::fs::read_to_string(&self.counter).ok();
        let evidence = Observed {
            tally: &self.tally,
            phases: &self.phases,
            counter: counter.and_then(|text| text.trim().parse().ok()),
            places,
            faults: self.faults.clone(),
        };
        evidence.evaluate()
    }
}

struct Frame {
    view: View,
    /// Times of the acquisitions in the last second.
    recent: VecDeque<Duration>,
    /// Time of the last fault or repair of each node.
    changed: [Duration; 5],
}

impl Frame {
    fn new(began: Duration) -> Self {
        let view = View {
            elapsed: Duration::ZERO,
            fates: [Fate::Up; 5],
            seen: [(); 5].map(|()| NodeView::nothing("not asked yet")),
            activity: String::new(),
            acquisitions: 0,
            last_second: 0,
            last_holder: None,
        };
        Self { view, recent: VecDeque::new(), changed: [began; 5] }
    }

    fn held(&mut self, hold: &Hold) {
        self.recent.push_back(Duration::from_nanos(hold.acquired_ns));
        self.view.acquisitions += 1;
        self.view.last_holder = Some(hold.worker);
    }

    /// Stores the nodes' answers, except answers to questions from before the node's last change.
    fn see(&mut self, asked: Duration, seen: [NodeView; 5]) {
        for (place, seen) in seen.into_iter().enumerate() {
            if self.changed[place] <= asked {
                self.view.seen[place] = seen;
            }
        }
    }

    fn pass(&mut self, now: Duration, began: Duration) {
        self.view.elapsed = now.saturating_sub(began);
        let second_ago = now.saturating_sub(Duration::from_secs(1));
        while self.recent.front().is_some_and(|at| *at < second_ago) {
            self.recent.pop_front();
        }
        self.view.last_second = self.recent.len();
    }
}

impl Stage {
    pub(super) fn new(
        (nodes, counter): (FiveNodes, PathBuf),
        workers: Workers,
        events: Receiver<Event>,
        screen: Screen,
        began: Duration,
    ) -> Self {
        Self {
            nodes,
            workers,
            events,
            screen,
            record: Record {
                counter,
                tally: Tally::default(),
                phases: Vec::new(),
                faults: Vec::new(),
            },
            picture: Frame::new(began),
            began,
            draw_at: began,
            answer: None,
        }
    }

    /// Begins a phase, which is counted separately.
    pub(super) fn phase(&mut self, title: &str, majority: bool) {
        // The workers started before the first phase was announced.
        let from_ns = nanos(if self.record.phases.is_empty() { self.began } else { now() });
        self.record.end_phase(from_ns);
        let phase = Phase { title: title.to_owned(), from_ns, to_ns: u64::MAX, majority };
        self.record.phases.push(phase);
    }

    /// Writes lines that stay, and sets the line about the current activity.
    pub(super) fn say(&mut self, going_on: &str, text: &str) {
        self.picture.view.activity = going_on.to_owned();
        self.tell(text);
    }

    /// Writes a text and, below it, a quotation in full.
    pub(super) fn quote(&mut self, text: &str, said: &str) {
        self.tell(text);
        for line in wrapped(said, QUOTE_COLUMNS) {
            self.screen.line(style::BOLD, &format!("{INDENT}| {line}"));
        }
    }

    fn tell(&mut self, text: &str) {
        let mut before = stamp(now().saturating_sub(self.began));
        for line in wrapped(text, STORY_COLUMNS) {
            self.screen.line(style::PLAIN, &format!("{before}  {line}"));
            before = INDENT.to_owned();
        }
        // A terminal shows the panel at once. Elsewhere the next line waits until the nodes were asked again.
        let pause = if self.screen.is_live() { Duration::ZERO } else { SETTLE };
        self.draw_at = now() + pause;
    }

    pub(super) fn play(&mut self, time: Duration) -> Result<(), DemoEnd> {
        let until = now() + time;
        while let Some(left) = until.checked_sub(now()).filter(|left| !left.is_zero()) {
            self.step(left)?;
        }
        Ok(())
    }

    pub(super) fn answer(&mut self, limit: Duration) -> Result<Result<(), String>, DemoEnd> {
        self.wait_for(limit, "a call for the lock did not return", |stage| stage.answer.take())
    }

    fn wait_for<T>(
        &mut self,
        limit: Duration,
        else_fail: &str,
        come: impl Fn(&mut Self) -> Option<T>,
    ) -> Result<T, DemoEnd> {
        let until = now() + limit;
        loop {
            if let Some(it) = come(self) {
                return Ok(it);
            }
            let left = until.saturating_sub(now());
            if left.is_zero() {
                return Err(DemoEnd::failed(else_fail));
            }
            self.step(left)?;
        }
    }

    /// Changes some nodes, and shows their new state.
    pub(super) fn each(
        &mut self,
        places: &[usize],
        fate: impl Fn(Duration) -> Fate,
        act: impl Fn(&FiveNodes, usize) -> Result<(), String>,
    ) -> Result<(), DemoEnd> {
        for &place in places {
            act(&self.nodes, place)
                .map_err(|error| DemoEnd::Failed(format!("node {}: {error}", NAMES[place])))?;
            let picture = &mut self.picture;
            picture.changed[place] = now();
            picture.view.fates[place] = fate(picture.changed[place].saturating_sub(self.began));
            picture.view.seen[place] = NodeView::nothing("not asked since");
        }
        Ok(())
    }

    /// Records a fault that does not stop the demo.
    pub(super) fn fault(&mut self, what: &str) {
        self.record.faults.push(what.to_owned());
    }

    /// Waits for the workers' end, and returns the verdict.
    pub(super) fn end(&mut self) -> Result<DemoResult, DemoEnd> {
        self.workers.dismiss();
        self.wait_for(LEAVE_LIMIT, "a worker did not stop", |stage| {
            stage.workers.is_gone().then_some(())
        })?;
        if !self.workers.ended_well() {
            self.fault("a worker process ended badly");
        }
        self.record.end_phase(nanos(now()));
        self.screen.erase();
        Ok(self.record.evaluate(self.workers.places()))
    }

    /// Ends the rewriting, and returns the screen for plain lines.
    pub(super) fn into_screen(self) -> Screen {
        self.screen
    }

    /// Waits for one event, at most for `limit`, and redraws if it is time to.
    fn step(&mut self, limit: Duration) -> Result<(), DemoEnd> {
        let until_drawn = self.draw_at.saturating_sub(now());
        match self.events.recv_timeout(limit.min(until_drawn)) {
            Ok(event) => self.take(event)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(DemoEnd::Failed("nobody tells anything any more".to_owned()));
            }
        }
        if self.draw_at <= now() {
            self.draw();
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), DemoEnd> {
        match event {
            Event::Report(report) => {
                if let Report::Held(hold) = &report {
                    self.picture.held(hold);
                }
                self.record.tally.add(report);
            }
            Event::Left(result) => {
                if let Some(fault) = self.workers.left(result) {
                    return Err(DemoEnd::Failed(fault));
                }
            }
            Event::Seen { asked, seen } => self.picture.see(asked, *seen),
            Event::Answer(answer) => self.answer = Some(answer),
            Event::Signal(Signal::WINCH | Signal::CONT) => {
                self.screen.enter();
                self.draw_at = now();
            }
            Event::Signal(Signal::TSTP) => {
                self.screen.leave();
                // Stops this process as if the signal had not been caught. Nodes and workers continue.
                let _ = kill_process(getpid(), Signal::STOP);
            }
            Event::Signal(signal) => return Err(DemoEnd::Signal(signal)),
        }
        Ok(())
    }

    fn draw(&mut self) {
        let now = now();
        self.picture.pass(now, self.began);
        if self.screen.is_live() {
            self.screen.show(&self.picture.view.panel());
            self.draw_at = now + DRAW_EVERY;
        } else {
            self.screen.line(style::PLAIN, &self.picture.view.summary());
            self.draw_at = now + SUMMARY_EVERY;
        }
    }
}
