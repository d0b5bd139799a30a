use std::future::poll_fn;
use std::sync::mpsc;
use std::thread;

use tokio::runtime::Builder;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::timeout;

use super::*;
use crate::Client;
use crate::driver::{COMMANDS_MAX, TICKS_MAX};
use crate::node::MemoryNode;
use crate::reply::tests::Woken;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A driver that does what a test says, and its task, which the test polls. It waits for commands, and is idle.
struct Setting {
    handle: DriverHandle,
    task: DriverTask,
    woken: Arc<Woken>,
}

impl Setting {
    /// `works`: what it does at each turn but the first. It takes what was asked by `answer`.
    fn new(mut works: impl FnMut(&CommandReceiver, &Context<'_>) + Send + 'static) -> Self {
        let (handle, commands) = DriverHandle::new(Weak::new());
        commands.set_idle(true);
        let task = commands.task();
        let mut is_first = true;
        let task = task.start(Box::pin(poll_fn(move |cx| {
            if std::mem::replace(&mut is_first, false) {
                answer(&commands, cx);
            } else {
                works(&commands, cx);
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

/// Takes what was asked, and answers.
fn answer(commands: &CommandReceiver, cx: &Context<'_>) {
    let mut asked = Vec::new();
    commands.take(cx, &mut asked, COMMANDS_MAX);
    for command in asked {
        let DriverCommand::Close { reply } = command else { panic!("not used here: {command:?}") };
        let _ = reply.send(());
    }
}

fn question() -> (DriverCommand, oneshot::Receiver<()>) {
    let (reply, told) = oneshot::channel();
    (DriverCommand::Close { reply }, told)
}

/// Others ask so much, right before a caller lets the driver work, that it yields. The caller's runtime does nothing
/// more then, and nobody else wakes the driver.
#[tokio::test]
async fn a_driver_that_yields_in_another_runtimes_thread_goes_on() {
    let nodes = ["a", "b", "c"].map(MemoryNode::new);
    // No time-out rings before the test's patience has ended.
    let builder = Client::builder().custom_nodes(nodes).max_ttl(100 * PATIENCE).ttl(100 * PATIENCE);
    let client = builder.node_timeout(10 * PATIENCE).wait(10 * PATIENCE).build().unwrap();
    let before = client.acquire("before").await.unwrap();
    assert!(before.release().await.is_released(), "the driver is idle now");
    // What has woken its task until now is done with.
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }

    let (called, calls) = mpsc::channel();
    let (leave, stays) = mpsc::channel::<()>();
    let caller = thread::spawn(move || {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async move {
            let shared = &client.driver().shared;
            let count = (TICKS_MAX as usize + 3) * COMMANDS_MAX;
            for place in 0..count {
                // Of calls that there never were. Who is not the first to ask wakes nobody.
                shared.push(DriverCommand::Cancel { lock: LockId(u64::MAX - place as u64) });
            }
            let mut call = client.acquire("orders").into_future();
            let polled = Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            let left = shared.queue().commands.len();
            assert!(0 < left && left < count, "{left} of {count} are left: it did not yield here");
            called.send(call).unwrap();
            let _ = stays.recv();
        });
    });
    // The client's runtime stands still until then, so that the turn was the caller's.
    let call = calls.recv().unwrap();
    let told = timeout(PATIENCE, call).await.expect("the driver stands still");
    assert!(told.unwrap().is_valid());
    drop(leave);
    caller.join().unwrap();
}

/// Between the pushing of a command and the end of the turn something panics, and the driver has not seen the command.
#[tokio::test]
async fn a_panic_around_a_turn_leaves_what_was_asked_to_the_task() {
    let mut is_driven = true;
    let mut it = Setting::new(move |commands, cx| {
        if std::mem::replace(&mut is_driven, false) {
            // The runtime's own guard panics now when it is dropped.
            std::mem::forget(Handle::current().enter());
        } else {
            answer(commands, cx);
        }
    });
    let (command, mut told) = question();
    let handle = &it.handle;
    let panicked = thread::scope(|scope| {
        let caller = scope.spawn(|| handle.send_and_drive(command));
        caller.join().is_err()
    });
    assert!(panicked && told.try_recv() == Err(TryRecvError::Empty));
    assert_eq!(it.woken(), 1, "nobody else would see to the command");
    assert!(it.poll().is_pending());
    assert_eq!(told.try_recv(), Ok(()));

    // The next caller finds it as if nothing had been.
    let (command, mut told) = question();
    it.handle.send_and_drive(command);
    assert_eq!((told.try_recv(), it.woken()), (Ok(()), 1));
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
    let (command, mut told) = question();
    let asked = AssertUnwindSafe(|| it.handle.send_and_drive(command));
    assert!(catch_unwind(asked).is_err());
    assert_eq!(told.try_recv(), Err(TryRecvError::Closed));
    assert_eq!(it.woken(), 1, "so that its task ends");
    assert!(it.poll().is_ready());
    for asks in [DriverHandle::send, DriverHandle::send_and_drive] {
        let (command, mut told) = question();
        asks(&it.handle, command);
        assert_eq!(told.try_recv(), Err(TryRecvError::Closed));
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
    let (command, mut told) = question();
    it.handle.send_and_drive(command);
    assert_eq!((told.try_recv(), it.woken()), (Ok(()), 0), "done in this thread");
    let (command, mut told) = question();
    it.handle.send(command);
    assert_eq!(it.woken(), 1);
    assert!(it.poll().is_pending());
    assert_eq!(told.try_recv(), Ok(()));
    drop(it.task);
    let (command, mut told) = question();
    it.handle.send_and_drive(command);
    assert_eq!(told.try_recv(), Err(TryRecvError::Closed));
}
