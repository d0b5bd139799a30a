//! The driver: executes the engine's effects, and makes no decisions of its own.
//!
//! A client has one driver, which runs in a task or in a thread of its own. Callers and guards queue events
//! ([`queue`]), and nodes answer. In each tick the driver takes all events that have arrived, then reads the clock, and
//! hands the events to the engine under this reading. The engine's commands go to the nodes' transports at the end of the
//! tick.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use quorlock_core::{Arrivals, Engine, Event, Quorum, Reading, Rules};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::driver_timer::DriverTimer;
use crate::node::ClientNode;
use crate::node::ready::{Ready, TIMER};

mod callers;
mod entropy;
mod metrics;
mod outputs;
pub(crate) mod queue;
mod transports;

use self::callers::Callers;
pub(crate) use self::callers::{EntryExtended, Inspected};
use self::entropy::Entropy;
pub(crate) use self::entropy::fresh_token;
pub(crate) use self::metrics::{Metrics, NodeMetrics};
use self::outputs::Outputs;
pub(crate) use self::queue::{DriverHandle, EventReceiver, ReplyTo};
use self::transports::Transports;

/// After the last handle is dropped, the driver sends owed releases for at most the longest ttl plus this time.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

pub(crate) struct Driver {
    engine: Engine,
    names: Vec<Arc<str>>,
    /// The number of replicas of each node; empty if no node has any.
    replicas: Vec<u32>,
    quorum: Quorum,
    clock: Clock,
    events: EventReceiver,
    callers: Callers,
    transports: Transports,
    ready: Ready,
    entropy: Entropy,
    metrics: Arc<Metrics>,
    drain_for: Duration,
    /// Time until which the driver sends owed releases; `None` while a handle is left.
    drain_until: Option<Instant>,
}

impl Driver {
    /// Makes a driver, which [`run`](Self::run) starts. Must be called inside the driver's runtime.
    pub(crate) fn new(
        (quorum, rules, takes_locks): (Quorum, Rules, bool),
        nodes: &[ClientNode],
        metrics: Arc<Metrics>,
        events: EventReceiver,
        (clock, max_ttl): (Clock, Duration),
    ) -> Self {
        Self {
            names: rules.names.clone(),
            replicas: rules.replicas.clone(),
            quorum,
            transports: Transports::new(quorum, (&rules, takes_locks), nodes, clock),
            engine: Engine::guarded(quorum, rules),
            clock,
            events,
            callers: Callers::default(),
            ready: Ready::new(),
            entropy: Entropy::default(),
            metrics,
            drain_for: max_ttl + DRAIN_GRACE,
            drain_until: None,
        }
    }

    /// Runs until the client was shut down, or lost its last handle, and owes no release; at most until `drain_until`.
    ///
    /// The task is unconstrained: tokio's cooperative budget must not delay replies and commands.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send {
        let task = self.events.task();
        task.start(Box::pin(tokio::task::unconstrained(self.run_on())))
    }

    async fn run_on(mut self) {
        let mut arrivals = Arrivals::new();
        let mut timer = DriverTimer::new(self.clock);
        let mut ticks_in_a_row = 0;
        while !self.callers.is_drained()
            && self.drain_until.is_none_or(|until| Instant::now() < until)
        {
            self.set_timer(&mut timer);
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
                // `tokio::task::yield_now` wakes the task through the runtime of the current thread. That runtime is
                // the wrong one if a caller from another runtime polls the driver.
                if self.events.is_driven() {
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
            self.entropy.expect(tick.requests());
            tick.for_each(|event, reply_to| {
                if let Some(reply_to) = reply_to {
                    self.callers.expect(&event, reply_to);
                }
                self.handle(event, now);
            });
            arrivals.reuse(tick);
            if self.drain_until.is_some() && !was_abandoned {
                self.handle(Event::Close, now);
            }
            self.flush(now, &mut arrivals.answered);
            self.entropy.forget();
            if self.callers.take_notified() > 1 {
                step_back().await;
            }
        }
    }

    /// Takes all events that have arrived. Pending if there are none and no deadline is due.
    fn gather(
        &mut self,
        arrivals: &mut Arrivals<ReplyTo>,
        timer: &mut DriverTimer,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Arrivals { answered, requests, .. } = arrivals;
        let woken = self.ready.take(cx);
        self.transports.poll(woken, &self.ready, answered);
        let no_handle_is_left = self.events.take(cx, requests, REQUESTS_MAX);
        let is_timer_woken = woken & (1 << TIMER) != 0;
        let rings = is_timer_woken && timer.poll(&mut self.ready.context(TIMER)).is_ready();
        if rings {
            self.ready.note(TIMER);
        }
        let has_been_abandoned = no_handle_is_left && self.drain_until.is_none();
        if has_been_abandoned {
            self.drain_until = Some(Instant::now() + self.drain_for);
        }
        if has_been_abandoned || rings || !answered.is_empty() || !requests.is_empty() {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Sets the timer to the engine's next deadline.
    fn set_timer(&mut self, timer: &mut DriverTimer) {
        // Longest delay of the timer, because tokio cannot set a timer centuries ahead.
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

    /// Hands an event to the engine, and carries out its effects.
    fn handle(&mut self, event: Event, now: Reading) {
        let answered = match &event {
            Event::Answered { node, .. } | Event::Greeted { node, .. } => Some(*node),
            _ => None,
        };
        let Self { engine, entropy, callers, transports, names, replicas, metrics, .. } = self;
        let quorum = self.quorum;
        let mut outputs = Outputs { callers, transports, names, replicas, metrics, quorum, now };
        let spare = engine.handle(event, now, entropy, &mut outputs);
        let Some(node) = answered else { return };
        transports.reuse(node, spare);
        if let Some(round_trip) = engine.round_trip(node) {
            let nanos = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
            metrics.nodes[node.index()].round_trip_ns.store(nanos, Ordering::Relaxed);
            transports.note_round_trip(node, round_trip);
        }
    }

    /// Ends a tick: the transports get the tick's commands, and `answered` the answers of commands that fail at once.
    fn flush(&mut self, now: Reading, answered: &mut Vec<Event>) {
        self.transports.flush(now, &self.ready, &self.metrics, answered);
        // If several callers were notified together, their next requests are likely to arrive together and belong in
        // one batch. So callers must not poll the driver for each of these requests.
        self.events.set_idle(self.callers.notified() <= 1 && self.callers.is_empty());
        self.metrics.locks_held.store(self.callers.locks_held(), Ordering::Relaxed);
        self.metrics.calls_waiting.store(self.engine.calls_waiting(), Ordering::Relaxed);
        self.metrics.releases_owed.store(self.engine.releases_owed(), Ordering::Relaxed);
    }
}

/// Yields once, so that all tasks that are ready now run first.
///
/// Callers that are notified together are likely to send requests together. After this yield their requests go to the
/// nodes in one batch: with 64 tasks that lock, a write has 53 commands instead of 16. Without the yield the first
/// caller wakes the driver, and a multi-thread runtime runs the driver before the other callers.
async fn step_back() {
    let mut has_stepped_back = false;
    let step = |cx: &mut Context<'_>| {
        if std::mem::replace(&mut has_stepped_back, true) {
            return Poll::Ready(());
        }
        // A task that wakes itself goes to the end of the runtime's queue.
        cx.waker().wake_by_ref();
        Poll::Pending
    };
    poll_fn(step).await;
}

impl Drop for Driver {
    /// Notifies all holders now, because no driver extends their locks any more.
    fn drop(&mut self) {
        self.callers.lose_all();
        // Reset the figures, because guards that are dropped later cannot reach the driver.
        self.metrics.locks_held.store(0, Ordering::Relaxed);
        self.metrics.calls_waiting.store(0, Ordering::Relaxed);
    }
}

/// The most requests of callers in one tick. More would make the tick's single reading of the clock too old.
const REQUESTS_MAX: usize = 1024;

/// The most ticks before the driver yields. The runtime then polls its sockets, and a caller that polls the driver can
/// stop.
const TICKS_MAX: u32 = 32;
