//! Which of the things that the driver polls have something to do: each line has a waker of its own, and so has the
//! alarm.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;
use quorlock_core::NODE_COUNT_MAX;

/// What was woken since it was last polled.
#[derive(Debug)]
pub(crate) struct Ready {
    shared: Arc<Shared>,
    wakers: Vec<Waker>,
}

/// The alarm's place, behind those of all lines.
pub(crate) const TIMER: usize = NODE_COUNT_MAX;

const _: () = assert!(TIMER < u32::BITS as usize, "each has a bit");

#[derive(Debug)]
struct Shared {
    woken: AtomicU32,
    task: AtomicWaker,
}

struct TransportWaker {
    bit: u32,
    shared: Arc<Shared>,
}

impl Wake for TransportWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.shared.woken.fetch_or(self.bit, Ordering::Release);
        self.shared.task.wake();
    }
}

impl Ready {
    /// All of them have something to do.
    pub(crate) fn new() -> Self {
        let shared = Arc::new(Shared { woken: AtomicU32::new(u32::MAX), task: AtomicWaker::new() });
        let waker =
            |line| Arc::new(TransportWaker { bit: 1u32 << line, shared: shared.clone() }).into();
        Self { wakers: (0..=TIMER).map(waker).collect(), shared }
    }

    /// The one at this place has something to do, and its task is awake.
    pub(crate) fn note(&self, place: usize) {
        self.shared.woken.fetch_or(1 << place, Ordering::Relaxed);
    }

    /// What was woken, as bits; what is woken later wakes this task.
    pub(crate) fn take(&self, cx: &Context<'_>) -> u32 {
        self.shared.task.register(cx.waker());
        self.shared.woken.swap(0, Ordering::Acquire)
    }

    /// With what to poll the one at this place.
    pub(crate) fn context(&self, place: usize) -> Context<'_> {
        Context::from_waker(&self.wakers[place])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_woken_is_polled() {
        let ready = Ready::new();
        let task = Context::from_waker(Waker::noop());
        assert_eq!(ready.take(&task) & 0b111, 0b111, "all, at first");
        assert_eq!(ready.take(&task), 0);
        ready.context(2).waker().wake_by_ref();
        ready.note(0);
        assert_eq!(ready.take(&task), 0b101);
    }
}
