//! The server-side scripts, which clients must load into each node.

use quorlock_core::Command;

use crate::node::Kind;

/// A script that a node must have before it can carry out the command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Script {
    AcquireFenced,
    HealFenced,
    Raise,
    Extend,
    ExtendFenced,
    Release,
    AcquireSeveral,
    HealSeveral,
    Look,
    AcquireShared,
    HealShared,
    ExtendShared,
    ReleaseShared,
    Downgrade,
    Announce,
    Withdraw,
    Attach,
    Take,
    Taken,
}

impl Script {
    /// All scripts, as clients load them when they connect.
    pub(crate) const ALL: [Self; 19] = [
        Self::AcquireFenced,
        Self::HealFenced,
        Self::Raise,
        Self::Extend,
        Self::ExtendFenced,
        Self::Release,
        Self::AcquireSeveral,
        Self::HealSeveral,
        Self::Look,
        Self::AcquireShared,
        Self::HealShared,
        Self::ExtendShared,
        Self::ReleaseShared,
        Self::Downgrade,
        Self::Announce,
        Self::Withdraw,
        Self::Attach,
        Self::Take,
        Self::Taken,
    ];

    pub(crate) fn of(command: &Command, kind: Kind) -> Option<Self> {
        match command {
            Command::AcquireFenced { .. } | Command::AttachFenced { .. } => {
                Some(Self::AcquireFenced)
            }
            Command::Attach { .. } | Command::GiveBack { .. } => Some(Self::Attach),
            Command::Take { .. } => Some(Self::Take),
            Command::ExtendTaken { .. } | Command::ReleaseTaken { .. } => Some(Self::Taken),
            Command::HealFenced { .. } => Some(Self::HealFenced),
            Command::Raise { .. } => Some(Self::Raise),
            Command::Extend { .. } => Some(Self::Extend),
            Command::ExtendFenced { .. } => Some(Self::ExtendFenced),
            Command::Acquire { keys, .. } => {
                keys.single().is_none().then_some(Self::AcquireSeveral)
            }
            Command::Heal { keys, .. } => keys.single().is_none().then_some(Self::HealSeveral),
            Command::Release { keys, .. } => {
                let is_native = kind.deletes_natively && keys.single().is_some();
                (!is_native).then_some(Self::Release)
            }
            Command::Inspect { keys, intents } | Command::Watch { keys, intents } => {
                let is_plain = keys.single().is_some() && intents.is_none();
                (!is_plain).then_some(Self::Look)
            }
            Command::AcquireShared { .. } => Some(Self::AcquireShared),
            Command::HealShared { .. } => Some(Self::HealShared),
            Command::ExtendShared { .. } => Some(Self::ExtendShared),
            Command::ReleaseShared { .. } => Some(Self::ReleaseShared),
            Command::Downgrade { .. } => Some(Self::Downgrade),
            Command::Announce { .. } => Some(Self::Announce),
            Command::Withdraw { .. } => Some(Self::Withdraw),
            _ => None,
        }
    }
}
