//! Does to servers, connections and processes what the plan says, and takes it back.

use std::collections::BTreeMap;
use std::thread;

use quorlock_servers::Nodes;
use quorlock_servers::proxy::{Effect, Proxy};
use quorlock_sim::time::Time;

use crate::clock::now;
use crate::crew::{Crew, Shared, lock};
use crate::plan::{Act, Event, Kind, PROCESSES, Plan, Ways, nanos};

/// The world that it has in its hands.
pub(crate) struct Nemesis {
    pub(crate) nodes: Nodes,
    /// By process and node.
    pub(crate) proxies: Vec<Vec<Proxy>>,
    pub(crate) crew: Crew,
    pub(crate) ledger: Shared,
    /// How often each kind of fault was begun.
    pub(crate) injected: BTreeMap<Kind, u64>,
    /// When the nodes that are down were killed.
    killed: BTreeMap<usize, Time>,
    down_time: Time,
}

impl Nemesis {
    pub(crate) fn new(
        plan: &Plan,
        nodes: Nodes,
        proxies: Vec<Vec<Proxy>>,
        crew: Crew,
        ledger: &Shared,
    ) -> Self {
        let (injected, killed) = Default::default();
        let down_time = plan.down_time();
        Self { nodes, proxies, crew, ledger: ledger.clone(), injected, killed, down_time }
    }

    /// Does what is due.
    ///
    /// # Errors
    /// If it cannot be done.
    pub(crate) fn act(&mut self, event: &Event) -> Result<(), String> {
        if let Some(kind) = event.begins {
            *self.injected.entry(kind).or_default() += 1;
        }
        lock(&self.ledger).note(now(), format!("-- {}", event.act));
        match &event.act {
            Act::Set(ways, directions, way) => {
                for direction in directions {
                    self.each(ways, |proxy| proxy.set(*direction, *way));
                }
            }
            Act::Strike(ways, blow) => self.each(ways, |proxy| proxy.strike(*blow)),
            Act::Release(ways) => self.each(ways, Proxy::release),
            Act::KillNode(node) => self.kill(*node)?,
            Act::StartNode(node) => self.start(*node)?,
            Act::StopNode(node) => self.nodes[*node].pause().map_err(|error| error.to_string())?,
            Act::ContinueNode(node) => self.resume(*node)?,
            Act::StopClient(process) => {
                let held = self.crew.stop(*process)?;
                lock(&self.ledger).tally.stopped_holding += u64::from(held > 0);
            }
            Act::ContinueClient(process) => self.crew.go_on(*process)?,
            Act::KillClient(process) => {
                let held = self.crew.kill(*process)?;
                lock(&self.ledger).tally.killed_holding += u64::from(held > 0);
            }
            Act::StartClient(process) => self.crew.start_again(*process)?,
            Act::Amnesia(places) => {
                for &place in places {
                    self.nodes[place].restart().map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(())
    }

    fn each(&self, ways: &Ways, what: impl Fn(&Proxy)) {
        for &process in &ways.processes {
            ways.nodes.iter().for_each(|&node| what(&self.proxies[process][node]));
        }
    }

    fn kill(&mut self, node: usize) -> Result<(), String> {
        self.nodes[node].kill().map_err(|error| error.to_string())?;
        // From when it is gone: nothing was granted later.
        self.killed.insert(node, now());
        Ok(())
    }

    fn start(&mut self, node: usize) -> Result<(), String> {
        let Some(killed) = self.killed.remove(&node) else { return Ok(()) };
        let left = (killed + self.down_time - now()).max(0);
        thread::sleep(nanos(left));
        self.nodes[node].restart().map_err(|error| error.to_string())
    }

    fn resume(&self, node: usize) -> Result<(), String> {
        self.nodes[node].resume().map_err(|error| error.to_string())
    }

    /// Takes everything back.
    ///
    /// # Errors
    /// If it cannot be done.
    pub(crate) fn heal(&mut self) -> Result<(), String> {
        lock(&self.ledger).note(now(), "-- everything is taken back");
        self.proxies.iter().flatten().for_each(Proxy::open);
        for node in 0..self.nodes.len() {
            if self.killed.contains_key(&node) {
                self.start(node)?;
            } else {
                self.resume(node)?;
            }
        }
        for process in 0..PROCESSES {
            self.crew.start_again(process)?;
            self.crew.go_on(process)?;
        }
        lock(&self.ledger).healed(now());
        Ok(())
    }

    /// How often something has happened to what passes.
    pub(crate) fn count(&self, effect: Effect) -> u64 {
        self.proxies.iter().flatten().map(|proxy| proxy.count(effect)).sum()
    }
}
