//! Dead within.

use std::fs;

use crate::common::{Running, Testbed, stderr, unix_ms};
use crate::{
    IN_ANOTHER_GROUP, PLAIN, TTL, first, lost_because, second, testbed, they_do_not_overlap, times,
    written_within_the_validity,
};

/// After the next extension, a third of the ttl away, and max(5 % of ttl, 50 ms); beside that a node
/// timeout of at most 50 ms, and what a busy machine takes: far below what the lock had left.
fn dead_soon_after(testbed: &Testbed, first: Running, at_ms: u64, cause: &str) {
    let output = first.end();
    lost_because(&output, cause);
    let last = times(testbed, "first").last().unwrap() / 1_000_000;
    let bound = 6000 / 3 + 300 + 50;
    assert!(last <= at_ms + bound + 1000, "{} ms", last - at_ms);
}

#[test]
fn a_majority_of_the_keys_is_deleted() {
    for command in [PLAIN, IN_ANOTHER_GROUP] {
        let Some(testbed) = testbed("a_majority_of_the_keys_is_deleted") else { return };
        let first = first(&testbed, "6s", command);
        for node in &testbed.nodes[..2] {
            node.command(&["DEL", "k"]).unwrap();
        }
        dead_soon_after(&testbed, first, unix_ms(), "key_gone");
        assert_eq!(testbed.holders_of("k"), 0, "and the third key is given back");
    }
}

#[test]
fn a_majority_of_the_keys_is_overwritten() {
    let Some(testbed) = testbed("a_majority_of_the_keys_is_overwritten") else { return };
    let first = first(&testbed, "6s", PLAIN);
    for node in &testbed.nodes[..2] {
        node.command(&["SET", "k", "other", "PX", "60000"]).unwrap();
    }
    dead_soon_after(&testbed, first, unix_ms(), "key_overwritten");
    assert_eq!(testbed.holders_of("k"), 2, "theirs stay");
}

/// They vote for nobody until the lock has run out.
#[test]
fn the_nodes_lose_their_data() {
    let Some(mut testbed) = testbed("the_nodes_lose_their_data") else { return };
    testbed.guard = "strict";
    let max_ttl = ["--fresh", "--yes", "--max-ttl", TTL];
    let init = testbed.quorlock(&[&["init"], &max_ttl[..]].concat()).output().unwrap();
    assert_eq!(init.status.code(), Some(0), "{}", stderr(&init));
    fs::write(testbed.path("settings"), format!("max-ttl = \"{TTL}\"\n")).unwrap();
    testbed.config = Some("settings");
    let (first, second) = (first(&testbed, TTL, IN_ANOTHER_GROUP), second(&testbed));
    for node in &testbed.nodes[..2] {
        node.command(&["FLUSHALL"]).unwrap();
    }
    let output = first.end();
    lost_because(&output, "expired");
    assert!(stderr(&output).contains(": quarantined: "), "and names them: {}", stderr(&output));
    written_within_the_validity(&testbed, &output);
    they_do_not_overlap(&testbed, second);
}
