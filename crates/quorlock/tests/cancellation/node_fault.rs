//! What the nodes are like while a future is polled and dropped.

use std::time::Duration;

use quorlock::node::FailureKind;

use crate::journal::Recorded;
use crate::scene::{RESOURCE, TTL};

/// What the nodes are like. Each mood comes to an end, or there would be no telling whether what was
/// taken has been given back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum NodeFault {
    Healthy,
    /// They take everything and answer nothing, and then answer again.
    Silent,
    /// From the moment of the drop on.
    SilentSinceTheDrop,
    /// For longer than a key lives.
    SilentForLong,
    /// One of them alone.
    OneSilent,
    /// Somebody else's key is there.
    Refusing,
    /// On one of them alone.
    OneRefusing,
    /// Connections break under all that is sent.
    Failing,
    /// From the moment of the drop on.
    FailingSinceTheDrop,
    /// Killed, and started again without their data.
    Down,
}

/// The value of somebody else's key.
pub(crate) const FOREIGN: &str = "somebody else";

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

    /// Before the first poll.
    pub(crate) fn begin(self, nodes: &[Recorded]) {
        match self {
            Self::Healthy | Self::SilentSinceTheDrop | Self::FailingSinceTheDrop => {}
            Self::Silent | Self::SilentForLong => nodes.iter().for_each(|node| node.node.freeze()),
            Self::OneSilent => nodes[0].node.freeze(),
            Self::Refusing => nodes.iter().for_each(refuse),
            Self::OneRefusing => refuse(&nodes[0]),
            Self::Failing => nodes.iter().for_each(fail),
            Self::Down => nodes.iter().for_each(|node| node.node.stop()),
        }
    }

    /// Right before the drop.
    pub(crate) fn begin_at_drop(self, nodes: &[Recorded]) {
        match self {
            Self::SilentSinceTheDrop => nodes.iter().for_each(|node| node.node.freeze()),
            Self::FailingSinceTheDrop => nodes.iter().for_each(fail),
            _ => {}
        }
    }

    /// How long the mood lasts after the drop.
    pub(crate) fn lasts(self) -> Duration {
        match self {
            Self::SilentForLong => TTL + TTL / 10,
            // Soon enough for what is owed to be sent again before it has expired.
            Self::Failing | Self::FailingSinceTheDrop => TTL / 20,
            _ => TTL / 4,
        }
    }

    /// The nodes are well again. What the others have put there stays.
    pub(crate) fn end(self, nodes: &[Recorded]) {
        for node in nodes {
            node.node.thaw();
            node.node.recover();
            node.node.start();
        }
    }

    /// How long after its end no key may be left. A node that is silent no more is sent the releases
    /// that it has not seen yet, right behind the acquires; one that failed is tried now and then.
    pub(crate) fn keys_are_gone_after(self) -> Duration {
        match self {
            // By then it is tried less and less often.
            Self::Failing => TTL,
            Self::FailingSinceTheDrop => TTL / 4,
            _ => TTL / 10,
        }
    }

    /// Whether nodes lose votes that they gave: then a guard may end before its time.
    pub(crate) fn loses_votes(self) -> bool {
        matches!(self, Self::Refusing | Self::OneRefusing | Self::Down)
    }

    /// What must be left in the end: what is not ours, untouched; it is taken away now.
    pub(crate) fn take_foreign_keys(self, nodes: &[Recorded]) {
        let place_count = match self {
            Self::Refusing => nodes.len(),
            Self::OneRefusing => 1,
            _ => 0,
        };
        for node in &nodes[..place_count] {
            assert_eq!(node.node.value_of(RESOURCE), Some(FOREIGN.into()), "it was not ours");
            node.node.remove(RESOURCE);
        }
    }
}

fn refuse(node: &Recorded) {
    node.node.insert(RESOURCE, FOREIGN, None);
}

fn fail(node: &Recorded) {
    node.node.fail_with(FailureKind::Unreachable);
}
