//! Measures quorlock beside raw sockets and other lock libraries, on real servers.

mod page;
#[cfg(feature = "plots")]
mod plot;
mod report;
#[cfg(feature = "rivals")]
mod rivals;
mod saved;
