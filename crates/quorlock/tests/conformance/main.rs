//! Every implementation of `Node` in the crate passes the conformance suite.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

#[path = "../common/mod.rs"]
mod common;
mod differential;
mod past;
mod rights;
mod texts;

use std::time::Duration;

use quorlock::node::conformance;
use quorlock::node::{MemoryNode, NodeConfig, RedisNode};
use quorlock_servers::{Listen, Server, ServerBinary, ServerOptions};

use self::past::Past;

#[tokio::test(start_paused = true)]
async fn the_memory_node_passes_the_conformance_suite() {
    let node = MemoryNode::new("memory");
    conformance::all(node.clone(), node.clone()).await;
    assert_eq!(node.key_count(), 0, "the suite leaves nothing behind");
}

/// One test covers all servers, because the list of installed servers is known only at run time. The message of a
/// failure names the server.
#[tokio::test]
async fn the_redis_node_passes_the_conformance_suite_on_every_server() {
    let servers = common::all_servers();
    for binary in servers {
        for listen in [Listen::UnixSocket, Listen::Tcp] {
            eprintln!("{binary}, {listen:?}");
            keeps_the_contract(&binary, listen).await;
        }
    }
}

async fn keeps_the_contract(binary: &ServerBinary, listen: Listen) {
    let options = ServerOptions { listen, ..ServerOptions::default() };
    let server = Server::start(binary, options).unwrap();
    let node = node(&server.url());
    conformance::all(node, Past::new(server)).await;
}

fn node(url: &str) -> RedisNode {
    let config = NodeConfig::parse(url).unwrap();
    // A busy machine must not look like a silent node.
    let silence = Duration::from_secs(60);
    RedisNode::new(config, Duration::from_secs(10), silence).unwrap()
}
