//! Acquires a lock, works under it, releases it, and prints each node's answer to the release.
//!
//! `QUORLOCK_NODES=a=redis://10.0.0.1,b=redis://10.0.0.2,c=redis://10.0.0.3 cargo run --example acquire`
//! (without the variable it uses nodes in memory)

use std::error::Error;
use std::time::Duration;

use quorlock::node::MemoryNode;
use quorlock::{AcquireError, Client, LockOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let builder = match std::env::var("QUORLOCK_NODES") {
        Ok(nodes) => Client::builder().nodes(nodes.split(',')),
        Err(_) => Client::builder().memory_nodes(["a", "b", "c"].map(MemoryNode::new)),
    };
    let client = builder.options(LockOptions::new().process_owner("acquire example")).build()?;

    match client.acquire("orders").options(LockOptions::new().wait(Duration::from_secs(5))).await {
        Ok(guard) => {
            println!("held by {} votes for {:?}", guard.votes(), guard.remaining());
            // … work that only one process may do at a time …
            let released = guard.release().await;
            println!("{:?}", released.outcome);
        }
        Err(AcquireError::Contended(why)) => println!("somebody else is at it: {why}"),
        Err(error) => println!("no lock to be had: {error}"),
    }

    client.shutdown(Duration::from_secs(1)).await?;
    Ok(())
}
