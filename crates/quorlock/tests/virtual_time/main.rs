//! Tests of timing in virtual time, where each moment is exact.

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

const TTL: Duration = Duration::from_secs(10);

/// The tolerance of [`assert_took`]: timers of tokio have a resolution of one millisecond.
const TICK: Duration = Duration::from_millis(2);

fn nodes<const N: usize>() -> [MemoryNode; N] {
    std::array::from_fn(|place| MemoryNode::new(&format!("n{place}")))
}

fn builder(nodes: &[MemoryNode]) -> ClientBuilder {
    Client::builder().memory_nodes(nodes.to_vec()).clock(Clock::Tokio)
}

fn client(nodes: &[MemoryNode]) -> Client {
    builder(nodes).build().unwrap()
}

fn total_keys(nodes: &[MemoryNode]) -> usize {
    nodes.iter().map(MemoryNode::key_count).sum()
}

/// Asserts that `elapsed` is `expected`, within the resolution of the timers.
#[track_caller]
fn assert_took(elapsed: Duration, expected: Duration) {
    assert!(elapsed >= expected && elapsed <= expected + TICK, "{elapsed:?}, not {expected:?}");
}
