//! The queue of future events, in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{SimEvent, World};
use crate::time::Time;

#[derive(Default)]
pub(crate) struct Agenda {
    pub(super) queue: BinaryHeap<Reverse<Entry>>,
    /// The number of events planned so far. Events at the same time happen in the order of planning.
    pub(super) serial: u64,
}

pub(super) struct Entry {
    pub(super) at: Time,
    pub(super) serial: u64,
    pub(super) what: SimEvent,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.serial) == (other.at, other.serial)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

impl World {
    pub(crate) fn plan_at(&mut self, at: Time, what: SimEvent) {
        self.agenda.serial += 1;
        let at = at.max(self.now);
        self.agenda.queue.push(Reverse(Entry { at, serial: self.agenda.serial, what }));
    }

    pub(crate) fn next_by(&mut self, limit: Time) -> Option<(Time, SimEvent)> {
        let is_due = self.agenda.queue.peek().is_some_and(|Reverse(next)| next.at <= limit);
        let Reverse(Entry { at, what, .. }) = is_due.then(|| self.agenda.queue.pop())??;
        Some((at, what))
    }

    pub(crate) fn plan_in(&mut self, span: Time, what: SimEvent) {
        self.plan_at(self.now.saturating_add(span), what);
    }

    /// Lets all messages that are in flight arrive at once, in their order.
    pub(crate) fn hurry(&mut self) {
        let mut entries: Vec<Entry> = std::mem::take(&mut self.agenda.queue)
            .into_iter()
            .map(|Reverse(entry)| entry)
            .collect();
        entries.sort_unstable();
        let mut soon = self.now;
        for Entry { at, what, .. } in entries {
            let under_way = matches!(
                what,
                SimEvent::Request(_) | SimEvent::Reply { .. } | SimEvent::Push { .. }
            );
            let at = if under_way && at > self.now {
                soon += 1;
                soon
            } else {
                at
            };
            self.plan_at(at, what);
        }
    }
}
