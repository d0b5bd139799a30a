//! Waits until a lock is granted. With `--if-held wait`, waits until its present holders no longer hold it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use quorlock::admin::{group, list_nodes, names, with_fencing_counter};
use quorlock::node::{Failure, FailureKind, Holding, NodeState};
use quorlock::{
    AcquireError, Inspection, NodeAnswer, NodeOutcome, NodeStats, NodeTrustState, Verdict, Waiting,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::caller::{Caller, time_since};
use super::status::{held_since, node_json, readers};
use crate::args::{IfHeld, WaitArg};
use crate::exit_code::ExitCode;
use crate::guardian::clock::boot_ns;
use crate::output::{millis, time};
use crate::terminal_size::cut;

/// The holders of the keys at the first refusal of the lock.
struct Holders {
    /// Each locked key with the values that a quorum of nodes stores under it.
    of_keys: Vec<(String, Vec<Stored>)>,
    /// Each locked key with its holder, and since when it holds the lock.
    described: Vec<(String, String)>,
    since: u64,
}

impl Holders {
    /// Each key with its holder. `verb`: is or was.
    fn in_words(&self, verb: &str) -> String {
        let described = self.described.iter();
        let described = described.map(|(key, holder)| format!("\"{key}\" {verb} held by {holder}"));
        described.collect::<Vec<_>>().join("; ")
    }
}

/// A value that nodes store under a key. `None`: the key has a type that no lock has.
type Stored = Option<Vec<u8>>;

/// The reason for a wait: the kind of each node's failure, `None` without a failure. Empty if others hold the lock.
type Reason = Vec<Option<FailureKind>>;

/// State of the messages about a wait.
struct Said {
    /// Beginning of the wait, by the boot clock.
    since: u64,
    /// The last line in a log: its time by the boot clock, and its reason. A terminal shows a countdown instead of such
    /// lines.
    logged: Option<(u64, Reason)>,
}

impl Said {
    /// Whether a log needs a line: it has none, or the last one is `LOG_EVERY` old (`LOG_NEWS_EVERY` for a new reason).
    fn is_due(&mut self, reason: Reason) -> bool {
        let is_due = self.logged.as_ref().is_none_or(|(logged, last)| {
            time_since(*logged) >= if *last == reason { LOG_EVERY } else { LOG_NEWS_EVERY }
        });
        if is_due {
            self.logged = Some((boot_ns(), reason));
        }
        is_due
    }
}

impl Caller<'_> {
    /// Waits for a lock, and reports the progress of the call, which `waiting` receives.
    ///
    /// # Errors
    /// The lock was not acquired, which was reported, or a signal has ended the wait.
    pub(super) async fn await_lock<T>(
        &mut self,
        call: impl Future<Output = Result<T, AcquireError>>,
        mut waiting: mpsc::Receiver<Waiting>,
    ) -> Result<T, ExitCode> {
        let mut call = Box::pin(call);
        let mut said = Said { since: boot_ns(), logged: None };
        let mut last = None;
        let mut next = Instant::now() + A_WAIT;
        // Of a lock that is waited for, the nodes are asked whether its other holders have fencing tokens. The call does not
        // wait for the answer.
        let mut is_unfenced = !self.lock.fenced && !self.lock.shared;
        let mut counter = None;
        loop {
            tokio::select! {
                biased;
                result = &mut call => {
                    self.output.clear();
                    self.waited = said.logged.as_ref().map(|_| time_since(said.since));
                    return result.map_err(|error| self.refused(&error));
                }
                signal = self.signals.ending() => {
                    self.output.clear();
                    return Err(ExitCode::Signal(signal.as_raw()));
                }
                Some(current) = waiting.recv() => {
                    if self.is_out_of_descriptors(&current) {
                        return Err(self.exhausted(&current));
                    }
                    let is_contended = current.contended;
                    last = Some(current);
                    if is_contended && std::mem::take(&mut is_unfenced) {
                        counter = Some(Box::pin(self.fenced_keys()));
                    }
                    if is_contended && self.if_held == IfHeld::Wait
                        && let Some(holders) = self.holders(said.since).await
                    {
                        // The dropped call withdraws its intent, which would keep new readers out.
                        drop(call);
                        return Err(self.await_end(&holders).await);
                    }
                }
                Some(fenced) = OptionFuture::from(counter.as_mut()) => {
                    counter = None;
                    self.warn_unfenced(&fenced);
                }
                () = sleep_until(next) => {
                    next += if last.is_some() { TICK } else { TICK / 10 };
                    if let Some(waiting) = &last {
                        self.say_waiting(waiting, &mut said);
                    }
                }
            }
        }
    }

    /// The keys whose other holders have fencing tokens.
    fn fenced_keys(&self) -> impl Future<Output = Vec<String>> + use<> {
        let client = self.client.clone();
        let keys: Vec<String> = self.lock.keys().map(str::to_owned).collect();
        async move { with_fencing_counter(&client, keys).await.unwrap_or_default() }
    }

    fn warn_unfenced(&mut self, keys: &[String]) {
        if keys.is_empty() {
            return;
        }
        let keys: Vec<String> =
            keys.iter().map(|key| format!("\"{}\"", key.escape_debug())).collect();
        let message = format!(
            "other holders of {} have fencing tokens, and this one will have none; all of them must use --fenced, or none",
            keys.join(", ")
        );
        let line = (self.if_held != IfHeld::Skip).then_some(&*message);
        self.output.event(json!({ "event": "warning", "message": message }), line);
    }

    fn is_out_of_descriptors(&self, waiting: &Waiting) -> bool {
        let is_such = |node: &&NodeAnswer| {
            node.failure().is_some_and(|failure| {
                failure.kind() == FailureKind::Exhausted
                    && failure.detail().is_some_and(|detail| detail.contains("ulimit -n"))
            })
        };
        let without = waiting.nodes.iter().filter(is_such).count();
        let count = waiting.nodes.len();
        without > 0 && count - without < self.needed(count)
    }

    /// The quorum of this number of nodes.
    fn needed(&self, count: usize) -> usize {
        self.nodes.quorum().unwrap_or(count / 2 + 1)
    }

    /// Reports the last attempt, with the time waited until now. A call makes no attempt while it waits for a holder,
    /// so nodes that have failed since the last attempt are found by their missing connections.
    fn say_waiting(&mut self, waiting: &Waiting, said: &mut Said) {
        let (down, all) = (self.down(), waiting.nodes.len());
        let is_contended = waiting.contended && all - down.len() >= self.needed(all);
        let why = match waiting.holder() {
            Some(holder) if is_contended && self.lock.also.is_empty() => match &holder.kind {
                quorlock::HolderKind::WaitingWriter(_) => holder.describe(),
                kind if holder.since.is_none() && holder.remaining.is_some() => {
                    format!("held by {kind}")
                }
                kind => format!("held by {kind}, {}", held_since(&holder)),
            },
            Some(_) if is_contended => {
                list_nodes(waiting.nodes.iter().filter(|node| node.holder().is_some()))
            }
            _ if is_contended => "others hold it or want it".to_owned(),
            _ if waiting.contended => format!("no quorum{}", in_words(down)),
            _ => self.why_no_quorum(waiting, down),
        };
        let reason = if is_contended { Vec::new() } else { self.failures(waiting) };
        let mut event = self.lock_event("waiting");
        event["attempts"] = json!(waiting.attempts);
        event["contended"] = json!(is_contended);
        event["untrusted"] = json!(waiting.untrusted);
        event["nodes"] = waiting.nodes.iter().map(node_json).collect();
        self.say_progress(event, (&why, reason), said);
    }

    /// Why there is no quorum. The times until votes count come first, because a terminal cuts the end of a line.
    fn why_no_quorum(&self, waiting: &Waiting, down: Vec<(Arc<str>, Failure)>) -> String {
        match self.untrusted_in_words() {
            Some(untrusted) => untrusted + &in_words(down),
            None if waiting.untrusted => "nodes are being looked at".to_owned(),
            None => {
                let failed = waiting.nodes.iter().filter(|node| node.failure().is_some());
                format!("no quorum: {}", list_nodes(failed))
            }
        }
    }

    /// The nodes without a connection, and their failures. The report of an attempt lacks those nodes that failed after
    /// the attempt had ended.
    fn down(&self) -> Vec<(Arc<str>, Failure)> {
        let nodes = self.client.stats().nodes.into_iter();
        let down = nodes.filter_map(|node| match node.state {
            NodeState::Suspended(failure) | NodeState::Down(failure) => Some((node.name, failure)),
            _ => None,
        });
        down.collect()
    }

    /// Each node's present failure or, if it has none, its failure in the last attempt.
    fn failures(&self, waiting: &Waiting) -> Reason {
        let nodes = self.client.stats().nodes.into_iter().zip(&waiting.nodes);
        let failure =
            |(node, answer): (NodeStats, &NodeAnswer)| match (node.state, node.trust_state) {
                (NodeState::Suspended(failure) | NodeState::Down(failure), _)
                | (_, NodeTrustState::Refused(failure)) => Some(failure.kind()),
                (_, NodeTrustState::Quarantined { .. }) => Some(FailureKind::Quarantined),
                _ => answer.failure().map(Failure::kind),
            };
        nodes.map(failure).collect()
    }

    /// Writes a line that counts down on a terminal. Elsewhere, writes a line when the reason changes, and every half a
    /// minute.
    fn say_progress(&mut self, mut event: Value, (why, reason): (&str, Reason), said: &mut Said) {
        let waited = time_since(said.since);
        event["why"] = json!(why);
        event["waited_ms"] = json!(millis(waited));
        let patience = match self.lock.times.wait() {
            WaitArg::Forever => "for ever".to_owned(),
            WaitArg::For(wait) => {
                let rest = wait.saturating_sub(waited);
                event["rest_ms"] = json!(millis(rest));
                format!("for {} more", time(rest))
            }
        };
        let is_due = said.is_due(reason);
        if self.if_held == IfHeld::Skip {
            // With `--if-held skip` the wait is reported as an event only.
            if is_due {
                self.output.event(event, None);
            }
            return;
        }
        let title = self.lock.title();
        self.output.progress(event, |room| waiting_line(&patience, &title, why, room), is_due);
    }

    /// Nodes that are known to be untrusted, with the reason.
    pub(super) fn untrusted(&self) -> Vec<(String, NodeTrustState)> {
        let nodes = self.client.stats().nodes.into_iter();
        let untrusted = nodes.filter(|node| {
            matches!(
                node.trust_state,
                NodeTrustState::Quarantined { .. } | NodeTrustState::Refused(_)
            )
        });
        untrusted.map(|node| (node.name.to_string(), node.trust_state)).collect()
    }

    /// The nodes that are not trusted now, each with the time after which its votes count. `None`: no node is known to
    /// be untrusted.
    pub(super) fn untrusted_in_words(&self) -> Option<String> {
        let told = self.untrusted().into_iter().map(|(name, trust_state)| {
            let told = match &trust_state {
                NodeTrustState::Quarantined { remaining, why } => {
                    let seconds = remaining.as_millis().div_ceil(1000);
                    (format!("votes count in {seconds} s: "), format!(" (quarantined: {why})"))
                }
                other => (String::new(), format!(": {other}")),
            };
            (name, told)
        });
        let groups = group(told, |one, other| one == other);
        let told = groups
            .iter()
            .map(|(nodes, (before, behind))| format!("{before}{}{behind}", names(nodes)));
        let told: Vec<String> = told.collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// The holders that have a quorum of one of the keys, and so exclude this run. `None`: no holder has a quorum. Then
    /// several clients wanted the lock at once, and one of these clients gets it.
    async fn holders(&self, since: u64) -> Option<Holders> {
        let (mut of_keys, mut described) = (Vec::new(), Vec::new());
        for key in self.lock.keys() {
            let Ok(inspection) = self.client.inspect(key).await else { continue };
            let is_in_the_way = match inspection.verdict() {
                Verdict::Held => true,
                Verdict::Shared => !self.lock.shared,
                _ => false,
            };
            let stored = with_quorum(&inspection);
            if is_in_the_way
                && !stored.is_empty()
                && let Some(holder) = inspection.holder()
            {
                let key = key.to_owned();
                let name = key.escape_debug().to_string();
                let holders = match inspection.verdict() {
                    Verdict::Shared => readers(&inspection),
                    _ => format!("{}, {}", holder.kind, held_since(&holder)),
                };
                described.push((name, holders));
                of_keys.push((key, stored));
            }
        }
        (!of_keys.is_empty()).then_some(Holders { of_keys, described, since })
    }

    /// Waits until none of these holders can have a quorum any more, at most for the rest of `--wait`. The command is
    /// not run.
    async fn await_end(&mut self, holders: &Holders) -> ExitCode {
        let mut said = Said { since: holders.since, logged: None };
        let mut pause = LOOK_AGAIN_MIN;
        loop {
            if !self.any_holds(holders).await {
                self.output.clear();
                let held = holders.in_words("was");
                let line = format!(
                    "{held}; that has ended, so another process did the work: nothing was run here, and whether the \
                     work succeeded is not known"
                );
                let event = json!({
                    "event": "holder_ended",
                    "key": self.lock.key,
                    "held": held,
                    "waited_ms": millis(time_since(holders.since)),
                });
                self.output.event(event, Some(&line));
                return ExitCode::Success;
            }
            let waited = time_since(holders.since);
            let rest = match self.lock.times.wait() {
                WaitArg::For(wait) => wait.saturating_sub(waited),
                WaitArg::Forever => Duration::MAX,
            };
            if rest.is_zero() {
                let (held, down) = (holders.in_words("is"), self.down());
                let all = self.client.stats().nodes.len();
                let is_reachable = all - down.len() >= self.needed(all);
                let (message, code) = if is_reachable {
                    (format!("{held}, and still is after {}", time(waited)), self.held)
                } else {
                    (
                        format!("{held}; its end is not known: no quorum{}", in_words(down)),
                        ExitCode::NoQuorum,
                    )
                };
                self.output.error(self.not_acquired(&message, is_reachable, &[]), &message);
                return code;
            }
            if waited >= A_WAIT {
                let why = format!("{}; its end is waited for", holders.in_words("is"));
                let mut event = self.lock_event("waiting");
                event["contended"] = json!(true);
                event["untrusted"] = json!(false);
                self.say_progress(event, (&why, Vec::new()), &mut said);
            }
            tokio::select! {
                () = sleep(pause.min(rest)) => {}
                signal = self.signals.ending() => {
                    self.output.clear();
                    return ExitCode::Signal(signal.as_raw());
                }
            }
            pause = (2 * pause).min(LOOK_AGAIN_MAX);
        }
    }

    /// Whether one of the holders may still have a quorum. A node that does not answer, or that may have forgotten its
    /// keys, counts as having the holder's value.
    async fn any_holds(&self, holders: &Holders) -> bool {
        for (key, stored) in &holders.of_keys {
            // A failed inspection proves nothing about the holder.
            let Ok(inspection) = self.client.inspect(key).await else { return true };
            let unknown = unknown(&inspection);
            let needed = inspection.quorum();
            if stored.iter().any(|it| on(&inspection, it) + unknown >= needed) {
                return true;
            }
        }
        false
    }
}

/// The line about a wait. A long key is cut so that [`REASON_COLUMNS`] of the reason fit into `room` columns.
fn waiting_line(patience: &str, title: &str, why: &str, room: usize) -> String {
    let others = "waiting  for \"\": ".len() + patience.len() + why.len().min(REASON_COLUMNS);
    let title = cut(title, room.saturating_sub(others).max(TITLE_COLUMNS));
    format!("waiting {patience} for \"{title}\": {why}")
}

fn in_words(down: Vec<(Arc<str>, Failure)>) -> String {
    let groups = group(down, |one, other| one == other);
    groups.iter().map(|(nodes, why)| format!("; {} failed: {why}", names(nodes))).collect()
}

fn seen(inspection: &Inspection) -> impl Iterator<Item = &Holding> {
    inspection.nodes.iter().filter_map(|node| match &node.said {
        NodeOutcome::Seen(holding) => Some(holding),
        _ => None,
    })
}

/// Number of nodes that did not answer, or that report a free key but are untrusted.
fn unknown(inspection: &Inspection) -> usize {
    inspection.nodes.len() - seen(inspection).count() + inspection.untrusted()
}

fn on(inspection: &Inspection, stored: &Stored) -> usize {
    seen(inspection).filter(|holding| stored_in(holding).contains(stored)).count()
}

fn stored_in(holding: &Holding) -> Vec<Stored> {
    match holding {
        Holding::Held { value, .. } => vec![Some(value.clone())],
        Holding::Shared { readers, .. } => {
            readers.iter().map(|reader| Some(reader.value.clone())).collect()
        }
        Holding::OtherType { .. } => vec![None],
        _ => Vec::new(),
    }
}

/// The values that a quorum of nodes stores under the inspected key.
fn with_quorum(inspection: &Inspection) -> Vec<Stored> {
    let mut found: Vec<Stored> = Vec::new();
    for stored in seen(inspection).flat_map(stored_in) {
        if !found.contains(&stored) && on(inspection, &stored) >= inspection.quorum() {
            found.push(stored);
        }
    }
    found
}

/// The shortest wait that is reported.
const A_WAIT: Duration = Duration::from_millis(100);

/// Interval at which the line on a terminal is rewritten.
const TICK: Duration = Duration::from_millis(500);

/// Columns that a long key must leave on the line for the reason, for example for "votes count in 100 s".
const REASON_COLUMNS: usize = 22;

/// Columns that a key keeps even if the line becomes too long.
const TITLE_COLUMNS: usize = 8;

/// Number of reports of a waiting call that are queued while this process asks the nodes for the holders.
pub(super) const REPORTS: usize = 64;

/// Interval of the lines in a log, and the shortest time before a line with another reason.
const LOG_EVERY: Duration = Duration::from_secs(30);
const LOG_NEWS_EVERY: Duration = Duration::from_secs(5);

/// Pauses between two inspections of the holders.
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(50);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_key_is_cut_and_the_number_is_not() {
        let why = "votes count in 33 s: node c (quarantined: it is new)";
        let line = waiting_line("for 59.5s more", &"k".repeat(200), why, 67);
        let shown = cut(&line, 67);
        assert!(shown.contains("k…\": votes count in 33 s: "), "{shown}");
        let line = waiting_line("for ever", "deploy", why, 67);
        assert_eq!(line, format!("waiting for ever for \"deploy\": {why}"));
        let log = waiting_line("for ever", &"k".repeat(200), why, usize::MAX);
        assert!(log.contains(&"k".repeat(200)));
    }
}
