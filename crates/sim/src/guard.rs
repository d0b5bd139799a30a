//! Guards: what callers hold. Until when a guard is valid and how it has ended the production client's
//! [`Hold`] says; who asked for it, and what its holder has done, is kept beside it.

use std::collections::BTreeMap;
use std::fmt;

use quorlock_core::{Hold, LockId, Reading, Request, Token, Value};

use crate::fact::ClientId;

/// Which guard: whose, and which call's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct GuardId {
    /// Whose.
    pub(crate) client: ClientId,
    /// Which call's.
    pub(crate) lock: LockId,
}

impl fmt::Display for GuardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}: lock {}", self.client, self.lock.0)
    }
}

/// A guard.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Guard {
    /// What was asked for.
    pub request: Request,
    /// The token, and how often it was handed over.
    pub token: Token,
    /// What the nodes store.
    stored: Value,
    /// The turn under this token.
    pub handover_count: u32,
    /// The fence, if one was wanted.
    pub fence: Option<u64>,
    /// The library's part of it.
    pub hold: Hold,
    /// The engine has said that it is lost.
    pub told_lost: bool,
    /// Its holder has told the engine that it has run out.
    pub run_out: bool,
    /// It has been released or dropped.
    pub given_back: bool,
}

impl Guard {
    /// A guard that was just granted.
    pub(crate) const fn new(
        request: Request,
        stored: Value,
        (token, handover_count, fence): (Token, u32, Option<u64>),
        hold: Hold,
    ) -> Self {
        let (told_lost, run_out, given_back) = (false, false, false);
        Self { request, token, stored, handover_count, fence, hold, told_lost, run_out, given_back }
    }

    /// What the nodes store.
    pub fn value(&self) -> Value {
        self.stored.clone()
    }

    /// Its holder keeps what the nodes have, lost or not, and has not given it back.
    pub(crate) fn is_kept(&self) -> bool {
        self.request.keeps_on_loss && !self.given_back
    }

    /// What `Guard::is_valid` says, asked at this reading.
    pub fn is_valid(&self, now: Reading) -> bool {
        self.hold.remaining(now).is_some()
    }
}

/// The guards of a run.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Guards {
    all: BTreeMap<GuardId, Guard>,
}

impl Guards {
    /// One guard.
    pub(crate) fn of(&self, id: GuardId) -> Option<&Guard> {
        self.all.get(&id)
    }

    pub(crate) fn of_mut(&mut self, id: GuardId) -> Option<&mut Guard> {
        self.all.get_mut(&id)
    }

    /// Returns the guard that was there under the same name.
    pub(crate) fn insert(&mut self, id: GuardId, guard: Guard) -> Option<Guard> {
        self.all.insert(id, guard)
    }

    pub(crate) fn remove(&mut self, id: GuardId) {
        self.all.remove(&id);
    }

    pub(crate) fn remove_all_of(&mut self, client: ClientId) {
        self.all.retain(|id, _| id.client != client);
    }

    /// The same with another origin of time for each client's clocks.
    pub(crate) fn rebase(&mut self, base: impl Fn(ClientId) -> Reading) {
        for (id, guard) in &mut self.all {
            guard.hold.rebase(base(id.client));
        }
    }

    /// Those that have not been forgotten.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (GuardId, &Guard)> {
        self.all.iter().map(|(id, guard)| (*id, guard))
    }
}
