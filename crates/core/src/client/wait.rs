//! Waiting for a lock that another client holds: the last answer of each node, and its pushes since then.
//!
//! A waiting call asks nodes for the holder of the lock, and for one push when the key changes. A push counts from the
//! time of the request on, even if it arrives before the answer. Pushes and answers take different paths, and the call
//! must not miss a release between the two. A push is only a hint: the next attempt asks the nodes again. The ttl of
//! the keys bounds the wait even if no push arrives.

use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{Answer, Holding};
use crate::keys::Mode;
use crate::redlock::acquire::Attempt;
use crate::redlock::quorum::{NodeId, NodeSet, Quorum};
use crate::time::{BootTime, Reading};

/// The state of the lock on each node, as a waiting call knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Waiting {
    quorum: Quorum,
    /// The mode of the waiting call. Holders that do not exclude this mode do not count.
    mode: Mode,
    states: Vec<State>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    /// The node failed or was not asked, so the lock may be held there for any time.
    Unknown,
    /// No other client holds the lock on this node.
    Free,
    /// A request for the node's state and a push is in flight.
    Asked,
    /// Another client holds the lock, at the latest until `until`; `None` means without an expiry. `watched` means that
    /// the node pushes the next change, and `by_several` that readers hold the lock or a waiting writer's intent keeps
    /// new readers out. With `by_several`, a push does not mean that the lock is free.
    Held { until: Option<BootTime>, watched: bool, by_several: bool },
    /// Readers or intents changed on the node. The lock may still be held, so the call inspects it before it attempts.
    Stale,
    /// The node did not answer in time.
    Silent,
    /// The key has changed since the call asked for the node's state and a push.
    Changed,
}

impl Waiting {
    pub(crate) fn new(quorum: Quorum, mode: Mode) -> Self {
        Self { quorum, mode, states: alloc::vec![State::Unknown; quorum.nodes()] }
    }

    /// The state after a failed attempt: no other client holds the lock on a node that granted.
    pub(crate) fn after(attempt: &Attempt, quorum: Quorum, mode: Mode) -> Self {
        let mut waiting = Self::new(quorum, mode);
        attempt.granting().for_each(|node| waiting.states[node.index()] = State::Free);
        waiting
    }

    /// Notes a request to `node`. Must precede the request, because a push may arrive first.
    pub(crate) fn ask(&mut self, node: NodeId) {
        self.states[node.index()] = State::Asked;
    }

    /// Resets all nodes before the next inspection of the lock.
    pub(crate) fn forget(&mut self) {
        self.states.fill(State::Unknown);
    }

    /// Takes a node's answer. The answer does not override a push that arrived before it.
    pub(crate) fn handle_answer(&mut self, node: NodeId, answer: &Answer, now: Reading) {
        let state = &mut self.states[node.index()];
        if *state != State::Asked {
            return;
        }
        let (holding, watched) = match answer {
            Answer::Watched(holding) => (holding, true),
            Answer::Seen(holding) => (holding, false),
            _ => {
                *state = State::Unknown;
                return;
            }
        };
        *state = match holding.free_in(self.mode) {
            Some(Duration::ZERO) => State::Free,
            in_time => {
                let is_several = |holding: &Holding| {
                    matches!(holding, Holding::Shared { .. } | Holding::Announced { .. })
                };
                let by_several = holding.each().iter().any(is_several);
                State::Held { until: in_time.map(|time| now.after(time)), watched, by_several }
            }
        };
    }

    /// Notes that the nodes without an answer will not answer in time any more. They may still push.
    pub(crate) fn handle_silence(&mut self) {
        let asked = self.states.iter_mut().filter(|state| **state == State::Asked);
        asked.for_each(|state| *state = State::Silent);
    }

    /// Takes a push of a node. Returns whether the state changed.
    pub(crate) fn handle_push(&mut self, node: NodeId) -> bool {
        let state = &mut self.states[node.index()];
        *state = match state {
            State::Held { by_several: true, .. } => State::Stale,
            State::Asked | State::Held { .. } | State::Silent => State::Changed,
            State::Unknown | State::Free | State::Stale | State::Changed => {
                return false;
            }
        };
        true
    }

    /// Whether readers hold the lock on some node, or a waiting writer has left an intent there.
    pub(crate) fn is_held_by_several(&self) -> bool {
        self.count(|state| matches!(state, State::Held { by_several: true, .. })) > 0
    }

    /// Whether the call should inspect the lock again before it attempts.
    pub(crate) fn is_stale(&self) -> bool {
        self.states.contains(&State::Stale)
    }

    /// Notes a new connection to the node. The key may have changed, because pushes for the old connection are lost,
    /// and the server may be another one. Returns whether the state changed.
    pub(crate) fn handle_new_epoch(&mut self, node: NodeId) -> bool {
        let state = &mut self.states[node.index()];
        let is_new = !matches!(state, State::Free | State::Changed);
        if is_new {
            *state = State::Changed;
        }
        is_new
    }

    /// Whether a quorum of nodes may be free.
    pub(crate) fn is_open(&self) -> bool {
        self.quorum.is_reached(self.count(|state| matches!(state, State::Free | State::Changed)))
    }

    /// Whether a quorum of nodes answered or pushed. Fewer nodes cannot show that a quorum is free.
    pub(crate) fn may_open(&self) -> bool {
        self.quorum.is_reached(self.count(|state| !matches!(state, State::Unknown | State::Silent)))
    }

    /// Whether a quorum is out of reach, because too many nodes hold the lock for other clients or may hold it.
    pub(crate) fn is_closed(&self) -> bool {
        let held =
            self.count(|state| matches!(state, State::Held { .. } | State::Silent | State::Stale));
        self.quorum.is_out_of_reach(self.quorum.nodes() - held, 0)
    }

    /// Whether enough nodes will push a change, so that the call notices every release while a quorum of nodes is up.
    pub(crate) fn is_watched(&self) -> bool {
        let watched = self.count(|state| matches!(state, State::Held { watched: true, .. }));
        self.quorum.is_out_of_reach(self.quorum.nodes() - watched, 0)
    }

    /// The time until Q nodes, a quorum, are free by expiry: the Q-th smallest known time. `None` if fewer are known.
    pub(crate) fn free_in(&self, now: Reading) -> Option<Duration> {
        self.quorum_free_in(self.states.iter().filter_map(|state| state.free_in(now)))
    }

    /// A lower bound of the time until a quorum is free by expiry, because nodes without an answer count as free.
    pub(crate) fn may_be_free_in(&self, now: Reading) -> Option<Duration> {
        let soonest = |state: &State| match state {
            State::Held { .. } => state.free_in(now),
            _ => Some(Duration::ZERO),
        };
        self.quorum_free_in(self.states.iter().filter_map(soonest))
    }

    fn quorum_free_in(&self, times: impl Iterator<Item = Duration>) -> Option<Duration> {
        let mut times: Vec<Duration> = times.collect();
        times.sort_unstable();
        times.get(self.quorum.needed() - 1).copied()
    }

    /// The nodes to ask for the state of the lock: all nodes that can be reached or, with `few`, only as many as show
    /// whether the lock is held.
    pub(crate) fn to_ask(&self, few: bool) -> NodeSet {
        let known = |node: &NodeId| self.states[node.index()] != State::Unknown;
        let most = if few { self.quorum.nodes_to_ask() } else { self.quorum.nodes() };
        self.quorum.node_ids().filter(known).take(most).collect()
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        for state in &mut self.states {
            if let State::Held { until: Some(until), .. } = state {
                *until = until.shifted(base);
            }
        }
    }

    fn count(&self, is: impl Fn(&State) -> bool) -> usize {
        self.states.iter().filter(|state| is(state)).count()
    }
}

impl State {
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

    /// A wait in which all nodes have been asked.
    fn asked(nodes: usize) -> Waiting {
        let quorum = Quorum::majority(nodes).unwrap();
        let mut waiting =
            Waiting { quorum, mode: Mode::Exclusive, states: alloc::vec![State::Unknown; nodes] };
        quorum.node_ids().for_each(|node| waiting.ask(node));
        waiting
    }

    #[test]
    fn a_push_that_overtakes_the_answer_is_not_undone_by_it() {
        let mut waiting = asked(3);
        for node in [0, 1].map(NodeId::new) {
            assert!(waiting.handle_push(node));
            waiting.handle_answer(node, &Answer::Watched(held(1000)), at(0));
            assert!(!waiting.handle_push(node), "one push is enough");
        }
        assert!(waiting.is_open());
    }

    #[test]
    fn a_push_without_a_request_changes_nothing() {
        let quorum = Quorum::majority(1).unwrap();
        for state in [State::Unknown, State::Free, State::Changed] {
            let mut waiting = Waiting { quorum, mode: Mode::Exclusive, states: alloc::vec![state] };
            assert!(!waiting.handle_push(NodeId::new(0)), "{state:?}");
        }
    }

    #[test]
    fn a_new_connection_is_news_wherever_others_may_hold_the_lock() {
        let quorum = Quorum::majority(1).unwrap();
        for (state, is_new) in [(State::Unknown, true), (State::Asked, true), (State::Free, false)]
        {
            let mut waiting = Waiting { quorum, mode: Mode::Exclusive, states: alloc::vec![state] };
            assert_eq!(waiting.handle_new_epoch(NodeId::new(0)), is_new, "{state:?}");
            assert!(state == State::Free || waiting.is_open());
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
        assert!(waiting.handle_push(NodeId::new(2)) && waiting.may_open(), "the silent node is up");
    }

    #[test]
    fn a_node_that_cannot_push_is_not_relied_on() {
        let mut waiting = asked(3);
        waiting.handle_answer(NodeId::new(0), &Answer::Watched(held(9)), at(0));
        waiting.handle_answer(NodeId::new(1), &Answer::Seen(held(9)), at(0));
        waiting.handle_silence();
        assert!(waiting.is_closed() && !waiting.is_watched(), "two of three must push");
        assert_eq!(waiting.free_in(at(0)), Some(Duration::from_millis(9)));
    }
}
