//! Measures quorlock beside raw sockets and other lock libraries, on real servers.

#[cfg(feature = "rivals")]
pub mod rivals;
