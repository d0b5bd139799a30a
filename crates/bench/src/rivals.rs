//! Lock libraries of other languages, which run as separate programs.
//!
//! `rivals/` has a program for each library. All take the arguments
//!
//! ```text
//! --nodes host:port,host:port --workload pairs --concurrency C --seconds S [--key K]
//! --nodes host:port,host:port --workload handover --key K --hold-ms H
//! ```
//!
//! The ttl is ten seconds.
//!
//! - `pairs`: C lockers, each with a key of its own, acquire and release for S seconds after a short
//!   warm-up. The program prints one line,
//!   `{"pairs":…,"seconds":…,"cpu_seconds":…,"p50_us":…,"p99_us":…,"p999_us":…}`, where
//!   `cpu_seconds` is its own CPU time.
//! - `handover`: a worker process as in `worker.rs`. The program prints `ready` and waits for `go END`. Until END it
//!   acquires K, holds the lock and releases it, repeatedly. It prints each wait as `[asked,acquired,released]`, in
//!   nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
//!
//! `cargo xtask bench` installs pinned versions of the libraries into `target/bench-rivals`. The report lists a library
//! that is missing or cannot run as `not run: why`.

#[path = "../../../xtask/src/program.rs"]
mod program;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use quorlock_servers::Server;
use serde::Deserialize;

use crate::sample::Sample;
use crate::subjects::Subject;

/// The time that a program gets in addition to the measurement: it starts, warms up and reports.
const GRACE: Duration = Duration::from_secs(15);

/// A lock library of another language.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rival {
    /// The name in tables and plots.
    pub(crate) name: &'static str,
    /// The versions of the library and of its Redis client.
    pub(crate) version: &'static str,
    /// The file name of the program in `rivals/`. The extension shows the language.
    program: &'static str,
    args: &'static [&'static str],
    single_node_only: bool,
}

/// All libraries that are compared, including those that cannot run here.
pub(crate) const RIVALS: [Rival; 4] = [
    Rival {
        name: "redis-py",
        version: "8.1.0 (hiredis 3.5.0)",
        program: "redis_py.py",
        args: &[],
        single_node_only: true,
    },
    Rival {
        name: "pottery",
        version: "3.0.1 (redis-py 8.1.0, hiredis 3.5.0)",
        program: "pottery.py",
        args: &[],
        single_node_only: false,
    },
    Rival {
        name: "node-redlock 4",
        version: "4.2.0 (redis 3.1.2)",
        program: "redlock.mjs",
        args: &["--library", "redlock4"],
        single_node_only: false,
    },
    Rival {
        name: "node-redlock 5",
        version: "5.0.0-beta.2 (ioredis 5.11.1)",
        program: "redlock.mjs",
        args: &["--library", "redlock5"],
        single_node_only: false,
    },
];

/// Returns the library of another language with this name.
///
/// # Errors
/// If there is none.
pub(crate) fn find(name: &str) -> Result<Rival, String> {
    let found = RIVALS.into_iter().find(|rival| rival.name == name);
    found.ok_or_else(|| format!("there is no program for {name}"))
}

/// A library of another language, and the addresses of the nodes on which it locks.
#[derive(Debug)]
pub(crate) struct External {
    rival: Rival,
    nodes: Vec<String>,
}

/// The output of another library's program for the workload `pairs`.
#[derive(Debug, Deserialize)]
struct Pairs {
    pairs: u64,
    seconds: f64,
    cpu_seconds: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
}

impl Rival {
    /// # Errors
    /// If the library's packages are not installed, or the library cannot lock on this number of nodes.
    pub(crate) fn on(self, servers: &[Server]) -> Result<External, String> {
        if self.single_node_only && servers.len() != 1 {
            return Err("it locks on one server only".to_owned());
        }
        let nodes = servers.iter().map(Server::address).collect();
        self.interpreter()?;
        Ok(External { rival: self, nodes })
    }

    /// Returns a command that starts Python or Node.js with access to the installed packages.
    fn interpreter(self) -> Result<Command, String> {
        let is_python = self.program.ends_with(".py");
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
        let workspace = workspace.expect("the crate lies two folders below the workspace");
        let packages = workspace.join("target/bench-rivals");
        let folder = packages.join(if is_python { "python" } else { "node" });
        // `cargo xtask bench` writes this file last, so it exists only if all packages are installed.
        if !folder.join("installed-from").exists() {
            return Err(format!("its packages are not in {}", folder.display()));
        }
        let mut command = Command::new(if is_python { "python3" } else { "node" });
        match is_python {
            // -B: write no compiled files into the source tree.
            true => command.arg("-B").env("PYTHONPATH", folder),
            false => command.current_dir(folder),
        };
        Ok(command)
    }
}

impl External {
    /// Returns the command of a worker process that contends for `key`.
    ///
    /// # Errors
    /// If the packages are missing.
    pub(crate) fn worker(&self, key: &str, hold: Duration) -> Result<Command, String> {
        let mut command = self.command("handover")?;
        command.args(["--key", key, "--hold-ms", &(hold.as_secs_f64() * 1e3).to_string()]);
        Ok(command)
    }

    fn command(&self, workload: &str) -> Result<Command, String> {
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("rivals");
        let mut command = self.rival.interpreter()?;
        command
            .arg(programs.join(self.rival.program))
            .args(self.rival.args)
            .args(["--nodes", &self.nodes.join(",")])
            .args(["--workload", workload]);
        Ok(command)
    }
}

impl Subject for External {
    fn name(&self) -> &'static str {
        self.rival.name
    }

    fn is_external(&self) -> bool {
        true
    }

    fn pairs(&mut self, lockers: usize, time: Duration) -> Result<Sample, String> {
        let mut command = self.command("pairs")?;
        command
            .args(["--concurrency", &lockers.to_string()])
            .args(["--seconds", &time.as_secs_f64().to_string()]);
        let ended = program::run(&mut command, time + GRACE)?;
        if !ended.is_success() {
            // The last line, in which Python and Node.js write the reason.
            let last = ended.errors.trim().lines().last().unwrap_or("it wrote no error");
            return Err(last.to_owned());
        }
        let report: Pairs = serde_json::from_str(&ended.output)
            .map_err(|why| format!("its report cannot be read: {why}: {}", ended.output))?;
        let seconds = |value: f64| {
            Duration::try_from_secs_f64(value).map_err(|why| format!("its report: {why}"))
        };
        Ok(Sample {
            pairs: report.pairs,
            elapsed: seconds(report.seconds)?,
            cpu: seconds(report.cpu_seconds)?,
            p50_us: report.p50_us,
            p99_us: report.p99_us,
            p999_us: report.p999_us,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The versions in `RIVALS` are those that `cargo xtask bench` installs.
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
            format!("{} (redis {})", npm("redlock4"), npm("redis3")),
            format!("{} (ioredis {})", npm("redlock5"), npm("ioredis")),
        ];
        let versions: Vec<_> = RIVALS.iter().map(|rival| rival.version).collect();
        assert_eq!(versions, expected);
    }

    #[test]
    fn the_lock_file_names_no_addresses() {
        let lock = include_str!("../rivals/package-lock.json");
        assert!(!lock.contains("://"), "strip the addresses from package-lock.json");
    }
}
