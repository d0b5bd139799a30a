//! The nodes without a client, by the same settings and after the same checks.

use std::sync::Arc;

use quorlock_core::{Key, Quorum, Rules, Timing};

use super::ClientBuilder;
use super::settings::{Settings, check_names};
use crate::common::Names;
use crate::error::BuildError;
use crate::node::{Node as _, NodeConfig, RedisNode};
use crate::own_keys::{counter, own_key};

/// The servers of a client that is not built, and what it would measure them by.
#[derive(Clone, Debug)]
pub struct Topology {
    /// In the order of the list; nodes that are not servers are left out.
    pub servers: Vec<RedisNode>,
    /// How many must grant a lock.
    pub quorum: Quorum,
    /// What decides whether their votes count.
    pub rules: Rules,
    /// What stands before every key.
    pub prefix: Arc<str>,
}

impl Topology {
    /// What a client of these settings would be; nothing is sent.
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

    /// Further servers, reached as those of these settings are.
    ///
    /// # Errors
    /// As [`ClientBuilder::build`].
    pub fn others(
        builder: &ClientBuilder,
        nodes: &[NodeConfig],
    ) -> Result<Vec<RedisNode>, BuildError> {
        let settings = &builder.settings;
        let others = Settings {
            nodes: nodes.iter().cloned().map(Ok).collect(),
            tls: settings.tls.clone(),
            tls_server_name: settings.tls_server_name.clone(),
            username: settings.username.clone(),
            password: settings.password.clone(),
            defaults: settings.defaults.clone(),
            ..Settings::new()
        };
        others.make_servers(&timing(settings)?)
    }

    /// The library's own key with this name.
    pub fn own_key(&self, name: &str) -> Key {
        own_key(&self.prefix, name)
    }

    /// The intent of a writer that waits for this resource.
    pub fn intent(&self, resource: &str) -> Key {
        own_key(&self.prefix, &format!("intent:{resource}"))
    }

    /// The counter of fencing tokens for the lock with this key.
    pub fn counter(&self, key: &str) -> Key {
        counter(&self.prefix, key.strip_prefix(&*self.prefix).unwrap_or(key))
    }
}

/// No lock is taken, so a longest ttl that is shorter than the usual one is none of its faults.
fn timing(settings: &Settings) -> Result<Timing, BuildError> {
    let mut defaults = settings.defaults.clone();
    let times = &mut defaults.timing;
    times.ttl = times.ttl.min(times.max_ttl);
    defaults.max_hold = defaults.max_hold.max(times.ttl);
    Ok(defaults.check()?)
}
