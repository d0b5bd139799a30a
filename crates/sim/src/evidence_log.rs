//! Determines from facts alone, without the engine, which votes must not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use quorlock_core::{Evidence, Failure, FailureKind, MarkerSeen, RestartGuard, Rules, Ticket};

use crate::fact::{ClientId, NodeIndex};
use crate::plan::Modes;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Void {
    /// No marker (the key that shows that no data was lost) followed the batch, or the connection was unverified (S9).
    Unverified,
    /// The node lost its data so recently that votes from before the loss may still count (S10).
    Quarantined,
}

impl fmt::Display for Void {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unverified => "is not verified",
            Self::Quarantined => "is in its quarantine",
        })
    }
}

/// The evidence (`INFO` and marker) that nodes gave to each client. Recorded only if the restart guard is strict.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct EvidenceLog {
    /// The text with which all valid markers begin; `None` without a strict restart guard.
    cluster: Option<String>,
    /// The mode of each client's restart guard, if the clients have different modes.
    modes: Modes,
    lines: BTreeMap<(ClientId, NodeIndex), ConnectionEvidence>,
    early: BTreeSet<(ClientId, NodeIndex, Ticket)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct ConnectionEvidence {
    epoch: (u64, u64),
    /// The marker that every further batch must end with. It matched the node's `INFO`. `None`: no vote may count.
    expected: Option<Arc<str>>,
    /// The last batch on this connection ended with the expected marker.
    marked: bool,
}

impl EvidenceLog {
    pub(crate) fn new(rules: &Rules, modes: Modes) -> Self {
        let is_strict = rules.guard == RestartGuard::Strict;
        let cluster = is_strict.then(|| format!("quorlock 1 {} ", rules.cluster));
        Self { cluster, modes, ..Self::default() }
    }

    /// Whether this client counts a vote only if evidence (`INFO` and marker) came with it.
    pub(crate) fn are_needed(&self, client: ClientId) -> bool {
        let is_strict = |mode| mode == RestartGuard::Strict;
        self.cluster.is_some() && self.modes.of(client).is_none_or(is_strict)
    }

    /// Whether this marker or adoption is of the clients' configuration.
    pub(crate) fn is_of_cluster(&self, text: &str) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| text.starts_with(cluster))
    }

    pub(crate) fn note(&mut self, client: ClientId, node: NodeIndex, evidence: &Evidence) {
        let (Some(cluster), Evidence::Seen { epoch, flushes, info, marker, .. }) =
            (&self.cluster, evidence)
        else {
            return;
        };
        let line = self.lines.entry((client, node)).or_default();
        let epoch = (*epoch, *flushes);
        if epoch != line.epoch {
            *line = ConnectionEvidence { epoch, ..ConnectionEvidence::default() };
        }
        let MarkerSeen::Text(text) = marker else {
            line.marked = false;
            if *marker != MarkerSeen::NotAsked {
                line.expected = None;
            }
            return;
        };
        if let Some(info) = info {
            let start = info.as_ref().ok().and_then(|info| expected(cluster, info));
            let fits = start.is_some_and(|start| text.starts_with(&start));
            line.expected = fits.then(|| text.clone());
        }
        line.marked = line.expected.as_ref() == Some(text);
        if !line.marked {
            line.expected = None;
        }
    }

    /// If this failure shows that the node was demoted or restarted, the node's votes do not count until the client has
    /// identified the node again.
    pub(crate) fn note_failure(&mut self, client: ClientId, node: NodeIndex, failure: &Failure) {
        use FailureKind::{Loading, MasterDown, ReadOnly};
        if let Some(line) = self.lines.get_mut(&(client, node))
            && matches!(failure.kind(), Loading | MasterDown | ReadOnly)
        {
            line.expected = None;
        }
    }

    pub(crate) fn note_early(&mut self, client: ClientId, node: NodeIndex, ticket: Ticket) {
        if self.are_needed(client) {
            self.early.insert((client, node, ticket));
        }
    }

    pub(crate) fn forget(&mut self, client: ClientId) {
        self.lines.retain(|(its, _), _| *its != client);
        self.early.retain(|(its, ..)| *its != client);
    }

    /// Returns the reason why an answer that arrives now must not count.
    pub(crate) fn distrust_reason(
        &self,
        client: ClientId,
        node: NodeIndex,
        ticket: Ticket,
    ) -> Option<Void> {
        if !self.are_needed(client) {
            return None;
        }
        if self.early.contains(&(client, node, ticket)) {
            return Some(Void::Quarantined);
        }
        let proved = self.lines.get(&(client, node)).is_some_and(|line| line.marked);
        (!proved).then_some(Void::Unverified)
    }
}

/// Returns the text with which the marker of a node with this `INFO` must begin, or `None` if its votes cannot count.
fn expected(cluster: &str, info: &str) -> Option<String> {
    let find = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or_default()
    };
    let sound = find("role") == "master"
        && find("loading") == "0"
        && (find("maxmemory") == "0" || find("maxmemory_policy") == "noeviction");
    let (run_id, promoted) = (find("run_id"), find("second_repl_offset"));
    sound.then(|| format!("{cluster}run_id={run_id} promoted={promoted} floor="))
}
