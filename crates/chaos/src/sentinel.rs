//! `quorlock-chaos sentinel`: failovers of a real Sentinel deployment while processes count under one lock.
//!
//! Two servers are master and replica, three Sentinels watch them, and all of them reach each other through proxies.
//! Some workers find the master through Sentinel. Each server also has a worker that is connected to this server alone,
//! like a client on the master's side of a partition. A holder reads a counter and writes the next number in two
//! transactions of SQLite, so two holders at a time lose an update.

mod worker;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use quorlock::env::duration;
use quorlock_servers::proxy::{Direction, Proxy, Traffic};
use quorlock_servers::{
    Listen, Nodes, Reply, Server, ServerBinary, ServerOptions, find_named, spawn,
};
use quorlock_sim::time::Time;
use tempfile::TempDir;
use tokio::time::sleep;

pub(crate) use self::worker::{Job, main as work};
use crate::clock::{now, seconds};

/// The number of workers that find the master through Sentinel, in addition to the one per server.
const WORKERS: usize = 4;

/// The faults, one per failover, in turn.
const FAULTS: [&str; 4] = ["SIGSTOP", "SENTINEL FAILOVER", "kill -9", "cut off"];

/// The run fails if a failover takes longer than this time plus twice the quarantine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Fails over a master with one replica behind three Sentinels, while processes count under one lock
///
/// The master is stopped during its failover and continued afterwards, killed and started again without data, cut off,
/// or demoted by SENTINEL FAILOVER, in turn. Exit code 1 if an update was lost, or if a client of an old master got the
/// lock after the promotion of its replica. It needs python3 for SQLite
#[derive(Debug, clap::Args)]
pub(crate) struct SentinelArgs {
    /// The number of failovers
    #[arg(long, value_name = "N", default_value_t = 20)]
    failovers: usize,

    /// The ttl of the locks, and the longest of any client
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    max_ttl: Duration,

    /// The server to run: a path, or a program on the PATH [default: as in tests]
    #[arg(long, value_name = "SERVER")]
    server: Option<String>,

    /// Let workers that know only one server count its vote without its replica. Exit code 0 if a violation is found
    #[arg(long)]
    negative: bool,
}

/// A lock that a worker got.
#[derive(Clone, Copy)]
struct Grant {
    /// The index of the only server that the worker knows; `None` if the worker finds the master through Sentinel.
    only: Option<usize>,
    /// The time at which the worker made the call that got the lock.
    started: Time,
    at: Time,
}

struct Deployment {
    servers: Nodes,
    proxies: Vec<Proxy>,
    sentinels: Nodes,
    folder: TempDir,
    grants: Arc<Mutex<Vec<Grant>>>,
    workers: Vec<Child>,
}

/// One failover that has ended.
struct Failover {
    fault: &'static str,
    old: usize,
    promoted_at: Time,
    pause: Time,
    /// False if the Sentinels failed over once more without a fault. That time is unknown, so no check is possible.
    is_checked: bool,
}

pub(crate) fn main(args: &SentinelArgs) -> Result<ExitCode, String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let binary = find_named(args.server.as_deref(), workspace)?;
    println!("{} failovers of {binary}, max_ttl {:?}", args.failovers, args.max_ttl);
    let runtime = tokio::runtime::Runtime::new().map_err(said)?;
    runtime.block_on(async {
        let mut deployment = Deployment::start(&binary).await?;
        let result = deployment.run(args).await;
        deployment.workers.iter_mut().for_each(|worker| drop(worker.kill()));
        deployment.report(args, &result?)
    })
}

impl Deployment {
    async fn start(binary: &ServerBinary) -> Result<Self, String> {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        let args = words(&["--repl-diskless-sync-delay", "0"]);
        let servers = Nodes::start(binary, 2, ServerOptions { args, ..ServerOptions::default() });
        let servers = servers.map_err(said)?;
        let options = ServerOptions {
            args: words(&["--sentinel"]),
            listen: Listen::Tcp,
            ..ServerOptions::default()
        };
        let sentinels = Nodes::start(binary, 3, options).map_err(said)?;
        let mut proxies = Vec::new();
        for server in &servers {
            proxies.push(Proxy::start(server).await.map_err(said)?);
        }
        let folder = tempfile::tempdir().map_err(said)?;
        let grants = Arc::default();
        let deployment = Self { servers, proxies, sentinels, folder, grants, workers: Vec::new() };
        deployment.announce(0)?;
        deployment.announce(1)?;
        let port = deployment.port(0);
        tell(&deployment.servers[1], &["REPLICAOF", "127.0.0.1", &port])?;
        for sentinel in &deployment.sentinels {
            tell(sentinel, &["SENTINEL", "MONITOR", "locks", "127.0.0.1", &port, "2"])?;
            for (option, ms) in [("down-after-milliseconds", "1000"), ("failover-timeout", "5000")]
            {
                tell(sentinel, &["SENTINEL", "SET", "locks", option, ms])?;
            }
        }
        Ok(deployment)
    }

    fn port(&self, place: usize) -> String {
        self.proxies[place].url().rsplit(':').next().unwrap_or_default().to_owned()
    }

    /// Makes the server announce the address of its proxy to the other servers. A restart undoes this setting.
    fn announce(&self, place: usize) -> Result<(), String> {
        let port = self.port(place);
        let set =
            ["CONFIG", "SET", "replica-announce-ip", "127.0.0.1", "replica-announce-port", &port];
        tell(&self.servers[place], &[&set[..4]].concat())?;
        tell(&self.servers[place], &[&set[..2], &set[4..]].concat()).map(drop)
    }

    async fn run(&mut self, args: &SentinelArgs) -> Result<Vec<Failover>, String> {
        self.ready().await?;
        let database = self.folder.path().join("counter.db").display().to_string();
        worker::create(&database)?;
        let sentinels: Vec<_> = self.sentinels.iter().map(Server::address).collect();
        let url = format!(
            "redis+sentinel://{}/locks?replicas=1&sentinel={}",
            sentinels[0],
            sentinels[1..].join("&sentinel=")
        );
        let (max_ttl, ttl_ms) = (args.max_ttl, args.max_ttl.as_millis());
        for worker in 0..WORKERS + 2 {
            let only = worker.checked_sub(WORKERS);
            let replicas = u8::from(!args.negative);
            let url = only.map_or(url.clone(), |place| {
                format!("locks={}?replicas={replicas}", self.servers[place].url())
            });
            self.employ(only, &[&url, &database, &ttl_ms.to_string()])?;
        }
        let quarantine = max_ttl.mul_f64(1.01) + Duration::from_secs(2);
        let patience = PATIENCE + 2 * quarantine;
        self.granted_since(now(), patience).await?;
        let mut failovers: Vec<Failover> = Vec::new();
        for turn in 0..2 * args.failovers {
            if checked(&failovers) == args.failovers {
                break;
            }
            let old = self.ready().await?;
            let new = 1 - old;
            if let Some(last) = failovers.last_mut().filter(|last| last.old != new) {
                println!("the Sentinels have failed over by themselves");
                last.is_checked = false;
            }
            let fault = FAULTS[turn % FAULTS.len()];
            self.granted_since(now(), patience).await?;
            let began = now();
            self.strike(fault, old).await?;
            until("the replica is promoted", PATIENCE, || role(&self.servers[new]) == "master")
                .await?;
            let promoted_at = now();
            // The pause varies, so that the old master sometimes comes back during the failover and sometimes after it.
            sleep(Duration::from_millis(700) * u32::try_from(turn % 3).unwrap_or_default()).await;
            self.heal(fault, old)?;
            let pause = self.granted_since(promoted_at, patience).await? - began;
            println!("{fault}: a pause of {}", seconds(pause));
            failovers.push(Failover { fault, old, promoted_at, pause, is_checked: true });
        }
        Ok(failovers)
    }

    fn employ(&mut self, only: Option<usize>, job: &[&str]) -> Result<(), String> {
        let program = std::env::current_exe().map_err(said)?;
        let worker = spawn(&program, |command| {
            command.arg("sentinel-worker").args(job);
            command.args(only.map(|_| "--once")).stdin(Stdio::null()).stdout(Stdio::piped());
        });
        let mut worker = worker.map_err(said)?;
        let output = worker.stdout.take().ok_or("a worker has no output")?;
        self.workers.push(worker);
        let grants = self.grants.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let times = line.split_once(' ');
                let Some((Ok(started), Ok(at))) = times.map(|(a, b)| (a.parse(), b.parse())) else {
                    continue;
                };
                let grant = Grant { only, started, at };
                grants.lock().unwrap_or_else(PoisonError::into_inner).push(grant);
            }
        });
        Ok(())
    }

    /// Waits until each Sentinel can fail over. Returns the index of the master.
    async fn ready(&self) -> Result<usize, String> {
        let ports = [self.port(0), self.port(1)];
        let mut master = None;
        until("the Sentinels know master and replica", PATIENCE, || {
            let masters = self.sentinels.iter().map(|sentinel| {
                let [master, replica] =
                    ["MASTER", "REPLICAS"].map(|of| tell(sentinel, &["SENTINEL", of, "locks"]));
                let (master, replica) = (master.ok()?, replica.ok()?);
                let Reply::Array(replicas) = &replica else { return None };
                let [replica] = &replicas[..] else { return None };
                let is_ready = value(&master, "flags")? == "master"
                    && value(&master, "num-other-sentinels")? == "2"
                    && value(replica, "flags")? == "slave"
                    && value(replica, "master-link-status")? == "ok";
                ports
                    .iter()
                    .position(|port| is_ready && value(&master, "port").as_ref() == Some(port))
            });
            let masters: Vec<_> = masters.collect();
            master = masters[0].filter(|_| masters.iter().all(|it| *it == masters[0]));
            master.is_some_and(|it| {
                role(&self.servers[it]) == "master" && role(&self.servers[1 - it]) == "slave"
            })
        })
        .await?;
        master.ok_or_else(|| "there is no master".to_owned())
    }

    async fn strike(&self, fault: &str, old: usize) -> Result<(), String> {
        let server = &self.servers[old];
        match fault {
            "SIGSTOP" => server.pause().map_err(said),
            "kill -9" => server.kill().map_err(said),
            "cut off" => {
                self.proxies[old].set(Direction::ToServer, Traffic::Hold);
                self.proxies[old].set(Direction::ToClient, Traffic::Hold);
                Ok(())
            }
            _ => {
                let sentinel = &self.sentinels[0];
                let failover = || tell(sentinel, &["SENTINEL", "FAILOVER", "locks"]).is_ok();
                until("Sentinel begins the failover", PATIENCE, failover).await
            }
        }
    }

    fn heal(&self, fault: &str, old: usize) -> Result<(), String> {
        let server = &self.servers[old];
        match fault {
            "SIGSTOP" => server.resume().map_err(said),
            "kill -9" => {
                server.restart().map_err(said)?;
                self.announce(old)
            }
            _ => {
                self.proxies[old].open();
                Ok(())
            }
        }
    }

    /// Waits for the first lock whose call began after `since`. Returns its time.
    async fn granted_since(&self, since: Time, patience: Duration) -> Result<Time, String> {
        let mut first = None;
        let found = || {
            let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
            let recent = grants.iter().rev().filter(|it| it.at > since);
            first = recent.filter(|it| it.started > since).map(|it| it.at).min();
            first.is_some()
        };
        until("a worker gets the lock", patience, found).await?;
        first.ok_or_else(|| "no worker got the lock".to_owned())
    }

    fn report(&self, args: &SentinelArgs, failovers: &[Failover]) -> Result<ExitCode, String> {
        let (increments, counter) =
            worker::count(&self.folder.path().join("counter.db").display().to_string())?;
        let lost = increments - counter;
        let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = failovers.iter().skip(1).map(|next| next.promoted_at).chain([Time::MAX]);
        let spans = failovers.iter().zip(ends).filter(|(failover, _)| failover.is_checked);
        let of_old = spans.map(|(failover, end)| {
            let span = failover.promoted_at..end;
            grants
                .iter()
                .filter(|it| it.only == Some(failover.old) && span.contains(&it.started))
                .count()
        });
        let of_old: usize = of_old.sum();
        println!("\n| fault | failovers | pause p50 | longest pause |\n|---|---|---|---|");
        for fault in FAULTS.into_iter().chain(["all"]) {
            let of = failovers.iter().filter(|it| fault == "all" || it.fault == fault);
            let mut pauses: Vec<Time> = of.map(|it| it.pause).collect();
            pauses.sort_unstable();
            if let [.., max] = pauses[..] {
                let p50 = seconds(pauses[(pauses.len() - 1) / 2]);
                println!("| {fault} | {} | {p50} | {} |", pauses.len(), seconds(max));
            }
        }
        println!(
            "\nfailovers {} ({} checked), grants {}, increments {increments}, lost updates {lost}, grants of an old master {of_old}",
            failovers.len(),
            checked(failovers),
            grants.len(),
        );
        let is_wrong = lost != 0 || of_old != 0;
        let is_complete = checked(failovers) == args.failovers && increments > 0;
        println!(
            "{}",
            if is_wrong {
                "VIOLATION"
            } else if is_complete {
                "no violation"
            } else {
                "incomplete"
            }
        );
        Ok(if is_wrong == args.negative && (is_complete || is_wrong) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn checked(failovers: &[Failover]) -> usize {
    failovers.iter().filter(|failover| failover.is_checked).count()
}

async fn until(
    what: &str,
    patience: Duration,
    mut is_so: impl FnMut() -> bool,
) -> Result<(), String> {
    let end = now() + patience.as_nanos() as Time;
    while !is_so() {
        if now() > end {
            return Err(format!("{patience:?} have passed, and it is still not so: {what}"));
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn tell(server: &Server, words: &[&str]) -> Result<Reply, String> {
    match server.command(words).map_err(said)? {
        Reply::Error(error) => Err(error),
        reply => Ok(reply),
    }
}

/// `master` or `slave`; empty if the server does not answer.
fn role(server: &Server) -> String {
    let Ok(Reply::Array(role)) = tell(server, &["ROLE"]) else { return String::new() };
    role.first().map(text).unwrap_or_default()
}

/// The value of a field in a reply of Sentinel.
fn value(reply: &Reply, field: &str) -> Option<String> {
    let Reply::Array(words) = reply else { return None };
    words.chunks_exact(2).find(|pair| text(&pair[0]) == field).map(|pair| text(&pair[1]))
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}
