//! Locks with a value that the caller chose.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use quorlock_core::{Entry, EntryOf, Holding, Keys, Mode, NodeSet, Origin, TakenFrom, Value};

use super::Client;
use crate::acquire::Acquire;
use crate::driver::fresh_token;
use crate::error::{InvalidRequest, LeaseError};
use crate::guard::Released;
use crate::inspect::{Inspection, Verdict};
use crate::options::LockOptions;
use crate::own_keys::nonce;
use crate::taken::Take;

/// The value of a lock, as a majority of the nodes has it; see [`Client::query`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Query {
    /// A quorum of nodes has this value.
    Value(Vec<u8>),
    /// A quorum of nodes reports a free lock.
    Free,
    /// Readers hold the lock. Each has a value of its own.
    Shared,
    /// No value has a quorum, and no quorum of nodes reports a free lock.
    Split,
    /// Too few nodes answered.
    Unknown,
}

impl Client {
    /// The longest value of [`Client::take`], in bytes.
    pub const VALUE_BYTES_MAX: usize = Holding::VALUE_BYTES_MAX;

    /// Acquires the lock on a resource with a value that the caller chose, as `LockTake` of StackExchange.Redis does. Makes a
    /// single attempt, unless the options of the call have a [`wait`](LockOptions::wait).
    ///
    /// The call fails if the lock is held, even with an equal value. See [`Taken`](crate::Taken).
    ///
    /// A call that fails, is too slow or is cancelled deletes only what it set itself, even if another process holds
    /// the lock with an equal value.
    ///
    /// # Errors
    /// [`AcquireError`](crate::AcquireError), with every node's answer.
    /// [`AcquireError::Invalid`](crate::AcquireError::Invalid) if the value is empty or longer than
    /// [`VALUE_BYTES_MAX`](Self::VALUE_BYTES_MAX); nothing was sent then.
    ///
    /// # Cancel safety
    /// Safe: dropping the future releases what the nodes have granted.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use quorlock::{Client, Query, node::MemoryNode};
    /// # let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build()?;
    /// let ttl = Duration::from_secs(10);
    /// let taken = client.take("orders", "worker-7", ttl).await?;
    /// assert_eq!(client.query("orders").await?, Query::Value(b"worker-7".into()));
    /// assert!(client.take("orders", "worker-7", ttl).await.unwrap_err().is_contended());
    /// taken.release().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn take(&self, resource: impl AsRef<str>, value: impl AsRef<[u8]>, ttl: Duration) -> Take {
        let (resource, bytes) = (resource.as_ref(), value.as_ref());
        let options = LockOptions::new().ttl(ttl).wait(Duration::ZERO).auto_extend(false);
        let value = Value::of_caller(bytes);
        let origin = self.origin_of(resource, value.clone(), false);
        let call = Acquire::new(self.state.clone(), resource.into(), Mode::Exclusive)
            .setting(origin, options)
            .refused(check_value(bytes).err().map(Into::into));
        Take { call, value }
    }

    /// Extends a lock by its value alone, as `LockExtend` of StackExchange.Redis does, even if another process acquired
    /// the lock. Returns the time for which the lock is held.
    ///
    /// **Safe only while one client at a time uses this value.** Otherwise it may extend the lock of another client with an
    /// equal value. [`Taken::extend`](crate::Taken::extend) has no such hazard.
    ///
    /// # Errors
    /// [`LeaseError::Unconfirmed`] if fewer nodes than a quorum have the value. [`LeaseError::Invalid`] if an argument is
    /// invalid; nothing was sent then.
    ///
    /// # Cancel safety
    /// Safe: the extension goes on, and only its outcome is dropped.
    pub async fn extend_value(
        &self,
        resource: impl AsRef<str>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<Duration, LeaseError> {
        self.start_extend_value(resource.as_ref(), value.as_ref(), ttl)?.await
    }

    /// [`Client::extend_value`] with a future that a blocking caller can poll.
    pub(crate) fn start_extend_value(
        &self,
        resource: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<
        impl Future<Output = Result<Duration, LeaseError>> + Send + Unpin + use<>,
        InvalidRequest,
    > {
        let (keys, entry) = self.entry_by_value(resource, value, ttl)?;
        let extended = self.extend_entry(entry, None);
        let client = self.clone();
        Ok(extended.map(move |extended| {
            let validity = client.confirmed(&keys, extended)?;
            Ok(validity.remaining(client.state.context.clock.now()))
        }))
    }

    /// Releases a lock by its value alone, as `LockRelease` of StackExchange.Redis does.
    ///
    /// **Safe only while one client at a time uses this value.** Otherwise it may release the lock of another client with an
    /// equal value, or votes that another client is getting. A release that is delayed on its way to a node has the same
    /// effect on a later lock with this value. [`Taken::release`](crate::Taken::release) has no such hazard.
    ///
    /// The outcome is [`Outcome::Released`](crate::Outcome::Released) if a quorum of nodes deleted the value.
    ///
    /// # Errors
    /// [`InvalidRequest`] if an argument is invalid. Nothing was sent then.
    ///
    /// # Cancel safety
    /// Safe: the release goes on.
    pub async fn release_value(
        &self,
        resource: impl AsRef<str>,
        value: impl AsRef<[u8]>,
    ) -> Result<Released, InvalidRequest> {
        Ok(self.start_release_value(resource.as_ref(), value.as_ref())?.await)
    }

    /// [`Client::release_value`] with a future that a blocking caller can poll.
    pub(crate) fn start_release_value(
        &self,
        resource: &str,
        value: &[u8],
    ) -> Result<impl Future<Output = Released> + Send + Unpin + use<>, InvalidRequest> {
        let max_ttl = self.state.times.max_ttl;
        let (_, entry) = self.entry_by_value(resource, value, max_ttl)?;
        Ok(self.release_entry(entry, max_ttl))
    }

    /// Reads the value of the lock on a resource, as `LockQuery` of StackExchange.Redis does. The result may be out of
    /// date, because the lock may change at any time.
    ///
    /// # Errors
    /// [`InvalidRequest`] if the name cannot be locked. Nothing was sent then.
    ///
    /// # Cancel safety
    /// Safe: a query changes nothing on the nodes.
    pub async fn query(&self, resource: impl AsRef<str>) -> Result<Query, InvalidRequest> {
        Ok(self.start_query(resource.as_ref())?.await)
    }

    /// [`Client::query`] with a future that a blocking caller can poll.
    pub(crate) fn start_query(
        &self,
        resource: &str,
    ) -> Result<impl Future<Output = Query> + Send + Unpin, InvalidRequest> {
        Ok(self.start_inspect(resource.into())?.map(|seen| Query::of(&seen)))
    }

    fn origin_of(&self, resource: &str, value: Value, by_value: bool) -> Origin {
        let nonce_key = nonce(&self.state.context.prefix, resource);
        Origin::Taken(Arc::new(TakenFrom { value, nonce_key, by_value }))
    }

    /// The resource, and the entry with which the engine extends or releases its lock by the value alone.
    fn entry_by_value(
        &self,
        resource: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<(Keys, EntryOf), InvalidRequest> {
        check_value(value)?;
        let resources = crate::Resources::from(resource).check()?;
        let entry = Entry {
            keys: self.state.keys(&resources)?,
            mode: Mode::Exclusive,
            value: Value::new(&fresh_token(), ""),
            origin: self.origin_of(resource, Value::of_caller(value), true),
        };
        let timing = self.state.timing_with(ttl)?;
        Ok((resources, EntryOf { entry, timing, unanswered: NodeSet::default() }))
    }
}

impl Query {
    /// The value that an inspection shows.
    #[doc(hidden)]
    pub fn of(seen: &Inspection) -> Self {
        match seen.verdict() {
            Verdict::Free => Self::Free,
            Verdict::Shared => Self::Shared,
            Verdict::Unknown => Self::Unknown,
            Verdict::Split => Self::Split,
            // A key of another type counts as held, but has no value.
            Verdict::Held => seen.value().map_or(Self::Split, |value| Self::Value(value.to_vec())),
        }
    }
}

fn check_value(value: &[u8]) -> Result<(), InvalidRequest> {
    match (1..=Client::VALUE_BYTES_MAX).contains(&value.len()) {
        true => Ok(()),
        false => Err(InvalidRequest::Value { bytes: value.len(), max: Client::VALUE_BYTES_MAX }),
    }
}
