//! Which lines have something to do: each has a waker of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;
use quorlock_core::NODE_COUNT_MAX;

/// The lines that were woken since they were last polled.
#[derive(Debug)]
pub(crate) struct Ready {
    shared: Arc<Shared>,
    wakers: Vec<Waker>,
}

const _: () = assert!(NODE_COUNT_MAX <= u32::BITS as usize, "each line has a bit");

#[derive(Debug)]
struct Shared {
    woken: AtomicU32,
    task: AtomicWaker,
}

struct LineWaker {
    bit: u32,
    shared: Arc<Shared>,
}

impl Wake for LineWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.shared.woken.fetch_or(self.bit, Ordering::Release);
        self.shared.task.wake();
    }
}

impl Ready {
    /// So many lines, all of which have something to do.
    pub(crate) fn new(lines: usize) -> Self {
        let shared = Arc::new(Shared { woken: AtomicU32::new(u32::MAX), task: AtomicWaker::new() });
        let waker = |line| Arc::new(LineWaker { bit: 1u32 << line, shared: shared.clone() }).into();
        Self { wakers: (0..lines).map(waker).collect(), shared }
    }

    /// This line has something to do, and its task is awake.
    pub(crate) fn note(&self, line: usize) {
        self.shared.woken.fetch_or(1 << line, Ordering::Relaxed);
    }

    /// The lines that were woken, as bits; a line that is woken later wakes this task.
    pub(crate) fn take(&self, cx: &Context<'_>) -> u32 {
        self.shared.task.register(cx.waker());
        self.shared.woken.swap(0, Ordering::Acquire)
    }

    /// With what to poll a line.
    pub(crate) fn context(&self, line: usize) -> Context<'_> {
        Context::from_waker(&self.wakers[line])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lines_that_were_woken_are_polled() {
        let ready = Ready::new(3);
        let task = Context::from_waker(Waker::noop());
        assert_eq!(ready.take(&task) & 0b111, 0b111, "all, at first");
        assert_eq!(ready.take(&task), 0);
        ready.context(2).waker().wake_by_ref();
        ready.note(0);
        assert_eq!(ready.take(&task), 0b101);
    }
}
