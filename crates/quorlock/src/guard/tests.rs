use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Wake, Waker};

use quorlock_core::{Hold, HoldLimit, LockId, Mode, Quorum, Validity};
use tokio::time::{advance, timeout};

use super::*;
use crate::clock::Clock;
use crate::common::Common;
use crate::driver::{DriverHandle, EventReceiver};

const SECOND: Duration = Duration::from_secs(1);

fn validity(term: Duration) -> Validity {
    let votes = [Some(Clock::Tokio.now())];
    Validity::new(votes, Quorum::majority(1).unwrap(), term, Duration::ZERO)
}

/// A guard that is valid for a second, and what it asks of its driver.
fn guard(
    limit: Option<HoldLimit>,
    change: impl FnOnce(DriverHandle) -> DriverHandle,
) -> (Guard, EventReceiver) {
    let (handle, asked) = DriverHandle::new(std::sync::Weak::new());
    let (driver, names) = (change(handle), ["a".into()].into_iter().collect());
    let common = Arc::new(Common { driver, names, clock: Clock::Tokio });
    let lock = (LockId(7), "orders".into());
    let id = (GuardToken::new(Token::new([7; 20]), 0), None);
    let held = Held::new(lock, id, Hold::new(validity(SECOND), limit, Mode::Exclusive), &common);
    (Guard::new(Claim::begin(std::process::id()).0.grant(held).0, common), asked)
}

fn is_silent(asked: &EventReceiver) -> bool {
    asked.try_recv().is_none()
}

#[tokio::test(start_paused = true)]
async fn the_end_is_seen_by_looking_at_the_clock_and_told_once() {
    let (guard, asked) = guard(None, |handle| handle);
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

/// The driver read the clock before the validity ran out, and raises it afterwards.
#[tokio::test(start_paused = true)]
async fn votes_that_come_after_the_end_do_not_bring_the_lock_back() {
    let (guard, asked) = guard(None, |handle| handle);
    advance(SECOND / 2).await;
    guard.held.update(validity(SECOND));
    assert_eq!(guard.remaining(), SECOND);
    let raised = validity(10 * SECOND);
    advance(SECOND).await;
    guard.held.update(raised.clone());
    assert_eq!((guard.is_valid(), guard.loss_cause()), (false, Some(LossCause::Expired)));
    assert!(matches!(asked.try_recv(), Some((Event::RunOut { .. }, _))), "the driver is told");
    guard.held.update(raised);
    guard.held.lose(LossCause::KeyGone);
    assert_eq!(guard.loss_cause(), Some(LossCause::Expired), "lost once, and for one reason");
    assert!(is_silent(&asked));
}

#[tokio::test(start_paused = true)]
async fn what_runs_out_because_of_max_hold_is_said_to() {
    let until = Clock::Tokio.now().after(2 * SECOND);
    let (guard, _asked) = guard(Some(HoldLimit { ttl: SECOND, until }), |handle| handle);
    advance(SECOND).await;
    guard.held.update(validity(SECOND));
    assert_eq!(guard.loss_cause(), Some(LossCause::Expired), "it could have been extended");

    let (guard, _asked) = self::guard(Some(HoldLimit { ttl: SECOND, until }), |handle| handle);
    advance(SECOND).await;
    assert_eq!(guard.loss_cause(), Some(LossCause::HoldLimit));
}

#[tokio::test(start_paused = true)]
async fn after_a_step_of_the_clocks_whoever_waits_looks_anew() {
    let (guard, asked) = guard(None, |handle| handle);
    let changed = guard.changed();
    guard.held.look_at_clocks();
    timeout(SECOND / 2, changed).await.expect("the remaining time may have changed");
    assert!(guard.is_valid() && is_silent(&asked));
    advance(SECOND).await;
    guard.held.look_at_clocks();
    assert!(
        matches!(asked.try_recv(), Some((Event::RunOut { .. }, _))),
        "seen without being asked"
    );
}

/// A waker may poll its task at once, and the task asks the guard.
#[tokio::test(start_paused = true)]
async fn a_waker_finds_the_state_unlocked() {
    struct Asks {
        held: Granted,
        found_unlocked: Mutex<Vec<bool>>,
    }
    impl Wake for Asks {
        fn wake(self: Arc<Self>) {
            let is_unlocked = self.held.state.try_lock().is_ok();
            self.found_unlocked.lock().unwrap().push(is_unlocked);
        }
    }
    let (guard, _asked) = guard(None, |handle| handle);
    let held = guard.held.clone();
    let asks = Arc::new(Asks { held, found_unlocked: Mutex::default() });
    let waker = Waker::from(asks.clone());
    let wakes: [&dyn Fn(&Held); 6] = [
        &Held::look_at_clocks,
        &|held| held.update(validity(SECOND)),
        &Held::supersede,
        &|held| assert!(held.downgrade()),
        &|held| assert!(held.release()),
        &|held| held.lose(LossCause::KeyGone),
    ];
    for (nth, wake) in wakes.iter().enumerate() {
        let mut changed = pin!(guard.held.changed.notified());
        assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        wake(&guard.held);
        assert_eq!(*asks.found_unlocked.lock().unwrap(), vec![true; nth + 1]);
    }
}

/// The child has a copy of everything, and the lock is the parent's (S24).
#[tokio::test(start_paused = true)]
async fn in_a_forked_child_a_guard_is_invalid_and_sends_nothing() {
    async fn at_once<T>(future: impl Future<Output = T>) -> T {
        timeout(SECOND, future).await.expect("there is nobody to wait for")
    }
    let (guard, asked) = guard(None, DriverHandle::in_fork);
    assert!(!guard.is_valid());
    assert_eq!((guard.remaining(), guard.votes()), (Duration::ZERO, 0));
    assert_eq!(guard.loss_cause(), Some(LossCause::Shutdown));
    assert_eq!(at_once(guard.lost()).await, LossCause::Shutdown);
    assert_eq!(guard.wait_lost(), LossCause::Shutdown);
    assert!(matches!(at_once(guard.extend()).await, Err(ExtendError::Lost { .. })));
    assert_eq!(at_once(guard.release()).await.outcome, Outcome::Unknown);
    let (guard, asked_by_drop) = self::guard(None, DriverHandle::in_fork);
    drop(guard);
    assert!(is_silent(&asked) && is_silent(&asked_by_drop));
}
