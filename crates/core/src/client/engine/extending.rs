//! Extensions of held locks, and the downgrade from writer to reader, which runs as an extension.

use core::time::Duration;

use super::{Context, Effect, Engine, Extended};
use crate::ids::{LockId, NodeAnswer, Ticket, Verb};
use crate::keys::Mode;
use crate::loss::LossCause;
use crate::node::round_trip::RoundTrips;
use crate::redlock::acquire::NodeResult;
use crate::redlock::extend::Progress;
use crate::redlock::held_lock::HeldLock;
use crate::redlock::quorum::NodeSet;

impl Engine {
    /// Extends a lock at the holder's request. The request joins an extension in flight, or starts a new one.
    pub(super) fn on_extend(&mut self, holder: LockId, cx: &mut Context<'_>) {
        let longest = self.paths.round_trips.longest();
        let Some((lock, held)) = self.latched_by(holder, cx) else {
            let outcome = Extended::Lost(LossCause::Expired);
            return cx.emit(Effect::Extended { lock: holder, outcome });
        };
        let outcome = match (held.lost(), held.extension()) {
            (Some(cause), _) => Some(Extended::Lost(cause)),
            // The extension in flight began within the hold limit, so this caller joins it and shares its outcome.
            (None, Some(extension)) if !extension.is_reported => None,
            (None, _) if !held.limit().allows_extension(cx.now) => Some(Extended::HoldLimit),
            (None, _) => None,
        };
        if let Some(outcome) = outcome {
            return cx.emit(Effect::Extended { lock: holder, outcome });
        }
        if held.extension().is_none_or(|extension| extension.is_reported) {
            Self::start_extension(lock, held, longest, cx);
        }
        if let Some(extension) = held.extension_mut() {
            extension.is_awaited = true;
        }
        self.review_held(lock, false, cx);
    }

    pub(super) fn start_extension(
        lock: LockId,
        held: &mut HeldLock,
        longest: Duration,
        cx: &mut Context<'_>,
    ) {
        let (round, command) = held.start_extension(longest, cx.now);
        let ticket = Ticket { lock, round, verb: Verb::Extend };
        cx.emit(Effect::Send { nodes: held.nodes(), ticket, command });
    }

    pub(super) fn on_extended(&mut self, answer: NodeAnswer<'_>, cx: &mut Context<'_>) {
        let ticket = answer.ticket;
        if self.on_entry_extended(answer, cx) {
            return;
        }
        let Some(held) = self.held_of_answer(ticket.lock, cx) else {
            return;
        };
        let changed = held.handle_extended(answer, cx.now);
        if let Some(extension) = held.extension_mut()
            && extension.round == ticket.round
        {
            extension.handle_answer(answer.node, answer.answer, cx.now);
        }
        self.review_answered(ticket.lock, changed, cx);
    }

    pub(super) fn review_extension(
        lock: LockId,
        held: &mut HeldLock,
        excluded: NodeSet,
        round_trips: &RoundTrips,
        cx: &mut Context<'_>,
    ) {
        let Some(extension) = held.extension_mut() else {
            return;
        };
        let started = extension.started;
        let was_reported = extension.is_reported;
        if !was_reported {
            let progress = extension.progress();
            let outcome = match progress {
                Progress::Open => None,
                Progress::Confirmed => Some(Extended::Confirmed),
                Progress::Failed => Some(Extended::Unconfirmed(extension.report(cx.now))),
            };
            if let Some(mut outcome) = outcome {
                if let Extended::Unconfirmed(nodes) = &mut outcome {
                    let round_trip = |node| round_trips.to(node);
                    NodeResult::explain_silence(nodes, held.timing(), round_trip);
                }
                if mutant!(FailedExtensionReleases) && progress == Progress::Failed {
                    let ticket = Ticket { lock, round: held.next_round(), verb: Verb::Release };
                    let command = held.end(false, Duration::ZERO, cx.now).command();
                    cx.emit(Effect::Send { nodes: held.nodes(), ticket, command });
                }
                Self::emit_extended(held, outcome, cx);
                held.schedule_extension(progress == Progress::Confirmed, started, cx.now);
            }
        }
        if held.note_confirmation(!was_reported) {
            Self::emit_health(held, false, cx);
        }
        let heals = held.heals();
        let Some(extension) = held.extension_mut() else {
            return;
        };
        // Excluded nodes, whose votes would not count, are not healed, because a heal asks for a vote.
        let mut healable = extension.take_healable();
        if !heals {
            healable = NodeSet::default();
        }
        excluded.iter().for_each(|node| healable.remove(node));
        let (over, round) = (extension.is_reported && extension.is_over(), extension.round);
        let ticket = Ticket { lock, round, verb: Verb::Heal };
        if !healable.is_empty() {
            let command = held.heal_command(healable);
            cx.emit(Effect::Send { nodes: healable, ticket, command });
        }
        if over {
            held.finish_extension();
        }
    }

    /// Downgrades a held lock. The holder has already latched the new mode, so the lock counts as a reader's whatever
    /// the nodes answer. The holder receives the outcome in the same form as that of an extension.
    pub(super) fn on_downgrade(&mut self, holder: LockId, cx: &mut Context<'_>) {
        let longest = self.paths.round_trips.longest();
        let Some((lock, held)) = self.latched_by(holder, cx) else {
            let outcome = Extended::Lost(LossCause::Expired);
            return cx.emit(Effect::Extended { lock: holder, outcome });
        };
        if let Some(cause) = held.lost() {
            return cx.emit(Effect::Extended { lock: holder, outcome: Extended::Lost(cause) });
        }
        if held.mode() == Mode::Exclusive {
            let is_awaited = held.extension().is_some_and(|it| it.is_awaited && !it.is_reported);
            let (round, command) = held.downgrade(longest, cx.now);
            let ticket = Ticket { lock, round, verb: Verb::Extend };
            cx.emit(Effect::Send { nodes: held.nodes(), ticket, command });
            if is_awaited && let Some(extension) = held.extension_mut() {
                extension.is_awaited = true;
            }
            let keys = held.keys().clone();
            self.downgrade_place(&keys, holder, cx);
        }
        self.on_extend(holder, cx);
    }

    /// Notifies the holder of the nodes' answers to the extension in flight.
    pub(super) fn emit_health(held: &HeldLock, is_lost: bool, cx: &mut Context<'_>) {
        if let Some(extension) = held.extension() {
            let is_confirmed = extension.progress() == Progress::Confirmed;
            if mutant!(FailureUnreported) && !is_confirmed {
                return;
            }
            if mutant!(RecoveryUnreported) && is_confirmed {
                return;
            }
            let (lock, nodes) = (held.holder(), extension.report(cx.now));
            cx.emit(Effect::Health { lock, is_confirmed, is_lost, nodes });
        }
    }

    /// Reports the outcome of the extension in flight once, if a caller awaits it.
    pub(super) fn emit_extended(held: &mut HeldLock, outcome: Extended, cx: &mut Context<'_>) {
        let lock = held.holder();
        if let Some(extension) = held.extension_mut()
            && !extension.is_reported
        {
            extension.is_reported = true;
            if extension.is_awaited {
                cx.emit(Effect::Extended { lock, outcome });
            }
        }
    }
}
