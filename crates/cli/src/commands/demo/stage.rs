//! The running demo: handles events, waits, and draws.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

use super::nodes::{Fate, FiveNodes};
use super::record::{Conclusion, Record};
use super::screen::{Screen, style, wrapped};
use super::view::View;
use super::worker::Report;
use super::workers::Workers;
use super::{DemoEnd, Event, now};
use crate::output::nanos;

const DRAW_EVERY: Duration = Duration::from_millis(200);

const SUMMARY_EVERY: Duration = Duration::from_secs(1);

/// Time between a change and the line that shows it.
const SETTLE: Duration = Duration::from_millis(300);

/// Indent of a continued line: as wide as a [`View::stamp`].
const INDENT: &str = "     ";

/// Width of the narration, which fits a terminal of 80 columns.
const STORY_COLUMNS: usize = 70;
const QUOTE_COLUMNS: usize = 68;

/// Limit of the time for the workers' last calls.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

pub(super) struct Stage {
    /// Declared before the nodes and so dropped before them. Otherwise the workers would report the end of the nodes.
    workers: Workers,
    pub(super) nodes: FiveNodes,
    counter: PathBuf,
    events: Receiver<Event>,
    pub(super) screen: Screen,
    pub(super) record: Record,
    view: View,
    draw_at: Duration,
    /// The answer to the demo's own call.
    answer: Option<Result<(), String>>,
}

impl Stage {
    pub(super) fn new(
        (nodes, counter): (FiveNodes, PathBuf),
        workers: Workers,
        events: Receiver<Event>,
        screen: Screen,
        began: Duration,
    ) -> Self {
        let (record, view) = (Record::new(nanos(began)), View::new(began));
        let (draw_at, answer) = (began, None);
        Self { workers, nodes, counter, events, screen, record, view, draw_at, answer }
    }

    /// Begins a phase of the demo. The record counts the holds of each phase separately.
    pub(super) fn phase(&mut self, title: &str, majority: bool) {
        self.record.phase(title, majority, nanos(now()));
    }

    /// Writes lines that stay, and sets the line about the current activity.
    pub(super) fn narrate(&mut self, activity: &str, text: &str) {
        self.view.activity = activity.to_owned();
        self.write(text);
    }

    /// Writes a text and, below it, a quotation in full.
    pub(super) fn quote(&mut self, text: &str, quotation: &str) {
        self.write(text);
        for line in wrapped(quotation, QUOTE_COLUMNS) {
            self.screen.line(style::BOLD, &format!("{INDENT}| {line}"));
        }
    }

    fn write(&mut self, text: &str) {
        let mut before = self.view.stamp(now());
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

    /// Waits for the answer to the demo's own call.
    pub(super) fn answer(&mut self, limit: Duration) -> Result<Result<(), String>, DemoEnd> {
        self.wait_for(limit, "a call for the lock did not return", |stage| stage.answer.take())
    }

    fn wait_for<T>(
        &mut self,
        limit: Duration,
        else_fail: &str,
        poll: impl Fn(&mut Self) -> Option<T>,
    ) -> Result<T, DemoEnd> {
        let until = now() + limit;
        loop {
            if let Some(it) = poll(self) {
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
    pub(super) fn change(&mut self, places: &[usize], fate: Fate) -> Result<(), DemoEnd> {
        for &place in places {
            self.nodes.change(place, fate).map_err(DemoEnd::failed)?;
            self.view.change(place, fate, now());
        }
        Ok(())
    }

    /// Waits for the workers' end and ends the nodes. Returns the screen and the verdict.
    pub(super) fn end(mut self) -> Result<(Screen, Conclusion), DemoEnd> {
        self.workers.dismiss();
        self.wait_for(LEAVE_LIMIT, "a worker did not stop", |stage| {
            stage.workers.are_gone().then_some(())
        })?;
        if !self.workers.ended_well() {
            self.record.fault("a worker process ended badly");
        }
        self.record.end(nanos(now()));
        let counter = std::fs::read_to_string(&self.counter).ok();
        let counter = counter.and_then(|text| text.trim().parse().ok());
        Ok((self.screen, self.record.conclude(counter, &self.workers.places())))
    }

    /// Waits for one event, at most for `limit`, and redraws if it is time to.
    fn step(&mut self, limit: Duration) -> Result<(), DemoEnd> {
        let until_drawn = self.draw_at.saturating_sub(now());
        match self.events.recv_timeout(limit.min(until_drawn)) {
            Ok(event) => self.handle(event)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(DemoEnd::failed("all threads of the demo have ended"));
            }
        }
        let now = now();
        if self.draw_at <= now {
            if self.screen.is_live() {
                self.screen.show(&self.view.panel(now));
                self.draw_at = now + DRAW_EVERY;
            } else {
                self.screen.line(style::PLAIN, &self.view.summary(now));
                self.draw_at = now + SUMMARY_EVERY;
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), DemoEnd> {
        match event {
            Event::Report(report) => {
                if let Report::Held(hold) = &report {
                    self.view.add(hold);
                }
                self.record.add(report);
            }
            Event::Left(result) => self.workers.left(result).map_err(DemoEnd::failed)?,
            Event::Answers { asked, answers } => self.view.answer(asked, answers),
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
}
