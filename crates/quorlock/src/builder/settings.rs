//! The settings of a client. This module checks them, and makes the nodes and the driver from them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use quorlock_core::marker::Cluster;
use quorlock_core::{NodeId, NodeSet, Quorum, QuorumError, RestartGuard, Rules, Timing, Words};

use super::ClientBuilder;
use crate::client::Client;
use crate::client::context::{ClientContext, Names};
use crate::client::state::ClientState;
use crate::clock::Clock;
use crate::driver::{Driver, DriverHandle, Metrics};
use crate::error::BuildError;
use crate::init_command::InitCommand;
use crate::lease::ClusterId;
use crate::node::redis::Silence;
use crate::node::secret::SecretFile;
use crate::node::{
    ClientNode, MemoryNode, NodeConfig, NodeConfigError, OnWarning, Provider, RedisNode, Tls,
};
use crate::options::{ClientTimes, LockOptions};
use crate::own_keys::{ADOPTION, MARKER, RESERVED, own_key};
use crate::own_thread::OwnThread;

#[derive(Clone, Default)]
pub(crate) struct Settings {
    /// The servers. An error is kept until [`build`](Self::build), because the builder's methods return no errors.
    pub(crate) nodes: Vec<Result<NodeConfig, NodeConfigError>>,
    /// Whether another program finds the list of the nodes where this one has found it: in the environment or a file.
    pub(crate) nodes_are_set: bool,
    /// In the client's list these nodes follow the servers.
    pub(crate) memory_nodes: Vec<MemoryNode>,
    /// `None`: the majority of the nodes.
    pub(crate) quorum: Option<usize>,
    pub(crate) prefix: String,
    pub(crate) options: LockOptions,
    pub(crate) times: ClientTimes,
    pub(crate) tls: Option<Tls>,
    /// A client's certificate whose key is not known yet.
    pub(crate) tls_cert: Option<SecretFile>,
    pub(crate) tls_server_name: Option<String>,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// The source of the password. It has precedence over `password`.
    pub(crate) credentials: Option<Provider>,
    pub(crate) on_warning: Option<OnWarning>,
    pub(crate) clock: Clock,
    pub(crate) own_thread: bool,
    pub(crate) trust: Trust,
}

/// How the client treats nodes that may have lost their data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust {
    pub(super) guard: RestartGuard,
    /// Whether the client acquires no locks. It then only reads the nodes, so it needs no votes.
    pub(super) only_inspects: bool,
    /// The names of the nodes that the user declares durable: they never lose data.
    pub(super) durable: Vec<String>,
}

impl Settings {
    pub(crate) fn build(self) -> Result<Client, BuildError> {
        let timing = self.options.check(self.times)?;
        self.check_prefix()?;
        let nodes = self.make_nodes(&timing)?;
        let quorum = self.quorum_of(nodes.len())?;
        let names: Names = nodes.iter().map(|node| node.name().into()).collect();
        let rules = self.rules(quorum, &names)?;
        // A node in memory has no URL, so no command changes it.
        let has_urls = self.memory_nodes.is_empty();
        let init = has_urls.then(|| InitCommand::of(&self, quorum, &rules.cluster).into());
        let metrics = Arc::new(Metrics::new(nodes.len(), self.trust.guard));
        let thread = match self.own_thread {
            true => Some(OwnThread::new().map_err(no_thread)?),
            false => None,
        };
        let (handle, commands) =
            DriverHandle::new(thread.as_ref().map(Arc::downgrade).unwrap_or_default());
        let (clock, max_ttl) = (self.clock, self.times.max_ttl);
        let takes_locks = !self.trust.only_inspects;
        let cluster = ClusterId::of(quorum, &nodes, &self.prefix);
        let prefix = self.prefix.into();
        let context =
            Arc::new(ClientContext { driver: handle, names, clock, prefix, cluster, init });
        // A closure, because the driver is created on the runtime that runs it. The driver has no reference to
        // `context`, because such a reference would keep the client alive.
        let run_driver = {
            let nodes = nodes.clone();
            let metrics = metrics.clone();
            move || {
                let times = (clock, max_ttl);
                Driver::new((quorum, rules, takes_locks), &nodes, metrics, commands, times).run()
            }
        };
        if let Some(thread) = thread {
            thread.start(run_driver).map_err(no_thread)?;
        } else {
            let runtime =
                tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
            runtime.spawn(async move { run_driver().await });
        }
        Ok(Client::new(ClientState {
            context,
            quorum,
            options: self.options,
            times: self.times,
            timing,
            nodes,
            metrics,
            next_lock: AtomicU64::new(1),
        }))
    }

    /// The quorum for `node_count` nodes: the one that was set, or the majority.
    pub(super) fn quorum_of(&self, node_count: usize) -> Result<Quorum, QuorumError> {
        match self.quorum {
            Some(needed) => Quorum::new(node_count, needed),
            None => Quorum::majority(node_count),
        }
    }

    pub(super) fn check_prefix(&self) -> Result<(), BuildError> {
        let (bytes, max) = (self.prefix.len(), ClientBuilder::PREFIX_BYTES_MAX);
        if bytes > max {
            return Err(BuildError::PrefixTooLong { bytes, max });
        }
        if self.prefix.contains(RESERVED) {
            return Err(BuildError::PrefixReserved { prefix: self.prefix.clone() });
        }
        Ok(())
    }

    /// The rules by which the client decides whether a node's votes count.
    pub(super) fn rules(&self, quorum: Quorum, names: &Names) -> Result<Rules, BuildError> {
        let find = |name: &String| {
            let place = names.iter().position(|other| **other == **name);
            let unknown =
                || BuildError::UnknownNode { name: name.clone(), known: names.join(", ") };
            place.and_then(|place| quorum.node_ids().nth(place)).ok_or_else(unknown)
        };
        let durable = self.trust.durable.iter().map(find).collect::<Result<NodeSet, _>>()?;
        let replicas = self.replicas(durable)?;
        let max_ttl = self.times.max_ttl;
        let max_ttl_ms = u64::try_from(max_ttl.as_millis()).unwrap_or(u64::MAX);
        Ok(Rules {
            guard: self.trust.guard,
            cluster: Cluster::new(names.iter(), quorum.needed(), max_ttl_ms),
            names: names.to_vec(),
            marker: own_key(&self.prefix, MARKER),
            adoption: own_key(&self.prefix, ADOPTION),
            replicas,
            durable,
            words: Words(crate::fault::in_words),
        })
    }

    /// The number of replicas of each server; empty if no server has any. Refuses replicas that other settings exclude.
    fn replicas(&self, durable: NodeSet) -> Result<Vec<u32>, BuildError> {
        let configs = || self.nodes.iter().flatten();
        if configs().all(|config| config.replica_count() == 0) {
            return Ok(Vec::new());
        }
        for (place, config) in configs().enumerate().filter(|(_, it)| it.replica_count() > 0) {
            let reason = if self.trust.guard != RestartGuard::Strict && !self.trust.only_inspects {
                "which needs the restart guard in mode strict: only that keeps a promoted replica from voting too early"
            } else if durable.contains(NodeId::new(place)) {
                "so it cannot be durable: a promoted replica waits in any case; declare it as one of both"
            } else {
                continue;
            };
            let (node, replicas) = (config.name().to_owned(), config.replica_count());
            return Err(BuildError::Replicas { node, replicas, reason });
        }
        Ok(configs().map(NodeConfig::replica_count).collect())
    }

    fn make_nodes(&self, timing: &Timing) -> Result<Vec<ClientNode>, BuildError> {
        let servers = self.make_servers(timing)?.into_iter().map(ClientNode::Server);
        let memory_nodes = self.memory_nodes.iter().cloned().map(ClientNode::Memory);
        let nodes: Vec<_> = servers.chain(memory_nodes).collect();
        check_names(nodes.iter().map(ClientNode::name))?;
        Ok(nodes)
    }

    pub(super) fn make_servers(&self, timing: &Timing) -> Result<Vec<RedisNode>, BuildError> {
        let mut addresses = BTreeSet::new();
        let mut servers = Vec::new();
        // All nodes share one TLS configuration, and so also the system's roots.
        let tls = self.tls.clone().unwrap_or_default();
        for config in &self.nodes {
            let config = self.complete(config.clone()?).tls_unless_set(&tls);
            if !addresses.insert(config.address()) {
                return Err(BuildError::DuplicateAddress { address: config.address() });
            }
            let connect_timeout = self.times.connect_timeout;
            let silence = Silence::of(timing);
            servers.push(RedisNode::new(config, connect_timeout, silence)?);
        }
        Ok(servers)
    }

    /// Completes a node's configuration with the settings for all nodes: the username replaces that of the URL.
    /// The server name of TLS and the password apply only to a node that has none of its own.
    fn complete(&self, mut config: NodeConfig) -> NodeConfig {
        config = config.warns(self.on_warning.clone());
        if let Some(name) = &self.tls_server_name {
            config = config.tls_server_name_unless_set(name);
        }
        if let Some(username) = &self.username {
            config = config.username(username);
        }
        if let Some(credentials) = &self.credentials {
            config = config.credentials_unless_set(credentials);
        }
        match &self.password {
            Some(password) if !config.has_password() => config.password(password),
            _ => config,
        }
    }
}

pub(super) fn check_names<'a>(nodes: impl Iterator<Item = &'a str>) -> Result<(), BuildError> {
    let mut names = BTreeSet::new();
    for name in nodes {
        if !names.insert(name) {
            return Err(BuildError::DuplicateName { name: name.to_owned() });
        }
    }
    Ok(())
}

fn no_thread(error: std::io::Error) -> BuildError {
    BuildError::Thread { source: Arc::new(error) }
}
