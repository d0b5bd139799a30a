//! A client's own thread, and the callers' threads that run the client in its place.
//!
//! A thread in a blocking call drives (runs) the client's runtime itself, so that no work changes threads on its way to
//! the nodes and back. The client's own thread steps aside meanwhile. It drives the runtime again when no call has been
//! made for a while, or when an event is queued and no thread is in a call.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::Notify;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::exhausted::current_thread_runtime;

/// The own thread comes back between one and two of these periods after the last call. Extensions and owed releases
/// that are due in this time are late. No guard is valid for longer because of that.
const LINGER: Duration = Duration::from_millis(1);

/// The runtime of a client with a thread of its own. One thread drives it at a time.
pub(crate) struct OwnThread {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    turns: Mutex<Turns>,
    /// Tells the own thread to step aside.
    step_aside: Notify,
    /// Tells the own thread to check whether it must come back.
    come_back: Condvar,
}

#[derive(Default)]
struct Turns {
    /// Whether the client's own thread drives the runtime.
    is_own: bool,
    /// Threads that are in a call or about to be.
    callers: usize,
    /// Threads of `callers` that wait for a reply. One of them drives the runtime, unless the own thread does.
    waiting: usize,
    /// Number of waits that have ended so far. If it does not change for a period, the own thread may come back.
    ended: u64,
    /// Whether the own thread must come back at once.
    is_wanted: bool,
    /// Whether the own thread sleeps until the last wait has ended.
    sleeps: bool,
}

impl OwnThread {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            runtime: Some(current_thread_runtime()?),
            turns: Mutex::default(),
            step_aside: Notify::new(),
            come_back: Condvar::new(),
        }))
    }

    /// Starts the thread. It ends with the driver.
    pub(crate) fn start<F: Future<Output = ()> + Send + 'static>(
        self: Arc<Self>,
        driver: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<()> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        let driver = runtime.spawn(async move { driver().await });
        self.turns().is_own = true;
        thread::Builder::new().name("quorlock".to_owned()).spawn(move || self.run(driver))?;
        Ok(())
    }

    fn run(&self, mut driver: JoinHandle<()>) {
        let Some(runtime) = &self.runtime else { return };
        let mut turn = async || {
            tokio::select! {
                // If the driver has panicked, it was dropped, which closes the channels of all replies.
                _ = &mut driver => true,
                () = self.step_aside.notified() => false,
            }
        };
        while !runtime.block_on(turn()) {
            self.stand_by();
        }
    }

    /// Returns when the own thread must drive the runtime again.
    fn stand_by(&self) {
        let mut turns = self.turns();
        let mut ended = None;
        loop {
            let has_none_ended = ended.replace(turns.ended) == Some(turns.ended);
            if turns.waiting == 0 && (turns.is_wanted || has_none_ended) {
                break;
            }
            turns.sleeps = turns.waiting > 0 && has_none_ended;
            turns = if turns.sleeps {
                self.come_back.wait(turns).unwrap_or_else(PoisonError::into_inner)
            } else {
                let waited = self.come_back.wait_timeout(turns, LINGER);
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
        }
        (turns.is_own, turns.is_wanted) = (true, false);
    }

    /// An event was queued. If no thread is in a call, the own thread comes back to handle it.
    pub(crate) fn want(&self) {
        let mut turns = self.turns();
        if turns.callers == 0 && !turns.is_own {
            turns.is_wanted = true;
            self.come_back.notify_one();
        }
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        // A panic leaves the turns consistent, so a poisoned lock is used as it is.
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OwnThread {
    /// Does not block, because the last reference may be dropped inside an async runtime.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A thread in a blocking call, which drives the client while it waits. Created before the call queues its event.
pub(crate) struct Caller {
    /// `None` if the client has ended, or belongs to another process.
    thread: Option<Arc<OwnThread>>,
    /// The thread has waited, and may have driven the client.
    has_waited: bool,
}

impl Caller {
    pub(crate) fn new(thread: &Weak<OwnThread>) -> Self {
        let thread = thread.upgrade();
        if let Some(thread) = &thread {
            let mut turns = thread.turns();
            turns.callers += 1;
            if std::mem::take(&mut turns.is_own) {
                thread.step_aside.notify_one();
            }
        }
        Self { thread, has_waited: false }
    }

    /// For a fork of the client's process, where no thread drives the runtime.
    pub(crate) fn in_fork() -> Self {
        Self { thread: None, has_waited: false }
    }

    /// Waits for a reply, and ends the call: the caller does not drive while it uses the reply.
    ///
    /// # Panics
    /// Inside an async runtime.
    pub(crate) fn wait<F: Future + Unpin>(mut self, mut reply: F) -> F::Output {
        // A thread that is ending cannot enter a runtime, so the own thread drives it.
        if Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()) {
            drop(self);
            return wait_alone(reply);
        }
        let thread = self.thread.clone();
        let Some((thread, runtime)) =
            thread.as_ref().and_then(|thread| Some((thread, thread.runtime.as_ref()?)))
        else {
            panic_in_a_runtime();
            return wait_alone(reply);
        };
        runtime.block_on(poll_fn(|cx| {
            let polled = Pin::new(&mut reply).poll(cx);
            // A reply that is ready needs no further work of the runtime.
            if polled.is_pending() && !std::mem::replace(&mut self.has_waited, true) {
                let mut turns = thread.turns();
                turns.waiting += 1;
                turns.is_wanted = false;
            }
            polled
        }))
    }
}

/// Panics in a thread of an async runtime, which must not block, even if the reply is ready.
fn panic_in_a_runtime() {
    let (sender, receiver) = oneshot::channel::<()>();
    drop(sender);
    let _ = receiver.blocking_recv();
}

/// Waits without a runtime and without thread-local variables, because the thread may be ending.
fn wait_alone<F: Future + Unpin>(mut reply: F) -> F::Output {
    let bell = Arc::<Bell>::default();
    let waker = bell.clone().into();
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(reply) = Pin::new(&mut reply).poll(&mut cx) {
            return reply;
        }
        let mut has_rung = bell.has_rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !std::mem::take(&mut *has_rung) {
            has_rung = bell.rings.wait(has_rung).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[derive(Default)]
struct Bell {
    has_rung: Mutex<bool>,
    rings: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.has_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rings.notify_one();
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(thread) = &self.thread {
            let mut turns = thread.turns();
            turns.callers -= 1;
            if self.has_waited {
                turns.waiting -= 1;
                turns.ended += 1;
            } else {
                // The own thread stepped aside for this call, and no other thread drives the runtime now, so it must
                // come back.
                turns.is_wanted = true;
            }
            if turns.waiting == 0 && (turns.is_wanted || std::mem::take(&mut turns.sleeps)) {
                thread.come_back.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_when_no_call_was_made_for_a_while() {
        let thread = OwnThread::new().unwrap();
        let caller = Caller::new(&Arc::downgrade(&thread));
        let (reply, waited) = tokio::sync::oneshot::channel();
        thread.runtime.as_ref().unwrap().spawn(async move { reply.send(()) });
        assert_eq!(caller.wait(waited), Ok(()));
        {
            let turns = thread.turns();
            assert!(turns.ended == 1 && !turns.is_wanted && !turns.is_own);
        }
        thread.stand_by();
        assert!(thread.turns().is_own);
    }

    #[test]
    fn it_comes_back_at_once_for_what_no_call_waits_for() {
        let thread = OwnThread::new().unwrap();
        thread.want();
        assert!(thread.turns().is_wanted);
        thread.stand_by();
        assert!(thread.turns().is_own && !thread.turns().is_wanted);
    }

    #[test]
    fn it_does_not_come_back_while_somebody_is_in_a_call() {
        let thread = OwnThread::new().unwrap();
        let caller = Caller::new(&Arc::downgrade(&thread));
        // A queued event does not bring the own thread back, because the caller will handle it.
        thread.want();
        assert!(!thread.turns().is_wanted);
        let (reply, waited) = tokio::sync::oneshot::channel();
        let waits = std::thread::spawn(move || caller.wait(waited));
        while thread.turns().waiting == 0 {
            std::thread::yield_now();
        }
        let standing_by = thread.clone();
        let standing_by = std::thread::spawn(move || standing_by.stand_by());
        while !thread.turns().sleeps {
            std::thread::yield_now();
        }
        assert!(!thread.turns().is_own && !standing_by.is_finished());
        reply.send(()).unwrap();
        standing_by.join().unwrap();
        assert!(thread.turns().is_own);
        assert_eq!(waits.join().unwrap(), Ok(()));
    }

    #[test]
    fn it_comes_back_at_once_from_a_call_that_needed_nobody() {
        let thread = OwnThread::new().unwrap();
        for is_answered in [true, false] {
            thread.turns().is_own = true;
            let caller = Caller::new(&Arc::downgrade(&thread));
            assert!(!thread.turns().is_own);
            if is_answered {
                let (reply, waited) = tokio::sync::oneshot::channel();
                reply.send(7).unwrap();
                assert_eq!(caller.wait(waited), Ok(7));
            } else {
                drop(caller);
            }
            assert!(thread.turns().is_wanted);
            thread.stand_by();
            assert!(thread.turns().is_own);
        }
    }

    #[test]
    fn it_steps_aside_for_a_call() {
        let thread = OwnThread::new().unwrap();
        let (release, waiting) = tokio::sync::oneshot::channel::<()>();
        thread.clone().start(async move || drop(waiting.await)).unwrap();
        for turn in 0..100 {
            let caller = Caller::new(&Arc::downgrade(&thread));
            let (reply, waited) = tokio::sync::oneshot::channel();
            thread.runtime.as_ref().unwrap().spawn(async move { reply.send(turn) });
            assert_eq!(caller.wait(waited), Ok(turn));
            let turns = thread.turns();
            assert_eq!((turns.callers, turns.waiting), (0, 0));
        }
        release.send(()).unwrap();
        let ended = Arc::downgrade(&thread);
        drop(thread);
        while ended.upgrade().is_some() {
            std::thread::yield_now();
        }
        let (reply, waited) = tokio::sync::oneshot::channel::<()>();
        drop(reply);
        assert!(Caller::new(&ended).wait(waited).is_err(), "it has ended, and nobody hangs");
    }
}
