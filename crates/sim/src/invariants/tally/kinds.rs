//! Counts events of readers and of locks with several keys.

use quorlock_core::{AcquireForm, Answer, Command, ExtendForm, Key, Mode, Origin, ReleaseForm};

use crate::count::{Count, Counts};
use crate::fact::NodeIndex;
use crate::guard::{Guard, GuardId};
use crate::invariants::View;
use crate::ledger::TokenRecord;

pub(super) fn granted(id: GuardId, guard: &Guard, view: &View<'_>, counts: &mut Counts) {
    if guard.request.keys.single().is_none() {
        counts.add(Count::SeveralGrants);
        if guard.handover_count > 0 {
            counts.add(Count::SeveralHandOvers);
        }
    }
    match guard.request.origin {
        Origin::Detached(_) => counts.add(Count::Attached),
        Origin::Taken(_) => counts.add(Count::TakenGrants),
        Origin::Absent => {}
    }
    if guard.request.mode == Mode::Shared {
        counts.add(Count::SharedGrants);
        let reads_too = |(other, held): (GuardId, &Guard)| {
            other != id
                && held.request.keys.overlaps(&guard.request.keys)
                && view.can_check(other.client)
                && held.is_valid(view.reading(other.client))
        };
        if view.guards.iter().any(reads_too) {
            counts.add(Count::SharedTogether);
        }
    }
}

pub(super) fn healed(token: &TokenRecord, counts: &mut Counts) {
    if token.keys.len() > 1 {
        counts.add(Count::SeveralHeals);
    }
    if token.is_shared {
        counts.add(Count::SharedHeals);
    }
}

pub(super) fn executed(
    node: NodeIndex,
    command: &Command,
    answer: &Answer,
    view: &View<'_>,
    counts: &mut Counts,
) {
    let is_there = |key: &Key| view.node(node).stored(key, view.now).is_some();
    match (command, answer) {
        (Command::GiveBack { .. }, Answer::Deleted) => counts.add(Count::GivenBack),
        (Command::Acquire { keys, form: AcquireForm::Taken(from), .. }, Answer::Refused) => {
            let stored = view.node(node).stored(&keys[0], view.now);
            if stored.is_some_and(|it| it.holds(&from.value)) {
                counts.add(Count::EqualRefused);
            }
        }
        (
            Command::Extend { keys, form: ExtendForm::Taken(from), .. }
            | Command::Release { keys, form: ReleaseForm::Taken(from), .. },
            Answer::Other,
        ) => {
            let stored = view.node(node).stored(&keys[0], view.now);
            if stored.is_some_and(|it| it.holds(&from.value)) {
                counts.add(Count::StaleNonces);
            }
        }
        (Command::Announce { .. }, Answer::Announced) => counts.add(Count::Intents),
        (Command::Acquire { keys, form: AcquireForm::Shared { intents }, .. }, Answer::Refused) => {
            let is_foreign = |key: &Key| {
                let stored = view.node(node).stored(key, view.now);
                stored.is_some_and(|stored| !stored.is_of_readers())
            };
            if intents.iter().any(is_there) && !keys.iter().any(is_foreign) {
                counts.add(Count::HeldBack);
            }
        }
        _ => {}
    }
}
