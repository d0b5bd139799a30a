//! What is going to happen, in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Happening;
use crate::time::Time;

/// All of it.
#[derive(Default)]
pub(super) struct Agenda {
    pub(super) queue: BinaryHeap<Reverse<Entry>>,
    /// Of what happens at one time, what was planned first happens first.
    pub(super) serial: u64,
}

/// Something that is going to happen, and when.
pub(super) struct Entry {
    pub(super) at: Time,
    pub(super) serial: u64,
    pub(super) what: Happening,
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
