//! A minority of nodes that are down, stand still or refuse hinder nobody. Checked by the healing
//! phase of those runs in which such a minority is never mended.

pub(crate) const NAME: &str = "fault tolerance";

pub(crate) const SENTENCE: &str = "Liveness property B: Fault tolerance. As long as the majority of \
     Redis nodes are up, clients are able to acquire and release locks. (paper)";
