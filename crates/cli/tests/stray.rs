//! A command with a wrong list of nodes begins to take a node of a cluster into use. The cluster goes on.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::process::Command;
use std::thread;
use std::time::Duration;

use common::{Testbed, code, command, get, quorlock, server, stderr};
use quorlock_servers::proxy::{Distance, Proxy};
use quorlock_servers::{Nodes, ServerBinary, ServerOptions};
use tokio::runtime::Runtime;

const ADOPTION: &str = "quorlock:adopt";

/// How the node came to be without its data.
#[derive(Clone, Copy, Debug)]
enum Node {
    Fresh,
    Restarted,
    Flushed,
}

/// The round trips to the node and to the others, in milliseconds. If the node answers first, every command hears of the
/// other list before its lock is granted.
const DISTANCES: [(u64, u64); 3] = [(0, 0), (60, 60), (0, 60)];

/// `quorlock` with the restart guard and these nodes.
fn with(nodes: &str, args: &[&str]) -> Command {
    let mut quorlock = quorlock(args);
    quorlock.env("QUORLOCK_NODES", nodes).env("QUORLOCK_RESTART_GUARD", "strict");
    quorlock
}

fn a_stray_command_stops_nothing(binary: &ServerBinary, size: usize, state: Node) {
    let runtime = Runtime::new().unwrap();
    let bed = Testbed::of(Nodes::start(binary, size, ServerOptions::default()).unwrap());
    let (all, node) = (bed.named(0..size), &bed.nodes[1]);
    if matches!(state, Node::Fresh) {
        node.kill().unwrap();
    }
    code(&with(&all, &["init", "--fresh", "--yes"]).output().unwrap(), 0);
    for (near, far) in DISTANCES {
        let what = format!("{size} nodes, the second one {state:?}, at {near} and {far} ms");
        match state {
            Node::Fresh | Node::Restarted => node.restart().unwrap(),
            Node::Flushed => drop(command(node, &["FLUSHALL"])),
        }
        let stray = || {
            let output = with(&node.url(), &["run", "hi", "--wait", "1s", "--", "true"]).output();
            let output = output.unwrap();
            code(&output, 69);
            stderr(&output)
        };
        let told = stray();
        assert!(told.contains("quarantined"), "{what}: {told}");
        assert!(told.contains("if this node is one of several, the list is wrong"), "{told}");
        // The next command of the cluster takes the node back, so doctor only warns.
        let output = with(&all, &["doctor"]).output().unwrap();
        let found = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{what}: {found}");
        assert!(found.contains("takes it back, and its votes count"), "{what}: {found}");
        assert!(!found.contains("init --reconfigure"), "{what}: {found}");
        assert!(get(node, ADOPTION).unwrap().contains(" quorum=1 "), "{what}");
        let proxies = bed.nodes.iter().enumerate().map(|(place, server)| {
            let proxy = runtime.block_on(Proxy::start(server)).unwrap();
            let millis = if place == 1 { near } else { far };
            proxy.set_distance(Distance::of_round_trip(Duration::from_millis(millis)));
            proxy
        });
        let proxies: Vec<Proxy> = proxies.collect();
        let names = ["a", "b", "c", "d", "e"].iter().zip(&proxies);
        let far: Vec<_> = names.map(|(name, proxy)| format!("{name}={}", proxy.url())).collect();
        for wait in ["0s", "10s", "0s"] {
            let args = ["run", "job", "--wait", wait, "--", "true"];
            let output = with(&far.join(","), &args).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{what}: {}", stderr(&output));
        }
        let ours = get(node, ADOPTION).unwrap();
        assert!(!ours.contains(" quorum=1 "), "{what}: {ours}");
        // The other list is refused now, and changes nothing.
        let told = stray();
        assert!(told.contains("another configuration"), "{what}: {told}");
        assert_eq!(get(node, ADOPTION), Some(ours), "{what}");
    }
}

#[test]
fn a_command_with_one_node_of_a_cluster_does_not_stop_the_cluster() {
    let Some(binary) = server() else { return };
    thread::scope(|scope| {
        for size in [3, 5] {
            for state in [Node::Fresh, Node::Restarted, Node::Flushed] {
                let binary = &binary;
                scope.spawn(move || a_stray_command_stops_nothing(binary, size, state));
            }
        }
    });
}
