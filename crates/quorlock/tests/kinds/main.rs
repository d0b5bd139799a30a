//! Locks with several keys and locks that readers share, within a process and between clients, on nodes in memory and
//! on servers.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

#[path = "../common/mod.rs"]
mod common;
mod several;
mod shared;

use std::time::Duration;

use quorlock::node::MemoryNode;
use quorlock::{AcquireError, Client, Guard};

const PATIENCE: Duration = Duration::from_secs(30);

/// Three nodes in memory and two clients, as in two processes.
fn two_clients() -> (Vec<MemoryNode>, Client, Client) {
    let nodes: Vec<MemoryNode> = ["a", "b", "c"].map(MemoryNode::new).into();
    let client = || Client::builder().memory_nodes(nodes.clone()).build().unwrap();
    let (one, other) = (client(), client());
    (nodes, one, other)
}

/// Whether an attempt was refused because another client holds the lock.
fn is_held(tried: &Result<Guard, AcquireError>) -> bool {
    tried.as_ref().is_err_and(AcquireError::is_contended)
}

async fn give_back(guard: Guard) {
    let _ = guard.release().await;
}
