//! Locks that outlive a process, on real servers: leases, and locks with a value of the caller.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod attachers;
#[path = "../common/mod.rs"]
mod common;
mod handover;
mod hazards;
mod processes;
mod refused;
mod values;

use std::time::Duration;

use quorlock::{AcquireError, Client, ClientBuilder, Guard, Lease, LeaseError, LockOptions, Taken};
use quorlock_servers::proxy::Proxy;
use quorlock_servers::{Reply, Server};

use crate::common::{all_up, calls, eventually, get, run, unguarded};

/// A ttl that does not end during a test.
const LONG: Duration = Duration::from_secs(120);

/// A client that accepts ttls up to twice [`LONG`].
fn builder(nodes: &[Server]) -> ClientBuilder {
    common::builder(nodes).max_ttl(LONG * 2)
}

/// A client that is connected to all nodes.
async fn client(nodes: &[Server]) -> Client {
    let client = builder(nodes).build().unwrap();
    all_up(&client).await;
    client
}

fn long() -> LockOptions {
    LockOptions::new().ttl(LONG)
}

/// Returns the lease that another process would read from the text of this lease.
fn reread(lease: &Lease) -> Lease {
    let text = lease.to_string();
    assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text:?}");
    let reread = text.parse().unwrap();
    assert_eq!(*lease, reread);
    reread
}

/// A lease with the votes of all nodes.
async fn lease_on_all(nodes: &[Server], guard: Guard) -> Lease {
    eventually("all nodes have given their votes", || guard.votes() == nodes.len()).await;
    reread(&guard.detach().await.unwrap())
}

/// Number of commands that the calls of this client have sent.
fn sent(client: &Client) -> u64 {
    client.stats().nodes.iter().map(|node| node.commands).sum()
}

fn key_is(nodes: &[Server], key: &str, value: Option<&str>) -> bool {
    nodes.iter().all(|node| get(node, key).as_deref() == value)
}

/// Sets another client's value under the key on each node, so that the nodes refuse the lock.
fn block(nodes: &[Server], key: &str) {
    nodes.iter().for_each(|node| drop(run(node, &["SET", key, "blocked"])));
}

fn unblock(nodes: &[Server], key: &str) {
    nodes.iter().for_each(|node| assert_eq!(run(node, &["DEL", key]), Reply::Int(1)));
}

/// Takes the lock on "k" with the votes of three of five nodes. On the other two nodes, the key is absent afterwards.
async fn take_three(client: &Client, nodes: &[Server], value: &str) -> Taken {
    let (held, free) = nodes.split_at(3);
    block(free, "k");
    let scripts = |node| calls(node, "evalsha") + calls(node, "eval");
    let takes = || free.iter().map(scripts).sum::<u64>();
    let before = takes();
    let taken = client.take("k", value, LONG).await.unwrap();
    eventually("three nodes have voted", || key_is(held, "k", Some(value))).await;
    eventually("the others have refused", || takes() == before + 2).await;
    unblock(free, "k");
    taken
}

/// A proxy before each node.
async fn proxies(nodes: &[Server]) -> Vec<Proxy> {
    let mut proxies = Vec::new();
    for node in nodes {
        proxies.push(Proxy::start(node).await.unwrap());
    }
    proxies
}

/// Gives each URL the name of its node. The names are equal with and without proxies, so each client accepts the leases
/// of the other clients.
fn named(urls: impl IntoIterator<Item = String>) -> Vec<String> {
    urls.into_iter().enumerate().map(|(place, url)| format!("n{place}={url}")).collect()
}

/// A client of nodes behind proxies, or of the same nodes without proxies.
fn proxied_client(urls: impl IntoIterator<Item = String>) -> Client {
    proxied(urls).build().unwrap()
}

/// As [`proxied_client`], but waits long for a node's answer.
fn patient_client(urls: impl IntoIterator<Item = String>) -> Client {
    proxied(urls).options(long().node_timeout(LONG / 4)).build().unwrap()
}

fn proxied(urls: impl IntoIterator<Item = String>) -> ClientBuilder {
    let builder = unguarded().nodes(named(urls)).max_ttl(LONG * 2);
    builder.connect_timeout(Duration::from_secs(10))
}

fn lease_error(error: AcquireError) -> LeaseError {
    match error {
        AcquireError::Lease(error) => error,
        other => panic!("no error of the lease: {other}"),
    }
}
