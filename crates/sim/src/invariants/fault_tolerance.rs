//! A minority of nodes that are down, paused or refusing does not block clients. The healing phase checks this in runs
//! in which such a minority never recovers.

pub(crate) const NAME: &str = "fault tolerance";

pub(crate) const SENTENCE: &str = "Liveness property B: Fault tolerance. As long as the majority of \
     Redis nodes are up, clients are able to acquire and release locks. (paper)";
