//! A lock can eventually be acquired. The healing phase checks this: the faults end and some holders are
//! killed. Then every waiting caller, and a new one, must get a lock within a bound.

pub(crate) const NAME: &str = "deadlock free";

pub(crate) const SENTENCE: &str = "Liveness property A: Deadlock free. Eventually it is always \
     possible to acquire a lock, even if the client that locked a resource crashes or gets \
     partitioned. (paper)";
