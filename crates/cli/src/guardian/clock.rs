//! The clock that deadlines are written in, and the timer that fires on it.
//!
//! A lock's validity goes on while the machine sleeps, so deadlines are readings of
//! CLOCK_BOOTTIME. The timeout of poll(2) runs on the monotonic clock, which stands still in
//! suspend: ten seconds of it may be an hour of validity. So the guardian waits with a timerfd on
//! the boot clock; the timeout, computed from the same clock, is what remains where there is no
//! such timer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, Timespec, clock_gettime};
#[cfg(target_os = "linux")]
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// A deadline that never comes.
pub(crate) const NEVER: u64 = u64::MAX;

/// Now, in nanoseconds of the boot clock.
pub(crate) fn boot_ns() -> u64 {
    let now = clock_gettime(CLOCK);
    // The kernel counts these two up from zero; a negative one does not occur.
    let secs = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    secs * NANOS_PER_SEC + nanos
}

/// A timer on the boot clock that wakes a poll(2).
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: Option<OwnedFd>,
}

impl Alarm {
    /// A timer that is not set.
    pub(crate) fn new() -> Self {
        // A kernel or a sandbox without the timer leaves the timeout, which is right except for
        // a suspend; refusing to guard at all would be worse.
        #[cfg(target_os = "linux")]
        let timer = timerfd_create(
            TimerfdClockId::Boottime,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )
        .ok();
        #[cfg(not(target_os = "linux"))]
        let timer = None;
        Self { timer }
    }

    /// Waits until one of `sources` has something to read or the moment `until` has come. It may
    /// return early, so the caller looks at everything in any case.
    pub(crate) fn wait(&self, until: u64, sources: &[BorrowedFd<'_>]) {
        self.set(until);
        let mut sources: Vec<_> = sources
            .iter()
            .copied()
            .chain(self.timer.as_ref().map(AsFd::as_fd))
            .map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN))
            .collect();
        let timeout = (until != NEVER).then(|| timespec(until.saturating_sub(boot_ns())));
        // It fails when a signal comes, which is one of the reasons to look.
        let _ = poll(&mut sources, timeout.as_ref());
    }

    #[cfg(target_os = "linux")]
    fn set(&self, at: u64) {
        let Some(timer) = &self.timer else {
            return;
        };
        // All zero means "off", so a deadline of zero is set for the first nanosecond.
        let it_value = if at == NEVER { timespec(0) } else { timespec(at.max(1)) };
        let it_interval = timespec(0);
        let spec = Itimerspec { it_interval, it_value };
        // Only a malformed time is refused, and then the timeout still holds.
        let _ = timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &spec);
    }

    #[cfg(not(target_os = "linux"))]
    fn set(&self, _at: u64) {}
}

/// A number of nanoseconds the way the kernel wants it.
fn timespec(ns: u64) -> Timespec {
    Timespec {
        // 2^64 nanoseconds are 584 years: both parts fit whatever the platform's types are.
        tv_sec: (ns / NANOS_PER_SEC) as _,
        tv_nsec: (ns % NANOS_PER_SEC) as _,
    }
}

const NANOS_PER_SEC: u64 = 1_000_000_000;

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;
