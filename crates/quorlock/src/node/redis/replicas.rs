//! The replicas of a server, as one connection knows them. If they are missing, the connection is closed, so that the
//! host name is resolved again: it may lead to a promoted server by now.

use std::collections::BTreeSet;
use std::time::Duration;

use quorlock_core::info::Info;
use quorlock_core::{Evidence, Exchange, Failure, FailureKind, Key, Supervisor, Value};
use tokio::time::Instant;

use super::evidence::ask_acknowledgement;

pub(super) struct Replicas {
    /// Number of replicas that must acknowledge each vote.
    needed: u32,
    /// The bytes that ask for the acknowledgement.
    pub(super) question: Box<[u8]>,
    opened_at: Instant,
    /// Votes without the acknowledgement. `None` if all have it, or in the connection's first two seconds.
    unacknowledged: Option<Unacknowledged>,
}

/// Votes that failed because the replicas did not acknowledge them.
struct Unacknowledged {
    since: Instant,
    /// The values of votes whose releases were not answered yet.
    unreleased: BTreeSet<Value>,
}

impl Replicas {
    /// The replicas of a new connection. Each acknowledgement is awaited for the time `within`.
    pub(super) fn new(needed: u32, key: &Key, within: Duration) -> Self {
        let question = ask_acknowledgement(key, needed, within);
        Self { needed, question, opened_at: Instant::now(), unacknowledged: None }
    }

    /// Whether the replicas acknowledged the batch; `None` if they were not asked. A server that was cut off while its
    /// replica was promoted lacks the acknowledgement. With `min-replicas-to-write`, such a server answers with an error.
    pub(super) fn have_acknowledged(&self, evidence: &Evidence) -> Option<bool> {
        let Evidence::Seen { acknowledged: Some(acknowledged), .. } = evidence else { return None };
        Some(acknowledged.as_ref().is_ok_and(|count| *count >= self.needed))
    }

    /// Notes whether a batch was acknowledged. Returns whether to close the connection: either all votes that the
    /// replicas did not acknowledge are released, or such votes have failed for two seconds.
    pub(super) fn are_missing(
        &mut self,
        is_acknowledged: Option<bool>,
        exchange: &Exchange,
    ) -> bool {
        let is_old = |since: Instant| since.elapsed() >= Supervisor::REPLACE_AFTER;
        let has_failed = is_acknowledged == Some(false);
        if is_acknowledged == Some(true) {
            self.unacknowledged = None;
        } else if has_failed && self.unacknowledged.is_none() && is_old(self.opened_at) {
            let (since, unreleased) = (Instant::now(), BTreeSet::new());
            self.unacknowledged = Some(Unacknowledged { since, unreleased });
        }
        let Some(Unacknowledged { since, unreleased }) = &mut self.unacknowledged else {
            return false;
        };
        for (_, command) in exchange.commands() {
            let Some((_, value)) = command.subject() else { continue };
            if command.is_release() {
                unreleased.remove(value);
            } else if has_failed && command.is_about_votes() {
                unreleased.insert(value.clone());
            }
        }
        unreleased.is_empty() || has_failed && is_old(*since)
    }
}

/// Whether the evidence shows that the server is a replica itself.
pub(super) fn is_of_a_replica(evidence: &Evidence) -> bool {
    let Evidence::Seen { info, acknowledged, .. } = evidence else { return false };
    let is_read_only = |failure: &Failure| failure.kind() == FailureKind::ReadOnly;
    acknowledged.as_ref().is_some_and(|it| it.as_ref().err().is_some_and(is_read_only))
        || matches!(info, Some(Ok(info)) if Info::parse(info).is_ok_and(|info| !info.is_master))
}
