// In the README these names link to files. rustdoc uses the first definition of a name, so here they link to items.
//! [`AcquireError`]: AcquireError
//! [`Client::acquire`]: Client::acquire
//! [`Client::acquire_fenced`]: Client::acquire_fenced
//! [`Acquire::hold`]: Acquire::hold
//! [`Client::try_acquire`]: Client::try_acquire
//! [`Guard::detach`]: Guard::detach
//! [`Guard::is_valid`]: Guard::is_valid
//! [`LockOptions`]: LockOptions
//! [`MemoryNode`]: node::MemoryNode
//! [`blocking::Client`]: blocking::Client
//! [`guarantees`]: guarantees
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
#[doc(hidden)]
pub mod admin;
pub mod blocking;
mod builder;
mod client;
mod clock;
mod driver;
mod driver_timer;
mod error;
mod fault;
mod fork_check;
mod guard;
/// The fuzz targets.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::lease::fuzzing::lease;
    pub use crate::node::redis::fuzzing::*;
}
mod init_command;
mod inspect;
mod lease;
pub mod node;
mod options;
mod os_limits;
mod own_keys;
mod own_thread;
mod resources;
#[doc(hidden)]
pub mod settings;
mod stats;
mod taken;
mod text;

/// The guarantees, their assumptions, and the effects of a broken assumption.
#[doc = include_str!("../GUARANTEES.md")]
pub mod guarantees {}

pub use crate::acquire::{Acquire, Acquiring, Waiting};
pub use crate::builder::ClientBuilder;
#[cfg(feature = "legacy")]
pub use crate::client::legacy;
pub use crate::client::{Client, Query};
pub use crate::clock::Clock;
pub use crate::error::{
    AcquireError, AcquireFailure, BuildError, DetachError, ExtendError, HoldError, Holder,
    HolderKind, InvalidRequest, LeaseError, NodeAnswer, ShutdownError,
};
pub use crate::guard::{FencedGuard, Guard, GuardToken, Health, HealthChanges, Released};
pub use crate::inspect::{Inspection, Verdict};
pub use crate::lease::{Keeper, Lease, LeaseKind, LeaseTextError};
pub use crate::options::LockOptions;
pub use crate::resources::Resources;
pub use crate::stats::{NodeStats, NodeTrustState, Stats};
pub use crate::taken::{Take, Taken, Taking};
pub use quorlock_core::{
    BootTime, Delay, LossCause, Mode, NodeOutcome, NodeReleased, Outcome, QuorumError,
    RestartGuard, Retry, TimingError, Token,
};
