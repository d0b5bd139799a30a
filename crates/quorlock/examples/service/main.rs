//! A web service with locks: an HTTP handler, a background job, fencing tokens and a graceful shutdown.
//!
//! ```text
//! export QUORLOCK_NODES=a=redis://10.0.0.1,b=redis://10.0.0.2,c=redis://10.0.0.3
//! cargo run --example service                                # without the variable: nodes in memory
//! curl -X POST http://127.0.0.1:8080/accounts/ann/deposits/5
//! curl http://127.0.0.1:8080/health
//! ```
//!
//! Start the service on several machines. Only one machine at a time changes an account or closes the books.

mod ledger;
mod service;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use quorlock::node::MemoryNode;
use quorlock::{Client, ClientBuilder, LockOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use ledger::Ledger;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let builder = match std::env::var_os("QUORLOCK_NODES") {
        Some(_) => ClientBuilder::from_env()?,
        None => Client::builder().memory_nodes(["a", "b", "c"].map(MemoryNode::new)),
    };
    let client = builder.options(LockOptions::new().process_owner("service example")).build()?;
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    println!("listening on {}", listener.local_addr()?);

    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    };
    service::serve(listener, client, Arc::new(Ledger::default()), Duration::from_secs(10), stop)
        .await
}
