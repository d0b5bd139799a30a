//! Oracle 4: the keys on the nodes after the end of all clients.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use quorlock_servers::Reply;
use quorlock_sim::time::Time;

use crate::clock::now;
use crate::faults::node_name;
use crate::servers::Servers;

/// The key that shows that a node has not lost its data.
pub(crate) const MARKER: &str = "quorlock:node";

/// The prefix of the library's keys other than locks, such as markers (which show that no data was lost), counters.
const OWN: &str = "quorlock:";

const INTENT: &str = "quorlock:intent:";

/// Prefixes of keys that expire with their lock: intents (notes of waiting writers), and nonces of taken locks.
const EPHEMERAL: [&str; 2] = [INTENT, "quorlock:take:"];

type Keys = BTreeMap<usize, Vec<String>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftoverKeys {
    /// Keys right after the end, by node. Intents are allowed then, because they expire within a second.
    at_once: Keys,
    /// Keys that still exist at a time by which every key that a client may leave behind must have expired, by node.
    later: Keys,
    /// Whether keys in `at_once` are allowed: connections were made at the end, or another violation was found.
    pub(crate) excused: bool,
}

impl LeftoverKeys {
    /// Looks for keys now, and until `deadline` if there are some.
    pub(crate) fn look(servers: &Servers, deadline: Time, excused: bool) -> Result<Self, String> {
        let mut later = keys(servers)?;
        let mut at_once = later.clone();
        at_once.values_mut().for_each(|keys| keys.retain(|key| !key.starts_with(INTENT)));
        while !later.is_empty() && now() < deadline {
            thread::sleep(Duration::from_millis(20));
            later = keys(servers)?;
        }
        Ok(Self { at_once, later, excused })
    }

    pub(crate) fn wrong(&self) -> impl Iterator<Item = (usize, &String)> {
        let at_once = if self.excused { None } else { Some(&self.at_once) };
        let all = at_once.into_iter().chain([&self.later]).flatten();
        all.flat_map(|(node, keys)| keys.iter().map(|key| (*node, key)))
    }
}

/// The keys of locks, intents and nonces on each node. Lists the keys with `KEYS`, because `DBSIZE` also counts expired
/// keys that the server has not deleted yet.
fn keys(servers: &Servers) -> Result<Keys, String> {
    let mut all = Keys::new();
    for place in 0..servers.places() {
        let reply = servers.node(place).command(&["KEYS", "*"]);
        let Ok(Reply::Array(keys)) = reply else {
            return Err(format!("node {}: KEYS: {reply:?}", node_name(place)));
        };
        let text = |key: Reply| match key {
            Reply::Bulk(Some(key)) => String::from_utf8_lossy(&key).into_owned(),
            other => format!("{other:?}"),
        };
        let is_counted = |key: &String| {
            !key.starts_with(OWN) || EPHEMERAL.iter().any(|prefix| key.starts_with(prefix))
        };
        let keys: Vec<String> = keys.into_iter().map(text).filter(is_counted).collect();
        if !keys.is_empty() {
            all.insert(place, keys);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_left_is_wrong_unless_it_may_be_there_for_a_while() {
        let left = || Keys::from([(1, vec!["chaos:0".to_owned()])]);
        let keys = LeftoverKeys { at_once: left(), ..LeftoverKeys::default() };
        assert_eq!(keys.wrong().count(), 1);
        assert_eq!(LeftoverKeys { excused: true, ..keys }.wrong().count(), 0);
        let keys = LeftoverKeys { later: left(), excused: true, ..LeftoverKeys::default() };
        assert_eq!(keys.wrong().collect::<Vec<_>>(), [(1, &"chaos:0".to_owned())]);
        assert_eq!(LeftoverKeys::default().wrong().count(), 0);
    }
}
