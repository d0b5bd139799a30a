// In the README these names link to files. rustdoc uses the first definition of a name, so here they link to items.
//! [`AcquireError`]: AcquireError
//! [`AcquireError::nodes`]: AcquireError::nodes
//! [`BuildError`]: BuildError
//! [`Client::acquire`]: Client::acquire
//! [`Client::acquire_fenced`]: Client::acquire_fenced
//! [`Client::acquire_shared`]: Client::acquire_shared
//! [`Acquire::hold`]: Acquire::hold
//! [`Client::attach`]: Client::attach
//! [`Client::extend_lease`]: Client::extend_lease
//! [`Client::extend_value`]: Client::extend_value
//! [`Client::from_env`]: Client::from_env
//! [`Client::inspect`]: Client::inspect
//! [`Client::release_value`]: Client::release_value
//! [`Client::shutdown`]: Client::shutdown
//! [`Client::stats`]: Client::stats
//! [`Client::take`]: Client::take
//! [`Client::try_acquire`]: Client::try_acquire
//! [`Clock::Tokio`]: Clock::Tokio
//! [`DetachError`]: DetachError
//! [`ExtendError::HoldLimit`]: ExtendError::HoldLimit
//! [`ExtendError::Lost`]: ExtendError::Lost
//! [`ExtendError::Unconfirmed`]: ExtendError::Unconfirmed
//! [`Guard::detach`]: Guard::detach
//! [`Guard::downgrade`]: Guard::downgrade
//! [`Guard::health`]: Guard::health
//! [`Guard::health_changes`]: Guard::health_changes
//! [`Guard::is_valid`]: Guard::is_valid
//! [`HoldError::Lost`]: HoldError::Lost
//! [`HoldError::NotAcquired`]: HoldError::NotAcquired
//! [`Lease`]: Lease
//! [`LeaseError`]: LeaseError
//! [`LockOptions`]: LockOptions
//! [`LockOptions::redsync`]: LockOptions::redsync
//! [`MemoryNode`]: node::MemoryNode
//! [`Released`]: Released
//! [`ShutdownError`]: ShutdownError
//! [`Taken`]: Taken
//! [`blocking`]: blocking
//! [`blocking::Client`]: blocking::Client
//! [`guarantees`]: guarantees
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Whether this mutant (a deliberate bug) is switched on; see `mutants.rs`.
#[cfg(quorlock_mutants)]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::is_active($crate::mutants::Mutant::$name)
    };
}

/// Always false, because no mutant exists without `--cfg quorlock_mutants`.
#[cfg(not(quorlock_mutants))]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
}

mod acquire;
#[doc(hidden)]
pub mod admin;
pub mod blocking;
mod builder;
mod client;
mod clock;
mod common;
mod driver;
mod driver_timer;
#[doc(hidden)]
pub mod env;
mod error;
mod exhausted;
mod fault;
mod guard;
/// The fuzz targets.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::lease::fuzzing::lease;
    pub use crate::node::redis::fuzzing::*;
}
mod inspect;
mod lease;
#[cfg(quorlock_mutants)]
pub mod mutants;
pub mod node;
mod options;
mod own_keys;
mod own_thread;
mod process;
mod resources;
mod stats;
#[cfg(quorlock_stepped_clock)]
mod stepped;
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
