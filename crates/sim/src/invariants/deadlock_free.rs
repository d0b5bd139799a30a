//! Eventually a lock is to be had. Checked by the healing phase: the faults end, some who hold locks
//! are killed, and everybody who waits, and a newcomer, must have a lock within a bound.

pub(crate) const NAME: &str = "deadlock free";

pub(crate) const SENTENCE: &str = "Liveness property A: Deadlock free. Eventually it is always \
     possible to acquire a lock, even if the client that locked a resource crashes or gets \
     partitioned. (paper)";
