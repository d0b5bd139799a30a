//! Whether the nodes together can grant a lock now, and if not, when.

use std::time::Duration;

use quorlock::admin::Topology;
use quorlock_core::RestartGuard;
use quorlock_core::display::seconds;

use crate::doctor::Severity::Error;
use crate::doctor::{Finding, NodeReport, Votes};

/// A finding if fewer than a quorum of nodes vote.
pub(in crate::doctor) fn together(topology: &Topology, nodes: &[NodeReport]) -> Option<Finding> {
    let needed = topology.quorum.needed();
    // A node whose wait is over votes for the next client.
    let votes =
        |node: &&NodeReport| matches!(node.votes, Votes::Count | Votes::CountIn(Duration::ZERO));
    let voting = nodes.iter().filter(votes).count();
    if voting >= needed {
        return None;
    }
    let missing = needed - voting;
    // The flag of each wait is true if the wait has not begun. So sorting puts the running waits first.
    let mut waits: Vec<_> = nodes
        .iter()
        .filter_map(|node| match node.votes {
            Votes::CountIn(Duration::ZERO) => None,
            Votes::CountIn(wait) => Some((false, wait)),
            Votes::CountAfterUse(wait) => Some((true, wait)),
            Votes::Count | Votes::DoNotCount => None,
        })
        .collect();
    waits.sort_unstable();
    let longest = waits.iter().take(missing).map(|(_, wait)| seconds(*wait)).max().unwrap_or(0);
    let (until, fix) = match waits.get(missing - 1) {
        Some((false, _)) => (
            format!("for about {longest} s"),
            "look again: quorlock doctor; or, to end the wait, stop all clients, then quorlock init --fresh",
        ),
        Some((true, _)) => (
            format!("until a client has waited {longest} s once"),
            "to spare that, stop all clients, then quorlock init --fresh",
        ),
        None => ("until the errors are fixed".to_owned(), "then look again: quorlock doctor"),
    };
    // A client without the strict guard does get locks, so the finding says that it is about clients with the guard.
    let to_whom = match topology.rules.guard {
        RestartGuard::Strict => "",
        RestartGuard::Observe | RestartGuard::Off => " under the restart guard",
    };
    let (all, verb) = (nodes.len(), if voting == 1 { "votes" } else { "vote" });
    let what = format!(
        "{voting} of {all} nodes {verb}, but {needed} must vote: no lock can be granted{to_whom} {until}"
    );
    Some(Error.finding("quorum", what, "a lock is held by the votes of a quorum", fix))
}

#[cfg(test)]
mod tests {
    use quorlock::Client;

    use super::*;

    #[test]
    fn it_is_said_when_a_quorum_votes() {
        let settings = Client::builder()
            .nodes(["a", "b", "c", "d", "e"].map(|name| format!("{name}=redis://{name}")));
        let topology = Topology::of(&settings).unwrap();
        let said = |votes: [Votes; 5]| {
            let nodes = votes.map(|votes| NodeReport { votes, ..NodeReport::default() });
            together(&topology, &nodes).map_or_else(String::new, |finding| finding.what)
        };
        let (yes, no) = (Votes::Count, Votes::DoNotCount);
        let soon = |s| Votes::CountIn(Duration::from_secs(s));
        let used = Votes::CountAfterUse(Duration::from_secs(33));
        assert_eq!(said([yes, no, yes, used, yes]), "");
        // The nodes with `soon(0)` have waited long enough. The next client has their votes, so it would get a lock.
        assert_eq!(said([soon(0), no, soon(0), used, soon(0)]), "");
        assert_eq!(
            said([yes, soon(30), soon(12), used, yes]),
            "2 of 5 nodes vote, but 3 must vote: no lock can be granted for about 12 s"
        );
        assert_eq!(
            said([used, soon(30), no, used, yes]),
            "1 of 5 nodes votes, but 3 must vote: no lock can be granted until a client has waited 33 s once"
        );
        assert_eq!(
            said([yes, soon(30), no, no, no]),
            "1 of 5 nodes votes, but 3 must vote: no lock can be granted until the errors are fixed"
        );
    }
}
