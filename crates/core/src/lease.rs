//! A held lock over time: votes that are raised or proved gone, extension, and the latched loss.
//!
//! Two clocks tick in a lease and neither knows of the other: the extension, every third of the
//! ttl, and the loss deadline, `margin` before the validity ends. If extending fails, in whatever
//! way, the loss comes at its time; if anything proves too many votes gone, it comes at once.
//! Once lost, a lease stays lost (S13): no answer can raise it any more.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::acquire::Attempt;
use crate::command::{Answer, Command, Failure, FailureKind};
use crate::courtesy::TURNS_MAX;
use crate::engine::{LockId, Request};
use crate::extend::Extension;
use crate::fence::{Fenced, Passing, Recording};
use crate::hold::{Hold, HoldLimit};
use crate::quorum::{NodeId, NodeSet, Quorum};
use crate::release::Release;
use crate::time::{BootTime, Reading, nanos};
use crate::timing::Timing;
use crate::token::{Key, Token, Value};
use crate::vote::Validity;

/// The core's record of a held lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lease {
    /// Whose guard it is now.
    holder: LockId,
    key: Key,
    token: Token,
    value: Value,
    quorum: Quorum,
    timing: Timing,
    validity: Validity,
    /// A command with our token may have reached the node.
    reached: NodeSet,
    /// When the command was sent that proved the node's vote gone: a yes to an older one is
    /// outdated, however late it comes or comes again.
    gone: BTreeMap<NodeId, Reading>,
    /// Those of them that held another value instead.
    overwritten: NodeSet,
    acquire_round: u32,
    round: u32,
    automatic: bool,
    /// After a loss the nodes are asked to delete nothing until the holder gives the lock back.
    keeps_on_loss: bool,
    /// As long as the guard may hold it, and as long as anybody may under this token.
    hold_until: BootTime,
    token_until: BootTime,
    began: Reading,
    turn: u32,
    /// As of the attempt: the round trip, and a random word that it has not used.
    round_trip_ns: u64,
    jitter: u64,
    extend_at: Option<BootTime>,
    /// Boxed, because most of the time there is none.
    extension: Option<Box<Extension>>,
    lost: Option<LossCause>,
    /// Boxed, because most locks have no fence.
    fenced: Option<Box<Fenced>>,
}

/// Why a lock was lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum LossCause {
    /// Its validity ran out: too few nodes confirmed an extension in time, or none was asked for.
    Expired,
    /// So many nodes answered that our key is gone that no quorum is left: it was deleted, or the
    /// nodes' clocks ran ahead.
    KeyGone,
    /// As `KeyGone`, and at least one node holds another value under the key: another has the
    /// lock, or is about to.
    KeyOverwritten,
    /// The wall clock moved ahead of the boot clock past the end of the validity: it was set, or the
    /// virtual machine was paused. Whether that time has really passed cannot be told.
    ClockJumped,
    /// It was held for as long as `max_hold` allows.
    HoldLimit,
    /// The client was shut down.
    Shutdown,
}

impl Lease {
    /// The lease that a successful attempt begins.
    pub(crate) fn begin(
        attempt: Attempt,
        request: &Request,
        validity: Validity,
        (holder, token, round): (LockId, Token, u32),
        (round_trip, jitter): (Duration, u64),
        now: Reading,
    ) -> Self {
        let Request { timing, automatic, keeps_on_loss, max_hold, .. } = *request;
        let hold_until = now.after(max_hold);
        let reached = attempt.reached();
        let (quorum, key, value, sought) = attempt.into_parts();
        Self {
            holder,
            token,
            key,
            value,
            quorum,
            timing,
            validity,
            reached,
            gone: BTreeMap::new(),
            overwritten: NodeSet::default(),
            acquire_round: round,
            round,
            automatic,
            keeps_on_loss,
            hold_until,
            token_until: hold_until,
            began: now,
            turn: 0,
            round_trip_ns: nanos(round_trip),
            jitter,
            extend_at: automatic.then(|| now.after(timing.extend_every())),
            extension: None,
            lost: None,
            fenced: sought.map(|sought| Box::new(Fenced::new(*sought))),
        }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Whose guard holds it.
    pub const fn holder(&self) -> LockId {
        self.holder
    }

    /// The token under which the nodes keep it, and how often it was handed over.
    pub(crate) const fn token_and_turn(&self) -> (Token, u32) {
        (self.token, self.turn)
    }

    /// When this process got it.
    pub(crate) const fn began(&self) -> Reading {
        self.began
    }

    /// The round trip as of the attempt, and a random word that it has not used.
    pub(crate) const fn pace(&self) -> (Duration, u64) {
        (self.round_trip(), self.jitter)
    }

    const fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip_ns)
    }

    /// This process has had the lock so often, or for so long, that others are to have their turn:
    /// 64 hand-overs, or a tenth of the ttl.
    pub(crate) fn is_exhausted(&self, now: Reading) -> bool {
        let for_long = now.elapsed_since(self.began) > self.timing.ttl() / 10;
        (self.turn >= TURNS_MAX || for_long) && !mutant!(HandOversUnlimited)
    }

    /// Whether the next caller of this process may have the lease as it is: it wants the very same
    /// lock, what is left is enough for it (S5), and this process has not had it for too long.
    pub(crate) fn may_be_handed_to(&self, next: &Request, now: Reading) -> bool {
        self.lost.is_none()
            && next.timing == self.timing
            && next.fenced.as_ref() == self.fenced.as_ref().map(|fenced| &fenced.counter)
            && Value::owner_of(self.value.as_bytes()) == Some(&next.owner)
            && !self.is_exhausted(now)
            && (mutant!(TokenLimitIgnored) || now.after(self.timing.ttl()) <= self.token_until)
            && (mutant!(HandOverWithinMargin) || self.validity.lasts(Duration::ZERO, now))
            && self.validity.valid_for(now) >= next.timing.min_validity()
    }

    /// Another guard holds it from now on. A round of extending that is under way was the old
    /// guard's; what nodes still answer to it counts all the same.
    pub(crate) fn hand_over(&mut self, holder: LockId, next: &Request, now: Reading) {
        debug_assert!(self.may_be_handed_to(next, now), "only what is held is handed over");
        self.holder = holder;
        self.turn += 1;
        let by_guard = now.after(next.max_hold);
        self.hold_until =
            if mutant!(TokenLimitIgnored) { by_guard } else { by_guard.min(self.token_until) };
        self.automatic = next.automatic;
        self.keeps_on_loss = next.keeps_on_loss;
        self.extension = None;
        self.extend_at = next.automatic.then(|| now.after(self.timing.extend_every()));
        if let Some(fenced) = &mut self.fenced
            && let Some(passing) = fenced.passing.take()
        {
            fenced.fence = passing.recording.number();
            fenced.note(passing.recording.largest());
            fenced.superseded = false;
        }
    }

    /// What the guard that has it knows of it.
    pub(crate) fn hold(&self) -> Hold {
        let limit = HoldLimit { ttl: self.timing.ttl(), until: self.hold_until };
        Hold::new(self.validity.clone(), self.automatic.then_some(limit))
    }

    /// The lock's fence, if it has one.
    pub(crate) fn fence(&self) -> Option<u64> {
        self.fenced.as_ref().map(|fenced| fenced.fence)
    }

    /// It has been given back, and is to have a larger fence before another may have it. Until then
    /// nobody holds it.
    pub(crate) fn is_passing(&self) -> bool {
        self.passing().is_some()
    }

    fn passing(&self) -> Option<&Passing> {
        self.fenced.as_ref()?.passing.as_deref()
    }

    /// Its holder gives the lease back, and the next caller of this process is to have it: with a
    /// fence of its own, larger than all that the nodes have told whose votes are held, which they
    /// have to record first. Says what to ask of whom; `None` if the lock cannot have another fence.
    pub(crate) fn pass(&mut self, report: bool, now: Reading) -> Option<(NodeSet, u32, Command)> {
        let due = now.after(self.node_timeout());
        let fenced = self.fenced.as_mut()?;
        let to = fenced.next()?;
        let mut recording = Recording::new(to);
        let nodes = recording.ask(self.validity.held(), due);
        self.round += 1;
        let (round, called) = (self.round, now);
        fenced.passing = Some(Box::new(Passing { round, called, report, recording }));
        let (key, value, counter) = (self.key.clone(), self.value.clone(), fenced.counter.clone());
        self.extend_at = None;
        self.extension = None;
        Some((nodes, round, Command::Raise { key, value, counter, to }))
    }

    /// Whether enough nodes have recorded the next guard's fence: `None` as long as it may still be.
    pub(crate) fn is_passed(&self) -> Option<bool> {
        let (recorded, awaited) = self.passing()?.recording.counts();
        if self.quorum.is_reached(recorded) {
            return Some(true);
        }
        self.quorum.is_out_of_reach(recorded, awaited).then_some(false)
    }

    /// Whether the outcome of giving it back is wanted, if it is being passed on.
    pub(crate) fn passing_report(&self) -> bool {
        self.passing().is_some_and(|passing| passing.report)
    }

    /// Stops waiting for nodes that are to record the next guard's fence, when their time is up.
    pub(crate) fn handle_time(&mut self, now: Reading, timed_out: impl FnMut(NodeId)) {
        if let Some(fenced) = &mut self.fenced
            && let Some(passing) = &mut fenced.passing
        {
            passing.recording.handle_time(now, timed_out);
        }
    }

    /// The votes held.
    pub const fn validity(&self) -> &Validity {
        &self.validity
    }

    /// Why the lease is lost, if it is.
    pub const fn lost(&self) -> Option<LossCause> {
        self.lost
    }

    /// The round of the attempt that began this lease.
    pub const fn acquire_round(&self) -> u32 {
        self.acquire_round
    }

    /// The extension under way, until every node has answered or its time is up.
    pub fn extension(&self) -> Option<&Extension> {
        self.extension.as_deref()
    }

    pub(crate) fn extension_mut(&mut self) -> Option<&mut Extension> {
        self.extension.as_deref_mut()
    }

    /// Takes a vote that was granted after the decision, or a heal: it counts from its own time of
    /// sending, and only while the lease is held. Returns whether anything changed.
    pub fn handle_vote(
        &mut self,
        node: NodeId,
        sent: Reading,
        answer: &Answer,
        now: Reading,
    ) -> bool {
        let number = match (answer, &self.fenced) {
            (Answer::Granted, None) => None,
            (Answer::GrantedFenced { fence }, Some(_)) => Some(*fence),
            _ => return false,
        };
        if self.lost.is_some() || self.is_outdated(node, sent) {
            return false;
        }
        // The fence stays what it is (S18), but the next one is to be larger.
        if let (Some(fenced), Some(number)) = (&mut self.fenced, number) {
            fenced.note(number);
        }
        if !mutant!(HealNotReached) {
            self.reached.insert(node);
        }
        self.raise(node, sent, now);
        true
    }

    fn raise(&mut self, node: NodeId, sent: Reading, now: Reading) {
        self.validity.raise(node, sent, now);
        self.overwritten.remove(node);
    }

    /// Takes an answer to an extension, of this round or an older one. A yes raises this node's
    /// end alone; a definite "gone" drops it; a failure changes nothing (S11, S12). Returns
    /// whether anything changed.
    pub fn handle_extended(
        &mut self,
        node: NodeId,
        sent: Reading,
        answer: &Answer,
        now: Reading,
    ) -> bool {
        if self.lost.is_some() {
            return false;
        }
        match answer {
            Answer::Extended if self.is_outdated(node, sent) => false,
            Answer::Failed(_) if !mutant!(ExtensionCountsUnknown) => false,
            Answer::Extended | Answer::Failed(_) => {
                self.raise(node, sent, now);
                true
            }
            Answer::Absent | Answer::Other => self.drop_vote(node, sent, answer),
            _ => false,
        }
    }

    /// Takes an answer to a raise, of the attempt or of a hand-over. A definite "gone" is one here too.
    /// Returns whether the votes have changed.
    pub(crate) fn handle_raised(
        &mut self,
        node: NodeId,
        sent: Reading,
        round: u32,
        answer: Answer,
    ) -> bool {
        if self.lost.is_some() {
            return false;
        }
        if matches!(answer, Answer::Absent | Answer::Other) {
            return self.drop_vote(node, sent, &answer);
        }
        let Some(fenced) = self.fenced.as_mut().filter(|_| self.validity.has_vote_of(node)) else {
            return false;
        };
        let passing = fenced.passing.as_mut().filter(|passing| passing.round == round);
        let recording = passing.map(|passing| &mut passing.recording);
        match (answer, recording) {
            (Answer::Raised { fence }, Some(recording)) => {
                let above = mutant!(HandOverRecordedAbove);
                let counted = if above { fence.min(recording.number()) } else { fence };
                recording.handle_raised(node, counted);
            }
            (Answer::Raised { fence }, None) => fenced.note(fence),
            (Answer::Failed(failure), Some(recording)) => recording.fail(node, failure),
            (_, Some(recording)) => recording.fail(node, Failure::new(FailureKind::Protocol)),
            _ => {}
        }
        false
    }

    /// A node says that another has had its vote since, with this larger fence. Returns whether that is
    /// to be told: once to every guard.
    pub(crate) fn handle_superseded(&mut self, by: u64) -> bool {
        match &mut self.fenced {
            Some(fenced) if self.lost.is_none() && fenced.passing.is_none() => {
                by > fenced.fence && !core::mem::replace(&mut fenced.superseded, true)
            }
            _ => false,
        }
    }

    /// The node's vote is proved to be gone; returns whether it was held.
    fn drop_vote(&mut self, node: NodeId, sent: Reading, answer: &Answer) -> bool {
        let had = self.validity.has_vote_of(node);
        if mutant!(AbsentKeepsVote) {
            return false;
        }
        self.validity.drop_vote(node);
        if had && *answer == Answer::Other {
            self.overwritten.insert(node);
        }
        let gone = self.gone.entry(node).or_insert(sent);
        *gone = (*gone).max(sent);
        if let Some(fenced) = &mut self.fenced
            && let Some(passing) = &mut fenced.passing
        {
            passing.recording.drop_vote(node);
        }
        had
    }

    /// The acquire turns out never to have reached the node: no release is owed there.
    pub(crate) fn handle_unreached(&mut self, node: NodeId, attempt: u32) {
        if attempt == self.acquire_round {
            self.reached.remove(node);
        }
    }

    fn is_outdated(&self, node: NodeId, sent: Reading) -> bool {
        self.gone.get(&node).is_some_and(|gone| sent.boot() < gone.boot())
    }

    /// Why the lease must be given up now by the passing of time alone, if it must.
    pub fn due_loss(&self, now: Reading) -> Option<LossCause> {
        if self.lost.is_some() || self.validity.lasts(Duration::ZERO, now) {
            return None;
        }
        Some(if self.validity.lasts_by_boot_clock(now) {
            LossCause::ClockJumped
        } else if self.automatic && !self.may_extend(now) {
            LossCause::HoldLimit
        } else {
            LossCause::Expired
        })
    }

    /// Why the lease must be given up now, if it must, after a node's answer has taken its vote away.
    /// What was due by time was latched before the answer was looked at, so this is the answer's doing.
    pub(crate) fn proved_loss(&self, now: Reading) -> Option<LossCause> {
        if self.lost.is_some() || self.validity.lasts(Duration::ZERO, now) {
            return None;
        }
        let overwritten = !self.overwritten.is_empty();
        Some(if overwritten { LossCause::KeyOverwritten } else { LossCause::KeyGone })
    }

    /// After a loss nothing is released until the holder gives the lock back.
    pub(crate) const fn keeps_on_loss(&self) -> bool {
        self.keeps_on_loss
    }

    /// Latches the loss; terminal.
    pub fn lose(&mut self, cause: LossCause) {
        debug_assert!(self.lost.is_none(), "a lease is lost once");
        self.lost.get_or_insert(cause);
        self.extend_at = None;
        self.extension = None;
    }

    /// An extension now would not reach past `max_hold`.
    pub fn may_extend(&self, now: Reading) -> bool {
        mutant!(MaxHoldIgnored) || now.after(self.timing.ttl()) <= self.hold_until
    }

    /// Begins a round of extending. The command goes to every node, also to those without a vote:
    /// their answer tells whether they can be healed.
    pub fn start_extension(&mut self, now: Reading) -> (u32, Command) {
        self.round += 1;
        self.extend_at = None;
        let extension = Extension::start(self.round, self.quorum, self.node_timeout(), now);
        self.extension = Some(Box::new(extension));
        (self.round, self.extend_command())
    }

    /// The round of extending is over: when is the next one?
    pub fn schedule_extension(&mut self, confirmed: bool, started: Reading, now: Reading) {
        if self.automatic {
            let next = if confirmed {
                started.after(self.timing.extend_every())
            } else {
                now.after(self.timing.extend_retry())
            };
            self.extend_at = Some(next);
        }
    }

    /// An automatic extension is due.
    pub fn extension_is_due(&self, now: Reading) -> bool {
        self.extend_at.is_some_and(|at| at.remaining(now).is_zero())
    }

    /// There will be no further automatic extension.
    pub fn stop_extending(&mut self) {
        self.extend_at = None;
    }

    /// The command that puts our key back on nodes that have lost it.
    pub fn heal_command(&mut self, nodes: NodeSet) -> Command {
        if !mutant!(HealNotReached) {
            nodes.iter().for_each(|node| self.reached.insert(node));
        }
        let (key, value, ttl_ms) = (self.key.clone(), self.value.clone(), self.timing.ttl_ms());
        match &self.fenced {
            None => Command::Acquire { key, value, ttl_ms },
            Some(fenced) => {
                let (counter, to) = (fenced.counter.clone(), fenced.fence);
                Command::HealFenced { key, value, ttl_ms, counter, to }
            }
        }
    }

    /// The release on every node that ends this lease. With `report`, its outcome is told: by the
    /// votes as they are known now, and by the time at which it was given back.
    pub(crate) fn end(&self, report: bool, now: Reading) -> Release {
        let called = self.passing().map_or(now, |passing| passing.called);
        let mut release = Release::of_lease(
            (self.key.clone(), self.value.clone()),
            &self.timing,
            self.reached,
            (&self.validity, called),
            report.then(|| (self.holder, self.node_timeout())),
            (self.quorum, now),
        )
        .of_attempt(self.acquire_round);
        if self.lost.is_some() {
            release.mark_lost();
        }
        release
    }

    /// All nodes, whether or not they have granted it.
    pub(crate) fn nodes(&self) -> NodeSet {
        self.quorum.all()
    }

    /// The number for the next commands of this lock.
    pub fn next_round(&mut self) -> u32 {
        self.round += 1;
        self.round
    }

    /// When time next changes something.
    pub fn deadline(&self, now: Reading) -> Option<BootTime> {
        if self.lost.is_some() {
            return None;
        }
        let round = self.extension().map(Extension::deadline);
        let passing = self.passing().and_then(|passing| passing.recording.deadline());
        match [self.extend_at, round, passing].into_iter().flatten().min() {
            Some(at) if self.validity.lasts(at.remaining(now), now) => Some(at),
            _ => Some(now.after(self.validity.remaining(now))),
        }
    }

    pub(crate) fn finish_extension(&mut self) {
        self.extension = None;
    }

    pub(crate) fn renumber(&mut self, to: impl Fn(LockId) -> LockId) {
        self.holder = to(self.holder);
    }

    pub(crate) fn shift(&mut self, base: Reading) {
        self.validity.shift(base);
        self.gone.values_mut().for_each(|gone| *gone = gone.shifted(base));
        self.hold_until = self.hold_until.shifted(base);
        self.token_until = self.token_until.shifted(base);
        self.began = self.began.shifted(base);
        self.extend_at = self.extend_at.map(|at| at.shifted(base));
        if let Some(extension) = &mut self.extension {
            extension.shift(base);
        }
        if let Some(fenced) = &mut self.fenced {
            fenced.shift(base);
        }
    }

    fn node_timeout(&self) -> Duration {
        self.timing.node_timeout(self.round_trip())
    }

    fn extend_command(&self) -> Command {
        let (key, value) = (self.key.clone(), self.value.clone());
        let ttl_ms = self.timing.ttl_ms() >> usize::from(mutant!(ExtensionShortens));
        match &self.fenced {
            None => Command::Extend { key, value, ttl_ms },
            Some(fenced) => {
                Command::ExtendFenced { key, value, ttl_ms, counter: fenced.counter.clone() }
            }
        }
    }
}
