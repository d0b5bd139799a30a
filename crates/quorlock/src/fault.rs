//! The faults of a node in words, each with the remedy.

use quorlock_core::Fault;
use quorlock_core::display::{SETTINGS_MAX, WORD_MAX, shown, shown_text};

const NO_SERVER: &str = "a proxy, or no server of the kind; connect to the server itself, or switch the restart guard off";

pub(crate) fn in_words(fault: &Fault<'_>) -> String {
    match fault {
        Fault::Incomplete(missing) => format!("{missing}: {NO_SERVER}"),
        Fault::NoInfo(said) => format!("it does not answer INFO ({said}): {NO_SERVER}"),
        Fault::Replica => {
            "it is a replica: what it holds can be overwritten by its master; list masters alone"
                .into()
        }
        Fault::InCluster => {
            "it is in cluster mode, which moves keys to other nodes; use independent masters".into()
        }
        Fault::MoreReplicas { connected, declared } => format!(
            "it has {connected} replicas, but this client expects {declared}; set replicas={connected} in all clients, or \
             remove the other replicas"
        ),
        Fault::Evicts(policy) => format!(
            "its maxmemory-policy is {}: it would delete locks; run CONFIG SET maxmemory-policy noeviction",
            shown(policy, WORD_MAX)
        ),
        Fault::SameServer(other) => {
            format!("node {other} is the same server: it would vote twice; list it once")
        }
        Fault::OtherSettings { is_marked, theirs, ours } => {
            let how = if *is_marked { "votes" } else { "is in quarantine" };
            let theirs = shown(&theirs.to_string(), SETTINGS_MAX);
            format!("it {how} for {theirs}, but this client has {ours}; give all clients the same")
        }
        Fault::ForeignKey { key, text } => format!(
            "its key {key} holds \"{}\", which is not this version's; find out whose it is; if nobody's, delete the key: the node then waits like a new one",
            shown_text(text)
        ),
    }
}

#[cfg(test)]
mod tests {
    use quorlock_core::Key;
    use quorlock_core::info::Info;
    use quorlock_core::marker::Cluster;

    use super::*;

    #[test]
    fn a_fault_is_told_with_what_to_do_and_nothing_that_a_terminal_obeys() {
        let incomplete = Info::parse("run_id:0d2f\r\n").unwrap_err();
        let (theirs, ours) = (Cluster::new(["a"], 1, 30_000), Cluster::new(["b"], 1, 20_000));
        let (theirs, ours, key) = (&theirs, &ours, &Key::from("quorlock:node"));
        for (fault, words) in [
            (
                Fault::Incomplete(incomplete),
                "its INFO does not tell uptime_in_seconds: a proxy, or no server of the kind; connect \
                 to the server itself, or switch the restart guard off",
            ),
            (
                Fault::NoInfo("ERR unsupported command"),
                "it does not answer INFO (ERR unsupported command): a proxy, or no server of the kind; \
                 connect to the server itself, or switch the restart guard off",
            ),
            (
                Fault::MoreReplicas { connected: 2, declared: 1 },
                "it has 2 replicas, but this client expects 1; set replicas=2 in all clients, or remove \
                 the other replicas",
            ),
            (
                Fault::Evicts("allkeys-\u{1b}[2Jlru"),
                "its maxmemory-policy is allkeys-\\u{1b}[2Jlru: it would delete locks; run CONFIG SET \
                 maxmemory-policy noeviction",
            ),
            (
                Fault::OtherSettings { is_marked: false, theirs, ours },
                "it is in quarantine for nodes=a quorum=1 max_ttl_ms=30000, but this client has nodes=b quorum=1 \
                 max_ttl_ms=20000; give all clients the same",
            ),
            (
                Fault::ForeignKey { key, text: "quorlock 2 \u{1b}[2J" },
                "its key quorlock:node holds \"quorlock 2 \\u{1b}[2J\", which is not this version's; find \
                 out whose it is; if nobody's, delete the key: the node then waits like a new one",
            ),
            (
                Fault::ForeignKey { key, text: "something else" },
                "its key quorlock:node holds \"someth…\", which is not this version's; find out whose it \
                 is; if nobody's, delete the key: the node then waits like a new one",
            ),
        ] {
            assert_eq!(in_words(&fault), words);
        }
    }
}
