//! Waiting for a lock that others hold: what each node said last, and what it has pushed since.
//!
//! A node that is asked who holds the lock is asked to tell, once, when that changes. From the
//! moment of asking a push counts, also if it overtakes the answer: pushes and answers come by
//! different ways, and a release between the two must not be missed. What is pushed is never taken
//! for more than a hint. The next attempt asks the nodes again, and the keys' times to live bound
//! the wait whether or not anything is pushed.

use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Holding};
use crate::keys::Mode;
use crate::redlock::acquire::Attempt;
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::time::{BootTime, Reading};

/// What a waiting call knows of the lock on every node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Waiting {
    quorum: Quorum,
    /// As what it waits: whoever does not exclude that does not hold the lock, for it.
    mode: Mode,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Slot {
    /// It failed or was not asked: it may be held for ever for all we know.
    Unknown,
    /// Nobody else holds it here: it is free, or was granted to us.
    Free,
    /// The question is on its way, and with it the wish to be told of a change.
    Asked,
    /// Somebody holds it, until then at the latest (`None`: for ever). If those are readers, or a writer that waits has
    /// announced itself, a push says only that something has changed.
    Held { until: Option<BootTime>, watched: bool, by_several: bool },
    /// Something has changed there, and the lock may be held as before: it is worth a look, but no attempt.
    Stale,
    /// It has been asked, and has not answered in time.
    Silent,
    /// It has changed since we asked.
    Changed,
}

impl Waiting {
    /// Before anything has been asked.
    pub(crate) fn new(quorum: Quorum, mode: Mode) -> Self {
        Self { quorum, mode, slots: alloc::vec![Slot::Unknown; quorum.nodes()] }
    }

    /// After an attempt that failed: where it was granted to us, nobody else holds it.
    pub(crate) fn after(attempt: &Attempt, quorum: Quorum, mode: Mode) -> Self {
        let mut waiting = Self::new(quorum, mode);
        attempt.granting().for_each(|node| waiting.slots[node.index()] = Slot::Free);
        waiting
    }

    /// Notes that `node` is being asked; to be called before the question is sent.
    pub(crate) fn ask(&mut self, node: NodeId) {
        self.slots[node.index()] = Slot::Asked;
    }

    /// Forgets what is known of all nodes: they are about to be asked anew.
    pub(crate) fn forget(&mut self) {
        self.slots.fill(Slot::Unknown);
    }

    /// Takes a node's answer. A change that was pushed before it is not undone by it.
    pub(crate) fn handle_answer(&mut self, node: NodeId, answer: &Answer, now: Reading) {
        let slot = &mut self.slots[node.index()];
        if *slot != Slot::Asked {
            return;
        }
        let (holding, watched) = match answer {
            Answer::Watched(holding) => (holding, true),
            Answer::Seen(holding) => (holding, false),
            _ => {
                *slot = Slot::Unknown;
                return;
            }
        };
        *slot = match holding.free_in(self.mode) {
            Some(Duration::ZERO) => Slot::Free,
            in_time => {
                let is_several = |holding: &Holding| {
                    matches!(holding, Holding::Shared { .. } | Holding::Announced { .. })
                };
                let by_several = holding.each().iter().any(is_several);
                Slot::Held { until: in_time.map(|time| now.after(time)), watched, by_several }
            }
        };
    }

    /// Who has not answered in time is not waited for, but may still push.
    pub(crate) fn handle_silence(&mut self) {
        let asked = self.slots.iter_mut().filter(|slot| **slot == Slot::Asked);
        asked.for_each(|slot| *slot = Slot::Silent);
    }

    /// The node says that the lock has changed there. Returns whether that is news.
    pub(crate) fn handle_push(&mut self, node: NodeId) -> bool {
        let slot = &mut self.slots[node.index()];
        *slot = match slot {
            Slot::Held { by_several: true, .. } => Slot::Stale,
            Slot::Asked | Slot::Held { .. } | Slot::Silent => Slot::Changed,
            Slot::Unknown | Slot::Free | Slot::Stale | Slot::Changed => return false,
        };
        true
    }

    /// Readers hold the lock on some node, or a writer that waits has announced itself there.
    pub(crate) fn is_held_by_several(&self) -> bool {
        self.count(|slot| matches!(slot, Slot::Held { by_several: true, .. })) > 0
    }

    /// Some node is worth a look before an attempt.
    pub(crate) fn is_stale(&self) -> bool {
        self.slots.contains(&Slot::Stale)
    }

    /// The node has a new connection: what it was to tell on the old one, it will not; and it may
    /// not be the node any more that it was. Returns whether that is news.
    pub(crate) fn handle_new_epoch(&mut self, node: NodeId) -> bool {
        let slot = &mut self.slots[node.index()];
        let is_new = !matches!(slot, Slot::Free | Slot::Changed);
        if is_new {
            *slot = Slot::Changed;
        }
        is_new
    }

    /// As far as is known, a quorum of nodes may have the lock for us.
    pub(crate) fn is_open(&self) -> bool {
        self.quorum.is_reached(self.count(|slot| matches!(slot, Slot::Free | Slot::Changed)))
    }

    /// Enough nodes have answered, or reported a change, for a quorum to be possible among them.
    pub(crate) fn may_open(&self) -> bool {
        self.quorum.is_reached(self.count(|slot| !matches!(slot, Slot::Unknown | Slot::Silent)))
    }

    /// A quorum is out of reach: too many nodes hold the lock for others, or may do so for all they
    /// say.
    pub(crate) fn is_closed(&self) -> bool {
        let held =
            self.count(|slot| matches!(slot, Slot::Held { .. } | Slot::Silent | Slot::Stale));
        self.quorum.is_out_of_reach(self.quorum.nodes() - held, 0)
    }

    /// Enough nodes will report a change: a release cannot go unnoticed while fewer than a
    /// quorum of nodes stand still.
    pub(crate) fn is_watched(&self) -> bool {
        let watched = self.count(|slot| matches!(slot, Slot::Held { watched: true, .. }));
        self.quorum.is_out_of_reach(self.quorum.nodes() - watched, 0)
    }

    /// In what time a quorum is free by expiry alone: the Q-th smallest of the nodes' times.
    pub(crate) fn free_in(&self, now: Reading) -> Option<Duration> {
        self.quorum_free_in(self.slots.iter().filter_map(|slot| slot.free_in(now)))
    }

    /// The same at the soonest: nodes of which nothing is known may be free.
    pub(crate) fn may_be_free_in(&self, now: Reading) -> Option<Duration> {
        let soonest = |slot: &Slot| match slot {
            Slot::Held { .. } => slot.free_in(now),
            _ => Some(Duration::ZERO),
        };
        self.quorum_free_in(self.slots.iter().filter_map(soonest))
    }

    fn quorum_free_in(&self, times: impl Iterator<Item = Duration>) -> Option<Duration> {
        let mut times: Vec<Duration> = times.collect();
        times.sort_unstable();
        times.get(self.quorum.needed() - 1).copied()
    }

    /// The nodes that can be reached; `few`: as many of them as it takes to tell whether the lock is held.
    pub(crate) fn to_ask(&self, few: bool) -> NodeSet {
        let known = |node: &NodeId| self.slots[node.index()] != Slot::Unknown;
        let most = if few { self.quorum.telling() } else { self.quorum.nodes() };
        self.quorum.node_ids().filter(known).take(most).collect()
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        for slot in &mut self.slots {
            if let Slot::Held { until: Some(until), .. } = slot {
                *until = until.shifted(base);
            }
        }
    }

    fn count(&self, is: impl Fn(&Slot) -> bool) -> usize {
        self.slots.iter().filter(|slot| is(slot)).count()
    }
}

impl Slot {
    fn free_in(&self, now: Reading) -> Option<Duration> {
        match self {
            Self::Free | Self::Changed => Some(Duration::ZERO),
            Self::Held { until, .. } => until.map(|until| until.remaining(now)),
            Self::Unknown | Self::Asked | Self::Silent | Self::Stale => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Failure, FailureKind};

    const MS: i64 = 1_000_000;

    fn at(ms: i64) -> Reading {
        Reading::new(ms * MS, ms * MS)
    }

    fn held(ttl_ms: u64) -> Holding {
        let ttl = Some(Duration::from_millis(ttl_ms));
        Holding::Held { value: b"another's".to_vec(), ttl }
    }

    /// A wait in which all of these nodes have been asked.
    fn asked(nodes: usize) -> Waiting {
        let quorum = Quorum::majority(nodes).unwrap();
        let mut waiting =
            Waiting { quorum, mode: Mode::Exclusive, slots: alloc::vec![Slot::Unknown; nodes] };
        quorum.node_ids().for_each(|node| waiting.ask(node));
        waiting
    }

    #[test]
    fn a_push_that_overtakes_the_answer_is_not_undone_by_it() {
        let mut waiting = asked(3);
        for node in [0, 1].map(NodeId::new) {
            assert!(waiting.handle_push(node));
            waiting.handle_answer(node, &Answer::Watched(held(1000)), at(0));
            assert!(!waiting.handle_push(node), "told once");
        }
        assert!(waiting.is_open());
    }

    #[test]
    fn a_push_about_what_was_not_asked_is_no_news() {
        let quorum = Quorum::majority(1).unwrap();
        for slot in [Slot::Unknown, Slot::Free, Slot::Changed] {
            let mut waiting = Waiting { quorum, mode: Mode::Exclusive, slots: alloc::vec![slot] };
            assert!(!waiting.handle_push(NodeId::new(0)), "{slot:?}");
        }
    }

    #[test]
    fn a_new_connection_is_news_wherever_others_may_hold_the_lock() {
        let quorum = Quorum::majority(1).unwrap();
        for (slot, is_new) in [(Slot::Unknown, true), (Slot::Asked, true), (Slot::Free, false)] {
            let mut waiting = Waiting { quorum, mode: Mode::Exclusive, slots: alloc::vec![slot] };
            assert_eq!(waiting.handle_new_epoch(NodeId::new(0)), is_new, "{slot:?}");
            assert!(slot == Slot::Free || waiting.is_open());
        }
    }

    #[test]
    fn a_quorum_is_free_when_its_last_node_is() {
        let mut waiting = asked(5);
        let failed = Answer::Failed(Failure::new(FailureKind::Silent));
        let said = [
            Answer::Watched(held(4)),
            failed,
            Answer::Watched(held(2)),
            Answer::Watched(Holding::Free),
            Answer::Watched(held(9)),
        ];
        for (node, answer) in waiting.quorum.node_ids().zip(said) {
            waiting.handle_answer(node, &answer, at(10));
        }
        assert_eq!(
            waiting.free_in(at(11)),
            Some(Duration::from_millis(3)),
            "counted from the answer"
        );
        assert!(!waiting.is_open() && waiting.is_closed() && waiting.is_watched());
        waiting.handle_push(NodeId::new(4));
        assert_eq!(waiting.free_in(at(11)), Some(Duration::from_millis(1)));
        waiting.handle_push(NodeId::new(0));
        assert!(waiting.is_open());
    }

    #[test]
    fn a_change_on_too_few_nodes_opens_nothing() {
        let mut waiting = asked(3);
        waiting.handle_answer(NodeId::new(0), &Answer::Watched(held(9)), at(0));
        let failed = Answer::Failed(Failure::new(FailureKind::Unreachable));
        waiting.handle_answer(NodeId::new(1), &failed, at(0));
        waiting.handle_silence();
        assert!(waiting.handle_push(NodeId::new(0)) && !waiting.may_open());
        assert!(waiting.handle_push(NodeId::new(2)) && waiting.may_open(), "it is there after all");
    }

    #[test]
    fn who_cannot_tell_is_not_relied_on() {
        let mut waiting = asked(3);
        waiting.handle_answer(NodeId::new(0), &Answer::Watched(held(9)), at(0));
        waiting.handle_answer(NodeId::new(1), &Answer::Seen(held(9)), at(0));
        waiting.handle_silence();
        assert!(waiting.is_closed() && !waiting.is_watched(), "two of three it takes");
        assert_eq!(waiting.free_in(at(0)), Some(Duration::from_millis(9)));
    }
}
