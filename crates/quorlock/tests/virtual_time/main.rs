//! What depends on time, in virtual time: exact, and in no time at all.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod calling;
mod health;
mod holding;
mod releasing;
mod slow;

use std::time::Duration;

use quorlock::node::MemoryNode;
use quorlock::{Client, ClientBuilder, Clock};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// The default ttl.
const TTL: Duration = Duration::from_secs(10);

/// For how long the holder of a lock may rely on it: the margin of 2 % is no part of that.
const HELD_FOR: Duration = Duration::from_millis(10_000 - 102 - 200);

/// tokio's timers are good to a millisecond.
const TICK: Duration = Duration::from_millis(2);

fn nodes<const N: usize>() -> [MemoryNode; N] {
    std::array::from_fn(|place| MemoryNode::new(&format!("n{place}")))
}

fn builder(nodes: &[MemoryNode]) -> ClientBuilder {
    Client::builder().custom_nodes(nodes.to_vec()).clock(Clock::Tokio)
}

fn client(nodes: &[MemoryNode]) -> Client {
    builder(nodes).build().unwrap()
}

fn total_keys(nodes: &[MemoryNode]) -> usize {
    nodes.iter().map(MemoryNode::key_count).sum()
}

/// Whether `elapsed` is `expected`, give or take what timers do.
#[track_caller]
fn assert_took(elapsed: Duration, expected: Duration) {
    assert!(elapsed >= expected && elapsed <= expected + TICK, "{elapsed:?}, not {expected:?}");
}
