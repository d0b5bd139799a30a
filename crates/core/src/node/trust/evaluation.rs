//! Compares a node's evidence (its `INFO` and marker) with earlier observations, and decides whether its votes count.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::time::Duration;

use super::{
    EXAMINE_AGAIN, EXAMINE_EVERY, Fault, MarkerPlan, NodeMonitor, ReplicasSeen, Step, Todo,
    TrustState, Words,
};
use crate::command::{Failure, FailureKind};
use crate::node::evidence::MarkerSeen;
use crate::node::info::Info;
use crate::node::marker::Marker;
use crate::redlock::quorum::NodeId;
use crate::time::{BootTime, Reading};

impl NodeMonitor {
    /// Evaluates a node's `INFO` and marker: trusts or refuses it, or begins its wait (adoption) for a new marker.
    pub(super) fn evaluate(
        &mut self,
        node: NodeId,
        info: Result<Arc<str>, Failure>,
        marker: &MarkerSeen,
        sent: Reading,
        now: Reading,
        todo: &mut Todo,
    ) {
        let rules = self.rules.clone();
        let trust = self.node_mut(node);
        trust.review.step = Step::Rest;
        trust.has_new_data = false;
        trust.unread = None;
        trust.marker = None;
        trust.review.due = Some(now.after(EXAMINE_AGAIN));
        let info = match info.map(|text| Info::parse(&text)) {
            Ok(Ok(info)) => info,
            Ok(Err(missing)) => {
                return trust.refuse(rules.words.failure(&Fault::Incomplete(missing)));
            }
            // Redis and Valkey do not answer `INFO` with an unknown error, but a proxy may.
            Err(failure) if failure.kind() == FailureKind::Rejected => {
                let said = failure.detail().unwrap_or_default();
                return trust.refuse(rules.words.failure(&Fault::NoInfo(said)));
            }
            // The failure is temporary, so the client asks again later. Until then the node's votes do not count.
            Err(failure) if !failure.kind().is_about_rights() => {
                trust.trust_state = TrustState::Unverified;
                trust.unread = Some(failure);
                return;
            }
            Err(failure) => return trust.refuse(failure),
        };
        if trust.run.id.as_deref() != Some(&*info.run_id) {
            trust.replicas = ReplicasSeen::default();
        }
        trust.note_run(&info, sent, now, rules.quarantine());
        trust.replicas.connected = Some(info.replicas);
        if let Some(failure) = unsound(&info, rules.replicas_of(node), rules.words) {
            return trust.refuse(failure);
        }
        if let Some(duplicate) = self.duplicate_of(node, now) {
            return self.refuse_duplicates(node, duplicate);
        }
        let old = match marker {
            MarkerSeen::Text(text) => match Marker::parse(text) {
                Some(old) if old.cluster == rules.cluster => Some((text, old)),
                // The caller refuses the node.
                _ => return,
            },
            MarkerSeen::Missing => None,
            MarkerSeen::Failed(failure)
                if failure.kind().is_about_rights() || failure.kind().is_disagreement() =>
            {
                let failure = failure.clone();
                return self.node_mut(node).refuse(failure);
            }
            MarkerSeen::Failed(_) | MarkerSeen::NotAsked => {
                self.node_mut(node).trust_state = TrustState::Unverified;
                return;
            }
        };
        let promoted_at = info.promoted_at.unwrap_or(-1);
        let is_of_this_run =
            |old: &Marker| *old.run_id == *info.run_id && old.promoted_at == promoted_at;
        if let Some((text, _)) = old.as_ref().filter(|(_, old)| is_of_this_run(old)) {
            if let Some((until, why)) = self.has_second_vote(node, now) {
                return self.node_mut(node).hold_back(until, why, now);
            }
            let trust = self.node_mut(node);
            trust.marker = Some(Arc::clone(text));
            trust.trust_state = TrustState::Trusted;
            trust.adopted = None;
            trust.review.due = Some(now.after(EXAMINE_EVERY));
            return;
        }
        let young_for = self.young_for(node, &info, sent);
        let mut plan = MarkerPlan {
            run_id: info.run_id.clone(),
            promoted_at,
            replaces: old.as_ref().map(|(text, _)| Arc::clone(text)),
            floor: old.as_ref().map_or(0, |(_, old)| old.floor),
            lasts: self.is_durable(node, &info),
            // The server computed its uptime at an unknown time between sending and answer. The later time, that of the
            // answer, gives the longer wait, which is safe.
            grown_at: now.after(young_for),
            why: why(&info, old.is_some(), rules.durable.contains(node)).into(),
            adoption: None,
        };
        // The server kept its votes. If its last run gave votes under another name of the list, this name votes only
        // after those votes have expired (S3).
        if plan.lasts
            && let Some((_, old)) = &old
            && let Some((until, why)) = self.voted_elsewhere(node, &old.run_id)
            && until > plan.grown_at
        {
            (plan.grown_at, plan.why) = (until, why.into());
        }
        // A server without replicas forgets after an hour that it was a replica. So an `INFO` without a promotion does
        // not always prove that the server was not promoted.
        let would_tell = plan.lasts || rules.would_tell_of_promotions();
        if old.is_some() && info.promoted_at.is_none() && would_tell {
            // The server restarted with its data, so its votes count as soon as it has been running for long enough. An
            // adoption would only start a longer wait.
            return self.mark_in_time(node, plan, now, todo);
        }
        self.adopt(node, plan, None, now, todo);
    }

    /// Whether the operator declared the node durable, and the server's settings do not contradict this.
    pub(super) fn is_durable(&self, node: NodeId, info: &Info) -> bool {
        self.rules.durable.contains(node)
            && (mutant!(DurableUnasked) || info.forgets_by().is_none())
    }

    /// The time for which the server must still run until its votes count (S10).
    pub(super) fn young_for(&self, node: NodeId, info: &Info, sent: Reading) -> Duration {
        // The server computes its uptime from a wall clock that may have been set. Upper bounds of the true uptime are
        // the time since the last answer of an earlier run, and the uptime at the first answer of this run plus the
        // time since then. A lower bound is the time since that first answer.
        let since = |at: BootTime| {
            let ns = sent.boot().as_nanos().saturating_sub(at.as_nanos());
            Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
        };
        let reported = Duration::from_secs(reported_uptime(info));
        let trust = self.node(node);
        let seen = trust.run.answered_before.map_or(Duration::MAX, since);
        let (at_first, passed) =
            trust.run.first.map_or((0, Duration::ZERO), |(at_first, at)| (at_first, since(at)));
        let bounded = reported.min(seen).min(Duration::from_secs(at_first) + passed).max(passed);
        let uptime = if mutant!(UptimeBelieved) { reported } else { bounded };
        let less = Duration::from_secs(if mutant!(UptimeOffByTwo) { 2 } else { 0 });
        if self.is_durable(node, info) {
            Duration::ZERO
        } else {
            self.rules.quarantine().saturating_sub(uptime + less)
        }
    }

    /// Another node of the list that leads to the same server (S3). A node that is unreachable may lead to another
    /// server by now. But the votes that it gave while it led to this server may still count, and they are votes of
    /// this server.
    pub(super) fn duplicate_of(&self, node: NodeId, now: Reading) -> Option<NodeId> {
        let run_id = Some(self.node(node).run.id.as_deref()?);
        let quarantine = self.rules.quarantine();
        let is_same = |other: &NodeId| {
            let trust = self.node(*other);
            let votes = |at: BootTime| !at.after(quarantine).remaining(now).is_zero();
            let may_count = trust.is_near || trust.run.answered.is_some_and(votes);
            *other != node && may_count && trust.run.id.as_deref() == run_id
        };
        self.quorum.node_ids().find(is_same).filter(|_| !mutant!(DuplicatesCount))
    }

    /// The time until which the node's server could vote twice for a lock, and the reason. The server may have voted
    /// under another name, which leads to another server by now. Until that vote expires, the server's votes do not
    /// count under this name (S3: the votes for a lock are of distinct servers). If the list of earlier runs
    /// is full, the same applies until it has room again, because a further run could not be remembered.
    pub(super) fn has_second_vote(&self, node: NodeId, now: Reading) -> Option<(BootTime, String)> {
        let elsewhere = self.voted_elsewhere(node, self.node(node).run.id.as_deref()?);
        let forgotten = self.node(node).run.earlier.is_full_since().map(|at| self.lapse(at));
        let forgotten = forgotten.map(|until| (until, "its server has changed too often".into()));
        let lasts = |(until, _): &(BootTime, String)| !until.remaining(now).is_zero();
        elsewhere.into_iter().chain(forgotten).filter(lasts).max_by_key(|(until, _)| *until)
    }

    /// The time until which a vote of this run under another name may count, and the reason; `None` without one.
    fn voted_elsewhere(&self, node: NodeId, run_id: &str) -> Option<(BootTime, String)> {
        let others = self.quorum.node_ids().filter(|other| *other != node);
        let voted =
            others.filter_map(|other| Some((self.node(other).run.voted_as(run_id)?, other)));
        let (at, other) = voted.max()?;
        let name = &self.rules.names[other.index()];
        Some((self.lapse(at), format!("was the server of {name} a moment ago")))
    }

    /// The time from which a vote that was requested at `at` cannot count any more.
    fn lapse(&self, at: BootTime) -> BootTime {
        at.after(self.rules.quarantine())
    }

    pub(super) fn refuse_duplicates(&mut self, node: NodeId, duplicate: NodeId) {
        let rules = self.rules.clone();
        for (one, other) in [(node, duplicate), (duplicate, node)] {
            if !self.node(one).is_near {
                continue;
            }
            self.refuse(one, &Fault::SameServer(&rules.names[other.index()]));
        }
    }

    pub(super) fn refuse(&mut self, node: NodeId, fault: &Fault<'_>) {
        let failure = self.rules.words.failure(fault);
        self.node_mut(node).refuse(failure);
    }
}

/// The uptime in seconds that the server reports. Zero if the report is negative, because the server's clock was set
/// back.
pub(super) fn reported_uptime(info: &Info) -> u64 {
    if mutant!(UptimeUnsigned) {
        return info.uptime_s.unsigned_abs();
    }
    u64::try_from(info.uptime_s).unwrap_or(0)
}

/// The fault that makes a server's votes worthless, whatever its history; `None` without a fault.
pub(super) fn unsound(info: &Info, declared: u32, words: Words) -> Option<Failure> {
    let fault = if !info.is_master {
        Fault::Replica
    } else if info.is_loading {
        return Some(Failure::new(FailureKind::Loading));
    } else if info.is_cluster {
        Fault::InCluster
    } else if declared > 0 && info.replicas > declared {
        // `declared` replicas could acknowledge a vote without the replica that is promoted later.
        Fault::MoreReplicas { connected: info.replicas, declared }
    } else {
        Fault::Evicts(info.evicts_by.as_deref()?)
    };
    Some(words.failure(&fault))
}

/// The reason why a server without a fault does not vote yet, for people.
fn why(info: &Info, was_marked: bool, is_declared_durable: bool) -> String {
    let uptime = info.uptime_s;
    match (info.promoted_at, was_marked) {
        (Some(_), _) => "was a replica".into(),
        (None, true) => match info.forgets_by().filter(|_| is_declared_durable) {
            Some(setting) => {
                format!("started {uptime} s ago (declared to forget nothing, but it has {setting})")
            }
            None => format!("started {uptime} s ago"),
        },
        (None, false) => "is new under these settings, or has lost its data".into(),
    }
}
