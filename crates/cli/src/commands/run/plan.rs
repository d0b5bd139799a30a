//! What the arguments and the file mean for a run: times, and the deadlines that follow from them.

use std::ffi::OsString;
use std::time::Duration;

use quorlock::admin::exactly;
use quorlock::env::default_ttl;
use quorlock::{Guard, LossCause, RestartGuard};

use crate::args::{Run, WaitArg};
use crate::child::{Deadlines, Killed, Why};
use crate::guardian::clock::{Moment, NEVER_NS};
use crate::guardian::mutants::{Mutant, is_active};
use crate::options::Refused;

/// A command needs time to be stopped in; a lock shorter than this leaves none.
const TTL_MIN: Duration = Duration::from_millis(500);

/// What the arguments and the file mean for this run.
pub(super) struct RunPlan {
    pub(super) ttl: Duration,
    pub(super) wait: WaitArg,
    pub(super) max_hold: Duration,
    /// SIGTERM so long before the end.
    pub(super) term_before: Duration,
    /// SIGKILL so long before the end.
    pub(super) kill_before: Duration,
    pub(super) label: String,
    /// Votes count of nodes that are not to be trusted.
    pub(super) observes: bool,
    /// How long the end waits for nodes that owe an answer to a release.
    pub(super) give_back: Duration,
}

impl RunPlan {
    pub(super) fn new(args: &Run) -> Result<Self, Refused> {
        let times = &args.times;
        let ttl = times.ttl.unwrap_or_else(|| default_ttl(args.nodes.max_ttl));
        let refuse = |options: &[&str], message| Err(Refused::about(options, message, &args.nodes));
        if ttl < TTL_MIN {
            // Without one that was given, it is no longer than the longest.
            let name = if times.ttl.is_some() { "ttl" } else { "max-ttl" };
            return refuse(
                &[name],
                format!(
                    "{name} ({}) must be at least {TTL_MIN:?}, so that there is time to stop a command",
                    exactly(ttl)
                ),
            );
        }
        let term_before = times.kill_after.unwrap_or(ttl / 5);
        if term_before >= ttl / 3 {
            return refuse(
                &["kill-after", "ttl"],
                format!(
                    "kill-after ({}) must be less than a third of ttl ({})",
                    exactly(term_before),
                    exactly(ttl)
                ),
            );
        }
        let kill_before = (ttl / 20).max(Duration::from_millis(50));
        if term_before < kill_before {
            return refuse(
                &["kill-after", "ttl"],
                format!(
                    "kill-after ({}) must be at least {}, when SIGKILL follows",
                    exactly(term_before),
                    exactly(kill_before)
                ),
            );
        }
        let max_hold = times.max_hold.unwrap_or(Duration::from_secs(24 * 3600));
        if let Some(min_hold) = times.min_hold
            && min_hold > max_hold
        {
            return refuse(
                &["min-hold", "max-hold"],
                format!(
                    "min-hold ({}) must not be above max-hold ({})",
                    exactly(min_hold),
                    exactly(max_hold)
                ),
            );
        }
        let program = args.cmd.first().map(OsString::as_os_str).unwrap_or_default();
        let name = std::path::Path::new(program).file_name().unwrap_or(program);
        let label = args.label.clone().unwrap_or_else(|| name.to_string_lossy().into_owned());
        Ok(Self {
            ttl,
            wait: times.wait.unwrap_or(WaitArg::For(Duration::from_secs(60))),
            max_hold,
            term_before,
            kill_before,
            label,
            observes: args.nodes.restart_guard == Some(RestartGuard::Observe),
            give_back: args.nodes.node_timeout.unwrap_or((ttl / 20).min(Duration::from_millis(50))),
        })
    }

    /// The moments at which the command is ended if the validity does not change any more.
    pub(super) fn deadlines(&self, guard: &Guard) -> Deadlines {
        // The clocks first: see `Deadlines::before`.
        let mut now = Moment::now();
        if is_active(Mutant::DeadlinesOnlyGrow) {
            now.real_ns = NEVER_NS;
        }
        let end = now.after(nanos(guard.remaining()));
        Deadlines::before(end, nanos(self.term_before), nanos(self.kill_before))
    }

    /// Why the command was ended, unless for a loss that was known.
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

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
