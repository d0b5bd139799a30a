//! `quorlock run KEY -- CMD`: takes the lock, runs the command while holding it, and gives the lock back.
//!
//! This process is the *keeper*: it holds the lock through a driver on its own thread. A second process, the *guardian*
//! (see [`crate::child`]), runs the command, and ends it in time whatever happens to the keeper. The keeper sends each
//! new deadline to the guardian, and gives the lock back when no process of the command is left.

mod health;
mod hold;
mod lease;
mod loss;
mod plan;
mod wait;

use std::time::Duration;

use quorlock::admin::{exhausted, list_nodes};
use quorlock::node::Failure;
use quorlock::{AcquireError, Client, LockOptions, NodeAnswer, Waiting};
use rustix::process::Signal;
use serde_json::{Value, json};

use self::plan::RunPlan;
use self::wait::Waited;
use super::status::node_json;
use crate::args::{IfHeld, OutputArgs, Run};
use crate::child::{self, Signals};
use crate::exit_code::ExitCode;
use crate::guardian::clock::{boot_ns, real_ns};
use crate::options::{self, Refused};
use crate::output::{Output, millis};

pub(crate) fn main(args: &Run, format: OutputArgs) -> Result<ExitCode, Refused> {
    options::check_keys(args.keys(), &args.nodes)?;
    if args.cmd.first().is_none_or(|program| program.is_empty()) {
        return Err(Refused::usage("CMD is empty: the first word after KEY names the command"));
    }
    if args.shared && args.fenced {
        let message = "these do not go together: a reader has no fencing token";
        return Err(Refused::about(&["shared", "fenced"], message, &args.nodes));
    }
    let plan = RunPlan::new(args)?;
    child::check_machine()?;
    let output = Output::new(format, args.status_fd).map_err(|error| match args.status_fd {
        Some(fd) if exhausted(&error).is_none() => {
            let message = format!(
                "cannot write to file descriptor {fd} ({error}); open it when you start quorlock, as in \
                 {fd}>status.json"
            );
            Refused::about(&["status-fd"], message, &args.nodes)
        }
        _ => error.into(),
    })?;
    let builder = options::builder(&args.nodes)?.options(
        LockOptions::new().ttl(plan.ttl).max_hold(plan.max_hold).process_owner(&plan.label),
    );
    // Signals are caught from here on, even before a task reads them.
    let signals = Signals::catch()?;
    let client = options::build(builder, &args.nodes)?;
    let runtime = super::runtime()?;
    let keeper = Keeper { args, plan, output, signals, client, is_left: false, waited: None };
    Ok(runtime.block_on(keeper.run()))
}

struct Keeper<'a> {
    args: &'a Run,
    plan: RunPlan,
    output: Output,
    signals: Signals,
    client: Client,
    /// The keys are left to expire, and not released.
    is_left: bool,
    /// The time that the call waited for the lock, if a message has reported the wait.
    waited: Option<Duration>,
}

impl Keeper<'_> {
    async fn run(mut self) -> ExitCode {
        let code = match self.acquire().await {
            Waited::Acquired(lease) => self.hold(lease).await,
            Waited::Refused(error) => self.refused(&error),
            Waited::Exhausted(waiting) => self.exhausted(&waiting),
            Waited::HeldBy(holders) => self.await_end(&holders).await,
            Waited::Interrupted(signal) => {
                self.output.clear();
                ExitCode::Signal(signal.as_raw())
            }
        };
        // A node that answers confirms a release within a round trip. The wait for other nodes ends after one node
        // timeout, because their keys expire anyway.
        if !self.is_left {
            let _ = self.client.shutdown(self.plan.give_back).await;
        }
        code
    }

    fn refused(&mut self, error: &AcquireError) -> ExitCode {
        let needs_a_person = |node: &NodeAnswer| {
            let kind = node.failure().map(Failure::kind);
            kind.is_some_and(|kind| kind.is_for_good() || kind.is_about_rights())
        };
        let hint = match error {
            AcquireError::NodesUntrusted(_)
                if error.retry_after().is_some() && !error.nodes().iter().any(needs_a_person) =>
            {
                "use a longer --wait; or, if no lock is in use: quorlock init --fresh"
            }
            AcquireError::NodesUntrusted(_) => "quorlock doctor says more",
            _ if error.is_permission_denied() => "quorlock doctor says what is missing",
            _ if error.is_exhausted() => "",
            AcquireError::NoQuorum(_) => {
                "start the nodes that failed, or fix the way to them; quorlock doctor says more of each"
            }
            _ => "",
        };
        let message = error.told_with(hint);
        let mut event = self.not_acquired(&message, error.is_contended(), error.nodes());
        event["untrusted"] = json!(matches!(error, AcquireError::NodesUntrusted(_)));
        event["retry_after_ms"] = json!(error.retry_after().map(millis));
        if error.is_contended() && self.args.if_held == IfHeld::Skip {
            self.output.event(event, None);
            return ExitCode::Success;
        }
        self.output.error(event, &message);
        match error {
            AcquireError::Contended(_) => self.held(),
            AcquireError::Invalid(_) => ExitCode::Usage,
            AcquireError::Closed { .. } => ExitCode::Internal,
            _ if error.is_permission_denied() => ExitCode::NotAllowed,
            _ if error.is_exhausted() => ExitCode::Internal,
            _ => ExitCode::NoQuorum,
        }
    }

    /// Gives up: this process lacks descriptors, and none becomes free while it only waits for the lock.
    fn exhausted(&mut self, waiting: &Waiting) -> ExitCode {
        let failed = waiting.nodes.iter().filter(|node| node.failure().is_some());
        let message =
            format!("lock \"{}\" not acquired: {}", self.args.title(), list_nodes(failed));
        self.output.error(self.not_acquired(&message, false, &waiting.nodes), &message);
        ExitCode::Internal
    }

    fn not_acquired(&self, message: &str, contended: bool, nodes: &[NodeAnswer]) -> Value {
        json!({
            "event": "not_acquired",
            "key": self.args.key,
            "contended": contended,
            "untrusted": false,
            "retry_after_ms": null,
            "message": message,
            "nodes": nodes.iter().map(node_json).collect::<Vec<_>>(),
        })
    }

    fn held(&self) -> ExitCode {
        self.args.held_exit_code.map_or(ExitCode::Held, ExitCode::Own)
    }
}

/// Returns the signal if it ends a wait. SIGTSTP stops quorlock itself instead.
pub(super) fn ends_the_wait(signal: Signal) -> Option<Signal> {
    match signal {
        Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM | Signal::USR1 | Signal::USR2 => {
            Some(signal)
        }
        Signal::TSTP => {
            // Quorlock catches this signal to pass it on to the command. While no command runs, quorlock stops itself.
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
