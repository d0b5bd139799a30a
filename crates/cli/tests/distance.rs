//! Every command, in a fresh process, at several distances from the nodes.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use common::{Running, boot, code, command, eventually, json_lines, quorlock, stderr, stdout};
use quorlock_servers::certificates::Authority;
use quorlock_servers::proxy::{Distance, Proxy};
use quorlock_servers::{Nodes, Reply, ServerOptions, StartError, without_tls};
use tokio::runtime::{Builder, Handle};

/// The number of processes at the same time.
const SIDE_BY_SIDE: usize = 24;

/// A confirmed release has deleted the keys of all nodes after this time.
const LEFT: Duration = Duration::from_millis(500);

/// A command that makes one attempt connects for at most 5 s, and waits for at most a fifth of the ttl of 10 s for an
/// answer. It releases what it got for at most 5 s.
const LONGEST: Duration = Duration::from_secs(12);

const VALUE: &str = "a value";

/// Three nodes, each at its distance.
struct Place {
    name: &'static str,
    nodes: Arc<Nodes>,
    proxies: Vec<Proxy>,
    millis: [u64; 3],
    /// The authority of the servers' certificates; `None` without TLS.
    authority: Option<Arc<Authority>>,
    runtime: Handle,
}

impl Place {
    fn new(
        runtime: &Handle,
        name: &'static str,
        nodes: &Arc<Nodes>,
        authority: Option<Arc<Authority>>,
        millis: [u64; 3],
    ) -> Self {
        let proxy = |(node, millis)| {
            let proxy = runtime.block_on(Proxy::start(node)).unwrap();
            proxy.set_distance(Distance::of_round_trip(Duration::from_millis(millis)));
            proxy
        };
        let proxies = nodes.iter().zip(millis).map(proxy).collect();
        Self { name, nodes: nodes.clone(), proxies, millis, authority, runtime: runtime.clone() }
    }

    /// As this place, but with servers of its own.
    fn elsewhere(&self) -> Self {
        let nodes = start(self.authority.as_deref()).unwrap();
        Self::new(&self.runtime, self.name, &nodes, self.authority.clone(), self.millis)
    }

    fn quorlock(&self, urls: impl IntoIterator<Item = String>, args: &[&str]) -> Command {
        let nodes = ["a", "b", "c"].iter().zip(urls).map(|(name, url)| format!("{name}={url}"));
        let mut command = quorlock(args);
        command.env("QUORLOCK_NODES", nodes.collect::<Vec<_>>().join(","));
        command.env("QUORLOCK_RESTART_GUARD", "strict");
        let ca = self.authority.as_ref().map(|authority| authority.file("ca.pem"));
        command.envs(ca.map(|ca| ("QUORLOCK_TLS_CA", ca)));
        command
    }

    fn far_command(&self, args: &[&str]) -> Command {
        self.quorlock(self.proxies.iter().map(Proxy::url), args)
    }

    /// Runs a command at a distance.
    fn far(&self, args: &[&str]) -> Output {
        self.far_command(args).output().unwrap()
    }

    /// Runs a command at a distance, which makes one attempt and succeeds. Returns its output without the line's end.
    fn succeeds(&self, args: &[&str]) -> String {
        let started = boot();
        let output = self.far(args);
        code(&output, 0);
        let took = boot() - started;
        assert!(took <= LONGEST, "{took:?}: {}", stderr(&output));
        stdout(&output).trim_end().to_owned()
    }

    /// Runs a command without distance and with time for a busy machine. Returns its output without the line's end.
    fn near(&self, args: &[&str]) -> String {
        let mut command = self.quorlock(self.nodes.urls(), args);
        // `init` asks with timeouts of its own.
        command.envs((args[0] != "init").then_some(("QUORLOCK_NODE_TIMEOUT", "2s")));
        let output = command.output().unwrap();
        code(&output, 0);
        stdout(&output).trim_end().to_owned()
    }

    fn keys(&self, key: &str) -> usize {
        let has_key = |node| command(node, &["EXISTS", key]) == Reply::Int(1);
        self.nodes.iter().filter(|node| has_key(node)).count()
    }

    /// Asserts that all servers delete the key within half a second.
    fn is_free(&self, key: &str) {
        let started = boot();
        eventually("the lock is free", || {
            let keys = self.keys(key);
            assert!(keys == 0 || boot() - started <= LEFT, "{keys} keys are left");
            (keys == 0).then_some(())
        });
    }

    fn released(&self, lease: &str, key: &str) {
        assert_eq!(self.succeeds(&["release", lease]), "");
        self.is_free(key);
    }
}

/// Three servers, with TLS if there is an authority for their certificates. `None`: no server has TLS.
fn start(authority: Option<&Authority>) -> Option<Arc<Nodes>> {
    let binary = common::server()?;
    let tls = authority.map(|authority| authority.server(false));
    match Nodes::start(&binary, 3, ServerOptions { tls, ..ServerOptions::default() }) {
        Err(StartError::NoTls { .. }) => {
            without_tls(&binary, &common::test_name());
            None
        }
        started => Some(Arc::new(started.unwrap())),
    }
}

/// The commands that need no nodes.
const WITHOUT_NODES: [&str; 4] = ["demo", "completions", "man", "help"];

type Cell = fn(&Place, &str);

/// Uses of each command, with a key of their own. The first word is the command.
const CELLS: &[(&str, Cell)] = &[
    ("acquire", |at, k| acquire(at, k, &[])),
    ("acquire --fenced", |at, k| acquire(at, k, &["--fenced"])),
    ("acquire --shared", |at, k| acquire(at, k, &["--shared"])),
    ("acquire --also", |at, k| acquire(at, k, &["--also", &format!("{k} 2")])),
    ("acquire --value", |at, k| acquire(at, k, &["--value", VALUE])),
    ("acquire --hold-by", acquire_with_a_keeper),
    ("acquire that waits", acquire_that_waits),
    ("extend", |at, k| {
        let lease = at.near(&["acquire", k]);
        let extended = at.succeeds(&["extend", &lease]);
        assert_ne!(extended, lease);
        at.released(&extended, k);
    }),
    ("extend --value", |at, k| {
        at.near(&["acquire", k, "--value", VALUE]);
        at.succeeds(&["extend", k, "--value", VALUE]);
        at.near(&["release", k, "--value", VALUE]);
        at.is_free(k);
    }),
    ("release", |at, k| at.released(&at.near(&["acquire", k]), k)),
    ("release --value", |at, k| {
        at.near(&["acquire", k, "--value", VALUE]);
        at.succeeds(&["release", k, "--value", VALUE]);
        at.is_free(k);
    }),
    ("query", |at, k| {
        let lease = at.near(&["acquire", k, "--value", VALUE]);
        assert_eq!(at.succeeds(&["query", k]), VALUE);
        at.near(&["release", &lease]);
        code(&at.far(&["query", k]), 1);
    }),
    ("run", |at, k| {
        assert_eq!(at.succeeds(&["run", k, "--wait", "0s", "--", "echo", "ran"]), "ran");
        at.is_free(k);
    }),
    ("run --if-held", |at, k| {
        let lease = at.near(&["acquire", k]);
        let skips = ["run", k, "--wait", "0s", "--if-held", "skip", "--", "echo", "ran"];
        assert_eq!(at.succeeds(&skips), "");
        at.near(&["release", &lease]);
        assert_eq!(at.succeeds(&skips), "ran");
        at.is_free(k);
    }),
    ("status", |at, k| {
        let lease = at.near(&["acquire", k]);
        code(&at.far(&["status", k, "--exit-code"]), 75);
        at.near(&["release", &lease]);
        let status = json_lines(&at.succeeds(&["status", k, "--json", "--exit-code"])).remove(0);
        let nodes = status["nodes"].as_array().unwrap();
        assert!(nodes.iter().all(|node| node["trust_state"] == "trusted"), "{status}");
    }),
    ("ls", |at, k| {
        let lease = at.near(&["acquire", k]);
        let listed = at.succeeds(&["ls", k]);
        assert!(listed.contains(k), "{listed}");
        at.near(&["release", &lease]);
    }),
    ("ls and init after a flush", |at, k| {
        let at = at.elsewhere();
        at.near(&["init", "--fresh", "--yes"]);
        assert_eq!(at.succeeds(&["ls"]), "no locks");
        let holder =
            Running::start(&mut at.far_command(&["run", k, "--ttl", "30s", "--", "sleep", "60"]));
        eventually("it is held", || (at.keys(k) == 3).then_some(()));
        at.nodes.iter().for_each(|node| drop(command(node, &["FLUSHALL"])));
        let output = at.far(&["ls"]);
        code(&output, 69);
        assert!(stdout(&output).contains("it may have forgotten locks: "), "{}", stdout(&output));
        let output = at.far(&["init", "--fresh", "--yes"]);
        code(&output, 75);
        let said = stderr(&output);
        assert!(said.contains("a client that takes locks is connected"), "{said}");
        drop(holder);
    }),
    ("doctor", |at, _| {
        // It warns of a round trip of more than a tenth of a second, and of nothing else. A busy machine adds to it.
        let output = at.far(&["doctor"]);
        let said = stdout(&output);
        let warnings = said.lines().filter(|line| line.contains(" warning: ")).count();
        let distant = at.millis.iter().filter(|millis| **millis >= 100).count();
        assert!(warnings >= distant, "{said}");
        assert_eq!(said.matches(" warning: a round trip takes ").count(), warnings, "{said}");
        code(&output, i32::from(warnings > 0));
    }),
    ("init --fresh", |at, k| {
        let at = at.elsewhere();
        code(&at.far(&["init", "--fresh", "--yes"]), 0);
        at.released(&at.succeeds(&["acquire", k, "--wait", "0s"]), k);
    }),
    ("init --reconfigure", |at, k| {
        let at = at.elsewhere();
        let settings = |max_ttl| ["init", "--yes", "--max-ttl", max_ttl];
        at.near(&[&settings("1s")[..], &["--fresh"]].concat());
        let changed = at.far(&[&settings("8s")[..], &["--reconfigure"]].concat());
        code(&changed, 0);
        at.released(&at.near(&["acquire", k, "--wait", "0s", "--max-ttl", "8s"]), k);
    }),
];

fn acquire(at: &Place, key: &str, options: &[&str]) {
    let lease = at.succeeds(&[&["acquire", key, "--wait", "0s"], options].concat());
    assert!(at.keys(key) >= 2);
    at.released(&lease, key);
}

fn acquire_with_a_keeper(at: &Place, key: &str) {
    let mut holder = Running::of(Command::new("sleep").arg("60").spawn().unwrap());
    let (pid, options) = (holder.id().to_string(), ["--wait", "0s", "--hold-by"]);
    let lease = at.succeeds(&[&["acquire", key], &options[..], &[&pid]].concat());
    at.released(&lease, key);
    at.succeeds(&[&["acquire", key], &options[..], &[&pid]].concat());
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    eventually("the keeper releases the lock", || (at.keys(key) == 0).then_some(()));
}

fn acquire_that_waits(at: &Place, key: &str) {
    let lease = at.near(&["acquire", key]);
    let waiting = Running::start(&mut at.far_command(&["acquire", key]));
    waiting.await_line("waiting for ");
    at.near(&["release", &lease]);
    let output = waiting.end();
    code(&output, 0);
    at.released(stdout(&output).trim_end(), key);
}

#[test]
fn every_command_does_at_every_distance_what_it_does_nearby() {
    let Some(nodes) = start(None) else { return };
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut places = Vec::new();
    for (name, millis) in [
        ("400 ms", [400; 3]),
        ("60 ms", [60; 3]),
        ("0 ms", [0; 3]),
        ("20 ms", [20; 3]),
        ("150 ms", [150; 3]),
        ("150 ms to one", [0, 0, 150]),
    ] {
        places.push(Place::new(runtime.handle(), name, &nodes, None, millis));
    }
    let authority = Arc::new(Authority::new());
    if let Some(nodes) = start(Some(&authority)) {
        let place = Place::new(runtime.handle(), "60 ms and TLS", &nodes, Some(authority), [60; 3]);
        places.push(place);
    }
    // The first and the last place have the two sets of servers.
    for place in [places.first(), places.last()].into_iter().flatten() {
        place.near(&["init", "--fresh", "--yes"]);
    }
    let cells = CELLS.iter().flat_map(|cell| places.iter().map(move |place| (place, cell)));
    let (cells, failed) = (Mutex::new(cells), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                loop {
                    let Some((place, (name, cell))) = cells.lock().unwrap().next() else { return };
                    let name = format!("{name}, {}", place.name);
                    let result = catch_unwind(AssertUnwindSafe(|| cell(place, &name)));
                    let panic = result.err();
                    failed
                        .lock()
                        .unwrap()
                        .extend(panic.map(|it| format!("{name}: {}", said(&*it))));
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).unwrap_or("it panics")
}

#[test]
fn every_command_is_in_the_table() {
    let help = stdout(&quorlock(&["--help"]).output().unwrap());
    let (_, commands) = help.split_once("\nCommands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let named: Vec<&str> = commands
        .lines()
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(named.len() > 10, "{help}");
    for command in named {
        let is_in_table = CELLS.iter().any(|(name, _)| name.split(' ').next() == Some(command));
        assert!(is_in_table != WITHOUT_NODES.contains(&command), "quorlock {command}");
    }
}
