//! The driver: carries out what the engine says, and decides nothing.
//!
//! One task (or thread) per client. Callers push [`DriverCommand`]s, nodes push events, the clock moves; each
//! time round, all that has come in goes through the engine under one reading of the clock taken
//! after it came in, and the commands that come out go to the nodes' lines, which send them.

use std::future::poll_fn;
use std::iter::repeat_n;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::CatchUnwind;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use quorlock_core::{
    Arrivals, Effect, Engine, Event, Extended, Hold, LockId, LossCause, NodeStory, Quorum, Reading,
    Refusal, ReleaseReport, RestartGuard, Rules, Step, Story, TicketedCommand,
};
use rustc_hash::FxHashMap;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::client::{Common, NodeStanding};
use crate::clock::Clock;
use crate::guard::{Guard, GuardToken, Held};
use crate::node::line::Line;
use crate::node::ready::{ALARM, Ready};
use crate::node::{BoxFuture, Encoder, Inbox, Node};

mod entropy;
mod metrics;
mod queue;

use self::entropy::Entropy;
pub(crate) use self::metrics::{Metrics, NodeMetrics};
pub(crate) use self::queue::{AcquireCall, CommandReceiver, DriverCommand, DriverHandle};

/// When all handles are gone, what is owed is drained for at most this much longer than the
/// longest ttl.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

pub(crate) struct Driver {
    engine: Engine,
    names: Vec<Arc<str>>,
    clock: Clock,
    commands: CommandReceiver,
    /// To give to guards; weak, so that the driver does not keep itself alive.
    common: Weak<Common>,
    /// What nodes have said unasked.
    inbox: Inbox,
    /// The ways to the nodes; `None` for one whose node has panicked.
    lines: Vec<Option<Line>>,
    ready: Ready,
    outbox: Vec<Vec<TicketedCommand>>,
    encoder: Encoder,
    /// Empty but while an event is handled; kept for its memory.
    effects: Vec<Effect>,
    entropy: Entropy,
    /// What the nodes do besides: their connections.
    backgrounds: FuturesUnordered<CatchUnwind<AssertUnwindSafe<BoxFuture<()>>>>,
    metrics: Arc<Metrics>,
    drain_for: Duration,
    calls: ByLock<PendingCall>,
    held: ByLock<Arc<Held>>,
    extends: ByLock<Vec<oneshot::Sender<Extended>>>,
    releases: ByLock<oneshot::Sender<ReleaseReport>>,
    inspections: ByLock<oneshot::Sender<Vec<NodeStory>>>,
    closing: Vec<oneshot::Sender<()>>,
    /// So many callers were given a lock in this tick, or told of a release.
    told: usize,
    drained: bool,
    /// No handle is left that could ask for anything: what is owed is drained until then.
    drain_until: Option<Instant>,
}

/// By the lock's number. This process counts them itself, so nobody can choose them to collide, and
/// hashing need not defend against that.
type ByLock<T> = FxHashMap<LockId, T>;

struct PendingCall {
    resource: Arc<str>,
    progress: Option<watch::Sender<Option<Story>>>,
    reply: oneshot::Sender<Result<Guard, Refusal>>,
}

impl Driver {
    /// Must be called inside the runtime that is to run it.
    pub(crate) fn start(
        (quorum, rules): (Quorum, Rules),
        nodes: &[Arc<dyn Node>],
        metrics: Arc<Metrics>,
        (common, commands): (Weak<Common>, CommandReceiver),
        (clock, ttl_max): (Clock, Duration),
    ) -> Self {
        #[cfg(quorlock_mutants)]
        crate::mutants::active();
        let marker = (rules.guard != RestartGuard::Off).then(|| rules.marker.clone());
        let names = rules.names.clone();
        let writes = rules.guard == RestartGuard::Strict;
        let inbox = Inbox::new(nodes.len());
        let backgrounds = FuturesUnordered::new();
        let mut lines = Vec::new();
        for (id, node) in quorum.node_ids().zip(nodes) {
            let news = inbox.news(id).with_marker(marker.clone()).registering(writes);
            let news = news.lasting(rules.lasting.contains(id));
            let line = Line::new(id, node, clock);
            backgrounds.push(AssertUnwindSafe(line.background(news)).catch_unwind());
            lines.push(Some(line));
        }
        Self {
            engine: Engine::guarded(quorum, rules),
            names,
            clock,
            commands,
            common,
            inbox,
            outbox: lines.iter().map(|_| Vec::new()).collect(),
            encoder: Encoder::default(),
            effects: Vec::new(),
            entropy: Entropy::default(),
            ready: Ready::new(),
            lines,
            backgrounds,
            metrics,
            drain_for: ttl_max + DRAIN_GRACE,
            calls: ByLock::default(),
            held: ByLock::default(),
            extends: ByLock::default(),
            releases: ByLock::default(),
            inspections: ByLock::default(),
            closing: Vec::new(),
            told: 0,
            drained: false,
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
        let mut alarm = Alarm::new(self.clock);
        let mut ticks_in_a_row = 0;
        while !self.drained && self.drain_until.is_none_or(|until| Instant::now() < until) {
            self.set(&mut alarm);
            let was_abandoned = self.drain_until.is_some();
            let mut has_waited = false;
            poll_fn(|cx| {
                let gathered = self.gather(&mut arrivals, &mut alarm, cx);
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
            if alarm.take_step() {
                // Holders look at the clocks themselves, and tell if a lock has run out by the step.
                self.held.values().for_each(|held| held.look_at_clocks());
            }
            let clock = self.clock;
            let mut tick = arrivals.tick(|| clock.now());
            let now = tick.now();
            self.entropy.expect(tick.asked());
            // Not a loop: steps are large, and so they are moved less.
            tick.steps().for_each(|step| match step {
                Step::Event(event) => self.handle(event, now),
                Step::Asked(command) => self.take(command, now),
            });
            arrivals.reuse(tick);
            if self.drain_until.is_some() && !was_abandoned {
                self.handle(Event::Close, now);
            }
            self.flush(now, &mut arrivals.answered);
            self.entropy.forget();
            if std::mem::take(&mut self.told) > 1 {
                step_back().await;
            }
        }
    }

    /// Waits until something has come in, be it only the time, and takes in all of it.
    fn gather(
        &mut self,
        arrivals: &mut Arrivals<DriverCommand>,
        alarm: &mut Alarm,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Arrivals { answered, asked, .. } = arrivals;
        self.poll_backgrounds(cx);
        let woken = self.ready.take(cx);
        for (place, line) in self.lines.iter_mut().enumerate() {
            let is_woken = woken & (1 << place) != 0;
            if is_woken || line.as_ref().is_some_and(Line::is_changed) {
                let cx = &mut self.ready.context(place);
                work(line, |line| line.poll(cx, &mut self.encoder, answered));
            }
        }
        self.inbox.take(cx, answered);
        let nobody_is_left = self.commands.take(cx, asked, COMMANDS_MAX);
        let is_alarmed = woken & (1 << ALARM) != 0;
        let rings = is_alarmed && alarm.poll(&mut self.ready.context(ALARM)).is_ready();
        if rings {
            self.ready.note(ALARM);
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

    fn poll_backgrounds(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(ended)) = self.backgrounds.poll_next_unpin(cx) {
            if ended.is_err() {
                tracing::error!("what a node does in the background panicked; it goes without");
            }
        }
    }

    /// Sets the alarm for when there is something to do without being asked.
    fn set(&mut self, alarm: &mut Alarm) {
        // A deadline of centuries hence need not be waited for exactly.
        const LONG: Duration = Duration::from_secs(3600);
        let deadline = self.engine.deadline();
        let is_set = deadline.is_none_or(|at| alarm.is_set(at));
        if is_set && self.drain_until.is_none() {
            return;
        }
        let now = self.clock.now();
        let due = deadline.map(|at| at.remaining(now).min(LONG));
        let drained = self.drain_until.map(|at| at.saturating_duration_since(Instant::now()));
        if let Some(delay) = due.into_iter().chain(drained).min()
            && alarm.set_by(now.after(delay), delay)
        {
            self.ready.note(ALARM);
        }
    }

    fn take(&mut self, command: DriverCommand, now: Reading) {
        match command {
            DriverCommand::Acquire { lock, call } => {
                let AcquireCall { request, resource, progress, reply } = *call;
                self.calls.insert(lock, PendingCall { resource, progress, reply });
                self.handle(Event::Acquire { lock, request }, now);
            }
            DriverCommand::Cancel { lock } => {
                self.calls.remove(&lock);
                self.handle(Event::Cancel { lock }, now);
            }
            DriverCommand::Extend { lock, reply } => {
                self.extends.entry(lock).or_default().push(reply);
                self.handle(Event::Extend { lock }, now);
            }
            DriverCommand::RunOut { lock } => self.handle(Event::RunOut { lock }, now),
            DriverCommand::Release { lock, reply } => {
                self.held.remove(&lock);
                let report = reply.is_some();
                if let Some(reply) = reply {
                    self.releases.insert(lock, reply);
                }
                self.handle(Event::Release { lock, report }, now);
            }
            DriverCommand::Inspect { lock, key, timeout, reply } => {
                self.inspections.insert(lock, reply);
                self.handle(Event::Inspect { lock, key, timeout }, now);
            }
            DriverCommand::Close { reply } => {
                self.closing.push(reply);
                self.handle(Event::Close, now);
            }
        }
    }

    /// Hands an event to the engine and carries out what comes of it, in order.
    fn handle(&mut self, event: Event, now: Reading) {
        let mut effects = std::mem::take(&mut self.effects);
        let answered = match &event {
            Event::Answered { node, .. } => Some(*node),
            _ => None,
        };
        let spare = self.engine.handle(event, now, &mut self.entropy, &mut effects);
        if let Some(line) = answered.and_then(|node| self.lines[node.index()].as_mut()) {
            line.reuse(spare);
        }
        if let Some((node, round_trip)) =
            answered.and_then(|node| Some((node, self.engine.round_trip(node)?)))
        {
            let nanos = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
            self.metrics.nodes[node.index()].round_trip_ns.store(nanos, Ordering::Relaxed);
        }
        for effect in effects.drain(..) {
            self.carry_out(effect, now);
        }
        self.effects = effects;
    }

    fn carry_out(&mut self, effect: Effect, now: Reading) {
        // A reply that nobody waits for any more is no error: whoever asked has gone.
        match effect {
            Effect::Send { nodes, ticket, command } => {
                for (node, command) in nodes.iter().zip(repeat_n(command, nodes.len())) {
                    self.outbox[node.index()].push((ticket, command));
                }
            }
            Effect::Acquired { lock, token, turn, hold, fence, .. } => {
                self.grant(lock, (GuardToken::new(token, turn), fence), hold);
            }
            Effect::NotAcquired { lock, refusal } => {
                if let Some(call) = self.calls.remove(&lock) {
                    let _ = call.reply.send(Err(refusal));
                }
            }
            Effect::Waiting { lock, story } => {
                if let Some(PendingCall { progress: Some(progress), .. }) = self.calls.get(&lock) {
                    progress.send_replace(Some(story));
                }
            }
            Effect::Changed { lock, validity } => {
                if let Some(held) = self.held.get(&lock) {
                    held.update(validity);
                }
            }
            Effect::Extended { lock, outcome } => {
                for reply in self.extends.remove(&lock).into_iter().flatten() {
                    let _ = reply.send(outcome.clone());
                }
            }
            Effect::Lost { lock, cause } => {
                if let Some(held) = self.held.get(&lock).cloned() {
                    if mutant!(LossToldLate) {
                        let told = async move {
                            tokio::task::yield_now().await;
                            held.lose(cause);
                        };
                        return drop(tokio::spawn(told));
                    }
                    held.lose(cause);
                }
            }
            Effect::Released { lock, report } => {
                if let Some(reply) = self.releases.remove(&lock) {
                    self.told += 1;
                    let _ = reply.send(report);
                }
            }
            Effect::Inspected { lock, nodes } => {
                if let Some(reply) = self.inspections.remove(&lock) {
                    let _ = reply.send(nodes);
                }
            }
            Effect::TimedOut { node } => {
                self.metrics.nodes[node.index()].timeouts.fetch_add(1, Ordering::Relaxed);
            }
            Effect::Woken { .. } => {
                self.metrics.wakeups.fetch_add(1, Ordering::Relaxed);
            }
            Effect::Drained => {
                self.drained = true;
                for reply in self.closing.drain(..) {
                    let _ = reply.send(());
                }
            }
            Effect::Superseded { lock, .. } => {
                if let Some(held) = self.held.get(&lock) {
                    held.supersede();
                }
            }
            Effect::Standing { node, standing } => {
                let told = NodeStanding::new(&standing, now);
                let name = &self.names[node.index()];
                match told {
                    NodeStanding::Refused(_) => tracing::warn!("node {name}: {told}"),
                    _ => tracing::debug!("node {name}: {told}"),
                }
                self.metrics.nodes[node.index()].set_standing(standing);
            }
            Effect::FloorOfFew { node, clocks } => {
                let name = &self.names[node.index()];
                tracing::warn!(
                    "node {name} may have lost its fences' counters, and its new floor rests on the clocks of \
                     {clocks} other nodes, for no more could be reached: fewer than a quorum; see to it that \
                     nodes' clocks agree"
                );
            }
        }
    }

    fn grant(&mut self, lock: LockId, id: (GuardToken, Option<u64>), hold: Hold) {
        let Some(call) = self.calls.remove(&lock) else { return };
        self.told += 1;
        // No handle is left, and so no caller: what is held is given back in a moment.
        let Some(common) = self.common.upgrade() else { return };
        let held = Arc::new(Held::new((lock, call.resource), id, hold, common));
        self.held.insert(lock, held.clone());
        // If the caller has gone, the guard comes back and is dropped, which releases the lock.
        if let Err(untaken) = call.reply.send(Ok(Guard::new(held)))
            && mutant!(UntakenForgotten)
        {
            std::mem::forget(untaken);
        }
    }

    /// Gives each node's line what it is to send. `told`: of what is not even tried.
    fn flush(&mut self, now: Reading, told: &mut Vec<Event>) {
        for (place, orders) in self.outbox.iter_mut().enumerate() {
            if !orders.is_empty() {
                let count = u64::try_from(orders.len()).unwrap_or(u64::MAX);
                self.metrics.nodes[place].commands.fetch_add(count, Ordering::Relaxed);
                work(&mut self.lines[place], |line| {
                    line.take(orders, now, &mut self.encoder, told);
                    if line.sends_when_polled() {
                        self.ready.note(place);
                    }
                });
                orders.clear();
                orders.shrink_to(ORDERS_KEPT);
            }
        }
        self.encoder.forget();
        // If several were told something, they are likely to ask together.
        self.commands.set_idle(self.told <= 1 && self.calls.is_empty() && self.releases.is_empty());
        self.metrics.locks_held.store(self.held.len(), Ordering::Relaxed);
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

/// Lets a line work. A node that panics takes no other down with it, and no client: its votes are out, and the
/// engine's time-outs see to the rest.
fn work(line: &mut Option<Line>, work: impl FnOnce(&mut Line)) {
    if let Some(working) = line
        && catch_unwind(AssertUnwindSafe(|| work(working))).is_err()
    {
        tracing::error!("a node panicked; it is not used any more");
        *line = None;
    }
}

impl Drop for Driver {
    /// However the driver ends, nobody extends what is held any more: its holders are told now, not
    /// when the validity has run out.
    fn drop(&mut self) {
        for held in self.held.values() {
            held.lose(LossCause::Shutdown);
        }
        // Who drops a guard from now on finds nobody to tell: it must not count for ever.
        self.metrics.locks_held.store(0, Ordering::Relaxed);
        self.metrics.calls_waiting.store(0, Ordering::Relaxed);
    }
}

/// At most so much is taken in at a turn, so that the clock is read again before long.
const COMMANDS_MAX: usize = 1024;

/// After so many ticks without a pause the runtime polls its sockets, and a thread that drives it may leave.
const TICKS_MAX: u32 = 32;

/// Memory for so many commands to a node is kept; more of them in one tick are rare.
const ORDERS_KEPT: usize = 256;
