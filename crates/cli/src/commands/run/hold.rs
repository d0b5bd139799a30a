//! Runs the command while the lock is held, sends each change of the validity to the guardian, and releases the lock
//! when no process of the command is left.

use std::ffi::OsString;
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::admin::{AdminConnection, Reply, Topology, names};
use quorlock::node::Failure;
use quorlock::settings::{Class, variables};
use quorlock::{Health, LossCause, NodeReleased, Outcome, Released, RestartGuard};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::super::caller::{time_since, unix_ms};
use super::super::events::{add_validity, outcome_name, release_unconfirmed};
use super::super::status::node_json;
use super::Keeper;
use super::health::Announced;
use super::lease::Lease;
use super::loss::{Loss, Pulse};
use crate::args::NodeArgs;
use crate::child::{Child, ChildEvent, Deadlines, Gone, How, KilledBy, SpawnError, ends_a_wait};
use crate::exit_code::ExitCode;
use crate::guardian::clock::{Moment, boot_ns};
use crate::options;
use crate::output::{millis, nanos, time};

enum Watched {
    /// No process of the command is left.
    Over { how: How, gone: Gone },
    /// Some processes of the command may be left.
    Left,
}

/// The last message for the guardian (deadlines or a loss), and whether the socket has taken it.
pub(super) struct Sent {
    pub(super) deadlines: Deadlines,
    /// Time of SIGKILL if the lock is lost; `None` while it is held.
    loss: Option<Moment>,
    is_sent: bool,
    /// When an extension is reported, by the boot clock: by then the other nodes have confirmed it, or are late. `None` if
    /// the last extension was reported.
    report_at_ns: Option<u64>,
}

impl Keeper<'_> {
    /// Runs the command, and releases the lock if no process of the command is left.
    pub(super) async fn hold(&mut self, lease: Lease) -> ExitCode {
        let since = boot_ns();
        let remaining = lease.remaining();
        let event = self.validity_event("acquired", &lease);
        self.caller.say_acquired(event, Vec::new());
        let env = self.environment(&lease, remaining);
        let remove = self.environment_to_remove();
        let deadlines = self.plan.deadlines(&lease);
        let mut sent = Sent { deadlines, loss: None, is_sent: true, report_at_ns: None };
        let mut announced = Announced::new(&lease);
        // A node that was down before is reported once, like one that fails later.
        self.say_health(&lease.health(), &mut announced, &sent);
        let mut pulse = Pulse::new(boot_ns(), &self.plan);
        let watched = match Child::spawn(&self.args.cmd, &env, &remove, sent.deadlines) {
            Ok(child) => {
                let watched =
                    self.watch_over(child, &lease, &mut sent, &mut announced, &mut pulse).await;
                self.say_extended(&lease, &mut sent, u64::MAX);
                self.say_back(&lease.health(), &mut announced);
                watched
            }
            Err((error, gone)) => Watched::Over { how: How::NotStarted(error.into()), gone },
        };
        pulse.beat(boot_ns(), sent.deadlines);
        let killed = match watched {
            Watched::Over { how: How::Killed(killed), .. } => Some(killed),
            _ => None,
        };
        // The guardian's reason comes first: its signal precedes the lock's end, so the lease may have no cause yet.
        let lost = killed.and_then(|killed| self.plan.cause(since, killed)).or(lease.loss_cause());
        let lost = lost.map(|cause| pulse.loss(cause));
        let health = lease.health();
        let Watched::Over { how, gone } = watched else {
            self.leave();
            if let Some(loss) = lost {
                self.say_lost(loss, &health, None, "");
                return ExitCode::Lost;
            }
            return ExitCode::Internal;
        };
        let code = match how {
            How::NotStarted(error) => {
                let code = self.say_not_started(&error);
                let _ = self.give_back(lease, gone).await;
                return code;
            }
            _ if lost.is_some() => {
                // If the guardian is dead or stopped, the keeper sends SIGKILL without an earlier SIGTERM.
                let by = matches!(how, How::Unguarded).then_some(KilledBy::Kill);
                let by = killed.map(|killed| killed.by).or(by);
                let end = end_in_words(by);
                lost.into_iter().for_each(|loss| self.say_lost(loss, &health, by, end));
                if lease.loss_cause().is_none()
                    && let Some(rest) = self.rest_of_min_hold(since)
                {
                    self.hold_on(lease, rest).await;
                    return ExitCode::Lost;
                }
                let _ = lease.give_back(gone).await;
                return ExitCode::Lost;
            }
            How::Unguarded | How::Killed(_) => {
                let message =
                    "the guardian process was killed or stopped, so the command was killed";
                let event = json!({ "event": "unguarded", "key": self.caller.lock.key });
                self.caller.output.error(event, message);
                let _ = self.give_back(lease, gone).await;
                return ExitCode::Internal;
            }
            How::Signaled { signal } => ExitCode::Signal(signal),
            How::Exited { code } => ExitCode::Own(u8::try_from(code).unwrap_or(u8::MAX)),
        };
        if let Some(rest) = self.rest_of_min_hold(since) {
            self.hold_on(lease, rest).await;
            return code;
        }
        let was_valid = lease.is_valid();
        let released = self.give_back(lease, gone).await;
        let cause = match released.outcome {
            Outcome::Expired if was_valid && self.has_lost_only_data(&released).await => {
                return code;
            }
            Outcome::Expired => LossCause::KeyGone,
            Outcome::TakenByOther => LossCause::KeyOverwritten,
            _ => return code,
        };
        self.say_lost(Loss::Of(cause), &health, None, end_in_words(None));
        ExitCode::Lost
    }

    /// Sends each new deadline to the guardian, and each signal to the command, until the command ends.
    async fn watch_over(
        &mut self,
        mut child: Child,
        lease: &Lease,
        sent: &mut Sent,
        announced: &mut Announced,
        pulse: &mut Pulse,
    ) -> Watched {
        // Each change of the validity wakes this loop. The ticks are a second chance if a wake-up is missed.
        let mut ticks = interval(self.plan.ttl / 10);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stubborn = false;
        loop {
            pulse.beat(boot_ns(), sent.deadlines);
            let changed = lease.changed();
            self.tell_validity(&child, lease, sent);
            // A lost lock is not reported here, but by `say_lost`.
            if sent.loss.is_none() && lease.is_valid() {
                self.say_extended(lease, sent, boot_ns());
                self.say_health(&lease.health(), announced, sent);
            }
            let report_in = sent.report_at_ns.map(|at_ns| at_ns.saturating_sub(boot_ns()));
            let report_in = Duration::from_nanos(report_in.unwrap_or_default());
            if stubborn && sent.loss.is_some() {
                return Watched::Left;
            }
            tokio::select! {
                biased;
                event = child.next_event() => match event {
                    ChildEvent::Started | ChildEvent::Continued => {}
                    ChildEvent::Stopped { signal } => {
                        self.caller.output.clear();
                        child.suspend(signal);
                    }
                    ChildEvent::Stubborn { left } => {
                        stubborn = true;
                        self.say_stubborn(&left);
                    }
                    ChildEvent::Over { how, gone } => return Watched::Over { how, gone },
                    ChildEvent::OutOfSight => return Watched::Left,
                },
                _ = lease.lost(), if sent.loss.is_none() => {
                    sent.loss = Some(Moment::now().after(nanos(self.plan.kill_before)));
                    sent.is_sent = false;
                }
                signal = self.caller.signals.next() => {
                    if stubborn && ends_a_wait(signal) {
                        return Watched::Left;
                    }
                    child.signal(signal);
                }
                () = changed, if sent.loss.is_none() => {}
                () = announced.changed(), if sent.loss.is_none() => {}
                () = sleep(report_in), if sent.report_at_ns.is_some() && sent.loss.is_none() => {}
                _ = ticks.tick() => {}
            }
        }
    }

    /// Sends the guardian the deadlines that it does not have yet.
    fn tell_validity(&mut self, child: &Child, lease: &Lease, sent: &mut Sent) {
        if let Some(kill) = sent.loss {
            if !sent.is_sent {
                sent.is_sent = child.terminate(kill);
            }
            return;
        }
        // The guardian learns of a loss through `terminate`.
        if !lease.is_valid() {
            return;
        }
        let now = self.plan.deadlines(lease);
        let grows = now.kill.boot_ns > sent.deadlines.kill.boot_ns;
        let changes = now.kill.distance(sent.deadlines.kill) > JITTER_NS;
        if changes {
            sent.deadlines = now;
            if grows {
                let client = &self.caller.client;
                let patience = nanos(client.longest_node_timeout(self.plan.ttl));
                sent.report_at_ns.get_or_insert(boot_ns().saturating_add(patience));
            } else {
                self.caller.output.event(self.validity_event("shortened", lease), None);
            }
        }
        if changes || !sent.is_sent {
            sent.is_sent = child.set_deadlines(sent.deadlines);
        }
    }

    /// Reports an extension when all nodes have confirmed it, or their time to do so is over, so that `votes` counts all
    /// confirmations.
    fn say_extended(&mut self, lease: &Lease, sent: &mut Sent, now_ns: u64) {
        let is_due = |at_ns: &mut u64| {
            *at_ns <= now_ns || lease.confirmed_votes() == lease.health().nodes().len()
        };
        if sent.report_at_ns.take_if(is_due).is_some() && lease.is_valid() {
            self.caller.output.event(self.validity_event("extended", lease), None);
        }
    }

    fn environment(&self, lease: &Lease, remaining: Duration) -> Vec<(OsString, OsString)> {
        let until = unix_ms().saturating_add(millis(remaining));
        let mut environment: Vec<(OsString, OsString)> = vec![
            ("QUORLOCK_KEY".into(), self.caller.lock.key.clone().into()),
            ("QUORLOCK_TOKEN".into(), lease.token().to_string().into()),
            ("QUORLOCK_VALID_UNTIL_MS".into(), until.to_string().into()),
        ];
        if let Some(fencing_token) = lease.fencing_token {
            environment.push(("QUORLOCK_FENCE".into(), fencing_token.to_string().into()));
        }
        environment
    }

    /// Variables that the command does not inherit: those that describe this call or an outer lock and, unless
    /// --pass-nodes is given, those that describe the nodes.
    fn environment_to_remove(&self) -> Vec<OsString> {
        let stays = |class| match class {
            Class::Deployment => self.args.pass_nodes,
            Class::Call | Class::Lock => false,
            Class::Tool => true,
        };
        let removed = variables().filter(|(_, class)| !stays(*class));
        removed.map(|(name, _)| name.into()).collect()
    }

    fn say_not_started(&mut self, error: &SpawnError) -> ExitCode {
        let event = json!({
            "event": "not_started",
            "key": self.caller.lock.key,
            "message": error.to_string(),
        });
        self.caller.output.error(event, &error.to_string());
        match error {
            SpawnError::NotFound { .. } => ExitCode::NotFound,
            SpawnError::CannotRun { .. } => ExitCode::CannotRun,
            SpawnError::TooLate => ExitCode::Lost,
            SpawnError::Machine(_) => ExitCode::Internal,
        }
    }

    fn say_stubborn(&mut self, left: &[i32]) {
        let pids: Vec<String> = left.iter().map(i32::to_string).collect();
        let message = format!(
            "processes of the command cannot be killed ({}); the lock is not given back while they live",
            if pids.is_empty() { "of another user?".to_owned() } else { pids.join(", ") }
        );
        let event = json!({ "event": "stubborn", "key": self.caller.lock.key, "pids": left });
        self.caller.output.event(event, Some(&message));
    }

    /// Whether each vote that vanished was on a node that has lost all its data, as this client heard itself, and has no
    /// marker. Such a node gives no vote to quorlock before the lock's time is over. A key and a marker that were deleted
    /// one by one prove nothing: another client may have had the lock in between. Reports the nodes.
    async fn has_lost_only_data(&mut self, released: &Released) -> bool {
        let with = |how: NodeReleased| {
            let said = released.nodes().filter(move |(_, said)| **said == how);
            said.map(|(node, _)| node).collect::<Vec<&str>>()
        };
        let (gone, alone) = (with(NodeReleased::LostWithData), with(NodeReleased::LostEarly));
        let nodes = self.caller.nodes;
        let is_strict = nodes.restart_guard() == RestartGuard::Strict;
        if !is_strict || !alone.is_empty() || gone.is_empty() || !lack_markers(nodes, &gone).await {
            return false;
        }
        let (nodes, key) = (names(&gone), self.caller.lock.title());
        let line = format!(
            "{nodes}: the data is lost, and with it the lock \"{key}\"; the command ended within the time of the lock, and \
             no other client of quorlock had it after that loss"
        );
        let mut event = self.caller.lock_event("data_lost");
        event["nodes"] = json!(gone);
        event["message"] = json!(line);
        self.caller.output.event(event, Some(&line));
        true
    }

    async fn give_back(&mut self, lease: Lease, gone: Gone) -> Released {
        let released = lease.give_back(gone).await;
        let mut event = self.caller.lock_event("released");
        event["outcome"] = json!(outcome_name(released.outcome));
        let warning = (released.outcome == Outcome::Unknown).then(|| {
            let title = format!("\"{}\"", self.caller.lock.title());
            release_unconfirmed(&released, &title, &time(self.plan.ttl))
        });
        self.caller.output.event(event, warning.as_deref());
        released
    }

    /// `end` says how the command ended. It is empty if that is not known.
    fn say_lost(&mut self, loss: Loss, health: &Health, ended_by: Option<KilledBy>, end: &str) {
        let (name, why) = loss.describe(&health.reasons(), self.caller.untrusted_in_words());
        let key = self.caller.lock.title();
        let line = format!("lost the lock \"{key}\" while the command ran{end}; cause: {why}");
        let mut event = self.caller.lock_event("lost");
        event["cause"] = json!(name);
        event["ended_by"] = json!(ended_by.map(|by| match by {
            KilledBy::Term => "term",
            KilledBy::Kill => "kill",
        }));
        event["message"] = json!(why);
        event["nodes"] = health.nodes().iter().map(node_json).collect();
        self.caller.output.error(event, &line);
    }

    fn rest_of_min_hold(&self, since: u64) -> Option<Duration> {
        let held = time_since(since);
        self.args.min_hold.and_then(|min| min.checked_sub(held)).filter(|rest| !rest.is_zero())
    }

    /// Holds the lock for the rest of `--min-hold`, then leaves the key to expire. So a machine with a late clock,
    /// which starts the same job later, still finds the lock held. A signal ends the hold early, without a release.
    async fn hold_on(&mut self, lease: Lease, rest: Duration) {
        let key = self.caller.lock.title();
        // The key may live for up to one ttl from the last extension, and that may be the one at the end of `rest`.
        let least = rest.max(lease.remaining());
        let most = self.plan.ttl + if least > rest { Duration::ZERO } else { rest };
        let line = format!(
            "the command is done; \"{key}\" stays held for {} to {} more",
            time(least),
            time(most)
        );
        let event = json!({
            "event": "left",
            "key": self.caller.lock.key,
            "rest_ms": millis(least),
            "rest_max_ms": millis(most),
        });
        self.caller.output.event(event, Some(&line));
        self.leave();
        let until = boot_ns().saturating_add(nanos(rest));
        loop {
            let rest = Duration::from_nanos(until.saturating_sub(boot_ns()));
            if !lease.is_valid() || lease.remaining() >= rest {
                return;
            }
            let pause = (rest - lease.remaining()).min(self.plan.ttl / 3);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.caller.signals.ending() => return,
            }
        }
    }

    /// Leaves the keys to expire: neither a release nor a shutdown deletes them.
    fn leave(&mut self) {
        self.is_left = true;
    }

    fn validity_event(&self, name: &str, lease: &Lease) -> serde_json::Value {
        let mut event = self.caller.lock_event(name);
        event["votes"] = json!(lease.confirmed_votes());
        add_validity(&mut event, lease.remaining(), lease.fencing_token, self.caller.lock.shared);
        event
    }
}

/// Whether none of these nodes has a marker. A node that does not answer, or is not found by its name, may have one.
async fn lack_markers(args: &NodeArgs, nodes: &[&str]) -> bool {
    let Ok(topology) = options::builder(args)
        .and_then(|builder| Topology::of(&builder).map_err(|error| options::blamed(error, args)))
    else {
        return false;
    };
    let servers = topology.servers.iter().filter(|server| nodes.contains(&server.name()));
    let looks = servers.map(async |server| {
        let marker = [["GET", &*topology.rules.marker]];
        let replies = AdminConnection::open(server).await?.ask(&marker).await?;
        Ok::<_, Failure>(replies == [Reply::Nil])
    });
    let looks = join_all(looks).await;
    looks.len() == nodes.len() && looks.into_iter().all(|lacks| lacks.unwrap_or(false))
}

fn end_in_words(ended_by: Option<KilledBy>) -> &'static str {
    match ended_by {
        Some(KilledBy::Term) => " (quorlock ended the command with SIGTERM)",
        Some(KilledBy::Kill) => " (quorlock killed the command with SIGKILL)",
        None => " (the command ended by itself)",
    }
}

/// A change of the deadlines by at most this is not sent, so SIGKILL may come this much too late. That is harmless,
/// because SIGKILL is due at least 50 ms before the validity ends ([`RunPlan`]).
const JITTER_NS: u64 = 1_000_000;
