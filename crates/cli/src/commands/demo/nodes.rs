//! The five nodes, which are servers or nodes in memory, and the faults.

use std::error::Error;
use std::ops::Range;
use std::time::Duration;

use quorlock::node::MemoryNode;
use quorlock::{Client, ClientBuilder, Delay, LockOptions, RestartGuard, Retry};
use quorlock_servers::{Nodes, NotFound, ServerBinary, ServerOptions, find};

use super::TTL;
use crate::exit_code::ExitCode;
use crate::options::Refused;

pub(super) const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// The longest delay between two attempts of a waiting client. It is shorter than the default, because the workers hold
/// the lock only for milliseconds.
const RETRY_CEILING: Duration = Duration::from_millis(30);

/// Five independent nodes. Dropping them ends the servers and removes their folders.
pub(super) enum FiveNodes {
    Servers(ServerBinary, Nodes),
    /// Nodes in memory, and the reason why the demo has no servers.
    Memory([MemoryNode; 5], String),
}

/// The last fault or repair of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Continued by SIGCONT, or never changed.
    Up,
    /// Stopped by SIGSTOP: the node accepts commands and does not answer.
    Frozen,
    /// Ended by `kill -9`: the node loses all of its data.
    Killed,
    /// Started again after its end, empty, at the same address.
    Restarted,
}

impl FiveNodes {
    pub(super) fn start() -> Result<Self, Refused> {
        let binary = match find() {
            Ok(binary) => binary,
            Err(help @ NotFound::Nowhere) => {
                return Ok(Self::Memory(NAMES.map(MemoryNode::new), help.to_string()));
            }
            // The user has named a server, so the demo does not use nodes in memory instead.
            Err(help) => return Err(Refused::config(help.to_string())),
        };
        let servers = Nodes::start(&binary, NAMES.len(), ServerOptions::default());
        let servers = servers.map_err(|error| Refused {
            message: format!("the demo's servers do not start: {error}"),
            code: ExitCode::NoQuorum,
        })?;
        Ok(Self::Servers(binary, servers))
    }

    /// The servers as `NAME=URL`; empty for nodes in memory.
    pub(super) fn urls(&self) -> Vec<String> {
        let Self::Servers(_, servers) = self else { return Vec::new() };
        let named = NAMES.iter().zip(servers.urls());
        named.map(|(name, url)| format!("{name}={url}")).collect()
    }

    /// The cause `means` of a fault, in parentheses. A node in memory only behaves as if it had this cause.
    pub(super) fn by(&self, means: &str) -> String {
        match self {
            Self::Servers(..) => format!("({means})"),
            Self::Memory(..) => format!("(as if by {means})"),
        }
    }

    pub(super) fn client(&self, places: Range<usize>) -> ClientBuilder {
        match self {
            Self::Servers(..) => settings().nodes(&self.urls()[places]),
            Self::Memory(nodes, _) => settings().custom_nodes(nodes[places].to_vec()),
        }
    }

    pub(super) fn change(&self, place: usize, fate: Fate) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Servers(_, servers) => match fate {
                Fate::Up => servers[place].resume()?,
                Fate::Frozen => servers[place].pause()?,
                Fate::Killed => servers[place].kill()?,
                Fate::Restarted => servers[place].restart()?,
            },
            Self::Memory(nodes, _) => match fate {
                Fate::Up => nodes[place].thaw(),
                Fate::Frozen => nodes[place].freeze(),
                Fate::Killed => nodes[place].stop(),
                Fate::Restarted => nodes[place].start(),
            },
        }
        Ok(())
    }
}

/// The settings that all clients of the demo share.
pub(super) fn settings() -> ClientBuilder {
    let retry = Retry { delay: Delay::Adaptive { ceiling: RETRY_CEILING }, attempts_max: None };
    // No restart guard is needed: no other client uses the servers, and they stay down for longer than the ttl.
    Client::builder()
        .options(LockOptions::new().ttl(TTL).retry(retry))
        .max_ttl(TTL)
        .restart_guard(RestartGuard::Off)
}
