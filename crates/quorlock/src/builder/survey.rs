//! The nodes without a client: for [`doctor`](crate::doctor) and [`init`](crate::init), which look at
//! nodes one by one, by the same settings and after the same checks.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::{Key, Quorum, Rules, Timing};

use super::{ClientBuilder, check_names, own_key};
use crate::client::Names;
use crate::error::BuildError;
use crate::node::{Node as _, NodeConfig, RedisNode};

/// The servers of a client that is not built, and what it would measure them by.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    pub(crate) servers: Vec<RedisNode>,
    pub(crate) quorum: Quorum,
    pub(crate) rules: Rules,
    pub(crate) prefix: Arc<str>,
}

impl ClientBuilder {
    /// What a client of these settings would be; nothing is sent.
    pub(crate) fn survey(&self) -> Result<Survey, BuildError> {
        self.check_prefix()?;
        let timing = self.survey_timing()?;
        let servers = self.make_servers(&timing)?;
        check_names(servers.iter().map(RedisNode::name))?;
        let quorum = match self.quorum {
            Some(needed) => Quorum::new(servers.len(), needed)?,
            None => Quorum::majority(servers.len())?,
        };
        let names: Names = servers.iter().map(|server| server.name().into()).collect();
        let rules = self.rules(quorum, &names)?;
        Ok(Survey { servers, quorum, rules, prefix: self.prefix.as_str().into() })
    }

    /// Further servers, reached as the others are.
    pub(crate) fn survey_of(&self, nodes: &[NodeConfig]) -> Result<Vec<RedisNode>, BuildError> {
        let nodes = nodes.iter().cloned().map(Ok).collect();
        let timing = self.survey_timing()?;
        let others = Self {
            nodes,
            tls: self.tls.clone(),
            username: self.username.clone(),
            password: self.password.clone(),
            defaults: self.defaults.clone(),
            ..Self::new()
        };
        others.make_servers(&timing)
    }

    /// No lock is taken, so a longest ttl that is shorter than the usual one is none of its faults.
    fn survey_timing(&self) -> Result<Timing, BuildError> {
        let mut defaults = self.defaults.clone();
        let times = &mut defaults.timing;
        times.ttl = times.ttl.min(times.ttl_max);
        defaults.max_hold = defaults.max_hold.max(times.ttl);
        Ok(defaults.check()?)
    }
}

impl Survey {
    /// How long a node without a past waits until its votes count.
    pub(crate) fn quarantine(&self) -> Duration {
        self.rules.quarantine()
    }

    /// The key of the library's own that is called so.
    pub(crate) fn own_key(&self, name: &str) -> Key {
        own_key(&self.prefix, name)
    }
}
