//! Findings about the server's clock.

use std::time::Duration;

use quorlock_core::info::Info;

use super::Case;
use crate::doctor::Severity::{Error, Warning};
use crate::doctor::look::Facts;
use crate::doctor::{ClockOffset, Finding};

/// The largest offset of a server's clock that is not reported. Locks do not compare clocks, but the correction of a
/// wrong clock is a jump, which changes how long a key lives.
const OFFSET_MAX: Duration = Duration::from_secs(1);

impl Case<'_> {
    pub(super) fn time(&self, facts: &Facts, info: &Info) -> Vec<Finding> {
        let mut findings = Vec::new();
        if info.uptime_s < 0 {
            findings.push(Warning.finding(
                "uptime",
                format!("it says that it was started in {} s: its clock was set back", -info.uptime_s),
                "its keys expire late by as much, and after a restart it waits for longer",
                "see that its clock is right: chronyc tracking; and have it set before the server starts: \
                 systemctl edit redis-server.service, there After=time-sync.target in [Unit]",
            ));
        }
        if facts.times.clock_stands {
            findings.push(Error.finding(
                "clock_stands",
                format!("its clock stands still (it says that it has run for {} s)", info.uptime_s),
                "keys never expire, so a lock whose holder has crashed stays",
                "see the clock of its machine (timedatectl; a virtual machine that was paused; libfaketime), \
                 and restart the server",
            ));
        } else {
            findings.extend(facts.times.offset.and_then(offset));
        }
        findings
    }
}

fn offset(ClockOffset { ahead_us, error }: ClockOffset) -> Option<Finding> {
    let size = Duration::from_micros(ahead_us.unsigned_abs());
    (size.saturating_sub(error) > OFFSET_MAX).then(|| {
        Warning.finding(
            "clock",
            format!(
                "its clock is {:.3} s {} ours, give or take {:.3} s",
                size.as_secs_f64(),
                if ahead_us < 0 { "behind" } else { "ahead of" },
                error.as_secs_f64()
            ),
            "when a clock is set right by a step, locks on it end early, or late, by as much",
            "find the wrong one with chronyc tracking, here and there; set it while the server is stopped: \
             chronyc makestep; then let chronyd keep it, by slewing",
        )
    })
}
