//! The times and deadlines of a run.

use std::ffi::OsString;
use std::time::Duration;

use quorlock::admin::{ceil_ms, exactly};
use quorlock::{Guard, LossCause};

use crate::args::Run;
use crate::child::{Deadlines, Killed, Why};
use crate::guardian::clock::Moment;
use crate::options::{self, Refused};
use crate::output::nanos;

pub(super) struct RunPlan {
    pub(super) ttl: Duration,
    pub(super) max_hold: Duration,
    /// Time between SIGTERM and the end of the validity.
    pub(super) term_before: Duration,
    /// Time between SIGKILL and the end of the validity.
    pub(super) kill_before: Duration,
    pub(super) label: String,
}

impl RunPlan {
    pub(super) fn new(args: &Run) -> Result<Self, Refused> {
        let times = &args.lock.times;
        let ttl = options::stoppable_ttl(times, &args.nodes)?;
        let refuse = |options: &[&str], message| Err(Refused::about(options, message, &args.nodes));
        let of_kill_after = ["kill-after", "ttl"];
        let term_before = args.kill_after.unwrap_or(ttl / 5);
        let term = exactly(term_before);
        if term_before >= ttl / 3 {
            let ttl = exactly(ttl);
            let message = format!("kill-after ({term}) must be less than a third of ttl ({ttl})");
            return refuse(&of_kill_after, message);
        }
        let kill_before = ceil_ms(ttl / 20).max(Duration::from_millis(50));
        if term_before < kill_before {
            let kill = exactly(kill_before);
            let message =
                format!("kill-after ({term}) must be at least {kill}, when SIGKILL follows");
            return refuse(&of_kill_after, message);
        }
        let max_hold = times.max_hold();
        if let Some(min_hold) = args.min_hold.filter(|min_hold| *min_hold > max_hold) {
            let (min, max) = (exactly(min_hold), exactly(max_hold));
            let message = format!("min-hold ({min}) must not be above max-hold ({max})");
            return refuse(&["min-hold", "max-hold"], message);
        }
        let program = args.cmd.first().map(OsString::as_os_str).unwrap_or_default();
        let name = std::path::Path::new(program).file_name().unwrap_or(program);
        let label = args.lock.label.clone().unwrap_or_else(|| name.to_string_lossy().into_owned());
        Ok(Self { ttl, max_hold, term_before, kill_before, label })
    }

    /// The times at which the command gets signals if the validity does not change.
    pub(super) fn deadlines(&self, guard: &Guard) -> Deadlines {
        // The clocks are read before the remaining time, so the deadlines are not too late: see `Deadlines::before`.
        let now = Moment::now();
        let end = now.after(nanos(guard.remaining()));
        Deadlines::before(end, nanos(self.term_before), nanos(self.kill_before))
    }

    /// The cause of the command's end; `None` for a loss that the keeper itself reported to the guardian.
    pub(super) fn cause(&self, since: u64, killed: Killed) -> Option<LossCause> {
        let held = Duration::from_nanos(killed.at_ns.saturating_sub(since));
        match killed.why {
            Why::Lost => None,
            Why::ClockJumped => Some(LossCause::ClockJumped),
            Why::TimeUp if held + self.ttl > self.max_hold => Some(LossCause::HoldLimit),
            Why::TimeUp => Some(LossCause::Expired),
        }
    }
}
