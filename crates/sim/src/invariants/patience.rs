//! A call ends within the time for which its caller waits, even if commands are in flight.

use std::collections::BTreeMap;

use quorlock_core::Wait;
use quorlock_core::{LockId, Reading};

use super::Checked;
use crate::fact::{ClientId, Fact};
use crate::invariants::View;

pub(crate) const NAME: &str = "patience";

pub(crate) const SENTENCE: &str = "V11: cancel returns within the deadline. `wait` bounds everything, \
     connecting included. (algorithm)";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Patience {
    /// The longest wait of each call in nanoseconds, and the first tick after the call (`None` before that tick).
    calls: BTreeMap<(ClientId, LockId), (i64, Option<Reading>)>,
}

impl Patience {
    pub(crate) fn rebase(&mut self, base: impl Fn(ClientId) -> Reading) {
        for ((client, _), (_, since)) in &mut self.calls {
            *since = since.map(|at| at.shifted(base(*client)));
        }
    }

    pub(crate) fn check(&mut self, fact: &Fact<'_>, view: &View<'_>) -> Checked {
        match fact {
            Fact::Wanted { client, lock, request } => {
                if let Wait::For(wait) = request.wait {
                    let wait = i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX);
                    self.calls.insert((*client, *lock), (wait, None));
                }
                Ok(())
            }
            Fact::Granted { guard, .. } => {
                self.calls.remove(&(guard.client, guard.lock));
                Ok(())
            }
            Fact::Cancelled { client, lock } | Fact::NotAcquired { client, lock, .. } => {
                self.calls.remove(&(*client, *lock));
                Ok(())
            }
            Fact::Tick { client } => {
                let now = view.tick_reading(*client);
                let of_client = (*client, LockId(0))..=(*client, LockId(u64::MAX));
                for (_, (_, since)) in self.calls.range_mut(of_client) {
                    since.get_or_insert(now);
                }
                Ok(())
            }
            Fact::TickOver { client } => {
                let now = view.tick_reading(*client);
                let of_client = (*client, LockId(0))..=(*client, LockId(u64::MAX));
                for ((_, lock), (wait, since)) in self.calls.range(of_client) {
                    let Some(since) = since else { continue };
                    let waited = now.boot().as_nanos() - since.boot().as_nanos();
                    if waited >= *wait {
                        let lock = lock.0;
                        return Err(format!("lock {lock} of client {client} still waits"));
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
