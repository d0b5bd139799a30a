//! The nodes that a builder describes, without a client, after the checks of `build`.

use std::sync::Arc;

use quorlock_core::{Key, Quorum, Rules, Timing};

use super::ClientBuilder;
use super::settings::{Settings, check_names};
use crate::client::context::Names;
use crate::error::BuildError;
use crate::init_command::InitCommand;
use crate::node::{NodeConfig, RedisNode};
use crate::own_keys::{counter, nonce, own_key};

/// The servers that a client with these settings would use, and its rules for their votes.
#[derive(Clone, Debug)]
pub struct Topology {
    /// The servers in the order of the list, without the nodes in memory.
    pub servers: Vec<RedisNode>,
    /// The number of nodes that must grant a lock.
    pub quorum: Quorum,
    /// The rules that decide whether a node's votes count.
    pub rules: Rules,
    /// The prefix of every key.
    pub prefix: Arc<str>,
    /// The times of a lock with the default options.
    pub timing: Timing,
    /// The command that gives the nodes these settings.
    pub init: InitCommand,
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
        let init = InitCommand::of(settings, quorum, &rules.cluster);
        Ok(Self { servers, quorum, rules, prefix: settings.prefix.as_str().into(), timing, init })
    }

    /// Makes servers from `nodes` instead of the builder's list, with the log-in and the certificates of the builder. A
    /// node without a log-in gets that of the URLs in the builder's list if they all have the same.
    ///
    /// # Errors
    /// As [`ClientBuilder::build`].
    pub fn others(
        builder: &ClientBuilder,
        nodes: &[NodeConfig],
    ) -> Result<Vec<RedisNode>, BuildError> {
        let mut settings = builder.settings.clone();
        let listed = settings.nodes;
        let log_in = |node: NodeConfig| match listed.split_first() {
            Some((Ok(first), rest))
                if rest.iter().flatten().all(|other| other.has_log_in_of(first)) =>
            {
                node.log_in_unless_set(first)
            }
            _ => node,
        };
        settings.nodes = nodes.iter().cloned().map(log_in).map(Ok).collect();
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
