//! What a guard and the driver share: whether the lock is held, until when, and why not any more.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use quorlock_core::{
    BootTime, Ended, Event, Hold, LockId, LossCause, Mode, NodeResult, Reading, Validity,
};
use tokio::sync::{Notify, watch};

use super::{GuardToken, Health};
use crate::clock::Clock;
use crate::common::Common;
use crate::driver::queue::ReplyTo;
use crate::error::describe;
use crate::process;

/// What guard and driver share.
pub(crate) struct Held {
    pub(super) lock: LockId,
    pub(super) resource: Arc<str>,
    pub(super) token: GuardToken,
    pub(super) fencing_token: Option<NonZeroU64>,
    /// It is a reader's, as `state` says as well; that cannot be locked in a forked child.
    is_shared: AtomicBool,
    clock: Clock,
    /// The process that the lock is held by.
    process: u32,
    /// Weak, so that who waits to hear how a release went does not keep the client alive.
    common: Weak<Common>,
    pub(super) state: Mutex<State>,
    /// Wakes tasks that wait for a change.
    pub(super) changed: Notify,
    /// Wakes threads that wait for a change.
    pub(super) changed_blocking: Condvar,
    /// `None` if nobody listens, as is the rule: then it takes no room either.
    span: Option<Box<tracing::Span>>,
}

pub(super) struct State {
    pub(super) hold: Hold,
    /// How many threads wait for a change: to wake none would cost a system call all the same.
    pub(super) blocked: u32,
    /// Made when somebody asks for it, or when a node does not confirm the lock.
    health: Option<watch::Sender<Health>>,
}

impl Held {
    pub(crate) fn new(
        (lock, resource): (LockId, Arc<str>),
        (token, fencing_token): (GuardToken, Option<u64>),
        hold: Hold,
        common: &Arc<Common>,
    ) -> Self {
        // Whoever lets the driver work is not the parent: a hold has none.
        let span = tracing::debug_span!(parent: None, "hold", resource = &*resource);
        Self {
            lock,
            resource,
            token,
            fencing_token: fencing_token.and_then(NonZeroU64::new),
            is_shared: AtomicBool::new(hold.mode() == Mode::Shared),
            clock: common.clock,
            process: common.driver.process(),
            common: Arc::downgrade(common),
            state: Mutex::new(State { hold, blocked: 0, health: None }),
            changed: Notify::new(),
            changed_blocking: Condvar::new(),
            span: (!span.is_none()).then(|| Box::new(span)),
        }
    }

    /// The driver has other votes.
    pub(crate) fn update(&self, validity: Validity) {
        let now = self.clock.now();
        let mut state = self.state();
        let seen = state.hold.update(validity, now);
        self.wake(state);
        self.tell_run_out(seen);
    }

    /// The clocks may have made a step: a task that waits for a time looks anew, and what has run out by the
    /// step is seen now.
    pub(crate) fn look_at_clocks(&self) {
        if self.remaining().is_some() {
            self.wake(self.state());
        }
    }

    /// The end was seen just now, and the driver may believe the lock held.
    fn tell_run_out(&self, seen: Option<LossCause>) {
        if let Some(cause) = seen {
            if let Some(common) = self.common.upgrade() {
                common.driver.send(Event::RunOut { lock: self.lock }, ReplyTo::Nobody);
            }
            self.warn(cause);
        }
    }

    fn warn(&self, cause: LossCause) {
        tracing::warn!(parent: self.span(), "lock lost: {}", describe(&cause));
    }

    /// A node has given a larger fence out.
    pub(crate) fn supersede(&self) {
        let mut state = self.state();
        if state.hold.supersede() {
            self.wake(state);
            tracing::warn!(parent: self.span(), "a node has given out a larger fencing token since");
        }
    }

    /// How the nodes confirm the lock, as it changes.
    pub(super) fn health(&self, names: &[Arc<str>]) -> watch::Receiver<Health> {
        match self.is_own_process() {
            true => self.health_sender(names).subscribe(),
            false => watch::channel(Health::unknown()).1,
        }
    }

    fn health_sender(&self, names: &[Arc<str>]) -> watch::Sender<Health> {
        let State { hold, health, .. } = &mut *self.state();
        let health = health.get_or_insert_with(|| watch::Sender::new(Health::granted(names)));
        health.send_if_modified(|health| {
            health.note_votes(hold.validity());
            false
        });
        health.clone()
    }

    /// How the nodes confirmed the lock last, if they did not all confirm it, or if somebody has asked before.
    pub(super) fn last_health(&self) -> Option<Health> {
        // In a forked child the mutex may be locked for ever.
        if !self.is_own_process() {
            return None;
        }
        self.state().health.as_ref().map(|health| health.borrow().clone())
    }

    /// The driver knows what the nodes answered to an extension. If the answers end the lock (`is_lost`), nobody hears
    /// about them before the lock is lost.
    pub(crate) fn confirm(
        &self,
        (is_confirmed, is_lost): (bool, bool),
        results: Vec<NodeResult>,
        names: &[Arc<str>],
    ) {
        let health = self.health_sender(names);
        let was_confirmed = health.borrow().is_confirmed();
        health.send_if_modified(|health| health.update(is_confirmed, results) && !is_lost);
        let (span, now) = (self.span(), health.borrow());
        match (was_confirmed, is_confirmed) {
            // The loss is logged.
            _ if is_lost => {}
            (true, false) => tracing::warn!(parent: span, "no quorum confirms the lock: {}", *now),
            (false, true) => tracing::info!(parent: span, "a quorum confirms the lock: {}", *now),
            _ => tracing::debug!(parent: span, "the lock is extended: {}", *now),
        }
    }

    /// The driver has lost the lock.
    pub(crate) fn lose(&self, cause: LossCause) {
        let mut state = self.state();
        let was_held = state.hold.lose(cause);
        let health = state.health.clone();
        self.wake(state);
        if let Some(health) = health {
            health.send_modify(|_| {});
        }
        if was_held {
            self.warn(cause);
        }
    }

    /// A writer becomes a reader, before the driver is asked for that. Returns whether it is to be asked.
    pub(crate) fn downgrade(&self) -> bool {
        let mut state = self.state();
        let is_first = state.hold.downgrade();
        self.is_shared.store(state.hold.mode() == Mode::Shared, Ordering::Release);
        self.wake(state);
        is_first
    }

    /// Ends the hold before the driver is asked to release (S14). Returns whether it is to be asked.
    pub(super) fn release(&self) -> bool {
        let mut state = self.state();
        let is_first = state.hold.release();
        self.wake(state);
        is_first
    }

    /// Wakes all tasks and threads that wait for a change. Unlocks the state first: a waker runs its task's code, which
    /// may ask this guard.
    fn wake(&self, state: MutexGuard<'_, State>) {
        let is_blocking = state.blocked > 0;
        drop(state);
        if mutant!(NobodyWoken) {
            return;
        }
        self.changed.notify_waiters();
        if is_blocking {
            self.changed_blocking.notify_all();
        }
    }

    pub(super) fn mode(&self) -> Mode {
        if self.is_shared.load(Ordering::Acquire) { Mode::Shared } else { Mode::Exclusive }
    }

    pub(super) fn is_superseded(&self) -> bool {
        self.is_own_process() && self.state().hold.is_superseded()
    }

    pub(super) fn loss_cause(&self) -> Option<LossCause> {
        if !self.is_own_process() {
            return Some(LossCause::Shutdown);
        }
        // Looks at the clock first: the end of the validity needs nobody to announce it.
        let _ = self.remaining();
        match self.state().hold.ended() {
            Some(Ended::Lost(cause)) => Some(cause),
            _ => None,
        }
    }

    /// For how long the lock is held; `None` once it is not. Seeing the end latches it.
    pub(super) fn remaining(&self) -> Option<Duration> {
        self.remaining_at(self.clock.now())
    }

    /// When that is over, by the boot clock.
    pub(super) fn valid_until(&self) -> Option<BootTime> {
        let now = self.clock.now();
        Some(now.after(self.remaining_at(now)?))
    }

    fn remaining_at(&self, now: Reading) -> Option<Duration> {
        if !self.is_own_process() {
            return None;
        }
        let mut state = self.state();
        let remaining = state.hold.remaining(now);
        if remaining.is_none()
            && let Some(cause) = state.hold.look(now)
        {
            self.wake(state);
            self.tell_run_out(Some(cause));
        }
        remaining
    }

    /// Invalid in a forked child: the lock is the parent's (S24).
    pub(super) fn is_own_process(&self) -> bool {
        process::is_current(self.process)
    }

    pub(super) fn span(&self) -> &tracing::Span {
        static NONE: tracing::Span = tracing::Span::none();
        self.span.as_deref().unwrap_or(&NONE)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
