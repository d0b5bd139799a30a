//! Guards: what callers hold. As the library's, they share with the driver the votes and whether
//! they have ended, and read the clock at every question.

use std::collections::BTreeMap;
use std::fmt;

use quorlock_core::{LockId, LossCause, Reading, Request, Token, Validity, Value};

use crate::fact::ClientId;
use crate::mutants::{Mutant, is_active};

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
pub(crate) struct Guard {
    /// What was asked for.
    pub(crate) request: Request,
    /// The token, and how often it was handed over.
    pub(crate) token: Token,
    /// The turn under this token.
    pub(crate) turn: u32,
    /// The fence, if one was wanted.
    pub(crate) fence: Option<u64>,
    /// The votes.
    pub(crate) validity: Validity,
    /// It has ended, and how.
    pub(crate) ended: Option<Ended>,
    /// The engine has said that it is lost.
    pub(crate) told_lost: bool,
    /// Its holder has told the engine that it has run out.
    pub(crate) run_out: bool,
    /// It has been released or dropped.
    pub(crate) given_back: bool,
}

/// How a guard ends; for ever (S13).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Ended {
    /// Lost.
    Lost(LossCause),
    /// Released or dropped.
    Released,
}

impl Guard {
    /// A guard that was just granted.
    pub(crate) const fn new(
        request: Request,
        (token, turn): (Token, u32),
        validity: Validity,
    ) -> Self {
        Self {
            request,
            token,
            turn,
            fence: None,
            validity,
            ended: None,
            told_lost: false,
            run_out: false,
            given_back: false,
        }
    }

    /// What the nodes store.
    pub(crate) fn value(&self) -> Value {
        Value::new(&self.token, &self.request.owner)
    }

    /// What `Guard::is_valid` says, asked at this reading.
    pub(crate) fn is_valid(&self, now: Reading) -> bool {
        self.ended.is_none() && !self.validity.remaining(now).is_zero()
    }

    /// Seeing the end latches it. Returns whether the driver is to be told.
    pub(crate) fn look(&mut self, now: Reading) -> bool {
        if self.ended.is_some() || self.is_valid(now) {
            return false;
        }
        self.ended = Some(Ended::Lost(LossCause::Expired));
        true
    }

    /// The driver has new votes. Returns whether it is to be told that the guard had run out.
    pub(crate) fn update(&mut self, validity: Validity, now: Reading) -> bool {
        if is_active(Mutant::GuardValidAgain) {
            if !self.given_back {
                self.ended = None;
            }
            self.validity = validity;
            return false;
        }
        let ran_out = self.look(now);
        if self.ended.is_none() {
            self.validity = validity;
        }
        ran_out
    }

    /// Ends the hold. How it had ended before, if it had.
    pub(crate) fn end(&mut self, how: Ended) -> Option<Ended> {
        let before = self.ended;
        if before.is_none() || how == Ended::Released {
            self.ended = Some(how);
        }
        before
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

    pub(crate) fn insert(&mut self, id: GuardId, guard: Guard) {
        self.all.insert(id, guard);
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
            guard.validity = guard.validity.rebased(base(id.client));
        }
    }

    /// Those that have not been forgotten.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (GuardId, &Guard)> {
        self.all.iter().map(|(id, guard)| (*id, guard))
    }
}
