//! Whether a node's votes count: the restart guard.
//!
//! A node that comes back without its data has forgotten its votes; if it voted again while a lock
//! that it had voted for is still held, two could have a majority. The paper's answer is to keep a
//! restarted node out for as long as the longest ttl. Here every client sees to that by itself: from
//! what a node says of itself on each new connection (a connection never outlives the server), and
//! from the [marker](crate::marker), which vanishes with whatever else was deleted.
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
//! A marker that names the run of the server that answers was written after that run had been waited
//! for (or on the operator's word), and it is in the same data as the votes: so it alone makes a node
//! trusted. Without it two waits apply, each by what can be known: the server's own uptime, bounded by
//! what this client saw of an earlier run; and the age of the adoption, which any number of clients,
//! however short-lived, can wait for together.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Adopted, Answer, Command, Counter, Failure, FailureKind, Holding};
use crate::info::Info;
use crate::marker::{Adoption, Cluster, Marker};
use crate::proof::MarkerSeen;
use crate::quorum::{NodeId, NodeSet, Quorum};
use crate::shown::{SETTINGS_MAX, WORD_MAX, shown, shown_text};
use crate::time::{BootTime, Reading};
use crate::token::Key;

/// How much is made of what nodes say of themselves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum RestartGuard {
    /// Votes of nodes that are not to be trusted, or not yet, do not count.
    #[default]
    Strict,
    /// Nodes are looked at as by `Strict`, and what is found is told; but all votes count, and nothing
    /// is written.
    Observe,
    /// Nodes are not looked at. For tests, and for servers whose locks nobody relies on.
    Off,
}

/// What nodes are measured by.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rules {
    /// How much is made of it. With [`RestartGuard::Off`] there are no rules.
    pub guard: RestartGuard,
    /// What all clients must agree on.
    pub cluster: Cluster,
    /// The nodes' names, in the order of the list.
    pub names: Vec<Arc<str>>,
    /// The key of the marker.
    pub marker: Key,
    /// The key of the adoption.
    pub adoption: Key,
    /// The nodes of which the operator says that they forget nothing when they stop: every write is on
    /// the disk before it is answered, and was so before the last stop.
    pub lasting: NodeSet,
}

/// Whether a node's votes count.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Standing {
    /// It has not been looked at on this connection yet: it may be asked, and what it answers counts
    /// once it has been.
    Unverified,
    /// They do.
    Trusted,
    /// They do not yet.
    Quarantined {
        /// When it is looked at again; its votes count from then on if nothing comes between.
        until: BootTime,
        /// Why.
        why: Arc<str>,
    },
    /// They do not.
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

/// A node that is trusted is looked at again this often; that also keeps its connection alive.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// A node that is not is looked at again after so long, if nothing else is known.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// But not sooner than this: an uptime is told in whole seconds, and may be short by a moment for long.
const LOOK_SOONEST: Duration = Duration::from_millis(50);

/// For so long other nodes are asked for their time before one is marked without it.
pub(crate) const GATHER_FOR: Duration = Duration::from_secs(1);

/// A node's clock that was read longer ago is read again.
const FRESH: Duration = Duration::from_secs(60);

/// What is known of all nodes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Watch {
    rules: Arc<Rules>,
    quorum: Quorum,
    nodes: Vec<Trust>,
}

/// What is known of one node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Trust {
    /// The connection that it was looked at on, if it has been, and which of the data seen on it: how often
    /// they had been deleted or replaced.
    epoch: (u64, u64),
    standing: Standing,
    /// What the marker must say, while it is trusted.
    marker: Option<Arc<str>>,
    /// The run of the server, and whether it can be reached for all we know.
    run_id: Option<Box<str>>,
    is_near: bool,
    /// When the newest command was sent that this run has answered; and an earlier run.
    answered: Option<BootTime>,
    answered_before: Option<BootTime>,
    /// How many seconds this run had been running by its own account when it was first heard of, and when
    /// that was.
    first: Option<(u64, BootTime)>,
    /// Its wall clock in microseconds, when it was asked.
    clock: Option<(i64, BootTime)>,
    /// It was heard long after it was asked for.
    is_clock_late: bool,
    /// The adoption when it was seen first: its text, its age, and when.
    adopted: Option<(Arc<str>, Duration, BootTime)>,
    /// How long its quarantine lasts is not known yet: it is no longer than its standing says.
    is_guess: bool,
    step: Step,
    /// The number of the last command about this.
    pub(crate) round: u32,
    pub(crate) due: Option<BootTime>,
    /// Where it stands in the engine's deadlines.
    pub(crate) wake: Option<BootTime>,
    /// What has been told of its standing.
    pub(crate) told: Option<Standing>,
    /// Its floor has been set by the clocks of so few nodes, and that is to be told.
    pub(crate) few_clocks: Option<usize>,
}

/// What is being done about a node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Step {
    /// Nothing, until it is due.
    Rest,
    /// It has been asked what it is.
    Greeting,
    /// Its adoption has been asked for.
    Adopting(Box<Plan>),
    /// Others have been asked for their time.
    Gathering(Box<Plan>),
    /// Its marker is being written.
    Marking,
}

/// How a node's marker is to be written.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Plan {
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

/// What is to be sent.
pub(crate) type Todo = Vec<(NodeId, Command)>;

impl Watch {
    pub(crate) fn new(rules: Rules, quorum: Quorum) -> Self {
        let nodes = quorum.node_ids().map(|_| Trust::new()).collect();
        Self { rules: Arc::new(rules), quorum, nodes }
    }

    pub(crate) fn node(&self, node: NodeId) -> &Trust {
        &self.nodes[node.index()]
    }

    pub(crate) fn node_mut(&mut self, node: NodeId) -> &mut Trust {
        &mut self.nodes[node.index()]
    }

    /// Whether there is a node that is not to be sent anything that asks for a vote.
    pub(crate) fn bars_any(&self) -> bool {
        let may_vote =
            |trust: &Trust| matches!(trust.standing, Standing::Unverified | Standing::Trusted);
        !self.nodes.iter().all(may_vote)
    }

    /// Whether the node is to be sent anything that asks for a vote; if not, why.
    pub(crate) fn bars(&self, node: NodeId, now: Reading) -> Option<Failure> {
        match self.node(node).standing {
            Standing::Unverified | Standing::Trusted => None,
            _ if !self.rules.is_strict() => None,
            _ => Some(self.doubt(node, now).unexecuted()),
        }
    }

    /// The clients of these nodes do not agree: nobody may have a lock until that is mended.
    pub(crate) fn is_disagreed(&self) -> bool {
        let disagrees = |trust: &Trust| matches!(&trust.standing, Standing::Refused(failure) if failure.kind().is_disagreement());
        self.rules.is_strict() && self.nodes.iter().any(disagrees)
    }

    /// What follows from what has been asked about trust is not known yet, and will be in a few round trips;
    /// `hears`: whether a node that has never answered may still do so.
    pub(crate) fn is_settling(&self, hears: impl Fn(NodeId) -> bool) -> bool {
        let settles = |node: NodeId| {
            let trust = self.node(node);
            match trust.step {
                Step::Adopting(_) | Step::Gathering(_) | Step::Marking => true,
                Step::Greeting => trust.standing != Standing::Trusted,
                Step::Rest => trust.epoch == (0, 0) && hears(node),
            }
        };
        self.quorum.node_ids().any(settles)
    }

    /// A node is being taken into use at this moment.
    pub(crate) fn is_adopting(&self) -> bool {
        let adopts = |trust: &Trust| {
            matches!(trust.step, Step::Adopting(_) | Step::Gathering(_) | Step::Marking)
        };
        self.nodes.iter().any(adopts)
    }

    /// The time of nodes is awaited.
    pub(crate) fn is_gathering(&self) -> bool {
        self.nodes.iter().any(|trust| matches!(trust.step, Step::Gathering(_)))
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
        is_soon: impl Fn(&Trust) -> bool,
    ) -> Option<Duration> {
        if self.is_disagreed() {
            return None;
        }
        let in_time = |trust: &Trust| match &trust.standing {
            Standing::Unverified | Standing::Trusted => Some(Duration::ZERO),
            Standing::Quarantined { .. } if is_soon(trust) => Some(Duration::ZERO),
            Standing::Quarantined { until, .. } => Some(until.remaining(now)),
            Standing::Refused(_) => None,
        };
        let nodes =
            self.quorum.node_ids().zip(&self.nodes).filter(|(node, _)| !down.contains(*node));
        let mut times: Vec<Duration> = nodes.filter_map(|(_, trust)| in_time(trust)).collect();
        times.sort_unstable();
        times.get(self.quorum.needed() - 1).copied()
    }

    /// Takes what goes with a batch of answers. `None`: what they say about votes counts. If not, why.
    pub(crate) fn handle_proof(
        &mut self,
        node: NodeId,
        epoch: (u64, u64),
        (info, marker): (Option<Result<Arc<str>, Failure>>, &MarkerSeen),
        sent: Reading,
        now: Reading,
        todo: &mut Todo,
    ) -> Option<Failure> {
        let trust = self.node_mut(node);
        if epoch < trust.epoch && !mutant!(OldEpochCounts) {
            // Its connection has been replaced since, and its server perhaps too (S1).
            return self.doubts(Failure::new(FailureKind::Unverified));
        }
        let (connection, _) = trust.epoch;
        // What was asked meanwhile came to nothing; a node that always says so is not asked all the time.
        let in_vain = epoch > trust.epoch && connection == epoch.0 && trust.step == Step::Greeting;
        if epoch > trust.epoch && (connection != epoch.0 || !mutant!(FlushKeepsTrust)) {
            trust.epoch = epoch;
            if !mutant!(NoVerificationOnReconnect) || trust.marker.is_none() {
                trust.standing = Standing::Unverified;
                trust.marker = None;
            }
            trust.step = Step::Rest;
        }
        let was_away = !core::mem::replace(&mut trust.is_near, true);
        if let Some(info) = info {
            if !mutant!(NoVerificationOnReconnect) || self.node(node).marker.is_none() {
                self.judge(node, info, marker, sent, now, todo);
            }
        } else {
            trust.answered = Some(sent.boot());
            let is_gone = !trust.is_marked_as(marker) && *marker != MarkerSeen::NotAsked;
            if trust.standing == Standing::Trusted && is_gone {
                trust.distrust();
            }
            if in_vain {
                trust.round += 1;
                trust.due = Some(now.after(LOOK_SOONEST));
            } else if trust.standing == Standing::Unverified && trust.step == Step::Rest {
                trust.greet(node, todo);
            }
        }
        // The server behind a connection does not change; but while it was away, another name may have come
        // to lead to it (S3).
        if was_away
            && !mutant!(TwinReturns)
            && let Some(twin) = self.twin_of(node)
        {
            self.refuse_twins(node, twin);
        }
        let trust = self.node(node);
        if trust.standing == Standing::Trusted && trust.is_marked_as(marker) {
            return None;
        }
        self.doubts(self.doubt(node, now))
    }

    /// What nodes are is told; but in `observe`, everything counts.
    fn doubts(&self, failure: Failure) -> Option<Failure> {
        let counts = mutant!(QuarantinedCounts) && failure.kind() == FailureKind::Quarantined;
        (self.rules.is_strict() && !counts).then_some(failure)
    }

    /// Why the node's votes do not count.
    fn doubt(&self, node: NodeId, now: Reading) -> Failure {
        match &self.node(node).standing {
            Standing::Unverified | Standing::Trusted => Failure::new(FailureKind::Unverified),
            Standing::Quarantined { until, why } => {
                let left = until.remaining(now);
                let seconds = left.as_millis().div_ceil(1000);
                let detail = format!("{why}, its votes count in {seconds} s");
                Failure::new(FailureKind::Quarantined).with_detail(detail).clearing_in(left)
            }
            Standing::Refused(failure) => failure.clone(),
        }
    }

    /// The node has answered what it is: what follows?
    fn judge(
        &mut self,
        node: NodeId,
        info: Result<Arc<str>, Failure>,
        marker: &MarkerSeen,
        sent: Reading,
        now: Reading,
        todo: &mut Todo,
    ) {
        let late = self.rules.quarantine() / 2;
        let trust = self.node_mut(node);
        trust.step = Step::Rest;
        trust.marker = None;
        trust.due = Some(now.after(LOOK_AGAIN));
        let info = match info.map(|text| Info::parse(&text)) {
            Ok(Ok(info)) => info,
            Ok(Err(missing)) => {
                let detail = format!(
                    "{missing}: a proxy, or no server of the kind; connect to the server itself, or switch the restart guard off"
                );
                return trust.refuse(Failure::new(FailureKind::Unsafe).with_detail(detail));
            }
            // No server of the kind refuses it for good without a word for why: a proxy may.
            Err(failure) if failure.kind() == FailureKind::Rejected => {
                let said = failure.detail().unwrap_or_default();
                let detail = format!(
                    "it does not answer INFO ({said}): a proxy, or no server of the kind; connect to the server itself, or switch the restart guard off"
                );
                return trust.refuse(Failure::new(FailureKind::Unsafe).with_detail(detail));
            }
            // It may be asked another time; until then nothing it says counts.
            Err(failure) if !failure.kind().is_about_rights() => {
                trust.standing = Standing::Unverified;
                return;
            }
            Err(failure) => return trust.refuse(failure),
        };
        trust.note_run(&info, sent, now, late);
        if let Some(failure) = unsound(&info) {
            return trust.refuse(failure);
        }
        if let Some(twin) = self.twin_of(node) {
            return self.refuse_twins(node, twin);
        }
        let old = match marker {
            MarkerSeen::Text(text) => match Marker::parse(text) {
                Some(old) if old.cluster == self.rules.cluster => Some((text, old)),
                Some(old) => return self.refuse_other(node, "it is marked for", &old.cluster),
                None => return self.refuse_key(node, &self.rules.marker.clone(), text),
            },
            MarkerSeen::Missing => None,
            MarkerSeen::Failed(failure)
                if failure.kind().is_about_rights() || failure.kind().is_disagreement() =>
            {
                let failure = failure.clone();
                return self.node_mut(node).refuse(failure);
            }
            MarkerSeen::Failed(_) | MarkerSeen::NotAsked => {
                self.node_mut(node).standing = Standing::Unverified;
                return;
            }
        };
        let promoted_at = info.promoted_at.unwrap_or(-1);
        let is_of_this_run =
            |old: &Marker| *old.run_id == *info.run_id && old.promoted_at == promoted_at;
        if let Some((text, _)) = old.as_ref().filter(|(_, old)| is_of_this_run(old)) {
            let trust = self.node_mut(node);
            trust.marker = Some(text.as_str().into());
            trust.standing = Standing::Trusted;
            trust.adopted = None;
            trust.due = Some(now.after(LOOK_EVERY));
            return;
        }
        let young_for = self.young_for(node, &info, sent);
        let plan = Plan {
            run_id: info.run_id.clone(),
            promoted_at,
            replaces: old.as_ref().map(|(text, _)| text.as_str().into()),
            floor: old.as_ref().map_or(0, |(_, old)| old.floor),
            lasts: self.is_lasting(node, &info),
            // It said so before its answer came, and after it was asked: the safe side is the former.
            grown_at: now.after(young_for),
            why: why(&info, old.is_some(), self.rules.lasting.contains(node)).into(),
            adoption: None,
        };
        // For so long a server remembers that it was a replica; no longer, if nobody replicates from it.
        let would_tell = plan.lasts || self.rules.would_tell_of_promotions();
        if old.is_some() && info.promoted_at.is_none() && would_tell {
            // It came back with its data: it need only have been there for long enough.
            return self.mark_in_time(node, plan, now, todo);
        }
        self.adopt(node, plan, None, now, todo);
    }

    /// The operator says that it forgets nothing when it stops, and it does not say otherwise itself.
    fn is_lasting(&self, node: NodeId, info: &Info) -> bool {
        self.rules.lasting.contains(node)
            && (mutant!(LastingUnasked) || info.forgets_by().is_none())
    }

    /// For how much longer the server must have been running (S10).
    fn young_for(&self, node: NodeId, info: &Info, sent: Reading) -> Duration {
        // It says so itself, by a clock that may be set meanwhile. But whoever knows of an earlier run knows
        // an upper bound; and since this one was first heard of, so much time has passed and no more.
        let since = |at: BootTime| {
            let ns = sent.boot().as_nanos().saturating_sub(at.as_nanos());
            Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
        };
        let told = Duration::from_secs(told_uptime(info));
        let trust = self.node(node);
        let seen = trust.answered_before.map_or(Duration::MAX, since);
        let (at_first, passed) =
            trust.first.map_or((0, Duration::ZERO), |(at_first, at)| (at_first, since(at)));
        let bounded = told.min(seen).min(Duration::from_secs(at_first) + passed).max(passed);
        let told = if mutant!(UptimeBelieved) { told } else { bounded };
        let less = Duration::from_secs(if mutant!(UptimeOffByTwo) { 2 } else { 0 });
        if self.is_lasting(node, info) {
            Duration::ZERO
        } else {
            self.rules.quarantine().saturating_sub(told + less)
        }
    }

    /// Another node of the list that is the same server (S3).
    fn twin_of(&self, node: NodeId) -> Option<NodeId> {
        let run_id = Some(self.node(node).run_id.as_deref()?);
        let is_same = |other: &NodeId| {
            let trust = self.node(*other);
            *other != node && trust.is_near && trust.run_id.as_deref() == run_id
        };
        self.quorum.node_ids().find(is_same).filter(|_| !mutant!(TwinsCount))
    }

    fn refuse_twins(&mut self, node: NodeId, twin: NodeId) {
        for (one, other) in [(node, twin), (twin, node)] {
            let other = &self.rules.names[other.index()];
            let detail =
                format!("node {other} is the same server: it would vote twice; list it once");
            let failure = Failure::new(FailureKind::SameServer).with_detail(detail);
            self.node_mut(one).refuse(failure);
        }
    }

    fn refuse_other(&mut self, node: NodeId, what: &str, theirs: &Cluster) {
        let ours = &self.rules.cluster;
        let theirs = shown(&theirs.to_string(), SETTINGS_MAX);
        let detail = format!(
            "{what} {theirs}, but this client has {ours}; give all clients the same, or run quorlock init --reconfigure"
        );
        let failure = Failure::new(FailureKind::OtherConfiguration).with_detail(detail);
        self.node_mut(node).refuse(failure);
    }

    fn refuse_key(&mut self, node: NodeId, key: &Key, text: &str) {
        let shown = shown_text(text);
        let detail = format!(
            "its key {key} holds \"{shown}\", which is not this version's; find out whose it is; if nobody's, delete the key: the node then waits like a new one"
        );
        let failure = Failure::new(FailureKind::OtherConfiguration).with_detail(detail);
        self.node_mut(node).refuse(failure);
    }

    /// Asks for the adoption, which is begun if it has not been.
    fn adopt(
        &mut self,
        node: NodeId,
        mut plan: Plan,
        other: Option<(Arc<str>, u64)>,
        now: Reading,
        todo: &mut Todo,
    ) {
        let quarantine = self.rules.quarantine();
        let (key, cluster) = (self.rules.adoption.clone(), self.rules.cluster.clone());
        let (marker, writes) = (self.rules.marker.clone(), self.rules.is_strict());
        let trust = self.node_mut(node);
        if !matches!(trust.standing, Standing::Quarantined { .. }) {
            // Others may have waited for most of it.
            trust.is_guess = true;
            let until = now.after(quarantine).max(plan.grown_at);
            trust.standing = Standing::Quarantined { until, why: plan.why.clone() };
        }
        let millis = u64::try_from(quarantine.as_millis()).unwrap_or(u64::MAX);
        let (replaces, wait_ms) = match other {
            Some((text, wait_ms)) => (Some(text), wait_ms.max(millis)),
            None => (None, millis),
        };
        let Plan { promoted_at, floor, .. } = plan;
        let run_id = plan.run_id.clone();
        let text = Adoption { cluster, run_id, promoted_at, floor, wait_ms }.to_string().into();
        // The marker is taken away with it: else it would fit again once the server forgets that it was
        // promoted.
        let seen = plan.replaces.take();
        trust.step = Step::Adopting(Box::new(plan));
        trust.due = None;
        let command = match writes {
            true => Command::Adopt { key, text, replaces, marker, seen },
            false => Command::Inspect { key },
        };
        trust.send(node, command, todo);
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
        match (core::mem::replace(&mut trust.step, Step::Rest), answer) {
            (Step::Adopting(plan), Answer::Adopting { text, age }) => {
                self.adopting(node, *plan, (text, age), now, todo);
            }
            (Step::Adopting(plan), Answer::Seen(Holding::Held { value, ttl: Some(ttl) })) => {
                let age = Duration::from_millis(Adoption::TTL_MS).saturating_sub(ttl);
                let text = String::from_utf8_lossy(&value).as_ref().into();
                self.adopting(node, *plan, (text, age), now, todo);
            }
            (Step::Marking, Answer::Marked) => trust.greet(node, todo),
            // Somebody else has marked it meanwhile.
            (Step::Adopting(_), Answer::NotMarked) => trust.due = Some(now.after(LOOK_SOONEST)),
            // What it is has been said beside the answers, and something may follow from that already.
            (step, Answer::Greeted) => {
                trust.step = if step == Step::Greeting { Step::Rest } else { step };
                trust.rest(now);
            }
            // Unreachable, or somebody else was faster: looked at again soon.
            (_, answer) => {
                trust.is_near &=
                    !matches!(&answer, Answer::Failed(failure) if failure.kind().is_about_reach());
                trust.due = Some(now.after(LOOK_AGAIN));
            }
        }
        self.node_mut(node).rest(now);
        self.review_gathering(now, todo);
    }

    /// The adoption as it is on the node: is it ours, and old enough?
    fn adopting(
        &mut self,
        node: NodeId,
        mut plan: Plan,
        (text, age): (Arc<str>, Duration),
        now: Reading,
        todo: &mut Todo,
    ) {
        let Some(found) = Adoption::parse(&text) else {
            return self.refuse_key(node, &self.rules.adoption.clone(), &text);
        };
        if found.cluster != self.rules.cluster {
            return self.refuse_other(node, "it is being taken into use for", &found.cluster);
        }
        plan.floor = plan.floor.max(found.floor);
        let is_older = found.promoted_at != plan.promoted_at && !mutant!(AdoptionOutlivesPromotion);
        if found.run_id != plan.run_id || is_older {
            // Begun for an earlier run, or before it was a replica: begun anew.
            if self.rules.is_strict() {
                return self.adopt(node, plan, Some((text, found.wait_ms)), now, todo);
            }
            return self.node_mut(node).rest(now);
        }
        let quarantine = self.rules.quarantine().max(Duration::from_millis(found.wait_ms));
        let waived = plan.lasts && mutant!(LastingWaivesAdoption);
        let quarantine = if waived { Duration::ZERO } else { quarantine };
        let trust = self.node_mut(node);
        // Its age is by the node's wall clock. It cannot have grown by more than the time that has
        // passed here since it was seen first: by the boot clock, for the larger of both would end
        // the wait early (section 8).
        let (first, first_age, at) =
            trust.adopted.get_or_insert_with(|| (text.clone(), age, now.boot()));
        if *first != text {
            // It was begun after the other had been seen.
            let younger = if mutant!(AdoptionBegunAnewBelieved) { age } else { Duration::ZERO };
            (*first, *first_age) = (text.clone(), younger);
        }
        let boot = now.boot().as_nanos().saturating_sub(at.as_nanos());
        let passed = Duration::from_nanos(u64::try_from(boot).unwrap_or(0));
        let age = if mutant!(AdoptionAgeBelieved) { age } else { age.min(*first_age + passed) };
        // One that was begun anew meanwhile is the younger.
        (*first_age, *at) = (age, now.boot());
        let left = quarantine.saturating_sub(age);
        plan.grown_at = plan.grown_at.max(now.after(left));
        let age_ms = u64::try_from(quarantine.as_millis()).unwrap_or(u64::MAX);
        plan.adoption = Some(Adopted { key: self.rules.adoption.clone(), text, age_ms });
        self.mark_in_time(node, plan, now, todo);
    }

    /// Writes the marker if the waits are over, or comes back when they are.
    fn mark_in_time(&mut self, node: NodeId, plan: Plan, now: Reading, todo: &mut Todo) {
        let (left, writes) = (plan.grown_at.remaining(now), self.rules.is_strict());
        let trust = self.node_mut(node);
        if core::mem::take(&mut trust.is_guess) {
            // That is news, even if the guess was right.
            trust.told = None;
        }
        trust.standing = Standing::Quarantined { until: plan.grown_at, why: plan.why.clone() };
        if !left.is_zero() || !writes {
            trust.step = Step::Rest;
            // A bit later than in time, for ages are in whole milliseconds; and now and then before, for
            // an operator may have vouched for it. Who only looks comes back when somebody may have marked it.
            let wait = match left.is_zero() {
                true => LOOK_AGAIN,
                false => (left + Duration::from_millis(1)).clamp(LOOK_SOONEST, LOOK_AGAIN),
            };
            trust.due = Some(now.after(wait));
            return;
        }
        // Quarantine first, then the floor, then votes (S21): so the others' clocks are read now.
        trust.step = Step::Gathering(Box::new(plan));
        trust.due = Some(now.after(GATHER_FOR));
        for other in self.quorum.node_ids() {
            let trust = self.node_mut(other);
            if other != node && !trust.has_told_time(now) && trust.step == Step::Rest {
                trust.greet(other, todo);
            }
        }
        self.review_gathering(now, todo);
    }

    /// Whoever has waited for the time of others goes on as soon as there is enough of it.
    fn review_gathering(&mut self, now: Reading, todo: &mut Todo) {
        // Who is not being asked will not answer.
        let is_asked = |trust: &Trust| trust.step == Step::Greeting;
        let nobody_is_asked = !self.nodes.iter().any(is_asked);
        for node in self.quorum.node_ids() {
            let trust = self.node(node);
            let is_gathering = matches!(trust.step, Step::Gathering(_));
            let is_due = trust.due.is_some_and(|due| due.remaining(now).is_zero());
            if is_gathering
                && (is_due
                    || nobody_is_asked
                    || self.clocks_beside(node, now) >= self.clocks_needed())
            {
                self.mark(node, now, todo);
            }
        }
    }

    /// The clocks of how many other nodes go into a floor.
    fn clocks_needed(&self) -> usize {
        self.quorum.needed().min(self.quorum.nodes() - 1)
    }

    /// How many of the others have told the time.
    fn clocks_beside(&self, node: NodeId, now: Reading) -> usize {
        let others = self.quorum.node_ids().filter(|other| *other != node);
        others.filter(|other| self.node(*other).has_told_time(now)).count()
    }

    fn times_beside(&self, node: NodeId, now: Reading) -> impl Iterator<Item = u64> {
        let others = self.quorum.node_ids().filter(move |other| *other != node);
        others.filter_map(move |other| self.node(other).time_us(now))
    }

    /// Writes the marker, with a floor that no fence given out before is above, as far as clocks tell:
    /// proposals are bounded by them, and what was given out above them comes from an earlier floor,
    /// hence from clocks as well. (To add the others' floors would not help: who does not know them
    /// would set a lower one next.)
    fn mark(&mut self, node: NodeId, now: Reading, todo: &mut Todo) {
        let own = self.node(node).time_us(now);
        let clocks = self.clocks_beside(node, now);
        let is_few = clocks < self.clocks_needed();
        let others = self.times_beside(node, now).filter(|_| !mutant!(FloorFromOwnClock));
        let latest = others.chain(own).max();
        let latest = latest.unwrap_or_else(|| u64::try_from(now.real_ns() / 1000).unwrap_or(0));
        let (cluster, key) = (self.rules.cluster.clone(), self.rules.marker.clone());
        let trust = self.node_mut(node);
        let Step::Gathering(plan) = core::mem::replace(&mut trust.step, Step::Marking) else {
            unreachable!("only who has gathered marks");
        };
        let Plan { run_id, promoted_at, replaces, floor, lasts, adoption, .. } = *plan;
        let floor = if lasts && adoption.is_none() {
            floor
        } else {
            trust.few_clocks = is_few.then_some(clocks);
            floor.max(latest.saturating_add(Marker::FLOOR_AHEAD_US))
        };
        let floor = floor.min(Counter::LIMIT - 1);
        let text = Marker { cluster, run_id, promoted_at, floor }.to_string().into();
        trust.due = None;
        trust.send(node, Command::Mark { key, text, replaces, adoption }, todo);
    }

    /// Its time has come: it is looked at again, or goes on without the time of others.
    pub(crate) fn handle_due(&mut self, node: NodeId, now: Reading, todo: &mut Todo) {
        let trust = self.node_mut(node);
        if trust.due.is_none_or(|due| !due.remaining(now).is_zero()) {
            return;
        }
        match trust.step {
            Step::Rest => trust.greet(node, todo),
            Step::Gathering(_) => self.review_gathering(now, todo),
            Step::Greeting | Step::Adopting(_) | Step::Marking => trust.due = None,
        }
    }

    /// The node has said that it does not take writes at the moment: perhaps it is another than it was.
    pub(crate) fn suspect(&mut self, node: NodeId, todo: &mut Todo) {
        let trust = self.node_mut(node);
        if trust.standing == Standing::Trusted {
            trust.distrust();
            trust.greet(node, todo);
        }
    }

    /// Its data may have been deleted or replaced.
    pub(crate) fn look_again(&mut self, node: NodeId, todo: &mut Todo) {
        let trust = self.node_mut(node);
        if trust.standing == Standing::Trusted && trust.step == Step::Rest {
            trust.greet(node, todo);
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

impl Trust {
    const fn new() -> Self {
        Self {
            epoch: (0, 0),
            standing: Standing::Unverified,
            marker: None,
            run_id: None,
            is_near: false,
            answered: None,
            answered_before: None,
            first: None,
            clock: None,
            is_clock_late: false,
            adopted: None,
            is_guess: false,
            step: Step::Rest,
            round: 0,
            due: None,
            wake: None,
            told: None,
            few_clocks: None,
        }
    }

    pub(crate) const fn standing(&self) -> &Standing {
        &self.standing
    }

    fn is_marked_as(&self, seen: &MarkerSeen) -> bool {
        matches!((&self.marker, seen), (Some(marker), MarkerSeen::Text(text)) if **marker == **text)
    }

    fn distrust(&mut self) {
        self.marker = None;
        self.standing = Standing::Unverified;
    }

    fn refuse(&mut self, failure: Failure) {
        self.marker = None;
        self.step = Step::Rest;
        self.standing = Standing::Refused(failure.executed());
    }

    /// A clock that was heard `late` may have been read long before, and is asked for again.
    fn note_run(&mut self, info: &Info, sent: Reading, now: Reading, late: Duration) {
        if self.run_id.as_deref() != Some(&*info.run_id) {
            if self.run_id.is_some() {
                self.answered_before = self.answered;
            }
            self.first = Some((told_uptime(info), now.boot()));
        }
        self.run_id = Some(info.run_id.clone());
        self.answered = Some(sent.boot());
        let took = now.boot().as_nanos().saturating_sub(sent.boot().as_nanos());
        let is_late = i64::try_from(late.as_nanos()).is_ok_and(|late| took > late);
        self.clock = info.time_us.map(|time_us| (time_us, now.boot()));
        self.is_clock_late = is_late;
    }

    /// What its wall clock shows by now at least, if it was read lately. Reckoned from the hearing, not from the
    /// sending: a floor by a clock that is ahead by a late answer could be above one that is set after it.
    fn time_us(&self, now: Reading) -> Option<u64> {
        let (time_us, at) = self.clock?;
        let passed = now.boot().as_nanos().saturating_sub(at.as_nanos()) / 1000;
        let fresh = i64::try_from(FRESH.as_micros()).is_ok_and(|fresh| passed <= fresh);
        u64::try_from(time_us.saturating_add(passed)).ok().filter(|_| fresh)
    }

    /// Its wall clock is known well enough for a floor: behind by no more than half of a quarantine, or a floor
    /// by it could be below one that was set before. A late one is a bound all the same, though a weak one.
    fn has_told_time(&self, now: Reading) -> bool {
        !self.is_clock_late && self.time_us(now).is_some()
    }

    fn greet(&mut self, node: NodeId, todo: &mut Todo) {
        if self.step != Step::Greeting {
            self.step = Step::Greeting;
            self.due = None;
            self.send(node, Command::Greet, todo);
        }
    }

    fn send(&mut self, node: NodeId, command: Command, todo: &mut Todo) {
        self.round += 1;
        todo.push((node, command));
    }

    /// Nothing is under way; looked at again in a while.
    fn rest(&mut self, now: Reading) {
        if self.step == Step::Rest && self.due.is_none() {
            self.due = Some(now.after(LOOK_AGAIN));
        }
    }

    fn shift(&mut self, base: Reading) {
        let times = [&mut self.answered, &mut self.answered_before, &mut self.due, &mut self.wake];
        for time in times.into_iter().flatten() {
            *time = time.shifted(base);
        }
        if let Some((_, at)) = &mut self.clock {
            *at = at.shifted(base);
        }
        if let Some((_, at)) = &mut self.first {
            *at = at.shifted(base);
        }
        if let Some((_, _, at)) = &mut self.adopted {
            *at = at.shifted(base);
        }
        for standing in [Some(&mut self.standing), self.told.as_mut()].into_iter().flatten() {
            if let Standing::Quarantined { until, .. } = standing {
                *until = until.shifted(base);
            }
        }
        if let Step::Adopting(plan) | Step::Gathering(plan) = &mut self.step {
            plan.grown_at = plan.grown_at.shifted(base);
        }
    }

    /// What makes no difference any more, as seen from the origin of time; no command about trust may be
    /// under way, for its answer would not be known again.
    fn forget(&mut self, quarantine: Duration) {
        let now = Reading::default();
        let ago = |at: &BootTime| Duration::from_nanos(at.as_nanos().min(0).unsigned_abs());
        // Whoever was seen so long ago may as well not have been.
        self.answered = self.answered.filter(|at| ago(at) < quarantine);
        self.answered_before = self.answered_before.filter(|at| ago(at) < quarantine);
        self.clock = self.clock.filter(|_| self.time_us(now).is_some());
        self.is_clock_late &= self.clock.is_some();
        if let Some((at_first, at)) = &mut self.first {
            // What has run for long enough is old enough.
            let long = i64::try_from(quarantine.as_nanos()).unwrap_or(i64::MAX);
            if at.as_nanos() <= -long {
                (*at_first, *at) = (0, BootTime::from_nanos(-long));
            }
            *at_first = (*at_first).min(quarantine.as_secs() + 1);
        }
        if let Some((_, age, at)) = &mut self.adopted {
            // Only their sum matters.
            *age += ago(at);
            *at = now.boot();
        }
        if matches!(self.step, Step::Rest | Step::Gathering(_)) {
            self.round = 0;
        }
    }
}

/// How many seconds the server says it has been running: a clock that was set back since says less than
/// nothing.
fn told_uptime(info: &Info) -> u64 {
    if mutant!(UptimeUnsigned) {
        return info.uptime_s.unsigned_abs();
    }
    u64::try_from(info.uptime_s).unwrap_or(0)
}

/// What makes a server's votes worthless, whatever it has been through.
fn unsound(info: &Info) -> Option<Failure> {
    let detail = if !info.is_master {
        "it is a replica: what it holds can be overwritten by its master; list masters alone".into()
    } else if info.is_loading {
        return Some(Failure::new(FailureKind::Loading));
    } else if info.is_cluster {
        "it is in cluster mode, which moves keys to other nodes; use independent masters".into()
    } else if let Some(policy) = &info.evicts_by {
        let policy = shown(policy, WORD_MAX);
        format!(
            "its maxmemory-policy is {policy}: it would delete locks; run CONFIG SET maxmemory-policy noeviction"
        )
    } else {
        return None;
    };
    Some(Failure::new(FailureKind::Unsafe).with_detail(detail))
}

/// Why a server that is sound does not vote yet.
fn why(info: &Info, was_marked: bool, is_declared_lasting: bool) -> String {
    let uptime = info.uptime_s;
    match (info.promoted_at, was_marked) {
        (Some(_), _) => "was a replica".into(),
        (None, true) => match info.forgets_by().filter(|_| is_declared_lasting) {
            Some(setting) => {
                format!("started {uptime} s ago (declared to forget nothing, but it has {setting})")
            }
            None => format!("started {uptime} s ago"),
        },
        (None, false) => "is new, or has lost its data".into(),
    }
}
