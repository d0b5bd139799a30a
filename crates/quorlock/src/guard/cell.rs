//! The state of one lock that the caller, the driver and the guard share.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use quorlock_core::{
    BootTime, Ended, Event, Hold, LockId, LossCause, NodeResult, Reading, Validity,
};
use tokio::sync::{Notify, watch};

use super::reply::{CallerSide, DriverSide, Reply, ReplySlot};
use super::{Guard, Health};
use crate::client::context::ClientContext;
use crate::clock::Clock;
use crate::driver::queue::ReplyTo;
use crate::fork_check;

/// One lock from the call to the end of the release, in one allocation: the driver's replies to the caller, and the hold.
///
/// The driver refers to the cell by a [`DriverSide`], a waiting caller by a [`CallerSide`], and the holder by a
/// [`Guard`]. Each of these three records its drop in the cell, where the other two find it.
pub(crate) struct LockCell {
    pub(super) lock: LockId,
    pub(super) resource: Arc<str>,
    clock: Clock,
    /// The id of the process that built the client. In a fork of this process the lock is invalid.
    process: u32,
    /// Weak, so that a caller that waits for the end of a release does not keep the client alive.
    context: Weak<ClientContext>,
    state: Mutex<State>,
    /// Wakes tasks that wait for a change of the hold.
    pub(super) changed: Notify,
    /// Wakes threads that wait for a change of the hold.
    changed_blocking: Condvar,
    /// The span of the hold, from the grant on, if a `tracing` subscriber wants it. Boxed to keep an unset span small.
    span: OnceLock<Box<tracing::Span>>,
}

pub(super) struct State {
    pub(super) reply: ReplySlot,
    /// Whether the [`DriverSide`] still exists. Without it no reply can come.
    pub(super) has_driver: bool,
    /// The validity of the lock, and how it ended. `None` before the grant.
    hold: Option<Hold>,
    /// Number of threads that wait for a change. If zero, no system call is made to notify the condition variable.
    blocked: u32,
    /// Created by the first call of [`Guard::health`], or when a node does not confirm the lock.
    health: Option<watch::Sender<Health>>,
}

impl LockCell {
    /// The two sides of a new call. The caller waits for the reply.
    pub(crate) fn call(
        lock: LockId,
        resource: Arc<str>,
        context: &Arc<ClientContext>,
    ) -> (DriverSide, CallerSide) {
        let reply = ReplySlot::Awaited(None);
        let state = State { reply, has_driver: true, hold: None, blocked: 0, health: None };
        let cell = Arc::new(Self {
            lock,
            resource,
            clock: context.clock,
            process: context.driver.process(),
            context: Arc::downgrade(context),
            state: Mutex::new(state),
            changed: Notify::new(),
            changed_blocking: Condvar::new(),
            span: OnceLock::new(),
        });
        (DriverSide::new(cell.clone()), CallerSide::new(cell))
    }

    /// Starts the hold and sends the guard to the caller. Returns the guard if the caller is gone; its drop then releases
    /// the lock.
    pub(super) fn grant(&self, guard: Guard, hold: Hold) -> Option<Reply> {
        // A caller that polls the driver may be in a span of its own, which must not become the parent of this span.
        let span = tracing::debug_span!(parent: None, "hold", resource = &*self.resource);
        if !span.is_none() {
            // The driver grants a call once, so no span was set before.
            let _ = self.span.set(Box::new(span));
        }
        if let Some(mut state) = self.state() {
            state.hold = Some(hold);
            return ReplySlot::send(state, Reply::Granted(guard));
        }
        None
    }

    /// Sends a reply to the caller. Returns the reply if no caller waits.
    pub(super) fn send(&self, reply: Reply) -> Option<Reply> {
        ReplySlot::send(self.state()?, reply)
    }

    /// The client; `None` once its last handle is gone.
    pub(super) fn context(&self) -> Option<Arc<ClientContext>> {
        self.context.upgrade()
    }

    /// Takes the new validity from the driver, after an extension or another change of the votes.
    pub(crate) fn update(&self, validity: Validity) {
        let now = self.clock.now();
        let loss = self.change(|hold| hold.update(validity, now)).flatten();
        self.report_loss(loss);
    }

    /// Call this when the clocks may have been set. Wakes waiting tasks if the lock is held, or else records its end.
    pub(crate) fn look_at_clocks(&self) {
        if self.remaining().is_some() {
            self.change(|_| ());
        }
    }

    /// Reports to the driver a loss that the guard noticed. Otherwise the driver could go on extending the lock.
    fn report_loss(&self, loss: Option<LossCause>) {
        let Some(cause) = loss else { return };
        if let Some(context) = self.context() {
            context.driver.send(Event::RunOut { lock: self.lock }, ReplyTo::Nobody);
        }
        self.warn(cause);
    }

    fn warn(&self, cause: LossCause) {
        tracing::warn!(parent: self.span(), "lock lost: {cause}");
    }

    /// Notes that a node has given out a larger fencing token.
    pub(crate) fn supersede(&self) {
        let Some(mut state) = self.state() else { return };
        if state.hold.as_mut().is_some_and(Hold::supersede) {
            self.wake(state);
            tracing::warn!(parent: self.span(), "a node has given out a larger fencing token since");
        }
    }

    pub(super) fn health(&self, names: &[Arc<str>]) -> watch::Receiver<Health> {
        let sender = if self.is_own_process() { self.health_sender(names) } else { None };
        sender.map_or_else(|| watch::channel(Health::unknown()).1, |sender| sender.subscribe())
    }

    /// Returns the sender of the health channel, which the first call creates. `None` before the grant.
    fn health_sender(&self, names: &[Arc<str>]) -> Option<watch::Sender<Health>> {
        let State { hold, health, .. } = &mut *self.state()?;
        let hold = hold.as_ref()?;
        let health = health.get_or_insert_with(|| watch::Sender::new(Health::granted(names)));
        health.send_if_modified(|health| {
            health.note_votes(hold.validity());
            false
        });
        Some(health.clone())
    }

    /// The last value of the channel of [`Guard::health`]. `None` if there is no channel, or in a forked child.
    pub(super) fn last_health(&self) -> Option<Health> {
        if !self.is_own_process() {
            return None;
        }
        self.state()?.health.as_ref().map(|health| health.borrow().clone())
    }

    /// Notes the nodes' answers to an extension. If the answers end the lock (`is_lost`), receivers are notified
    /// later, when the driver reports the loss.
    pub(crate) fn confirm(
        &self,
        (is_confirmed, is_lost): (bool, bool),
        results: Vec<NodeResult>,
        names: &[Arc<str>],
    ) {
        let Some(health) = self.health_sender(names) else { return };
        let was_confirmed = health.borrow().is_confirmed();
        health.send_if_modified(|health| health.update(is_confirmed, results) && !is_lost);
        // The borrow ends before a line is logged, because a subscriber may ask for the health.
        let (span, now) = (self.span(), health.borrow().clone());
        match (was_confirmed, is_confirmed) {
            // `lose` logs the loss.
            _ if is_lost => {}
            (true, false) => tracing::warn!(parent: span, "no quorum confirms the lock: {now}"),
            (false, true) => tracing::info!(parent: span, "a quorum confirms the lock: {now}"),
            _ => tracing::debug!(parent: span, "the lock is extended: {now}"),
        }
    }

    pub(crate) fn lose(&self, cause: LossCause) {
        let Some(mut state) = self.state() else { return };
        let was_held = state.hold.as_mut().is_some_and(|hold| hold.lose(cause));
        let health = state.health.clone();
        self.wake(state);
        if let Some(health) = health {
            health.send_modify(|_| {});
        }
        if was_held {
            self.warn(cause);
        }
    }

    /// Makes a writer a reader. Returns whether the driver must send the downgrade to the nodes.
    pub(super) fn downgrade(&self) -> bool {
        self.change(Hold::downgrade).unwrap_or(false)
    }

    /// Ends the hold. Call this before the driver receives the release (S14). With `report`, the caller then waits for
    /// the driver's report. Returns whether the driver must receive the release.
    pub(super) fn release(&self, report: bool) -> bool {
        let Some(mut state) = self.state() else { return false };
        if report && state.has_driver {
            state.reply = ReplySlot::Awaited(None);
        }
        let is_first = state.hold.as_mut().is_some_and(Hold::release);
        self.wake(state);
        is_first
    }

    /// Changes the hold, and wakes all that wait for a change. `None` before the grant.
    fn change<T>(&self, change: impl FnOnce(&mut Hold) -> T) -> Option<T> {
        let mut state = self.state()?;
        let changed = change(state.hold.as_mut()?);
        self.wake(state);
        Some(changed)
    }

    /// Wakes all tasks and threads that wait for a change. Unlocks the state first, because a waker may poll its task at
    /// once, and the task may call the guard.
    fn wake(&self, state: MutexGuard<'_, State>) {
        let is_blocking = state.blocked > 0;
        drop(state);
        self.changed.notify_waiters();
        if is_blocking {
            self.changed_blocking.notify_all();
        }
    }

    /// Blocks until the lock is lost.
    pub(crate) fn wait_lost(&self) -> LossCause {
        loop {
            if let Some(cause) = self.loss_cause() {
                return cause;
            }
            let now = self.clock.now();
            let Some(mut state) = self.state() else { continue };
            let Some(remaining) = state.remaining(now) else { continue };
            state.blocked += 1;
            let waited = self.changed_blocking.wait_timeout(state, remaining);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state.blocked -= 1;
        }
    }

    pub(crate) fn is_superseded(&self) -> bool {
        self.is_own_process()
            && self
                .state()
                .is_some_and(|state| state.hold.as_ref().is_some_and(Hold::is_superseded))
    }

    pub(super) fn loss_cause(&self) -> Option<LossCause> {
        if !self.is_own_process() {
            return Some(LossCause::Shutdown);
        }
        // Records the loss if the validity has ended by the clock.
        let _ = self.remaining();
        match self.state()?.hold.as_ref()?.ended() {
            Some(Ended::Lost(cause)) => Some(cause),
            _ => None,
        }
    }

    /// The remaining time of the lock. If the lock has ended: records the end, and returns `None` from then on.
    pub(super) fn remaining(&self) -> Option<Duration> {
        self.remaining_at(self.clock.now())
    }

    pub(super) fn valid_until(&self) -> Option<BootTime> {
        let now = self.clock.now();
        Some(now.after(self.remaining_at(now)?))
    }

    /// The number of votes that `count` counts; zero if the lock has ended.
    pub(super) fn votes(&self, count: impl Fn(&Validity, Reading) -> usize) -> usize {
        let now = self.clock.now();
        let state = self.remaining_at(now).and_then(|_| self.state());
        state.and_then(|state| Some(count(state.hold.as_ref()?.validity(), now))).unwrap_or(0)
    }

    fn remaining_at(&self, now: Reading) -> Option<Duration> {
        if !self.is_own_process() {
            return None;
        }
        let mut state = self.state()?;
        let remaining = state.remaining(now);
        if remaining.is_none()
            && let Some(cause) = state.hold.as_mut()?.latch_end(now)
        {
            self.wake(state);
            self.report_loss(Some(cause));
        }
        remaining
    }

    /// False in a forked child: the lock is the parent's (S24).
    pub(super) fn is_own_process(&self) -> bool {
        fork_check::is_current(self.process)
    }

    pub(super) fn span(&self) -> &tracing::Span {
        static NONE: tracing::Span = tracing::Span::none();
        self.span.get().map_or(&NONE, |span| span)
    }

    /// `None` in a forked child if a thread of the parent had locked the state at the fork.
    pub(super) fn state(&self) -> Option<MutexGuard<'_, State>> {
        fork_check::lock(&self.state, self.process)
    }

    #[cfg(test)]
    pub(super) fn is_unlocked(&self) -> bool {
        self.state.try_lock().is_ok()
    }
}

impl State {
    fn remaining(&self, now: Reading) -> Option<Duration> {
        self.hold.as_ref()?.remaining(now)
    }
}
