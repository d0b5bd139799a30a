//! The ten lines of the README: `cargo run --example readme`. Needs the variable `QUORLOCK_NODES`.

use quorlock::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_env()?; // QUORLOCK_NODES, as the command line; or Client::builder()
    let guard = client.acquire("billing").await?; // waits for at most 10 s by default
    // … your work; the lock is extended automatically while the guard lives …
    assert!(guard.is_valid()); // reads the clock: still ours?
    println!("{:?}", guard.release().await.outcome);
    Ok(())
}
