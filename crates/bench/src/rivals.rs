//! Lock libraries of other languages, as programs of their own beside us.
//!
//! `rivals/` has a program for each library. All take the same arguments,
//!
//! ```text
//! --nodes host:port,host:port --workload pairs|handover --concurrency C --seconds S
//! [--key K] [--hold-ms 5]
//! ```
//!
//! use a ttl of ten seconds, and print JSON, one object per line:
//!
//! - `pairs`: C lockers, each with a key of its own, acquire and release for S seconds after a short
//!   warm-up. One line: `{"pairs":…,"seconds":…,"cpu_seconds":…,"p50_us":…,"p99_us":…}`, where
//!   `cpu_seconds` is the program's own.
//! - `handover`: one locker acquires K, holds it, releases it, and so on for S seconds. First a line
//!   `{"ready_ns":…,"done_ns":…}`, then one line per hold,
//!   `{"acquired_ns":…,"release_called_ns":…}`. Several copies run at the same time. All times are
//!   readings of `CLOCK_MONOTONIC`, which is one clock for all processes of a machine.
//!
//! pip and npm put the libraries, at pinned versions, into `target/bench-rivals`. What cannot be had
//! or run is [`NotRun`] and says why; the benchmark goes on without it.

mod holds;
mod install;
mod process;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::rivals::holds::Copy;
pub(crate) use crate::rivals::holds::HandoverReport;
use crate::rivals::install::Language;

/// How long a program may take beyond the seconds it was asked for: to start, warm up and report.
const GRACE: Duration = Duration::from_secs(15);

/// A lock library of another language.
#[derive(Clone, Debug)]
pub(crate) struct Rival {
    /// What tables and plots call it.
    pub(crate) name: &'static str,
    /// The library's version, and that of the Redis client it runs on.
    pub(crate) version: &'static str,
    language: Language,
    program: &'static str,
    args: &'static [&'static str],
    single_node_only: bool,
}

/// Every rival there is, whether or not it can run here.
pub(crate) fn subjects() -> Vec<Rival> {
    use Language::{Node, Python};
    let python = |name, version, program, single_node_only| Rival {
        name,
        version,
        language: Python,
        program,
        args: &[],
        single_node_only,
    };
    let node = |name, version, args| Rival {
        name,
        version,
        language: Node,
        program: "redlock.mjs",
        args,
        single_node_only: false,
    };
    vec![
        python("redis-py", "8.1.0 (hiredis 3.5.0)", "redis_py.py", true),
        python("pottery", "3.0.1 (redis-py 8.1.0, hiredis 3.5.0)", "pottery.py", false),
        node("node-redlock 4", "4.2.0 (redis 3.1.2)", &["--library", "redlock4"]),
        node("node-redlock 5", "5.0.0-beta.2 (ioredis 5.11.1)", &["--library", "redlock5"]),
    ]
}

/// What a rival did with keys of its own.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct RivalReport {
    /// Acquisitions with their releases.
    pub(crate) pairs: u64,
    /// The time in which they ended.
    pub(crate) seconds: f64,
    /// User and system time of the rival's process in that time.
    pub(crate) cpu_seconds: f64,
    /// Median of the time a pair took, in microseconds.
    pub(crate) p50_us: f64,
    /// The time in microseconds that 99 % of the pairs did not exceed.
    pub(crate) p99_us: f64,
}

impl RivalReport {
    /// Pairs per second, of all lockers together.
    pub(crate) fn pairs_per_s(&self) -> f64 {
        self.pairs as f64 / self.seconds
    }

    /// The rival's CPU time per pair, in microseconds.
    pub(crate) fn cpu_us_per_pair(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.pairs as f64
    }
}

/// Why there is no result; the words after "not run: ".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotRun(pub(crate) String);

impl Rival {
    /// Installs what the rival needs, if it is not there yet. Running it does so as well; calling
    /// this first keeps it out of a measurement's surroundings.
    ///
    /// # Errors
    /// [`NotRun`] if the interpreter or the packages cannot be had.
    pub(crate) fn prepare(&self) -> Result<(), NotRun> {
        self.language.environment().map(drop)
    }

    /// Acquires and releases distinct keys with `concurrency` lockers for `seconds`.
    ///
    /// `nodes` are `host:port` or `redis://host:port`.
    ///
    /// # Errors
    /// [`NotRun`] if it cannot run here or with these nodes, or fails. It is not running any more.
    pub(crate) fn run(
        &self,
        nodes: &[String],
        concurrency: usize,
        seconds: f64,
    ) -> Result<RivalReport, NotRun> {
        let mut command = self.command(nodes, "pairs", seconds)?;
        command.args(["--concurrency", &concurrency.to_string()]);
        let output = process::run(command, Duration::from_secs_f64(seconds) + GRACE);
        let output = output.map_err(|why| self.not_run(&why))?;
        serde_json::from_str(&output)
            .map_err(|why| self.not_run(&format!("its report cannot be read: {why}: {output}")))
    }

    /// Lets `processes` copies take turns at one key, each holding it for `hold`, for `seconds`.
    ///
    /// # Errors
    /// [`NotRun`] as for [`run`](Self::run), and also if the lock hardly ever changed hands or
    /// two copies held it at the same time.
    pub(crate) fn handover(
        &self,
        nodes: &[String],
        processes: usize,
        seconds: f64,
        hold: Duration,
    ) -> Result<HandoverReport, NotRun> {
        let limit = Duration::from_secs_f64(seconds) + GRACE;
        let mut copies = Vec::new();
        for _ in 0..processes {
            let mut command = self.command(nodes, "handover", seconds)?;
            command.args(["--hold-ms", &(hold.as_secs_f64() * 1e3).to_string()]);
            copies.push(process::start(command));
        }
        // Every copy is awaited, also after one has failed, so that none is left running.
        let outputs: Vec<_> = copies.into_iter().map(|copy| copy.output(limit)).collect();
        let mut read = Vec::new();
        for output in outputs {
            let copy = output.and_then(|output| Copy::read(&output));
            read.push(copy.map_err(|why| self.not_run(&why))?);
        }
        holds::hand_overs(&read).map_err(|why| self.not_run(&why))
    }

    fn command(&self, nodes: &[String], workload: &str, seconds: f64) -> Result<Command, NotRun> {
        if self.single_node_only && nodes.len() != 1 {
            return Err(NotRun(format!("{} locks on one server only", self.name)));
        }
        let nodes: Vec<_> = nodes.iter().map(|node| address(node)).collect::<Result<_, _>>()?;
        let environment = self.language.environment()?;
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("rivals");
        let mut command = environment.command();
        command
            .arg(programs.join(self.program))
            .args(self.args)
            .args(["--nodes", &nodes.join(",")])
            .args(["--workload", workload])
            .args(["--seconds", &seconds.to_string()]);
        Ok(command)
    }

    fn not_run(&self, why: &str) -> NotRun {
        NotRun(format!("{}: {why}", self.name))
    }
}

/// `host:port` of a node, which is all that the rivals' programs are told.
fn address(node: &str) -> Result<&str, NotRun> {
    let address = ["redis://", "valkey://"].iter().find_map(|scheme| node.strip_prefix(scheme));
    let address = address.unwrap_or(node).trim_end_matches('/');
    let port = address.rsplit_once(':').map(|(_, port)| port.parse::<u16>().is_ok());
    if port == Some(true) && !address.contains(['/', '@', ',']) {
        Ok(address)
    } else {
        // Not repeated in the message: there may be a password in it.
        Err(NotRun("rivals are given plain TCP nodes, host:port, without a password".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use quorlock_servers::{Listen, Nodes, ServerOptions, find_or_skip};

    use super::*;

    #[test]
    fn nodes_are_plain_tcp_addresses() {
        assert_eq!(address("redis://127.0.0.1:7001"), Ok("127.0.0.1:7001"));
        assert_eq!(address("127.0.0.1:7001"), Ok("127.0.0.1:7001"));
        for refused in ["redis+unix:///tmp/s", "redis://:pw@h:1", "rediss://h:1", "h", "h:70000"] {
            let why = address(refused).unwrap_err();
            assert!(!why.0.contains("pw"), "{why}");
        }
    }

    /// What tables say must be what is installed.
    #[test]
    fn versions_are_the_pinned_ones() {
        let python = include_str!("../rivals/requirements.txt");
        let node: serde_json::Value =
            serde_json::from_str(include_str!("../rivals/package.json")).unwrap();
        let pip = |name: &str| {
            let line = python.lines().find_map(|line| line.strip_prefix(&format!("{name}==")));
            line.unwrap_or_else(|| panic!("{name} is not pinned")).to_owned()
        };
        let npm = |name: &str| {
            let version = node["dependencies"][name].as_str().expect("pinned");
            version.rsplit_once('@').map_or(version, |(_, version)| version).to_owned()
        };
        let (client, parser) = (pip("redis"), pip("hiredis"));
        let expected = [
            format!("{client} (hiredis {parser})"),
            format!("{} (redis-py {client}, hiredis {parser})", pip("pottery")),
            format!("{} (redis {})", npm("redlock4"), npm("redis")),
            format!("{} (ioredis {})", npm("redlock5"), npm("ioredis")),
        ];
        let versions: Vec<_> = subjects().iter().map(|rival| rival.version).collect();
        assert_eq!(versions, expected);
    }

    #[test]
    fn the_lock_file_names_no_addresses() {
        let lock = include_str!("../rivals/package-lock.json");
        assert!(!lock.contains("://"), "strip the addresses from package-lock.json");
    }

    #[test]
    fn one_server_is_all_that_redis_py_can_do() {
        let nodes = ["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()];
        let why = subjects()[0].run(&nodes, 1, 1.0).unwrap_err();
        assert_eq!(why.to_string(), "redis-py locks on one server only");
    }

    /// On demand: `cargo test -p quorlock-bench every_rival -- --ignored --nocapture`.
    #[test]
    #[ignore = "fetches packages with pip and npm"]
    fn every_rival_runs_or_says_why_not() {
        let Some(binary) = find_or_skip("the rivals' programs") else { return };
        let options = ServerOptions { listen: Listen::Tcp, ..Default::default() };
        let servers = Nodes::start(&binary, 5, options).unwrap();
        for rival in subjects() {
            println!("{} {}", rival.name, rival.version);
            for (nodes, concurrency) in [(1, 1), (1, 64), (5, 1), (5, 64)] {
                match rival.run(&servers.urls()[..nodes], concurrency, 2.0) {
                    Ok(report) => {
                        println!(
                            "  N={nodes} c={concurrency}: {:.0} pairs/s, p50 {:.0} us, p99 {:.0} us, \
                             {:.0} us CPU per pair",
                            report.pairs_per_s(),
                            report.p50_us,
                            report.p99_us,
                            report.cpu_us_per_pair()
                        );
                        assert!(report.pairs > 0);
                        assert!(report.p50_us <= report.p99_us);
                        assert!(report.cpu_seconds > 0.0 && report.seconds > 0.0);
                    }
                    Err(why) => println!("  N={nodes} c={concurrency}: not run: {why}"),
                }
            }
            for (nodes, processes) in [(1, 2), (1, 8), (5, 2)] {
                let hold = Duration::from_millis(5);
                match rival.handover(&servers.urls()[..nodes], processes, 3.0, hold) {
                    Ok(report) => println!("  N={nodes}, {processes} processes: {report:?}"),
                    Err(why) => println!("  N={nodes}, {processes} processes: not run: {why}"),
                }
            }
        }
    }
}
