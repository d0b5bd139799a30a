use std::future::poll_fn;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use quorlock_core::LockId;
use tokio::runtime::Builder;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::timeout;

use super::*;
use crate::driver::{REQUESTS_MAX, TICKS_MAX};
use crate::guard::reply::tests::Woken;
use crate::node::MemoryNode;
use crate::{Client, LockOptions};

/// Timeout of the tests; longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A driver that runs a function of the test, and its task, which the test polls. Callers may poll the driver.
struct Setting {
    handle: DriverHandle,
    task: DriverTask,
    woken: Arc<Woken>,
}

impl Setting {
    /// The driver calls [`answer`] at its first poll, and `works` at each later poll.
    fn new(mut works: impl FnMut(&EventReceiver, &Context<'_>) + Send + 'static) -> Self {
        let (handle, receiver) = DriverHandle::new(Weak::new());
        receiver.set_idle(true);
        let task = receiver.task();
        let mut is_first = true;
        let task = task.start(Box::pin(poll_fn(move |cx| {
            if std::mem::replace(&mut is_first, false) {
                answer(&receiver, cx);
            } else {
                works(&receiver, cx);
            }
            Poll::Pending
        })));
        let mut it = Self { handle, task, woken: Arc::default() };
        assert!(it.poll().is_pending());
        it
    }

    fn poll(&mut self) -> Poll<()> {
        let waker = self.woken.clone().into();
        Pin::new(&mut self.task).poll(&mut Context::from_waker(&waker))
    }

    fn woken(&self) -> usize {
        self.woken.0.load(Ordering::Relaxed)
    }
}

/// Takes the events, and replies to each.
fn answer(receiver: &EventReceiver, cx: &Context<'_>) {
    let mut events = Vec::new();
    receiver.take(cx, &mut events, REQUESTS_MAX);
    for (event, reply_to) in events {
        let ReplyTo::Close(reply) = reply_to else { panic!("not used here: {event:?}") };
        let _ = reply.send(());
    }
}

/// Sends an event, and returns the receiver of its reply.
fn ask(
    handle: &DriverHandle,
    send: impl FnOnce(&DriverHandle, Event, ReplyTo) -> bool,
) -> oneshot::Receiver<()> {
    let (reply, outcome) = oneshot::channel();
    send(handle, Event::Close, ReplyTo::Close(reply));
    outcome
}

/// The queue is so long that the driver yields while a caller polls the driver. The caller does not poll it again, so
/// the driver must wake its own task.
#[tokio::test]
async fn a_driver_that_yields_in_another_runtimes_thread_goes_on() {
    let nodes = ["a", "b", "c"].map(MemoryNode::new);
    // No timeout of the engine fires during the test.
    let builder = Client::builder()
        .memory_nodes(nodes)
        .max_ttl(100 * PATIENCE)
        .options(LockOptions::new().ttl(100 * PATIENCE));
    let client = builder
        .options(LockOptions::new().node_timeout(10 * PATIENCE).wait(10 * PATIENCE))
        .build()
        .unwrap();
    let before = client.acquire("before").await.unwrap();
    assert!(before.release().await.is_released(), "the driver is idle now");
    // Lets all earlier wake-ups of the driver's task take effect.
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }

    let (called, calls) = mpsc::channel();
    let (leave, stays) = mpsc::channel::<()>();
    let caller = thread::spawn(move || {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async move {
            let shared = &client.driver().shared;
            let count = (TICKS_MAX as usize + 3) * REQUESTS_MAX;
            for place in 0..count {
                // These events have no effect. They fill the queue, so the call below does not wake the driver.
                let event = Event::Cancel { lock: LockId(u64::MAX - place as u64) };
                shared.push(std::process::id(), event, ReplyTo::Nobody);
            }
            let mut call = client.acquire("orders").into_future();
            let polled = Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            let left = shared.queue().events.len();
            assert!(0 < left && left < count, "{left} of {count} are left: it did not yield here");
            called.send(call).unwrap();
            let _ = stays.recv();
        });
    });
    // The client's runtime was blocked until now, so only the caller has polled the driver.
    let call = calls.recv().unwrap();
    let outcome = timeout(PATIENCE, call).await.expect("the driver stands still");
    assert!(outcome.unwrap().is_valid());
    drop(leave);
    caller.join().unwrap();
}

/// A caller panics after it queued an event and before the driver took the event. The driver's task must then handle
/// the event.
#[tokio::test]
async fn a_panic_around_a_poll_leaves_the_event_to_the_task() {
    let mut is_driven = true;
    let mut it = Setting::new(move |receiver, cx| {
        if std::mem::replace(&mut is_driven, false) {
            // `drive` has entered the runtime too. This guard is forgotten, so tokio panics when `drive` drops its own.
            std::mem::forget(Handle::current().enter());
        } else {
            answer(receiver, cx);
        }
    });
    let (reply, mut outcome) = oneshot::channel();
    let handle = &it.handle;
    let panicked = thread::scope(|scope| {
        let reply_to = ReplyTo::Close(reply);
        let caller = scope.spawn(|| handle.send_and_drive(Event::Close, reply_to));
        caller.join().is_err()
    });
    assert!(panicked && outcome.try_recv() == Err(TryRecvError::Empty));
    assert_eq!(it.woken(), 1, "no other caller handles the event");
    assert!(it.poll().is_pending());
    assert_eq!(outcome.try_recv(), Ok(()));

    // The next caller can poll the driver as before the panic.
    let mut outcome = ask(&it.handle, DriverHandle::send_and_drive);
    assert_eq!((outcome.try_recv(), it.woken()), (Ok(()), 1));
}

struct PanicsAtDrop;

impl Drop for PanicsAtDrop {
    fn drop(&mut self) {
        panic!("at the driver's end");
    }
}

#[tokio::test]
async fn a_driver_that_panics_at_its_end_too_leaves_nobody_waiting() {
    let bomb = PanicsAtDrop;
    let mut it = Setting::new(move |_, _| {
        let _held = &bomb;
        panic!("at work");
    });
    let (reply, mut outcome) = oneshot::channel();
    let asked = AssertUnwindSafe(|| it.handle.send_and_drive(Event::Close, ReplyTo::Close(reply)));
    assert!(catch_unwind(asked).is_err());
    assert_eq!(outcome.try_recv(), Err(TryRecvError::Closed));
    assert_eq!(it.woken(), 1, "so that its task ends");
    assert!(it.poll().is_ready());
    for asks in [DriverHandle::send, DriverHandle::send_and_drive] {
        let mut outcome = ask(&it.handle, asks);
        assert_eq!(outcome.try_recv(), Err(TryRecvError::Closed));
    }
}

#[tokio::test]
async fn locks_that_a_panic_has_poisoned_lock_nobody_out() {
    fn poison<T: Send>(mutex: &Mutex<T>) {
        let panicked = thread::scope(|scope| {
            let locks = || {
                let _locked = mutex.lock();
                panic!("while it is locked");
            };
            scope.spawn(locks).join().is_err()
        });
        assert!(panicked && mutex.is_poisoned());
    }

    let mut it = Setting::new(answer);
    poison(&it.handle.shared.queue);
    poison(&it.handle.shared.running);
    let mut outcome = ask(&it.handle, DriverHandle::send_and_drive);
    assert_eq!((outcome.try_recv(), it.woken()), (Ok(()), 0), "done in this thread");
    let mut outcome = ask(&it.handle, DriverHandle::send);
    assert_eq!(it.woken(), 1);
    assert!(it.poll().is_pending());
    assert_eq!(outcome.try_recv(), Ok(()));
    drop(it.task);
    let mut outcome = ask(&it.handle, DriverHandle::send_and_drive);
    assert_eq!(outcome.try_recv(), Err(TryRecvError::Closed));
}
