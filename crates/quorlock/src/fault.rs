//! What is wrong with a node, in words for people, and what to do about it.

use quorlock_core::Fault;
use quorlock_core::shown::{SETTINGS_MAX, WORD_MAX, shown, shown_text};

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
        Fault::Evicts(policy) => format!(
            "its maxmemory-policy is {}: it would delete locks; run CONFIG SET maxmemory-policy noeviction",
            shown(policy, WORD_MAX)
        ),
        Fault::SameServer(other) => {
            format!("node {other} is the same server: it would vote twice; list it once")
        }
        Fault::OtherSettings { is_marked, theirs, ours } => {
            let how = if *is_marked { "marked" } else { "being taken into use" };
            let theirs = shown(&theirs.to_string(), SETTINGS_MAX);
            format!(
                "it is {how} for {theirs}, but this client has {ours}; give all clients the same, or run quorlock init --reconfigure"
            )
        }
        Fault::ForeignKey { key, text } => format!(
            "its key {key} holds \"{}\", which is not this version's; find out whose it is; if nobody's, delete the key: the node then waits like a new one",
            shown_text(text)
        ),
    }
}

#[cfg(test)]
mod tests {
    use quorlock_core::marker::Cluster;

    use super::*;

    #[test]
    fn a_fault_is_told_with_what_to_do_and_nothing_that_a_terminal_obeys() {
        let (theirs, ours) = (Cluster::new(["a"], 1, 30_000), Cluster::new(["b"], 1, 20_000));
        let other = Fault::OtherSettings { is_marked: false, theirs: &theirs, ours: &ours };
        assert_eq!(
            in_words(&other),
            "it is being taken into use for nodes=a quorum=1 max_ttl_ms=30000, but this client has \
             nodes=b quorum=1 max_ttl_ms=20000; give all clients the same, or run quorlock init --reconfigure"
        );
        let evicts = in_words(&Fault::Evicts("allkeys-\u{1b}[2Jlru"));
        assert!(evicts.starts_with("its maxmemory-policy is allkeys-\\u{1b}[2Jlru: "), "{evicts}");
        assert!(evicts.ends_with("run CONFIG SET maxmemory-policy noeviction"), "{evicts}");
    }
}
