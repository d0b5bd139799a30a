//! One server as the client sees it: its connection, its batches of commands, and whether its votes count.

pub(crate) mod evidence;
pub mod info;
pub mod marker;
pub(crate) mod pipeline;
pub(crate) mod round_trip;
pub(crate) mod session;
pub mod supervisor;
pub(crate) mod trust;
