//! Injects the faults of the plan into servers and connections, and heals them at the end.

use std::collections::BTreeSet;

use quorlock_servers::proxy::{Blow, Effect, Proxy};

use crate::faults::{Act, Change, MASTER_AGAIN, NO_EVICTION, Ways, node_name};
use crate::plan::PROCESSES;
use crate::said;
use crate::servers::Servers;

pub(crate) struct Nemesis {
    pub(crate) servers: Servers,
    /// The proxies of each process, one for each node.
    pub(crate) proxies: Vec<Vec<Proxy>>,
    killed: BTreeSet<usize>,
    paused: BTreeSet<usize>,
}

impl Nemesis {
    pub(crate) fn new(servers: Servers, proxies: Vec<Vec<Proxy>>) -> Self {
        Self { servers, proxies, killed: BTreeSet::new(), paused: BTreeSet::new() }
    }

    pub(crate) fn act(&mut self, act: &Act) -> Result<(), String> {
        let servers = &mut self.servers;
        match act {
            Act::Set(ways, directions, traffic) => {
                for direction in directions {
                    self.each(ways, |proxy| proxy.set(*direction, *traffic));
                }
            }
            Act::Strike(ways, blow) => self.each(ways, |proxy| proxy.strike(*blow)),
            Act::Release(ways) => self.each(ways, Proxy::release),
            Act::Node(node, change) => self.change(*node, *change)?,
            Act::Commands(places, commands) => {
                places.iter().try_for_each(|node| servers.commands(*node, commands))?;
            }
            Act::Amnesia(places) => servers.start_empty(places)?,
            Act::LogTail(places, bytes) => servers.start_without_tail(places, *bytes)?,
            Act::Forget(places) => places.iter().try_for_each(|node| servers.forget(*node))?,
            Act::ReplicaOf(node, of) => servers.follow(*node, *of)?,
            Act::Follow(node) => servers.follow_with_spare(*node)?,
            Act::Promote(node) => {
                servers.promote(*node)?;
                self.lead(*node, 0..PROCESSES, true);
            }
            Act::Step(node, by) => servers.clock(*node).step(*by).map_err(said)?,
            Act::Run(node, ppm) => servers.clock(*node).run(*ppm).map_err(said)?,
            Act::SetRight(node) => servers.clock(*node).set_right().map_err(said)?,
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
            // The subject of the round carries these out.
            Act::Client(..) | Act::BySentinel(_) | Act::ToHolder(_) => {}
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

    fn change(&mut self, node: usize, change: Change) -> Result<(), String> {
        let server = self.servers.node(node);
        match change {
            Change::Stop => {
                self.paused.insert(node);
                server.pause().map_err(said)
            }
            Change::Continue => {
                self.paused.remove(&node);
                server.resume().map_err(said)
            }
            Change::Kill => {
                self.killed.insert(node);
                server.kill().map_err(said)
            }
            Change::Start if self.killed.remove(&node) => self.servers.start_empty(&[node]),
            Change::Start => Ok(()),
        }
    }

    pub(crate) fn is_up(&self, node: usize) -> bool {
        !self.killed.contains(&node) && !self.paused.contains(&node)
    }

    pub(crate) fn heal(&mut self) -> Result<(), String> {
        self.proxies.iter().flatten().for_each(Proxy::open);
        for node in 0..self.servers.places() {
            self.change(node, Change::Start)?;
            self.change(node, Change::Continue)?;
            self.servers.commands(node, MASTER_AGAIN)?;
            self.servers.commands(node, NO_EVICTION)?;
        }
        Ok(())
    }

    /// The nodes' names, and the URLs of the proxies through which a process reaches them.
    pub(crate) fn urls(&self, process: usize) -> Vec<String> {
        let proxies = self.proxies[process].iter().enumerate();
        proxies.map(|(node, proxy)| format!("{}={}", node_name(node), proxy.url())).collect()
    }

    /// The number of times that the proxies recorded this effect on a connection.
    pub(crate) fn count(&self, effect: Effect) -> u64 {
        self.proxies.iter().flatten().map(|proxy| proxy.count(effect)).sum()
    }
}
