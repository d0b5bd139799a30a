#![doc = include_str!("../README.md")]
//!
//! Each function takes a [`ClientBuilder`](quorlock::ClientBuilder) with the settings of the clients.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use quorlock::Client;
//! use quorlock_admin::{doctor, init, locks};
//!
//! let settings = Client::builder()
//!     .nodes(["a=redis://10.0.0.1", "b=redis://10.0.0.2", "c=redis://10.0.0.3"]);
//!
//! // New servers without locks.
//! let found = init::in_use(&settings).await?;
//! assert!(found.locks.is_empty() && found.incomplete.is_empty(), "{found:?}");
//! assert!(found.clients.is_empty(), "{found:?}");
//! let marked = init::fresh(&settings).await?;
//! println!("{} servers vote, {} must", marked.voting(), marked.needed);
//!
//! let found = doctor::examine(&settings).await?;
//! for node in &found.nodes {
//!     for finding in &node.findings {
//!         println!("{} {}: {}; {}", node.node, finding.severity, finding.what, finding.fix);
//!     }
//! }
//!
//! for lock in locks::list(&settings, Some("deploy*")).await?.locks {
//!     println!("{} is {}", lock.resource, lock.holder.describe());
//! }
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod doctor;
pub mod init;
pub mod locks;
mod looks;
mod scan;
