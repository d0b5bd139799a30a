//! The two sides of a reply: the driver sends it, and the caller waits for it.
//!
//! The reply is stored in the [`LockCell`] that both sides share, so it needs no channel and no allocation of its own.

use std::future::Future;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker, ready};

use quorlock_core::{AttemptReport, Hold, Mode, Refusal, ReleaseReport};
use tokio::task::coop::poll_proceed;

use super::cell::State;
use super::{Guard, GuardToken, LockCell};

/// The driver's reply to a call or to a release.
pub(crate) enum Reply {
    /// A guard is created once for each grant, and moves from the driver through the cell to the caller (S24).
    Granted(Guard),
    /// Boxed to keep the cell small, because a cell has room for a reply during its whole life.
    Refused(Box<Refusal>),
    Released(ReleaseReport),
}

/// The place of a reply in the cell. A caller waits for one reply at a time: first to its call, then to its release.
///
/// No waker is called and no reply is dropped while the cell is locked, because a waker or a drop may lock it again.
#[derive(Default)]
pub(super) enum ReplySlot {
    /// No caller waits.
    #[default]
    Empty,
    /// A caller waits. `Some` if its future was polled: the waker of the task that polled it.
    Awaited(Option<Waker>),
    /// The caller has not taken the reply yet.
    Sent(Reply),
}

impl ReplySlot {
    /// Sends the reply and wakes the caller. Returns the reply if no caller waits.
    pub(super) fn send(mut state: MutexGuard<'_, State>, reply: Reply) -> Option<Reply> {
        let Self::Awaited(waker) = &mut state.reply else { return Some(reply) };
        let waker = waker.take();
        state.reply = Self::Sent(reply);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }

    /// Takes the reply, or registers the waker. Ready with `None` if no reply can come.
    fn poll(mut state: MutexGuard<'_, State>, cx: &Context<'_>) -> Poll<Option<Reply>> {
        let waker = match &mut state.reply {
            Self::Awaited(waker) => waker,
            sent => match std::mem::take(sent) {
                Self::Sent(reply) => return Poll::Ready(Some(reply)),
                _ => return Poll::Ready(None),
            },
        };
        if waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            let replaced = waker.replace(cx.waker().clone());
            drop(state);
            drop(replaced);
        }
        Poll::Pending
    }
}

/// Sends a report about a failed attempt to the caller. Must not block, because the driver calls it.
pub(crate) type Progress = Box<dyn Fn(AttemptReport) + Send>;

/// The driver's side of a lock. It lives from the call until the release is done, or until the release begins if no
/// caller waits for the report. If it is dropped while a caller waits, the caller gets no reply.
pub(crate) struct DriverSide {
    cell: Arc<LockCell>,
    /// Reports the call's failed attempts to the caller; `None` if the caller wants no reports, and after the grant.
    pub(crate) progress: Option<Progress>,
    pub(crate) stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The caller waits for the lock.
    Called,
    Held,
    /// The caller waits for the end of the release.
    Releasing,
}

impl DriverSide {
    pub(super) fn new(cell: Arc<LockCell>) -> Self {
        Self { cell, progress: None, stage: Stage::Called }
    }

    /// The guard of a lock that is granted now. `None` if the client's last handle is gone: then no caller waits, and the
    /// closing client releases the lock.
    pub(crate) fn guard(
        &self,
        (token, fencing_token): (GuardToken, Option<u64>),
        mode: Mode,
    ) -> Option<Guard> {
        let (cell, context) = (self.cell.clone(), self.cell.context()?);
        let fencing_token = fencing_token.and_then(NonZeroU64::new);
        Some(Guard { cell, context, token, fencing_token, mode, given_back: false, stays: false })
    }

    /// Starts the hold and sends the guard to the caller. Returns the guard if the caller is gone; the drop of the guard
    /// then releases the lock.
    pub(crate) fn grant(&mut self, guard: Guard, hold: Hold) -> Option<Reply> {
        self.stage = Stage::Held;
        self.progress = None;
        self.cell.grant(guard, hold)
    }

    /// Sends the reply, the last one for this lock. If the caller is gone, the reply is dropped.
    pub(crate) fn finish(self, reply: Reply) {
        self.cell.send(reply);
    }
}

impl Deref for DriverSide {
    type Target = Arc<LockCell>;

    fn deref(&self) -> &Arc<LockCell> {
        &self.cell
    }
}

impl Drop for DriverSide {
    fn drop(&mut self) {
        let Some(mut state) = self.cell.state() else { return };
        state.has_driver = false;
        let ReplySlot::Awaited(waker) = &mut state.reply else { return };
        let waker = waker.take();
        state.reply = ReplySlot::Empty;
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl std::fmt::Debug for DriverSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverSide").field("stage", &self.stage).finish_non_exhaustive()
    }
}

/// The side of a caller that waits for a reply. If the caller goes away, the reply is dropped: a granted guard then releases
/// its lock.
pub(crate) struct CallerSide {
    /// `None` once the reply was taken, or if the driver did not receive the request.
    cell: Option<Arc<LockCell>>,
}

impl CallerSide {
    pub(super) fn new(cell: Arc<LockCell>) -> Self {
        Self { cell: Some(cell) }
    }

    /// The side of a caller that gets no reply, because the driver did not receive its request.
    pub(super) fn without_driver() -> Self {
        Self { cell: None }
    }
}

impl Future for CallerSide {
    /// `None` if the driver is gone.
    type Output = Option<Reply>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Reply>> {
        // Uses tokio's budget, as tokio's channels do, so a task that always finds a reply lets other tasks run.
        let budget = ready!(poll_proceed(cx));
        let Some(state) = self.cell.as_ref().and_then(|cell| cell.state()) else {
            return Poll::Ready(None);
        };
        let reply = ready!(ReplySlot::poll(state, cx));
        budget.made_progress();
        // The reply to a release uses the cell's slot from now on, so the drop of this side must not empty the slot.
        self.cell = None;
        Poll::Ready(reply)
    }
}

impl Drop for CallerSide {
    fn drop(&mut self) {
        let Some(mut state) = self.cell.as_ref().and_then(|cell| cell.state()) else { return };
        let untaken = std::mem::take(&mut state.reply);
        drop(state);
        drop(untaken);
    }
}

#[cfg(test)]
pub(crate) mod tests;
