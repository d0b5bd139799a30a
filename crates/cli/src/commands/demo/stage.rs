//! The running demo: handles events, waits, and draws.

use std::fs;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anstyle::Style;
use quorlock::{Client, NodeAnswer};
use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::nodes::{Fate, FiveNodes, NAMES};
use super::record::Record;
use super::screen::{Screen, style};
use super::workers::{self, Report, WORKERS};
use super::{KEY, TTL, failed, since};
use crate::child::Signals;
use crate::commands::status;
use crate::exit_code::ExitCode;
use crate::guardian::clock::boot_ns;
use crate::options::Refused;
use crate::output::columns;

const DRAW_EVERY: Duration = Duration::from_millis(200);

/// Without a terminal: time between a text and the panel below it. Each node is asked again meanwhile.
const SETTLE: Duration = Duration::from_millis(700);

/// Interval between two questions to a node about the lock.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Timeout of a node's answer. It is shorter than the interval between two questions.
const ANSWER_LIMIT: Duration = Duration::from_millis(90);

/// The longest wait until the workers have finished their last calls.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// The last lines. The indented ones are the quick start of README.md, which a test runs.
const NEXT: &str = "
Next, a lock on three servers on this machine (Debian: apt install redis-server):

  for port in 7001 7002 7003; do redis-server --port $port --bind 127.0.0.1 --save '' --dir \"$(mktemp -d)\" --daemonize yes; done; sleep 1
  export QUORLOCK_NODES=a=redis://127.0.0.1:7001,b=redis://127.0.0.1:7002,c=redis://127.0.0.1:7003
  quorlock init --fresh --yes
  quorlock run hi -- echo hi

`quorlock run --help` has more examples. In a clone of quorlock, `cargo xtask try` shows servers that fail.";

/// Indent of a text's second and later lines, as wide as the time in the first line.
const INDENT: &str = "       ";

pub(super) enum Event {
    Report(Report),
    /// A node's answer about the lock, or the reason why it did not answer. `asked_ns` is a time of the boot clock.
    Answer {
        place: usize,
        asked_ns: u64,
        answer: Result<NodeAnswer, String>,
    },
}

pub(super) struct Stage {
    pub(super) nodes: FiveNodes,
    /// Set when the workers shall end.
    stop: Arc<AtomicBool>,
    counter: PathBuf,
    events: UnboundedReceiver<Event>,
    signals: Signals,
    screen: Screen,
    pub(super) record: Record,
    views: [NodeView; NAMES.len()],
    /// Number of workers that have not ended.
    at_work: usize,
    began_ns: u64,
    draw_at: Instant,
}

struct NodeView {
    fate: Fate,
    /// Time of the last fault or repair, in nanoseconds of the boot clock.
    changed_ns: u64,
    /// The last answer to a question that was asked after `changed_ns`, or the reason why the node did not answer.
    answer: Result<NodeAnswer, String>,
}

impl Stage {
    /// Introduces the demo, and starts the workers and the observers of the nodes.
    pub(super) fn start(
        nodes: FiveNodes,
        counter: PathBuf,
        signals: Signals,
    ) -> Result<Self, Refused> {
        let screen = Screen::new();
        introduce(&screen, &counter.display().to_string());
        let began_ns = boot_ns();
        let (sender, events) = unbounded_channel();
        let stop = Arc::default();
        for number in 1..=WORKERS {
            workers::start(number, &counter, nodes.client(0..NAMES.len()), &stop, &sender)?;
        }
        for place in 0..NAMES.len() {
            // Each node has its own client, so that a node that does not answer does not delay the others.
            let client = nodes.client(place..place + 1).build().map_err(failed)?;
            tokio::spawn(observe(place, client, sender.clone()));
        }
        Ok(Self {
            nodes,
            stop,
            counter,
            events,
            signals,
            screen,
            record: Record::default(),
            views: NAMES.map(|_| NodeView::new(Fate::Up, began_ns)),
            at_work: WORKERS,
            began_ns,
            draw_at: Instant::now(),
        })
    }

    /// Changes some nodes, and begins a phase of the record. While the phase lasts, the nodes are in their new state.
    pub(super) fn change(&mut self, title: &str, places: &[usize], fate: Fate) {
        let has_majority = fate != Fate::Killed || places.len() <= NAMES.len() / 2;
        if has_majority {
            self.record.phase(title, true, boot_ns());
        }
        for &place in places {
            self.nodes.change(place, fate);
            self.views[place] = NodeView::new(fate, boot_ns());
        }
        if !has_majority {
            self.record.phase(title, false, boot_ns());
        }
    }

    /// Writes a text above the panel, with the time since the start of the demo.
    pub(super) fn narrate(&mut self, text: &str) {
        let time = format!("{:4.1}s  ", since(self.began_ns).as_secs_f64());
        self.screen.paragraph(style::PLAIN, [&time, INDENT], text);
        let pause = if self.screen.is_live { Duration::ZERO } else { SETTLE };
        self.draw_at = Instant::now() + pause;
    }

    /// Writes a text and, below it, a quotation in full.
    pub(super) fn quote(&mut self, text: &str, quotation: &str) {
        self.narrate(text);
        let bar = "     | ";
        self.screen.paragraph(style::BOLD, [bar, bar], quotation);
    }

    /// Handles events and draws until the future is ready.
    pub(super) async fn play<F: IntoFuture>(&mut self, awaited: F) -> Result<F::Output, Refused> {
        let mut awaited = pin!(awaited.into_future());
        loop {
            tokio::select! {
                biased;
                output = &mut awaited => return Ok(output),
                stepped = self.step() => stepped?,
            }
        }
    }

    /// Waits for the workers' end, and writes the verdict and the next steps.
    pub(super) async fn end(mut self) -> Result<ExitCode, Refused> {
        self.stop.store(true, Ordering::Relaxed);
        let leave = async {
            while self.at_work > 0 {
                self.step().await?;
            }
            Ok::<(), Refused>(())
        };
        timeout(LEAVE_LIMIT, leave).await.map_err(|_| failed("a worker did not stop"))??;
        let counter = fs::read_to_string(&self.counter).ok();
        let counter = counter.and_then(|text| text.trim().parse().ok());
        let conclusion = self.record.conclude(counter, boot_ns());
        let write = |style, text: &str| self.screen.line(style, text);
        write(style::PLAIN, "");
        conclusion.lines.iter().for_each(|line| write(style::PLAIN, &format!("  {line}")));
        conclusion.faults.iter().for_each(|fault| write(style::BAD, &format!("  WRONG: {fault}")));
        let (style, failed, code) = match conclusion.faults[..] {
            [] => (style::GOOD, "", ExitCode::Success),
            _ => (style::BAD, "FAILED, ", ExitCode::Internal),
        };
        write(style, &format!("VERDICT: {failed}{}", conclusion.summary));
        NEXT.lines().for_each(|line| write(style::PLAIN, line));
        Ok(code)
    }

    /// Waits for one event and handles it, or draws if it is time to.
    ///
    /// # Cancel safety
    /// No event is lost.
    async fn step(&mut self) -> Result<(), Refused> {
        tokio::select! {
            signal = self.signals.next() => self.obey(signal)?,
            Some(event) = self.events.recv() => self.handle(event)?,
            () = sleep_until(self.draw_at) => self.draw(),
        }
        Ok(())
    }

    fn obey(&mut self, signal: Signal) -> Result<(), Refused> {
        match signal {
            Signal::WINCH | Signal::CONT => {
                self.screen.enter();
                self.draw_at = Instant::now();
            }
            Signal::TSTP => {
                self.screen.leave();
                // Stops this process as if the signal had not been caught.
                let _ = kill_process(getpid(), Signal::STOP);
            }
            _ => {
                let number = signal.as_raw();
                let message =
                    format!("demo stopped by signal {number}; its workers and its file are gone");
                return Err(Refused { message, code: ExitCode::Signal(number) });
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), Refused> {
        match event {
            Event::Report(Report::Held(hold)) => self.record.holds.push(hold),
            Event::Report(Report::Refused { at_ns }) => self.record.refused_ns.push(at_ns),
            Event::Report(Report::Failed(why)) => return Err(failed(why)),
            Event::Report(Report::Done) => self.at_work -= 1,
            Event::Answer { place, asked_ns, answer } => {
                let view = &mut self.views[place];
                if view.changed_ns <= asked_ns {
                    view.answer = answer;
                }
            }
        }
        Ok(())
    }

    fn draw(&mut self) {
        self.screen.show(&self.panel());
        // Where the panel cannot be rewritten, it is written once after each text.
        let pause = if self.screen.is_live { DRAW_EVERY } else { Duration::from_secs(60) };
        self.draw_at = Instant::now() + pause;
    }

    /// The state of the nodes and of the lock.
    fn panel(&self) -> Vec<(Style, String)> {
        let fates: Vec<(Style, String)> = self.views.iter().map(NodeView::fate).collect();
        let rows = NAMES.iter().zip(&self.views).zip(&fates).map(|((name, view), (_, fate))| {
            let [state, left, holder] = match &view.answer {
                Ok(answer) => status::row(answer),
                Err(why) => ["silent", "", why].map(str::to_owned),
            };
            [(*name).to_owned(), fate.clone(), state, left, holder]
        });
        let table = columns(["NODE", "IS", "LOCK", "LEFT", "HOLDER, AS THE NODE SAYS"], rows, &[3]);
        let holds = &self.record.holds;
        let rate = holds.iter().filter(|hold| since(hold.acquired_ns).as_secs() == 0).count();
        let lock = format!(
            "acquired {} times, {rate} in the last second; the rows are read one by one",
            holds.len()
        );
        let styles = std::iter::once(style::DIM).chain(fates.iter().map(|(style, _)| *style));
        let blank = || (style::PLAIN, String::new());
        let mut lines = vec![blank()];
        lines.extend(styles.zip(table.iter().map(|line| format!("  {line}"))));
        lines.extend([blank(), (style::PLAIN, format!("  {lock}")), blank()]);
        lines
    }
}

impl NodeView {
    fn new(fate: Fate, changed_ns: u64) -> Self {
        Self { fate, changed_ns, answer: Err("not asked yet".to_owned()) }
    }

    fn fate(&self) -> (Style, String) {
        match self.fate {
            Fate::Up => (style::PLAIN, "up".to_owned()),
            Fate::Frozen => (style::ODD, "frozen".to_owned()),
            Fate::Killed => (style::BAD, "killed".to_owned()),
            Fate::Restarted => {
                let up_for = since(self.changed_ns).as_secs_f64();
                (style::GOOD, format!("up {up_for:.1}s"))
            }
        }
    }
}

fn introduce(screen: &Screen, counter: &str) {
    screen.line(style::BOLD, &format!("One lock, five nodes, {WORKERS} workers."));
    let nodes = "In the memory of this process, not real servers. One that is killed here loses its \
                 data, and stays down for longer than the ttl.";
    let workers = format!(
        "Each acquires \"{KEY}\" (ttl {TTL:?}), reads a number from a file, sleeps 1 to 10 ms, writes \
         the number + 1, releases. Nothing but the lock protects the file, {counter}"
    );
    for (title, text) in [("nodes", nodes), ("workers", &workers)] {
        screen.paragraph(style::PLAIN, [&format!("  {title:9}"), "           "], text);
    }
    screen.line(style::PLAIN, "");
}

/// Asks a node ten times a second which client holds the lock, until the receiver of `events` is dropped.
async fn observe(place: usize, client: Client, events: UnboundedSender<Event>) {
    let mut ticks = interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let asked_ns = boot_ns();
        let inspected = timeout(ANSWER_LIMIT, client.inspect(KEY)).await;
        let answer = inspected.ok().and_then(|it| it.ok()?.nodes.into_iter().next());
        let answer = answer.ok_or_else(|| format!("no answer within {ANSWER_LIMIT:?}"));
        if events.send(Event::Answer { place, asked_ns, answer }).is_err() {
            return;
        }
    }
}
