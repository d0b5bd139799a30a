//! Calls that wait for nothing, as a cron job makes them, take new nodes into use all by themselves: one
//! begins, and the first that comes when the wait is over has its lock.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::process::Output;

use common::{Testbed, eventually, stderr, stdout};
use quorlock_servers::Reply;

/// 4 s × 1.01 + 2 s, in milliseconds.
const QUARANTINE_MS: i64 = 6_040;

/// For how long a node's adoption lives.
const ADOPTION_MS: i64 = 2 * 86_400_000;

#[test]
fn the_first_call_after_the_wait_has_its_lock() {
    let Some(testbed) = Testbed::new("the_first_call_after_the_wait_has_its_lock") else { return };
    takes_new_nodes_into_use(&testbed, &testbed.nodes);
}

/// A minority is down all the while.
#[test]
fn the_first_call_after_the_wait_has_its_lock_although_nodes_are_dead() {
    let name = "the_first_call_after_the_wait_has_its_lock_although_nodes_are_dead";
    let Some(testbed) = Testbed::new(name) else { return };
    testbed.nodes[..2].iter().for_each(|node| node.kill().unwrap());
    takes_new_nodes_into_use(&testbed, &testbed.nodes[2..]);
}

fn takes_new_nodes_into_use(testbed: &Testbed, nodes: &[quorlock_servers::Server]) {
    let call = || -> Output {
        let mut command = testbed.quorlock(&["run", "k", "--wait", "0s", "--", "echo", "ran"]);
        command.env("QUORLOCK_RESTART_GUARD", "strict").env("QUORLOCK_MAX_TTL", "4s");
        // As much as is allowed, for a machine that is busy.
        command.env("QUORLOCK_NODE_TIMEOUT", "1s").output().unwrap()
    };
    let refused = call();
    assert_eq!(refused.status.code(), Some(69), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("its votes count in 7 s"), "{}", stderr(&refused));
    let age_ms = |node: &quorlock_servers::Server| match node.command(&["PTTL", "quorlock:adopt"]) {
        Ok(Reply::Int(left)) if left >= 0 => ADOPTION_MS - left,
        reply => panic!("no adoption has been begun: {reply:?}"),
    };
    let uptime_s = |node: &quorlock_servers::Server| -> u64 {
        let Ok(Reply::Bulk(Some(info))) = node.command(&["INFO", "server"]) else {
            panic!("no INFO")
        };
        let info = String::from_utf8(info).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        line.unwrap().trim().parse().unwrap()
    };
    // One call has begun it on every node.
    for node in nodes {
        eventually("the wait is over", || (age_ms(node) > QUARANTINE_MS).then_some(()));
        // It has been running for as long; that is told in whole seconds.
        eventually("the server is old enough", || (uptime_s(node) >= 7).then_some(()));
    }
    let ran = call();
    assert_eq!((ran.status.code(), &*stdout(&ran)), (Some(0), "ran\n"), "{}", stderr(&ran));
    for node in nodes {
        let marker = node.command(&["EXISTS", "quorlock:node"]);
        assert_eq!(marker.unwrap(), Reply::Int(1), "all of them vote from now on");
    }
}
