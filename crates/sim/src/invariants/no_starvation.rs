//! Readers that come and go do not keep a writer waiting for ever. Checked by the healing phase of those runs in which
//! they go on coming; not where the writers' words reach no node.

pub(crate) const NAME: &str = "no starvation";

pub(crate) const SENTENCE: &str = "Writers do not starve: a reader refused by an intent waits. Manners, not \
     safety. (kinds, 1)";
