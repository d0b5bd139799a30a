//! `quorlock run KEY -- CMD`: take the lock, run the command while holding it, give it back.
//!
//! This process is the *keeper*: it holds the lock, through a driver on a thread of its own. The
//! command belongs to the *guardian* (see [`crate::child`]), which ends it in time whatever
//! happens to the keeper; all the keeper does is to tell it each new deadline.

use std::ffi::OsString;
use std::time::Duration;

use quorlock::{AcquireError, Client, Guard, LossCause, NodeStanding, Outcome, Waiting};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::status::node_json;
use crate::args::{GuardMode, IfHeld, Run, WaitArg};
use crate::child::{Child, ChildEvent, Deadlines, Signals, SpawnError};
use crate::exit_code::ExitCode;
use crate::options::{self, File, Refused};
use crate::output::{Output, millis, time};

/// A command needs time to be stopped in; a lock shorter than this leaves none.
const TTL_MIN: Duration = Duration::from_millis(500);

pub(crate) fn main(args: &Run) -> Result<ExitCode, Refused> {
    options::check_key(&args.key)?;
    let file = File::read(&args.nodes)?;
    let plan = Plan::new(args, &file)?;
    let output = Output::new(args.output, args.status_fd).map_err(|error| {
        let fd = args.status_fd.unwrap_or_default();
        Refused::usage(format!("--status-fd {fd}: {error}; open it for writing, as in {fd}>file"))
    })?;
    let internal =
        |error: std::io::Error| Refused { message: error.to_string(), code: ExitCode::Internal };
    let builder = options::builder(&args.nodes, &file)?
        .ttl(plan.ttl)
        .max_hold(plan.max_hold)
        .owner(quorlock::this_process(&plan.label));
    // From here on a signal is heard, also if it comes before anybody listens.
    let signals = Signals::catch().map_err(internal)?;
    let client = options::build(builder, &args.nodes)?;
    let runtime = super::runtime().map_err(internal)?;
    let code = runtime.block_on(Keeper { args, plan, output, signals, client }.run());
    Ok(code)
}

/// What the arguments and the file mean for this run.
struct Plan {
    ttl: Duration,
    wait: WaitArg,
    max_hold: Duration,
    /// SIGTERM so long before the end.
    term_before: Duration,
    /// SIGKILL so long before the end.
    kill_before: Duration,
    label: String,
    /// Votes count of nodes that are not to be trusted.
    observes: bool,
    /// How long the end waits for nodes that owe an answer to a release.
    give_back: Duration,
}

impl Plan {
    fn new(args: &Run, file: &File) -> Result<Self, Refused> {
        let ttl = args.ttl.or(file.ttl.map(|time| time.0));
        let ttl = ttl.unwrap_or_else(|| options::default_ttl(&args.nodes, file));
        let refuse = |message: String| {
            Err(Refused::settings(message, options::TIMES, args.nodes.config.is_some()))
        };
        if ttl < TTL_MIN {
            // None was given: it is no longer than the longest.
            let is_given = args.ttl.is_some() || file.ttl.is_some();
            let name = if is_given { "ttl" } else { "max-ttl" };
            return refuse(format!(
                "{name} ({ttl:?}) must be at least {TTL_MIN:?}, so that there is time to stop a command"
            ));
        }
        let term_before = args.kill_after.unwrap_or(ttl / 5);
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
        let max_hold = args
            .max_hold
            .or(file.max_hold.map(|time| time.0))
            .unwrap_or(Duration::from_secs(24 * 3600));
        if let Some(min_hold) = args.min_hold
            && min_hold > max_hold
        {
            return refuse(format!(
                "min-hold ({min_hold:?}) must not be above max-hold ({max_hold:?})"
            ));
        }
        let wait = args.wait.or(file.wait.map(|wait| wait.0));
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

    /// The moments at which the command is ended if the lock is not extended any more.
    fn deadlines(&self, guard: &Guard) -> Deadlines {
        let end = boot_ns().saturating_add(nanos(guard.remaining()));
        Deadlines {
            term_at_boot_ns: end.saturating_sub(nanos(self.term_before)),
            kill_at_boot_ns: end.saturating_sub(nanos(self.kill_before)),
        }
    }
}

impl Plan {
    /// Why a lock held since then was not extended: no further than `--max-hold` is it ever.
    fn why_ended(&self, since: u64) -> LossCause {
        let held = time_since(since);
        if held + self.ttl > self.max_hold { LossCause::HoldLimit } else { LossCause::Expired }
    }
}

struct Keeper<'a> {
    args: &'a Run,
    plan: Plan,
    output: Output,
    signals: Signals,
    client: Client,
}

/// How the wait for the lock ended.
enum Waited {
    Acquired(Guard),
    Refused(AcquireError),
    Interrupted(Signal),
}

impl Keeper<'_> {
    async fn run(mut self) -> ExitCode {
        let code = match self.acquire().await {
            Waited::Acquired(guard) => self.hold(guard).await,
            Waited::Refused(error) => self.refused(&error),
            Waited::Interrupted(signal) => {
                self.output.clear();
                ExitCode::Signal(signal.as_raw())
            }
        };
        // What is owed to nodes that answer takes a round trip; to the others it is worth no more
        // than one node timeout of a person's time, since the keys expire.
        let _ = self.client.shutdown(self.plan.give_back).await;
        code
    }

    async fn acquire(&mut self) -> Waited {
        let (progress, mut waiting) = watch::channel(None);
        let call = self.client.acquire(&self.args.key).progress(progress);
        let call = if self.args.fenced { call.fenced() } else { call };
        let call = match self.plan.wait {
            WaitArg::For(wait) => call.wait(wait),
            WaitArg::Forever => call.wait_forever(),
        };
        let mut call = std::pin::pin!(call.into_future());
        let (mut said, since) = (false, boot_ns());
        let mut ticks = interval(Duration::from_millis(500));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                result = &mut call => {
                    self.output.clear();
                    return result.map_or_else(Waited::Refused, Waited::Acquired);
                }
                signal = self.signals.next() => {
                    if let Some(signal) = ends_the_wait(signal) {
                        return Waited::Interrupted(signal);
                    }
                }
                _ = ticks.tick() => {
                    let story = waiting.borrow_and_update().clone();
                    if let Some(story) = story {
                        self.say_waiting(&story, time_since(since), !said);
                        said = true;
                    }
                }
            }
        }
    }

    /// The story is of the last attempt; how long this has lasted is as of now.
    fn say_waiting(&mut self, story: &Waiting, waited: Duration, first: bool) {
        let nodes: Vec<_> = story.nodes.iter().map(node_json).collect();
        let event = json!({
            "event": "waiting",
            "key": self.args.key,
            "attempts": story.attempts,
            "contended": story.contended,
            "untrusted": story.untrusted,
            "nodes": nodes,
        });
        let why = match story.holder() {
            Some(holder) if story.contended => format!("held by {holder}"),
            _ if story.contended => "others want it too".to_owned(),
            _ if story.untrusted => self.who_is_not_trusted(),
            _ => {
                let failed = story.nodes.iter().filter(|node| node.failure().is_some());
                let failed: Vec<String> = failed.map(ToString::to_string).collect();
                format!("no quorum: {}", failed.join(", "))
            }
        };
        let patience = match self.plan.wait {
            WaitArg::Forever => "for ever".to_owned(),
            WaitArg::For(wait) => {
                format!("for {} more", time(wait.saturating_sub(waited)))
            }
        };
        let key = self.args.key.escape_debug();
        let line = format!("waiting {patience} for \"{key}\": {why}");
        self.output.progress(event, &line, first);
    }

    /// Nodes that are known not to be trusted, and why.
    fn untrusted(&self) -> Vec<(String, NodeStanding)> {
        let nodes = self.client.stats().nodes.into_iter();
        let untrusted = nodes.filter(|node| {
            matches!(node.standing, NodeStanding::Quarantined { .. } | NodeStanding::Refused(_))
        });
        untrusted.map(|node| (node.name.to_string(), node.standing)).collect()
    }

    /// As of now: the story is of the last attempt, and this counts down. The time comes first, for the
    /// line may be cut at its end.
    fn who_is_not_trusted(&self) -> String {
        let mut groups: Vec<((String, String), Vec<String>)> = Vec::new();
        for (name, standing) in self.untrusted() {
            let told = match &standing {
                NodeStanding::Quarantined { remaining, why } => {
                    let seconds = remaining.as_millis().div_ceil(1000);
                    (format!("votes count in {seconds} s: "), format!(" (quarantined: {why})"))
                }
                other => (String::new(), format!(": {other}")),
            };
            match groups.iter_mut().find(|(other, _)| *other == told) {
                Some((_, names)) => names.push(name),
                None => groups.push((told, vec![name])),
            }
        }
        let told = groups.iter().map(|((before, behind), names)| match &names[..] {
            [name] => format!("{before}node {name}{behind}"),
            names => format!("{before}nodes {}{behind}", names.join(", ")),
        });
        let told: Vec<String> = told.collect();
        if told.is_empty() { "nodes are being looked at".to_owned() } else { told.join("; ") }
    }

    fn refused(&mut self, error: &AcquireError) -> ExitCode {
        let nodes: Vec<_> = error.nodes().iter().map(node_json).collect();
        let event = json!({
            "event": "not_acquired",
            "key": self.args.key,
            "contended": error.is_contended(),
            "untrusted": matches!(error, AcquireError::Unsafe(_)),
            "retry_after_ms": error.retry_after().map(millis),
            "message": error.to_string(),
            "nodes": nodes,
        });
        if error.is_contended() && self.args.if_held == IfHeld::Skip {
            self.output.event(event, None);
            return ExitCode::Success;
        }
        let hint = match error {
            AcquireError::Unsafe(_) if error.retry_after().is_some() => {
                "; give it a longer --wait; or, if no lock is in use: quorlock init --fresh"
            }
            AcquireError::Unsafe(_) => "; quorlock doctor says more",
            _ => "",
        };
        self.output.error(event, &format!("{error}{hint}"));
        match error {
            AcquireError::Contended(_) => {
                self.args.held_exit_code.map_or(ExitCode::Held, ExitCode::Own)
            }
            AcquireError::Invalid(_) => ExitCode::Usage,
            AcquireError::Closed { .. } => ExitCode::Internal,
            _ if error.lacks_rights() => ExitCode::NotAllowed,
            _ => ExitCode::NoQuorum,
        }
    }

    /// The lock is held: runs the command, and gives the lock back.
    async fn hold(&mut self, guard: Guard) -> ExitCode {
        let since = boot_ns();
        let remaining = guard.remaining();
        self.say_acquired(&guard);
        let env = self.environment(&guard, remaining);
        let remove = self.environment_to_remove();
        let child = Child::spawn(&self.args.cmd, &env, &remove, self.plan.deadlines(&guard));
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                let code = self.not_started(&error);
                self.give_back(guard).await;
                return code;
            }
        };
        let ended = self.watch_over(child, &guard).await;
        let lost = guard.loss();
        match ended {
            // The guardian acts before the end, so the cause may not be known yet.
            ended if lost.is_some() || matches!(ended, ChildEvent::Killed { .. }) => {
                self.say_lost(lost.unwrap_or_else(|| self.plan.why_ended(since)));
                return ExitCode::Lost;
            }
            ChildEvent::Unguarded { .. } => {
                let message = "the guardian process was killed, so the command was, too";
                let event = json!({ "event": "unguarded", "key": self.args.key });
                self.output.error(event, message);
                self.give_back(guard).await;
                return ExitCode::Internal;
            }
            _ => {}
        }
        let code = match ended {
            ChildEvent::Signaled { signal } => ExitCode::Signal(signal),
            ChildEvent::Exited { code } => ExitCode::Own(u8::try_from(code).unwrap_or(u8::MAX)),
            _ => ExitCode::Internal,
        };
        if let Some(rest) = self.rest_of_min_hold(since) {
            return self.leave(guard, rest, code).await;
        }
        match self.give_back(guard).await {
            Outcome::Expired | Outcome::TakenByOther => {
                self.say_lost(LossCause::KeyGone);
                ExitCode::Lost
            }
            _ => code,
        }
    }

    /// Whoever lets votes count that strict clients would not is told of each such node.
    fn say_acquired(&mut self, guard: &Guard) {
        let mut event = self.validity_event("acquired", guard);
        let doubtful = if self.plan.observes { self.untrusted() } else { Vec::new() };
        let nodes =
            doubtful.iter().map(|(node, why)| json!({ "node": node, "why": why.to_string() }));
        event["untrusted_nodes"] = nodes.collect();
        let line = format!(
            "\"{}\" is held, but votes count of nodes that are not to be trusted, as --restart-guard \
             observe demands: {}",
            self.args.key.escape_debug(),
            self.who_is_not_trusted()
        );
        self.output.event(event, (!doubtful.is_empty()).then_some(&*line));
    }

    /// Tells the guardian each new deadline, and the command each signal, until the command ends.
    async fn watch_over(&mut self, mut child: Child, guard: &Guard) -> ChildEvent {
        let mut told = self.plan.deadlines(guard);
        let mut lost = false;
        // Changes are announced; looking in between as well costs nothing and forgives a missed one.
        let mut ticks = interval(self.plan.ttl / 10);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                event = child.next_event() => match event {
                    ChildEvent::Stopped { signal } => {
                        self.output.clear();
                        child.suspend(signal);
                    }
                    ChildEvent::Continued => {}
                    ended => return ended,
                },
                cause = guard.lost(), if !lost => {
                    lost = true;
                    // By proof others may hold the lock already; else the guardian's own deadlines
                    // have come before this.
                    if cause != LossCause::Expired {
                        let soon = boot_ns().saturating_add(nanos(self.plan.kill_before));
                        child.terminate(soon.min(told.kill_at_boot_ns));
                    }
                }
                signal = self.signals.next() => child.signal(signal),
                () = guard.changed(), if !lost => {}
                _ = ticks.tick(), if !lost => {}
            }
            let now = self.plan.deadlines(guard);
            if !lost && guard.is_valid() && now.kill_at_boot_ns > told.kill_at_boot_ns + JITTER_NS {
                told = now;
                child.set_deadlines(now);
                self.output.event(self.validity_event("extended", guard), None);
            }
        }
    }

    fn environment(&self, guard: &Guard, remaining: Duration) -> Vec<(OsString, OsString)> {
        let until = unix_ms().saturating_add(millis(remaining));
        let mut environment: Vec<(OsString, OsString)> = vec![
            ("QUORLOCK_KEY".into(), self.args.key.clone().into()),
            ("QUORLOCK_TOKEN".into(), guard.token().to_string().into()),
            ("QUORLOCK_VALID_UNTIL_MS".into(), until.to_string().into()),
        ];
        if self.args.fenced {
            environment.push(("QUORLOCK_FENCE".into(), guard.fence().to_string().into()));
        }
        environment
    }

    fn environment_to_remove(&self) -> Vec<OsString> {
        // That of another lock, around this one, says nothing about this one.
        let mut removed: Vec<OsString> =
            if self.args.fenced { Vec::new() } else { vec!["QUORLOCK_FENCE".into()] };
        if !self.args.pass_nodes {
            removed.extend(["QUORLOCK_NODES".into(), "QUORLOCK_PASSWORD".into()]);
        }
        removed
    }

    fn not_started(&mut self, error: &SpawnError) -> ExitCode {
        let event = json!({
            "event": "not_started",
            "key": self.args.key,
            "message": error.to_string(),
        });
        self.output.error(event, &error.to_string());
        match error {
            SpawnError::NotFound { .. } => ExitCode::NotFound,
            SpawnError::CannotRun { .. } => ExitCode::CannotRun,
            SpawnError::TooLate => ExitCode::Lost,
            SpawnError::Guardian(_) => ExitCode::Internal,
        }
    }

    async fn give_back(&mut self, guard: Guard) -> Outcome {
        let released = guard.release().await;
        let outcome = match released.outcome {
            Outcome::Released => "released",
            Outcome::Expired => "expired",
            Outcome::TakenByOther => "taken_by_other",
            _ => "unknown",
        };
        let event = json!({ "event": "released", "key": self.args.key, "outcome": outcome });
        let warning = (released.outcome == Outcome::Unknown).then(|| {
            let key = self.args.key.escape_debug();
            format!(
                "too few nodes confirmed that \"{key}\" is free; it is within {}",
                time(self.plan.ttl)
            )
        });
        self.output.event(event, warning.as_deref());
        released.outcome
    }

    fn say_lost(&mut self, cause: LossCause) {
        let why = match cause {
            LossCause::KeyGone => "its key is gone from a majority of the nodes",
            LossCause::KeyOverwritten => {
                "another has its key on a majority of the nodes, or it is gone"
            }
            LossCause::ClockJumped => {
                "the wall clock moved ahead: it was set, or the machine was paused"
            }
            LossCause::HoldLimit => "it was held for as long as --max-hold allows",
            _ => {
                "too few nodes confirmed an extension in time, or are not to be trusted any more \
                 (quorlock doctor tells), or quorlock itself was stopped"
            }
        };
        let key = self.args.key.escape_debug();
        let line = format!("lost the lock \"{key}\" while the command ran: {why}");
        let event = json!({ "event": "lost", "key": self.args.key, "message": why });
        self.output.error(event, &line);
    }

    /// What `--min-hold` still demands.
    fn rest_of_min_hold(&self, since: u64) -> Option<Duration> {
        let held = time_since(since);
        self.args.min_hold.and_then(|min| min.checked_sub(held)).filter(|rest| !rest.is_zero())
    }

    /// Holds on for the rest of `--min-hold`, then leaves the key to expire: a machine whose clock
    /// is late must still find it. A signal ends the holding on, and leaves the key as well.
    async fn leave(&mut self, guard: Guard, rest: Duration, code: ExitCode) -> ExitCode {
        let key = self.args.key.escape_debug();
        let line = format!("the command is done; \"{key}\" stays held for {} more", time(rest));
        let event = json!({ "event": "left", "key": self.args.key, "rest_ms": millis(rest) });
        self.output.event(event, Some(&line));
        let until = boot_ns().saturating_add(nanos(rest));
        loop {
            let rest = Duration::from_nanos(until.saturating_sub(boot_ns()));
            if !guard.is_valid() || guard.remaining() >= rest {
                break;
            }
            let pause = (rest - guard.remaining()).min(self.plan.ttl / 3);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                signal = self.signals.next() => {
                    if ends_the_wait(signal).is_some() {
                        break;
                    }
                }
            }
        }
        // Neither released nor dropped, which would release it; and the client is not shut down,
        // which would, too. The process ends here.
        std::mem::forget(guard);
        std::process::exit(code.number().into());
    }

    fn validity_event(&self, name: &str, guard: &Guard) -> serde_json::Value {
        let remaining = guard.remaining();
        json!({
            "event": name,
            "key": self.args.key,
            "votes": guard.votes(),
            "fence": self.args.fenced.then(|| guard.fence()),
            "valid_for_ms": millis(remaining),
            "valid_until_unix_ms": unix_ms().saturating_add(millis(remaining)),
        })
    }
}

/// Deadlines that differ by less than this are the same, read twice.
const JITTER_NS: u64 = 1_000_000;

/// Which signals end a wait at once. The others stop and continue quorlock itself.
pub(super) fn ends_the_wait(signal: Signal) -> Option<Signal> {
    match signal {
        Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM | Signal::USR1 | Signal::USR2 => {
            Some(signal)
        }
        Signal::TSTP => {
            // Caught for the command's sake; there is none yet, so it means quorlock itself.
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
            None
        }
        _ => None,
    }
}

fn boot_ns() -> u64 {
    crate::guardian::clock::boot_ns()
}

fn time_since(boot_ns_then: u64) -> Duration {
    Duration::from_nanos(boot_ns().saturating_sub(boot_ns_then))
}

fn unix_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or(0)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
