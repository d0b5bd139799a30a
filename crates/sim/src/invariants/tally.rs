//! Counts events. The counts show whether the runs exercise the invariants.

mod kinds;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorlock_core::{
    Answer, Command, Extended, Key, LockId, LossCause, NodeOutcome, Origin, Outcome, Reading,
    RefusalKind, Ticket, Verb,
};

use crate::count::{Count, Counts};
use crate::evidence_log::Void;
use crate::fact::{ClientId, Fact, FaultEvent, NodeIndex};
use crate::guard::GuardId;
use crate::invariants::View;
use crate::time::MS;

#[derive(Debug, Default)]
pub(crate) struct Tally {
    releases: BTreeSet<(ClientId, NodeIndex, Ticket)>,
    /// For each key, since the last inspection by a call: the time of the first push, and the nodes that pushed.
    pushes: BTreeMap<(ClientId, Key), (i64, BTreeSet<NodeIndex>)>,
    /// The round trip that the engine had measured when the last attempt of each call began.
    round_trips: BTreeMap<(ClientId, LockId), Duration>,
}

impl Tally {
    pub(crate) fn note(&mut self, fact: &Fact<'_>, view: &View<'_>, counts: &mut Counts) {
        match fact {
            Fact::Granted { guard, attempts } => granted(*guard, *attempts, view, counts),
            Fact::NotAcquired { client, lock, refusal } => {
                let request = view.ledger.request(*client, *lock);
                let attaches = request.is_some_and(|it| matches!(it.origin, Origin::Detached(_)));
                match refusal.kind {
                    RefusalKind::Gone => counts.add(Count::AttachGone),
                    RefusalKind::Contended if attaches => counts.add(Count::AttachContended),
                    _ => {}
                }
                match refusal.kind {
                    RefusalKind::Contended => counts.add(Count::Contended),
                    RefusalKind::NoQuorum => counts.add(Count::NoQuorum),
                    RefusalKind::TooSlow => counts.add(Count::TooSlow),
                    RefusalKind::BusyHere => counts.add(Count::BusyHere),
                    RefusalKind::NodesUntrusted => counts.add(Count::NodesUntrusted),
                    _ => {}
                }
                if refusal.nodes.iter().any(|node| node.said == NodeOutcome::Granted) {
                    counts.add(Count::SplitVotes);
                }
            }
            Fact::Waiting { client, lock } => {
                let last = view.ledger.of_call(*client, *lock).last();
                if last.is_some_and(|token| token.nodes.iter().any(|node| node.yes.is_some())) {
                    counts.add(Count::SplitVotes);
                }
            }
            Fact::Lost { cause, .. } => counts.add(match cause {
                LossCause::KeyGone | LossCause::KeyOverwritten => Count::VotesGone,
                LossCause::HoldLimit => Count::HoldLimit,
                LossCause::Shutdown => Count::Shutdown,
                _ => Count::Expired,
            }),
            Fact::Answered { client, node, sent, ticket, answer } => {
                on_answer((*client, *node, *ticket), *sent, answer, view, counts);
            }
            Fact::Downgraded { .. } => counts.add(Count::Downgrades),
            Fact::Extension { guard, outcome } => match outcome {
                Extended::Confirmed => counts.add(Count::Extensions),
                Extended::Unconfirmed(_) => {
                    counts.add(Count::Unconfirmed);
                    let token = view.guards.of(*guard).and_then(|held| view.ledger.of_guard(held));
                    if token.is_some_and(|token| token.extending.1 > 0) {
                        counts.add(Count::PartialExtensions);
                    }
                }
                _ => {}
            },
            Fact::Released { report, .. } => counts.add(match report.outcome {
                Outcome::Released => Count::Released,
                Outcome::TakenByOther => Count::TakenByOther,
                Outcome::Unknown => Count::Unknown,
                _ => Count::ReleasedLate,
            }),
            Fact::Ordered { client, node, ticket, .. }
                if ticket.verb == Verb::Release
                    && !self.releases.insert((*client, *node, *ticket)) =>
            {
                counts.add(Count::Owed);
            }
            Fact::Executed { node, command, answer, zombie, duplicate, .. } => {
                executed(command, answer, counts);
                kinds::executed(*node, command, answer, view, counts);
                let granted = is_grant(answer);
                for (is, what, vote) in [
                    (*zombie, Count::Zombies, Count::ZombieVotes),
                    (*duplicate, Count::Duplicates, Count::DuplicateVotes),
                ] {
                    if is {
                        counts.add(what);
                    }
                    if is && granted {
                        counts.add(vote);
                    }
                }
            }
            Fact::Ordered { client, command: Command::Watch { keys, .. }, .. } => {
                for key in &**keys {
                    self.pushes.remove(&(*client, key.clone()));
                }
            }
            Fact::Pushed { client, node, key: Some(key) } => {
                let now = view.tick_reading(*client).boot().as_nanos();
                let pushes = self.pushes.entry((*client, (*key).clone()));
                pushes.or_insert_with(|| (now, BTreeSet::new())).1.insert(*node);
            }
            Fact::Begun { client, lock, round_trip, .. } => {
                self.begun(*client, *lock, *round_trip, view, counts);
            }
            Fact::Superseded { .. } => counts.add(Count::Superseded),
            Fact::WaitEnded { .. } => counts.add(Count::WaitEnded),
            Fact::TimedOut { .. } => counts.add(Count::Timeouts),
            Fact::FaultEvent(
                FaultEvent::Paused { client, span } | FaultEvent::Suspended { client, span, .. },
            ) => {
                let now = view.reading(*client);
                let outlives = view.guards.iter().any(|(id, guard)| {
                    id.client == *client
                        && guard.is_valid(now)
                        && (guard.hold.validity().remaining(now).as_nanos() as i64) < *span
                });
                if outlives {
                    counts.add(Count::HolderPauses);
                }
            }
            _ => {}
        }
    }
}

impl Tally {
    /// Counts attempts after a push, and the hasty ones among them. An attempt is hasty if it does not wait until the
    /// pushes of the other nodes can have arrived (docs/algorithm.md, Waiting).
    fn begun(
        &mut self,
        client: ClientId,
        lock: LockId,
        round_trip: Duration,
        view: &View<'_>,
        counts: &mut Counts,
    ) {
        let before = self.round_trips.insert((client, lock), round_trip).unwrap_or_default();
        let Some(request) = view.ledger.request(client, lock) else { return };
        // Counts locks of one key only, because several keys may become free at different times.
        let Some(key) = request.keys.single() else { return };
        let Some((first, nodes)) = self.pushes.remove(&(client, key.clone())) else {
            return;
        };
        counts.add(Count::AfterPush);
        let passed = view.tick_reading(client).boot().as_nanos() - first;
        if nodes.len() < view.terms.quorum.needed()
            && passed < (before.as_nanos() as i64).min(100 * MS)
        {
            counts.add(Count::Hasty);
        }
    }
}

const fn is_grant(answer: &Answer) -> bool {
    matches!(answer, Answer::Granted | Answer::GrantedFenced { .. })
}

fn executed(command: &Command, answer: &Answer, counts: &mut Counts) {
    match (command, answer) {
        (Command::Mark { adoption: Some(_), .. }, Answer::Marked) => counts.add(Count::Adoptions),
        (Command::Mark { .. }, Answer::Marked) => counts.add(Count::Rewritten),
        (Command::Raise { .. }, Answer::Raised { .. }) => counts.add(Count::Raises),
        (_, Answer::Superseded { .. }) => counts.add(Count::SupersededHeals),
        _ => {}
    }
}

fn granted(id: GuardId, attempts: u32, view: &View<'_>, counts: &mut Counts) {
    counts.add(Count::Grants);
    if attempts > 1 {
        counts.add(Count::GrantsAfterRetry);
    }
    let Some(guard) = view.guards.of(id) else { return };
    if guard.handover_count > 0 {
        counts.add(Count::HandOvers);
    }
    kinds::granted(id, guard, view, counts);
    if guard.fence.is_some() {
        counts.add(Count::FencedGrants);
    }
    if guard.fence.is_some() && guard.handover_count > 0 {
        counts.add(Count::FencedHandOvers);
    }
    if view.terms.quorum.node_ids().all(|node| guard.hold.validity().has_vote_of(node)) {
        counts.add(Count::GrantsByAll);
    }
}

fn on_answer(
    (client, node, ticket): (ClientId, NodeIndex, Ticket),
    sent: Reading,
    answer: &Answer,
    view: &View<'_>,
    counts: &mut Counts,
) {
    let Some(token) = view.ledger.of_ticket(client, ticket) else { return };
    let held = view.guards.iter().any(|(id, guard)| {
        id.client == client
            && guard.hold.ended().is_none()
            && view.ledger.of_guard(guard).is_some_and(|of_guard| std::ptr::eq(of_guard, token))
    });
    let released = token.nodes[node].released;
    if is_grant(answer) || *answer == Answer::Extended {
        match token.nodes[node].void {
            Some((at, Void::Quarantined)) if at == sent => counts.add(Count::EarlyVotes),
            Some((at, Void::Unverified)) if at == sent => counts.add(Count::UnverifiedVotes),
            _ => {}
        }
    }
    match (answer, ticket.verb) {
        (answer, Verb::Acquire) if is_grant(answer) && released => counts.add(Count::VoidGrants),
        (answer, Verb::Acquire) if is_grant(answer) && held => counts.add(Count::LateGrants),
        (answer, Verb::Heal) if is_grant(answer) && held => {
            counts.add(Count::Heals);
            kinds::healed(token, counts);
        }
        (Answer::Downgraded, _) => counts.add(Count::DowngradesConfirmed),
        (Answer::Absent | Answer::Other, Verb::Extend) if held => counts.add(Count::ProofsOfLoss),
        _ => {}
    }
}
