//! What the arguments and the file mean for a run: times, and the deadlines that follow from them.

use std::ffi::OsString;
use std::time::Duration;

use quorlock::{Guard, LossCause};

use crate::args::{GuardMode, Run, WaitArg};
use crate::child::{Deadlines, Killed, Why};
use crate::guardian::clock::{Moment, NEVER_NS};
use crate::guardian::mutants::{Mutant, is_active};
use crate::options::{self, File, Refused};

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
    pub(super) fn new(args: &Run, file: &File) -> Result<Self, Refused> {
        let times = &args.times;
        let ttl = times.ttl.or(file.ttl.map(|time| time.0));
        let ttl = ttl.unwrap_or_else(|| options::default_ttl(&args.nodes, file));
        let refuse = |message: String| {
            Err(Refused::settings(message, options::TIMES, args.nodes.config.is_some()))
        };
        if ttl < TTL_MIN {
            // None was given: it is no longer than the longest.
            let is_given = times.ttl.is_some() || file.ttl.is_some();
            let name = if is_given { "ttl" } else { "max-ttl" };
            return refuse(format!(
                "{name} ({ttl:?}) must be at least {TTL_MIN:?}, so that there is time to stop a command"
            ));
        }
        let term_before = times.kill_after.unwrap_or(ttl / 5);
        if term_before >= ttl / 3 {
            return refuse(format!(
                "kill-after ({term_before:?}) must be less than a third of ttl ({ttl:?})"
            ));
        }
        let kill_before = (ttl / 20).max(Duration::from_millis(50));
        if term_before < kill_before {
            return refuse(format!(
                "kill-after ({term_before:?}) must be at least {kill_before:?}, when SIGKILL follows"
            ));
        }
        let max_hold = times
            .max_hold
            .or(file.max_hold.map(|time| time.0))
            .unwrap_or(Duration::from_secs(24 * 3600));
        if let Some(min_hold) = times.min_hold
            && min_hold > max_hold
        {
            return refuse(format!(
                "min-hold ({min_hold:?}) must not be above max-hold ({max_hold:?})"
            ));
        }
        let wait = times.wait.or(file.wait.map(|wait| wait.0));
        let program = args.cmd.first().map(OsString::as_os_str).unwrap_or_default();
        let name = std::path::Path::new(program).file_name().unwrap_or(program);
        let label = args.label.clone().unwrap_or_else(|| name.to_string_lossy().into_owned());
        Ok(Self {
            ttl,
            wait: wait.unwrap_or(WaitArg::For(Duration::from_secs(60))),
            max_hold,
            term_before,
            kill_before,
            label,
            observes: options::guard(&args.nodes, file) == Some(GuardMode::Observe),
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
