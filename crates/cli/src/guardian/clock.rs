//! The two clocks of deadlines, and the timers on them.
//!
//! The validity of a lock decreases while the machine sleeps. A virtual machine that its host has paused sees the pause
//! on its wall clock alone. So a client counts the time by which the boot clock or the wall clock has advanced,
//! whichever is larger. A deadline is a reading of both clocks, and has come when *either* clock has reached it. So a
//! process that knows a deadline notices a wall-clock jump by itself.
//!
//! The timeout of poll(2) uses the monotonic clock, which stands still in suspend: ten seconds of it may be an hour of
//! validity. So [`Alarm`] waits for a timerfd on each of the two clocks. The kernel also fires an absolute timer on the
//! wall clock if that clock is set past it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
#[cfg(target_os = "linux")]
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use serde::{Deserialize, Serialize};

/// A reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moment {
    pub(crate) boot_ns: u64,
    /// The wall clock's nanoseconds since 1970.
    pub(crate) real_ns: u64,
}

impl Moment {
    pub(crate) const NEVER: Self = Self { boot_ns: NEVER_NS, real_ns: NEVER_NS };

    /// A deadline that has come, whatever time the clocks show.
    pub(crate) const PAST: Self = Self { boot_ns: 0, real_ns: 0 };

    /// The time by the clocks that the library reads.
    pub(crate) fn now() -> Self {
        let reading = quorlock::admin::now();
        // A wall clock that was never set may be negative. It counts as zero.
        let [boot_ns, real_ns] =
            [reading.boot().as_nanos(), reading.real_ns()].map(|ns| u64::try_from(ns).unwrap_or(0));
        Self { boot_ns, real_ns }
    }

    #[must_use]
    pub(crate) fn after(self, ns: u64) -> Self {
        Self { boot_ns: self.boot_ns.saturating_add(ns), real_ns: self.real_ns.saturating_add(ns) }
    }

    #[must_use]
    pub(crate) fn before(self, ns: u64) -> Self {
        Self { boot_ns: self.boot_ns.saturating_sub(ns), real_ns: self.real_ns.saturating_sub(ns) }
    }

    /// The deadline that comes as soon as `self` or `other` comes.
    #[must_use]
    pub(crate) fn min(self, other: Self) -> Self {
        Self { boot_ns: self.boot_ns.min(other.boot_ns), real_ns: self.real_ns.min(other.real_ns) }
    }

    /// Whether this deadline has come: either clock has reached it.
    pub(crate) fn has_come(self, now: Self) -> bool {
        now.boot_ns >= self.boot_ns || now.real_ns >= self.real_ns
    }

    /// The difference on the boot clock or on the wall clock, whichever is larger.
    pub(crate) fn distance(self, other: Self) -> u64 {
        self.boot_ns.abs_diff(other.boot_ns).max(self.real_ns.abs_diff(other.real_ns))
    }

    /// The time until this deadline, if nobody sets the wall clock meanwhile.
    fn left(self, now: Self) -> u64 {
        let boot = self.boot_ns.saturating_sub(now.boot_ns);
        boot.min(self.real_ns.saturating_sub(now.real_ns))
    }
}

pub(crate) const NEVER_NS: u64 = u64::MAX;

pub(crate) fn boot_ns() -> u64 {
    Moment::now().boot_ns
}

pub(crate) fn real_ns() -> u64 {
    Moment::now().real_ns
}

/// Timers on both clocks that wake a poll(2).
#[derive(Debug)]
pub(crate) struct Alarm {
    boot: Option<OwnedFd>,
    real: Option<OwnedFd>,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        // A kernel or a sandbox may lack timers. Then the timeout of poll remains, which is better than no guardian.
        #[cfg(target_os = "linux")]
        let timer =
            |clock| timerfd_create(clock, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK).ok();
        #[cfg(target_os = "linux")]
        let (boot, real) = (timer(TimerfdClockId::Boottime), timer(TimerfdClockId::Realtime));
        #[cfg(not(target_os = "linux"))]
        let (boot, real) = (None, None);
        Self { boot, real }
    }

    /// Waits until one of `sources` is readable or `until` has come. It may return early, so the caller checks
    /// the sources and the time.
    pub(crate) fn wait(&self, until: Moment, sources: &[BorrowedFd<'_>]) {
        #[cfg(quorlock_stepped_clock)]
        let until = until.min(Moment::now().after(PRETENDED_NS));
        // In tests that simulate a wall-clock jump, the kernel's timer would not notice the jump, so it is not set.
        let real_ns = if cfg!(quorlock_stepped_clock) { NEVER_NS } else { until.real_ns };
        let is_set = set(self.boot.as_ref(), until.boot_ns) && set(self.real.as_ref(), real_ns);
        let timers = [&self.boot, &self.real].into_iter().flatten().map(AsFd::as_fd);
        let mut sources: Vec<_> = sources
            .iter()
            .copied()
            .chain(timers)
            .map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN))
            .collect();
        let timeout = (until != Moment::NEVER).then(|| {
            let left = until.left(Moment::now());
            timespec(if is_set { left } else { left.min(LOOK_ANYWAY_NS) })
        });
        // If a signal interrupts poll, the function returns early.
        let _ = poll(&mut sources, timeout.as_ref());
    }
}

/// Sets a timer. Returns whether the timer will fire.
#[cfg(target_os = "linux")]
fn set(timer: Option<&OwnedFd>, at: u64) -> bool {
    let Some(timer) = timer else {
        return false;
    };
    // Zero switches a timer off, so a deadline of zero becomes the first nanosecond.
    let it_value = if at == NEVER_NS { timespec(0) } else { timespec(at.max(1)) };
    let it_interval = timespec(0);
    let spec = Itimerspec { it_interval, it_value };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &spec).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn set(_: Option<&OwnedFd>, _: u64) -> bool {
    false
}

/// Nanoseconds as the kernel expects them.
fn timespec(ns: u64) -> Timespec {
    Timespec {
        // 2^64 nanoseconds are 584 years, so both parts fit into the types of any platform.
        tv_sec: (ns / NANOS_PER_SEC) as _,
        tv_nsec: (ns % NANOS_PER_SEC) as _,
    }
}

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Interval at which the clock is read in a test, because the kernel does not report a simulated jump.
#[cfg(quorlock_stepped_clock)]
const PRETENDED_NS: u64 = 5_000_000;

/// Interval at which the clocks are read on a system without timers, to notice a suspend or a wall-clock jump. It is a
/// fraction of the shortest ttl that `quorlock run` accepts (500 ms).
const LOOK_ANYWAY_NS: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_has_come_when_either_clock_has_reached_it() {
        let at = |boot_ns, real_ns| Moment { boot_ns, real_ns };
        let deadline = at(100, 1_000);
        assert!(!deadline.has_come(at(99, 999)));
        assert!(deadline.has_come(at(100, 0)), "the wall clock was set back");
        assert!(deadline.has_come(at(0, 1_000)), "the wall clock was set ahead");
        assert_eq!(deadline.min(at(50, 2_000)), at(50, 1_000));
        assert_eq!(deadline.left(at(90, 995)), 5);
        assert!(Moment::PAST.has_come(Moment::now()) && !Moment::NEVER.has_come(Moment::now()));
    }

    #[test]
    fn the_wait_ends_when_the_earlier_clock_gets_there() {
        let alarm = Alarm::new();
        for (boot_ahead, real_ahead) in [(20_000_000, u64::MAX / 4), (u64::MAX / 4, 20_000_000)] {
            let now = Moment::now();
            let until =
                Moment { boot_ns: now.boot_ns + boot_ahead, real_ns: now.real_ns + real_ahead };
            for _ in 0..1_000 {
                if until.has_come(Moment::now()) {
                    break;
                }
                alarm.wait(until, &[]);
            }
            assert!(until.has_come(Moment::now()));
            assert!(boot_ns() - now.boot_ns < 10_000_000_000, "not for ever");
        }
    }
}
