//! The cause of a loss, for people and for programs.

use std::time::Duration;

use quorlock::LossCause;

use super::plan::RunPlan;
use crate::child::Deadlines;
use crate::output::{nanos, time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The cause that the library reports.
    Of(LossCause),
    /// The validity ended because this process was suspended for this time and did not extend the lock.
    Stopped(Duration),
}

impl Loss {
    /// The name of the cause for programs, and a message for people. `reasons`: the nodes that did not confirm the
    /// lock, with their answers; may be empty. `untrusted`: the nodes whose votes do not count.
    pub(super) fn describe(
        self,
        reasons: &str,
        untrusted: Option<String>,
    ) -> (&'static str, String) {
        let with_reasons = |why: &str| match reasons {
            "" => why.to_owned(),
            _ => format!("{why}: {reasons}"),
        };
        let (name, why) = match self {
            Self::Of(LossCause::KeyGone) => (
                "key_gone",
                with_reasons("too few nodes still have its key, because somebody deleted it or the nodes lost data (to check \
                 the nodes: quorlock doctor)"),
            ),
            Self::Of(LossCause::KeyOverwritten) => (
                "key_overwritten",
                with_reasons("somebody who does not hold the lock writes or deletes its key: too few nodes still have it, and \
                 at least one has another value (to see who holds it: quorlock status)"),
            ),
            Self::Of(LossCause::ClockJumped) => (
                "clock_jumped",
                "the wall clock moved ahead by more than was left of the lock: it was set, or this virtual \
                 machine was paused".to_owned(),
            ),
            Self::Of(LossCause::HoldLimit) => {
                ("hold_limit", "it was held for as long as --max-hold allows".to_owned())
            }
            Self::Of(LossCause::Shutdown) => ("shutdown", "quorlock's own driver has ended".to_owned()),
            Self::Of(_) => {
                let why = match untrusted.filter(|_| reasons.is_empty()) {
                    Some(nodes) => format!(
                        "too few nodes confirmed an extension in time, and not all are to be trusted: {nodes}"
                    ),
                    None => with_reasons(
                        "too few nodes confirmed an extension in time (to check the nodes: quorlock doctor)",
                    ),
                };
                ("expired", why)
            }
            Self::Stopped(stood) => {
                let why = format!(
                    "quorlock itself stood still for {}, and could not extend it: it was stopped (Ctrl-Z, \
                     SIGSTOP), or the machine was suspended or overloaded",
                    time(stood)
                );
                ("stopped", why)
            }
        };
        (name, why)
    }
}

/// Detects whether this process ran when the lock was due for an extension.
#[derive(Debug)]
pub(super) struct Pulse {
    at_ns: u64,
    half_ttl_ns: u64,
    kill_before_ns: u64,
    stood: Option<Duration>,
}

impl Pulse {
    pub(super) fn new(now_ns: u64, plan: &RunPlan) -> Self {
        let half_ttl_ns = nanos(plan.ttl / 2);
        Self { at_ns: now_ns, half_ttl_ns, kill_before_ns: nanos(plan.kill_before), stood: None }
    }

    /// Records that this process runs. `deadlines`: the newest deadlines. If more than half of the ttl was left at the
    /// last call, the extension was in time; so if SIGTERM is due now, this process was suspended in between.
    pub(super) fn beat(&mut self, now_ns: u64, deadlines: Deadlines) {
        let end_ns = deadlines.kill.boot_ns.saturating_add(self.kill_before_ns);
        let was_extended = end_ns.saturating_sub(self.at_ns) > self.half_ttl_ns;
        if was_extended && deadlines.term.boot_ns <= now_ns {
            self.stood = Some(Duration::from_nanos(now_ns.saturating_sub(self.at_ns)));
        }
        self.at_ns = now_ns;
    }

    /// [`Loss::Stopped`] if the lock expired because this process was suspended; else the reported cause.
    pub(super) fn loss(&self, cause: LossCause) -> Loss {
        match (cause, self.stood) {
            (LossCause::Expired, Some(stood)) => Loss::Stopped(stood),
            (cause, _) => Loss::Of(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guardian::clock::{Moment, NEVER_NS};

    /// The deadlines of a lock with a ttl of 10 s that ends at this second. SIGTERM is due two seconds before.
    fn deadlines(end: u64) -> Deadlines {
        let end = Moment { boot_ns: end * SECOND, real_ns: NEVER_NS };
        Deadlines::before(end, 2 * SECOND, SECOND / 2)
    }

    /// The loss if the process called [`Pulse::beat`] only at these seconds, and extended the lock only at second 0.
    fn loss(beats: &[u64], cause: LossCause) -> Loss {
        let (half_ttl_ns, kill_before_ns) = (5 * SECOND, SECOND / 2);
        let mut pulse = Pulse { at_ns: 0, half_ttl_ns, kill_before_ns, stood: None };
        beats.iter().for_each(|beat| pulse.beat(beat * SECOND, deadlines(10)));
        pulse.loss(cause)
    }

    #[test]
    fn only_who_stood_still_while_it_could_extend_has_been_stopped() {
        let expired = LossCause::Expired;
        let stood = |seconds| Loss::Stopped(Duration::from_secs(seconds));
        assert_eq!(loss(&[1, 2, 9, 10], expired), stood(7));
        assert_eq!(loss(&[4, 60], expired), stood(56));
        assert_eq!(loss(&[1, 2, 3, 4, 5, 6, 7, 8, 9], expired), Loss::Of(expired));
        assert_eq!(loss(&[1, 5, 60], expired), Loss::Of(expired), "nodes had been silent for long");
        assert_eq!(loss(&[1, 7, 8, 9], expired), Loss::Of(expired), "it went on in time");
        for cause in [LossCause::ClockJumped, LossCause::HoldLimit, LossCause::KeyOverwritten] {
            assert_eq!(loss(&[1, 60], cause), Loss::Of(cause));
        }
    }

    const SECOND: u64 = 1_000_000_000;
}
