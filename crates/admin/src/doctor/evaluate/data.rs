//! Findings about the data of a server, in memory and on disk.

use quorlock_core::display::{WORD_MAX, shown};
use quorlock_core::info::Info;

use super::Case;
use crate::doctor::Finding;
use crate::doctor::Severity::{Error, Note, Warning};
use crate::doctor::look::Facts;

impl Case<'_> {
    pub(super) fn memory(&self, facts: &Facts, info: &Info) -> Option<Finding> {
        let evicted = facts.more.evicted_keys;
        (evicted > 0 && info.evicts_by.is_none()).then(|| {
            Warning.finding(
                "evicted",
                format!(
                    "it has deleted {evicted} keys because its memory was full since it was started"
                ),
                "locks may have been among them; it does not do so now",
                format!(
                    "nothing is left to fix; to reset this count: {}",
                    self.cli("CONFIG RESETSTAT")
                ),
            )
        })
    }

    /// Whether the operator has declared that the node keeps its data over a restart.
    pub(super) fn is_declared_durable(&self) -> bool {
        let place =
            self.topology.servers.iter().position(|server| *server.name() == *self.node.name);
        place.is_some_and(|place| {
            self.topology.rules.durable.contains(quorlock_core::NodeId::new(place))
        })
    }

    /// Reports data that a restart loses.
    pub(super) fn disk(&self, info: &Info) -> Option<Finding> {
        let rests = info.rests_on_rewrite == Some(true);
        let what = match (info.keeps_log, info.appendfsync.as_deref()) {
            (Some(false), _) => "nothing is kept on disk (appendonly no)".to_owned(),
            (_, Some("always")) if rests => {
                "writes are on disk before they are answered, but not while the log is rewritten \
                 (no-appendfsync-on-rewrite yes)"
                    .to_owned()
            }
            (_, Some("always") | None) => return None,
            (_, Some(policy)) => {
                format!(
                    "the last writes are lost if the machine stops (appendfsync {})",
                    shown(policy, WORD_MAX)
                )
            }
        };
        if self.is_declared_durable() {
            return Some(Error.finding(
                "durable",
                format!("it was declared to forget nothing (--durable), but {what}"),
                "after a restart it would vote at once, and has forgotten locks that are still held",
                self.set(&to_last(info)),
            ));
        }
        let fix = if self.node.replicas > 0 {
            "nothing needs to be fixed; a node with replicas is never --durable, because a failover makes it wait as well; \
             three masters without replicas go on without a wait while one is away"
                .to_owned()
        } else {
            format!(
                "nothing needs to be fixed; for it to vote at once after a restart, {}; then --durable {}",
                self.set(&to_last(info)),
                self.node.name
            )
        };
        Some(Note.finding(
            "persistence",
            what,
            "after a restart it does not vote for as long as any lock may be held, so that does no harm",
            fix,
        ))
    }
}

/// The settings that the server needs to keep its data over a restart, and does not have.
fn to_last(info: &Info) -> Vec<&'static str> {
    let lacks = [
        (info.keeps_log != Some(true), "appendonly yes"),
        (info.appendfsync.as_deref() != Some("always"), "appendfsync always"),
        (info.rests_on_rewrite == Some(true), "no-appendfsync-on-rewrite no"),
    ];
    lacks.into_iter().filter_map(|(lacks, setting)| lacks.then_some(setting)).collect()
}
