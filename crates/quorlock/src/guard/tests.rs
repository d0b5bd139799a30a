use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Wake, Waker};

use quorlock_core::{Hold, LockId, Mode, Outcome, Quorum, Validity};
use tokio::time::{advance, timeout};

use super::*;
use crate::client::context::ClientContext;
use crate::clock::Clock;
use crate::driver::{DriverHandle, EventReceiver};

const SECOND: Duration = Duration::from_secs(1);

fn validity(term: Duration) -> Validity {
    let votes = [Some(Clock::Tokio.now())];
    Validity::new(votes, Quorum::majority(1).unwrap(), term, Duration::ZERO)
}

/// A client without a driver. `asked` receives the events that its calls and guards queue.
pub(super) struct Setting {
    pub(super) context: Arc<ClientContext>,
    asked: EventReceiver,
}

impl Setting {
    pub(super) fn new() -> Self {
        Self::with(|handle| handle)
    }

    pub(super) fn with(change: impl FnOnce(DriverHandle) -> DriverHandle) -> Self {
        let (handle, asked) = DriverHandle::new(std::sync::Weak::new());
        let (driver, names) = (change(handle), ["a".into()].into_iter().collect());
        Self { context: Arc::new(ClientContext::for_test(driver, names)), asked }
    }

    pub(super) fn call(&self) -> (DriverSide, CallerSide) {
        LockCell::call(LockId(7), "orders".into(), &self.context)
    }

    /// A lock that is held for a second.
    pub(super) fn held(&self) -> (DriverSide, Guard) {
        let (mut driver, caller) = self.call();
        assert!(grant(&mut driver).is_none());
        match caller.now_or_never() {
            Some(Some(Reply::Granted(guard))) => (driver, guard),
            _ => panic!("the guard was sent"),
        }
    }

    /// The number of releases that were queued since the last call.
    pub(super) fn releases(&self) -> usize {
        let events = std::iter::from_fn(|| self.asked.try_recv());
        events.filter(|(event, _)| matches!(event, Event::Release { .. })).count()
    }
}

/// Grants the lock with a validity of one second. Returns the guard if the caller is gone.
pub(super) fn grant(driver: &mut DriverSide) -> Option<Reply> {
    let id = (GuardToken::new(Token::new([7; 20]), 0), None);
    let guard = driver.guard(id, Mode::Exclusive).expect("a handle is left");
    driver.grant(guard, Hold::new(validity(SECOND), None, Mode::Exclusive))
}

/// A guard that is valid for a second, the events that it queues, and the driver's side of the lock.
fn guard(change: impl FnOnce(DriverHandle) -> DriverHandle) -> (Guard, EventReceiver, DriverSide) {
    let setting = Setting::with(change);
    let (side, guard) = setting.held();
    (guard, setting.asked, side)
}

fn is_silent(asked: &EventReceiver) -> bool {
    asked.try_recv().is_none()
}

#[tokio::test(start_paused = true)]
async fn the_end_is_found_by_the_clock_and_reported_once() {
    let (guard, asked, _side) = guard(|handle| handle);
    assert_eq!((guard.remaining(), guard.votes(), guard.loss_cause()), (SECOND, 1, None));
    advance(SECOND).await;
    assert_eq!((guard.remaining(), guard.votes()), (Duration::ZERO, 0));
    assert_eq!(guard.loss_cause(), Some(LossCause::Expired));
    assert!(matches!(asked.try_recv(), Some((Event::RunOut { lock: LockId(7) }, _))));
    assert!(!guard.is_valid() && is_silent(&asked));
    drop(guard);
    assert!(matches!(
        asked.try_recv(),
        Some((Event::Release { report: false, .. }, ReplyTo::Nobody))
    ));
}

/// The driver calculated a longer validity before the lock ended, but updates the guard only afterwards.
#[tokio::test(start_paused = true)]
async fn votes_that_come_after_the_end_do_not_bring_the_lock_back() {
    let (guard, asked, _side) = guard(|handle| handle);
    advance(SECOND / 2).await;
    guard.cell.update(validity(SECOND));
    assert_eq!(guard.remaining(), SECOND);
    let raised = validity(10 * SECOND);
    advance(SECOND).await;
    guard.cell.update(raised.clone());
    assert_eq!((guard.is_valid(), guard.loss_cause()), (false, Some(LossCause::Expired)));
    assert!(matches!(asked.try_recv(), Some((Event::RunOut { .. }, _))), "the driver is notified");
    guard.cell.update(raised);
    guard.cell.lose(LossCause::KeyGone);
    assert_eq!(guard.loss_cause(), Some(LossCause::Expired), "the first cause stays");
    assert!(is_silent(&asked));
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_clocks_wakes_waiting_tasks() {
    let (guard, asked, _side) = guard(|handle| handle);
    let changed = guard.changed();
    guard.cell.look_at_clocks();
    timeout(SECOND / 2, changed).await.expect("the remaining time may have changed");
    assert!(guard.is_valid() && is_silent(&asked));
    advance(SECOND).await;
    guard.cell.look_at_clocks();
    assert!(matches!(asked.try_recv(), Some((Event::RunOut { .. }, _))), "no task had to ask");
}

/// A waker may poll its task at once. The task calls the guard, which must be able to lock the state.
#[tokio::test(start_paused = true)]
async fn a_waker_finds_the_state_unlocked() {
    struct Asks {
        cell: Arc<LockCell>,
        found_unlocked: Mutex<Vec<bool>>,
    }
    impl Wake for Asks {
        fn wake(self: Arc<Self>) {
            let is_unlocked = self.cell.is_unlocked();
            self.found_unlocked.lock().unwrap().push(is_unlocked);
        }
    }
    let (guard, _asked, _side) = guard(|handle| handle);
    let cell = guard.cell.clone();
    let asks = Arc::new(Asks { cell, found_unlocked: Mutex::default() });
    let waker = Waker::from(asks.clone());
    let wakes: [&dyn Fn(&LockCell); 6] = [
        &LockCell::look_at_clocks,
        &|cell| cell.update(validity(SECOND)),
        &LockCell::supersede,
        &|cell| assert!(cell.downgrade()),
        &|cell| assert!(cell.release(false)),
        &|cell| cell.lose(LossCause::KeyGone),
    ];
    for (nth, wake) in wakes.iter().enumerate() {
        let mut changed = pin!(guard.cell.changed.notified());
        assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        wake(&guard.cell);
        assert_eq!(*asks.found_unlocked.lock().unwrap(), vec![true; nth + 1]);
    }
}

/// A forked child has a copy of the guard, but the lock is the parent's (S24).
#[tokio::test(start_paused = true)]
async fn in_a_forked_child_a_guard_is_invalid_and_sends_nothing() {
    async fn at_once<T>(future: impl Future<Output = T>) -> T {
        timeout(SECOND, future).await.expect("the child has no driver to wait for")
    }
    let (guard, asked, _side) = guard(DriverHandle::in_fork);
    assert!(!guard.is_valid());
    assert_eq!((guard.remaining(), guard.votes()), (Duration::ZERO, 0));
    assert_eq!(guard.loss_cause(), Some(LossCause::Shutdown));
    assert_eq!(at_once(guard.lost()).await, LossCause::Shutdown);
    assert_eq!(guard.cell.wait_lost(), LossCause::Shutdown);
    assert!(matches!(at_once(guard.extend()).await, Err(ExtendError::Lost { .. })));
    assert_eq!(at_once(guard.release()).await.outcome, Outcome::Unknown);
    let (guard, asked_by_drop, _side) = self::guard(DriverHandle::in_fork);
    drop(guard);
    assert!(is_silent(&asked) && is_silent(&asked_by_drop));
}
