//! The numbers that holders write and read: those of locks with fences in stores, the others in witnesses.

use quorlock_sim::time::Time;

use crate::oracles::{Rereading, Store, Witness, Written};
use crate::protocol::RESOURCES;

/// One of each sort for each resource; a resource uses one of them.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    witnesses: [Witness; RESOURCES.len()],
    stores: [Store; RESOURCES.len()],
    pub(crate) rereading: Rereading,
}

impl Numbers {
    /// What a new holder reads; nothing if one of them refuses its fence.
    pub(crate) fn read(&mut self, resources: &[usize], fence: Option<u64>) -> Option<Vec<u64>> {
        let read = |&resource: &usize| match fence {
            Some(fence) => self.stores[resource].read(fence),
            None => Some(self.witnesses[resource].number),
        };
        resources.iter().map(read).collect()
    }

    /// Writes one more than what was read, for a holder with this fence, or whose lock is held until then.
    pub(crate) fn write(
        &mut self,
        resource: usize,
        read: u64,
        (fence, until): (Option<u64>, Time),
        now: Time,
    ) -> Written {
        match fence {
            Some(fence) => self.stores[resource].write(fence, read),
            None => self.witnesses[resource].write(read, until, now),
        }
    }

    /// Whether it is still what a reader knows, whose lock is held until then.
    ///
    /// # Errors
    /// What it is, if it is not.
    pub(crate) fn is_still(
        &mut self,
        resource: usize,
        known: u64,
        (until, is_fenced): (Time, bool),
        now: Time,
    ) -> Result<(), u64> {
        let is = match is_fenced {
            true => self.stores[resource].number,
            false => self.witnesses[resource].number,
        };
        self.rereading.is_unchanged((known, is), until, now).then_some(()).ok_or(is)
    }

    /// The numbers that holders of locks without fences have written, in sum.
    pub(crate) fn witness(&self) -> Witness {
        let mut sum = Witness::default();
        for one in self.witnesses {
            sum.number += one.number;
            sum.writes += one.writes;
            sum.too_late += one.too_late;
        }
        sum
    }

    /// The same of those with fences.
    pub(crate) fn store(&self) -> Store {
        let mut sum = Store::default();
        for one in self.stores {
            sum.number += one.number;
            sum.writes += one.writes;
            sum.refused += one.refused;
        }
        sum
    }
}
