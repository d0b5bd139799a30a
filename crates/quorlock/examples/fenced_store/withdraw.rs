//! One process that withdraws 30 under the lock.

use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use quorlock::{Client, LockOptions, RestartGuard};

use super::store::Store;

/// The exit code after the store has refused the write.
pub(crate) const REFUSED: u8 = 3;

const TTL: Duration = Duration::from_secs(1);

/// The environment variables with a process's name, the database and the nodes.
pub(crate) const NAME: &str = "FENCED_STORE_NAME";
pub(crate) const DATABASE: &str = "FENCED_STORE_DATABASE";
pub(crate) const NODES: &str = "FENCED_STORE_NODES";

/// Whether this process is one of the two that withdraw.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os(NAME).is_some()
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run() -> Result<ExitCode, Box<dyn Error>> {
    let (name, nodes) = (std::env::var(NAME)?, std::env::var(NODES)?);
    let database = std::env::var_os(DATABASE).ok_or("no database was given")?;
    // The restart guard is off because the servers are new and exist only for this example. Leave it on for real
    // servers.
    let client = Client::builder()
        .nodes(nodes.split(','))
        .restart_guard(RestartGuard::Off)
        .options(LockOptions::new().ttl(TTL))
        .build()?;
    let guard = client.acquire_fenced("account").await?;
    let fence = guard.fencing_token();

    let mut store = Store::open(database.as_ref())?;
    let balance = match store.read(fence)? {
        Ok(balance) => balance,
        Err(overtaken) => return Ok(refused(&name, fence, overtaken.seen)),
    };
    println!(
        "{name}: holds the lock with fencing token {fence}, reads {balance}, is_valid {}",
        guard.is_valid()
    );
    std::io::stdout().flush()?;

    // The story stops the process here, between its read and its write.
    std::io::stdin().lock().read_line(&mut String::new())?;

    // This example omits a check of `is_valid`, to show that the store refuses the write. A check would not suffice,
    // because the process could be stopped between the check and the write.
    match store.write(fence, balance - 30)? {
        Ok(()) => println!("{name}: has written {}", balance - 30),
        Err(overtaken) => return Ok(refused(&name, fence, overtaken.seen)),
    }
    let _ = guard.release().await;
    client.shutdown(TTL).await?;
    Ok(ExitCode::SUCCESS)
}

fn refused(name: &str, fence: u64, seen: u64) -> ExitCode {
    println!("{name}: refused by the store: fencing token {fence}, but the store has seen {seen}");
    ExitCode::from(REFUSED)
}
