#![doc = include_str!("../README.md")]
//!
//! Both take the [`ClientBuilder`](quorlock::ClientBuilder) of the clients that lock there, which is not built:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use quorlock::Client;
//! use quorlock_admin::{doctor, init};
//!
//! let settings = Client::builder()
//!     .nodes(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]);
//!
//! // New servers, and nobody has a lock on them.
//! let marked = init::fresh(&settings).await?;
//! println!("{} servers vote, {} must", marked.voting(), marked.needed);
//!
//! let found = doctor::examine(&settings).await?;
//! for node in &found.nodes {
//!     for finding in &node.findings {
//!         println!("{} {}: {}; {}", node.node, finding.severity, finding.what, finding.fix);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod doctor;
pub mod init;
pub mod locks;
mod scan;
