//! The crate redlock behind the protocol of `worker.py`: `quorlock-bench-redlock-rs HOST:PORT,HOST:PORT,…`

#[path = "../../protocol.rs"]
mod protocol;

use redlock::RedLock;

fn main() -> std::io::Result<()> {
    let nodes = std::env::args().nth(1).unwrap_or_default();
    let manager = RedLock::new(nodes.split(',').map(|node| format!("redis://{node}")).collect());
    protocol::serve(
        "2.0.0",
        |key, ttl_ms| {
            let ttl = usize::try_from(ttl_ms).map_err(|error| error.to_string())?;
            manager.lock(key.as_bytes(), ttl).map_err(|error| error.to_string())
        },
        |held| {
            manager.unlock(&held);
            Ok(())
        },
    )
}
