//! The driver: carries out what the engine says, and decides nothing.
//!
//! One task (or thread) per client. Callers push [`DriverCommand`]s, nodes push events, the clock
//! moves. Each time round, all that has come in goes through the engine under one reading of the
//! clock taken after it came in. The commands that come out go to the nodes' lines, which send
//! them.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use quorlock_core::{Arrivals, Engine, Event, Quorum, Reading, Rules, Step};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::common::Common;
use crate::driver_timer::DriverTimer;
use crate::node::ClientNode;
use crate::node::ready::{Ready, TIMER};

mod callers;
mod entropy;
mod metrics;
pub(crate) mod queue;
mod transports;

use self::callers::{Callers, Outputs};
use self::entropy::Entropy;
pub(crate) use self::metrics::{Metrics, NodeMetrics};
pub(crate) use self::queue::{AcquireCall, CommandReceiver, DriverCommand, DriverHandle};
use self::transports::Transports;

/// When all handles are gone, what is owed is drained for at most this much longer than the
/// longest ttl.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

pub(crate) struct Driver {
    engine: Engine,
    names: Vec<Arc<str>>,
    clock: Clock,
    commands: CommandReceiver,
    callers: Callers,
    transports: Transports,
    ready: Ready,
    entropy: Entropy,
    metrics: Arc<Metrics>,
    drain_for: Duration,
    /// No handle is left that could ask for anything: what is owed is drained until then.
    drain_until: Option<Instant>,
}

impl Driver {
    /// Must be called inside the runtime that is to run it.
    pub(crate) fn start(
        (quorum, rules): (Quorum, Rules),
        nodes: &[ClientNode],
        metrics: Arc<Metrics>,
        (common, commands): (Weak<Common>, CommandReceiver),
        (clock, max_ttl): (Clock, Duration),
    ) -> Self {
        #[cfg(quorlock_mutants)]
        crate::mutants::active();
        Self {
            names: rules.names.clone(),
            transports: Transports::new(quorum, &rules, nodes, clock),
            engine: Engine::guarded(quorum, rules),
            clock,
            commands,
            callers: Callers::new(common),
            ready: Ready::new(),
            entropy: Entropy::default(),
            metrics,
            drain_for: max_ttl + DRAIN_GRACE,
            drain_until: None,
        }
    }

    /// Runs until the client is shut down, or all its handles are gone, and nothing is owed.
    ///
    /// What comes in by other ways than through tokio's own channels must not be held up by tokio's budget for them,
    /// nor what is to be sent.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send {
        let task = self.commands.task();
        task.start(Box::pin(tokio::task::unconstrained(self.run_on())))
    }

    async fn run_on(mut self) {
        let mut arrivals = Arrivals::new();
        let mut timer = DriverTimer::new(self.clock);
        let mut ticks_in_a_row = 0;
        while !self.callers.is_drained()
            && self.drain_until.is_none_or(|until| Instant::now() < until)
        {
            self.set(&mut timer);
            let was_abandoned = self.drain_until.is_some();
            let mut has_waited = false;
            poll_fn(|cx| {
                let gathered = self.gather(&mut arrivals, &mut timer, cx);
                has_waited |= gathered.is_pending();
                gathered
            })
            .await;
            ticks_in_a_row = if has_waited { 0 } else { ticks_in_a_row + 1 };
            if ticks_in_a_row == TICKS_MAX {
                ticks_in_a_row = 0;
                // tokio's own yield leaves it to this thread's runtime to wake the task, and a caller's is another one.
                if self.commands.is_driven() {
                    step_back().await;
                } else {
                    tokio::task::yield_now().await;
                }
            }
            if timer.take_step() {
                self.callers.look_at_clocks();
            }
            let clock = self.clock;
            let mut tick = arrivals.tick(|| clock.now());
            let now = tick.now();
            self.entropy.expect(tick.asked());
            // Not a loop: steps are large, and so they are moved less.
            tick.steps().for_each(|step| match step {
                Step::Event(event) => self.handle(event, now),
                Step::Asked(command) => {
                    let event = self.callers.take(command);
                    self.handle(event, now);
                }
            });
            arrivals.reuse(tick);
            if self.drain_until.is_some() && !was_abandoned {
                self.handle(Event::Close, now);
            }
            self.flush(now, &mut arrivals.answered);
            self.entropy.forget();
            if self.callers.take_told() > 1 {
                step_back().await;
            }
        }
    }

    /// Waits until something has come in, be it only the time, and takes in all of it.
    fn gather(
        &mut self,
        arrivals: &mut Arrivals<DriverCommand>,
        timer: &mut DriverTimer,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Arrivals { answered, asked, .. } = arrivals;
        let woken = self.ready.take(cx);
        self.transports.poll(woken, &mut self.ready, cx, answered);
        let nobody_is_left = self.commands.take(cx, asked, COMMANDS_MAX);
        let is_timer_woken = woken & (1 << TIMER) != 0;
        let rings = is_timer_woken && timer.poll(&mut self.ready.context(TIMER)).is_ready();
        if rings {
            self.ready.note(TIMER);
        }
        let has_been_abandoned = nobody_is_left && self.drain_until.is_none();
        if has_been_abandoned {
            let drain_for = if mutant!(NotDrained) { Duration::ZERO } else { self.drain_for };
            self.drain_until = Some(Instant::now() + drain_for);
        }
        if has_been_abandoned || rings || !answered.is_empty() || !asked.is_empty() {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Sets the alarm for when there is something to do without being asked.
    fn set(&mut self, timer: &mut DriverTimer) {
        // A deadline of centuries hence need not be waited for exactly.
        const LONG: Duration = Duration::from_secs(3600);
        let deadline = self.engine.deadline();
        let is_set = deadline.is_none_or(|at| timer.is_set(at));
        if is_set && self.drain_until.is_none() {
            return;
        }
        let now = self.clock.now();
        let due = deadline.map(|at| at.remaining(now).min(LONG));
        let drained = self.drain_until.map(|at| at.saturating_duration_since(Instant::now()));
        if let Some(delay) = due.into_iter().chain(drained).min()
            && timer.set_by(now.after(delay), delay)
        {
            self.ready.note(TIMER);
        }
    }

    /// Hands an event to the engine, and carries out what comes of it as it comes.
    fn handle(&mut self, event: Event, now: Reading) {
        let answered = match &event {
            Event::Answered { node, .. } => Some(*node),
            _ => None,
        };
        let Self { engine, entropy, callers, transports, names, metrics, .. } = self;
        let mut outputs = Outputs { callers, transports, names, metrics, now };
        let spare = engine.handle(event, now, entropy, &mut outputs);
        let Some(node) = answered else { return };
        transports.reuse(node, spare);
        if let Some(round_trip) = engine.round_trip(node) {
            let nanos = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
            metrics.nodes[node.index()].round_trip_ns.store(nanos, Ordering::Relaxed);
        }
    }

    /// Ends a tick: its commands go to the lines. `told`: of what is not even tried.
    fn flush(&mut self, now: Reading, told: &mut Vec<Event>) {
        self.transports.flush(now, &self.ready, &self.metrics, told);
        // If several were told something, they are likely to ask together.
        self.commands.set_idle(self.callers.told() <= 1 && self.callers.is_empty());
        self.metrics.locks_held.store(self.callers.locks_held(), Ordering::Relaxed);
        self.metrics.calls_waiting.store(self.engine.calls_waiting(), Ordering::Relaxed);
        self.metrics.releases_owed.store(self.engine.releases_owed(), Ordering::Relaxed);
    }
}

/// Lets the tasks run that are ready.
///
/// Several callers who are told something at once are likely to ask for something at once. What they ask then goes to
/// the nodes together. Otherwise the first of them would wake this task, which a runtime with several threads runs
/// before the others.
async fn step_back() {
    let mut has_stepped_back = false;
    let step = |cx: &mut Context<'_>| {
        if std::mem::replace(&mut has_stepped_back, true) {
            return Poll::Ready(());
        }
        // A task that wakes itself is the last in its queue.
        cx.waker().wake_by_ref();
        Poll::Pending
    };
    poll_fn(step).await;
}

impl Drop for Driver {
    /// However the driver ends, nobody extends what is held any more: its holders are told now, not
    /// when the validity has run out.
    fn drop(&mut self) {
        self.callers.lose_all();
        // Who drops a guard from now on finds nobody to tell: it must not count for ever.
        self.metrics.locks_held.store(0, Ordering::Relaxed);
        self.metrics.calls_waiting.store(0, Ordering::Relaxed);
    }
}

/// At most so much is taken in at a turn, so that the clock is read again before long.
const COMMANDS_MAX: usize = 1024;

/// After so many ticks without a pause the runtime polls its sockets, and a thread that drives it may leave.
const TICKS_MAX: u32 = 32;
