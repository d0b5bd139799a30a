//! Guards, as callers hold them. The production client's [`Hold`] decides how long a guard is valid and how it ends.
//! This file adds the request and the holder's actions.

use std::collections::BTreeMap;
use std::fmt;

use quorlock_core::{Hold, LockId, Reading, Request, Token, Value};

use crate::fact::ClientId;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct GuardId {
    pub(crate) client: ClientId,
    pub(crate) lock: LockId,
}

impl fmt::Display for GuardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}: lock {}", self.client, self.lock.0)
    }
}

/// A granted lock, as its holder sees it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Guard {
    /// The request of the call.
    pub request: Request,
    /// The token of the attempt that got the lock.
    pub token: Token,
    stored: Value,
    /// The number of times that this token was handed over within the process.
    pub handover_count: u32,
    /// The fencing token, if the call asked for one.
    pub fence: Option<u64>,
    /// The state that the production guard shares with its driver.
    pub hold: Hold,
    /// The engine has reported the loss.
    pub is_lost: bool,
    /// The holder has reported to the engine that the lock ran out.
    pub run_out: bool,
    /// The guard was released or dropped.
    pub is_released: bool,
}

impl Guard {
    pub(crate) const fn new(
        request: Request,
        stored: Value,
        (token, handover_count, fence): (Token, u32, Option<u64>),
        hold: Hold,
    ) -> Self {
        let (is_lost, run_out, is_released) = (false, false, false);
        Self { request, token, stored, handover_count, fence, hold, is_lost, run_out, is_released }
    }

    /// Returns the value that the nodes store.
    pub fn value(&self) -> Value {
        self.stored.clone()
    }

    /// Whether the lock stays on the nodes after a loss, until its holder releases it.
    pub(crate) fn is_kept(&self) -> bool {
        self.request.keeps_on_loss && !self.is_released
    }

    /// Returns what `Guard::is_valid` of the library would return at this reading.
    pub fn is_valid(&self, now: Reading) -> bool {
        self.hold.remaining(now).is_some()
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Guards {
    all: BTreeMap<GuardId, Guard>,
}

impl Guards {
    pub(crate) fn of(&self, id: GuardId) -> Option<&Guard> {
        self.all.get(&id)
    }

    pub(crate) fn of_mut(&mut self, id: GuardId) -> Option<&mut Guard> {
        self.all.get_mut(&id)
    }

    pub(crate) fn insert(&mut self, id: GuardId, guard: Guard) -> Option<Guard> {
        self.all.insert(id, guard)
    }

    pub(crate) fn remove(&mut self, id: GuardId) {
        self.all.remove(&id);
    }

    pub(crate) fn remove_all_of(&mut self, client: ClientId) {
        self.all.retain(|id, _| id.client != client);
    }

    /// A model counts times from the present. When time passes, this moves all recorded readings back.
    pub(crate) fn rebase(&mut self, base: impl Fn(ClientId) -> Reading) {
        for (id, guard) in &mut self.all {
            guard.hold.rebase(base(id.client));
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (GuardId, &Guard)> {
        self.all.iter().map(|(id, guard)| (*id, guard))
    }
}
