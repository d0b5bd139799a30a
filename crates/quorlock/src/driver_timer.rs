//! The driver's timer.
//!
//! tokio's timers count in milliseconds and fire up to one millisecond late. That is short compared with a ttl, but
//! long for a waiting call that backs off for two round trips of 50 µs. So deadlines in the near future use a timer of
//! the kernel, where there is one.
//!
//! Both timers run on the monotonic clock, which stops while the machine sleeps and does not follow the wall clock. A
//! third timer detects clock jumps: the kernel cancels it when the wall clock is set and when the machine wakes up. The
//! driver then reads the clocks again.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use quorlock_core::BootTime;
use tokio::time::{Instant, Sleep};

use crate::clock::Clock;

/// The driver uses the kernel's timer for delays that are shorter than this.
const SOON: Duration = Duration::from_millis(3);

pub(crate) struct DriverTimer {
    clock: Clock,
    coarse: Pin<Box<Sleep>>,
    coarse_at: Option<Instant>,
    fine: Option<fine::Timer>,
    fine_at: Option<Instant>,
    steps: Option<fine::Steps>,
    stepped: bool,
    /// The time on the boot clock by which the timer fires, if it is set.
    rings_by: Option<BootTime>,
    #[cfg(quorlock_stepped_clock)]
    look: Option<tokio::time::Interval>,
}

impl DriverTimer {
    /// Makes a timer that is not set. Must be called inside the driver's runtime.
    pub(crate) fn new(clock: Clock) -> Self {
        let (fine, steps) = match clock {
            Clock::System => (fine::Timer::new(), fine::Steps::new()),
            // A test can pause tokio's clock, but not the kernel's timers, so these are not used.
            Clock::Tokio => (None, None),
        };
        let coarse = Box::pin(tokio::time::sleep(Duration::ZERO));
        Self {
            clock,
            coarse,
            coarse_at: None,
            fine,
            fine_at: None,
            steps,
            stepped: false,
            rings_by: None,
            #[cfg(quorlock_stepped_clock)]
            look: (clock == Clock::System).then(|| tokio::time::interval(crate::clock::STEP_CHECK)),
        }
    }

    /// Whether the timer already fires by `at`. False if the driver cannot detect that the machine has slept: the timer
    /// stops during the sleep, and then fires after `at`.
    pub(crate) fn is_set(&self, at: BootTime) -> bool {
        let detects_sleep = self.steps.is_some() || self.clock == Clock::Tokio;
        detects_sleep && self.rings_by.is_some_and(|by| by <= at)
    }

    /// Sets the timer to fire by `at`, which is `delay` from now; see [`set`](Self::set).
    pub(crate) fn set_by(&mut self, at: BootTime, delay: Duration) -> bool {
        self.rings_by = Some(self.rings_by.map_or(at, |by| by.min(at)));
        self.set(delay)
    }

    /// Sets the timer to fire after `delay` at the latest. An earlier time stays set, because firing too early is cheaper than
    /// setting a timer in every tick. Returns whether the timer must be polled.
    fn set(&mut self, delay: Duration) -> bool {
        let at = Instant::now() + delay;
        let is_set = |set: Option<Instant>| set.is_some_and(|set| set <= at);
        if is_set(self.coarse_at) || is_set(self.fine_at) {
            return false;
        }
        if delay < SOON
            && let Some(fine) = &self.fine
            && fine.set(delay)
        {
            self.fine_at = Some(at);
        } else {
            self.coarse.as_mut().reset(at);
            self.coarse_at = Some(at);
        }
        true
    }

    /// Whether the clocks have jumped since the last call: the wall clock was set, or the machine has slept.
    pub(crate) fn take_step(&mut self) -> bool {
        std::mem::take(&mut self.stepped)
    }

    /// Ready when the timer fires or when the clocks have jumped. A timer that has fired is no longer set.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let coarse = self.coarse_at.is_some() && self.coarse.as_mut().poll(cx).is_ready();
        let fine = match &self.fine {
            Some(fine) if self.fine_at.is_some() => fine.poll(cx).is_ready(),
            _ => false,
        };
        self.stepped |= self.steps.as_ref().is_some_and(|steps| steps.poll(cx).is_ready());
        #[cfg(quorlock_stepped_clock)]
        if let Some(look) = &mut self.look {
            self.stepped |= look.poll_tick(cx).is_ready();
        }
        if coarse {
            self.coarse_at = None;
        }
        if fine {
            self.fine_at = None;
        }
        if coarse || fine || self.stepped {
            self.rings_by = None;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod fine {
    use std::io::ErrorKind;
    use std::task::{Context, Poll, ready};
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::net::unix::pipe::Receiver;

    /// Detects clock jumps with a kernel timer: a jump cancels the timer, which then becomes readable.
    pub(super) struct Steps(Receiver);

    impl Steps {
        /// Returns `None` if the kernel has no timer that a clock jump cancels.
        pub(super) fn new() -> Option<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Realtime, flags).ok()?;
            let steps = Self(Receiver::from_owned_fd_unchecked(timer).ok()?);
            steps.watch().then_some(steps)
        }

        /// Sets the timer to a time that never comes, so that the next clock jump cancels it.
        fn watch(&self) -> bool {
            let never = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let when = Itimerspec { it_interval: zero, it_value: never };
            let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
            timerfd_settime(&self.0, flags, &when).is_ok()
        }

        /// Ready once for all clock jumps since the last call.
        pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
            if !ready!(poll_expired(&self.0, cx)) {
                return Poll::Pending;
            }
            self.watch();
            Poll::Ready(())
        }
    }

    /// A kernel timer (timerfd): a file that becomes readable when the timer fires. tokio treats it as a pipe, because
    /// tokio's `AsyncFd`, which accepts any file, cannot be created without unsafe code.
    pub(super) struct Timer(Receiver);

    impl Timer {
        /// Returns `None` if the kernel has no such timer. The driver then uses tokio's timer alone.
        pub(super) fn new() -> Option<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok()?;
            Some(Self(Receiver::from_owned_fd_unchecked(timer).ok()?))
        }

        pub(super) fn set(&self, delay: Duration) -> bool {
            // A delay of zero would disarm the timer.
            let nanos = i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX).max(1);
            let it_value =
                Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let when = Itimerspec { it_interval, it_value };
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &when).is_ok()
        }

        pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
            poll_expired(&self.0, cx).map(drop)
        }
    }

    /// Waits until a timer has fired, or was cancelled by a clock jump (`ECANCELED`). Returns false if the runtime is
    /// shutting down, which ends the driver too.
    fn poll_expired(timer: &Receiver, cx: &mut Context<'_>) -> Poll<bool> {
        while ready!(timer.poll_read_ready(cx)).is_ok() {
            let mut expirations = [0; 8];
            match timer.try_read(&mut expirations) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => return Poll::Ready(true),
            }
        }
        Poll::Ready(false)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod fine {
    use std::task::{Context, Poll};
    use std::time::Duration;

    /// Stands for both kernel timers on a system without them. No value of this type exists.
    pub(super) enum Timer {}

    pub(super) type Steps = Timer;

    impl Timer {
        pub(super) fn new() -> Option<Self> {
            None
        }

        pub(super) fn set(&self, _delay: Duration) -> bool {
            match *self {}
        }

        pub(super) fn poll(&self, _cx: &mut Context<'_>) -> Poll<()> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn it_rings_not_before_its_time_and_then_is_no_longer_set() {
        let mut timer = DriverTimer::new(Clock::System);
        for delay in [Duration::ZERO, Duration::from_micros(200), Duration::from_millis(5)] {
            let started = Instant::now();
            timer.set(delay);
            // Setting a later time must not delay the timer.
            timer.set(delay + Duration::from_secs(3600));
            poll_fn(|cx| timer.poll(cx)).await;
            assert!(started.elapsed() >= delay);
            assert!(timer.coarse_at.is_none() && timer.fine_at.is_none());
        }
    }

    /// After the machine has slept, timers fire later than the boot clock says. So a timer counts as set only if the
    /// driver can detect such a sleep.
    #[tokio::test]
    async fn it_is_known_to_be_set_only_where_a_sleep_is_told() {
        let mut timer = DriverTimer::new(Clock::System);
        let (now, soon) = (Clock::System.now(), Duration::from_secs(1));
        assert!(timer.set_by(now.after(soon), soon));
        let is_told = timer.steps.is_some();
        assert_eq!(timer.is_set(now.after(soon)), is_told);
        assert!(!timer.is_set(now.boot()), "that would be too late");
        timer.steps = None;
        assert!(!timer.is_set(now.after(soon)));
    }
}
