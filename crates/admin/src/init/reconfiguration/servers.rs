//! The servers of a change, and their names in an old list.

use quorlock::admin::{AgreedSettings, RedisNode, Topology};

use crate::doctor::look::{Looked, look_at_all};
use crate::init::InitError;

/// The servers of a change: the new nodes, and then old nodes on other servers. Each server is listed once.
pub(in crate::init) struct Servers {
    pub(in crate::init) list: Vec<RedisNode>,
    pub(in crate::init) looked: Vec<Looked>,
    /// For each server the name of the old node that it is, if the operator has given one.
    old_names: Vec<Option<String>>,
}

impl Servers {
    /// Looks at the new nodes and at `others`, old nodes under their old names. An old node on the server of a new one
    /// is the same node: it has the same address, or its server reports the same run.
    ///
    /// # Errors
    /// [`InitError::OldNodeListed`] if a server has two names of old nodes. A server counts as one old node only, because
    /// it could give two votes otherwise.
    pub(in crate::init) async fn look(
        topology: &Topology,
        others: Vec<RedisNode>,
    ) -> Result<Self, InitError> {
        let all = [&topology.servers[..], &others].concat();
        let mut looked = look_at_all(topology, &all, false).await;
        let of_others = looked.split_off(topology.servers.len());
        let old_names = vec![None; looked.len()];
        let mut servers = Self { list: topology.servers.clone(), looked, old_names };
        for (other, looked) in others.into_iter().zip(of_others) {
            let is_same = |(server, seen): (&RedisNode, &Looked)| {
                let runs = [seen, &looked].map(run_id);
                server.address() == other.address() || (runs[0].is_some() && runs[0] == runs[1])
            };
            let place = servers.list.iter().zip(&servers.looked).position(is_same);
            let place = place.unwrap_or_else(|| {
                servers.list.push(other.clone());
                servers.looked.push(looked);
                servers.old_names.push(None);
                servers.list.len() - 1
            });
            let name = other.name().to_owned();
            match &servers.old_names[place] {
                Some(first) if *first != name => {
                    return Err(InitError::OldNodeListed { name, other: first.clone() });
                }
                _ => servers.old_names[place] = Some(name),
            }
        }
        Ok(servers)
    }

    /// The server's name in the list of these settings, as markers have it; `None` if the server is not in the list. If
    /// the operator has given no name, it is the present name. If the node had no name, it is the address. A name that
    /// the operator has given to another server belongs to that server alone.
    pub(super) fn name_in(&self, place: usize, old: &AgreedSettings) -> Option<String> {
        let server = &self.list[place];
        let given = self.old_names[place].as_deref();
        let found = [server.name(), server.address()];
        let found =
            found.into_iter().filter(|name| self.old_names.iter().flatten().all(|it| it != name));
        let mut names = given.into_iter().chain(found).map(AgreedSettings::name_in_marker);
        names.find(|name| old.names.contains(name))
    }

    /// Whether nothing but its address says that the server has this name of an old node. The address may lead to another
    /// server than before.
    pub(super) fn is_by_address(&self, place: usize, name: &str) -> bool {
        let given = self.old_names[place].as_deref();
        let names = given.into_iter().chain([self.list[place].name()]);
        names.map(AgreedSettings::name_in_marker).all(|it| it != name)
    }
}

fn run_id(looked: &Looked) -> Option<&str> {
    Some(&*looked.facts.as_ref().ok()?.info.as_ref().ok()?.run_id)
}
