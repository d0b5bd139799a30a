//! The commands mean the same on every server and on `MemoryNode`.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

#[path = "../common/mod.rs"]
mod common;
mod differential;
mod past;
mod rights;
mod subject;
mod suite;
mod texts;

use std::time::Duration;

use quorlock::admin::{ClientNode, Topology};
use quorlock::node::MemoryNode;
use quorlock::{Client, LockOptions};
use quorlock_servers::{Listen, Server, ServerOptions};

use self::past::Past;
use self::subject::Subject;

#[tokio::test(start_paused = true)]
async fn every_command_has_its_meaning_on_a_memory_node() {
    let node = MemoryNode::new("memory");
    suite::all(Subject::new(&ClientNode::Memory(node.clone()), node.clone())).await;
    assert_eq!(node.key_count(), 0, "the suite leaves nothing behind");
}

/// One test covers all servers, because the list of installed servers is known only at run time. The message of a
/// failure names the server.
#[tokio::test]
async fn every_command_has_its_meaning_on_every_server() {
    let servers = common::all_servers();
    for binary in servers {
        for listen in [Listen::UnixSocket, Listen::Tcp] {
            eprintln!("{binary}, {listen:?}");
            let options = ServerOptions { listen, ..ServerOptions::default() };
            let server = Server::start(&binary, options).unwrap();
            suite::all(Subject::new(&node(&server.url()), Past::new(server))).await;
        }
    }
}

fn node(url: &str) -> ClientNode {
    // A busy machine must not look like a silent node: these times suspend it after a minute.
    let [ttl, node_timeout] = [80, 20].map(Duration::from_secs);
    let options = LockOptions::new().ttl(ttl).node_timeout(node_timeout);
    let builder = Client::builder().nodes([url]).options(options).max_ttl(ttl);
    let topology = Topology::of(&builder.connect_timeout(ttl / 8)).unwrap();
    ClientNode::Server(topology.servers[0].clone())
}
