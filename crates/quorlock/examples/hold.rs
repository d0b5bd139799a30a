//! Long work under a lock. The work stops when the lock is lost, here because the nodes die.
//!
//! `cargo run --example hold`

use std::error::Error;
use std::time::Duration;

use quorlock::node::MemoryNode;
use quorlock::{Client, HoldError, LockOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = ["a", "b", "c"].map(MemoryNode::new);
    let ttl = Duration::from_millis(500);
    let client = Client::builder()
        .memory_nodes(nodes.clone())
        .options(LockOptions::new().ttl(ttl))
        .build()?;

    let work = client.acquire("migration").hold(async |guard| {
        for step in 1.. {
            println!("step {step}, held for another {:?}", guard.remaining());
            tokio::time::sleep(Duration::from_millis(100)).await;
            if step == 8 {
                println!("two of three nodes stop");
                nodes[0].stop();
                nodes[1].stop();
            }
        }
    });
    match work.await {
        Err(HoldError::Lost { cause, .. }) => println!("the work was stopped: {cause:?}"),
        other => println!("unexpected: {other:?}"),
    }
    Ok(())
}
