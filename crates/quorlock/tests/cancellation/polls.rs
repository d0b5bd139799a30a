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
    /// True: the future is polled only after its waker was called, as by any runtime. False: at every turn of the
    /// driver and every few milliseconds, so that as little as possible happens between two polls.
    pub(crate) only_when_woken: bool,
    /// True: the future is dropped when the next poll is due, after everything that happened meanwhile. False: right
    /// after the last poll.
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

/// The number of polls without any time between them, before time passes. Used if polls do not wait for the waker.
const TURNS: usize = 15;
const TICK: Duration = Duration::from_millis(50);

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

/// A future that is not woken within this time is never woken.
const WOKEN_WITHIN: Duration = Duration::from_secs(60);

/// Waits until this task is woken, which the future's waker does.
async fn woken() {
    let (began, mut polled) = (Instant::now(), false);
    let woken = poll_fn(|_| match std::mem::replace(&mut polled, true) {
        false => Poll::Pending,
        true => Poll::Ready(()),
    });
    // The end of the timeout wakes the task as well.
    let _ = timeout(WOKEN_WITHIN, woken).await;
    assert!(began.elapsed() < WOKEN_WITHIN, "the future is never woken");
}
