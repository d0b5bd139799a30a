//! A model node's information about itself.

use std::sync::Arc;

use quorlock_core::{Failure, FailureKind, Key, MarkerSeen};

use super::{ConnectionId, Health, ModelNode};
use crate::time::{SECOND, Time, US};

/// One run of a server's process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Run {
    /// A number that every start of the process increments.
    pub id: u64,
    /// The wall clock at the start, in whole seconds.
    pub started_s: i64,
    /// The replication offset at which the server was promoted, if it was a replica.
    pub promoted_at: Option<i64>,
    /// The server deletes keys when its memory is full.
    pub evicts: bool,
    /// The server logs its writes to a file, so that they survive a restart.
    pub keeps_log: bool,
}

impl Run {
    /// A run that begins with the wall clock at `wall`.
    pub const fn new(id: u64, wall: Time) -> Self {
        let started_s = wall.div_euclid(SECOND);
        Self { id, started_s, promoted_at: None, evicts: false, keeps_log: false }
    }
}

impl ModelNode {
    /// The fields of `INFO` that clients use, as a server prints them.
    pub fn info(&self, now: Time) -> Result<Arc<str>, Failure> {
        let loading = match self.health {
            Health::Refusing(FailureKind::Loading) => 1,
            Health::Refusing(kind) => return Err(Failure::new(kind)),
            Health::Garbled => return Err(Failure::new(FailureKind::Rejected)),
            _ => 0,
        };
        let role = match self.health {
            Health::ReadOnly(FailureKind::ReadOnly) => "slave",
            _ => "master",
        };
        let Run { id, started_s, promoted_at, evicts, keeps_log } = self.run;
        let wall = self.clock.at(now);
        let uptime = wall.div_euclid(SECOND) - started_s;
        let time = wall.div_euclid(US);
        let (limit, policy) = if evicts { (1_000_000, "allkeys-lru") } else { (0, "noeviction") };
        let (old, offset) = (u8::from(promoted_at.is_some()), promoted_at.unwrap_or(-1));
        Ok(format!(
            "redis_mode:standalone\r\nrun_id:{id:040x}\r\nserver_time_usec:{time}\r\n\
             uptime_in_seconds:{uptime}\r\nrole:{role}\r\nmaster_replid2:{old:040}\r\n\
             second_repl_offset:{offset}\r\nmaxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\n\
             loading:{loading}\r\nasync_loading:0\r\naof_enabled:{}\r\n",
            u8::from(keeps_log)
        )
        .into())
    }

    /// Reads the marker (the key that shows that the node lost no data), as a batch does after its commands.
    pub fn marker(&mut self, by: ConnectionId, key: &Key, now: Time) -> MarkerSeen {
        let now_us = self.now_us(now);
        match self.store.get(by, key, now_us) {
            Ok(None) => MarkerSeen::Missing,
            Ok(Some(text)) => MarkerSeen::Text(text.into()),
            Err(kind) => MarkerSeen::Failed(Failure::new(kind)),
        }
    }
}
