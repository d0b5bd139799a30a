//! Nodes that have the marker of another configuration, or its adoption, the text by which its clients begin to take a
//! node into use.
//!
//! Clients of two configurations must not hold one lock at the same time (S37). A node with the *marker* of another
//! configuration votes for its clients. A node with its *adoption* alone does not vote yet. If so few nodes are left to
//! the other configuration that it can have no quorum, and a quorum of nodes votes for this client, then this client
//! replaces the adoption by its own. The other configuration cannot mark the node any more, because its marker needs
//! its adoption. Until the node has confirmed that, the client grants nothing: the other configuration may be quicker.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Fault, GATHER_FOR, MarkerPlan, NodeMonitor, NodeTrust, Step, Todo};
use crate::command::Failure;
use crate::node::evidence::MarkerSeen;
use crate::node::info::Info;
use crate::node::marker::{Adoption, Cluster, Marker};
use crate::redlock::quorum::NodeId;
use crate::time::Reading;

/// Another configuration whose marker or adoption a node has.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Rival {
    /// The settings of the other configuration. A failure if this version cannot read the text, or if the node belongs
    /// to another database.
    cluster: Result<Cluster, Failure>,
    /// Whether the node has the marker. Otherwise it has, or may have, the adoption alone.
    is_marked: bool,
    /// The connection on which the adoption was read, and the number of flushes announced on it until then. Zero if the
    /// adoption does not count as one that may be replaced.
    epoch: (u64, u64),
    /// Whether this client has sent a replacement of the adoption since it read the text.
    is_tried: bool,
}

/// The adoption of another configuration that this client may replace.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Contest {
    pub(super) plan: MarkerPlan,
    text: Arc<str>,
    wait_ms: u64,
}

impl Rival {
    pub(super) fn new(cluster: Result<Cluster, Failure>, is_marked: bool) -> Self {
        Self { cluster, is_marked, epoch: (0, 0), is_tried: false }
    }
}

impl NodeTrust {
    /// Whether the node had the adoption of these settings when it was last heard, on its present connection.
    fn is_adopted_for(&self, cluster: &Cluster) -> bool {
        let is_seen = |rival: &Rival| {
            !rival.is_marked && rival.cluster.as_ref() == Ok(cluster) && rival.epoch == self.epoch
        };
        self.is_near && self.rival.as_ref().is_some_and(is_seen)
    }
}

impl NodeMonitor {
    /// Whether some node has the marker or the adoption of another configuration. Then the client grants nothing (S37).
    pub(crate) fn is_contested(&self) -> bool {
        let has_rival = |trust: &NodeTrust| {
            let rival = trust.rival.as_ref();
            rival.is_some_and(|rival| !(rival.is_marked && mutant!(RivalMarkerIgnored)))
        };
        self.rules.is_strict()
            && self.nodes.iter().any(has_rival)
            && !mutant!(ReplacementNotAwaited)
    }

    /// The failure of the votes of a node that has the marker or the adoption of another configuration.
    pub(super) fn rival_failure(&self, node: NodeId) -> Option<Failure> {
        let Rival { cluster, is_marked, .. } = self.node(node).rival.as_ref()?;
        Some(match cluster {
            Ok(theirs) => {
                let (is_marked, ours) = (*is_marked, &self.rules.cluster);
                self.rules.words.failure(&Fault::OtherSettings { is_marked, theirs, ours })
            }
            Err(failure) => failure.clone(),
        })
    }

    /// Notes whether the node has the marker of another configuration, and returns whether this marker shows it (S37).
    /// That does not depend on `INFO`, with one exception: clients of every configuration refuse a replica and a node of
    /// a cluster, so a marker there does not count.
    pub(super) fn note_marker(
        &mut self,
        node: NodeId,
        info: Option<&Info>,
        marker: &MarkerSeen,
    ) -> bool {
        let rules = self.rules.clone();
        let trust = self.node_mut(node);
        if info.is_some_and(|info| !info.is_master || info.is_cluster) {
            trust.rival = None;
            return false;
        }
        let cluster = match marker {
            MarkerSeen::Text(text) => match Marker::parse(text) {
                Some(marker) => Ok(marker.cluster),
                None => Err(rules.unreadable(&rules.marker, text)),
            },
            // The node belongs to another database.
            MarkerSeen::Failed(failure) if failure.kind().is_disagreement() => Err(failure.clone()),
            MarkerSeen::Missing => {
                trust.rival = match trust.rival.take() {
                    // No client gives a marker to a server that evicts keys.
                    _ if info.is_some_and(|info| info.evicts_by.is_some()) => None,
                    // The other configuration may have begun to take the node into use again. So the node bars until
                    // its adoption has been read, which is the next step of its examination.
                    Some(Rival { is_marked: true, cluster, .. }) => {
                        rules.is_strict().then(|| Rival::new(cluster, false))
                    }
                    other => other,
                };
                return false;
            }
            MarkerSeen::Failed(_) | MarkerSeen::NotAsked => return false,
        };
        // While the node has a marker of this configuration, no other configuration can mark it.
        let is_theirs = cluster.as_ref() != Ok(&rules.cluster);
        trust.rival = is_theirs.then(|| Rival::new(cluster, true));
        if matches!(trust.review.step, Step::Contested(_)) {
            trust.review.step = Step::Rest;
        }
        is_theirs
    }

    /// Notes the adoption of another configuration that arrived after the node's examination. It may be older than the
    /// node's present data, so it does not count as one of those that can be replaced.
    pub(crate) fn note_rival(&mut self, node: NodeId, text: &str) {
        let rules = self.rules.clone();
        let trust = self.node_mut(node);
        let cluster = match Adoption::parse(text) {
            Some(adoption) => Ok(adoption.marker.cluster),
            None => Err(rules.unreadable(&rules.adoption, text)),
        };
        if cluster.as_ref() != Ok(&rules.cluster) && trust.rival.is_none() && !trust.is_trusted() {
            trust.rival = Some(Rival::new(cluster, false));
        }
    }

    /// The nodes that have the marker or the adoption of another configuration, with the failures of their votes.
    pub(crate) fn contested(&self, now: Reading) -> Vec<(NodeId, Failure)> {
        let rivals = self.quorum.node_ids().filter(|node| self.node(*node).rival.is_some());
        rivals.map(|node| (node, self.distrust_reason(node, now))).collect()
    }

    /// Handles the answer with an adoption of another configuration: its text, the marker that it announces, and its
    /// wait in milliseconds.
    pub(super) fn contest(
        &mut self,
        node: NodeId,
        mut plan: MarkerPlan,
        (text, found, wait_ms): (Arc<str>, Marker, u64),
        now: Reading,
        todo: &mut Todo,
    ) {
        plan.floor = plan.floor.max(found.floor);
        let is_strict = self.rules.is_strict();
        let trust = self.node_mut(node);
        let is_tried = trust.rival.as_ref().is_some_and(|rival| rival.is_tried);
        let (cluster, epoch) = (found.cluster, trust.epoch);
        trust.rival = Some(Rival { epoch, ..Rival::new(Ok(cluster), false) });
        if mutant!(RivalLeftAlone) {
            trust.rival = None;
            return;
        }
        // An operator has moved the node to the other configuration. A client does not undo that. A text that a
        // replacement did not change is tried again with the next examination, not at once.
        if !is_strict || Adoption::was_moved(&text) || is_tried {
            return self.refuse_rival(node);
        }
        trust.review.step = Step::Contested(Box::new(Contest { plan, text, wait_ms }));
        trust.review.due = Some(now.after(GATHER_FOR));
        self.review_contested(now, todo);
    }

    /// Replaces adoptions of other configurations that can have no quorum, once a quorum of nodes votes for this client.
    /// Refuses nodes for which this is not so although no further node will answer soon.
    pub(super) fn review_contested(&mut self, now: Reading, todo: &mut Todo) {
        for node in self.quorum.node_ids() {
            let trust = self.node(node);
            let Step::Contested(contest) = &trust.review.step else { continue };
            let is_due = trust.review.due.is_none_or(|due| due.remaining(now).is_zero());
            if self.may_replace(node) {
                let Contest { plan, text, wait_ms } = (**contest).clone();
                if let Some(rival) = &mut self.node_mut(node).rival {
                    rival.is_tried = true;
                }
                self.adopt(node, plan, Some((text, wait_ms)), now, todo);
            } else if is_due || !self.may_others_answer() {
                self.refuse_rival(node);
                let trust = self.node_mut(node);
                trust.review.due = None;
                trust.rest(now);
            }
        }
    }

    /// Whether this client has a quorum of trusted nodes, and the configuration whose adoption the node has can have
    /// none: too few nodes are left to it, because the nodes with its adoption have no marker.
    fn may_replace(&self, node: NodeId) -> bool {
        let Some(Rival { cluster: Ok(theirs), .. }) = &self.node(node).rival else {
            return false;
        };
        let count = |is: &dyn Fn(&NodeTrust) -> bool| self.nodes.iter().filter(|it| is(it)).count();
        let adopted = count(&|trust| trust.is_adopted_for(theirs));
        let is_harmless = theirs
            .nodes_and_quorum()
            .is_some_and(|(nodes, quorum)| nodes.saturating_sub(adopted) < quorum);
        let votes = count(&|trust| trust.is_trusted() && trust.is_near);
        (is_harmless || mutant!(RivalUncounted)) && self.quorum.is_reached(votes)
    }

    /// Whether an answer is outstanding that may make a node trusted, or show another adoption.
    fn may_others_answer(&self) -> bool {
        self.nodes.iter().any(|trust| match trust.review.step {
            Step::Identifying => !trust.is_trusted(),
            Step::Adopting(_) | Step::Gathering(_) | Step::Marking => true,
            Step::Contested(_) => false,
            Step::Rest => trust.epoch == (0, 0),
        })
    }

    pub(super) fn refuse_rival(&mut self, node: NodeId) {
        if let Some(failure) = self.rival_failure(node) {
            self.node_mut(node).refuse(failure);
        }
    }
}
