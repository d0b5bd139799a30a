//! The five nodes, which are servers or nodes in memory, and the faults.

use std::time::Duration;

use quorlock::node::MemoryNode;
use quorlock::{Client, ClientBuilder, Delay, LockOptions, RestartGuard, Retry};
use quorlock_servers::{Listen, Nodes, ServerBinary, ServerOptions, StartError};

use super::TTL;

pub(super) const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Waiting clients try again after this time at the latest. The default is longer, because few locks are held only for
/// milliseconds.
const LOOK_AGAIN: Duration = Duration::from_millis(30);

/// Five independent nodes. Dropping them ends the servers and removes their folders.
pub(super) enum FiveNodes {
    Servers(Nodes),
    Memory([MemoryNode; 5]),
}

impl FiveNodes {
    pub(super) fn servers(binary: &ServerBinary, listen: Listen) -> Result<Self, StartError> {
        let options = ServerOptions { listen, ..ServerOptions::default() };
        Nodes::start(binary, NAMES.len(), options).map(Self::Servers)
    }

    pub(super) fn in_memory() -> Self {
        Self::Memory(NAMES.map(MemoryNode::new))
    }

    /// The servers as `NAME=URL`; empty for nodes in memory.
    pub(super) fn urls(&self) -> Vec<String> {
        let Self::Servers(servers) = self else { return Vec::new() };
        let named = NAMES.iter().zip(servers.urls());
        named.map(|(name, url)| format!("{name}={url}")).collect()
    }

    /// The servers' addresses; empty for nodes in memory.
    pub(super) fn addresses(&self) -> Vec<String> {
        let Self::Servers(servers) = self else { return Vec::new() };
        servers.iter().map(quorlock_servers::Server::address).collect()
    }

    /// The cause of a fault, in parentheses. A node in memory only behaves as if it had the fault.
    pub(super) fn by(&self, means: &str) -> String {
        match self {
            Self::Servers(_) => format!("({means})"),
            Self::Memory(_) => format!("(as if by {means})"),
        }
    }

    /// The settings of a client of all five nodes.
    pub(super) fn client(&self) -> ClientBuilder {
        match self {
            Self::Servers(_) => client_of(&self.urls()),
            Self::Memory(nodes) => settings().custom_nodes(nodes.clone()),
        }
    }

    /// Clients of one node each, in order. They run on the current runtime.
    pub(super) fn clients_of_each(&self) -> Result<[Client; 5], String> {
        let builders: Vec<ClientBuilder> = match self {
            Self::Servers(_) => self.urls().into_iter().map(|url| client_of(&[url])).collect(),
            Self::Memory(nodes) => {
                nodes.iter().map(|node| settings().custom_nodes([node.clone()])).collect()
            }
        };
        let clients: Result<Vec<Client>, _> =
            builders.into_iter().map(ClientBuilder::<Client>::build).collect();
        let clients = clients.map_err(|error| error.to_string())?;
        clients.try_into().map_err(|_| "five nodes have five clients".to_owned())
    }

    /// SIGSTOP or its equivalent: the node accepts commands and does not answer.
    pub(super) fn freeze(&self, place: usize) -> Result<(), String> {
        match self {
            Self::Servers(servers) => servers[place].pause().map_err(|error| error.to_string()),
            Self::Memory(nodes) => {
                nodes[place].freeze();
                Ok(())
            }
        }
    }

    /// SIGCONT or its equivalent: the node continues where it stopped.
    pub(super) fn resume(&self, place: usize) -> Result<(), String> {
        match self {
            Self::Servers(servers) => servers[place].resume().map_err(|error| error.to_string()),
            Self::Memory(nodes) => {
                nodes[place].thaw();
                Ok(())
            }
        }
    }

    /// `kill -9` or its equivalent: the node loses all of its data.
    pub(super) fn kill(&self, place: usize) -> Result<(), String> {
        match self {
            Self::Servers(servers) => servers[place].kill().map_err(|error| error.to_string()),
            Self::Memory(nodes) => {
                nodes[place].stop();
                Ok(())
            }
        }
    }

    /// Starts a killed node again, empty, at the same address.
    pub(super) fn start_again(&self, place: usize) -> Result<(), String> {
        match self {
            Self::Servers(servers) => servers[place].restart().map_err(|error| error.to_string()),
            Self::Memory(nodes) => {
                nodes[place].start();
                Ok(())
            }
        }
    }
}

/// The settings of a client of these servers.
pub(super) fn client_of<S: AsRef<str>>(urls: &[S]) -> ClientBuilder {
    settings().nodes(urls)
}

/// The settings that all clients of the demo share.
fn settings() -> ClientBuilder {
    let retry = Retry { delay: Delay::Adaptive { ceiling: LOOK_AGAIN }, attempts_max: None };
    // No restart guard is needed: no other client uses the servers, and they stay down for longer than the ttl.
    Client::builder()
        .options(LockOptions::new().ttl(TTL).retry(retry))
        .max_ttl(TTL)
        .restart_guard(RestartGuard::Off)
}
