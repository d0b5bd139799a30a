//! Whether a node's votes count: the restart guard.
//!
//! A node that restarts without its data has forgotten its votes. If it voted again while a lock that it had voted for
//! is still held, two clients could have a majority. The paper's remedy is to keep a restarted node out for the longest
//! ttl. Here every client checks this by itself. It reads the node's `INFO` on each new connection (a connection never
//! outlives the server process), and the [marker](crate::node::marker), which vanishes together with any other deleted
//! data.
//!
//! ```text
//!                 sound, and marked for this run
//!   Unverified ─────────────────────────────────────────► Trusted
//!     │  ▲  ▲                                                │
//!     │  │  └── marker changed, READONLY, a new connection, a flush ──┘
//!     │  └───── time is up: examined again, adopted, marked
//!     └──► Quarantined: started a moment ago, or the marker is missing
//!     └──► Refused: a replica, evicts keys, other settings, listed twice
//! ```
//!
//! A marker that names the present run of the server was written after the quarantine of that run, or because an
//! operator vouched for the node. The marker is part of the same data as the votes, so it alone makes a node trusted.
//! Without such a marker, the node has to pass two waits. The server must have been running for long enough; the client
//! bounds the reported uptime by its own observations of an earlier run. The adoption, a text by which a client starts
//! the wait, must be old enough. It is stored on the node, so several short-lived clients can wait one after the other.

mod adopting;
mod doubt;
mod evaluation;
mod fault;
mod node;
mod rival;
mod rules;
mod run;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use self::doubt::ReplicasSeen;
pub use self::fault::{Fault, Words};
use self::rival::{Contest, Rival};
pub use self::rules::{RestartGuard, Rules};
use self::run::{NodeClock, Run};
use crate::command::{Adopted, Answer, Command, Failure, FailureKind, Holding};
use crate::display::seconds;
use crate::node::evidence::MarkerSeen;
use crate::node::info::Info;
use crate::node::marker::Adoption;
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::time::{BootTime, Reading};

/// Whether a node's votes count.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TrustState {
    /// The node has not been examined on this connection yet. It gets commands, and its answers count after the
    /// examination.
    Unverified,
    /// The node's votes count.
    Trusted,
    /// The node's votes do not count yet.
    Quarantined {
        /// Expected end of the quarantine. The node's votes count from then on unless an examination finds another
        /// reason against them.
        until: BootTime,
        /// The reason of the quarantine, for people.
        why: Arc<str>,
    },
    /// The node's votes do not count.
    Refused(Failure),
}

/// The interval of examinations of a trusted node. The examinations also keep its connection alive.
const EXAMINE_EVERY: Duration = Duration::from_secs(15);

/// The longest interval of examinations of an untrusted node. If its wait ends earlier, the next one follows then.
const EXAMINE_AGAIN: Duration = Duration::from_secs(2);

/// The shortest interval of examinations. Servers round uptimes down to whole seconds, so a node may seem too young for
/// a moment after its wait, and must not be asked all the time.
const EXAMINE_SOONEST: Duration = Duration::from_millis(50);

/// How long the client waits for the wall clocks of other nodes. After that it writes a node's marker, and computes the
/// floor in it from the clocks that it knows.
pub(crate) const GATHER_FOR: Duration = Duration::from_secs(1);

/// After this time, a reading of a node's wall clock is stale and no longer counts.
const FRESH: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NodeMonitor {
    rules: Arc<Rules>,
    quorum: Quorum,
    nodes: Vec<NodeTrust>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NodeTrust {
    /// The connection of the last evidence (`INFO` and marker), counted from one, and the number of times that the node
    /// had announced on it that its data were deleted or replaced.
    epoch: (u64, u64),
    trust_state: TrustState,
    /// The text that the marker must have while the node is trusted; `None` while the node is not trusted.
    marker: Option<Arc<str>>,
    run: Run,
    /// True after an answer of the node. False once a command about trust has failed to reach the node.
    is_near: bool,
    clock: NodeClock,
    /// Whether the node has announced that its data was deleted or replaced, and has not been identified since.
    has_new_data: bool,
    has_lost_data: bool,
    /// The failure of the last `INFO`, if that is why the node is unverified: the server is busy, for example.
    pub(crate) unread: Option<Failure>,
    /// The node's adoption (the text that started its wait) in its last answer: the text, its age as this client bounds
    /// it, and the time of the answer. `None` before the first such answer, and once the node is trusted.
    adopted: Option<(Arc<str>, Duration, BootTime)>,
    /// The other configuration whose marker or adoption the node had when it was last heard; `None` if it had none, or
    /// this client has replaced it. While a node has a rival, the client grants nothing (S37).
    rival: Option<Rival>,
    /// Whether the age of the adoption (the text that started the wait) is not known yet. Then the end of the
    /// quarantine in `trust_state` is only an upper bound.
    is_guess: bool,
    /// The node's replicas when they were last counted.
    replicas: ReplicasSeen,
    pub(crate) review: Review,
    pub(crate) reported: Option<TrustState>,
    /// The last greeted connection, and whether `Effect::Identified` said that the node is trusted on it.
    pub(crate) last_identified: (u64, bool),
    /// Number of clocks from which the floor (the smallest fencing token) was computed, if they are fewer than a quorum
    /// and this was not reported yet; otherwise `None`.
    pub(crate) few_clocks: Option<usize>,
}

/// The current step of a node's examination, and the time of the next one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Review {
    step: Step,
    /// The number of the last command about trust. The client ignores answers to earlier ones.
    pub(crate) round: u32,
    pub(crate) due: Option<BootTime>,
    /// Time of this record's entry in the engine's deadline index; `None` without an entry.
    pub(crate) wake: Option<BootTime>,
}

/// A step of a node's examination.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Step {
    /// Nothing is in flight. The next examination has a due time.
    Rest,
    Identifying,
    /// The adoption, which starts the node's wait, is being written or read.
    Adopting(Box<MarkerPlan>),
    /// The node has the adoption of another configuration. Other nodes are to be heard before the client replaces it.
    Contested(Box<Contest>),
    /// Other nodes were asked for their wall clocks, from which the floor of this node's marker follows.
    Gathering(Box<MarkerPlan>),
    Marking,
}

/// The marker that is to be written, and its conditions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct MarkerPlan {
    run_id: Box<str>,
    promoted_at: i64,
    /// The present marker, which the new one replaces; `None` if there is none.
    replaces: Option<Arc<str>>,
    floor: u64,
    /// Whether the node lost no data, so that its fencing counters are still right.
    lasts: bool,
    /// Time from which the server has run, and the node has waited, for long enough to vote.
    grown_at: BootTime,
    /// The reason why the node does not vote yet, for people.
    why: Arc<str>,
    adoption: Option<Adopted>,
}

/// Formats the time until a wait ends, for messages.
pub fn in_time(left: Duration) -> String {
    if left.is_zero() { "at the next use".into() } else { format!("in {} s", seconds(left)) }
}

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

    /// Whether some node is quarantined or refused. If not, the client may ask every node for votes.
    pub(crate) fn excludes_any(&self) -> bool {
        let may_vote = |trust: &NodeTrust| {
            matches!(trust.trust_state, TrustState::Unverified | TrustState::Trusted)
        };
        !self.nodes.iter().all(may_vote) || self.is_contested()
    }

    /// The reason why the client must not ask the node for votes; `None` if it may.
    pub(crate) fn exclusion(&self, node: NodeId, now: Reading) -> Option<Failure> {
        match self.node(node).trust_state {
            _ if !self.rules.is_strict() => None,
            TrustState::Unverified | TrustState::Trusted if self.node(node).rival.is_none() => None,
            _ => Some(self.distrust_reason(node, now).unexecuted()),
        }
    }

    /// Whether commands that prolong a lock without a guard may be sent on this connection: the node's votes count
    /// there, or the restart guard is not strict.
    pub(crate) fn is_identified(&self, node: NodeId, connection: u64) -> bool {
        let trust = self.node(node);
        let is_trusted = trust.epoch.0 == connection && trust.is_trusted();
        is_trusted && !trust.has_new_data || !self.rules.is_strict()
    }

    /// Whether the clients of these nodes have different settings. Then no client may acquire a lock until a person
    /// corrects them.
    pub(crate) fn is_disagreed(&self) -> bool {
        let disagrees = |trust: &NodeTrust| matches!(&trust.trust_state, TrustState::Refused(failure) if failure.kind().is_disagreement() && !mutant!(RivalMarkerIgnored));
        self.rules.is_strict() && self.nodes.iter().any(disagrees)
    }

    /// Whether the examination of some untrusted node will be over in a few round trips. `hears` returns whether a node
    /// that has never answered may still answer.
    pub(crate) fn is_settling(&self, hears: impl Fn(NodeId) -> bool) -> bool {
        let settles = |node: NodeId| {
            let trust = self.node(node);
            match trust.review.step {
                Step::Adopting(_) | Step::Contested(_) | Step::Gathering(_) | Step::Marking => true,
                Step::Identifying => !trust.is_trusted(),
                Step::Rest => trust.epoch == (0, 0) && hears(node),
            }
        };
        self.quorum.node_ids().any(settles)
    }

    pub(crate) fn is_adopting(&self) -> bool {
        let adopts = |trust: &NodeTrust| {
            matches!(trust.review.step, Step::Adopting(_) | Step::Gathering(_) | Step::Marking)
        };
        self.nodes.iter().any(adopts)
    }

    /// Whether some node waits for other nodes: for their wall clocks, or for the first answer of each of them.
    pub(crate) fn is_gathering(&self) -> bool {
        let waits = |trust: &NodeTrust| {
            matches!(trust.review.step, Step::Gathering(_) | Step::Contested(_))
        };
        self.nodes.iter().any(waits)
    }

    /// The expected time until a quorum of nodes is trusted; `None` if that depends on a person.
    pub(crate) fn quorum_in(&self, now: Reading) -> Option<Duration> {
        self.quorum_by(NodeSet::default(), now, |_| false)
    }

    /// Like [`quorum_in`](Self::quorum_in), but the nodes in `down` do not count.
    pub(crate) fn quorum_without(&self, down: NodeSet, now: Reading) -> Option<Duration> {
        self.quorum_by(down, now, |_| false)
    }

    /// Like [`quorum_in`](Self::quorum_in), but a lower bound, because another client may have begun a node's wait
    /// earlier than this client knows.
    pub(crate) fn quorum_in_at_least(&self, now: Reading) -> Option<Duration> {
        self.quorum_by(NodeSet::default(), now, |trust| trust.is_guess)
    }

    fn quorum_by(
        &self,
        down: NodeSet,
        now: Reading,
        is_soon: impl Fn(&NodeTrust) -> bool,
    ) -> Option<Duration> {
        if self.is_disagreed() || self.is_contested() {
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

    /// Handles the evidence of a batch of answers if the node stays trusted, as usual. Returns `Some(None)` if votes
    /// in the batch count, and `Some` with the reason if they do not. Returns `None` if the caller must call
    /// [`handle_evidence`](Self::handle_evidence).
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

    /// Handles the evidence of a batch of answers. Returns the reason why votes in the batch do not count; `None` if
    /// they do.
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
            // The batch belongs to an earlier connection, perhaps to another server, or to data that were replaced
            // since (S1).
            return self.distrust(Failure::new(FailureKind::Unverified));
        }
        let parsed = info.and_then(|info| Info::parse(info.as_ref().ok()?).ok());
        trust.note_loss(epoch, parsed.as_ref(), marker);
        let (connection, _) = trust.epoch;
        // The data were replaced while `INFO` was in flight, so `INFO` describes the old data. The next request waits,
        // so that a node that announces new data all the time is not asked all the time.
        let in_vain =
            epoch > trust.epoch && connection == epoch.0 && trust.review.step == Step::Identifying;
        if epoch > trust.epoch && (connection != epoch.0 || !mutant!(FlushKeepsTrust)) {
            trust.epoch = epoch;
            trust.has_new_data = false;
            if !mutant!(NoVerificationOnReconnect) || trust.marker.is_none() {
                trust.trust_state = TrustState::Unverified;
                trust.marker = None;
            }
            trust.review.step = Step::Rest;
        }
        let was_away = !core::mem::replace(&mut trust.is_near, true);
        let is_theirs = self.note_marker(node, parsed.as_ref(), marker);
        if let Some(info) = info {
            if !mutant!(NoVerificationOnReconnect) || self.node(node).marker.is_none() {
                self.evaluate(node, info.clone(), marker, sent, now, todo);
                if is_theirs {
                    // This needs a person, so calls that wait end, even if the examination found another fault.
                    self.refuse_rival(node);
                }
            }
        } else {
            let trust = self.node_mut(node);
            trust.run.answered = Some(sent.boot());
            let is_gone = !trust.is_marked_as(marker) && *marker != MarkerSeen::NotAsked;
            if trust.is_trusted() && is_gone {
                trust.distrust();
            }
            if in_vain {
                trust.review.round += 1;
                trust.review.due = Some(now.after(EXAMINE_SOONEST));
            } else if matches!(
                (&trust.trust_state, &trust.review.step),
                (TrustState::Unverified, Step::Rest)
            ) {
                trust.identify(node, todo);
            }
        }
        // While the node was unreachable, another name of the list may have been redirected to the node's server. Then
        // two names would count the votes of one server (S3).
        if was_away && !mutant!(DuplicateReturns) {
            if let Some(duplicate) = self.duplicate_of(node, now) {
                self.refuse_duplicates(node, duplicate);
            } else if self.node(node).is_trusted()
                && let Some((until, why)) = self.has_second_vote(node, now)
            {
                self.node_mut(node).hold_back(until, why, now);
            }
        }
        self.review_contested(now, todo);
        let trust = self.node_mut(node);
        if trust.is_trusted() && trust.is_marked_as(marker) {
            trust.run.voted = Some(sent.boot());
            return None;
        }
        // A server that is busy or loading says so in its answer to `INFO`.
        let said = match (info, &trust.trust_state) {
            // The votes in the batch may have been given.
            (Some(Err(failure)), TrustState::Unverified) => Some(failure.clone().executed()),
            _ => None,
        };
        self.distrust(said.unwrap_or_else(|| self.distrust_reason(node, now)))
    }

    /// The failure for votes that do not count. `None` without [`RestartGuard::Strict`], because all votes count then.
    fn distrust(&self, failure: Failure) -> Option<Failure> {
        let counts = mutant!(QuarantinedCounts) && failure.kind() == FailureKind::Quarantined;
        (self.rules.is_strict() && !counts).then_some(failure)
    }

    /// Why the node's votes do not count.
    fn distrust_reason(&self, node: NodeId, now: Reading) -> Failure {
        match (&self.node(node).trust_state, self.rival_failure(node)) {
            (TrustState::Refused(failure), None) => failure.clone(),
            (_, Some(failure)) => failure,
            (TrustState::Unverified | TrustState::Trusted, None) => {
                Failure::new(FailureKind::Unverified)
            }
            (TrustState::Quarantined { until, why }, None) => {
                let left = until.remaining(now);
                let detail = format!("{why}; its votes count {}", in_time(left));
                Failure::new(FailureKind::Quarantined).with_detail(detail).clearing_in(left)
            }
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
            // Another client has written or deleted the marker meanwhile, so the node is examined again.
            (Step::Adopting(_), Answer::NotMarked) => {
                trust.review.due = Some(now.after(EXAMINE_SOONEST))
            }
            // A later answer has ended the examination, for example because the server is loading its data. Nobody has
            // replaced the adoption since, so it bars until the next examination (S37).
            (Step::Rest, Answer::Adopting { text, .. }) => {
                trust.review.due = Some(now.after(EXAMINE_AGAIN));
                self.note_rival(node, &text);
            }
            // The `INFO` came with these answers. The engine has handled it, and may have begun a further step.
            (step, Answer::Identified) => {
                trust.review.step = if step == Step::Identifying { Step::Rest } else { step };
                trust.rest(now);
            }
            // The command failed, or the node's marker or adoption is not as expected. The node is examined again soon.
            (step, answer) => {
                trust.is_near &=
                    !matches!(&answer, Answer::Failed(failure) if failure.kind().is_about_reach());
                // The examination that began the adoption has found no text of others, so an earlier refusal for it is
                // over.
                let is_refused = matches!(&trust.trust_state, TrustState::Refused(failure) if failure.kind().is_disagreement());
                if matches!(step, Step::Adopting(_)) && trust.rival.is_none() && is_refused {
                    trust.trust_state = TrustState::Unverified;
                }
                trust.review.due = Some(now.after(EXAMINE_AGAIN));
            }
        }
        self.node_mut(node).rest(now);
        self.review_contested(now, todo);
        self.review_gathering(now, todo);
    }

    /// Handles the deadline of a node: examines it again, or marks it without the clocks of nodes that did not answer.
    pub(crate) fn handle_due(&mut self, node: NodeId, now: Reading, todo: &mut Todo) {
        let trust = self.node_mut(node);
        if trust.review.due.is_none_or(|due| !due.remaining(now).is_zero()) {
            return;
        }
        match trust.review.step {
            Step::Rest => trust.identify(node, todo),
            Step::Contested(_) => self.review_contested(now, todo),
            Step::Gathering(_) => self.review_gathering(now, todo),
            Step::Identifying | Step::Adopting(_) | Step::Marking => trust.review.due = None,
        }
    }

    /// Examines a node that refused a write, because its name may lead to another server now.
    pub(crate) fn suspect(&mut self, node: NodeId, todo: &mut Todo) {
        let trust = self.node_mut(node);
        if trust.is_trusted() {
            trust.distrust();
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
