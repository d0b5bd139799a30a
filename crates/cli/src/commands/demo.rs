//! `quorlock demo`: five nodes, a dozen workers, one fault after the other, and a verdict.
//!
//! Nodes and workers are in this process. The workers contend for one lock, and change a file that only the lock
//! protects. Each worker reports when it held the lock. The verdict comes from these reports, not from the lock's own
//! view.

mod nodes;
mod record;
mod screen;
mod script;
mod stage;
mod workers;

use std::fmt;
use std::fs;
use std::time::Duration;

use self::nodes::FiveNodes;
use self::stage::Stage;
use crate::child::Signals;
use crate::exit_code::ExitCode;
use crate::guardian::clock::boot_ns;
use crate::options::Refused;

const KEY: &str = "demo";

/// The ttl is short, because a killed node must stay down for longer than the ttl, and the demo must not take long.
const TTL: Duration = Duration::from_secs(1);

const WAIT: Duration = Duration::from_millis(1500);

/// Runs the demo. When it returns, even with an error, its file is deleted.
pub(crate) fn main() -> Result<ExitCode, Refused> {
    super::runtime()?.block_on(async {
        // Signals are caught from here on, even before the demo awaits them.
        let signals = Signals::catch()?;
        let folder = tempfile::Builder::new().prefix("quorlock-demo-").tempdir();
        let folder = folder.map_err(|error| failed(format!("no temporary folder: {error}")))?;
        let counter = folder.path().join("counter");
        fs::write(&counter, "0")?;
        let mut stage = Stage::start(FiveNodes::new(), counter, signals)?;
        script::play(&mut stage).await?;
        stage.end().await
    })
}

fn failed(error: impl fmt::Display) -> Refused {
    Refused { message: format!("demo: {error}"), code: ExitCode::Internal }
}

/// The time since `then_ns`, a reading of the boot clock.
fn since(then_ns: u64) -> Duration {
    Duration::from_nanos(boot_ns().saturating_sub(then_ns))
}
