//! The servers of a round, and their faults that need more than a signal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use quorlock_servers::{Listen, Nodes, Reply, Server, ServerBinary, ServerOptions};
use quorlock_sim::time::{SECOND, Time};

use crate::act::{Failover, Kind, node_name};
use crate::clock::now;
use crate::plan::RoundPlan;
use crate::shim::{ServerClock, Shim};

/// The longest time until a replica has its master's data.
const SYNC: Time = 5 * SECOND;

/// The servers of a round. A node keeps its index even if another server takes its place.
pub(crate) struct Servers {
    nodes: Arc<Nodes>,
    /// Indexes into `nodes`: the server of each node, then the spare server. If nodes have replicas: the masters of all
    /// nodes, then all replicas, then a third server for each node.
    at: Vec<usize>,
    places: usize,
    clocks: Vec<ServerClock>,
}

impl Servers {
    pub(crate) fn start(
        plan: &RoundPlan,
        binary: &ServerBinary,
        shim: Option<&Shim>,
    ) -> Result<Self, String> {
        let count = match plan.replicas() {
            0 => plan.nodes + usize::from(plan.has(Kind::Promote)),
            _ => 3 * plan.nodes,
        };
        let options = options(plan, binary, shim);
        let nodes = Nodes::start(binary, count, options).map_err(|error| error.to_string())?;
        let nodes = Arc::new(nodes);
        let clocks: io::Result<Vec<_>> = match shim {
            Some(_) => nodes.iter().map(ServerClock::new).collect(),
            None => Ok(Vec::new()),
        };
        let clocks = clocks.map_err(|error| format!("a server's clock: {error}"))?;
        let at = (0..count).collect();
        let servers = Self { nodes, at, places: plan.nodes, clocks };
        for node in (0..plan.nodes).filter(|_| plan.replicas() > 0) {
            servers.synchronise(servers.places + node, node)?;
        }
        Ok(servers)
    }

    pub(crate) const fn places(&self) -> usize {
        self.places
    }

    pub(crate) fn node(&self, place: usize) -> &Server {
        &self.nodes[self.at[place]]
    }

    pub(crate) fn start_empty(&self, places: &[usize]) -> Result<(), String> {
        self.kill_and(places, |server| {
            let files = ["dump.rdb", "appendonly.aof"].map(|name| server.home().join(name));
            for gone in files.iter().map(fs::remove_file) {
                gone.or_else(absent_is_fine)?;
            }
            fs::remove_dir_all(server.home().join("appendonlydir")).or_else(absent_is_fine)
        })
    }

    pub(crate) fn start_without_tail(&self, places: &[usize], bytes: u64) -> Result<(), String> {
        self.kill_and(places, |server| {
            let log = newest_log(server.home())?;
            let log = fs::OpenOptions::new().write(true).open(log)?;
            log.set_len(log.metadata()?.len().saturating_sub(bytes))
        })
    }

    /// Kills all of these servers at the same time, as a power cut does.
    fn kill_and(
        &self,
        places: &[usize],
        then: impl Fn(&Server) -> io::Result<()> + Sync,
    ) -> Result<(), String> {
        for place in places {
            self.node(*place).kill().map_err(|error| format!("kill: {error}"))?;
        }
        thread::scope(|scope| {
            let restart = |place: &usize| {
                let (server, then) = (self.node(*place), &then);
                scope.spawn(move || {
                    then(server).map_err(|error| format!("its files: {error}"))?;
                    server.restart().map_err(|error| error.to_string())
                })
            };
            let starting: Vec<_> = places.iter().map(restart).collect();
            starting.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()))
            })
        })
    }

    pub(crate) fn command(&self, place: usize, words: &[&str]) -> Result<(), String> {
        ask(self.node(place), words).map_err(|why| format!("node {}: {why}", node_name(place)))
    }

    /// Drops all data of a running server. Clients see no other change.
    pub(crate) fn forget(&self, place: usize) -> Result<(), String> {
        // Removes the saved data. Loading it would restore the marker, which shows that no data was lost.
        let saved = self.node(place).home().join("dump.rdb");
        fs::remove_file(saved).or_else(absent_is_fine).map_err(|error| error.to_string())?;
        // The server drops its data, finds nothing to load, and reports this as an error. The error is expected.
        match self.command(place, &["DEBUG", "RELOAD", "NOSAVE"]) {
            Err(why) if !why.contains("Error trying to load the RDB dump") => Err(why),
            _ => Ok(()),
        }
    }

    pub(crate) fn follow(&self, place: usize, of: usize) -> Result<(), String> {
        self.replicate(self.at[place], of)
    }

    /// Makes the spare server a replica of this node, and waits until the replica has the data.
    pub(crate) fn follow_with_spare(&self, of: usize) -> Result<(), String> {
        self.synchronise(self.spare(), of)
    }

    fn synchronise(&self, server: usize, of: usize) -> Result<(), String> {
        self.replicate(server, of)?;
        let deadline = now() + SYNC;
        while !self.is_synced(server)? {
            if now() >= deadline {
                return Err("a replica does not receive its master's data".to_owned());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn replicate(&self, server: usize, of: usize) -> Result<(), String> {
        let address = self.node(of).address();
        let Some((host, port)) = address.rsplit_once(':') else {
            return Err(format!("{address} is no port"));
        };
        ask(&self.nodes[server], &["REPLICAOF", host, port])
    }

    fn is_synced(&self, server: usize) -> Result<bool, String> {
        match self.nodes[server].command(&["INFO", "replication"]) {
            Ok(Reply::Bulk(Some(info))) => {
                Ok(String::from_utf8_lossy(&info).contains("master_link_status:up"))
            }
            other => Err(format!("INFO: {other:?}")),
        }
    }

    pub(crate) fn stand_alone(&self, place: usize) -> Result<(), String> {
        self.command(place, &["REPLICAOF", "NO", "ONE"])
    }

    pub(crate) fn promote(&mut self, place: usize) -> Result<(), String> {
        let (old, spare) = (self.at[place], self.spare());
        self.nodes[old].kill().map_err(|error| error.to_string())?;
        ask(&self.nodes[spare], &["REPLICAOF", "NO", "ONE"])?;
        self.at[place] = spare;
        Ok(())
    }

    /// Lets the master of a node fail, and promotes its replica.
    pub(crate) fn fail_over(&mut self, failover: &Failover) -> Result<(), String> {
        let Failover { kind, node, third, .. } = *failover;
        let [master, replica, spare] = [0, 1, 2].map(|role| role * self.places + node);
        let old = &self.nodes[self.at[master]];
        match kind {
            Kind::MasterStops => old.pause(),
            Kind::MasterKilled => old.kill(),
            _ => Ok(()),
        }
        .map_err(|error| error.to_string())?;
        ask(&self.nodes[self.at[replica]], &["REPLICAOF", "NO", "ONE"])?;
        self.at.swap(master, replica);
        if third {
            self.at.swap(replica, spare);
            self.replicate(self.at[replica], node)?;
        }
        Ok(())
    }

    fn old_master(&self, failover: &Failover) -> usize {
        self.at[if failover.third { 2 } else { 1 } * self.places + failover.node]
    }

    pub(crate) fn continue_old_master(&self, failover: &Failover) -> Result<(), String> {
        self.nodes[self.old_master(failover)].resume().map_err(|error| error.to_string())
    }

    pub(crate) fn end_failover(&self, failover: &Failover) -> Result<(), String> {
        let old = self.old_master(failover);
        match failover.kind {
            _ if failover.third => self.nodes[old].kill().map_err(|error| error.to_string())?,
            Kind::MasterKilled => self.nodes[old].restart().map_err(|error| error.to_string())?,
            _ => {}
        }
        if failover.third { Ok(()) } else { self.replicate(old, failover.node) }
    }

    fn spare(&self) -> usize {
        self.at[self.at.len() - 1]
    }

    pub(crate) fn step(&mut self, place: usize, by: Time) -> Result<(), String> {
        let server = self.at[place];
        self.clocks[server].step(by).map_err(|error| error.to_string())
    }

    pub(crate) fn run(&mut self, place: usize, ppm: i64) -> Result<(), String> {
        let server = self.at[place];
        self.clocks[server].run(ppm).map_err(|error| error.to_string())
    }

    pub(crate) fn set_right(&mut self, place: usize) -> Result<(), String> {
        let clock = &mut self.clocks[self.at[place]];
        let back = -clock.moved();
        clock.step(back).and_then(|()| clock.run(0)).map_err(|error| error.to_string())
    }
}

fn options(plan: &RoundPlan, binary: &ServerBinary, shim: Option<&Shim>) -> ServerOptions {
    let mut args = vec!["--repl-diskless-sync-delay", "0"];
    // Servers from version 7 on allow `DEBUG` only with this option.
    if binary.version.major >= 7 {
        args.extend(["--enable-debug-command", "local"]);
    }
    if plan.has(Kind::LogTail) {
        args.extend(["--appendonly", "yes", "--appendfsync", "everysec"]);
    }
    ServerOptions {
        listen: Listen::Tcp,
        args: args.into_iter().map(String::from).collect(),
        env: shim.map(Shim::env).unwrap_or_default(),
        ..ServerOptions::default()
    }
}

fn ask(server: &Server, words: &[&str]) -> Result<(), String> {
    match server.command(words) {
        Ok(Reply::Error(error)) => Err(format!("{}: {error}", words.join(" "))),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{}: {error}", words.join(" "))),
    }
}

fn absent_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The newest append-only log: `appendonlydir/appendonly.aof.N.incr.aof` with the highest N, or the only file
/// of a server before version 7.
fn newest_log(home: &Path) -> io::Result<PathBuf> {
    let number = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(".incr.aof")?;
        name.rsplit('.').next()?.parse::<u64>().ok()
    };
    match fs::read_dir(home.join("appendonlydir")) {
        Ok(entries) => {
            let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
            let logs = paths.filter_map(|path| Some((number(&path)?, path)));
            let newest = logs.max().map(|(_, path)| path);
            newest.ok_or_else(|| io::Error::other("there is no log"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(home.join("appendonly.aof")),
        Err(error) => Err(error),
    }
}
