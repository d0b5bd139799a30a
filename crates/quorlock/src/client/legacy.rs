//! **A deprecated pattern**: the lock of the [`SETNX`](https://redis.io/docs/latest/commands/setnx/) page with a timestamp
//! as its value, only for keys that old programs lock like this. [`Client::acquire`] has none of its hazards.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorlock_core::{Failure, Key};
use tokio::sync::Mutex;

use super::Client;
use crate::error::InvalidRequest;
use crate::node::ClientNode;
use crate::node::redis::{AdminConnection, RedisNode, Reply, failure_of};
use crate::resources::Resources;

const ROUNDS_MAX: usize = 4;
/// `None` before the first command, and after a command that failed or was dropped.
type Connection = Option<AdminConnection>;

/// **A deprecated pattern.** A lock that excludes the clients of the old recipe on the same key of one server:
/// `SETNX key <Unix time + timeout + 1>`; if the key exists, `GET` its end, and `GETSET` it if the end has passed. The key
/// has no ttl on the server, and the value identifies no client. The recipe has these hazards:
///
/// 1. **The clients' clocks decide.** A client whose clock is ahead takes a lock that is still held.
/// 2. **The loser of a race between two `GETSET`s has moved the winner's end.** If the loser's timeout is shorter, a third
///    client takes the lock while the winner still holds it.
/// 3. **Two clients hold the lock after a pause.** A holder that is paused past its end continues as if it held the lock.
/// 4. **A check and a later `DEL` can delete a successor's key.**
///
/// This type does not move the end of a held lock, and deletes only its own value, because it watches the key from its
/// read to its write (`WATCH`, `MULTI`, `EXEC`). The other clients of the recipe do not. A successor's value is
/// larger, unless a client deleted the key of a held lock. A key not set by the recipe is refused and left unchanged:
/// another type, a value that is no plain decimal, or a key with a ttl, such as other locks of this library. The
/// restart guard does not apply. The user needs rights to `SETNX`, `GETSET`, `WATCH`, `UNWATCH`, `MULTI` and `EXEC`.
///
/// ```no_run
/// # async fn work() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::{Duration, SystemTime};
/// # use quorlock::{Client, legacy::TimestampLock};
/// let client = Client::builder().nodes(["a=redis://10.0.0.1"]).build()?;
/// let lock = TimestampLock::new(&client, "lock.foo", Duration::from_secs(10))?;
/// let guard = lock.try_acquire(SystemTime::now()).await?;
/// // … work for less than ten seconds …
/// guard.release(SystemTime::now()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TimestampLock {
    node: RedisNode,
    key: Key,
    timeout: Duration,
    connection: Mutex<Connection>,
}

/// A held lock of the deprecated recipe, with the hazards of [`TimestampLock`]. Dropping a guard releases nothing.
#[must_use = "the lock stays on the server until its end"]
#[derive(Debug)]
pub struct TimestampGuard<'a> {
    lock: &'a TimestampLock,
    value: String,
    end: SystemTime,
}

/// The reason why a lock of the deprecated recipe was not acquired or released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimestampError {
    /// Another client holds the lock, or changed the key during each try of the call.
    #[error("another client holds the lock")]
    Held,
    /// The key is no lock of this recipe. Nothing was changed.
    #[error("the key is no lock of the recipe with timestamps, because of {0}")]
    Foreign(&'static str),
    /// The end of the lock had passed before the release, or another client has changed the key. Nothing was deleted.
    #[error("the lock had ended before its release, or another client has changed its key")]
    NotHeld,
    /// The client has more nodes than one server. Nothing was sent.
    #[error("the recipe with timestamps is for one server, and the client has more nodes")]
    NotOneServer,
    /// An argument is invalid. Nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The server failed. After [`Failure::may_have_been_executed`] the key may stay until its end.
    #[error("{0}")]
    Failed(Failure),
}

impl TimestampLock {
    /// The lock on a resource of a client with one server. `timeout` has the bounds of a [ttl](crate::LockOptions::ttl).
    ///
    /// # Errors
    /// [`TimestampError::NotOneServer`] and [`TimestampError::Invalid`].
    pub fn new(client: &Client, resource: &str, timeout: Duration) -> Result<Self, TimestampError> {
        let [ClientNode::Server(node)] = &client.state.nodes[..] else {
            return Err(TimestampError::NotOneServer);
        };
        client.state.timing_with(timeout)?;
        let keys = client.state.keys(&Resources::from(resource).check()?)?;
        let key = keys.single().cloned().unwrap_or_else(|| resource.into());
        Ok(Self { node: node.clone(), key, timeout, connection: Mutex::default() })
    }

    /// Makes one attempt to acquire the lock. If the future is dropped, the key may stay until its end.
    ///
    /// # Errors
    /// [`TimestampError`].
    pub async fn try_acquire(&self, now: SystemTime) -> Result<TimestampGuard<'_>, TimestampError> {
        let connection = &mut *self.connection.lock().await;
        let (now, end) = (seconds(now), now.checked_add(self.timeout).unwrap_or(now));
        let guard = TimestampGuard { lock: self, value: (seconds(end) + 1).to_string(), end };
        for _ in 0..ROUNDS_MAX {
            let set: [&[&str]; 1] = [&["SETNX", &self.key, &guard.value]];
            if self.ask(connection, &set).await?.ends_with(&[Reply::Int(1)]) {
                return Ok(guard);
            }
            let Some(seen) = self.look(connection).await? else { continue };
            if end_of(&seen).ok_or(TimestampError::Foreign("its value"))? >= now {
                break;
            }
            if self.change(connection, &["GETSET", &self.key, &guard.value]).await? {
                return Ok(guard);
            }
        }
        Err(TimestampError::Held)
    }

    /// Watches the key and returns its value; `None` if the key does not exist. Refuses a key with a ttl.
    async fn look(&self, connection: &mut Connection) -> Result<Option<Vec<u8>>, TimestampError> {
        let key = &*self.key;
        let look: [&[&str]; 4] = [&["UNWATCH"], &["WATCH", key], &["GET", key], &["PTTL", key]];
        match &mut self.ask(connection, &look).await?[..] {
            [_, _, Reply::Nil, _] => Ok(None),
            [_, _, Reply::Bytes(value), Reply::Int(-1)] => Ok(Some(std::mem::take(value))),
            _ => Err(TimestampError::Foreign("its ttl")),
        }
    }

    /// Executes a command if the key has not changed since [`look`](Self::look). Returns whether it was executed.
    async fn change(
        &self,
        connection: &mut Connection,
        command: &[&str],
    ) -> Result<bool, TimestampError> {
        let replies = self.ask(connection, &[&["MULTI"], command, &["EXEC"]]).await?;
        Ok(matches!(replies.last(), Some(Reply::List(_))))
    }

    /// Sends the commands in one round trip. An error of the server fails all of them.
    async fn ask(
        &self,
        connection: &mut Connection,
        commands: &[&[&str]],
    ) -> Result<Vec<Reply>, TimestampError> {
        let server = match connection.take() {
            Some(server) => server,
            None => AdminConnection::open(&self.node).await.map_err(TimestampError::Failed)?,
        };
        let replies = server.ask(commands).await.map_err(TimestampError::Failed)?;
        *connection = Some(server);
        match replies.iter().find(|reply| matches!(reply, Reply::Error(_))) {
            Some(Reply::Error(error)) if error.starts_with("WRONGTYPE") => {
                Err(TimestampError::Foreign("its type"))
            }
            Some(Reply::Error(error)) => Err(TimestampError::Failed(failure_of(error))),
            _ => Ok(replies),
        }
    }
}

impl TimestampGuard<'_> {
    /// The end of the lock: the time of the call that acquired it, plus the timeout.
    pub fn end(&self) -> SystemTime {
        self.end
    }

    /// Deletes the key, unless the end has passed or another client has changed the key. Errors and cancel safety as
    /// [`TimestampLock::try_acquire`].
    pub async fn release(self, now: SystemTime) -> Result<(), TimestampError> {
        let connection = &mut *self.lock.connection.lock().await;
        // A client that replaces an expired value writes a larger one, so an equal value is this guard's own.
        let is_own = now < self.end
            && self.lock.look(connection).await?.as_deref() == Some(self.value.as_bytes());
        let is_deleted = is_own && self.lock.change(connection, &["DEL", &self.lock.key]).await?;
        if is_deleted { Ok(()) } else { Err(TimestampError::NotHeld) }
    }
}

/// Whole seconds since the Unix epoch.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The end in seconds that a value of the recipe names: digits, and after a point a fraction, which is rounded up.
fn end_of(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_decimal = [whole, fraction].concat().bytes().all(|digit| digit.is_ascii_digit());
    let end: u64 = whole.parse().ok().filter(|_| is_decimal && !fraction.is_empty())?;
    end.checked_add(u64::from(fraction != "0"))
}
