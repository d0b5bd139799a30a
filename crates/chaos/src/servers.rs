//! The servers of a round, and their faults that need more than a signal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use quorlock_servers::{Listen, Nodes, Reply, Server, ServerBinary, ServerOptions};
use quorlock_sim::time::{SECOND, Time};

use crate::clock::{now, wait_for};
use crate::faults::{Commands, Failover, Kind, MASTER_AGAIN, node_name};
use crate::plan::RoundPlan;
use crate::said;
use crate::server_clock::{ServerClock, Shim};

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
        let count = match plan.has_replicas() {
            true => 3 * plan.nodes,
            false => plan.nodes + usize::from(plan.has(Kind::PROMOTE)),
        };
        let options = options(plan, binary, shim);
        let nodes = Nodes::start(binary, count, options).map_err(said)?;
        let nodes = Arc::new(nodes);
        let clocks: io::Result<Vec<_>> = match shim {
            Some(_) => nodes.iter().map(ServerClock::new).collect(),
            None => Ok(Vec::new()),
        };
        let clocks = clocks.map_err(|error| format!("a server's clock: {error}"))?;
        let at = (0..count).collect();
        let servers = Self { nodes, at, places: plan.nodes, clocks };
        for node in (0..plan.nodes).filter(|_| plan.has_replicas()) {
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
                    server.restart().map_err(said)
                })
            };
            let starting: Vec<_> = places.iter().map(restart).collect();
            starting.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()))
            })
        })
    }

    pub(crate) fn command(&self, place: usize, words: &[&str]) -> Result<(), String> {
        let failed = |why| format!("node {}: {why}", node_name(place));
        ask(self.node(place), words).map(drop).map_err(failed)
    }

    pub(crate) fn commands(&self, place: usize, commands: Commands) -> Result<(), String> {
        commands.iter().try_for_each(|words| self.command(place, words))
    }

    /// Drops all data of a running server. Clients see no other change.
    pub(crate) fn forget(&self, place: usize) -> Result<(), String> {
        // Removes the saved data. Loading it would restore the marker, which shows that no data was lost.
        let saved = self.node(place).home().join("dump.rdb");
        fs::remove_file(saved).or_else(absent_is_fine).map_err(said)?;
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
        let is_synced = || self.is_synced(server).map(|is| is.then_some(())).transpose();
        wait_for(now() + SYNC, is_synced).ok_or("a replica does not receive its master's data")?
    }

    fn replicate(&self, server: usize, of: usize) -> Result<(), String> {
        let address = self.node(of).address();
        let Some((host, port)) = address.rsplit_once(':') else {
            return Err(format!("{address} is no port"));
        };
        ask(&self.nodes[server], &["REPLICAOF", host, port]).map(drop)
    }

    fn is_synced(&self, server: usize) -> Result<bool, String> {
        let info = ask(&self.nodes[server], &["INFO", "replication"])?;
        Ok(text(&info).contains("master_link_status:up"))
    }

    pub(crate) fn promote(&mut self, place: usize) -> Result<(), String> {
        let (old, spare) = (self.at[place], self.spare());
        self.nodes[old].kill().map_err(said)?;
        ask(&self.nodes[spare], MASTER_AGAIN[0])?;
        self.at[place] = spare;
        Ok(())
    }

    /// Lets the master of a node fail, and promotes its replica.
    pub(crate) fn fail_over(&mut self, failover: &Failover) -> Result<(), String> {
        let Failover { kind, node, third, .. } = *failover;
        let [master, replica, spare] = [0, 1, 2].map(|role| role * self.places + node);
        let old = &self.nodes[self.at[master]];
        match kind {
            Kind::MASTER_STOPS => old.pause(),
            Kind::MASTER_KILLED => old.kill(),
            _ => Ok(()),
        }
        .map_err(said)?;
        ask(&self.nodes[self.at[replica]], MASTER_AGAIN[0])?;
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
        self.nodes[self.old_master(failover)].resume().map_err(said)
    }

    pub(crate) fn end_failover(&self, failover: &Failover) -> Result<(), String> {
        let old = self.old_master(failover);
        match failover.kind {
            _ if failover.third => self.nodes[old].kill().map_err(said)?,
            Kind::MASTER_KILLED => self.nodes[old].restart().map_err(said)?,
            _ => {}
        }
        if failover.third { Ok(()) } else { self.replicate(old, failover.node) }
    }

    fn spare(&self) -> usize {
        self.at[self.at.len() - 1]
    }

    pub(crate) fn clock(&mut self, place: usize) -> &mut ServerClock {
        &mut self.clocks[self.at[place]]
    }
}

fn options(plan: &RoundPlan, binary: &ServerBinary, shim: Option<&Shim>) -> ServerOptions {
    let mut args = vec!["--repl-diskless-sync-delay", "0"];
    // Servers from version 7 on allow `DEBUG` only with this option.
    if binary.version.major >= 7 {
        args.extend(["--enable-debug-command", "local"]);
    }
    if plan.has(Kind::LOG_TAIL) {
        args.extend(["--appendonly", "yes", "--appendfsync", "everysec"]);
    }
    ServerOptions {
        listen: Listen::Tcp,
        args: args.into_iter().map(String::from).collect(),
        env: shim.map(Shim::env).unwrap_or_default(),
        ..ServerOptions::default()
    }
}

/// Sends a command to a server. The error is that of the connection or of the server.
pub(crate) fn ask(server: &Server, words: &[&str]) -> Result<Reply, String> {
    match server.command(words) {
        Ok(Reply::Error(error)) => Err(format!("{}: {error}", words.join(" "))),
        Ok(reply) => Ok(reply),
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

/// The text of a reply; empty if the reply is no string.
pub(crate) fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}
