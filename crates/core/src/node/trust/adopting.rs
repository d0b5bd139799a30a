//! Takes a node into use after its votes may have vanished: adopt (write the text that starts the wait), wait, mark.
//!
//! - An adoption lives for two days, so that it outlives the longest possible quarantine.
//! - An adoption names the server's run and the last promotion of the run, so an adoption from before a promotion does
//!   not count. Servers forget after an hour that they were replicas.
//! - No two adoptions have the same text. If they had, a late command that names an earlier adoption could end a later
//!   one, with a floor (smallest fencing token) that is too low.
//! - Every marker gets a floor, because a server that came back with an old snapshot has its marker but old counters.
//!   The exception is a node that lost nothing according to the operator.
//! - The uptime of a run is bounded on both sides by the time that this client has observed the run. So a clock that
//!   jumps during a quarantine does not change the end of the quarantine.

use alloc::boxed::Box;
use alloc::string::ToString as _;
use alloc::sync::Arc;
use core::time::Duration;

use super::{
    EXAMINE_AGAIN, EXAMINE_SOONEST, GATHER_FOR, MarkerPlan, NodeMonitor, NodeTrust, Rival, Step,
    Todo, TrustState,
};
use crate::command::{Adopted, Command, Counter};
use crate::node::marker::{Adoption, Marker};
use crate::redlock::quorum::NodeId;
use crate::time::Reading;

impl NodeMonitor {
    /// Reads the node's adoption, the text that starts its wait for a new marker. Writes one if there is none. `other`
    /// is an adoption (text and wait in milliseconds) of another run or promotion, which the new one replaces.
    pub(super) fn adopt(
        &mut self,
        node: NodeId,
        mut plan: MarkerPlan,
        other: Option<(Arc<str>, u64)>,
        now: Reading,
        todo: &mut Todo,
    ) {
        let quarantine = self.rules.quarantine();
        let (key, cluster) = (self.rules.adoption.clone(), self.rules.cluster.clone());
        let (marker, writes) = (self.rules.marker.clone(), self.rules.is_strict());
        let trust = self.node_mut(node);
        // A node of another configuration stays refused until its adoption has been read again.
        let stays = match &trust.trust_state {
            TrustState::Quarantined { .. } => true,
            TrustState::Refused(failure) => failure.kind().is_disagreement(),
            TrustState::Unverified | TrustState::Trusted => false,
        };
        if !stays {
            // Other clients may have begun the node's wait earlier, so the quarantine may end before `until`.
            trust.is_guess = true;
            let until = now.after(quarantine).max(plan.grown_at);
            trust.trust_state = TrustState::Quarantined { until, why: plan.why.clone() };
        }
        let millis = u64::try_from(quarantine.as_millis()).unwrap_or(u64::MAX);
        let (replaces, wait_ms) = match other {
            Some((text, wait_ms)) => (Some(text), wait_ms.max(millis)),
            None => (None, millis),
        };
        let MarkerPlan { promoted_at, floor, .. } = plan;
        let run_id = plan.run_id.clone();
        let wanted = Marker { cluster, run_id, promoted_at, floor };
        let text = Adoption { marker: wanted, wait_ms }.to_string().into();
        // The adoption, which starts the node's wait, removes the present marker. Otherwise the marker would be valid
        // again once the server forgets that it was promoted.
        let seen = plan.replaces.take();
        trust.review.step = Step::Adopting(Box::new(plan));
        trust.review.due = None;
        let command = match writes {
            true => Command::Adopt { key, text, replaces, marker, seen },
            false => Command::Inspect { keys: key.into(), intents: None },
        };
        trust.send(node, command, todo);
    }

    /// Handles the answer with the node's adoption (the text that started its wait): checks settings, run and age.
    pub(super) fn adopting(
        &mut self,
        node: NodeId,
        mut plan: MarkerPlan,
        (text, age): (Arc<str>, Duration),
        now: Reading,
        todo: &mut Todo,
    ) {
        let Some(Adoption { marker: found, wait_ms }) = Adoption::parse(&text) else {
            let failure = self.rules.unreadable(&self.rules.adoption, &text);
            self.node_mut(node).rival = Some(Rival::new(Err(failure), false));
            return self.refuse_rival(node);
        };
        if found.cluster != self.rules.cluster {
            // A text that replaces this one was written later (see below).
            self.node_mut(node).adopted = Some((text.clone(), age, now.boot()));
            return self.contest(node, plan, (text, found, wait_ms), now, todo);
        }
        self.node_mut(node).rival = None;
        plan.floor = plan.floor.max(found.floor);
        let is_older = found.promoted_at != plan.promoted_at && !mutant!(AdoptionOutlivesPromotion);
        if found.run_id != plan.run_id || is_older {
            // The adoption is of an earlier run, or from before a promotion: a new one begins the wait again.
            if self.rules.is_strict() {
                return self.adopt(node, plan, Some((text, wait_ms)), now, todo);
            }
            return self.node_mut(node).rest(now);
        }
        let quarantine = self.rules.quarantine().max(Duration::from_millis(wait_ms));
        let waived = plan.lasts && mutant!(DurableWaivesAdoption);
        let quarantine = if waived { Duration::ZERO } else { quarantine };
        let trust = self.node_mut(node);
        // The node's wall clock determines the age of the adoption. Since this client first saw the adoption, the age
        // cannot have grown by more than the elapsed time. The client measures that time by its boot clock alone,
        // because its wall clock may jump ahead, and the wait would end early (docs/algorithm.md, Clocks).
        let (first, first_age, at) =
            trust.adopted.get_or_insert_with(|| (text.clone(), age, now.boot()));
        if *first != text {
            // This adoption was written after the client read the earlier one, so it is no older than that reading.
            let younger = if mutant!(AdoptionBegunAnewBelieved) { age } else { Duration::ZERO };
            (*first, *first_age) = (text.clone(), younger);
        }
        let boot = now.boot().as_nanos().saturating_sub(at.as_nanos());
        let passed = Duration::from_nanos(u64::try_from(boot).unwrap_or(0));
        let age = if mutant!(AdoptionAgeBelieved) { age } else { age.min(*first_age + passed) };
        // The bounded age is the base for the next answer, so the age grows no faster than the boot clock.
        (*first_age, *at) = (age, now.boot());
        let left = quarantine.saturating_sub(age);
        plan.grown_at = plan.grown_at.max(now.after(left));
        let age_ms = u64::try_from(quarantine.as_millis()).unwrap_or(u64::MAX);
        plan.adoption = Some(Adopted { key: self.rules.adoption.clone(), text, age_ms });
        self.mark_in_time(node, plan, now, todo);
    }

    /// Writes the marker if all waits are over. Otherwise schedules the next examination.
    pub(super) fn mark_in_time(
        &mut self,
        node: NodeId,
        plan: MarkerPlan,
        now: Reading,
        todo: &mut Todo,
    ) {
        let (left, writes) = (plan.grown_at.remaining(now), self.rules.is_strict());
        let trust = self.node_mut(node);
        if core::mem::take(&mut trust.is_guess) {
            // So far only an upper bound of the quarantine's end was reported. An equal exact end is reported too.
            trust.reported = None;
        }
        trust.trust_state = TrustState::Quarantined { until: plan.grown_at, why: plan.why.clone() };
        if !left.is_zero() || !writes {
            trust.review.step = Step::Rest;
            // The next examination follows one millisecond after the wait, because ages are whole milliseconds, but at
            // most [`EXAMINE_AGAIN`] later, because an operator may vouch for the node. If no time is left, this client
            // only observes (`RestartGuard::Observe`), and waits until another client writes the marker.
            let wait = match left.is_zero() {
                true => EXAMINE_AGAIN,
                false => (left + Duration::from_millis(1)).clamp(EXAMINE_SOONEST, EXAMINE_AGAIN),
            };
            trust.review.due = Some(now.after(wait));
            return;
        }
        // The floor, the node's smallest fencing token, is computed after the quarantine and before the first vote
        // (S21). So the client reads the other nodes' clocks now.
        trust.review.step = Step::Gathering(Box::new(plan));
        trust.review.due = Some(now.after(GATHER_FOR));
        for other in self.quorum.node_ids() {
            let trust = self.node_mut(other);
            if other != node && !trust.clock.is_well_known(now) && trust.review.step == Step::Rest {
                trust.identify(other, todo);
            }
        }
        self.review_gathering(now, todo);
    }

    /// Marks the nodes that wait for the clocks of other nodes, once enough clocks are known or no further clock will
    /// arrive.
    pub(super) fn review_gathering(&mut self, now: Reading, todo: &mut Todo) {
        // If no node is being asked, no further clock will arrive.
        let is_asked = |trust: &NodeTrust| trust.review.step == Step::Identifying;
        let nobody_is_asked = !self.nodes.iter().any(is_asked);
        for node in self.quorum.node_ids() {
            let trust = self.node(node);
            let is_gathering = matches!(trust.review.step, Step::Gathering(_));
            let is_due = trust.review.due.is_some_and(|due| due.remaining(now).is_zero());
            if is_gathering
                && (is_due
                    || nobody_is_asked
                    || self.clocks_beside(node, now) >= self.clocks_needed())
            {
                self.mark(node, now, todo);
            }
        }
    }

    /// The number of other nodes whose clocks are needed for a node's floor, its smallest fencing token.
    pub(super) fn clocks_needed(&self) -> usize {
        self.quorum.needed().min(self.quorum.nodes() - 1)
    }

    pub(super) fn clocks_beside(&self, node: NodeId, now: Reading) -> usize {
        let others = self.quorum.node_ids().filter(|other| *other != node);
        others.filter(|other| self.node(*other).clock.is_well_known(now)).count()
    }

    pub(super) fn times_beside(&self, node: NodeId, now: Reading) -> impl Iterator<Item = u64> {
        let others = self.quorum.node_ids().filter(move |other| *other != node);
        others.filter_map(move |other| self.node(other).clock.time_us(now))
    }

    /// Writes the marker. Its floor, the smallest fencing token that the node will give out, is above all tokens that
    /// the node gave out before, if the clocks are right. Proposals are bounded by clocks, and larger tokens come from
    /// an earlier floor, which came from clocks too. (It would not help to include other nodes' floors: a client that
    /// does not know them would compute a lower floor next.)
    pub(super) fn mark(&mut self, node: NodeId, now: Reading, todo: &mut Todo) {
        let own = self.node(node).clock.time_us(now);
        let clocks = self.clocks_beside(node, now);
        let is_few = clocks < self.clocks_needed();
        let others = self.times_beside(node, now).filter(|_| !mutant!(FloorFromOwnClock));
        let latest = others.chain(own).max();
        let latest = latest.unwrap_or_else(|| u64::try_from(now.real_ns() / 1000).unwrap_or(0));
        let (cluster, key) = (self.rules.cluster.clone(), self.rules.marker.clone());
        let trust = self.node_mut(node);
        let Step::Gathering(plan) = core::mem::replace(&mut trust.review.step, Step::Marking)
        else {
            unreachable!("only a node whose time was gathered is marked");
        };
        let MarkerPlan { run_id, promoted_at, replaces, floor, lasts, adoption, .. } = *plan;
        let floor = if lasts && adoption.is_none() {
            floor
        } else {
            trust.few_clocks = is_few.then_some(clocks);
            floor.max(latest.saturating_add(Marker::FLOOR_AHEAD_US))
        };
        let floor = floor.min(Counter::LIMIT - 1);
        let text = Marker { cluster, run_id, promoted_at, floor }.to_string().into();
        trust.review.due = None;
        trust.send(node, Command::Mark { key, text, replaces, adoption }, todo);
    }
}
