//! Wakers for the parts of the driver's task: one for each transport, one for the timer and one for the inbox, so that
//! the driver polls only woken parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;
use quorlock_core::NODE_COUNT_MAX;

/// The parts of the driver's task that were woken since they were last polled.
#[derive(Debug)]
pub(crate) struct Ready {
    shared: Arc<Shared>,
    wakers: Vec<Waker>,
}

/// The index of the timer's waker, which follows the wakers of the transports.
pub(crate) const TIMER: usize = NODE_COUNT_MAX;

/// The index of the waker for the inbox of pushes.
pub(crate) const INBOX: usize = TIMER + 1;

const _: () = assert!(INBOX < u64::BITS as usize, "each has a bit");

#[derive(Debug)]
struct Shared {
    woken: AtomicU64,
    task: AtomicWaker,
}

struct TransportWaker {
    bit: u64,
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
    /// Creates the wakers. All parts count as woken at first.
    pub(crate) fn new() -> Self {
        let shared = Arc::new(Shared { woken: AtomicU64::new(u64::MAX), task: AtomicWaker::new() });
        let waker =
            |line| Arc::new(TransportWaker { bit: 1u64 << line, shared: shared.clone() }).into();
        Self { wakers: (0..=INBOX).map(waker).collect(), shared }
    }

    /// Marks a part as woken, without waking the task.
    pub(crate) fn note(&self, place: usize) {
        self.shared.woken.fetch_or(1 << place, Ordering::Relaxed);
    }

    /// Takes the bits of the parts that were woken. Parts that are woken later wake this task.
    pub(crate) fn take(&self, cx: &Context<'_>) -> u64 {
        self.shared.task.register(cx.waker());
        self.shared.woken.swap(0, Ordering::Acquire)
    }

    /// The context in which the driver polls the part. Its waker marks the part as woken, and wakes the driver's task.
    pub(crate) fn context(&self, place: usize) -> Context<'_> {
        Context::from_waker(&self.wakers[place])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_that_were_woken_are_polled() {
        let ready = Ready::new();
        let task = Context::from_waker(Waker::noop());
        assert_eq!(ready.take(&task) & 0b111, 0b111, "all, at first");
        assert_eq!(ready.take(&task), 0);
        ready.context(2).waker().wake_by_ref();
        ready.note(0);
        assert_eq!(ready.take(&task), 0b101);
    }
}
