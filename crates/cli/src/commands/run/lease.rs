//! The lock, as something that only the end of the command gives back.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use quorlock::{Guard, Released};

use crate::child::Gone;

/// A held lock for a command to run under.
///
/// A guard that is dropped releases its lock; this does not, neither when it is forgotten on some way
/// out nor when a panic unwinds: then the keys are left to expire, which they do not before the last
/// deadline that the guardian knows. [`Gone`] is what it takes to release, and that is made where nothing
/// of the command is left. The guard must come from a call with `keep_on_loss`, or the client itself
/// would release what is left of a lost lock.
pub(super) struct Lease {
    guard: ManuallyDrop<Guard>,
}

impl Lease {
    pub(super) fn new(guard: Guard) -> Self {
        Self { guard: ManuallyDrop::new(guard) }
    }

    /// Gives the lock back on every node.
    pub(super) async fn give_back(self, _: Gone) -> Released {
        ManuallyDrop::into_inner(self.guard).release().await
    }
}

impl Deref for Lease {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}
