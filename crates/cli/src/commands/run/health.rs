//! Messages about nodes that do not confirm the lock.

use quorlock::{Guard, Health, HealthChanges, NodeAnswer, NodeOutcome};
use serde_json::{Value, json};

use super::Keeper;
use super::hold::Sent;
use crate::commands::status::node_json;
use crate::guardian::clock::boot_ns;
use crate::output::{millis, time};

/// Shortest time between two messages about the same node while a quorum confirms the lock.
const NODE_PAUSE_NS: u64 = 10_000_000_000;

/// Notices changes of the nodes' confirmations, and keeps what the last messages said about them.
pub(super) struct Announced {
    changes: HealthChanges,
    is_confirmed: bool,
    nodes: Vec<NodeSaid>,
}

#[derive(Clone, Default)]
struct NodeSaid {
    is_unconfirmed: bool,
    /// Time of the last message about this node, by the boot clock; `None` before the first message.
    at_ns: Option<u64>,
}

impl Announced {
    pub(super) fn new(lock: &Guard) -> Self {
        let nodes = vec![NodeSaid::default(); lock.health().nodes().len()];
        Self { changes: lock.health_changes(), is_confirmed: true, nodes }
    }

    /// Completes when the confirmations have changed.
    pub(super) async fn changed(&mut self) {
        if self.changes.next().await.is_none() {
            std::future::pending().await
        }
    }
}

impl NodeSaid {
    /// Records whether the node confirms the lock, if this differs from the last message about the node and `may_say`
    /// allows another message. Returns whether the caller must report the node.
    fn note(&mut self, node: &NodeAnswer, may_say: impl Fn(&Self) -> bool, now_ns: u64) -> bool {
        let is_unconfirmed = node.denial().is_some();
        let is_known = node.said != NodeOutcome::Nothing;
        let is_news = is_known && is_unconfirmed != self.is_unconfirmed && may_say(self);
        if is_news {
            *self = Self { is_unconfirmed, at_ns: Some(now_ns) };
        }
        is_news
    }
}

impl Keeper<'_> {
    pub(super) fn say_health(&mut self, health: &Health, announced: &mut Announced, sent: &Sent) {
        let now_ns = boot_ns();
        let is_changed = announced.is_confirmed != health.is_confirmed();
        announced.is_confirmed = health.is_confirmed();
        let is_quiet = |said: &NodeSaid| {
            said.at_ns.is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= NODE_PAUSE_NS)
        };
        let nodes = health.nodes().iter().zip(&mut announced.nodes);
        match (health.is_confirmed(), is_changed) {
            (true, false) => {
                let news = nodes
                    .filter_map(|(node, said)| said.note(node, is_quiet, now_ns).then_some(node));
                news.for_each(|node| self.say_node(node, health));
            }
            (_, true) => {
                // The message below names all nodes that do not confirm the lock, so every node counts as reported.
                nodes.for_each(|(node, said)| _ = said.note(node, |_| true, now_ns));
                if health.is_confirmed() {
                    self.say_confirmed(health);
                } else {
                    self.say_unconfirmed(health, sent, now_ns);
                }
            }
            (false, false) => {}
        }
    }

    /// Reports the nodes that confirm the lock again at the end of the command, however recent the last message is.
    pub(super) fn say_back(&mut self, health: &Health, announced: &mut Announced) {
        if !health.is_confirmed() || !announced.is_confirmed {
            return;
        }
        let now_ns = boot_ns();
        for (node, said) in health.nodes().iter().zip(&mut announced.nodes) {
            if node.denial().is_none() && said.note(node, |_| true, now_ns) {
                self.say_node(node, health);
            }
        }
    }

    fn say_unconfirmed(&mut self, health: &Health, sent: &Sent, now_ns: u64) {
        let term_in_ns = sent.deadlines.term.boot_ns.saturating_sub(now_ns);
        let term_in = std::time::Duration::from_nanos(term_in_ns);
        let confirm = match health.confirmed() {
            0 => format!("none of {} nodes confirms", health.nodes().len()),
            _ => format!("only {}", confirm(health)),
        };
        let line = format!(
            "{confirm} \"{}\": {}; SIGTERM in {} unless a quorum answers",
            self.caller.lock.title(),
            health.reasons(),
            time(term_in)
        );
        let mut event = self.health_event("unconfirmed", health);
        event["term_in_ms"] = json!(millis(term_in));
        self.caller.output.event(event, Some(&line));
    }

    fn say_confirmed(&mut self, health: &Health) {
        let line = format!("{} \"{}\" again", confirm(health), self.caller.lock.title());
        let line = match health.reasons() {
            reasons if reasons.is_empty() => line,
            reasons => format!("{line}; {reasons}"),
        };
        self.caller.output.event(self.health_event("confirmed", health), Some(&line));
    }

    /// Reports a node that has stopped or resumed confirming while a quorum confirms the lock.
    fn say_node(&mut self, node: &NodeAnswer, health: &Health) {
        let (key, name) = (self.caller.lock.title(), &node.node);
        let (event, line) = match node.denial() {
            Some(denial) => {
                let confirm = confirm(health);
                ("node_silent", format!("node {name}: {denial}; {confirm} \"{key}\""))
            }
            None => ("node_back", format!("node {name} confirms \"{key}\" again")),
        };
        let mut event = self.caller.lock_event(event);
        if let (Value::Object(event), Value::Object(node)) = (&mut event, node_json(node)) {
            event.extend(node);
        }
        self.caller.output.event(event, Some(&line));
    }

    fn health_event(&self, name: &str, health: &Health) -> Value {
        let mut event = self.caller.lock_event(name);
        event["confirmed"] = json!(health.confirmed());
        event["of"] = json!(health.nodes().len());
        event["nodes"] = health.nodes().iter().map(node_json).collect();
        event
    }
}

/// The confirmations in words, such as `1 of 3 nodes confirms`.
fn confirm(health: &Health) -> String {
    let (confirmed, of) = (health.confirmed(), health.nodes().len());
    format!("{confirmed} of {of} nodes {}", if confirmed == 1 { "confirms" } else { "confirm" })
}
