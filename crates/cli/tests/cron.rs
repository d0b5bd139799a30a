//! Calls without a wait, as a cron job makes them, take new nodes into use. The first call begins the quarantine, in
//! which the nodes do not vote, and fails. The first call after the quarantine gets its lock.

mod common;

use std::process::Output;

use common::{Testbed, code, command, eventually, info, stderr, stdout};
use quorlock_servers::{Reply, Server};

/// Quarantine for the largest ttl of 4 s, in milliseconds: the ttl, 1 % of it, and 2 s.
const QUARANTINE_MS: i64 = 6_040;

/// The ttl of `quorlock:adopt`, the key that begins a node's quarantine. Its remaining ttl shows the quarantine's age.
const ADOPTION_MS: i64 = 2 * 86_400_000;

#[test]
fn the_first_call_after_the_quarantine_gets_its_lock() {
    let Some(testbed) = Testbed::new() else { return };
    takes_new_nodes_into_use(&testbed, &testbed.nodes);
}

#[test]
fn the_first_call_after_the_quarantine_gets_its_lock_with_a_minority_down() {
    let Some(testbed) = Testbed::new() else { return };
    testbed.nodes[..2].iter().for_each(|node| node.kill().expect("it runs"));
    takes_new_nodes_into_use(&testbed, &testbed.nodes[2..]);
}

fn takes_new_nodes_into_use(testbed: &Testbed, nodes: &[Server]) {
    let call = || -> Output {
        let mut run = testbed.quorlock(&["run", "k", "--wait", "0s", "--", "echo", "ran"]);
        run.env("QUORLOCK_RESTART_GUARD", "strict").env("QUORLOCK_MAX_TTL", "4s");
        // The node timeout is the largest that is allowed, because a busy machine may answer slowly.
        run.env("QUORLOCK_NODE_TIMEOUT", "1s").output().expect("quorlock starts")
    };
    let refused = call();
    code(&refused, 69);
    assert!(stderr(&refused).contains("its votes count in 7 s"), "{}", stderr(&refused));
    let age_ms = |node: &Server| match command(node, &["PTTL", "quorlock:adopt"]) {
        Reply::Int(left) if left >= 0 => ADOPTION_MS - left,
        reply => panic!("no adoption has begun: {reply:?}"),
    };
    let uptime_s = |node: &Server| -> u64 {
        let uptime = info(node, "server", "uptime_in_seconds:").expect("an uptime");
        uptime.parse().expect("a number")
    };
    for node in nodes {
        eventually("the quarantine is over", || (age_ms(node) > QUARANTINE_MS).then_some(()));
        // The quarantine is 6.04 s, and an uptime is rounded down to seconds. So only 7 s prove that it is over.
        eventually("the server is old enough", || (uptime_s(node) >= 7).then_some(()));
    }
    let ran = call();
    code(&ran, 0);
    assert_eq!(stdout(&ran), "ran\n");
    for node in nodes {
        assert_eq!(command(node, &["EXISTS", "quorlock:node"]), Reply::Int(1), "the node votes");
    }
}
