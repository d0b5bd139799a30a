//! Whether a node's votes count: the restart guard.
//!
//! A node that comes back without its data has forgotten its votes; if it voted again while a lock
//! that it had voted for is still held, two could have a majority. The paper's answer is to keep a
//! restarted node out for as long as the longest ttl. Here every client checks that by itself. It
//! uses what a node says of itself on each new connection (a connection never outlives the server).
//! It also uses the [marker](crate::node::marker), which vanishes with whatever else was deleted.
//!
//! ```text
//!                 sound, and marked for this run
//!   Unverified ─────────────────────────────────────────► Trusted
//!     │  ▲  ▲                                                │
//!     │  │  └── marker changed, READONLY, a new connection, a flush ──┘
//!     │  └───── time is up: it is looked at again, adopted, marked
//!     └──► Quarantined: started a moment ago, or the marker is missing
//!     └──► Refused: a replica, one that evicts keys, another's, listed twice
//! ```
//!
//! If a marker names the run of the server that answers, it was written after that run had been
//! waited for (or on the operator's word). It is in the same data as the votes, so it alone makes a
//! node trusted. Without it two waits apply, each by what can be known. One is for the server's own
//! uptime, bounded by what this client saw of an earlier run. The other is for the age of the
//! adoption; any number of clients, however short-lived, can wait for it together.

mod adopting;
mod earlier;
mod evaluation;
mod fault;
mod node;
mod run;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

pub use self::fault::{Fault, Words};
use self::run::{NodeClock, Run};
use crate::command::{Adopted, Answer, Command, Failure, FailureKind, Holding};
use crate::node::evidence::MarkerSeen;
use crate::node::marker::{Adoption, Cluster};
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::shown::seconds;
use crate::time::{BootTime, Reading};
use crate::token::Key;

/// How the client treats nodes that may have lost their data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum RestartGuard {
    /// The votes of nodes that are not trusted, or not yet, do not count.
    #[default]
    Strict,
    /// The client examines nodes as with `Strict`, and reports the outcome. All votes count, and nothing is written.
    Observe,
    /// Nodes are not examined. For tests, and for servers without important locks.
    Off,
}

/// The rules for whether a node's votes count.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rules {
    /// The mode of the restart guard. With [`RestartGuard::Off`] there are no rules.
    pub guard: RestartGuard,
    /// The settings that all clients must share.
    pub cluster: Cluster,
    /// The nodes' names, in the order of the list.
    pub names: Vec<Arc<str>>,
    /// The key of the marker.
    pub marker: Key,
    /// The key of the adoption.
    pub adoption: Key,
    /// The nodes that the operator declares durable: every write is on the disk before it is answered, and was so before the
    /// last stop.
    pub durable: NodeSet,
    /// Describes the faults of nodes to people.
    pub words: Words,
}

/// Whether a node's votes count.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TrustState {
    /// The node has not been examined on this connection yet. It gets commands, and its answers count after the
    /// examination.
    Unverified,
    /// Its votes count.
    Trusted,
    /// Its votes do not count yet.
    Quarantined {
        /// Time of the next examination. Its votes count from then on unless something else is found.
        until: BootTime,
        /// The reason.
        why: Arc<str>,
    },
    /// Its votes do not count.
    Refused(Failure),
}

impl Rules {
    /// How long a node must have been running, or have been adopted, until its votes count: a bit
    /// more than the longest ttl (S10).
    pub fn quarantine(&self) -> Duration {
        let max_ttl = Duration::from_millis(self.cluster.max_ttl_ms());
        max_ttl + max_ttl / 100 + Duration::from_secs(2)
    }

    /// Whether a server that was promoted still tells of it when the quarantine is over: that is kept for
    /// an hour, unless it is configured otherwise (`repl-backlog-ttl`).
    pub fn would_tell_of_promotions(&self) -> bool {
        self.quarantine() < Duration::from_secs(3600)
    }

    /// Whether what is found keeps votes from counting.
    pub(crate) fn is_strict(&self) -> bool {
        self.guard == RestartGuard::Strict
    }
}

/// The interval of examinations of a trusted node. They also keep its connection alive.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// The interval of examinations of a node that is not trusted, if no better time is known.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The shortest such interval. Servers round uptimes down to whole seconds, so a node may seem too young for a while.
const LOOK_SOONEST: Duration = Duration::from_millis(50);

/// How long the client waits for the times of other nodes before it marks a node without them.
pub(crate) const GATHER_FOR: Duration = Duration::from_secs(1);

/// A node's clock that was read longer ago is read again.
const FRESH: Duration = Duration::from_secs(60);

/// The trust in all nodes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NodeMonitor {
    rules: Arc<Rules>,
    quorum: Quorum,
    nodes: Vec<NodeTrust>,
}

/// The trust in one node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NodeTrust {
    /// The connection that it was looked at on, if it has been, and which of the data seen on it: how often
    /// they had been deleted or replaced.
    epoch: (u64, u64),
    trust_state: TrustState,
    /// The text that the marker must have while the node is trusted.
    marker: Option<Arc<str>>,
    run: Run,
    /// The server can be reached, as far as is known.
    is_near: bool,
    clock: NodeClock,
    /// The adoption when it was seen first: its text, its age, and when.
    adopted: Option<(Arc<str>, Duration, BootTime)>,
    /// How long its quarantine lasts is not known yet: it is no longer than its standing says.
    is_guess: bool,
    pub(crate) review: Review,
    /// The trust state that was last reported.
    pub(crate) told: Option<TrustState>,
    /// To be reported: the floor rests on the clocks of this many nodes, fewer than a quorum.
    pub(crate) few_clocks: Option<usize>,
}

/// The current step of a node's examination, and the time of the next one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Review {
    step: Step,
    /// The number of the last command about this.
    pub(crate) round: u32,
    pub(crate) due: Option<BootTime>,
    /// The entry in the engine's deadlines.
    pub(crate) wake: Option<BootTime>,
}

/// A step of a node's examination.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Step {
    /// None until the next examination is due.
    Rest,
    /// The node was asked for its `INFO`.
    Identifying,
    /// The adoption is being written or read.
    Adopting(Box<MarkerPlan>),
    /// Other nodes were asked for their times.
    Gathering(Box<MarkerPlan>),
    /// The marker is being written.
    Marking,
}

/// How a node's marker is to be written.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct MarkerPlan {
    run_id: Box<str>,
    promoted_at: i64,
    /// The marker that is there now, and its floor.
    replaces: Option<Arc<str>>,
    floor: u64,
    /// Its counters are what they were.
    lasts: bool,
    /// The server has been running for long enough by then.
    grown_at: BootTime,
    /// Why it does not vote yet.
    why: Arc<str>,
    adoption: Option<Adopted>,
}

/// When a wait is over, in words.
pub fn in_time(left: Duration) -> String {
    if left.is_zero() { "at the next use".into() } else { format!("in {} s", seconds(left)) }
}

/// Commands to send.
pub(crate) type Todo = Vec<(NodeId, Command)>;

impl NodeMonitor {
    pub(crate) fn new(rules: Rules, quorum: Quorum) -> Self {
        let nodes = quorum.node_ids().map(|_| NodeTrust::new()).collect();
        Self { rules: Arc::new(rules), quorum, nodes }
    }

    pub(crate) fn node(&self, node: NodeId) -> &NodeTrust {
        &self.nodes[node.index()]
    }

    pub(crate) fn node_mut(&mut self, node: NodeId) -> &mut NodeTrust {
        &mut self.nodes[node.index()]
    }

    /// Whether there is a node that is not to be sent anything that asks for a vote.
    pub(crate) fn excludes_any(&self) -> bool {
        let may_vote = |trust: &NodeTrust| {
            matches!(trust.trust_state, TrustState::Unverified | TrustState::Trusted)
        };
        !self.nodes.iter().all(may_vote)
    }

    /// Whether the node is to be sent anything that asks for a vote; if not, why.
    pub(crate) fn exclusion(&self, node: NodeId, now: Reading) -> Option<Failure> {
        match self.node(node).trust_state {
            TrustState::Unverified | TrustState::Trusted => None,
            _ if !self.rules.is_strict() => None,
            _ => Some(self.distrust_reason(node, now).unexecuted()),
        }
    }

    /// The clients of these nodes do not agree: nobody may have a lock until that is mended.
    pub(crate) fn is_disagreed(&self) -> bool {
        let disagrees = |trust: &NodeTrust| matches!(&trust.trust_state, TrustState::Refused(failure) if failure.kind().is_disagreement());
        self.rules.is_strict() && self.nodes.iter().any(disagrees)
    }

    /// Whether the trust in some node will be known in a few round trips. `hears`: whether a node that has never answered may
    /// still do so.
    pub(crate) fn is_settling(&self, hears: impl Fn(NodeId) -> bool) -> bool {
        let settles = |node: NodeId| {
            let trust = self.node(node);
            match trust.review.step {
                Step::Adopting(_) | Step::Gathering(_) | Step::Marking => true,
                Step::Identifying => !trust.is_trusted(),
                Step::Rest => trust.epoch == (0, 0) && hears(node),
            }
        };
        self.quorum.node_ids().any(settles)
    }

    /// A node is being taken into use at this moment.
    pub(crate) fn is_adopting(&self) -> bool {
        let adopts = |trust: &NodeTrust| {
            matches!(trust.review.step, Step::Adopting(_) | Step::Gathering(_) | Step::Marking)
        };
        self.nodes.iter().any(adopts)
    }

    /// The time of nodes is awaited.
    pub(crate) fn is_gathering(&self) -> bool {
        self.nodes.iter().any(|trust| matches!(trust.review.step, Step::Gathering(_)))
    }

    /// In what time a quorum of nodes will be trusted, for all we know; `None`: that depends on people.
    pub(crate) fn quorum_in(&self, now: Reading) -> Option<Duration> {
        self.quorum_by(NodeSet::default(), now, |_| false)
    }

    /// The same, of the nodes that are not down.
    pub(crate) fn quorum_without(&self, down: NodeSet, now: Reading) -> Option<Duration> {
        self.quorum_by(down, now, |_| false)
    }

    /// The same, at the earliest: others may have waited already for a node of which it is not known.
    pub(crate) fn quorum_in_at_least(&self, now: Reading) -> Option<Duration> {
        self.quorum_by(NodeSet::default(), now, |trust| trust.is_guess)
    }

    fn quorum_by(
        &self,
        down: NodeSet,
        now: Reading,
        is_soon: impl Fn(&NodeTrust) -> bool,
    ) -> Option<Duration> {
        if self.is_disagreed() {
            return None;
        }
        let in_time = |trust: &NodeTrust| match &trust.trust_state {
            TrustState::Unverified | TrustState::Trusted => Some(Duration::ZERO),
            TrustState::Quarantined { .. } if is_soon(trust) => Some(Duration::ZERO),
            TrustState::Quarantined { until, .. } => Some(until.remaining(now)),
            TrustState::Refused(_) => None,
        };
        let nodes =
            self.quorum.node_ids().zip(&self.nodes).filter(|(node, _)| !down.contains(*node));
        let mut times: Vec<Duration> = nodes.filter_map(|(_, trust)| in_time(trust)).collect();
        times.sort_unstable();
        times.get(self.quorum.needed() - 1).copied()
    }

    /// Takes what goes with a batch of answers, if it is what nearly always does. `Some(None)`: what they say about votes
    /// counts; `Some` with a failure: it does not, and why. `None`: it is to be [handled](Self::handle_evidence).
    pub(crate) fn confirm(
        &mut self,
        node: NodeId,
        epoch: (u64, u64),
        marker: &MarkerSeen,
        sent: Reading,
    ) -> Option<Option<Failure>> {
        if !self.node_mut(node).is_confirmed(epoch, marker, sent) {
            return None;
        }
        Some(match marker {
            MarkerSeen::NotAsked => self.distrust(Failure::new(FailureKind::Unverified)),
            _ => None,
        })
    }

    /// Takes what goes with a batch of answers. `None`: what they say about votes counts. If not, why.
    pub(crate) fn handle_evidence(
        &mut self,
        node: NodeId,
        epoch: (u64, u64),
        (info, marker): (Option<&Result<Arc<str>, Failure>>, &MarkerSeen),
        sent: Reading,
        now: Reading,
        todo: &mut Todo,
    ) -> Option<Failure> {
        let trust = self.node_mut(node);
        if epoch < trust.epoch && !mutant!(OldEpochCounts) {
            // Its connection has been replaced since, and its server perhaps too (S1).
            return self.distrust(Failure::new(FailureKind::Unverified));
        }
        let (connection, _) = trust.epoch;
        // The question for `INFO` was in vain. A node that always announces new data must not be asked all the time.
        let in_vain =
            epoch > trust.epoch && connection == epoch.0 && trust.review.step == Step::Identifying;
        if epoch > trust.epoch && (connection != epoch.0 || !mutant!(FlushKeepsTrust)) {
            trust.epoch = epoch;
            if !mutant!(NoVerificationOnReconnect) || trust.marker.is_none() {
                trust.trust_state = TrustState::Unverified;
                trust.marker = None;
            }
            trust.review.step = Step::Rest;
        }
        let was_away = !core::mem::replace(&mut trust.is_near, true);
        if let Some(info) = info {
            if !mutant!(NoVerificationOnReconnect) || self.node(node).marker.is_none() {
                self.evaluate(node, info.clone(), marker, sent, now, todo);
            }
        } else {
            trust.run.answered = Some(sent.boot());
            let is_gone = !trust.is_marked_as(marker) && *marker != MarkerSeen::NotAsked;
            if trust.is_trusted() && is_gone {
                trust.distrust();
            }
            if in_vain {
                trust.review.round += 1;
                trust.review.due = Some(now.after(LOOK_SOONEST));
            } else if matches!(
                (&trust.trust_state, &trust.review.step),
                (TrustState::Unverified, Step::Rest)
            ) {
                trust.identify(node, todo);
            }
        }
        // The server behind a connection does not change; but while it was away, another name may have come
        // to lead to it (S3).
        if was_away && !mutant!(DuplicateReturns) {
            if let Some(duplicate) = self.duplicate_of(node, now) {
                self.refuse_duplicates(node, duplicate);
            } else if self.node(node).is_trusted()
                && let Some((until, why)) = self.has_second_vote(node, now)
            {
                self.node_mut(node).hold_back(until, why, now);
            }
        }
        let trust = self.node_mut(node);
        if trust.is_trusted() && trust.is_marked_as(marker) {
            trust.run.voted = Some(sent.boot());
            return None;
        }
        self.distrust(self.distrust_reason(node, now))
    }

    /// The failure for votes that do not count. `None` without [`RestartGuard::Strict`], because all votes count then.
    fn distrust(&self, failure: Failure) -> Option<Failure> {
        let counts = mutant!(QuarantinedCounts) && failure.kind() == FailureKind::Quarantined;
        (self.rules.is_strict() && !counts).then_some(failure)
    }

    /// Why the node's votes do not count.
    fn distrust_reason(&self, node: NodeId, now: Reading) -> Failure {
        match &self.node(node).trust_state {
            TrustState::Unverified | TrustState::Trusted => Failure::new(FailureKind::Unverified),
            TrustState::Quarantined { until, why } => {
                let left = until.remaining(now);
                let detail = format!("{why}, its votes count {}", in_time(left));
                Failure::new(FailureKind::Quarantined).with_detail(detail).clearing_in(left)
            }
            TrustState::Refused(failure) => failure.clone(),
        }
    }

    /// Takes the answer to a command about trust.
    pub(crate) fn handle_answer(
        &mut self,
        node: NodeId,
        answer: Answer,
        now: Reading,
        todo: &mut Todo,
    ) {
        let trust = self.node_mut(node);
        match (core::mem::replace(&mut trust.review.step, Step::Rest), answer) {
            (Step::Adopting(plan), Answer::Adopting { text, age }) => {
                self.adopting(node, *plan, (text, age), now, todo);
            }
            (Step::Adopting(plan), Answer::Seen(Holding::Held { value, ttl: Some(ttl) })) => {
                let age = Duration::from_millis(Adoption::TTL_MS).saturating_sub(ttl);
                let text = String::from_utf8_lossy(&value).as_ref().into();
                self.adopting(node, *plan, (text, age), now, todo);
            }
            (Step::Marking, Answer::Marked) => trust.identify(node, todo),
            // Somebody else has marked it meanwhile.
            (Step::Adopting(_), Answer::NotMarked) => {
                trust.review.due = Some(now.after(LOOK_SOONEST))
            }
            // The evidence beside the answers had the `INFO`, and may have led to a further step.
            (step, Answer::Identified) => {
                trust.review.step = if step == Step::Identifying { Step::Rest } else { step };
                trust.rest(now);
            }
            // Unreachable, or somebody else was faster: looked at again soon.
            (_, answer) => {
                trust.is_near &=
                    !matches!(&answer, Answer::Failed(failure) if failure.kind().is_about_reach());
                trust.review.due = Some(now.after(LOOK_AGAIN));
            }
        }
        self.node_mut(node).rest(now);
        self.review_gathering(now, todo);
    }

    /// Its time has come: it is looked at again, or goes on without the time of others.
    pub(crate) fn handle_due(&mut self, node: NodeId, now: Reading, todo: &mut Todo) {
        let trust = self.node_mut(node);
        if trust.review.due.is_none_or(|due| !due.remaining(now).is_zero()) {
            return;
        }
        match trust.review.step {
            Step::Rest => trust.identify(node, todo),
            Step::Gathering(_) => self.review_gathering(now, todo),
            Step::Identifying | Step::Adopting(_) | Step::Marking => trust.review.due = None,
        }
    }

    /// The node has said that it does not take writes at the moment: perhaps it is another than it was.
    pub(crate) fn suspect(&mut self, node: NodeId, todo: &mut Todo) {
        let trust = self.node_mut(node);
        if trust.is_trusted() {
            trust.distrust();
            trust.identify(node, todo);
        }
    }

    /// Its data may have been deleted or replaced.
    pub(crate) fn look_again(&mut self, node: NodeId, todo: &mut Todo) {
        let trust = self.node_mut(node);
        if trust.is_trusted() && trust.review.step == Step::Rest {
            trust.identify(node, todo);
        }
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        let quarantine = self.rules.quarantine();
        for trust in &mut self.nodes {
            trust.shift(base);
            trust.forget(quarantine);
        }
    }
}
