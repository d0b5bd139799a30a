//! At the end of a run nothing is left: no lock of a client on a node, no owed release (a failed release that is to be
//! sent again), no record in an engine. The simulator checks this after the last ttl of every run.

use quorlock_core::Key;

use crate::ledger::Ledger;
use crate::node::ModelNode;
use crate::time::Time;

pub(crate) const NAME: &str = "nothing left";

pub(crate) const SENTENCE: &str = "V5: failed attempts leave no key on any node that answered within \
     the bound; an orphan (SET delivered after its connection died, node frozen meanwhile) is gone \
     within T. (algorithm)";

/// Returns the key of a client's lock that is still on a node, if there is one.
pub(crate) fn first<'a>(node: &'a ModelNode, ledger: &Ledger, now: Time) -> Option<&'a Key> {
    let mut all = node.all(now);
    all.find(|(_, stored)| stored.values().any(|value| ledger.knows(value))).map(|(key, _)| key)
}
