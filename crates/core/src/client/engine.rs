//! The engine: every attempt, held lock, retry, queue and timer of one client in one state machine.
//!
//! ```text
//!   caller ──Event──► Engine ──Effect::Send──► node
//!   caller ◄─Effect── Engine ◄─Event::Answered── node
//! ```
//!
//! The driver calls [`Engine::handle`] with each event and a clock reading taken *after* the event arrived, executes
//! the effects in order, and calls again with [`Event::Wake`] at [`Engine::deadline`]. The engine has no other input or
//! output. Late, stale and unknown events are harmless: a [`Ticket`] names the lock, the round and the verb of an
//! answer, and the engine drops an answer that no record waits for.
//!
//! Methods follow one convention: `on_…` handles an event, `due_…` handles a deadline, `emit_…` produces an effect, and
//! `review_…` acts on the consequences of a change. A [`Context`] carries the time and the sink of effects.
//!
//! The model checker needs `Clone + Eq + Hash + Debug`, deterministic collections, no random generator and no
//! statistics. [`Engine::rebased`] makes its states comparable.

mod attempting;
mod call;
mod calls;
mod closing;
mod detached;
mod ending;
mod extending;
mod handing_over;
mod held_locks;
mod history;
mod inspecting;
mod intents;
mod messages;
mod rebase;
mod releases;
mod trusting;
mod turns;
mod waiting;
mod yielding;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use self::call::{Call, Phase};
use self::closing::Closing;
pub use self::messages::{
    AttemptReport, Effect, Entropy, EntryOf, Event, Extended, Refusal, RefusalKind, Sink,
};
use crate::client::deadlines::{Deadlines, Owner};
use crate::client::key_table::KeyTable;
use crate::client::records::{Records, Rounds};
use crate::command::{Answer, FailureKind};
use crate::ids::{LockId, NodeAnswer, Ticket, Verb};
use crate::node::evidence::Evidence;
use crate::node::round_trip::RoundTrips;
use crate::node::trust::NodeMonitor;
use crate::redlock::entry_extension::EntryExtension;
use crate::redlock::held_lock::HeldLock;
use crate::redlock::inspect::Inspection;
use crate::redlock::quorum::{NodeId, Quorum};
use crate::redlock::release::Release;
use crate::time::{BootTime, Reading};

/// The whole client as one state machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Engine {
    quorum: Quorum,
    calls: Records<Call>,
    held: Records<HeldLock>,
    releases: Rounds<Release>,
    inspections: Records<Inspection>,
    entry_extensions: Records<EntryExtension>,
    local: LocalCallers,
    keys: KeyTable,
    paths: Paths,
    deadlines: Deadlines,
    closing: Closing,
    /// The restart guard; `None` if it is off.
    monitor: Option<Box<NodeMonitor>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct LocalCallers {
    /// For each holder's id, the id under which its lock is recorded. The two ids differ only after a hand-over, so
    /// only locks that were handed over have an entry.
    handed: BTreeMap<LockId, LockId>,
    /// Calls that pause while another caller of this process attempts. They are not in the local queues, so the engine
    /// searches this set too when a node pushes a change.
    yielded: BTreeSet<LockId>,
    /// Calls whose next attempt begins at the end of the current event or, if that event is an answer, with the next
    /// event that is not an answer.
    begins: VecDeque<LockId>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Paths {
    links: Vec<NodeLink>,
    round_trips: RoundTrips,
}

impl Paths {
    /// The nodes whose connections are being made.
    fn connecting(&self) -> impl Iterator<Item = NodeId> + use<'_> {
        let links = self.links.iter().enumerate().filter(|(_, link)| link.connecting);
        links.map(|(place, _)| NodeId::new(place))
    }
}

/// The time of an event, and the sink of its effects.
pub(crate) struct Context<'a> {
    now: Reading,
    out: &'a mut dyn Sink,
}

impl Context<'_> {
    #[inline]
    fn emit(&mut self, effect: Effect) {
        self.out.push(effect);
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct NodeLink {
    connecting: bool,
    /// Whether the last command failed because the node could not be reached.
    away: bool,
    /// Time at which releases that failed on this node are sent again; `None` if no retry is scheduled.
    retry_at: Option<BootTime>,
    failures: u8,
}

impl Engine {
    /// A new client without a restart guard.
    pub fn new(quorum: Quorum) -> Self {
        Self {
            quorum,
            calls: Records::new(),
            held: Records::new(),
            releases: Rounds::new(),
            inspections: Records::new(),
            entry_extensions: Records::new(),
            local: LocalCallers::default(),
            keys: KeyTable::default(),
            paths: Paths {
                links: alloc::vec![NodeLink::default(); quorum.nodes()],
                round_trips: RoundTrips::new(quorum),
            },
            deadlines: Deadlines::default(),
            closing: Closing::default(),
            monitor: None,
        }
    }

    /// Handles one event. `now` was read after the event arrived. Effects go to `out` in order.
    ///
    /// The engine first handles the deadlines that have passed, then the event. Before an answer it handles none: an
    /// answer counts before a timeout, so a client that was busy or asleep does not take its own delay for the nodes'
    /// silence. A driver with several events therefore delivers answers first. This cannot revive a lost lock: the
    /// engine latches a due loss before it handles the answer (S13), and judges an attempt by `now` (S5).
    ///
    /// An attempt that follows from an event begins after all other effects: its commands must follow a due release of
    /// the same key, or the node would refuse them. After an answer, the attempt begins with the next event that is not
    /// an answer, so all received answers count first. A driver ends a batch of answers with [`Event::Wake`].
    ///
    /// Returns the emptied vector of an answer event for reuse.
    pub fn handle(
        &mut self,
        event: Event,
        now: Reading,
        entropy: &mut dyn Entropy,
        out: &mut dyn Sink,
    ) -> Vec<(Ticket, Answer)> {
        if let Event::Answered { node, sent, evidence, mut answers } = event {
            self.on_answers(node, sent, &evidence, &answers, &mut Context { now, out });
            answers.clear();
            return answers;
        }
        // As answers, these count before a timeout that is due: on a busy machine they arrive late.
        match event {
            Event::Greeted { node, connection, sent, round_trip, evidence } => {
                let cx = &mut Context { now, out };
                self.paths.round_trips.begin(node, round_trip);
                self.judge_evidence(node, sent, &evidence, cx);
                self.emit_identified(node, connection, cx);
                // The new connection watches no key, and its server may have other keys.
                self.on_push(node, None, cx);
                return Vec::new();
            }
            Event::Connecting { node } => {
                self.on_connecting(node, now);
                return Vec::new();
            }
            Event::Connected { node } => {
                self.on_connected(node, now);
                return Vec::new();
            }
            _ => {}
        }
        let is_tick_over = matches!(event, Event::Wake);
        if mutant!(BegunBeforeAllElse) {
            let mut all_else = Vec::new();
            self.on_event(event, &mut Context { now, out: &mut all_else });
            self.begin_all(entropy, &mut Context { now, out });
            all_else.into_iter().for_each(|effect| out.push(effect));
            return Vec::new();
        }
        let cx = &mut Context { now, out };
        self.on_event(event, cx);
        self.begin_all(entropy, cx);
        if is_tick_over {
            self.tidy_deadlines();
        }
        Vec::new()
    }

    fn on_answers(
        &mut self,
        node: NodeId,
        sent: Reading,
        evidence: &Evidence,
        answers: &[(Ticket, Answer)],
        cx: &mut Context<'_>,
    ) {
        // An answer of any kind ends the wait for a connection.
        self.paths.links[node.index()].connecting = false;
        let unacknowledged = self.unacknowledged(node, evidence);
        // Answers that waited for a replica in vain do not show the length of a round trip.
        let is_timely = unacknowledged.is_none();
        if is_timely && !answers.iter().all(|(_, answer)| matches!(answer, Answer::Failed(_))) {
            self.paths.round_trips.observe(node, cx.now.elapsed_since(sent));
        }
        let distrust_reason = self.judge_evidence(node, sent, evidence, cx).or(unacknowledged);
        for (ticket, answer) in answers {
            let distrusted = match (&distrust_reason, answer) {
                (Some(reason), _) => Some(Self::distrusted(*ticket, answer.clone(), reason)),
                // The pipeline declined the command, and the engine knows better why.
                (None, Answer::Failed(failure)) if failure.kind() == FailureKind::Unverified => {
                    self.declined(*ticket, node, cx.now).map(Answer::Failed)
                }
                (None, _) => None,
            };
            let (ticket, answer) = (*ticket, distrusted.as_ref().unwrap_or(answer));
            self.on_answer(NodeAnswer { node, sent, epoch: evidence.epoch(), ticket, answer }, cx);
        }
    }

    /// Handles an event that contains no answers. Attempts that follow from the event begin later, after its other
    /// effects.
    fn on_event(&mut self, event: Event, cx: &mut Context<'_>) {
        self.due_all(cx);
        match event {
            Event::Acquire { lock, request } => self.on_acquire(lock, request, cx),
            Event::Cancel { lock } => self.on_cancel(lock, cx),
            Event::Pushed { node, keys } => {
                if keys.is_none() {
                    self.review_data(node, cx);
                }
                self.on_push(node, keys.as_deref(), cx);
            }
            Event::Extend { lock } => self.on_extend(lock, cx),
            Event::Downgrade { lock } => self.on_downgrade(lock, cx),
            Event::RunOut { lock } => self.on_run_out(lock, cx),
            Event::Release { lock, report } => self.on_release(lock, report, cx),
            Event::Detach { lock } => self.on_detach(lock, cx),
            Event::Forget { lock } => self.on_forget(lock, cx),
            Event::ExtendEntry { lock, entry, counter } => {
                self.on_extend_entry(lock, &entry, counter.as_ref(), cx);
            }
            Event::ReleaseEntry { lock, entry, valid_for } => {
                self.on_release_entry(lock, entry, valid_for, cx);
            }
            Event::Inspect { lock, keys, timeout, connect_timeout } => {
                self.on_inspect(lock, keys, timeout, connect_timeout, cx);
            }
            Event::Close => self.on_close(cx),
            Event::Answered { .. }
            | Event::Greeted { .. }
            | Event::Connecting { .. }
            | Event::Connected { .. }
            | Event::Wake => {}
        }
    }

    fn begin_all(&mut self, entropy: &mut dyn Entropy, cx: &mut Context<'_>) {
        while let Some(lock) = self.local.begins.pop_front() {
            self.begin(lock, entropy, cx);
        }
    }

    /// Uses a fixed round trip to a quorum instead of the observed one. Models need it to compare states.
    #[must_use]
    pub fn with_fixed_round_trip(mut self, round_trip: Duration) -> Self {
        self.paths.round_trips = RoundTrips::fixed(round_trip);
        self
    }

    /// The smoothed round trip to a node; `None` before its first answer.
    pub fn round_trip(&self, node: NodeId) -> Option<Duration> {
        self.paths.round_trips.of(node)
    }

    /// The recent round trip to a quorum; zero before the first answer.
    pub fn quorum_round_trip(&self) -> Duration {
        self.paths.round_trips.estimate(self.quorum)
    }

    /// The time of the next [`Event::Wake`]; `None` if no deadline is set. An early [`Event::Wake`] does nothing. A
    /// late one is safe, but delays callers.
    pub fn deadline(&self) -> Option<BootTime> {
        if self.has_attempt_to_begin() {
            return Some(BootTime::from_nanos(i64::MIN));
        }
        let is_known = |at, owner| self.wake_of(owner) == Some(at);
        self.deadlines.first_known(is_known)
    }

    /// Whether an attempt is waiting. It begins with the next event that is not an answer.
    pub fn has_attempt_to_begin(&self) -> bool {
        !self.local.begins.is_empty()
    }

    /// The number of held locks.
    pub fn locks_held(&self) -> usize {
        self.held.values().filter(|held| held.lost().is_none()).count()
    }

    /// The number of calls that wait for a lock.
    pub fn calls_waiting(&self) -> usize {
        self.calls.len()
    }

    /// The number of releases and withdrawals of intents that are in flight, or failed and are to be sent again.
    pub fn releases_owed(&self) -> usize {
        self.releases.len() + self.closing.withdrawals.len()
    }

    /// Whether nothing is left to do: no calls, held locks, releases or inspections.
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty()
            && self.held.is_empty()
            && self.releases.is_empty()
            && self.inspections.is_empty()
            && self.entry_extensions.is_empty()
    }

    /// Whether [`Engine::deadline`] has passed.
    pub fn is_due(&self, now: Reading) -> bool {
        self.deadline().is_some_and(|at| at.has_come(now))
    }

    fn due_all(&mut self, cx: &mut Context<'_>) {
        while let Some((at, owner)) = self.deadlines.first()
            && at.has_come(cx.now)
        {
            self.deadlines.pop_first();
            let wake = self.wake_mut(owner);
            if wake.and_then(|wake| wake.take_if(|wake| *wake == at)).is_none() {
                continue;
            }
            match owner {
                Owner::Call(lock) => self.due_call(lock, cx),
                Owner::HeldLock(lock) => self.due_held(lock, cx),
                Owner::Release(lock, round) => self.due_release(lock, round, cx),
                Owner::Inspection(lock) => self.due_inspection(lock, cx),
                Owner::EntryExtension(lock) => self.due_entry_extension(lock, cx),
                Owner::Node(node) => self.due_node(node, cx),
                Owner::Trust(node) => self.due_trust(node, cx),
                Owner::Close => {
                    self.closing.drains_by = None;
                    self.closing.withdrawals.clear();
                    self.review_drained(cx);
                }
            }
        }
    }

    fn wake_of(&self, owner: Owner) -> Option<BootTime> {
        match owner {
            Owner::Call(lock) => self.calls.get(&lock)?.wake,
            Owner::HeldLock(lock) => self.held.get(&lock)?.wake,
            Owner::Release(lock, round) => self.releases.get(&(lock, round))?.wake,
            Owner::Inspection(lock) => self.inspections.get(&lock)?.wake,
            Owner::EntryExtension(lock) => self.entry_extensions.get(&lock)?.wake,
            Owner::Trust(node) => self.monitor.as_ref()?.node(node).review.wake,
            Owner::Node(node) => self.paths.links[node.index()].retry_at,
            Owner::Close => self.closing.drains_by,
        }
    }

    fn wake_mut(&mut self, owner: Owner) -> Option<&mut Option<BootTime>> {
        Some(match owner {
            Owner::Call(lock) => &mut self.calls.get_mut(&lock)?.wake,
            Owner::HeldLock(lock) => &mut self.held.get_mut(&lock)?.wake,
            Owner::Release(lock, round) => &mut self.releases.get_mut(&(lock, round))?.wake,
            Owner::Inspection(lock) => &mut self.inspections.get_mut(&lock)?.wake,
            Owner::EntryExtension(lock) => &mut self.entry_extensions.get_mut(&lock)?.wake,
            Owner::Trust(node) => &mut self.monitor.as_mut()?.node_mut(node).review.wake,
            Owner::Node(node) => &mut self.paths.links[node.index()].retry_at,
            Owner::Close => &mut self.closing.drains_by,
        })
    }

    /// Removes stale entries from the deadline index: those in front, and every stale entry if there may be many.
    fn tidy_deadlines(&mut self) {
        for row in 0..Deadlines::ROWS {
            while let Some((at, owner)) = self.deadlines.front(row)
                && self.wake_of(owner) != Some(at)
            {
                self.deadlines.pop_front(row);
            }
        }
        let records = self.calls.len() + self.held.len() + self.releases.len();
        let requests = self.inspections.len() + self.entry_extensions.len();
        let count = records + requests + 2 * self.paths.links.len() + 1;
        if self.deadlines.may_be_stale(count) {
            let mut deadlines = core::mem::take(&mut self.deadlines);
            deadlines.retain(|at, owner| self.wake_of(owner) == Some(at));
            self.deadlines = deadlines;
        }
    }

    fn on_answer(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let node = answer.node;
        match answer.answer {
            Answer::Failed(failure) if failure.kind().is_about_reach() => {
                self.paths.links[node.index()].away = true;
            }
            Answer::Failed(failure) => self.review_failure(node, failure.kind(), cx),
            _ => self.node_is_back(node, cx.now),
        }
        match answer.ticket.verb {
            Verb::Acquire | Verb::Heal => self.on_vote(answer, cx),
            Verb::Extend => self.on_extended(answer, cx),
            Verb::Release => self.on_released(answer, cx),
            Verb::Raise => self.on_raised(answer, cx),
            Verb::Trust => self.on_trust(answer, cx),
            Verb::Inspect => self.on_seen(answer, cx),
            Verb::Announce => self.on_announced(answer, cx),
        }
    }

    fn on_connecting(&mut self, node: NodeId, now: Reading) {
        // A repeated [`Event::Connecting`] belongs to the same wait, so the timeout does not start again.
        if !core::mem::replace(&mut self.paths.links[node.index()].connecting, true) {
            self.await_connection(node, true, now);
        }
    }

    fn on_connected(&mut self, node: NodeId, now: Reading) {
        if core::mem::take(&mut self.paths.links[node.index()].connecting) {
            self.await_connection(node, false, now);
        }
        self.node_is_back(node, now);
    }

    /// Adapts the deadlines of everything that waits for an answer of this node: its connection is being made or, with
    /// `is_being_made` false, has been made. A round of extending a lock waits for no connection, because it must be
    /// over before the next round.
    fn await_connection(&mut self, node: NodeId, is_being_made: bool, now: Reading) {
        let round_trip = self.paths.round_trips.to(node);
        self.for_each_attempt(|it| it.handle_connection(node, is_being_made, round_trip, now));
        // These deadlines only move back, so the entries in the deadline index, which are too early now, can stay.
        let connected = (!is_being_made).then_some(round_trip);
        self.entry_extensions.values_mut().for_each(|it| it.await_answer(node, connected, now));
        self.releases.values_mut().for_each(|it| it.await_answer(node, connected, now));
        self.inspections.values_mut().for_each(|it| it.await_answer(node, connected, now));
    }
}
