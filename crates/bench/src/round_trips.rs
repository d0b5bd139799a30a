//! Counts the round trips of each operation. No machine and no load changes them, so they are not timed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use quorlock::{Client, ClientBuilder, node::Tls};
use quorlock_servers::certificates::Authority;
use quorlock_servers::proxy::{Distance, Effect, Proxy};
use quorlock_servers::{Nodes, ServerBinary, ServerOptions, StartError};
use tokio::time::sleep;

use crate::subjects::{Flavor, key};
use crate::testbed;

/// A distance at which all commands that need no earlier reply are on their way before any reply arrives.
const ROUND_TRIP: Duration = Duration::from_millis(60);

const NODES: usize = 3;

const REPEATS: usize = 5;

/// The operations, in the order in which `counted` makes them.
const OPERATIONS: [&str; 5] = [
    "acquire",
    "extend",
    "release",
    "acquire, the first call of a process",
    "`quorlock run … -- true`, from its start to its end",
];

/// Servers behind proxies that count.
struct Place {
    nodes: Nodes,
    proxies: Vec<Proxy>,
    /// The authority of the servers' certificates; `None` without TLS.
    authority: Option<Authority>,
}

/// Returns the table in Markdown. `quorlock` is the program of the last row.
///
/// # Errors
/// If there are no servers, or an operation fails.
pub(crate) fn table(server: Option<&str>, quorlock: Option<&Path>) -> Result<String, String> {
    let binary = testbed::server(server)?;
    let columns = Flavor::MultiThread.runtime()?.block_on(async {
        let plain = Place::start(&binary, false).await?.ok_or("no servers")?;
        let tls = Place::start(&binary, true).await?;
        let plain = plain.counted(quorlock).await?;
        let tls = match tls {
            Some(place) => place.counted(quorlock).await?,
            None => vec!["server without TLS".to_owned(); OPERATIONS.len()],
        };
        Ok::<_, String>((plain, tls))
    })?;
    let mut table = "| operation | plain | TLS |\n|---|---|---|\n".to_owned();
    for ((operation, plain), tls) in OPERATIONS.iter().zip(columns.0).zip(columns.1) {
        table += &format!("| {operation} | {plain} | {tls} |\n");
    }
    Ok(table)
}

impl Place {
    /// Servers whose votes count. `None`: the server was built without TLS.
    async fn start(binary: &ServerBinary, has_tls: bool) -> Result<Option<Self>, String> {
        let authority = has_tls.then(Authority::new);
        let tls = authority.as_ref().map(|authority| authority.server(false));
        let options = ServerOptions { tls, ..ServerOptions::default() };
        let nodes = match Nodes::start(binary, NODES, options) {
            Err(StartError::NoTls { .. }) => return Ok(None),
            nodes => nodes.map_err(said)?,
        };
        let mut proxies = Vec::new();
        for node in &nodes {
            let proxy = Proxy::start(node).await.map_err(said)?;
            let exact = Distance { jitter_percent: 0, ..Distance::of_round_trip(ROUND_TRIP) };
            proxy.set_distance(exact);
            proxies.push(proxy);
        }
        let place = Self { nodes, proxies, authority };
        quorlock_admin::init::fresh(&place.builder(place.nodes.urls())?).await.map_err(said)?;
        Ok(Some(place))
    }

    fn builder(&self, urls: impl IntoIterator<Item = String>) -> Result<ClientBuilder, String> {
        let builder = Client::builder().nodes(named(urls));
        let Some(authority) = &self.authority else { return Ok(builder) };
        Ok(builder.tls(Tls::new().ca_pem(authority.pem())))
    }

    fn far_urls(&self) -> impl Iterator<Item = String> {
        self.proxies.iter().map(Proxy::url)
    }

    /// The number of round trips to each node so far. Each new connection is one.
    fn round_trips(&self) -> Vec<u64> {
        let of = |proxy: &Proxy| proxy.count(Effect::Accepted) + proxy.count(Effect::RoundTrip);
        self.proxies.iter().map(of).collect()
    }

    /// The round trips since `before`, of the node with most of them. Afterwards waits until nothing is on its way.
    async fn since(&self, before: &[u64]) -> u64 {
        let new = self.round_trips().into_iter().zip(before).map(|(now, before)| now - before);
        let most = new.max().unwrap_or_default();
        sleep(2 * ROUND_TRIP).await;
        most
    }

    /// The round trips of each operation, as text: their number, or the smallest and the largest if they differ.
    async fn counted(&self, quorlock: Option<&Path>) -> Result<Vec<String>, String> {
        let mut counts = vec![Vec::new(); OPERATIONS.len()];
        for repeat in 0..REPEATS {
            let key = key("round trips", repeat);
            // The client connects as soon as it is built.
            let before = self.round_trips();
            let client = self.builder(self.far_urls())?.build().map_err(said)?;
            let guard = client.acquire(&*key).await.map_err(said)?;
            counts[3].push(self.since(&before).await);
            let _ = guard.release().await;
            sleep(ROUND_TRIP).await;

            let before = self.round_trips();
            let guard = client.acquire(&*key).await.map_err(said)?;
            counts[0].push(self.since(&before).await);
            let before = self.round_trips();
            guard.extend().await.map_err(said)?;
            counts[1].push(self.since(&before).await);
            let before = self.round_trips();
            let _ = guard.release().await;
            counts[2].push(self.since(&before).await);
            client.shutdown(Duration::from_secs(5)).await.map_err(said)?;

            if let Some(quorlock) = quorlock {
                let before = self.round_trips();
                self.run(quorlock, &key)?;
                counts[4].push(self.since(&before).await);
            }
        }
        Ok(counts.into_iter().map(|counts| shown(&counts)).collect())
    }

    fn run(&self, quorlock: &Path, key: &str) -> Result<(), String> {
        let mut command = Command::new(quorlock);
        command.args(["run", key, "--wait", "0s", "--", "true"]);
        command.env("QUORLOCK_NODES", named(self.far_urls()).collect::<Vec<_>>().join(","));
        command.env("QUORLOCK_CONFIG", "/dev/null");
        let ca = self.authority.as_ref().map(|authority| authority.file("ca.pem"));
        command.envs(ca.map(|ca| ("QUORLOCK_TLS_CA", ca)));
        let output =
            command.output().map_err(|error| format!("{}: {error}", quorlock.display()))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("quorlock run: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

fn named(urls: impl IntoIterator<Item = String>) -> impl Iterator<Item = String> {
    urls.into_iter().zip(["a", "b", "c"]).map(|(url, name)| format!("{name}={url}"))
}

fn shown(counts: &[u64]) -> String {
    match (counts.iter().min(), counts.iter().max()) {
        (Some(least), Some(most)) if least == most => most.to_string(),
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => "not run".to_owned(),
    }
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}
