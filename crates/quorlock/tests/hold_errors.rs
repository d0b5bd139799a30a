//! The example `hold_errors`: errors of the lock and errors of the work reach the matching branch.

#[path = "../examples/hold_errors.rs"]
#[allow(dead_code, reason = "its main function")]
mod example;

use std::time::Duration;

use example::{passed_on, told_apart};
use quorlock::node::MemoryNode;
use quorlock::{Client, Clock, LockOptions};

#[tokio::test(start_paused = true)]
async fn errors_of_the_lock_and_of_the_work_are_distinguished() {
    let nodes = ["a", "b", "c"].map(MemoryNode::new);
    let builder = Client::builder().memory_nodes(nodes.clone()).clock(Clock::Tokio);
    let client = builder.options(LockOptions::new().wait(Duration::from_secs(1))).build().unwrap();
    assert_eq!(told_apart(&client, "12").await, "done: 12");
    assert_eq!(told_apart(&client, "x").await, "the work failed: invalid digit found in string");
    assert_eq!(passed_on(&client, "12").await.unwrap(), 12);
    let failed = passed_on(&client, "x").await.unwrap_err().to_string();
    assert_eq!(failed, "invalid digit found in string");

    let guard = client.acquire("orders").await.unwrap();
    assert_eq!(told_apart(&client, "12").await, "another client is at it");
    let _ = guard.release().await;
    nodes[..2].iter().for_each(MemoryNode::stop);
    let refused = told_apart(&client, "12").await;
    assert!(refused.starts_with("no lock can be had: "), "{refused}");
    let failed = passed_on(&client, "12").await.unwrap_err().to_string();
    assert!(failed.contains("no quorum"), "{failed}");
}
