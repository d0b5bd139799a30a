//! Locks that a caller detaches, leases of other processes that it uses, and locks with a value that it chooses.

use std::pin::pin;

use quorlock::{DetachError, Lease, LeaseError, LeaseKind, LockOptions, LossCause, Taken};
use quorlock_sim::time::{MS, Time};
use tokio::time::{sleep, timeout};

use super::{Caller, Phase, Relied};
use crate::clock::{nanos, now};
use crate::protocol::{ControllerMessage, Grant, Operation, RESOURCES, WorkerMessage};

/// The values with which callers take locks. With only two values, a caller often uses that of the present holder.
const VALUES: [&str; 2] = ["worker", "cron"];

/// The longest time for which a caller waits until another process detaches a lock.
const PATIENCE: Time = 500 * MS;

impl Caller {
    /// Detaches a lock. `from`: the time until which this caller counts as its holder. In one call of ten, the caller
    /// soon drops the future, which releases the lock.
    pub(super) async fn detach(
        &mut self,
        detaching: impl Future<Output = Result<Lease, DetachError>>,
        from: Time,
    ) {
        let patience = self.patience(10, 3 * MS);
        self.calls(Operation::Detach, None);
        let mut detaching = pin!(detaching);
        let said = match timeout(patience, detaching.as_mut()).await {
            Ok(Ok(lease)) => {
                let until = Relied::begin(|| lease.remaining()).until;
                WorkerMessage::Detached { text: lease.to_string(), from, until }
            }
            Ok(Err(error)) => WorkerMessage::Held { until: from, lost: Some(error_name(&error)) },
            // This message ends the hold. It precedes the drop, after which another caller can get the lock.
            Err(_) => WorkerMessage::Held { until: from, lost: None },
        };
        self.say(&said);
        self.say(&WorkerMessage::Left);
    }

    /// Waits for a lease of another process. Returns its index, its text, and the time at which to use it.
    async fn seek(&mut self) -> Option<(usize, String, Time)> {
        let end = now() + PATIENCE;
        while now() < end && !self.is_calm() {
            let message = self.ask(WorkerMessage::Seeks).await;
            if let Some(ControllerMessage::Lease { lease: Some(lease), .. }) = message {
                return Some(lease);
            }
            sleep(nanos(10 * MS)).await;
        }
        None
    }

    /// Attaches, extends or releases a lock that another process detached.
    pub(super) async fn use_lease(&mut self) {
        let Some((place, text, at)) = self.seek().await else { return };
        let lease: Lease = match text.parse() {
            Ok(lease) => lease,
            Err(error) => return self.odd(format!("cannot read a lease: {error}")),
        };
        sleep(nanos((at - now()).max(0))).await;
        match (self.random.below(10), lease.kind()) {
            (0, _) | (..=4, LeaseKind::Taken) => self.extend_lease(place, &lease).await,
            (..=2, _) | (_, LeaseKind::Taken) => self.release_lease(place, &lease).await,
            _ => self.attach(place, &lease).await,
        }
        self.say(&WorkerMessage::Left);
    }

    async fn extend_lease(&mut self, place: usize, lease: &Lease) {
        let client = self.client.clone();
        let asked = self.calls(Operation::ExtendLease, Some(place));
        match self.patiently(client.extend_lease(lease)).await {
            Some(Ok(lease)) => {
                let (text, until) = (lease.to_string(), Relied::begin(|| lease.remaining()).until);
                self.say(&WorkerMessage::Prolonged { lease: place, text, asked, until });
            }
            Some(Err(error)) => self.check(&error),
            None => {}
        }
    }

    async fn release_lease(&mut self, place: usize, lease: &Lease) {
        let client = self.client.clone();
        self.calls(Operation::ReleaseLease, Some(place));
        if let Some(Err(error)) = self.patiently(client.release_lease(lease)).await {
            self.check(&error);
        }
    }

    /// Reports an error that the library must not return for a good lease.
    fn check(&self, error: &LeaseError) {
        let is_bad = matches!(
            error,
            LeaseError::Text(_)
                | LeaseError::OtherCluster { .. }
                | LeaseError::Kind { .. }
                | LeaseError::Invalid(_)
        );
        if is_bad {
            self.odd(format!("is refused: {error}"));
        }
    }

    async fn attach(&mut self, place: usize, lease: &Lease) {
        let wait = self.random.between(0, 1000 * MS);
        let options = LockOptions::new().wait(self.wait(wait)).auto_extend(self.random.coin());
        let (client, lease) = (self.client.clone(), lease.clone());
        let place_of = |name: &str| RESOURCES.iter().position(|known| *known == name);
        let resources = lease.resources().filter_map(place_of).collect();
        let (kind, ttl) = (lease.kind(), lease.ttl().as_nanos());
        let call = async move {
            if kind == LeaseKind::Fenced {
                let guard = client.attach_fenced(&lease).options(options).await?;
                let fencing_token = guard.fencing_token();
                return Ok((guard.into(), Some(fencing_token)));
            }
            client.attach(&lease).options(options).await.map(|guard| (guard, None))
        };
        let asked = self.calls(Operation::Attach, Some(place));
        let (is_reader, lease) = (kind == LeaseKind::Shared, Some(place));
        let grant = Grant { resources, asked, is_reader, lease, ..Grant::default() };
        self.hold(call, Time::try_from(ttl).unwrap_or(Time::MAX), grant).await;
    }

    /// Takes a lock with a value that other processes use too.
    pub(super) async fn take(&mut self) {
        let resource = self.random.index(RESOURCES.len() / 2);
        let value = self.random.pick(&VALUES);
        let ttl = self.random.between(self.max_ttl / 2, self.max_ttl);
        let wait = if self.random.coin() { 0 } else { self.random.between(0, 1000 * MS) };
        let options = LockOptions::new().wait(self.wait(wait));
        let call = self.client.take(RESOURCES[resource], value, nanos(ttl)).options(options);
        let asked = self.calls(Operation::Take, None);
        if let Some(taken) = self.granted(call.into_future()).await {
            self.hold_taken(taken, resource, (asked, ttl)).await;
        }
    }

    /// Holds a lock with a chosen value for a while. Then the caller releases it, detaches it, or lets it expire.
    async fn hold_taken(&mut self, taken: Taken, resource: usize, (asked, ttl): (Time, Time)) {
        let mut relied = Relied::begin(|| taken.remaining());
        let Relied { at, until } = relied;
        let grant = Grant { resources: vec![resource], asked, at, until, ..Grant::default() };
        self.say(&WorkerMessage::Holds { grant });
        let numbers = self.read().await;
        let long = !self.is_calm() && self.random.percent(40);
        let end = now() + self.random.between(0, if long { 2 * ttl } else { 20 * MS });
        while now() < end && taken.is_valid() && *self.phase.borrow() != Phase::Over {
            sleep(nanos((end - now()).clamp(0, 25 * MS))).await;
            if self.random.percent(10) {
                // The result is ignored, because the validity shows whether the extension succeeded.
                let _ = taken.extend().await;
            }
            relied.look(|| taken.remaining());
            self.say(&WorkerMessage::StillHolds { until: relied.until });
        }
        self.write((taken.is_valid(), None), &relied, numbers).await;
        // A `Taken` reports no cause of a loss. With the cause `KeyGone`, the hold ends at the last successful check.
        let cause = (!taken.is_valid()).then_some(LossCause::KeyGone);
        let from = relied.end(cause);
        let lost = cause.map(|_| "a taken lock".to_owned());
        let way = if self.is_calm() || cause.is_some() { 0 } else { self.random.below(10) };
        match way {
            0..=4 => {
                self.say(&WorkerMessage::Held { until: from, lost });
                drop(taken.release().await);
            }
            5..=6 => {
                // The drop does not release the lock, so no other client may get the lock before its validity ends.
                self.say(&WorkerMessage::Held { until: relied.until, lost });
                drop(taken);
                self.say(&WorkerMessage::Left);
            }
            _ => self.detach(taken.detach(), from).await,
        }
    }
}

fn error_name(error: &DetachError) -> String {
    match error {
        DetachError::Lost { cause, .. } => format!("{cause:?}"),
        _ => "closed".to_owned(),
    }
}
