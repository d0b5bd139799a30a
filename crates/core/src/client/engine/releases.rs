//! Releases. Each release follows its acquire on the same connection. A release that failed is owed, and is sent again.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Context, Effect, Engine, NodeLink};
use crate::client::deadlines::Deadlines;
use crate::client::deadlines::Owner;
use crate::command::Answer;
use crate::ids::{LockId, NodeAnswer, Ticket, Verb};
use crate::redlock::quorum::{NodeId, NodeSet};
use crate::redlock::release::{Leftover, Release};
use crate::time::Reading;

/// Largest number of releases in flight or owed (failed, and to be sent again). Another release drops the oldest one,
/// and the keys of that release stay on the nodes until they expire.
const RELEASES_MAX: usize = 65_536;

/// Largest number of owed releases that are sent to a node together.
const RESEND_MAX: usize = 512;

impl Engine {
    pub(super) fn start_release(
        &mut self,
        (lock, round): (LockId, u32),
        mut release: Release,
        cx: &mut Context<'_>,
    ) {
        let ticket = Ticket { lock, round, verb: Verb::Release };
        let nodes =
            if mutant!(NoReleaseToTimedOut) { release.reached() } else { self.quorum.all() };
        cx.emit(Effect::Send { nodes, ticket, command: release.command() });
        if self.releases.len() >= RELEASES_MAX
            && let Some(mut release) = self.releases.pop_first()
        {
            release.give_up();
            if let Some((lock, report)) = release.poll_report() {
                cx.emit(Effect::Released { lock, report });
            }
        }
        Self::index_release(&mut self.deadlines, (lock, round), &mut release);
        self.releases.insert((lock, round), release);
    }

    pub(super) fn on_released(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let NodeAnswer { node, ticket, answer, .. } = answer;
        let id = (ticket.lock, ticket.round);
        let Some(release) = self.releases.get_mut(&id) else {
            return;
        };
        let failed = matches!(answer, Answer::Failed(_));
        release.handle_answer(node, answer, cx.now);
        if self.monitor.as_ref().is_some_and(|monitor| monitor.node(node).has_lost_data()) {
            release.note_lost_data(node);
        }
        let link = &mut self.paths.links[node.index()];
        if !failed {
            link.failures = 0;
        }
        let owed = release.is_owed_to(node);
        if owed && link.retry_at.is_none() {
            let at = cx.now.after(link.next_delay());
            link.retry_at = Some(at);
            self.deadlines.add(at, Owner::Node(node));
        }
        Self::emit_released(release, cx);
        if release.is_over() {
            self.forget_release(id, cx);
        } else if owed {
            // Only an owed release can get an earlier deadline. So only it needs a new entry in the deadline index.
            Self::index_release(&mut self.deadlines, id, release);
        }
    }

    /// Notes that an acquire never reached its node, so a release that fails there is not sent again.
    pub(super) fn note_unreached(&mut self, node: NodeId, ticket: Ticket, cx: &mut Context<'_>) {
        let Ticket { lock, round, .. } = ticket;
        if let Some(held) = self.held.get_mut(&lock) {
            held.handle_unreached(node, round);
        }
        let noted = self.releases.of_mut(lock).map(|(its_round, release)| {
            release.handle_unreached(node, round);
            (lock, its_round)
        });
        for id in noted.collect::<Vec<_>>() {
            self.review_release(id, cx);
        }
    }

    /// The keys that a call's earlier attempts may have left on nodes, because their release failed.
    pub(super) fn leftovers(&mut self, lock: LockId, now: Reading) -> Vec<Leftover> {
        let releases = self.releases.of_mut(lock);
        releases.flat_map(|(_, release)| release.leftovers(now)).collect()
    }

    pub(super) fn due_release(&mut self, lock: LockId, round: u32, cx: &mut Context<'_>) {
        if let Some(release) = self.releases.get_mut(&(lock, round)) {
            release.handle_time(cx.now);
        }
        self.review_release((lock, round), cx);
    }

    /// Sends owed releases to a node that answers again, without waiting for their next retry.
    pub(super) fn node_is_back(&mut self, node: NodeId, now: Reading) {
        let link = &mut self.paths.links[node.index()];
        if !core::mem::take(&mut link.away) {
            return;
        }
        link.failures = 0;
        if let Some(at) = link.retry_at
            && !at.has_come(now)
        {
            link.retry_at = Some(now.boot());
            self.deadlines.add(now.boot(), Owner::Node(node));
        }
    }

    /// Sends again the releases that failed on this node.
    pub(super) fn due_node(&mut self, node: NodeId, cx: &mut Context<'_>) {
        let link = &mut self.paths.links[node.index()];
        link.retry_at = None;
        let owing = self.releases.iter().filter(|(_, release)| release.is_owed_to(node));
        let owing: Vec<_> = owing.take(RESEND_MAX).map(|(id, _)| id).collect();
        let mut sent = Vec::new();
        for (lock, round) in owing {
            let release = self.releases.get_mut(&(lock, round));
            if let Some(command) = release.and_then(|release| release.resend(node)) {
                let ticket = Ticket { lock, round, verb: Verb::Release };
                cx.emit(Effect::Send { nodes: NodeSet::only(node), ticket, command });
                sent.push((lock, round));
            }
        }
        if sent.len() == RESEND_MAX {
            let at = cx.now.after(link.next_delay());
            link.retry_at = Some(at);
            self.deadlines.add(at, Owner::Node(node));
        }
        for id in sent {
            self.review_release(id, cx);
        }
    }

    /// Reports the release's outcome once it is certain, and drops a release that no node must answer any more.
    fn review_release(&mut self, id: (LockId, u32), cx: &mut Context<'_>) {
        let Some(release) = self.releases.get_mut(&id) else {
            return;
        };
        Self::emit_released(release, cx);
        if release.is_over() {
            self.forget_release(id, cx);
        } else {
            Self::index_release(&mut self.deadlines, id, release);
        }
    }

    fn emit_released(release: &mut Release, cx: &mut Context<'_>) {
        if let Some((lock, report)) = release.poll_report() {
            cx.emit(Effect::Released { lock, report });
        }
    }

    fn forget_release(&mut self, id: (LockId, u32), cx: &mut Context<'_>) {
        self.releases.discard(&id);
        self.review_drained(cx);
    }

    fn index_release(
        deadlines: &mut Deadlines,
        (lock, round): (LockId, u32),
        release: &mut Release,
    ) {
        let due = release.deadline();
        deadlines.put(Owner::Release(lock, round), &mut release.wake, due);
    }
}

impl NodeLink {
    /// The delay before owed releases are sent again. It doubles with each failure, up to one second.
    pub(super) fn next_delay(&mut self) -> Duration {
        let delay = Duration::from_millis(50).saturating_mul(1 << self.failures.min(5));
        self.failures = self.failures.saturating_add(1).min(5);
        delay.min(Duration::from_secs(1))
    }
}
