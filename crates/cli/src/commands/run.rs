//! `quorlock run KEY -- CMD`: take the lock, run the command while holding it, give it back.
//!
//! This process is the *keeper*: it holds the lock, through a driver on a thread of its own. The
//! command belongs to the *guardian* (see [`crate::child`]), which ends it in time whatever
//! happens to the keeper; all the keeper does is to tell it each new deadline, and to give the lock
//! back when nothing of the command is left.

mod health;
mod hold;
mod lease;
mod loss;
mod plan;

use std::time::Duration;

use quorlock::admin::exhausted;
use quorlock::{AcquireError, Client, Guard, NodeTrustState, Waiting};
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use self::plan::RunPlan;
use super::status::node_json;
use crate::args::{IfHeld, Run, WaitArg};
use crate::child::{self, Signals};
use crate::exit_code::ExitCode;
use crate::guardian::clock::{boot_ns, real_ns};
use crate::guardian::mutants::{Mutant, is_active};
use crate::options::{self, Refused};
use crate::output::{Output, millis, time};

pub(crate) fn main(args: &Run) -> Result<ExitCode, Refused> {
    options::check_keys(args.keys(), &args.nodes)?;
    if args.shared && args.fenced {
        let message = "these do not go together: a reader has no fencing token";
        return Err(Refused::about(&["shared", "fenced"], message, &args.nodes));
    }
    let plan = RunPlan::new(args)?;
    child::check_machine()?;
    let output = Output::new(args.output, args.status_fd).map_err(|error| match args.status_fd {
        Some(fd) if exhausted(&error).is_none() => {
            let message = format!(
                "cannot write to file descriptor {fd} ({error}); open it when you start quorlock, as in \
                 {fd}>status.json"
            );
            Refused::about(&["status-fd"], message, &args.nodes)
        }
        _ => error.into(),
    })?;
    let builder = options::builder(&args.nodes)?
        .ttl(plan.ttl)
        .max_hold(plan.max_hold)
        .owner(quorlock::this_process(&plan.label));
    // From here on a signal is heard, also if it comes before anybody listens.
    let signals = Signals::catch()?;
    let client = options::build(builder, &args.nodes)?;
    let runtime = super::runtime()?;
    let keeper = Keeper { args, plan, output, signals, client, is_left: false };
    Ok(runtime.block_on(keeper.run()))
}

struct Keeper<'a> {
    args: &'a Run,
    plan: RunPlan,
    output: Output,
    signals: Signals,
    client: Client,
    /// The keys are to expire by themselves.
    is_left: bool,
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
        if !self.is_left {
            let _ = self.client.shutdown(self.plan.give_back).await;
        }
        code
    }

    async fn acquire(&mut self) -> Waited {
        let (progress, mut waiting) = watch::channel(None);
        let keys: Vec<&str> = self.args.keys().collect();
        let call = match keys[..] {
            [key] => self.client.acquire(key),
            _ => self.client.acquire(keys),
        };
        let call = call.progress(progress);
        let call = if self.args.shared { call.shared() } else { call };
        let call = if self.args.fenced { call.fenced() } else { call };
        let releases_on_loss =
            is_active(Mutant::DeadlinesOnlyGrow) || is_active(Mutant::TerminateUnlessExpired);
        let call = if releases_on_loss { call } else { call.keep_on_loss() };
        let call = match self.plan.wait {
            WaitArg::For(wait) => call.wait(wait),
            WaitArg::Forever => call.wait_forever(),
        };
        let mut call = std::pin::pin!(call.into_future());
        let (mut said, since) = (false, boot_ns());
        // The first line comes with the first attempt that failed; then it counts down.
        let mut ticks = interval(Duration::from_millis(500));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                result = &mut call => {
                    // An attempt failed, and the next one ended the wait before that was told.
                    if !said {
                        self.say_waiting(&waiting, time_since(since), true);
                    }
                    self.output.clear();
                    return result.map_or_else(Waited::Refused, Waited::Acquired);
                }
                signal = self.signals.next() => {
                    if let Some(signal) = ends_the_wait(signal) {
                        return Waited::Interrupted(signal);
                    }
                }
                Ok(()) = waiting.changed(), if !said => {
                    self.say_waiting(&waiting, time_since(since), true);
                    (said, _) = (true, ticks.reset());
                }
                _ = ticks.tick(), if said => {
                    self.say_waiting(&waiting, time_since(since), false);
                }
            }
        }
    }

    /// The story is of the last attempt; how long this has lasted is as of now.
    fn say_waiting(
        &mut self,
        told: &watch::Receiver<Option<Waiting>>,
        waited: Duration,
        first: bool,
    ) {
        let Some(waiting) = told.borrow().clone() else { return };
        let nodes: Vec<_> = waiting.nodes.iter().map(node_json).collect();
        let event = json!({
            "event": "waiting",
            "key": self.args.key,
            "attempts": waiting.attempts,
            "contended": waiting.contended,
            "untrusted": waiting.untrusted,
            "nodes": nodes,
        });
        let why = match waiting.holder() {
            Some(holder) if waiting.contended => holder.describe(),
            _ if waiting.contended => "others hold it or want it".to_owned(),
            _ if waiting.untrusted => self.who_is_not_trusted(),
            _ => {
                let failed = waiting.nodes.iter().filter(|node| node.failure().is_some());
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
        let key = self.args.title();
        let line = format!("waiting {patience} for \"{key}\": {why}");
        self.output.progress(event, &line, first);
    }

    /// Nodes that are known not to be trusted, and why.
    fn untrusted(&self) -> Vec<(String, NodeTrustState)> {
        let nodes = self.client.stats().nodes.into_iter();
        let untrusted = nodes.filter(|node| {
            matches!(
                node.trust_state,
                NodeTrustState::Quarantined { .. } | NodeTrustState::Refused(_)
            )
        });
        untrusted.map(|node| (node.name.to_string(), node.trust_state)).collect()
    }

    /// As of now: the story is of the last attempt, and this counts down. The time comes first, for the
    /// line may be cut at its end.
    fn who_is_not_trusted(&self) -> String {
        let mut groups: Vec<((String, String), Vec<String>)> = Vec::new();
        for (name, trust_state) in self.untrusted() {
            let told = match &trust_state {
                NodeTrustState::Quarantined { remaining, why } => {
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
        let hint = match error {
            AcquireError::NodesUntrusted(_) if error.retry_after().is_some() => {
                "use a longer --wait; or, if no lock is in use: quorlock init --fresh"
            }
            AcquireError::NodesUntrusted(_) => "quorlock doctor says more",
            _ if error.is_permission_denied() => "quorlock doctor says what is missing",
            _ => "",
        };
        let message = error.told_with(hint);
        let nodes: Vec<_> = error.nodes().iter().map(node_json).collect();
        let event = json!({
            "event": "not_acquired",
            "key": self.args.key,
            "contended": error.is_contended(),
            "untrusted": matches!(error, AcquireError::NodesUntrusted(_)),
            "retry_after_ms": error.retry_after().map(millis),
            "message": message,
            "nodes": nodes,
        });
        if error.is_contended() && self.args.if_held == IfHeld::Skip {
            self.output.event(event, None);
            return ExitCode::Success;
        }
        self.output.error(event, &message);
        match error {
            AcquireError::Contended(_) => {
                self.args.held_exit_code.map_or(ExitCode::Held, ExitCode::Own)
            }
            AcquireError::Invalid(_) => ExitCode::Usage,
            AcquireError::Closed { .. } => ExitCode::Internal,
            _ if error.is_permission_denied() => ExitCode::NotAllowed,
            _ if error.is_exhausted() => ExitCode::Internal,
            _ => ExitCode::NoQuorum,
        }
    }
}

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

fn time_since(boot_ns_then: u64) -> Duration {
    Duration::from_nanos(boot_ns().saturating_sub(boot_ns_then))
}

fn unix_ms() -> u64 {
    real_ns() / 1_000_000
}
