//! The way to the driver: a queue of commands, and the driver itself for a caller who finds it idle.
//!
//! The driver is a task of its own. If it has nothing else to do, a caller does its work at once, in the caller's
//! thread: the commands to the nodes are written before the call returns, without a change of tasks. What the driver
//! waits for then wakes its own task and nobody else. So a caller that is dropped, or never polled again, delays
//! nobody.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use quorlock_core::Request;
use quorlock_core::{AttemptReport, Extended, Keys, LockId, NodeResult, ReleaseReport};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::guard::claim::CallReply;
use crate::node::BoxFuture;
use crate::own_thread::{Caller, OwnThread};
use crate::reply;

/// What callers and guards ask of the driver.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each call")]
pub(crate) enum DriverCommand {
    Acquire { lock: LockId, call: AcquireCall },
    Cancel { lock: LockId },
    Extend { lock: LockId, reply: oneshot::Sender<Extended> },
    Downgrade { lock: LockId, reply: oneshot::Sender<Extended> },
    RunOut { lock: LockId },
    Release { lock: LockId, reply: Option<reply::Sender<ReleaseReport>> },
    Inspect { lock: LockId, keys: Keys, timeout: Duration, reply: oneshot::Sender<Vec<NodeResult>> },
    Close { reply: oneshot::Sender<()> },
}

/// A call for a lock, and whom to tell.
#[derive(Debug)]
pub(crate) struct AcquireCall {
    pub(crate) request: Request,
    pub(crate) resource: Arc<str>,
    pub(crate) progress: Option<watch::Sender<Option<AttemptReport>>>,
    pub(crate) reply: CallReply,
}

/// The way to the driver. There is one for each client; the driver drains and ends when it is dropped.
#[derive(Debug)]
pub(crate) struct DriverHandle {
    shared: Arc<Shared>,
    /// The client's own thread, if it has one.
    thread: Weak<OwnThread>,
    /// The process that the driver lives in; in a fork of it there is none.
    process: u32,
}

/// The driver's end of the queue. Who asks when it is gone finds the reply's channel closed.
#[derive(Debug)]
pub(crate) struct CommandReceiver(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// The driver's task, when it waits.
    task: AtomicWaker,
    /// No call for a lock and no release is under way.
    is_idle: AtomicBool,
    /// The driver works in a caller's thread just now.
    is_driven: AtomicBool,
    /// Locked by the one who lets the driver work. `None`: it has not begun, or it has ended.
    running: Mutex<Option<Running>>,
}

#[derive(Debug, Default)]
struct Queue {
    commands: Vec<DriverCommand>,
    /// Nothing comes any more.
    is_abandoned: bool,
    /// Nothing is taken any more.
    is_closed: bool,
}

struct Running {
    driver: BoxFuture<()>,
    /// Of the driver's own task.
    waker: Waker,
    runtime: Handle,
}

impl DriverHandle {
    pub(crate) fn new(thread: Weak<OwnThread>) -> (Self, CommandReceiver) {
        let shared = Arc::<Shared>::default();
        let receiver = CommandReceiver(shared.clone());
        (Self { shared, thread, process: std::process::id() }, receiver)
    }

    /// Queues a command and wakes the driver. Never blocks, and needs no runtime. If the driver is gone, or belongs
    /// to the process that this one was forked from, nothing can be done: what is held is left to the ttl (or to the
    /// parent, whose lock it is), and who waits for a reply sees its channel closed.
    pub(crate) fn send(&self, command: DriverCommand) {
        if self.is_own_process() {
            if self.shared.push(command) {
                self.shared.task.wake();
            }
            self.want_thread();
        }
    }

    /// Queues a command, as [`send`](Self::send) does. If the driver is idle, it works at once, in this thread.
    pub(crate) fn send_and_drive(&self, command: DriverCommand) {
        if self.is_own_process() {
            let is_first = self.shared.push(command);
            let wakes = WakesAtDrop { shared: &self.shared, is_needed: is_first };
            if self.shared.drive() {
                std::mem::forget(wakes);
            }
            self.want_thread();
        }
    }

    fn want_thread(&self) {
        if let Some(thread) = self.thread.upgrade() {
            thread.want();
        }
    }

    /// This thread is going to ask, and to wait for the reply.
    pub(crate) fn caller(&self) -> Caller {
        if self.is_own_process() { Caller::new(&self.thread) } else { Caller::in_fork() }
    }

    pub(crate) fn is_own_process(&self) -> bool {
        std::process::id() == self.process
    }

    /// The process that the driver lives in.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// The way as a process sees it that was forked from the driver's.
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

/// Wakes the driver, unless a turn of it has just ended; also if a panic has ended the turn.
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
        // What stands there is right at every moment.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the driver is to be woken: it has taken all that came before.
    fn push(&self, command: DriverCommand) -> bool {
        let mut queue = self.queue();
        if queue.is_closed {
            // Who waits for a reply is woken by its being dropped, and may ask again.
            drop(queue);
            drop(command);
            return false;
        }
        queue.commands.push(command);
        queue.commands.len() == 1
    }

    /// Lets the driver work in this thread, with the wakers of its own task. False: it is busy, and is to be woken.
    fn drive(&self) -> bool {
        // Threads that end have no place for a runtime any more.
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
        let waker = if mutant!(CallersWaker) { Waker::noop().clone() } else { waker };
        self.is_driven.store(true, Ordering::Relaxed);
        let polled = {
            let _entered = runtime.enter();
            work(&mut running, &mut Context::from_waker(&waker))
        };
        self.is_driven.store(false, Ordering::Relaxed);
        drop(running);
        if polled.is_ready() {
            // So that its task ends.
            waker.wake();
        }
        true
    }
}

/// Lets the driver work until it waits. Ready: it has ended, or has panicked, and is dropped, by which all are told.
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

impl CommandReceiver {
    /// The task to run the driver in.
    pub(super) fn task(&self) -> DriverTask {
        DriverTask(self.0.clone())
    }

    /// Moves at most `max` commands, in order. Returns true if none is left and none will come. The task is woken when
    /// there are more.
    pub(crate) fn take(
        &self,
        cx: &Context<'_>,
        commands: &mut Vec<DriverCommand>,
        max: usize,
    ) -> bool {
        self.0.task.register(cx.waker());
        let mut queue = self.0.queue();
        if queue.commands.is_empty() {
            return queue.is_abandoned;
        }
        if commands.is_empty() && queue.commands.len() <= max {
            std::mem::swap(&mut queue.commands, commands);
        } else {
            let count = queue.commands.len().min(max);
            commands.extend(queue.commands.drain(..count));
            queue.commands.shrink_to(max);
        }
        false
    }

    /// The driver works in a caller's thread, which may belong to another runtime.
    pub(super) fn is_driven(&self) -> bool {
        self.0.is_driven.load(Ordering::Relaxed)
    }

    /// Whether a caller may let the driver work.
    pub(crate) fn set_idle(&self, is_idle: bool) {
        self.0.is_idle.store(is_idle, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn try_recv(&self) -> Option<DriverCommand> {
        let mut queue = self.0.queue();
        (!queue.commands.is_empty()).then(|| queue.commands.remove(0))
    }
}

impl Drop for CommandReceiver {
    fn drop(&mut self) {
        let commands = {
            let mut queue = self.0.queue();
            queue.is_closed = true;
            std::mem::take(&mut queue.commands)
        };
        // Dropped when nothing is locked, for who waits is woken by it.
        drop(commands);
    }
}

/// The driver's own task. If it is dropped, as its runtime ends, so is the driver.
pub(crate) struct DriverTask(Arc<Shared>);

impl DriverTask {
    /// Must be called inside the runtime that is to run it.
    pub(super) fn start(self, driver: BoxFuture<()>) -> Self {
        let waker = Waker::noop().clone();
        *running(&self.0) = Some(Running { driver, waker, runtime: Handle::current() });
        self
    }
}

/// Waits for a caller who lets the driver work just now: that takes one turn of it, and never long.
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
