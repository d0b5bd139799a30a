//! A connection to a server for questions that are not about locks.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use quorlock_core::{Failure, FailureKind, Key, NodeId};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::RedisNode;
use super::client_name::Lockers;
use super::codec::{Capabilities, Delete, rejected};
use super::connection::Connection;
use super::registration::{Do, Registration};
use super::resp::{self, Reply};
use super::wire::{Overflow, Wire};
use crate::node::Inbox;

/// A connection that sends one question at a time.
pub struct AdminConnection {
    /// Locked while a question awaits its replies.
    wire: Mutex<Wire>,
    capabilities: Capabilities,
    speaks_resp3: bool,
    database: u32,
    patience: Duration,
}

impl RedisNode {
    /// Asks all Sentinels of the node. Returns the failures of those that do not name the master.
    #[doc(hidden)]
    pub async fn sentinel_failures(&self) -> Vec<Failure> {
        match &self.server.dialer.sentinels {
            Some(sentinels) => sentinels.failures(&self.server.dialer).await,
            None => Vec::new(),
        }
    }
}

impl AdminConnection {
    /// Connects and logs in, within the node's connect timeout.
    pub async fn open(node: &RedisNode) -> Result<Self, Failure> {
        // This connection watches no key, so its pushes are dropped.
        let push_sink = Inbox::new(1).push_sink(NodeId::new(0));
        let server = &node.server;
        let (Connection { wire, capabilities, .. }, _) = server.open(&push_sink, None).await?;
        let speaks_resp3 = !server.resp2.load(Ordering::Relaxed);
        let database = server.dialer.target.database;
        let (wire, patience) = (Mutex::new(wire), server.connect_timeout);
        Ok(Self { wire, capabilities, speaks_resp3, database, patience })
    }

    /// Whether the locks are in another database than the first.
    pub fn selects(&self) -> bool {
        self.database != 0
    }

    /// Reads the registered database number. If `what` says so, also registers this connection's database.
    pub async fn register(&self, marker: &Key, what: Do) -> Result<(), Failure> {
        let Some(registration) = Registration::of_marker(marker, self.database) else {
            return Ok(());
        };
        let replies = self.ask(&[registration.ask(what).to_vec()]).await?;
        replies.first().map_or(Ok(()), |reply| registration.check(reply))
    }

    /// The number of the database that is registered on the server; `None` if none is registered.
    pub async fn registered(&self, marker: &Key) -> Result<Option<u32>, Failure> {
        let Some(registration) = Registration::of_marker(marker, self.database) else {
            return Ok(None);
        };
        match self.ask(&[registration.ask(Do::Look)]).await?.first() {
            Some(Reply::Error(error)) => Err(rejected(error)),
            reply => Ok(reply.and_then(Reply::text).and_then(|text| text.parse().ok())),
        }
    }

    /// The database of this connection.
    pub fn database(&self) -> u32 {
        self.database
    }

    /// Whether the server can push, so that it notifies waiting calls when a lock changes.
    pub fn speaks_resp3(&self) -> bool {
        self.speaks_resp3
    }

    /// The server's native compare-and-delete command, if it has one and reports it.
    pub fn own_delete(&self) -> Option<&'static str> {
        self.capabilities.delete.map(|delete| match delete {
            Delete::IfEq => "DELIFEQ",
            Delete::Ex => "DELEX",
        })
    }

    /// The failure of every lock on this server, if the server lacks a command that locks need.
    pub fn no_locks(&self) -> Option<Failure> {
        self.capabilities.lacking.no_locks(true)
    }

    /// The clients that take locks and are connected to the server, each as `HOST:PID`. At most 1000. A client of a
    /// version that does not name its connections is not found. The reply has some 400 bytes for each connection to the
    /// server; it is read in parts, and not kept.
    ///
    /// # Errors
    /// The user lacks the right `+client|list`, or the server did not answer in time.
    pub async fn lockers(&self) -> Result<BTreeSet<String>, Failure> {
        let lockers = Arc::new(std::sync::Mutex::new(Lockers::default()));
        let overflow = lockers.clone();
        let read = move |part: &[u8]| {
            overflow.lock().unwrap_or_else(PoisonError::into_inner).read(part);
        };
        // The reply to the second command follows the whole list.
        let commands = [&["CLIENT", "LIST", "TYPE", "normal"][..], &["PING"]];
        let replies = self.ask_reading(&commands, Some(Box::new(read))).await;
        let lockers = std::mem::take(&mut *lockers.lock().unwrap_or_else(PoisonError::into_inner));
        match replies?.into_iter().next() {
            Some(Reply::Bytes(_)) => Ok(lockers.into_names()),
            Some(Reply::Error(error)) => Err(rejected(&error)),
            _ => Err(Failure::new(FailureKind::Protocol)),
        }
    }

    /// Sends all commands in one round trip. Errors of the server are replies, and do not affect the other commands.
    pub async fn ask<C: AsRef<[W]>, W: AsRef<[u8]>>(
        &self,
        commands: &[C],
    ) -> Result<Vec<Reply>, Failure> {
        self.ask_reading(commands, None).await
    }

    /// As [`ask`](Self::ask). `overflow` takes the values of the replies as they arrive.
    async fn ask_reading<C: AsRef<[W]>, W: AsRef<[u8]>>(
        &self,
        commands: &[C],
        overflow: Option<Overflow>,
    ) -> Result<Vec<Reply>, Failure> {
        let mut wire = self.wire.lock().await;
        wire.overflow = overflow;
        let answered = wire.ask(|out| {
            for words in commands {
                let words: Vec<&[u8]> = words.as_ref().iter().map(AsRef::as_ref).collect();
                resp::write(out, &words);
            }
            commands.len()
        });
        timeout(self.patience, answered).await.unwrap_or_else(|_| {
            let bound = format!("nothing within {:?}", self.patience);
            Err(Failure::new(FailureKind::Silent).with_detail(bound))
        })
    }
}

/// The failure for an error of a server.
pub fn failure_of(error: &str) -> Failure {
    rejected(error)
}

impl fmt::Debug for AdminConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminConnection").field("database", &self.database).finish_non_exhaustive()
    }
}
