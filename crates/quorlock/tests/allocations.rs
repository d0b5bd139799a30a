//! Counts the heap allocations of an acquire and its release. A count is the same on every machine.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use common::{client, five};
use quorlock::{Client, Outcome};
use tokio::runtime::Builder;

/// The number of acquire-release pairs per measurement. It is large, so that rare allocations round to zero per pair.
const PAIRS: u64 = 256;

/// Allocations per pair on five nodes: the resource's name, the state that caller and driver share, the token, and
/// the nodes' answers to the release.
const PINNED: u64 = 4;

async fn pairs(client: &Client, count: u64) {
    for _ in 0..count {
        let guard = client.acquire("counted").await.unwrap();
        assert_eq!(guard.release().await.outcome, Outcome::Released);
    }
}

#[test]
fn a_pair_allocates_no_more_than_is_pinned() {
    let Some(nodes) = five() else { return };
    // The counter counts the allocations of one thread, so the callers and the driver run in this one.
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(async { client(&nodes) });
    runtime.block_on(pairs(&client, PAIRS));
    // On a busy machine a node may answer late, and a late answer costs an allocation. The best of several measurements
    // has no late answers.
    let measure = || {
        allocation_counter::measure(|| runtime.block_on(pairs(&client, PAIRS))).count_total / PAIRS
    };
    let each = (0..20).map(|_| measure()).find(|each| *each <= PINNED).unwrap_or_else(measure);
    assert!(each <= PINNED, "{each} allocations for each pair, instead of {PINNED}");
    assert!(each >= PINNED, "{each} allocations for each pair: pin the new number");
}
