//! Says which nodes a command that only looks waits for: one that hangs takes as long as the connect timeout.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use quorlock::ClientBuilder;
use quorlock::admin::{AdminConnection, Topology, names};
use tokio::time::timeout;

use crate::args::OutputArgs;
use crate::output;

/// The time after which the nodes are asked which of them hangs.
const LATE: Duration = Duration::from_secs(1);

/// A node that needs longer than this for a connection hangs.
const HANGS: Duration = Duration::from_millis(500);

/// Runs `look`. If it takes long, one line on standard error names the nodes that hang.
pub(super) async fn looking<T>(
    builder: &ClientBuilder,
    format: OutputArgs,
    look: impl Future<Output = T>,
) -> T {
    let mut look = pin!(look);
    if let Ok(found) = timeout(LATE, &mut look).await {
        return found;
    }
    if !format.quiet {
        tokio::select! {
            found = &mut look => return found,
            () = say_hanging(builder, format.json) => {}
        }
    }
    look.await
}

async fn say_hanging(builder: &ClientBuilder, is_json: bool) {
    let Ok(topology) = Topology::of(builder) else { return };
    let servers = topology.servers.iter();
    let looks = servers.map(|server| timeout(HANGS, AdminConnection::open(server)));
    let looks = join_all(looks).await;
    let hanging = topology.servers.iter().zip(&looks).filter(|(_, look)| look.is_err());
    let hanging: Vec<&str> = hanging.map(|(server, _)| server.name()).collect();
    if !hanging.is_empty() {
        let message =
            format!("no answer from {} yet; waiting for the connect timeout", names(&hanging));
        output::say(is_json, "hanging", &message);
    }
}
