//! Many locks in one process: the engine that runs them, its records, its queues and its deadlines.

pub(crate) mod contention;
pub(crate) mod deadlines;
pub(crate) mod engine;
pub(crate) mod gap;
pub(crate) mod key_table;
pub(crate) mod local_queue;
pub(crate) mod records;
pub(crate) mod tick;
pub(crate) mod wait;
