//! What is known of the answers' worth: from the facts alone, without asking the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use quorlock_core::{Evidence, Failure, FailureKind, MarkerSeen, RestartGuard, Rules, Ticket};

use crate::fact::{ClientId, NodeIndex};
use crate::plan::Modes;

/// Why a yes must not count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Void {
    /// It came on a connection that was not verified, or the marker was not there behind it (S9).
    Unverified,
    /// It was given by a node that had lost what it knew so short a time ago that votes may still count
    /// which it had given before (S10).
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

/// What the nodes have said of themselves to each client; only where the restart guard is strict.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct EvidenceLog {
    /// What the markers begin with.
    cluster: Option<String>,
    /// What the clients make of what nodes say of themselves, if it is not the same for all.
    modes: Modes,
    lines: BTreeMap<(ClientId, NodeIndex), ConnectionEvidence>,
    /// What nodes have carried out in their quarantine.
    early: BTreeSet<(ClientId, NodeIndex, Ticket)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct ConnectionEvidence {
    epoch: (u64, u64),
    /// What the marker must say: what it said when the node had just said what it is, if that fits.
    expected: Option<Arc<str>>,
    /// The marker was there behind the last batch.
    marked: bool,
}

impl EvidenceLog {
    pub(crate) fn new(rules: &Rules, modes: Modes) -> Self {
        let is_strict = rules.guard == RestartGuard::Strict;
        let cluster = is_strict.then(|| format!("quorlock 1 {} ", rules.cluster));
        Self { cluster, modes, ..Self::default() }
    }

    /// Nothing counts for this client but what is proved.
    pub(crate) fn are_needed(&self, client: ClientId) -> bool {
        let is_strict = |mode| mode == RestartGuard::Strict;
        self.cluster.is_some() && self.modes.of(client).is_none_or(is_strict)
    }

    /// What comes with a batch of answers.
    pub(crate) fn note(&mut self, client: ClientId, node: NodeIndex, evidence: &Evidence) {
        let (Some(cluster), Evidence::Seen { epoch, flushes, info, marker }) =
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

    /// A node refuses as one does that is not a master any more, or has just been started: it has to say
    /// anew what it is.
    pub(crate) fn note_failure(&mut self, client: ClientId, node: NodeIndex, failure: &Failure) {
        use FailureKind::{Loading, MasterDown, ReadOnly};
        if let Some(line) = self.lines.get_mut(&(client, node))
            && matches!(failure.kind(), Loading | MasterDown | ReadOnly)
        {
            line.expected = None;
        }
    }

    /// A node has carried out a command in its quarantine.
    pub(crate) fn note_early(&mut self, client: ClientId, node: NodeIndex, ticket: Ticket) {
        if self.are_needed(client) {
            self.early.insert((client, node, ticket));
        }
    }

    /// A client is done with everything.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.lines.retain(|(its, _), _| *its != client);
        self.early.retain(|(its, ..)| *its != client);
    }

    /// Whether an answer that comes now must not count.
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

/// What the marker of a node begins with that says this of itself; `None`: it cannot be sound.
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
