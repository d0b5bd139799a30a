//! Trust: the restart guard checks the evidence of a batch (the node's `INFO` and marker) before its answers count.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Call, Context, Effect, Engine, Phase, RefusalKind};
use crate::client::deadlines::Owner;
use crate::command::{Answer, Failure, FailureKind};
use crate::ids::{LockId, NodeAnswer, Ticket, Verb};
use crate::node::evidence::Evidence;
use crate::node::trust::{GATHER_FOR, NodeMonitor, Rules, Todo, TrustState};
use crate::redlock::acquire::{FailureReason, NodeOutcome, NodeResult};
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::time::BootTime;
use crate::time::Reading;

/// Largest number of round trips until a node is trusted, each of which takes at most a node timeout: `INFO`, adoption
/// (which starts a wait, if one is needed), marker, and `INFO` again.
const ROUND_TRIPS: u32 = 4;

/// The lock id in the tickets (lock, round and verb) of commands about trust, which belong to no call.
const NOBODY: LockId = LockId(0);

impl Engine {
    /// A new client with a restart guard that follows these rules. [`RestartGuard::Off`](crate::RestartGuard::Off)
    /// means no guard.
    pub fn guarded(quorum: Quorum, rules: Rules) -> Self {
        let is_off = rules.guard == crate::node::trust::RestartGuard::Off;
        let monitor = (!is_off).then(|| alloc::boxed::Box::new(NodeMonitor::new(rules, quorum)));
        Self { monitor, ..Self::new(quorum) }
    }

    /// Whether a node's votes count; `None` without a restart guard.
    pub fn trust_state(&self, node: NodeId) -> Option<&TrustState> {
        Some(self.monitor.as_ref()?.node(node).trust_state())
    }

    /// Checks the evidence of a batch of answers. `None` means that votes in the batch count.
    pub(super) fn judge_evidence(
        &mut self,
        node: NodeId,
        sent: Reading,
        evidence: &Evidence,
        cx: &mut Context<'_>,
    ) -> Option<Failure> {
        let Evidence::Seen { epoch, flushes, info, marker, .. } = evidence else { return None };
        let (monitor, epoch) = (self.monitor.as_mut()?, (*epoch, *flushes));
        if info.is_none()
            && let Some(distrust_reason) = monitor.confirm(node, epoch, marker, sent)
        {
            return distrust_reason;
        }
        let was_trusted = monitor.node(node).is_trusted();
        let mut todo = Todo::new();
        let info = info.as_ref();
        let distrust_reason =
            monitor.handle_evidence(node, epoch, (info, marker), sent, cx.now, &mut todo);
        // In the usual case the node was trusted and still is, so nothing follows.
        let is_trusted = monitor.node(node).is_trusted();
        if !todo.is_empty() || !was_trusted || !is_trusted {
            self.follow_trust(todo, cx);
        }
        distrust_reason
    }

    /// Notifies the transport whether the node was identified on this connection.
    pub(super) fn emit_identified(&mut self, node: NodeId, connection: u64, cx: &mut Context<'_>) {
        let Some(monitor) = &mut self.monitor else {
            return cx.emit(Effect::Identified { node, connection, is_trusted: true });
        };
        let is_trusted = monitor.is_identified(node, connection);
        monitor.node_mut(node).last_identified = (connection, is_trusted);
        cx.emit(Effect::Identified { node, connection, is_trusted });
    }

    /// The reason why the pipeline did not send this command to the node; `None` without a better one than that the
    /// node is not identified. An extension by text tells its caller also why the node could not be identified.
    pub(super) fn declined(&self, ticket: Ticket, node: NodeId, now: Reading) -> Option<Failure> {
        let monitor = self.monitor.as_ref()?;
        let unread = || monitor.node(node).unread.clone().map(Failure::unexecuted);
        let excluded = monitor.exclusion(node, now);
        excluded.or_else(|| unread().filter(|_| ticket.verb == Verb::Extend))
    }

    /// The failure of votes in a batch that too few replicas of the node have acknowledged; `None` if they count.
    pub(super) fn unacknowledged(&mut self, node: NodeId, evidence: &Evidence) -> Option<Failure> {
        let Evidence::Seen { acknowledged, .. } = evidence else { return None };
        self.monitor.as_mut()?.unacknowledged(node, acknowledged.as_ref())
    }

    /// Turns an answer of a distrusted node into a failure if the answer is about a vote. A refusal stays a refusal: it
    /// only reports another client's key, and gives nobody a lock.
    pub(super) fn distrusted(ticket: Ticket, answer: Answer, distrust_reason: &Failure) -> Answer {
        let is_refusal =
            matches!(answer, Answer::Failed(_) | Answer::Refused | Answer::RefusedFenced { .. });
        let about_votes = match ticket.verb {
            Verb::Acquire | Verb::Extend | Verb::Raise => true,
            Verb::Heal => !mutant!(HealCountsInQuarantine),
            Verb::Inspect | Verb::Release | Verb::Trust | Verb::Announce => false,
        };
        // The answer that the key is gone counts only if the node is distrusted for good, or only its replicas
        // acknowledge late. Otherwise the answer becomes a failure: a node in quarantine votes for no other client yet,
        // and the state of an unverified node is unknown.
        let is_gone = |distrust_reason: &Failure, answer: &Answer| {
            let kind = distrust_reason.kind();
            let counts = kind.is_for_good() || kind == FailureKind::Unacknowledged;
            counts && matches!(answer, Answer::Absent | Answer::Other)
        };
        match answer {
            // The reason of the distrust is more useful than the node's error, so it replaces the error.
            Answer::Failed(failure) if about_votes && distrust_reason.kind().is_for_good() => {
                Answer::Failed(match failure.may_have_been_executed() {
                    true => distrust_reason.clone(),
                    false => distrust_reason.clone().unexecuted(),
                })
            }
            answer if about_votes && !is_refusal && !is_gone(distrust_reason, &answer) => {
                Answer::Failed(distrust_reason.clone())
            }
            answer => answer,
        }
    }

    pub(super) fn on_trust(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let NodeAnswer { node, ticket, answer, .. } = answer;
        let Some(monitor) = self.monitor.as_mut() else { return };
        if monitor.node(node).review.round != ticket.round {
            // A later examination has begun. Until it ends, an adoption of another configuration bars (S37).
            if let Answer::Adopting { text, .. } = answer {
                monitor.note_rival(node, text);
            }
            return;
        }
        let mut todo = Todo::new();
        monitor.handle_answer(node, answer.clone(), cx.now, &mut todo);
        self.follow_trust(todo, cx);
    }

    /// Starts a new check of a node that refuses writes, because it may be another server now.
    pub(super) fn review_failure(
        &mut self,
        node: NodeId,
        failure: FailureKind,
        cx: &mut Context<'_>,
    ) {
        let Some(monitor) = self.monitor.as_mut() else { return };
        use FailureKind::{Loading, MasterDown, ReadOnly};
        if matches!(failure, ReadOnly | Loading | MasterDown) {
            let mut todo = Todo::new();
            monitor.suspect(node, &mut todo);
            self.follow_trust(todo, cx);
        }
    }

    /// Starts a new check of a node whose data may have been deleted or replaced.
    pub(super) fn review_data(&mut self, node: NodeId, cx: &mut Context<'_>) {
        let Some(monitor) = self.monitor.as_mut() else { return };
        let mut todo = Todo::new();
        monitor.examine_again(node, &mut todo);
        self.follow_trust(todo, cx);
    }

    /// Examines trusted nodes together with an inspection, whose command is in the same batch. Otherwise a node that
    /// cannot announce a flush might have forgotten the lock since its last examination.
    pub(super) fn examine_beside(&mut self, cx: &mut Context<'_>) {
        let Some(monitor) = self.monitor.as_mut() else { return };
        let mut todo = Todo::new();
        self.quorum.node_ids().for_each(|node| monitor.refresh(node, cx.now, &mut todo));
        if !todo.is_empty() {
            self.follow_trust(todo, cx);
        }
    }

    pub(super) fn due_trust(&mut self, node: NodeId, cx: &mut Context<'_>) {
        let Some(monitor) = self.monitor.as_mut() else { return };
        let mut todo = Todo::new();
        monitor.handle_due(node, cx.now, &mut todo);
        self.follow_trust(todo, cx);
    }

    /// Sends commands about trust, reports changed states, and wakes or ends the calls that they affect.
    fn follow_trust(&mut self, todo: Todo, cx: &mut Context<'_>) {
        let Some(monitor) = self.monitor.as_mut() else { return };
        for (node, command) in todo {
            if !self.closing.has_begun || self.closing.drains_by.is_some() {
                let ticket = Ticket {
                    lock: NOBODY,
                    round: monitor.node(node).review.round,
                    verb: Verb::Trust,
                };
                cx.emit(Effect::Send { nodes: NodeSet::only(node), ticket, command });
            }
        }
        let mut has_changed = false;
        for node in self.quorum.node_ids() {
            let trust = monitor.node_mut(node);
            let due = trust.review.due.filter(|_| !self.closing.has_begun);
            self.deadlines.put(Owner::Trust(node), &mut trust.review.wake, due);
            if trust.reported.as_ref() != Some(trust.trust_state()) {
                trust.reported = Some(trust.trust_state().clone());
                has_changed = true;
                cx.emit(Effect::TrustState { node, trust_state: trust.trust_state().clone() });
            }
            if let Some(clocks) = trust.few_clocks.take() {
                cx.emit(Effect::FloorOfFew { node, clocks });
            }
            let (connection, _) = trust.epoch();
            let is_trusted = monitor.is_identified(node, connection);
            let trust = monitor.node_mut(node);
            // The first news about a connection follows its greeting.
            if trust.last_identified == (connection, !is_trusted) {
                trust.last_identified = (connection, is_trusted);
                cx.emit(Effect::Identified { node, connection, is_trusted });
            }
        }
        let hears = |node: NodeId| !self.paths.links[node.index()].away;
        let has_settled =
            self.calls.values().any(|call| call.awaits_settling()) && !monitor.is_settling(hears);
        if has_changed || has_settled {
            self.trust_states_changed(cx);
        }
        if self.closing.drains_by.is_some() {
            self.review_drained(cx);
        }
    }

    /// The time until which a call waits for checks of untrusted nodes, even if its own wait is shorter. `None` if no
    /// answer is outstanding or the time is over.
    pub(super) fn settles_by(&mut self, lock: LockId, now: Reading) -> Option<BootTime> {
        let (Some(monitor), Some(call)) = (&self.monitor, self.calls.get_mut(&lock)) else {
            return None;
        };
        if !monitor.is_settling(|node| !self.paths.links[node.index()].away) {
            return None;
        }
        let timeout = call.request.timing.node_timeout(self.paths.round_trips.longest());
        let round_trips = timeout.saturating_mul(ROUND_TRIPS);
        let [plain, gathering] = *call
            .trust_wait
            .settles_by
            .get_or_insert_with(|| [now.after(round_trips), now.after(round_trips + GATHER_FOR)]);
        let by = if monitor.is_gathering() { gathering } else { plain };
        (!by.has_come(now)).then_some(by)
    }

    fn trust_states_changed(&mut self, cx: &mut Context<'_>) {
        let Some(monitor) = &self.monitor else { return };
        if monitor.is_disagreed() {
            let excluded = self.excluded(true, cx.now);
            let ended: Vec<LockId> = self
                .calls
                .iter()
                .filter(|(_, call)| call.phase != Phase::Queued)
                .map(|(lock, _)| lock)
                .collect();
            for lock in ended {
                if let Some(call) = self.calls.get_mut(&lock) {
                    call.note_untrusted(self.quorum, excluded.clone(), cx.now);
                    // If clients have different settings, waiting does not help, so the refusal contains no time after
                    // which to retry.
                    call.free_in = None;
                }
                self.abandon(lock, RefusalKind::NodesUntrusted, cx);
            }
            return;
        }
        // Calls that wait for trusted nodes try again now. If they must wait longer, they report the new remaining
        // time.
        for lock in self.calls.keys().collect::<Vec<_>>() {
            let Some(call) = self.calls.get_mut(&lock) else { continue };
            if (call.history.is_excluded() || call.trust_wait.settling)
                && let Phase::Pausing { until, .. } | Phase::Yielded { until } = &mut call.phase
            {
                *until = (*until).min(cx.now.boot());
                call.trust_wait.is_reported = false;
                Self::index_call(&mut self.deadlines, lock, call);
            }
        }
    }

    /// Whether some node has the marker or the adoption of another configuration, so that no attempt may succeed (S37).
    pub(super) fn is_contested(&self) -> bool {
        self.monitor.as_ref().is_some_and(|monitor| monitor.is_contested())
    }

    /// The nodes that have the marker or the adoption of another configuration, with the failures of their votes.
    pub(super) fn contested(&self, now: Reading) -> Vec<(NodeId, Failure)> {
        let monitor = self.monitor.as_ref();
        monitor.map(|monitor| monitor.contested(now)).unwrap_or_default()
    }

    /// The nodes that are not asked for votes, with the reasons. If clients have different settings: all nodes. The
    /// same if the votes would be those of a new lock (`is_new`), and some node has a text of another configuration.
    pub(super) fn excluded(&self, is_new: bool, now: Reading) -> Vec<(NodeId, Failure)> {
        let Some(monitor) = self.monitor.as_ref().filter(|monitor| monitor.excludes_any()) else {
            return Vec::new();
        };
        let is_barred = monitor.is_disagreed() || is_new && monitor.is_contested();
        let disagreed = is_barred.then(|| {
            Failure::unsent(FailureKind::Unverified)
                .with_detail("not asked, because this client's settings do not fit the nodes")
        });
        let bar = |node| {
            let failure = monitor.exclusion(node, now).or_else(|| disagreed.clone())?;
            Some((node, failure))
        };
        self.quorum.node_ids().filter_map(bar).collect()
    }

    /// Pauses a call until a quorum of nodes is trusted. Ends the call if this takes longer than its wait, or needs an
    /// operator.
    pub(super) fn await_trust(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let settles_by = self.settles_by(lock, cx.now);
        let (Some(monitor), Some(call)) = (&self.monitor, self.calls.get_mut(&lock)) else {
            return;
        };
        // `free_in` is the time until a quorum is trusted. If further nodes are down, that time is too short, so it is
        // omitted here: when the engine refuses the call, it computes the time from the nodes that are up.
        call.free_in = monitor.quorum_in(cx.now).filter(|_| call.history.is_excluded());
        let in_vain = monitor
            .quorum_in_at_least(cx.now)
            .is_some_and(|time| call.is_over_by(cx.now.after(time)));
        let is_hopeless = monitor.is_disagreed() || call.history.is_permission_denied(self.quorum);
        let is_over = call.is_to_end(cx.now) || in_vain;
        if is_hopeless || is_over && settles_by.is_none() {
            let why =
                call.history.last.as_ref().map_or(FailureReason::NodesUntrusted, |(why, _)| *why);
            return self.refuse(lock, why.into(), cx);
        }
        // A change of trust wakes the call. This timer is only a safety net, so it is long.
        let later =
            cx.now.after(call.free_in.unwrap_or_default().max(crate::redlock::retry::POLL_CEILING));
        let until = settles_by.filter(|_| is_over).unwrap_or(later);
        // The call sends nothing during the pause, so other callers of this process may attempt.
        call.phase = Phase::Pausing { until, again: false, yields_from: Some(cx.now.boot()) };
        if call.request.progress
            && !is_over
            && !core::mem::replace(&mut call.trust_wait.is_reported, true)
            && let Some(report) = call.report(cx.now)
        {
            cx.emit(Effect::Waiting { lock, report });
        }
        Self::index_call(&mut self.deadlines, lock, call);
        self.yield_turn(lock, cx);
    }

    /// The time until a quorum of the nodes that are up is trusted; `None` if it is zero or depends on a person.
    pub(super) fn quorum_in(&self, call: &Call, now: Reading) -> Option<Duration> {
        let (_, nodes) = call.history.last.as_ref()?;
        let failed = |said: &NodeOutcome| matches!(said, NodeOutcome::Failed(failure) if !failure.kind().is_about_trust());
        let is_down =
            |node: &NodeId| nodes.get(node.index()).is_some_and(|report| failed(&report.said));
        let down = self.quorum.node_ids().filter(is_down).collect();
        self.monitor.as_ref()?.quorum_without(down, now).filter(|time| !time.is_zero())
    }

    /// Ends the periodic examinations of nodes.
    pub(super) fn stop_examinations(&mut self) {
        let Some(monitor) = &mut self.monitor else { return };
        for node in self.quorum.node_ids() {
            let wake = &mut monitor.node_mut(node).review.wake;
            self.deadlines.put(Owner::Trust(node), wake, None);
        }
    }
}

impl Call {
    /// Records the untrusted nodes as the report of the call's last attempt.
    pub(super) fn note_untrusted(
        &mut self,
        quorum: Quorum,
        excluded: Vec<(NodeId, Failure)>,
        now: Reading,
    ) {
        let took = now.elapsed_since(self.started);
        let mut nodes = alloc::vec![NodeResult::new(NodeOutcome::NotAsked, took); quorum.nodes()];
        // As in an attempt, a node does not count as untrusted if it is loading data, or if the user lacks a right
        // there.
        let distrusted =
            excluded.iter().filter(|(_, failure)| failure.kind().is_about_trust()).count();
        let is_untrusted = quorum.is_out_of_reach(quorum.nodes() - distrusted, 0);
        let why =
            if is_untrusted { FailureReason::NodesUntrusted } else { FailureReason::NoQuorum };
        for (node, failure) in excluded {
            // A node that is excluded only because another node has other settings has not failed itself.
            if failure.kind() != FailureKind::Unverified {
                nodes[node.index()].said = NodeOutcome::Failed(failure);
            }
        }
        self.history.last = Some((why, nodes));
        self.waiting = None;
    }
}
