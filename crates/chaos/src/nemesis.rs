//! Injects the faults of the plan into servers, connections and processes, and heals them at the end.

use std::collections::{BTreeMap, BTreeSet};

use quorlock_servers::proxy::{Blow, Effect, Proxy};

use crate::act::{Act, Event, Kind, Ways};
use crate::clock::now;
use crate::ledger::CALLS;
use crate::plan::PROCESSES;
use crate::servers::Servers;
use crate::workers::{Shared, Workers, lock};

pub(crate) struct Nemesis {
    pub(crate) servers: Servers,
    pub(crate) proxies: Vec<Vec<Proxy>>,
    pub(crate) workers: Workers,
    pub(crate) ledger: Shared,
    pub(crate) injected: BTreeMap<Kind, u64>,
    killed: BTreeSet<usize>,
    paused: BTreeSet<usize>,
    replicas: BTreeSet<usize>,
    evicting: BTreeSet<usize>,
}

impl Nemesis {
    pub(crate) fn new(
        servers: Servers,
        proxies: Vec<Vec<Proxy>>,
        workers: Workers,
        ledger: &Shared,
    ) -> Self {
        let (injected, killed, paused, replicas, evicting) = Default::default();
        let ledger = ledger.clone();
        Self { servers, proxies, workers, ledger, injected, killed, paused, replicas, evicting }
    }

    pub(crate) fn act(&mut self, event: &Event) -> Result<(), String> {
        if let Some(kind) = event.begins {
            *self.injected.entry(kind).or_default() += 1;
        }
        lock(&self.ledger).note(now(), format!("-- {}", event.act));
        match &event.act {
            Act::Set(ways, directions, traffic) => {
                for direction in directions {
                    self.each(ways, |proxy| proxy.set(*direction, *traffic));
                }
            }
            Act::Strike(ways, blow) => self.each(ways, |proxy| proxy.strike(*blow)),
            Act::Release(ways) => self.each(ways, Proxy::release),
            Act::StopClient(process) => {
                let held = self.workers.stop(*process)?;
                lock(&self.ledger).totals.count(
                    CALLS,
                    "processes stopped while they held a lock",
                    u64::from(held > 0),
                );
            }
            Act::ContinueClient(process) => self.workers.go_on(*process)?,
            Act::KillClient(process) => {
                let held = self.workers.kill(*process)?;
                lock(&self.ledger).totals.count(
                    CALLS,
                    "processes killed while they held a lock",
                    u64::from(held > 0),
                );
            }
            Act::StartClient(process) => self.workers.start_again(*process)?,
            act => self.act_on_server(act)?,
        }
        Ok(())
    }

    fn act_on_server(&mut self, act: &Act) -> Result<(), String> {
        let servers = &mut self.servers;
        match act {
            Act::KillNode(node) => {
                servers.node(*node).kill().map_err(|error| error.to_string())?;
                self.killed.insert(*node);
            }
            Act::StartNode(node) => self.start(*node)?,
            Act::StopNode(node) => {
                servers.node(*node).pause().map_err(|error| error.to_string())?;
                self.paused.insert(*node);
            }
            Act::ContinueNode(node) => self.resume(*node)?,
            Act::Amnesia(places) => servers.start_empty(places)?,
            Act::LogTail(places, bytes) => servers.start_without_tail(places, *bytes)?,
            Act::Flush(places) => {
                places.iter().try_for_each(|node| servers.command(*node, &["FLUSHALL"]))?;
            }
            Act::Reload(node) => servers.command(*node, &["DEBUG", "RELOAD"])?,
            Act::Forget(places) => places.iter().try_for_each(|node| servers.forget(*node))?,
            Act::ScriptFlush(node) => servers.command(*node, &["SCRIPT", "FLUSH"])?,
            Act::ReplicaOf(node, of) => {
                servers.follow(*node, *of)?;
                self.replicas.insert(*node);
            }
            Act::MasterAgain(node) => self.stand_alone(*node)?,
            Act::Follow(node) => servers.follow_with_spare(*node)?,
            Act::Promote(node) => {
                servers.promote(*node)?;
                self.lead(*node, 0..PROCESSES, true);
            }
            Act::Evict(node) => {
                servers.command(*node, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])?;
                servers.command(*node, &["CONFIG", "SET", "maxmemory", "100mb"])?;
                self.evicting.insert(*node);
            }
            Act::NoEviction(node) => self.no_eviction(*node)?,
            Act::Step(node, by) => servers.step(*node, *by)?,
            Act::Run(node, ppm) => servers.run(*node, *ppm)?,
            Act::SetRight(node) => servers.set_right(*node)?,
            Act::Failover(failover) => {
                servers.fail_over(failover)?;
                let is_moved = |process: &usize| !failover.stale.contains(process);
                self.lead(failover.node, (0..PROCESSES).filter(is_moved), failover.closes);
            }
            Act::OldMasterContinues(failover) => servers.continue_old_master(failover)?,
            Act::OldMasterLeaves(failover) => {
                self.lead(failover.node, 0..PROCESSES, true);
                self.servers.end_failover(failover)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Leads new connections of these processes to the node's present server. If `closes`, also closes the connections
    /// that lead to the old server, even if their messages are held back.
    fn lead(&self, node: usize, processes: impl Iterator<Item = usize>, closes: bool) {
        for process in processes {
            let proxy = &self.proxies[process][node];
            proxy.lead_to(self.servers.node(node));
            if closes {
                proxy.strike(Blow::Close);
            }
        }
    }

    fn each(&self, ways: &Ways, what: impl Fn(&Proxy)) {
        for &process in &ways.processes {
            ways.nodes.iter().for_each(|&node| what(&self.proxies[process][node]));
        }
    }

    fn start(&mut self, node: usize) -> Result<(), String> {
        if self.killed.remove(&node) { self.servers.start_empty(&[node]) } else { Ok(()) }
    }

    pub(crate) fn is_up(&self, node: usize) -> bool {
        !self.killed.contains(&node) && !self.paused.contains(&node)
    }

    fn resume(&mut self, node: usize) -> Result<(), String> {
        self.paused.remove(&node);
        self.servers.node(node).resume().map_err(|error| error.to_string())
    }

    fn stand_alone(&mut self, node: usize) -> Result<(), String> {
        if self.replicas.remove(&node) { self.servers.stand_alone(node) } else { Ok(()) }
    }

    fn no_eviction(&mut self, node: usize) -> Result<(), String> {
        if self.evicting.remove(&node) {
            let servers = &self.servers;
            servers.command(node, &["CONFIG", "SET", "maxmemory", "0"])?;
            servers.command(node, &["CONFIG", "SET", "maxmemory-policy", "noeviction"])?;
        }
        Ok(())
    }

    pub(crate) fn heal(&mut self) -> Result<(), String> {
        lock(&self.ledger).note(now(), "-- everything is taken back");
        self.proxies.iter().flatten().for_each(Proxy::open);
        for node in 0..self.servers.places() {
            self.start(node)?;
            self.resume(node)?;
            self.stand_alone(node)?;
            self.no_eviction(node)?;
        }
        for process in 0..PROCESSES {
            self.workers.start_again(process)?;
            self.workers.go_on(process)?;
        }
        lock(&self.ledger).healed(now());
        Ok(())
    }

    /// The number of times that the proxies recorded this effect on a connection.
    pub(crate) fn count(&self, effect: Effect) -> u64 {
        self.proxies.iter().flatten().map(|proxy| proxy.count(effect)).sum()
    }
}
