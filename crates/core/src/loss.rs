//! Causes of a lost lock.

/// Why a lock was lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum LossCause {
    /// Its validity ran out: too few nodes confirmed an extension in time, or none was asked for.
    Expired,
    /// By their answers, so few nodes still have the key that no quorum is left. It was deleted, or the nodes'
    /// clocks ran ahead.
    KeyGone,
    /// As `KeyGone`, and at least one node holds another value under the key: another client has
    /// the lock, or is about to get it.
    KeyOverwritten,
    /// The wall clock moved ahead of the boot clock past the end of the validity: it was set, or the
    /// virtual machine was paused. Whether that time has really passed cannot be told.
    ClockJumped,
    /// The holder kept it as long as `max_hold` allows.
    HoldLimit,
    /// The client was shut down.
    Shutdown,
}
