use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::thread;

use quorlock_core::Outcome;

use super::*;
use crate::driver::DriverHandle;
use crate::guard::Released;
use crate::guard::tests::{Setting, grant};

/// A waker that counts its wake-ups.
#[derive(Default)]
pub(crate) struct Woken(pub(crate) AtomicUsize);

impl Woken {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn report() -> Reply {
    let (outcome, handed_over, nodes) = (Outcome::Released, false, Vec::new());
    Reply::Released(ReleaseReport { outcome, handed_over, nodes })
}

fn poll<F: Future + Unpin>(caller: &mut F, woken: &Arc<Woken>) -> Poll<F::Output> {
    Pin::new(caller).poll(&mut Context::from_waker(&woken.clone().into()))
}

#[test]
fn a_reply_is_taken_once_and_wakes_the_last_waker() {
    let (first, last) = (Arc::<Woken>::default(), Arc::<Woken>::default());
    let setting = Setting::new();
    let (mut driver, mut caller) = setting.call();
    assert!(poll(&mut caller, &first).is_pending());
    assert!(poll(&mut caller, &last).is_pending());
    assert_eq!(Arc::strong_count(&first), 1, "the replaced waker is dropped");
    assert!(grant(&mut driver).is_none());
    assert_eq!((first.count(), last.count()), (0, 1));
    let Poll::Ready(Some(Reply::Granted(guard))) = poll(&mut caller, &last) else {
        panic!("the guard was sent")
    };
    assert!(matches!(poll(&mut caller, &last), Poll::Ready(None)));
    let mut release = guard.start_release();
    drop(caller);
    driver.finish(report());
    let released = poll(&mut release, &last).map(|released| released.outcome);
    assert_eq!(
        released,
        Poll::Ready(Outcome::Released),
        "the side of the call takes no second reply"
    );
}

#[test]
fn a_release_waits_only_while_a_driver_can_report() {
    let setting = Setting::new();
    let outcome = |released: Poll<Released>| match released {
        Poll::Ready(released) => Some(released.outcome),
        Poll::Pending => None,
    };
    let ends: [(fn(DriverSide), Outcome); 2] =
        [(drop, Outcome::Unknown), (|driver| driver.finish(report()), Outcome::Released)];
    for (end, expected) in ends {
        let (woken, (driver, guard)) = (Arc::<Woken>::default(), setting.held());
        let mut release = guard.start_release();
        assert_eq!(outcome(poll(&mut release, &woken)), None);
        end(driver);
        assert_eq!(woken.count(), 1);
        assert_eq!(outcome(poll(&mut release, &woken)), Some(expected));
    }
    let (driver, guard) = setting.held();
    drop(driver);
    let released = poll(&mut guard.start_release(), &Arc::default());
    assert_eq!(outcome(released), Some(Outcome::Unknown));
}

/// A guard in the cell keeps the cell alive. This cycle ends when the guard is taken, or when the caller is dropped.
#[test]
fn no_cell_is_leaked() {
    let setting = Setting::new();
    for is_taken in [true, false] {
        let (mut driver, mut caller) = setting.call();
        let cell = Arc::downgrade(&driver);
        assert!(grant(&mut driver).is_none());
        drop(driver);
        if is_taken {
            assert!(poll(&mut caller, &Arc::default()).is_ready());
        }
        drop(caller);
        assert_eq!(cell.strong_count(), 0);
        assert_eq!(Arc::strong_count(&setting.context), 1);
    }
}

/// In each interleaving of a grant with the drop of its caller's future, one of the two threads releases the lock.
#[test]
fn a_grant_that_meets_the_end_of_its_caller_is_released_once() {
    let setting = Setting::new();
    for round in 0..1000 {
        let (mut driver, mut caller) = setting.call();
        let grants = thread::spawn(move || drop(grant(&mut driver)));
        if round % 2 == 0 {
            let _ = poll(&mut caller, &Arc::default());
        }
        drop(caller);
        grants.join().unwrap();
        assert_eq!(setting.releases(), 1);
    }
}

/// Each reply uses up a part of the task's budget, as a message of tokio's own channels does.
#[tokio::test]
async fn a_task_that_always_finds_a_reply_lets_other_tasks_run() {
    let other = tokio::spawn(async {});
    let setting = Setting::new();
    for _ in 0..1000 {
        let (mut driver, caller) = setting.call();
        assert!(grant(&mut driver).is_none());
        assert!(matches!(caller.await, Some(Reply::Granted(_))));
    }
    assert!(other.is_finished());
}

/// The parent is forked while one of its threads has the cell locked. In the child the cell stays locked forever.
#[test]
fn in_a_forked_child_no_side_waits_for_a_thread_of_the_parent() {
    let setting = Setting::with(DriverHandle::in_fork);
    let (mut driver, mut caller) = setting.call();
    let cell = driver.clone();
    let locked = cell.state();
    assert!(locked.is_some());
    assert!(matches!(poll(&mut caller, &Arc::default()), Poll::Ready(None)));
    drop(grant(&mut driver));
    drop((driver, caller, locked));

    let (driver, guard) = setting.held();
    let cell = driver.clone();
    let locked = cell.state();
    assert!(!guard.is_valid());
    assert!(poll(&mut guard.start_release(), &Arc::default()).is_ready());
    drop((driver, locked));
    assert_eq!(setting.releases(), 0, "the lock is the parent's");
}
