//! A custom node that wraps a server. It receives batches from the client, and must behave like the server alone.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::time::Duration;

use common::{NODE_TIMEOUT, PATIENCE, PATIENT, eventually, five, get, run, unguarded};
use quorlock::node::{Answers, Batch, BoxFuture, Node, NodeConfig, NodeState, PushSink, RedisNode};
use quorlock::{Client, LockOptions, Outcome};
use quorlock_servers::Server;
use tokio::sync::mpsc;

#[derive(Debug)]
struct Wrapped(RedisNode);

impl Wrapped {
    fn of(server: &Server) -> Self {
        let config = NodeConfig::parse(&server.url()).unwrap();
        Self(RedisNode::new(config, PATIENCE, 3 * NODE_TIMEOUT).unwrap())
    }
}

impl Node for Wrapped {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn state(&self) -> NodeState {
        self.0.state()
    }

    fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
        self.0.execute(batch)
    }

    fn background(&self, push_sink: PushSink) -> BoxFuture<()> {
        self.0.background(push_sink)
    }
}

fn wrapping(nodes: &[Server]) -> Client {
    unguarded().custom_nodes(nodes.iter().map(Wrapped::of)).options(PATIENT).build().unwrap()
}

#[tokio::test]
async fn a_wrapped_server_behaves_like_a_server() {
    let Some(nodes) = five() else { return };
    let client = wrapping(&nodes);
    let guard = client.acquire_fenced("orders").await.unwrap();
    eventually("all vote", || guard.votes() == 5).await;
    for node in &nodes {
        // The server forgets its scripts, and the client sends them again.
        run(node, &["SCRIPT", "FLUSH"]);
    }
    guard.extend().await.unwrap();
    assert_eq!(guard.release().await.outcome, Outcome::Released);

    // A waiting call is woken when the lock becomes free, long before the keys expire.
    for node in &nodes {
        run(node, &["SET", "orders", "another's", "PX", "20000"]);
    }
    let (progress, mut waits) = mpsc::channel(1);
    let call = client
        .acquire("orders")
        .options(LockOptions::new().wait(Duration::from_secs(10)))
        .progress(progress);
    let call = tokio::spawn(call.into_future());
    waits.recv().await.unwrap();
    for node in &nodes {
        run(node, &["DEL", "orders"]);
    }
    assert_eq!(call.await.unwrap().unwrap().release().await.outcome, Outcome::Released);

    // The client's node reconnects after its server was killed and started again.
    nodes[0].kill().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    assert_eq!(guard.release().await.outcome, Outcome::Released);
    nodes[0].restart().unwrap();
    eventually("it is back", || client.stats().nodes[0].state == NodeState::Up).await;
    client.shutdown(PATIENCE).await.unwrap();
    eventually("nothing is left", || nodes.iter().all(|node| get(node, "orders").is_none())).await;
}

#[test]
fn a_node_with_replicas_cannot_be_wrapped() {
    let config = NodeConfig::parse("redis://127.0.0.1:1").unwrap();
    let new = |config| RedisNode::new(config, PATIENCE, NODE_TIMEOUT);
    assert!(new(config.clone()).is_ok());
    let in_the_url = NodeConfig::parse("redis://127.0.0.1:1?replicas=1").unwrap();
    for config in [in_the_url, config.replicas(1)] {
        let error = new(config).unwrap_err().to_string();
        let said =
            "\"127.0.0.1:1\": a node with replicas cannot be wrapped; use ClientBuilder::node";
        assert!(error.contains(said), "{error}");
    }
}
