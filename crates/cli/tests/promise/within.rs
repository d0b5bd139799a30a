//! The rows "within" of the table in docs/cli.md: the command is dead within a bound after the cause.

use std::fs;

use crate::common::{Running, Testbed, code, stderr, unix_ms};
use crate::{
    IN_ANOTHER_GROUP, PLAIN, TTL, first, lost_because, second, testbed, they_do_not_overlap, times,
    written_within_the_validity,
};

/// With a ttl of 6 s, the command must be dead within the time until the next extension (2 s), 5 % of the ttl, and a
/// node timeout of 50 ms. A busy machine may take another second. The sum is still less than the rest of the ttl (4 s).
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
        let Some(testbed) = testbed() else { return };
        let first = first(&testbed, "6s", command);
        testbed.on(0..2, &["DEL", "k"]);
        dead_soon_after(&testbed, first, unix_ms(), "key_gone");
        assert_eq!(testbed.holders_of("k"), 0, "the third key is released");
    }
}

#[test]
fn a_majority_of_the_keys_is_overwritten() {
    let Some(testbed) = testbed() else { return };
    let first = first(&testbed, "6s", PLAIN);
    testbed.on(0..2, &["SET", "k", "other", "PX", "60000"]);
    dead_soon_after(&testbed, first, unix_ms(), "key_overwritten");
    assert_eq!(testbed.holders_of("k"), 2, "the other client's keys stay");
}

/// Nodes without data do not vote until the lock has expired.
#[test]
fn the_nodes_lose_their_data() {
    let Some(mut testbed) = testbed() else { return };
    testbed.guard = "strict";
    let max_ttl = ["--fresh", "--yes", "--max-ttl", TTL];
    let init = testbed.output(&[&["init"], &max_ttl[..]].concat());
    code(&init, 0);
    fs::write(testbed.path("settings"), format!("max-ttl = \"{TTL}\"\n")).unwrap();
    testbed.config = Some("settings");
    let (first, second) = (first(&testbed, TTL, IN_ANOTHER_GROUP), second(&testbed));
    testbed.on(0..2, &["FLUSHALL"]);
    let output = first.end();
    lost_because(&output, "expired");
    assert!(stderr(&output).contains(": quarantined: "), "{}", stderr(&output));
    written_within_the_validity(&testbed, &output);
    they_do_not_overlap(&testbed, second);
}
