//! The pattern in which a future is polled and dropped.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

pub(crate) type Call = Pin<Box<dyn Future<Output = ()>>>;

/// Decides when the future is polled next, and when it is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollPattern {
    /// True: the future is polled only after its waker was called, as by any runtime. False: the future is polled
    /// after each run of the driver, so that as little as possible happens between two polls.
    pub(crate) only_when_woken: bool,
    /// True: the future is dropped when its next poll would be due, so other tasks run between its last poll and the
    /// drop. False: the future is dropped right after its last poll.
    pub(crate) late: bool,
}

impl PollPattern {
    pub(crate) const ALL: [Self; 4] = [
        Self { only_when_woken: true, late: false },
        Self { only_when_woken: true, late: true },
        Self { only_when_woken: false, late: false },
        Self { only_when_woken: false, late: true },
    ];
}

/// If polls do not wait for the waker: the number of polls before virtual time advances by `TICK`.
const TURNS: usize = 15;
const TICK: Duration = Duration::from_millis(100);

/// Polls the future `polls` times, and checks all guards after each poll. Returns the future unless it is complete.
pub(crate) async fn polled(
    mut call: Call,
    pattern: PollPattern,
    polls: usize,
    mut look: impl FnMut(),
) -> Option<Call> {
    for number in 1..=polls {
        if poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await {
            return None;
        }
        look();
        if number == polls && !pattern.late {
            break;
        }
        if pattern.only_when_woken {
            woken().await;
        } else if number % (TURNS + 1) == 0 {
            sleep(TICK).await;
        } else {
            yield_now().await;
        }
        look();
    }
    Some(call)
}

/// The test fails if a future is not woken within this time.
const WOKEN_WITHIN: Duration = Duration::from_secs(60);

/// Waits until the polled future wakes this task.
async fn woken() {
    let (began, mut polled) = (Instant::now(), false);
    let woken = poll_fn(|_| match std::mem::replace(&mut polled, true) {
        false => Poll::Pending,
        true => Poll::Ready(()),
    });
    // The end of the timeout also wakes the task. The elapsed time shows whether the future did.
    let _ = timeout(WOKEN_WITHIN, woken).await;
    assert!(began.elapsed() < WOKEN_WITHIN, "the future is never woken");
}
