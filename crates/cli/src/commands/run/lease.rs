//! A lock that is released only after its command has ended.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use quorlock::{Guard, Released};

use crate::child::Gone;

/// The held lock of a command.
///
/// A dropped [`Guard`] releases its lock. A dropped lease does not, even if a panic unwinds: its keys expire, and not
/// before the last deadline that the guardian knows. A release needs a [`Gone`], which exists only when no process of
/// the command is left. The guard must come from a call with `keep_on_loss`; otherwise the client itself would release
/// a lost lock.
pub(super) struct Lease {
    guard: ManuallyDrop<Guard>,
    pub(super) fencing_token: Option<u64>,
}

impl Lease {
    pub(super) fn new(guard: Guard, fencing_token: Option<u64>) -> Self {
        Self { guard: ManuallyDrop::new(guard), fencing_token }
    }

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
