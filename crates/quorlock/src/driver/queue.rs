//! The queue of events to the driver. A caller may itself poll a driver that is idle.
//!
//! The driver is a task of its own. If it is idle, a caller polls it in the caller's thread: the commands to the nodes
//! are written before the call returns, without a change of tasks. The driver still registers the waker of its own
//! task. So a caller that is dropped, or never polled again, delays no other caller.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;
use quorlock_core::{Detached, Event, Extended, ReleaseReport};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use super::{EntryExtended, Inspected};
use crate::fork_check;
use crate::guard::DriverSide;
use crate::node::BoxFuture;
use crate::own_thread::{Caller, OwnThread};

/// Where the driver sends the engine's reply to an event of a caller or guard.
#[derive(Debug)]
pub(crate) enum ReplyTo {
    Nobody,
    Acquire(DriverSide),
    Extend(oneshot::Sender<Extended>),
    Inspect(oneshot::Sender<Inspected>),
    Detach(oneshot::Sender<Option<Box<Detached>>>),
    ExtendEntry(oneshot::Sender<EntryExtended>),
    ReleaseEntry(oneshot::Sender<ReleaseReport>),
    Close(oneshot::Sender<()>),
}

/// The callers' end of the queue, one for each client. After its drop the driver sends owed releases and ends.
#[derive(Debug)]
pub(crate) struct DriverHandle {
    shared: Arc<Shared>,
    /// The client's own thread, if it has one.
    thread: Weak<OwnThread>,
    /// The id of the process in which the driver runs. A fork of this process has no driver.
    process: u32,
}

/// The driver's end of the queue. Once it is dropped, the reply channel of each later event is closed at once.
#[derive(Debug)]
pub(crate) struct EventReceiver(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Waker of the driver's task.
    task: AtomicWaker,
    /// Whether callers may poll the driver. True while no acquire and no release is in progress.
    is_idle: AtomicBool,
    /// Whether a caller is polling the driver.
    is_driven: AtomicBool,
    /// Locked while the driver is polled. `None` before the driver starts and after it ends.
    running: Mutex<Option<Running>>,
}

#[derive(Debug, Default)]
struct Queue {
    events: Vec<(Event, ReplyTo)>,
    /// The runtime of the caller that queued the first of `events`, if the caller has one. That caller checked that
    /// this process is not a fork.
    runtime: Option<Id>,
    /// Whether the client's [`DriverHandle`] was dropped.
    is_abandoned: bool,
    is_closed: bool,
}

struct Running {
    driver: BoxFuture<()>,
    /// The waker of the driver's own task.
    waker: Waker,
    runtime: Handle,
}

impl DriverHandle {
    pub(crate) fn new(thread: Weak<OwnThread>) -> (Self, EventReceiver) {
        let shared = Arc::<Shared>::default();
        let receiver = EventReceiver(shared.clone());
        (Self { shared, thread, process: std::process::id() }, receiver)
    }

    /// Queues an event and wakes the driver. Never blocks, and needs no runtime. Returns whether the event was queued.
    /// The event is dropped, and the channel of its reply closed, if the driver is gone (held locks then expire), or if
    /// this process is a fork of the driver's (held locks then stay with the parent process).
    pub(crate) fn send(&self, event: Event, reply_to: ReplyTo) -> bool {
        let Some(is_first) = self.shared.push(self.process, event, reply_to) else { return false };
        if is_first {
            self.shared.task.wake();
        }
        self.want_thread();
        true
    }

    /// Queues an event, as [`send`](Self::send) does. If the driver is idle, polls it at once, in this thread.
    pub(crate) fn send_and_drive(&self, event: Event, reply_to: ReplyTo) -> bool {
        let Some(is_first) = self.shared.push(self.process, event, reply_to) else { return false };
        let wakes = WakesAtDrop { shared: &self.shared, is_needed: is_first };
        if self.shared.drive() {
            std::mem::forget(wakes);
        }
        self.want_thread();
        true
    }

    fn want_thread(&self) {
        if let Some(thread) = self.thread.upgrade() {
            thread.want();
        }
    }

    /// Announces that this thread is about to send an event and to wait for the reply.
    pub(crate) fn caller(&self) -> Caller {
        if self.is_own_process() { Caller::new(&self.thread) } else { Caller::in_fork() }
    }

    pub(crate) fn is_own_process(&self) -> bool {
        fork_check::is_current(self.process)
    }

    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// The handle as a fork of the driver's process sees it.
    #[cfg(test)]
    pub(crate) fn in_fork(mut self) -> Self {
        self.process = self.process.wrapping_add(1);
        self
    }
}

impl Drop for DriverHandle {
    fn drop(&mut self) {
        if self.is_own_process() {
            self.shared.queue().is_abandoned = true;
            self.shared.task.wake();
            self.want_thread();
        }
    }
}

/// Wakes the driver when this value is dropped, also during a panic. A caller that has polled the driver itself calls
/// `mem::forget` on the value instead.
struct WakesAtDrop<'a> {
    shared: &'a Shared,
    is_needed: bool,
}

impl Drop for WakesAtDrop<'_> {
    fn drop(&mut self) {
        if self.is_needed {
            self.shared.task.wake();
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panic leaves the queue consistent, so a poisoned lock is used as it is.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an event. Returns true if the queue was empty: the caller must then wake the driver. Returns `None` if
    /// the driver is gone, or if this process is a fork of `process`.
    fn push(&self, process: u32, event: Event, reply_to: ReplyTo) -> Option<bool> {
        let runtime = Handle::try_current().ok().map(|handle| handle.id());
        let mut queue = fork_check::lock(&self.queue, process)?;
        let is_first = queue.events.is_empty();
        // The check for a fork is a system call, so the first caller makes it for all callers on its runtime. A fork
        // cannot run a runtime that it has inherited, because the parent uses the same epoll instance.
        let is_checked = !is_first && runtime.is_some() && runtime == queue.runtime;
        if queue.is_closed || !is_checked && !fork_check::is_current(process) {
            // The reply is dropped after the queue is unlocked, because the drop wakes the caller.
            drop(queue);
            return None;
        }
        if is_first {
            queue.runtime = runtime;
        }
        queue.events.push((event, reply_to));
        Some(is_first)
    }

    /// Polls the driver in this thread, with the waker of the driver's own task. Returns false if the driver is busy;
    /// the caller must then wake it.
    fn drive(&self) -> bool {
        // A thread that ends cannot enter a runtime any more.
        let is_ending = || Handle::try_current().is_err_and(|no| no.is_thread_local_destroyed());
        if !self.is_idle.load(Ordering::Relaxed) || is_ending() {
            return false;
        }
        let mut running = match self.running.try_lock() {
            Ok(running) => running,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let Some(Running { waker, runtime, .. }) = &*running else { return false };
        let (waker, runtime) = (waker.clone(), runtime.clone());
        self.is_driven.store(true, Ordering::Relaxed);
        let polled = {
            let _entered = runtime.enter();
            work(&mut running, &mut Context::from_waker(&waker))
        };
        self.is_driven.store(false, Ordering::Relaxed);
        drop(running);
        if polled.is_ready() {
            // The driver has ended, and its task must notice this.
            waker.wake();
        }
        true
    }
}

/// Polls the driver. Ready when the driver has ended or panicked. The driver is then dropped, which closes the channels
/// of all replies.
fn work(running: &mut Option<Running>, cx: &mut Context<'_>) -> Poll<()> {
    let Some(mut works) = running.take() else { return Poll::Ready(()) };
    match catch_unwind(AssertUnwindSafe(|| works.driver.as_mut().poll(cx))) {
        Ok(Poll::Pending) => {
            *running = Some(works);
            Poll::Pending
        }
        Ok(Poll::Ready(())) => Poll::Ready(()),
        Err(_) => {
            tracing::error!("the driver panicked; the client is closed");
            Poll::Ready(())
        }
    }
}

impl EventReceiver {
    /// The task to run the driver in.
    pub(super) fn task(&self) -> DriverTask {
        DriverTask(self.0.clone())
    }

    /// Moves at most `max` events to `events`, in order. Returns true if the queue is empty and no handle is left. If
    /// more events arrive, the task of `cx` is woken.
    pub(crate) fn take(
        &self,
        cx: &Context<'_>,
        events: &mut Vec<(Event, ReplyTo)>,
        max: usize,
    ) -> bool {
        self.0.task.register(cx.waker());
        let mut queue = self.0.queue();
        if queue.events.is_empty() {
            return queue.is_abandoned;
        }
        if events.is_empty() && queue.events.len() <= max {
            std::mem::swap(&mut queue.events, events);
        } else {
            let count = queue.events.len().min(max);
            events.extend(queue.events.drain(..count));
            queue.events.shrink_to(max);
        }
        false
    }

    /// Whether a caller is polling the driver. The caller's thread may belong to another runtime.
    pub(super) fn is_driven(&self) -> bool {
        self.0.is_driven.load(Ordering::Relaxed)
    }

    pub(crate) fn set_idle(&self, is_idle: bool) {
        self.0.is_idle.store(is_idle, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn try_recv(&self) -> Option<(Event, ReplyTo)> {
        let mut queue = self.0.queue();
        (!queue.events.is_empty()).then(|| queue.events.remove(0))
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        let events = {
            let mut queue = self.0.queue();
            queue.is_closed = true;
            std::mem::take(&mut queue.events)
        };
        // The queue is unlocked here, because dropping the replies wakes their callers.
        drop(events);
    }
}

/// The driver's own task. If its runtime ends, the task is dropped, and the driver with it.
pub(crate) struct DriverTask(Arc<Shared>);

impl DriverTask {
    /// Starts the task. Must be called inside the runtime that is to run the driver.
    pub(super) fn start(self, driver: BoxFuture<()>) -> Self {
        let waker = Waker::noop().clone();
        *running(&self.0) = Some(Running { driver, waker, runtime: Handle::current() });
        self
    }
}

/// Locks the driver. Blocks while a caller polls the driver, which takes a short time.
fn running(shared: &Shared) -> MutexGuard<'_, Option<Running>> {
    shared.running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Future for DriverTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut running = running(&self.0);
        if let Some(running) = &mut *running {
            running.waker.clone_from(cx.waker());
        }
        work(&mut running, cx)
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        let ended = running(&self.0).take();
        drop(ended);
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
