//! The nodes that a builder describes, without a client, after the checks of `build`.

use std::sync::Arc;

use quorlock_core::{Key, Quorum, Rules, Timing};

use super::ClientBuilder;
use super::settings::{Settings, check_names};
use crate::common::Names;
use crate::error::BuildError;
use crate::node::{Node as _, NodeConfig, RedisNode};
use crate::own_keys::{counter, nonce, own_key};

/// The servers that a client with these settings would use, and its rules for their votes.
#[derive(Clone, Debug)]
pub struct Topology {
    /// The servers in the order of the list, without the custom nodes.
    pub servers: Vec<RedisNode>,
    /// The number of nodes that must grant a lock.
    pub quorum: Quorum,
    /// The rules that decide whether a node's votes count.
    pub rules: Rules,
    /// The prefix of every key.
    pub prefix: Arc<str>,
}

impl Topology {
    /// The topology of a client with these settings. Nothing is sent.
    ///
    /// # Errors
    /// As [`ClientBuilder::build`].
    pub fn of(builder: &ClientBuilder) -> Result<Self, BuildError> {
        let settings = &builder.settings;
        settings.check_prefix()?;
        let timing = timing(settings)?;
        let servers = settings.make_servers(&timing)?;
        check_names(servers.iter().map(RedisNode::name))?;
        let quorum = settings.quorum_of(servers.len())?;
        let names: Names = servers.iter().map(|server| server.name().into()).collect();
        let rules = settings.rules(quorum, &names)?;
        Ok(Self { servers, quorum, rules, prefix: settings.prefix.as_str().into() })
    }

    /// Makes servers from `nodes` instead of the builder's list, with the log-in and the certificates of the builder.
    ///
    /// # Errors
    /// As [`ClientBuilder::build`].
    pub fn others(
        builder: &ClientBuilder,
        nodes: &[NodeConfig],
    ) -> Result<Vec<RedisNode>, BuildError> {
        let mut settings = builder.settings.clone();
        settings.nodes = nodes.iter().cloned().map(Ok).collect();
        settings.make_servers(&timing(&settings)?)
    }

    /// A key that the library uses for itself, such as that of the marker: the prefix, `quorlock:`, and this name.
    pub fn own_key(&self, name: &str) -> Key {
        own_key(&self.prefix, name)
    }

    /// The key of the intent, by which a writer that waits for this resource keeps new readers out.
    pub fn intent(&self, resource: &str) -> Key {
        own_key(&self.prefix, &format!("intent:{resource}"))
    }

    /// The key of a lock's nonce. Only a lock whose caller chose the value has a nonce.
    pub fn nonce(&self, resource: &str) -> Key {
        nonce(&self.prefix, resource)
    }

    /// The key of the counter of fencing tokens for the lock with this key.
    pub fn counter(&self, key: &str) -> Key {
        counter(&self.prefix, key.strip_prefix(&*self.prefix).unwrap_or(key))
    }
}

/// The times of these settings. A default ttl above `max_ttl` is cut, not refused, because a topology acquires no lock.
fn timing(settings: &Settings) -> Result<Timing, BuildError> {
    let (options, times) = (settings.options.clone(), settings.times);
    let ttl = options.ttl_or_default().min(times.max_ttl);
    let max_hold = options.max_hold_or_default().max(ttl);
    Ok(options.ttl(ttl).max_hold(max_hold).check(times)?)
}
