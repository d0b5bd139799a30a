//! How a future is polled, and when it is left.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

pub(crate) type Call = Pin<Box<dyn Future<Output = ()>>>;

/// When the future is polled next, and when it is dropped if it is not done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollPattern {
    /// Polled only when it asks for it, as by any runtime; else at every turn of the driver and every
    /// few milliseconds, so that between two polls as little happens as can.
    pub(crate) only_when_woken: bool,
    /// Dropped when the next poll is due, with all that came in meanwhile; else right after the last.
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

/// Where the future need not ask for it: so many polls without any time between them, then a while.
const TURNS: usize = 15;
const TICK: Duration = Duration::from_millis(50);

/// Polls so many times, and looks about after each. Returns the future unless it is done.
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

/// No future of these waits for longer: what has not been woken by then nobody wakes.
const WOKEN_WITHIN: Duration = Duration::from_secs(60);

/// Until the task, and that is the future it has just polled, is woken.
async fn woken() {
    let (began, mut polled) = (Instant::now(), false);
    let woken = poll_fn(|_| match std::mem::replace(&mut polled, true) {
        false => Poll::Pending,
        true => Poll::Ready(()),
    });
    // When the time is over that wakes the task, too.
    let _ = timeout(WOKEN_WITHIN, woken).await;
    assert!(began.elapsed() < WOKEN_WITHIN, "nobody wakes it");
}
