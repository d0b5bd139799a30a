//! The five nodes in memory, and the faults.

use std::ops::Range;
use std::time::Duration;

use quorlock::node::MemoryNode;
use quorlock::{Client, ClientBuilder, Delay, LockOptions, Retry};

use super::TTL;

pub(super) const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// The longest delay between two attempts of a waiting client. It is shorter than the default, because the workers hold
/// the lock only for milliseconds.
const RETRY_CEILING: Duration = Duration::from_millis(30);

/// Five independent nodes.
pub(super) struct FiveNodes([MemoryNode; 5]);

/// The last fault or repair of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Continued, or never changed.
    Up,
    /// The node accepts commands and does not answer, like a server after SIGSTOP.
    Frozen,
    /// The node loses all of its data, like a server without persistence after `kill -9`.
    Killed,
    /// Started again after its end, empty.
    Restarted,
}

impl FiveNodes {
    pub(super) fn new() -> Self {
        Self(NAMES.map(MemoryNode::new))
    }

    /// A client of some of the nodes, with the settings that all clients of the demo share.
    pub(super) fn client(&self, places: Range<usize>) -> ClientBuilder {
        let retry = Retry { delay: Delay::Adaptive { ceiling: RETRY_CEILING }, attempts_max: None };
        let options = LockOptions::new().ttl(TTL).retry(retry);
        Client::builder().options(options).memory_nodes(self.0[places].to_vec())
    }

    pub(super) fn change(&self, place: usize, fate: Fate) {
        let node = &self.0[place];
        match fate {
            Fate::Up => node.thaw(),
            Fate::Frozen => node.freeze(),
            Fate::Killed => node.stop(),
            Fate::Restarted => node.start(),
        }
    }
}
