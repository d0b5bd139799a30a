//! The faults of the nodes while a future is polled and dropped.

use std::time::Duration;

use quorlock::node::{FailureKind, MemoryNode};

use crate::scene::{NONCE, RESOURCE, TTL};

/// A fault of the nodes. Each fault ends, so that the test can check that all keys are released.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum NodeFault {
    Healthy,
    /// The nodes execute every command, do not answer for a while, and then answer.
    Silent,
    /// Like `Silent`, but the fault begins when the future is dropped.
    SilentSinceTheDrop,
    /// Like `Silent`, but for longer than the ttl.
    SilentForLong,
    OneSilent,
    /// Another client's key is on the nodes.
    Refusing,
    /// Another client's key is on one node.
    OneRefusing,
    /// Connections break with every command that is sent.
    Failing,
    /// Like `Failing`, but the fault begins when the future is dropped.
    FailingSinceTheDrop,
    /// The nodes are killed, and restarted without their data.
    Down,
}

pub(crate) const FOREIGN: &str = "another client";

impl NodeFault {
    pub(crate) const ALL: &[Self; 10] = &[
        Self::Healthy,
        Self::Silent,
        Self::SilentSinceTheDrop,
        Self::SilentForLong,
        Self::OneSilent,
        Self::Refusing,
        Self::OneRefusing,
        Self::Failing,
        Self::FailingSinceTheDrop,
        Self::Down,
    ];

    /// Starts the fault before the first poll.
    pub(crate) fn begin(self, nodes: &[MemoryNode]) {
        match self {
            Self::Healthy | Self::SilentSinceTheDrop | Self::FailingSinceTheDrop => {}
            Self::Silent | Self::SilentForLong => nodes.iter().for_each(MemoryNode::freeze),
            Self::OneSilent => nodes[0].freeze(),
            Self::Refusing => nodes.iter().for_each(refuse),
            Self::OneRefusing => refuse(&nodes[0]),
            Self::Failing => nodes.iter().for_each(fail),
            Self::Down => nodes.iter().for_each(MemoryNode::stop),
        }
    }

    /// Starts the fault right before the drop.
    pub(crate) fn begin_at_drop(self, nodes: &[MemoryNode]) {
        match self {
            Self::SilentSinceTheDrop => nodes.iter().for_each(MemoryNode::freeze),
            Self::FailingSinceTheDrop => nodes.iter().for_each(fail),
            _ => {}
        }
    }

    pub(crate) fn lasts(self) -> Duration {
        match self {
            Self::SilentForLong => TTL + TTL / 10,
            // These faults are short, so that the client can send failed releases again before the keys expire.
            Self::Failing | Self::FailingSinceTheDrop => TTL / 20,
            _ => TTL / 4,
        }
    }

    /// Heals the nodes. The keys of other clients stay.
    pub(crate) fn end(self, nodes: &[MemoryNode]) {
        for node in nodes {
            node.thaw();
            node.recover();
            node.start();
        }
    }

    /// The time after the end of the fault within which all keys must be gone. A node that was silent receives the
    /// outstanding releases right after their acquires. A node that failed is retried with a back-off.
    pub(crate) fn keys_are_gone_after(self) -> Duration {
        match self {
            // This fault begins before the drop, so the back-off has grown further than with `FailingSinceTheDrop`.
            Self::Failing => TTL,
            Self::FailingSinceTheDrop => TTL / 4,
            _ => TTL / 10,
        }
    }

    /// Whether the fault makes nodes lose votes. Then a guard may end early.
    pub(crate) fn loses_votes(self) -> bool {
        matches!(self, Self::Refusing | Self::OneRefusing | Self::Down)
    }

    /// Checks that the other client's keys are unchanged, and removes them.
    pub(crate) fn take_foreign_keys(self, nodes: &[MemoryNode]) {
        let place_count = match self {
            Self::Refusing => nodes.len(),
            Self::OneRefusing => 1,
            _ => 0,
        };
        for node in &nodes[..place_count] {
            assert_eq!(
                node.value_of(RESOURCE),
                Some(FOREIGN.into()),
                "another client's key was changed"
            );
            node.remove(RESOURCE);
        }
    }
}

fn refuse(node: &MemoryNode) {
    node.insert(RESOURCE, FOREIGN, None);
    node.remove(NONCE);
}

fn fail(node: &MemoryNode) {
    node.fail_with(FailureKind::Unreachable);
}
