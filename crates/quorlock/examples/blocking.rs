//! The lock without async: threads add to a sum that only the lock protects.
//!
//! `cargo run --example blocking`

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quorlock::blocking::Client;
use quorlock::node::MemoryNode;

fn main() -> Result<(), Box<dyn Error>> {
    let nodes = ["a", "b", "c"].map(MemoryNode::new);
    let client = Client::builder().memory_nodes(nodes).build()?;
    let sum = AtomicU32::new(0);

    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let work = client.acquire("sum").hold(|_guard| {
                        // Read and write are two steps. Without the lock, updates would be lost.
                        let old = sum.load(Ordering::Relaxed);
                        std::thread::yield_now();
                        sum.store(old + 1, Ordering::Relaxed);
                    });
                    if let Err(error) = work {
                        println!("{error}");
                    }
                }
            });
        }
    });

    println!("sum: {} of 400", sum.load(Ordering::Relaxed));
    client.shutdown(Duration::from_secs(1))?;
    Ok(())
}
