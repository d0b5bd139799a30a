//! A client's own thread, and the callers' threads that run the client in its place.
//!
//! A thread in a blocking call drives (runs) the client's runtime itself, so that no work changes threads on its way to
//! the nodes and back. The client's own thread steps aside meanwhile. It drives the runtime again when no call has been
//! made for a while, or when an event is queued and no thread is in a call.

mod sleepers;

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake as _};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::Notify;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::sleepers::{PLACES, Place, Sleepers};
use crate::os_limits::current_thread_runtime;

/// The client's own thread drives the runtime again between one and two of these periods after the last blocking call.
/// Extensions and owed releases that are due in this time are late, but no guard is valid for longer.
const LINGER: Duration = Duration::from_millis(1);

/// The runtime of a client with a thread of its own. One thread drives it at a time.
pub(crate) struct OwnThread {
    /// `None` only while this value is dropped.
    runtime: Option<Runtime>,
    turns: Mutex<Turns>,
    /// The threads that wait for a reply and do not drive the runtime.
    sleepers: Arc<Sleepers>,
    /// Tells the client's own thread to stop driving the runtime.
    step_aside: Notify,
    /// Tells the client's own thread to check whether it must drive the runtime again.
    come_back: Condvar,
}

#[derive(Default)]
struct Turns {
    /// Whether the client's own thread drives the runtime.
    is_own: bool,
    /// Number of threads that are in a blocking call, or about to queue the event of one.
    callers: usize,
    /// How many of `callers` wait for a reply. One of them drives the runtime, unless the client's own thread does.
    waiting: usize,
    /// Whether a waiting thread drives the runtime, or will when the client's own thread has stopped.
    is_driven: bool,
    /// The places of the waiting threads that sleep while another thread drives.
    asleep: Vec<Arc<Place>>,
    free: Vec<Arc<Place>>,
    /// Number of [`Place`]s that were created, in use or free.
    places: usize,
    /// Number of waits that have ended so far. If it is constant for [`LINGER`], the client's own thread may drive.
    ended: u64,
    /// Whether the client's own thread must drive the runtime again at once.
    is_wanted: bool,
    /// Whether the client's own thread sleeps until the last wait has ended.
    sleeps: bool,
}

impl OwnThread {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            runtime: Some(current_thread_runtime()?),
            turns: Mutex::default(),
            sleepers: Arc::default(),
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
        let sleepers = self.sleepers.clone();
        let driver = runtime.spawn(async move {
            let mut driver = pin!(driver());
            poll_fn(|cx| sleepers.collect(|| driver.as_mut().poll(cx))).await;
        });
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

    /// Returns when the client's own thread must drive the runtime again.
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

    /// An event was queued. If no thread is in a call, the client's own thread must drive the runtime to handle it.
    pub(crate) fn want(&self) {
        let mut turns = self.turns();
        if turns.callers == 0 && !turns.is_own {
            turns.is_wanted = true;
            self.come_back.notify_one();
        }
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        // A panic leaves the state consistent, so a poisoned lock is used as it is.
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

/// A thread in a blocking call. While it waits, it drives the client if no other thread does. Created before the call
/// queues its event.
pub(crate) struct Caller {
    /// `None` if the client has ended, or belongs to another process.
    thread: Option<Arc<OwnThread>>,
    /// `None` if more than [`PLACES`] threads are in a call.
    place: Option<Arc<Place>>,
    /// The thread has waited, and may have driven the client.
    has_waited: bool,
    drives: bool,
}

impl Caller {
    pub(crate) fn new(thread: &Weak<OwnThread>) -> Self {
        let Some(thread) = thread.upgrade() else { return Self::in_fork() };
        let mut turns = thread.turns();
        turns.callers += 1;
        if std::mem::take(&mut turns.is_own) {
            thread.step_aside.notify_one();
        }
        let mut place = turns.free.pop();
        if place.is_none() && turns.places < PLACES {
            place = Some(Arc::new(Place::new(thread.sleepers.clone(), turns.places)));
            turns.places += 1;
        }
        drop(turns);
        Self { thread: Some(thread), place, has_waited: false, drives: false }
    }

    /// For a fork of the client's process, where no thread drives the runtime.
    pub(crate) fn in_fork() -> Self {
        Self { thread: None, place: None, has_waited: false, drives: false }
    }

    /// Waits for a reply, and ends the call: the caller does not drive while it uses the reply.
    ///
    /// # Panics
    /// Inside an async runtime.
    pub(crate) fn wait<F: Future + Unpin>(mut self, mut reply: F) -> F::Output {
        panic_in_a_runtime();
        // A thread that is ending cannot enter a runtime, so another thread must drive the client.
        let is_ending = Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
        let (Some(thread), Some(place), false) =
            (self.thread.clone(), self.place.clone(), is_ending)
        else {
            drop(self);
            return wait_alone(reply);
        };
        match sleep(&mut reply, &place, || self.drive(&thread, &place)) {
            Some(reply) => reply,
            None => match &thread.runtime {
                Some(runtime) => runtime.block_on(reply),
                None => unreachable!("the runtime is dropped with the last reference"),
            },
        }
    }

    /// Whether this thread drives (runs the client) from now on. If not, another thread may wake it later to drive.
    fn drive(&mut self, thread: &OwnThread, place: &Arc<Place>) -> bool {
        let mut turns = thread.turns();
        if !std::mem::replace(&mut self.has_waited, true) {
            turns.waiting += 1;
            turns.is_wanted = false;
        }
        self.drives = !std::mem::replace(&mut turns.is_driven, true);
        if !self.drives {
            turns.leave(place);
            turns.asleep.push(place.clone());
        }
        self.drives
    }
}

impl Turns {
    fn leave(&mut self, place: &Arc<Place>) {
        if let Some(at) = self.asleep.iter().position(|other| Arc::ptr_eq(other, place)) {
            self.asleep.swap_remove(at);
        }
    }

    /// If no thread drives, takes a sleeping thread, which the caller must wake to drive. Threads whose reply has come
    /// are left out: such a thread wakes up soon, and calls this function itself.
    fn next_to_drive(&mut self) -> Option<Arc<Place>> {
        if self.is_driven {
            return None;
        }
        let next = self.asleep.iter().position(|place| !place.is_notified())?;
        Some(self.asleep.swap_remove(next))
    }
}

/// Panics in a thread of an async runtime, which must not block, even if the reply is ready.
fn panic_in_a_runtime() {
    if Handle::try_current().is_ok() {
        let (sender, receiver) = oneshot::channel::<()>();
        drop(sender);
        let _ = receiver.blocking_recv();
    }
}

/// Waits until another thread has driven the client to the reply. Uses no runtime and no thread-local variables,
/// because the thread may be ending.
fn wait_alone<F: Future + Unpin>(mut reply: F) -> F::Output {
    let place = Arc::new(Place::new(Arc::default(), 0));
    loop {
        if let Some(reply) = sleep(&mut reply, &place, || false) {
            return reply;
        }
    }
}

/// Sleeps until the reply has come. Calls `drives` before each sleep, and returns `None` when `drives` returns true.
fn sleep<F: Future + Unpin>(
    reply: &mut F,
    place: &Arc<Place>,
    mut drives: impl FnMut() -> bool,
) -> Option<F::Output> {
    let waker = place.clone().into();
    let mut cx = Context::from_waker(&waker);
    loop {
        place.reset();
        if let Poll::Ready(reply) = Pin::new(&mut *reply).poll(&mut cx) {
            return Some(reply);
        }
        if drives() {
            return None;
        }
        place.sleep();
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let Some(thread) = &self.thread else { return };
        let mut turns = thread.turns();
        turns.callers -= 1;
        if self.has_waited {
            turns.waiting -= 1;
            turns.ended += 1;
        } else {
            // This call never waited, but kept the client's own thread from driving. So that thread must drive again.
            turns.is_wanted = true;
        }
        if self.drives {
            turns.is_driven = false;
        }
        if let Some(place) = self.place.take() {
            turns.leave(&place);
            turns.free.push(place);
        }
        let next = turns.next_to_drive();
        if turns.waiting == 0 && (turns.is_wanted || std::mem::take(&mut turns.sleeps)) {
            thread.come_back.notify_one();
        }
        drop(turns);
        if let Some(next) = next {
            next.wake_by_ref();
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
        let (reply, waited) = oneshot::channel();
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
        // A queued event does not make the client's own thread drive, because the caller will handle the event.
        thread.want();
        assert!(!thread.turns().is_wanted);
        let (reply, waited) = oneshot::channel();
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
                let (reply, waited) = oneshot::channel();
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
    fn a_thread_with_its_reply_hands_the_driving_over() {
        let thread = OwnThread::new().unwrap();
        let runtime = thread.runtime.as_ref().unwrap();
        let wait = |reply| {
            let caller = Caller::new(&Arc::downgrade(&thread));
            std::thread::spawn(move || caller.wait(reply))
        };
        let until = |is_so: &dyn Fn(&Turns) -> bool| {
            while !is_so(&thread.turns()) {
                std::thread::yield_now();
            }
        };
        let (first, reply) = oneshot::channel();
        let drives = wait(reply);
        until(&|turns| turns.is_driven);
        let (second, reply) = oneshot::channel();
        let sleeps = wait(reply);
        until(&|turns| turns.asleep.len() == 1);
        runtime.spawn(async move { first.send(1) });
        assert_eq!(drives.join().unwrap(), Ok(1));
        runtime.spawn(async move { second.send(2) });
        assert_eq!(sleeps.join().unwrap(), Ok(2), "nobody else drives");
        assert!(!thread.turns().is_driven && thread.turns().asleep.is_empty());
    }

    /// More callers sleep than one system call can wake, and each must be woken.
    #[test]
    fn no_wake_up_is_lost_among_many_threads() {
        const THREADS: usize = 40;
        const CALLS: usize = 200;
        let thread = OwnThread::new().unwrap();
        let weak = Arc::downgrade(&thread);
        let (asks, mut asked) = tokio::sync::mpsc::unbounded_channel::<oneshot::Sender<()>>();
        let answer = async move || {
            let mut batch = Vec::new();
            while asked.recv_many(&mut batch, THREADS).await > 0 {
                batch.drain(..).for_each(|reply| reply.send(()).unwrap());
            }
        };
        thread.clone().start(answer).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..CALLS {
                        let caller = Caller::new(&weak);
                        let (reply, waited) = oneshot::channel();
                        asks.send(reply).unwrap();
                        assert!(caller.wait(waited).is_ok());
                    }
                });
            }
        });
        let counts = |turns: &Turns| (turns.callers, turns.waiting, turns.asleep.len());
        assert_eq!(counts(&thread.turns()), (0, 0, 0));
        let is_given_back = |turns: &Turns| turns.free.len() == turns.places;
        assert!(is_given_back(&thread.turns()), "each place is given back");
        drop((asks, thread));
        while weak.upgrade().is_some() {
            std::thread::yield_now();
        }
        let (reply, waited) = oneshot::channel::<()>();
        drop(reply);
        assert!(Caller::new(&weak).wait(waited).is_err(), "it has ended, and nobody hangs");
    }
}
