//! Trust: what goes with answers is looked at before they are, and what follows from it is sent.

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

/// To take a node into use takes so many round trips at most, and a node timeout each: what it is, its
/// adoption, its marker, what it is now.
const ROUND_TRIPS: u32 = 4;

/// For so long a client that is shut down sees to nodes that are being taken into use.
const CLOSE_WITHIN: Duration = Duration::from_millis(250);

/// Whose commands they are that are about trust: no caller's.
const NOBODY: LockId = LockId(0);

impl Engine {
    /// As [`Engine::new`], and nodes are measured by these rules. With
    /// [`RestartGuard::Off`](crate::RestartGuard::Off) they are not.
    pub fn guarded(quorum: Quorum, rules: Rules) -> Self {
        let is_off = rules.guard == crate::node::trust::RestartGuard::Off;
        let monitor = (!is_off).then(|| alloc::boxed::Box::new(NodeMonitor::new(rules, quorum)));
        Self { monitor, ..Self::new(quorum) }
    }

    /// Whether a node's votes count; `None` if nobody looks.
    pub fn trust_state(&self, node: NodeId) -> Option<&TrustState> {
        Some(self.monitor.as_ref()?.node(node).trust_state())
    }

    /// Looks at what goes with a batch of answers. `None`: what they say about votes counts.
    pub(super) fn look_at(
        &mut self,
        node: NodeId,
        sent: Reading,
        evidence: &Evidence,
        cx: &mut Context<'_>,
    ) -> Option<Failure> {
        let Evidence::Seen { epoch, flushes, info, marker } = evidence else { return None };
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
        // Most of the time there is nothing to it.
        let is_trusted = monitor.node(node).is_trusted();
        if !todo.is_empty() || !was_trusted || !is_trusted {
            self.follow_trust(todo, cx);
        }
        distrust_reason
    }

    /// What an answer is worth if its node is doubted: one about votes is none. A refusal stands: it
    /// says that somebody else has the key, and nobody's lock depends on it.
    pub(super) fn distrusted(ticket: Ticket, answer: Answer, distrust_reason: &Failure) -> Answer {
        let is_refusal =
            matches!(answer, Answer::Failed(_) | Answer::Refused | Answer::RefusedFenced { .. });
        let about_votes = match ticket.verb {
            Verb::Acquire | Verb::Extend | Verb::Raise => true,
            Verb::Heal => !mutant!(HealCountsInQuarantine),
            Verb::Inspect | Verb::Release | Verb::Trust | Verb::Announce => false,
        };
        // That our key is gone is the truth, whatever is wrong with the node; but of one that is in
        // quarantine nobody else can have the vote, and of one that was not looked at it is not known.
        let is_gone = |distrust_reason: &Failure, answer: &Answer| {
            distrust_reason.kind().is_for_good() && matches!(answer, Answer::Absent | Answer::Other)
        };
        match answer {
            // What the node is says more than its error, and what to do.
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

    /// The answer to a command about trust.
    pub(super) fn on_trust(&mut self, answer: NodeAnswer, cx: &mut Context<'_>) {
        let NodeAnswer { node, ticket, answer, .. } = answer;
        let Some(monitor) =
            self.monitor.as_mut().filter(|monitor| monitor.node(node).review.round == ticket.round)
        else {
            return;
        };
        let mut todo = Todo::new();
        monitor.handle_answer(node, answer, cx.now, &mut todo);
        self.follow_trust(todo, cx);
    }

    /// A node that does not take writes is perhaps another than it was.
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

    /// A node's data may be others by now: it is looked at again before it is asked for anything.
    pub(super) fn review_data(&mut self, node: NodeId, cx: &mut Context<'_>) {
        let Some(monitor) = self.monitor.as_mut() else { return };
        let mut todo = Todo::new();
        monitor.look_again(node, &mut todo);
        if !todo.is_empty() {
            self.follow_trust(todo, cx);
        }
    }

    /// A node is due to be looked at again.
    pub(super) fn due_trust(&mut self, node: NodeId, cx: &mut Context<'_>) {
        let Some(monitor) = self.monitor.as_mut() else { return };
        let mut todo = Todo::new();
        monitor.handle_due(node, cx.now, &mut todo);
        self.follow_trust(todo, cx);
    }

    /// Sends what is to be sent, tells what has changed, and lets calls go on, or end, for which that
    /// matters.
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
            if trust.told.as_ref() != Some(trust.trust_state()) {
                trust.told = Some(trust.trust_state().clone());
                has_changed = true;
                cx.emit(Effect::TrustState { node, trust_state: trust.trust_state().clone() });
            }
            if let Some(clocks) = trust.few_clocks.take() {
                cx.emit(Effect::FloorOfFew { node, clocks });
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

    /// A client that is shut down lets what is under way to take nodes into use finish, for a moment: or
    /// short-lived clients would begin that for ever.
    pub(super) fn settle_for_a_moment(&mut self, now: Reading) {
        if self.monitor.as_ref().is_some_and(|monitor| monitor.is_adopting()) {
            self.drain_until(now.after(CLOSE_WITHIN));
        }
    }

    /// It also lets nodes hear that readers need not wait for its calls any more.
    pub(super) fn await_withdrawals(&mut self, now: Reading) {
        if !self.closing.withdrawals.is_empty() {
            self.drain_until(now.after(CLOSE_WITHIN));
        }
    }

    fn drain_until(&mut self, by: BootTime) {
        self.closing.drains_by = Some(by);
        self.deadlines.extend([(by, Owner::Close)]);
    }

    /// Nothing is being done to take a node into use, or to take back an intent, or there is no more time for it.
    pub(super) fn has_settled(&mut self) -> bool {
        if self.closing.drains_by.is_none() {
            return true;
        }
        let is_adopting = self.monitor.as_ref().is_some_and(|monitor| monitor.is_adopting());
        let has_settled = !is_adopting && self.closing.withdrawals.is_empty();
        if has_settled {
            self.closing.drains_by = None;
        }
        has_settled
    }

    /// Until when a call lets what has been asked about trust be answered, however short its wait is; `None`:
    /// there is nothing to wait for, or it has waited for long enough.
    pub(super) fn settles_by(&mut self, lock: LockId, now: Reading) -> Option<BootTime> {
        let (Some(monitor), Some(call)) = (&self.monitor, self.calls.get_mut(&lock)) else {
            return None;
        };
        if !monitor.is_settling(|node| !self.paths.links[node.index()].away) {
            return None;
        }
        let timeout = call.request.timing.node_timeout(call.pace.round_trip);
        let round_trips = timeout.saturating_mul(ROUND_TRIPS);
        let [plain, gathering] = *call
            .trust_wait
            .settles_by
            .get_or_insert_with(|| [now.after(round_trips), now.after(round_trips + GATHER_FOR)]);
        let by = if monitor.is_gathering() { gathering } else { plain };
        (!by.remaining(now).is_zero()).then_some(by)
    }

    fn trust_states_changed(&mut self, cx: &mut Context<'_>) {
        let Some(monitor) = &self.monitor else { return };
        if monitor.is_disagreed() {
            let excluded = self.excluded(cx.now);
            let ended: Vec<LockId> = self
                .calls
                .iter()
                .filter(|(_, call)| call.phase != Phase::Queued)
                .map(|(lock, _)| lock)
                .collect();
            for lock in ended {
                if let Some(call) = self.calls.get_mut(&lock) {
                    call.note_untrusted(self.quorum, excluded.clone(), cx.now);
                    // Time does not mend this.
                    call.free_in = None;
                }
                self.abandon(lock, RefusalKind::NodesUntrusted, cx);
            }
            return;
        }
        // A call that waits for nodes to be trusted looks whether they are, or will be in time;
        // and tells for how much longer.
        for lock in self.calls.keys().collect::<Vec<_>>() {
            let Some(call) = self.calls.get_mut(&lock) else { continue };
            if (call.history.is_excluded() || call.trust_wait.settling)
                && let Phase::Pausing { until, .. } | Phase::Aside { until } = &mut call.phase
            {
                *until = (*until).min(cx.now.boot());
                call.trust_wait.is_told = false;
                Self::index_call(&mut self.deadlines, lock, call);
            }
        }
    }

    /// The nodes that are not asked for votes, and why: all of them if their clients do not agree.
    pub(super) fn excluded(&self, now: Reading) -> Vec<(NodeId, Failure)> {
        let Some(monitor) = self.monitor.as_ref().filter(|monitor| monitor.excludes_any()) else {
            return Vec::new();
        };
        let disagreed = monitor.is_disagreed().then(|| {
            Failure::unsent(FailureKind::Unverified)
                .with_detail("not asked, because this client's settings do not fit the nodes")
        });
        let bar = |node| {
            let failure = monitor.exclusion(node, now).or_else(|| disagreed.clone())?;
            Some((node, failure))
        };
        self.quorum.node_ids().filter_map(bar).collect()
    }

    /// A call waits until a quorum of nodes is trusted; or ends at once, if that will not be in its time,
    /// or is up to people.
    pub(super) fn await_trust(&mut self, lock: LockId, cx: &mut Context<'_>) {
        let settles_by = self.settles_by(lock, cx.now);
        let (Some(monitor), Some(call)) = (&self.monitor, self.calls.get_mut(&lock)) else {
            return;
        };
        // Where others are down as well, the time is reckoned when it is told.
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
        // Woken when a standing changes; and if it is only late, not looked at all the time.
        let later =
            cx.now.after(call.free_in.unwrap_or_default().max(crate::redlock::retry::POLL_CEILING));
        let until = settles_by.filter(|_| is_over).unwrap_or(later);
        // Nothing is sent meanwhile: the next one may find out for itself, and be told.
        call.phase = Phase::Pausing { until, again: false, lent: Some(cx.now.boot()) };
        if call.request.progress
            && !is_over
            && !core::mem::replace(&mut call.trust_wait.is_told, true)
            && let Some(report) = call.report(cx.now)
        {
            cx.emit(Effect::Waiting { lock, report });
        }
        Self::index_call(&mut self.deadlines, lock, call);
        self.pass_on(lock, cx);
    }

    /// When a quorum of nodes will be trusted, if some are down and it would be had but for nodes whose
    /// votes do not count yet.
    pub(super) fn quorum_in(&self, call: &Call, now: Reading) -> Option<Duration> {
        let (_, nodes) = call.history.last.as_ref()?;
        let failed = |said: &NodeOutcome| matches!(said, NodeOutcome::Failed(failure) if !failure.kind().is_about_trust());
        let is_down =
            |node: &NodeId| nodes.get(node.index()).is_some_and(|report| failed(&report.said));
        let down = self.quorum.node_ids().filter(is_down).collect();
        self.monitor.as_ref()?.quorum_without(down, now).filter(|time| !time.is_zero())
    }

    /// Nodes are not looked at again by themselves.
    pub(super) fn stop_looking(&mut self) {
        let Some(monitor) = &mut self.monitor else { return };
        for node in self.quorum.node_ids() {
            let wake = &mut monitor.node_mut(node).review.wake;
            self.deadlines.put(Owner::Trust(node), wake, None);
        }
    }
}

impl Call {
    /// What nodes are is the story of a call that they keep from its lock.
    pub(super) fn note_untrusted(
        &mut self,
        quorum: Quorum,
        excluded: Vec<(NodeId, Failure)>,
        now: Reading,
    ) {
        let took = now.elapsed_since(self.started);
        let mut nodes = alloc::vec![NodeResult::new(NodeOutcome::NotAsked, took); quorum.nodes()];
        // As with an attempt: that nodes are loading, or do not let us look, is no want of trust.
        let distrusted =
            excluded.iter().filter(|(_, failure)| failure.kind().is_about_trust()).count();
        let is_untrusted = quorum.is_out_of_reach(quorum.nodes() - distrusted, 0);
        let why =
            if is_untrusted { FailureReason::NodesUntrusted } else { FailureReason::NoQuorum };
        for (node, failure) in excluded {
            // Who has done nothing wrong, but is not asked because of others, has not failed.
            if failure.kind() != FailureKind::Unverified {
                nodes[node.index()].said = NodeOutcome::Failed(failure);
            }
        }
        self.history.last = Some((why, nodes));
        self.waiting = None;
    }
}
