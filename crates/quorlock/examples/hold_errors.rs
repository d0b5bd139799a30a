//! Errors of work under a lock: one `match` for errors of the lock and of the work, or one `??`.
//!
//! `cargo run --example hold_errors`

use std::error::Error;
use std::num::ParseIntError;
use std::time::Duration;

use quorlock::node::MemoryNode;
use quorlock::{AcquireError, Client, HoldError, LockOptions};

async fn work(text: &str) -> Result<u32, ParseIntError> {
    text.parse()
}

/// `hold` returns a `Result<Result<T, E>, HoldError>`: the outer error is the lock's, the inner one is the work's.
pub(crate) async fn told_apart(client: &Client, text: &str) -> String {
    let options = LockOptions::new().wait(Duration::ZERO);
    let done = client.acquire("orders").options(options).hold(async |_| work(text).await).await;
    match done {
        Ok(Ok(number)) => format!("done: {number}"),
        // The work failed while the lock was valid. The client releases the lock.
        Ok(Err(error)) => format!("the work failed: {error}"),
        // The work has not started.
        Err(HoldError::NotAcquired(AcquireError::Contended(_))) => {
            "another client is at it".to_owned()
        }
        Err(HoldError::NotAcquired(error)) => format!("no lock can be had: {error}"),
        // The work was stopped, or the lock had ended before the work did. The work may be half done.
        Err(HoldError::Lost { cause, .. }) => format!("lost during the work: {cause:?}"),
        Err(error) => error.to_string(),
    }
}

/// `??` is enough if the caller's error type converts from `HoldError` and from the error of the work.
pub(crate) async fn passed_on(client: &Client, text: &str) -> Result<u32, Box<dyn Error>> {
    Ok(client.acquire("orders").hold(async |_| work(text).await).await??)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::builder().memory_nodes(["a", "b", "c"].map(MemoryNode::new)).build()?;
    println!("{}", told_apart(&client, "12").await);
    println!("{}", told_apart(&client, "twelve").await);
    let other = client.acquire("orders").await?;
    println!("{}", told_apart(&client, "12").await);
    let _ = other.release().await;
    println!("{}", passed_on(&client, "12").await?);
    Ok(())
}
