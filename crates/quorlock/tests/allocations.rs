//! What a pair allocates: counted, for it does not wobble as a time does.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use common::{client, five};
use quorlock::{Client, Outcome};
use tokio::runtime::Builder;

/// Pairs that are counted together; what is allocated now and then is shared by all of them.
const PAIRS: u64 = 256;

/// An acquire and its release, on five nodes: the resource's name, what caller and client share from the call to the end
/// of the release, the token, and what the nodes said to the release.
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
    // On one thread, which is the one that is counted: callers and client.
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(async { client(&nodes) });
    runtime.block_on(pairs(&client, PAIRS));
    let counted = allocation_counter::measure(|| runtime.block_on(pairs(&client, PAIRS)));
    let each = counted.count_total / PAIRS;
    assert!(each <= PINNED, "{each} allocations for each pair, instead of {PINNED}");
    assert!(each >= PINNED, "{each} allocations for each pair: pin the new number");
}
