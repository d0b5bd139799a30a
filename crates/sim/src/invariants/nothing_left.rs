//! In the end nothing is left: no key of ours on any node, nothing owed, no record in an engine.
//! Checked at the end of every run, after the last ttl.

pub(crate) const NAME: &str = "nothing left";

pub(crate) const SENTENCE: &str = "V5: failed attempts leave no key on any node that answered within \
     the bound; an orphan (SET delivered after its connection died, node frozen meanwhile) is gone \
     within T. (protocol, 9)";
