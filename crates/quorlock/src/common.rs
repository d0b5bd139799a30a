//! The part of a client that callers, guards and the driver share.

use std::sync::Arc;

use crate::clock::Clock;
use crate::driver::queue::DriverHandle;

/// The nodes' names, in the order of the client's list.
pub(crate) type Names = Arc<[Arc<str>]>;

/// The part of a client that its guards and the driver share; a guard keeps one pointer to it.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) driver: DriverHandle,
    pub(crate) names: Names,
    pub(crate) clock: Clock,
}
