//! Leases: locks that a process has detached. Any process with the text can take over, extend or release one.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use quorlock_core::{
    Counter, Detached, DetachedFrom, Entry, EntryOf, Event, Key, Keys, Mode, Origin, TakenFrom,
    Validity,
};
use tokio::sync::oneshot;

use super::Client;
use crate::acquire::Acquire;
use crate::client::context::ClientContext;
use crate::clock::Clock;
use crate::driver::{EntryExtended, ReplyTo};
use crate::error::{InvalidRequest, LeaseError, NodeAnswer};
use crate::guard::{FencedGuard, Released};
use crate::lease::{Lease, LeaseEnd, LeaseKind};
use crate::options::LockOptions;
use crate::own_keys::nonce;
use crate::resources::Resources;

/// The time for which a call tries to attach a lease, unless configured otherwise.
const ATTACH_WAIT: Duration = Duration::from_secs(2);

impl Client {
    /// Takes over the lock of a lease. The guard is like any other: the client extends the lock, and releases it when the
    /// guard is dropped. The text of the lease is of no use afterwards.
    ///
    /// At most one process attaches a lease. If several try, the nodes decide, and the losers give back the votes that
    /// they got. The lock keeps its [`max_hold`](LockOptions::max_hold), counted from the first grant.
    ///
    /// Unless the options of the call say otherwise, the call has the ttl of the lease and waits for at most 2 s. It does
    /// not queue behind callers of this process that want the same resource.
    ///
    /// # Errors
    /// [`AcquireError::LeaseOver`](crate::AcquireError::LeaseOver) if the lock expired or was released.
    /// [`AcquireError::Contended`](crate::AcquireError::Contended) if another process has attached it.
    /// [`AcquireError::Lease`](crate::AcquireError::Lease) if the lease is of other nodes, past its end, fenced, or of a value
    /// that its caller chose, or if the call has a shorter ttl. No command about the lock is sent then.
    ///
    /// # Cancel safety
    /// Safe: dropping the future gives the lease back, or releases the lock if the call had acquired it already.
    pub fn attach(&self, lease: &Lease) -> Acquire {
        let origin = Origin::Detached(Arc::new(DetachedFrom {
            value: lease.value.clone(),
            unanswered: lease.unanswered,
        }));
        let mode = lease.mode();
        let options = LockOptions::new().ttl(lease.ttl).wait(ATTACH_WAIT);
        let refused = self.check_lease(lease, &[LeaseKind::Exclusive, LeaseKind::Shared]);
        Acquire::new(self.state.clone(), lease.resources.clone().into(), mode)
            .setting(origin, options)
            .of_lease(lease.ttl, lease.hold_left())
            .refused(refused.err().map(Into::into))
    }

    /// As [`Client::attach`] for the lease of a [`FencedGuard`]. The fencing token is larger than that of the process that
    /// detached the lease.
    ///
    /// # Errors
    /// As [`Client::attach`], and [`AcquireError::Lease`](crate::AcquireError::Lease) if the lease has no fencing token.
    ///
    /// # Cancel safety
    /// As [`Client::attach`].
    pub fn attach_fenced(&self, lease: &Lease) -> Acquire<FencedGuard> {
        let refused = self.check_lease(lease, &[LeaseKind::Fenced]).err().map(Into::into);
        self.attach(lease).fenced().refused(refused)
    }

    /// Extends the lock of a lease to its full ttl, without attaching it. Returns the lease with its new end. The text
    /// of the earlier lease can still release the lock.
    ///
    /// The new end follows from the confirmations of this call alone. Nodes that lost the lock do not store it again. Takes
    /// one round trip, or one node timeout if nodes do not answer. A node that is being connected to is awaited for the
    /// connect timeout as well.
    ///
    /// # Errors
    /// [`LeaseError`]. After [`LeaseError::Unconfirmed`] the lock may be held until the end of `lease`, or longer.
    ///
    /// # Cancel safety
    /// Safe: the extension goes on, and only its outcome is dropped.
    pub async fn extend_lease(&self, lease: &Lease) -> Result<Lease, LeaseError> {
        self.start_extend_lease(lease)?.await
    }

    /// [`Client::extend_lease`] with a future that a blocking caller can poll.
    pub(crate) fn start_extend_lease(
        &self,
        lease: &Lease,
    ) -> Result<impl Future<Output = Result<Lease, LeaseError>> + Send + Unpin + use<>, LeaseError>
    {
        let all = [LeaseKind::Exclusive, LeaseKind::Shared, LeaseKind::Fenced, LeaseKind::Taken];
        self.check_lease(lease, &all)?;
        if lease.hold_left() < lease.ttl {
            return Err(LeaseError::HoldLimit { resource: lease.title.clone() });
        }
        let counter = (lease.kind == LeaseKind::Fenced)
            .then(|| self.state.counter(&lease.resources, lease.hold_left()));
        let extended = self.extend_entry(self.entry_of(lease)?, counter);
        let (client, mut lease) = (self.clone(), lease.clone());
        Ok(extended.map(move |extended| {
            let validity = client.confirmed(&lease.resources, extended)?;
            let now = client.state.context.clock.now();
            lease.end = LeaseEnd::new(client.state.context.clock, now, validity.remaining(now));
            Ok(lease)
        }))
    }

    /// Releases the lock of a lease on every node. A lock that expired or was released before is not an error.
    ///
    /// Waits for nodes that are being connected to, and until a quorum has confirmed, as the release of a guard does
    /// ([`Guard::release`](crate::Guard::release)).
    ///
    /// # Errors
    /// [`LeaseError::OtherCluster`] if the lease is of other nodes. No command about the lock is sent then.
    ///
    /// # Cancel safety
    /// Safe: the release goes on.
    pub async fn release_lease(&self, lease: &Lease) -> Result<Released, LeaseError> {
        Ok(self.start_release_lease(lease)?.await)
    }

    /// [`Client::release_lease`] with a future that a blocking caller can poll.
    pub(crate) fn start_release_lease(
        &self,
        lease: &Lease,
    ) -> Result<impl Future<Output = Released> + Send + Unpin + use<>, LeaseError> {
        self.accepts(lease)?;
        let entry = self.entry_of(lease)?;
        // A keeper extends the lock without a new text, so the lock may be held until the end of a whole ttl.
        let left = if lease.keeper.is_some() { lease.ttl } else { lease.remaining() };
        Ok(self.release_entry(entry, left))
    }

    /// Asks the nodes to prolong their votes for a lock without a guard: that of a lease, or one named by its value.
    pub(super) fn extend_entry(
        &self,
        entry: EntryOf,
        counter: Option<Counter>,
    ) -> impl Future<Output = Option<EntryExtended>> + Send + Unpin + use<> {
        let (reply, extended) = oneshot::channel();
        let event = Event::ExtendEntry { lock: self.state.new_lock(), entry, counter };
        self.state.context.driver.send_and_drive(event, ReplyTo::ExtendEntry(reply));
        extended.map(Result::ok)
    }

    pub(super) fn release_entry(
        &self,
        entry: EntryOf,
        valid_for: Duration,
    ) -> impl Future<Output = Released> + Send + Unpin + use<> {
        let (reply, released) = oneshot::channel();
        let event = Event::ReleaseEntry { lock: self.state.new_lock(), entry, valid_for };
        self.state.context.driver.send_and_drive(event, ReplyTo::ReleaseEntry(reply));
        let names = self.state.context.names.clone();
        released.map(move |report| Released::of_report(report.ok(), names))
    }

    /// The validity of the votes that the nodes prolonged; an error if these nodes are no quorum.
    pub(super) fn confirmed(
        &self,
        resources: &Keys,
        extended: Option<EntryExtended>,
    ) -> Result<Validity, LeaseError> {
        let resource = Resources::from(resources.clone()).title();
        let Some((validity, results)) = extended else {
            return Err(LeaseError::Closed { resource });
        };
        validity.ok_or_else(|| {
            let several = Some(resources).filter(|it| it.single().is_none());
            let nodes = NodeAnswer::all(&self.state.context.names, several, results);
            LeaseError::unconfirmed(resource, self.state.quorum, nodes)
        })
    }

    /// The lock of a lease for the engine: its keys and value, its times, and the nodes whose votes do not count.
    fn entry_of(&self, lease: &Lease) -> Result<EntryOf, InvalidRequest> {
        let origin = lease.taken.as_ref().map_or(Origin::Absent, |value| {
            let nonce_key = nonce(&self.state.context.prefix, &lease.resources[0]);
            Origin::Taken(Arc::new(TakenFrom { value: value.clone(), nonce_key, by_value: false }))
        });
        let keys = self.state.keys(&lease.resources)?;
        let entry = Entry { keys, mode: lease.mode(), value: lease.value.clone(), origin };
        let timing = self.state.timing_with(lease.ttl)?;
        Ok(EntryOf { entry, timing, unanswered: lease.unanswered })
    }

    /// Checks whether the lease was made with the nodes, the quorum and the key prefix of this client. Asks no node.
    ///
    /// # Errors
    /// [`LeaseError::OtherCluster`].
    pub fn accepts(&self, lease: &Lease) -> Result<(), LeaseError> {
        let resource = lease.title.clone();
        match lease.cluster.difference(&self.state.context.cluster) {
            None => Ok(()),
            Some(difference) => Err(LeaseError::OtherCluster { resource, difference }),
        }
    }

    fn check_lease(&self, lease: &Lease, kinds: &[LeaseKind]) -> Result<(), LeaseError> {
        self.accepts(lease)?;
        let (resource, kind) = (lease.title.clone(), lease.kind);
        if !kinds.contains(&kind) {
            return Err(LeaseError::Kind { resource, kind });
        }
        match lease.may_be_held() {
            true => Ok(()),
            false => Err(LeaseError::Over { resource }),
        }
    }
}

impl Lease {
    /// The lease of a detached lock.
    pub(crate) fn new(
        context: &ClientContext,
        title: Arc<str>,
        detached: Detached,
        fencing_token: Option<NonZeroU64>,
    ) -> Self {
        let Detached { entry, ttl, validity, unanswered, hold_until } = detached;
        let now = context.clock.now();
        let kind = match (&entry.origin, entry.mode, fencing_token) {
            (Origin::Taken(_), ..) => LeaseKind::Taken,
            (_, Mode::Shared, _) => LeaseKind::Shared,
            (_, Mode::Exclusive, Some(_)) => LeaseKind::Fenced,
            (_, Mode::Exclusive, None) => LeaseKind::Exclusive,
        };
        let taken = match entry.origin {
            Origin::Taken(from) => Some(from.value.clone()),
            Origin::Absent | Origin::Detached(_) => None,
        };
        let name = |key: &Key| key.strip_prefix(&*context.prefix).unwrap_or(key).into();
        let hold_left = hold_until.remaining(now);
        Self {
            kind,
            resources: entry.keys.map(name),
            title,
            value: entry.value,
            taken,
            ttl,
            end: LeaseEnd::new(context.clock, now, validity.remaining(now)),
            hold_until_ms: unix_ms().saturating_add(millis(hold_left)),
            unanswered,
            cluster: context.cluster,
            fencing_token: fencing_token.filter(|_| kind == LeaseKind::Fenced),
            keeper: None,
        }
    }

    fn mode(&self) -> Mode {
        match self.kind {
            LeaseKind::Shared => Mode::Shared,
            LeaseKind::Exclusive | LeaseKind::Fenced | LeaseKind::Taken => Mode::Exclusive,
        }
    }

    /// Whether the lock may still be held, as far as the text shows. A [`Keeper`](crate::Keeper) process extends the
    /// lock without writing a new text, so only the nodes know the end of such a lock.
    fn may_be_held(&self) -> bool {
        self.keeper.is_some() || !self.remaining().is_zero()
    }

    /// The time until the lock's `max_hold` ends, by the wall clock.
    fn hold_left(&self) -> Duration {
        Duration::from_millis(self.hold_until_ms.saturating_sub(unix_ms()))
    }
}

fn unix_ms() -> u64 {
    u64::try_from(Clock::System.now().real_ns() / 1_000_000).unwrap_or(0)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
