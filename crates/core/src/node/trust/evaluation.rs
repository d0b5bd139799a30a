//! Compares a node's evidence with earlier observations, and decides whether its votes count.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::time::Duration;

use super::{
    Fault, LOOK_AGAIN, LOOK_EVERY, MarkerPlan, NodeMonitor, Step, Todo, TrustState, Words,
};
use crate::command::{Failure, FailureKind};
use crate::node::evidence::MarkerSeen;
use crate::node::info::Info;
use crate::node::marker::Marker;
use crate::redlock::quorum::NodeId;
use crate::time::{BootTime, Reading};

impl NodeMonitor {
    /// The node has answered what it is: what follows?
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
        trust.marker = None;
        trust.review.due = Some(now.after(LOOK_AGAIN));
        let info = match info.map(|text| Info::parse(&text)) {
            Ok(Ok(info)) => info,
            Ok(Err(missing)) => {
                return trust.refuse(rules.words.failure(&Fault::Incomplete(missing)));
            }
            // No server of the kind refuses it for good without a word for why: a proxy may.
            Err(failure) if failure.kind() == FailureKind::Rejected => {
                let said = failure.detail().unwrap_or_default();
                return trust.refuse(rules.words.failure(&Fault::NoInfo(said)));
            }
            // It may be asked another time; until then nothing it says counts.
            Err(failure) if !failure.kind().is_about_rights() => {
                trust.trust_state = TrustState::Unverified;
                return;
            }
            Err(failure) => return trust.refuse(failure),
        };
        trust.note_run(&info, sent, now, rules.quarantine());
        if let Some(failure) = unsound(&info, rules.words) {
            return trust.refuse(failure);
        }
        if let Some(duplicate) = self.duplicate_of(node, now) {
            return self.refuse_duplicates(node, duplicate);
        }
        let old = match marker {
            MarkerSeen::Text(text) => match Marker::parse(text) {
                Some(old) if old.cluster == rules.cluster => Some((text, old)),
                Some(old) => {
                    let (theirs, ours) = (&old.cluster, &rules.cluster);
                    return self
                        .refuse(node, &Fault::OtherSettings { is_marked: true, theirs, ours });
                }
                None => {
                    return self.refuse(node, &Fault::ForeignKey { key: &rules.marker, text });
                }
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
            trust.review.due = Some(now.after(LOOK_EVERY));
            return;
        }
        let young_for = self.young_for(node, &info, sent);
        let mut plan = MarkerPlan {
            run_id: info.run_id.clone(),
            promoted_at,
            replaces: old.as_ref().map(|(text, _)| Arc::clone(text)),
            floor: old.as_ref().map_or(0, |(_, old)| old.floor),
            lasts: self.is_durable(node, &info),
            // It said so before its answer came, and after it was asked: the safe side is the former.
            grown_at: now.after(young_for),
            why: why(&info, old.is_some(), rules.durable.contains(node)).into(),
            adoption: None,
        };
        // It has kept its votes, and those of its last run may have been given under another name (S3).
        if plan.lasts
            && let Some((_, old)) = &old
            && let Some((until, why)) = self.voted_elsewhere(node, &old.run_id)
            && until > plan.grown_at
        {
            (plan.grown_at, plan.why) = (until, why.into());
        }
        // A server without replicas forgets after this time that it was a replica.
        let would_tell = plan.lasts || rules.would_tell_of_promotions();
        if old.is_some() && info.promoted_at.is_none() && would_tell {
            // It came back with its data: it need only have been there for long enough.
            return self.mark_in_time(node, plan, now, todo);
        }
        self.adopt(node, plan, None, now, todo);
    }

    /// The operator says that it forgets nothing when it stops, and it does not say otherwise itself.
    pub(super) fn is_durable(&self, node: NodeId, info: &Info) -> bool {
        self.rules.durable.contains(node)
            && (mutant!(DurableUnasked) || info.forgets_by().is_none())
    }

    /// For how much longer the server must have been running (S10).
    pub(super) fn young_for(&self, node: NodeId, info: &Info, sent: Reading) -> Duration {
        // The uptime follows a clock that may have been set, so it is bounded: from above by the last answer of an earlier
        // run and by the uptime at the first answer of this run, from below by the time since that answer.
        let since = |at: BootTime| {
            let ns = sent.boot().as_nanos().saturating_sub(at.as_nanos());
            Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
        };
        let told = Duration::from_secs(told_uptime(info));
        let trust = self.node(node);
        let seen = trust.run.answered_before.map_or(Duration::MAX, since);
        let (at_first, passed) =
            trust.run.first.map_or((0, Duration::ZERO), |(at_first, at)| (at_first, since(at)));
        let bounded = told.min(seen).min(Duration::from_secs(at_first) + passed).max(passed);
        let told = if mutant!(UptimeBelieved) { told } else { bounded };
        let less = Duration::from_secs(if mutant!(UptimeOffByTwo) { 2 } else { 0 });
        if self.is_durable(node, info) {
            Duration::ZERO
        } else {
            self.rules.quarantine().saturating_sub(told + less)
        }
    }

    /// Another node of the list that is the same server (S3). One that is away may lead elsewhere by now; but what it
    /// voted while it led to this server may still count, and is a vote of this server.
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

    /// Until when the node's votes would be second ones, and why: its server may have voted under another name, which
    /// leads elsewhere by now. Until that vote cannot count any more, the server has none here (S3: the votes for a
    /// lock are of distinct servers). A run whose votes could not be kept in mind afterwards has none either.
    pub(super) fn has_second_vote(&self, node: NodeId, now: Reading) -> Option<(BootTime, String)> {
        let elsewhere = self.voted_elsewhere(node, self.node(node).run.id.as_deref()?);
        let forgotten = self.node(node).run.earlier.is_full_since().map(|at| self.lapse(at));
        let forgotten = forgotten.map(|until| (until, "its server has changed too often".into()));
        let lasts = |(until, _): &(BootTime, String)| !until.remaining(now).is_zero();
        elsewhere.into_iter().chain(forgotten).filter(lasts).max_by_key(|(until, _)| *until)
    }

    /// Until when a vote may count that this run has given under another name, and why.
    fn voted_elsewhere(&self, node: NodeId, run_id: &str) -> Option<(BootTime, String)> {
        let others = self.quorum.node_ids().filter(|other| *other != node);
        let voted =
            others.filter_map(|other| Some((self.node(other).run.voted_as(run_id)?, other)));
        let (at, other) = voted.max()?;
        let name = &self.rules.names[other.index()];
        Some((self.lapse(at), format!("was the server of {name} a moment ago")))
    }

    /// When a vote that was asked for then cannot count any more.
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

/// How many seconds the server says it has been running: a clock that was set back since says less than
/// nothing.
pub(super) fn told_uptime(info: &Info) -> u64 {
    if mutant!(UptimeUnsigned) {
        return info.uptime_s.unsigned_abs();
    }
    u64::try_from(info.uptime_s).unwrap_or(0)
}

/// The fault that makes a server's votes worthless, whatever its history.
pub(super) fn unsound(info: &Info, words: Words) -> Option<Failure> {
    let fault = if !info.is_master {
        Fault::Replica
    } else if info.is_loading {
        return Some(Failure::new(FailureKind::Loading));
    } else if info.is_cluster {
        Fault::InCluster
    } else {
        Fault::Evicts(info.evicts_by.as_deref()?)
    };
    Some(words.failure(&fault))
}

/// Why a server that is sound does not vote yet.
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
