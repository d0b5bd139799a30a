//! The end of a lease as two clock readings.

use std::sync::OnceLock;
use std::time::Duration;

use quorlock_core::{BootTime, Reading};

use crate::clock::Clock;

/// The end of a detached lock. A call refuses a lease past its end. Before it, only the nodes show if the lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeaseEnd {
    /// The end of the lock by the wall clock, in nanoseconds since the Unix epoch.
    pub(super) real_ns: u64,
    /// The end of the lock by the boot clock. `None` if the system gives no boot id.
    pub(super) boot: Option<BootEnd>,
}

/// The end of a lock by the boot clock, which has a meaning only until the next boot of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BootEnd {
    pub(super) boot_id: u128,
    pub(super) ns: u64,
}

impl LeaseEnd {
    /// The end of a lock that has this much time left at `now` by `clock`.
    pub(crate) fn new(clock: Clock, now: Reading, remaining: Duration) -> Self {
        let now = match clock {
            Clock::System => now,
            // The runtime's clock means nothing to another process.
            Clock::Tokio => Clock::System.now(),
        };
        Self::with_boot_id(this_boot(), now, remaining)
    }

    pub(super) fn with_boot_id(boot_id: Option<u128>, now: Reading, remaining: Duration) -> Self {
        let after = |now_ns: i64| {
            let remaining = i64::try_from(remaining.as_nanos()).unwrap_or(i64::MAX);
            u64::try_from(now_ns.saturating_add(remaining)).unwrap_or(0)
        };
        let boot = |boot_id| BootEnd { boot_id, ns: after(now.boot().as_nanos()) };
        Self { real_ns: after(now.real_ns()), boot: boot_id.map(boot) }
    }

    /// The time until the end, by the clock that gives less. The boot clock counts only until the next boot.
    pub(super) fn remaining(&self, now: Reading) -> Duration {
        self.remaining_in(this_boot(), now)
    }

    pub(super) fn remaining_in(&self, boot_id: Option<u128>, now: Reading) -> Duration {
        let until = |end: u64, now_ns: i64| {
            let now_ns = u64::try_from(now_ns).unwrap_or(0);
            Duration::from_nanos(end.saturating_sub(now_ns))
        };
        let real = until(self.real_ns, now.real_ns());
        match self.boot.filter(|boot| Some(boot.boot_id) == boot_id) {
            Some(boot) => real.min(until(boot.ns, BootTime::as_nanos(now.boot()))),
            None => real,
        }
    }

    pub(super) const fn since_epoch(&self) -> Duration {
        Duration::from_nanos(self.real_ns)
    }
}

/// The id of this boot of the machine, read once. `None` if the system has none.
fn this_boot() -> Option<u128> {
    static THIS_BOOT: OnceLock<Option<u128>> = OnceLock::new();
    *THIS_BOOT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
    })
}
