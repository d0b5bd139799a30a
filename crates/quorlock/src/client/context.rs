//! The part of a client that its calls and guards share.

use std::sync::Arc;

use crate::clock::Clock;
use crate::driver::queue::DriverHandle;
use crate::init_command::InitCommand;
use crate::lease::ClusterId;

/// The nodes' names, in the order of the client's list.
pub(crate) type Names = Arc<[Arc<str>]>;

/// The part of a client that its calls and guards share; a guard keeps one pointer to it.
#[derive(Debug)]
pub(crate) struct ClientContext {
    pub(crate) driver: DriverHandle,
    pub(crate) names: Names,
    pub(crate) clock: Clock,
    pub(crate) prefix: Box<str>,
    /// Identifies the nodes, the quorum and the prefix in the texts of leases.
    pub(crate) cluster: ClusterId,
    /// The command that changes nodes with other settings; `None` if some of the nodes are no servers.
    pub(crate) init: Option<Box<InitCommand>>,
}

#[cfg(test)]
impl ClientContext {
    pub(crate) fn for_test(driver: DriverHandle, names: Names) -> Self {
        // The size of the cluster does not matter for these tests.
        #[allow(clippy::unwrap_used, reason = "a test may panic")]
        let quorum = quorlock_core::Quorum::majority(1).unwrap();
        let (prefix, cluster) = ("".into(), ClusterId::of(quorum, &[], ""));
        Self { driver, names, clock: Clock::Tokio, prefix, cluster, init: None }
    }
}
