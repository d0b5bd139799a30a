//! A call for a lock: its options, its signals, and the messages about its failure.

use std::time::Duration;

use quorlock::admin::list_nodes;
use quorlock::node::{Failure, FailureKind};
use quorlock::{
    AcquireError, Client, Guard, LockOptions, NodeAnswer, Resources, RestartGuard, Waiting,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::events::{lock_event, remedies};
use super::status::node_json;
use crate::args::{IfHeld, LockArgs, NodeArgs, WaitArg};
use crate::child::Signals;
use crate::exit_code::ExitCode;
use crate::guardian::clock::{boot_ns, real_ns};
use crate::options::{self, Refused};
use crate::output::{Output, millis, time};

pub(super) struct Caller<'a> {
    pub(super) lock: &'a LockArgs,
    pub(super) nodes: &'a NodeArgs,
    pub(super) if_held: IfHeld,
    /// The exit code if others hold the lock.
    pub(super) held: ExitCode,
    pub(super) output: Output,
    pub(super) signals: Signals,
    pub(super) client: Client,
    /// The time that the call waited for the lock, if a message has reported the wait.
    pub(super) waited: Option<Duration>,
}

impl<'a> Caller<'a> {
    /// Starts the client of a call that fails if others hold the lock. `label` describes this process to other clients.
    pub(super) fn new(
        lock: &'a LockArgs,
        nodes: &'a NodeArgs,
        output: Output,
        label: &str,
    ) -> Result<Self, Refused> {
        let (ttl, max_hold) = (lock.times.ttl(nodes), lock.times.max_hold());
        let options = LockOptions::new().ttl(ttl).max_hold(max_hold).process_owner(label);
        let builder = options::builder(nodes)?.options(options).on_warning(output.warner());
        // Signals are caught from here on, even before a task reads them.
        let signals = Signals::catch()?;
        let client = options::build(builder, nodes)?;
        let (if_held, held) = (IfHeld::Fail, ExitCode::Held);
        Ok(Self { lock, nodes, if_held, held, output, signals, client, waited: None })
    }
}

impl Caller<'_> {
    pub(super) fn options(&self) -> LockOptions {
        match self.lock.times.wait() {
            WaitArg::For(wait) => LockOptions::new().wait(wait),
            WaitArg::Forever => LockOptions::new().wait_forever(),
        }
    }

    /// The call for the lock, and the fencing token if one was asked for. If the call is dropped, the lock is released.
    pub(super) fn call(
        &self,
        options: LockOptions,
        progress: mpsc::Sender<Waiting>,
    ) -> impl Future<Output = Result<(Guard, Option<u64>), AcquireError>> + use<> {
        let keys: Vec<&str> = self.lock.keys().collect();
        let resources: Resources = match keys[..] {
            [key] => key.into(),
            _ => keys.into(),
        };
        let client = self.client.clone();
        let (is_shared, is_fenced) = (self.lock.shared, self.lock.fenced);
        async move {
            if is_fenced {
                let call = client.acquire_fenced(resources).options(options).progress(progress);
                let guard = call.await?;
                let fencing_token = guard.fencing_token();
                return Ok((guard.into(), Some(fencing_token)));
            }
            let call = match is_shared {
                true => client.acquire_shared(resources),
                false => client.acquire(resources),
            };
            Ok((call.options(options).progress(progress).await?, None))
        }
    }

    /// The exit code for a signal, such as SIGINT, that has arrived, or arrives within this time.
    pub(super) async fn interrupted(&mut self, within: Duration) -> Option<ExitCode> {
        let signal = timeout(within, self.signals.ending()).await.ok()?;
        Some(ExitCode::Signal(signal.as_raw()))
    }

    pub(super) fn refused(&mut self, error: &AcquireError) -> ExitCode {
        let needs_a_person = |node: &NodeAnswer| {
            let kind = node.failure().map(Failure::kind);
            kind.is_some_and(|kind| kind.is_for_good() || kind.is_about_rights())
        };
        let waits = |node: &NodeAnswer| {
            let kind = node.failure().map(Failure::kind);
            let waits = [FailureKind::Quarantined, FailureKind::Silent];
            kind.is_none_or(|kind| waits.contains(&kind) || kind.is_about_reach())
        };
        let hint;
        let (code, hint) = match error {
            AcquireError::Contended(_) if self.is_inside_of_its_lock() => {
                let hint = "a quorlock run around this command has taken the lock, and no lock is re-entrant";
                (self.held, hint)
            }
            AcquireError::Contended(_) => (self.held, ""),
            AcquireError::Invalid(_) => (ExitCode::Usage, ""),
            AcquireError::Closed { .. } => (ExitCode::Internal, ""),
            _ if error.is_permission_denied() => {
                (ExitCode::NotAllowed, "quorlock doctor says what is missing")
            }
            _ if error.is_exhausted() => (ExitCode::Internal, ""),
            AcquireError::NodesUntrusted(_)
                if error.retry_after().is_some() && error.nodes().iter().all(waits) =>
            {
                let hint = match error.nodes() {
                    [_] => {
                        "if this node is one of several, the list is wrong: name them all; else use a longer --wait; or \
                         stop all clients, then quorlock init --fresh"
                    }
                    _ => "use a longer --wait; or stop all clients, then quorlock init --fresh",
                };
                (ExitCode::NoQuorum, hint)
            }
            AcquireError::NodesUntrusted(_) if error.nodes().iter().any(needs_a_person) => {
                (ExitCode::NoQuorum, "quorlock doctor says more")
            }
            AcquireError::NodesUntrusted(_) | AcquireError::NoQuorum(_) => {
                let is_timed = matches!(error, AcquireError::NodesUntrusted(_))
                    && error.retry_after().is_some();
                let longer = if is_timed { "use a longer --wait; " } else { "" };
                let failures = error.nodes().iter().filter_map(NodeAnswer::failure);
                hint = format!("{longer}{}", remedies(failures));
                (ExitCode::NoQuorum, &*hint)
            }
            _ => (ExitCode::NoQuorum, ""),
        };
        let message = error.told_with(hint);
        let mut event = self.not_acquired(&message, error.is_contended(), error.nodes());
        event["untrusted"] = json!(matches!(error, AcquireError::NodesUntrusted(_)));
        event["retry_after_ms"] = json!(error.retry_after().map(millis));
        if error.is_contended() && self.if_held == IfHeld::Skip {
            self.output.event(event, None);
            return ExitCode::Success;
        }
        self.output.error(event, &message);
        code
    }

    /// Whether this process was started by `quorlock run` with one of the same keys.
    fn is_inside_of_its_lock(&self) -> bool {
        let outer = std::env::var("QUORLOCK_KEY");
        let is_inside = std::env::var_os("QUORLOCK_TOKEN").is_some();
        is_inside && outer.is_ok_and(|outer| self.lock.keys().any(|key| key == outer))
    }

    /// Gives up: this process has too few file descriptors to connect to a quorum, and none becomes free while it only
    /// waits for the lock.
    pub(super) fn exhausted(&mut self, waiting: &Waiting) -> ExitCode {
        let failed = waiting.nodes.iter().filter(|node| node.failure().is_some());
        let message =
            format!("lock \"{}\" not acquired: {}", self.lock.title(), list_nodes(failed));
        self.output.error(self.not_acquired(&message, false, &waiting.nodes), &message);
        ExitCode::Internal
    }

    pub(super) fn not_acquired(
        &self,
        message: &str,
        contended: bool,
        nodes: &[NodeAnswer],
    ) -> Value {
        json!({
            "event": "not_acquired",
            "key": self.lock.key,
            "contended": contended,
            "untrusted": false,
            "retry_after_ms": null,
            "message": message,
            "nodes": nodes.iter().map(node_json).collect::<Vec<_>>(),
        })
    }

    /// Reports the lock. With --restart-guard observe, names each node whose votes a strict client would not count.
    /// `more` are further sentences of the message.
    pub(super) fn say_acquired(&mut self, mut event: Value, more: Vec<String>) {
        let observes = self.nodes.restart_guard() == RestartGuard::Observe;
        let untrusted = if observes { self.untrusted() } else { Vec::new() };
        let nodes =
            untrusted.iter().map(|(node, why)| json!({ "node": node, "why": why.to_string() }));
        event["untrusted_nodes"] = nodes.collect();
        event["waited_ms"] = json!(self.waited.map(millis));
        let title = self.lock.title();
        let mut parts = Vec::new();
        if !untrusted.is_empty() {
            parts.push(format!(
                "\"{title}\" is held, but votes count of nodes that are not to be trusted, as --restart-guard observe \
                 demands: {}",
                self.untrusted_in_words().unwrap_or_default()
            ));
        } else if let Some(waited) = self.waited.filter(|_| self.if_held != IfHeld::Skip) {
            parts.push(format!("acquired \"{title}\" after {}", time(waited)));
        }
        parts.extend(more);
        let line = parts.join("; ");
        self.output.event(event, Some(&*line).filter(|line| !line.is_empty()));
    }

    pub(super) fn lock_event(&self, name: &str) -> Value {
        lock_event(name, self.lock.keys())
    }
}

pub(super) fn time_since(boot_ns_then: u64) -> Duration {
    Duration::from_nanos(boot_ns().saturating_sub(boot_ns_then))
}

pub(super) fn unix_ms() -> u64 {
    real_ns() / 1_000_000
}
