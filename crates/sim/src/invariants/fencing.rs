//! Fencing tokens are unique and grow. If a resource refuses smaller tokens, two holders never write to it alternately.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quorlock_core::marker::Marker;
use quorlock_core::{
    AcquireForm, Answer, AttachForm, Command, Counter, ExtendForm, HealForm, Key, Keys, LockId,
    Token,
};

use super::Checked;
use crate::count::{Count, Counts};
use crate::fact::{ClientId, Fact, FaultEvent, NodeIndex, names};
use crate::guard::{Guard, GuardId};
use crate::invariants::View;
use crate::time::{SECOND, Time, US};

pub(crate) const NAME: &str = "fencing";

/// A client computes a floor (the lower bound for a node's tokens) from the times that nodes report. Such a time has an
/// age, because its report was in flight, and this is the largest age. The client ignores a report that was in flight
/// for more than half of a quarantine (the wait of a restarted node).
const READ_BEFORE: Time = 10 * SECOND;

pub(crate) const SENTENCE: &str = "Unique, and increasing in real time without any timing assumption \
     while F survives. (algorithm) — S18: a fence t is shown only with F = t exactly on ≥ Q nodes \
     whose votes we hold. S19: F is written only with a grant or under L == our value; never decreases. \
     S20: exact arithmetic below 2^53. (algorithm)";

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Fencing {
    /// For each key, the largest token that a holder has seen.
    shown: BTreeMap<Key, u64>,
    all: BTreeSet<(Key, u64)>,
    /// The largest token shown when an attempt (`before`) or a release (`handed`) began. The next token must be larger.
    before: BTreeMap<(ClientId, LockId), u64>,
    handed: BTreeMap<Token, u64>,
    /// The counters of each node at its last check.
    counters: Vec<BTreeMap<Key, u64>>,
    lost: BTreeSet<NodeIndex>,
    floors: Floors,
    /// The last write that a resource accepted: its token and its guard.
    accepted: BTreeMap<Key, (u64, GuardId)>,
}

/// Reasons why a floor may be lower than tokens that were already given out.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Floors {
    /// For each node, the sum of all jumps of its clock. Backward jumps count as positive too.
    set: Vec<Time>,
    /// The sum of the jumps of a node's clock is so large that a floor computed from this clock may be too low.
    is_low: bool,
    /// If nodes' clocks do not agree, floors may be too low. `marks`: each client's last marker (the key with a floor)
    /// for a node. `untrusted`: the markers whose floors may be too low, because the client knew few clocks, or because
    /// an earlier floor may come from clocks further ahead. `lowest`: the lowest of these floors that a node accepted.
    marks: BTreeMap<(ClientId, NodeIndex), Arc<str>>,
    untrusted: BTreeSet<Arc<str>>,
    lowest: Option<u64>,
}

impl Fencing {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            shown: BTreeMap::new(),
            all: BTreeSet::new(),
            before: BTreeMap::new(),
            handed: BTreeMap::new(),
            counters: vec![BTreeMap::new(); nodes],
            lost: BTreeSet::new(),
            floors: Floors {
                set: vec![0; nodes],
                is_low: false,
                marks: BTreeMap::new(),
                untrusted: BTreeSet::new(),
                lowest: None,
            },
            accepted: BTreeMap::new(),
        }
    }

    pub(crate) fn check(
        &mut self,
        fact: &Fact<'_>,
        view: &View<'_>,
        counts: &mut Counts,
    ) -> Checked {
        match fact {
            Fact::Begun { client, lock, .. } => {
                let request = view.ledger.request(*client, *lock);
                if let Some(request) = request.filter(|request| request.fenced.is_some()) {
                    let shown = self.shown_for(&request.keys);
                    self.before.insert((*client, *lock), shown);
                }
                Ok(())
            }
            Fact::ReleaseAsked { guard, .. } => {
                let fenced = view.guards.of(*guard).filter(|guard| guard.fence.is_some());
                if let Some(guard) = fenced {
                    self.handed.insert(guard.token, self.shown_for(&guard.request.keys));
                }
                Ok(())
            }
            Fact::Granted { guard: id, .. } => {
                let Some(guard) = view.guards.of(*id) else { return Ok(()) };
                match (guard.fence, &guard.request.fenced) {
                    (None, None) => Ok(()),
                    (Some(fence), Some(_)) => {
                        is_recorded(*id, guard, fence, view)?;
                        self.granted(*id, guard, fence, view, counts)
                    }
                    (fence, _) => {
                        Err(format!("{id} has the fencing token {fence:?}, unlike its request"))
                    }
                }
            }
            Fact::Ordered { client, node, command: Command::Mark { text, .. }, .. } => {
                if do_not_agree(view) {
                    self.floors.marks.insert((*client, *node), text.clone());
                    if rests_on_some(floor(text), view) {
                        self.floors.untrusted.insert(text.clone());
                    }
                }
                Ok(())
            }
            Fact::Executed { command: Command::Mark { text, .. }, answer, .. } => {
                if **answer == Answer::Marked && self.floors.untrusted.contains(text) {
                    self.floors.lowest = self.floors.lowest.into_iter().chain([floor(text)]).min();
                }
                Ok(())
            }
            Fact::Executed { node, command, answer, .. } => {
                self.executed(*node, command, answer, view)
            }
            Fact::FloorOfFew { client, node } => {
                self.floors.untrusted.extend(self.floors.marks.get(&(*client, *node)).cloned());
                Ok(())
            }
            Fact::Written { guard } => self.written(*guard, view, counts),
            // Each floor of a node must be larger than the one before. Between two floors, clocks advance by the
            // quarantine (longest ttl and two seconds). Jumps of up to half a ttl in total cannot cancel this advance;
            // larger jumps can. Models have no floors.
            Fact::FaultEvent(FaultEvent::NodeStepped { node, by }) if view.terms.quarantine > 0 => {
                self.floors.set[*node] += by.abs();
                self.floors.is_low |=
                    self.floors.set[*node] > (view.terms.quarantine - 2 * SECOND) / 2;
                Ok(())
            }
            Fact::FaultEvent(FaultEvent::CounterMoved { node }) => {
                self.counters[*node].clear();
                Ok(())
            }
            Fact::FaultEvent(
                FaultEvent::NodeCrashed { node, keeps_data: false, .. }
                | FaultEvent::NodeFlushed { node }
                | FaultEvent::NodeOverwritten { node },
            ) => {
                self.counters[*node].clear();
                self.lost.insert(*node);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether tokens up to `fence` may be out of order, because nodes lost their counters. While any two quorums share
    /// a node that kept its counters, this node keeps tokens in order, and floors do not matter.
    fn is_beyond(&self, fence: u64, view: &View<'_>) -> bool {
        let (nodes, needed) = (view.terms.quorum.nodes(), view.terms.quorum.needed());
        let (lost, in_common) = (self.lost.len(), 2 * needed - nodes);
        let is_low = self.floors.is_low || self.floors.lowest.is_some_and(|lowest| lowest < fence);
        lost > view.terms.spare_counters || is_low && lost >= in_common
    }

    fn shown_for(&self, keys: &Keys) -> u64 {
        keys.iter().filter_map(|key| self.shown.get(key)).copied().max().unwrap_or(0)
    }

    fn granted(
        &mut self,
        id: GuardId,
        guard: &Guard,
        fence: u64,
        view: &View<'_>,
        counts: &mut Counts,
    ) -> Checked {
        let keys = &guard.request.keys;
        let before = match guard.handover_count {
            0 => self.before.remove(&(id.client, id.lock)).unwrap_or(0),
            _ => self.handed.remove(&guard.token).unwrap_or(0),
        };
        let mut known = false;
        for key in &**keys {
            known |= !self.all.insert((key.clone(), fence));
            let shown = self.shown.entry(key.clone()).or_default();
            *shown = fence.max(*shown);
        }
        let wrong = if fence >= Counter::LIMIT {
            "is too large to be exact".to_owned()
        } else if known {
            "was shown before".to_owned()
        } else if fence <= before {
            format!("is not larger than {before}, which was shown before this attempt began")
        } else {
            return Ok(());
        };
        if self.is_beyond(fence.max(before), view) {
            counts.add(Count::FencesLost);
            return Ok(());
        }
        let keys = names(keys);
        Err(format!("{id} has the fencing token {fence} for {keys}, which {wrong}"))
    }

    /// S19: a counter changes only with a grant, or by a command of the key's holder.
    fn executed(
        &mut self,
        node: NodeIndex,
        command: &Command,
        answer: &Answer,
        view: &View<'_>,
    ) -> Checked {
        let (Command::Acquire { form: AcquireForm::Fenced { counter, .. }, .. }
        | Command::Attach { form: AttachForm::Fenced { counter, .. }, .. }
        | Command::Raise { counter, .. }
        | Command::Heal { form: HealForm::Fenced { counter, .. }, .. }
        | Command::Extend { form: ExtendForm::Fenced { counter }, .. }) = command
        else {
            return Ok(());
        };
        let holds = command.subject().is_some_and(|(keys, value)| {
            let stored = |key: &Key| view.node(node).stored(key, view.now);
            keys.iter().all(|key| stored(key).is_some_and(|stored| stored.holds(value)))
        });
        for key in &*counter.keys {
            let after = view.node(node).fence_at(key).unwrap_or(0);
            // No check if the previous counter is unknown, for example because the node's data was replaced.
            let Some(before) = self.counters[node].insert(key.clone(), after) else { continue };
            let may = match answer {
                Answer::GrantedFenced { .. } => after >= before,
                // The node may have carried out the command even if a proxy replaced the reply by an error.
                Answer::Raised { .. } | Answer::Failed(_) => {
                    after == before || after > before && holds
                }
                _ => after == before,
            };
            if !may {
                return Err(format!(
                    "the counter of node {node} has gone from {before} to {after}: {command:?}"
                ));
            }
        }
        Ok(())
    }

    /// A resource accepts a write unless it has accepted one with a larger token.
    fn written(&mut self, id: GuardId, view: &View<'_>, counts: &mut Counts) -> Checked {
        let Some(guard) = view.guards.of(id) else { return Ok(()) };
        let Some(fence) = guard.fence else { return Ok(()) };
        for key in &*guard.request.keys {
            let (largest, of) = *self.accepted.entry(key.clone()).or_insert((fence, id));
            if fence > largest {
                self.accepted.insert(key.clone(), (fence, id));
            } else if fence < largest {
                counts.add(Count::FencedOff);
            } else if of != id && !self.is_beyond(fence, view) {
                return Err(format!(
                    "{key} is written to by {of} and by {id}, with one fencing token"
                ));
            }
        }
        Ok(())
    }
}

fn floor(marker: &str) -> u64 {
    Marker::parse(marker).map_or(0, |marker| marker.floor)
}

/// Whether this floor is above the clocks of more than a quorum of nodes, but not above all clocks. An earlier floor
/// that was computed from the clock that is furthest ahead may then be higher.
fn rests_on_some(floor: u64, view: &View<'_>) -> bool {
    let ahead = Marker::FLOOR_AHEAD_US.cast_signed() * US;
    let read_before = READ_BEFORE.min(view.terms.quarantine / 2);
    let is_under = |clock: &Time| *clock - read_before + ahead <= floor.cast_signed() * US;
    let under = clocks(view).into_iter().filter(is_under).count();
    (view.terms.quorum.needed() + 1..view.terms.quorum.nodes()).contains(&under)
}

fn clocks(view: &View<'_>) -> Vec<Time> {
    let nodes = view.terms.quorum.node_ids();
    nodes.map(|node| view.node(node.index()).clock.at(view.now)).collect()
}

/// Whether the nodes' clocks are further apart than a quarantine.
fn do_not_agree(view: &View<'_>) -> bool {
    let clocks = clocks(view);
    let (first, last) = (clocks.iter().min(), clocks.iter().max());
    last.zip(first).is_some_and(|(last, first)| last - first > view.terms.quarantine)
}

/// S18: a guard may have a token only if a quorum of nodes has recorded it, and the guard has the votes of these nodes.
fn is_recorded(id: GuardId, guard: &Guard, fence: u64, view: &View<'_>) -> Checked {
    let Some(token) = view.ledger.of_guard(guard) else { return Ok(()) };
    let nodes = view.terms.quorum.node_ids().zip(&token.nodes);
    let recorded = nodes.filter(|(node, record)| {
        guard.hold.validity().has_vote_of(*node) && record.recorded == Some(fence)
    });
    let count = recorded.count();
    if view.terms.quorum.is_reached(count) {
        return Ok(());
    }
    Err(format!("{id} is shown the fencing token {fence}, which {count} nodes have recorded"))
}
