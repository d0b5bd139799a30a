//! The ten lines of the README, on the servers of its quick start.

use quorlock::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nodes =
        ["a=redis://127.0.0.1:7001", "b=redis://127.0.0.1:7002", "c=redis://127.0.0.1:7003"];
    let client = Client::builder().nodes(nodes).build()?;
    let guard = client.acquire("billing").wait(std::time::Duration::from_secs(60)).await?;
    // … your work; the lock is extended automatically while the guard lives …
    assert!(guard.is_valid()); // reads the clock: still ours?
    println!("{:?}", guard.release().await.outcome);
    Ok(())
}
