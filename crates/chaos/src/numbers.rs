//! The numbers that holders of locks read and increment. A store checks fencing tokens; a witness does not.

use quorlock_sim::time::Time;

use crate::oracles::{Rereading, Store, Witness, Written};
use crate::protocol::{RESOURCES, is_fenced};

/// For each resource, a store (checks fencing tokens) and a witness (does not). A resource uses only one of the two.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    witnesses: [Witness; RESOURCES.len()],
    stores: [Store; RESOURCES.len()],
    pub(crate) rereading: Rereading,
}

impl Numbers {
    /// The numbers that a new holder reads; `None` if a store refuses its fencing token.
    pub(crate) fn read(&mut self, resources: &[usize], fence: Option<u64>) -> Option<Vec<u64>> {
        let read = |&resource: &usize| match fence {
            Some(fence) => self.stores[resource].read(fence),
            // A reader that attached the lease of a downgraded writer has no fencing token.
            None if is_fenced(resource) => Some(self.stores[resource].number),
            None => Some(self.witnesses[resource].number),
        };
        resources.iter().map(read).collect()
    }

    /// Writes the number that the holder has read, plus one, if its fencing token or its lock's validity allows it.
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

    /// Checks that the number is unchanged for a reader that still holds its lock. The error is the new number.
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

    pub(crate) fn witness(&self) -> Witness {
        let mut sum = Witness::default();
        for one in self.witnesses {
            sum.number += one.number;
            sum.writes += one.writes;
            sum.too_late += one.too_late;
        }
        sum
    }

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
