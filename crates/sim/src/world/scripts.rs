//! The server-side scripts, which clients must load into each node.

use quorlock_core::{AcquireForm, AttachForm, Command, ExtendForm, HealForm, ReleaseForm};

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
            Command::Acquire { keys, form, .. } => match form {
                AcquireForm::Plain => keys.single().is_none().then_some(Self::AcquireSeveral),
                AcquireForm::Fenced { .. } => Some(Self::AcquireFenced),
                AcquireForm::Shared { .. } => Some(Self::AcquireShared),
                AcquireForm::Taken(_) => Some(Self::Take),
            },
            Command::Heal { keys, form, .. } => match form {
                HealForm::Plain => keys.single().is_none().then_some(Self::HealSeveral),
                HealForm::Fenced { .. } => Some(Self::HealFenced),
                HealForm::Shared => Some(Self::HealShared),
            },
            Command::Extend { form, .. } => Some(match form {
                ExtendForm::Plain => Self::Extend,
                ExtendForm::Fenced { .. } => Self::ExtendFenced,
                ExtendForm::Shared => Self::ExtendShared,
                ExtendForm::Taken(_) => Self::Taken,
            }),
            Command::Release { keys, form, .. } => match form {
                ReleaseForm::Plain { .. } => {
                    let is_native = kind.deletes_natively && keys.single().is_some();
                    (!is_native).then_some(Self::Release)
                }
                ReleaseForm::Shared => Some(Self::ReleaseShared),
                ReleaseForm::Taken(_) => Some(Self::Taken),
            },
            Command::Attach { form: AttachForm::Fenced { .. }, .. } => Some(Self::AcquireFenced),
            Command::Attach { .. } | Command::GiveBack { .. } => Some(Self::Attach),
            Command::Inspect { keys, intents } | Command::Watch { keys, intents } => {
                let is_plain = keys.single().is_some() && intents.is_none();
                (!is_plain).then_some(Self::Look)
            }
            Command::Raise { .. } => Some(Self::Raise),
            Command::Downgrade { .. } => Some(Self::Downgrade),
            Command::Announce { .. } => Some(Self::Announce),
            Command::Withdraw { .. } => Some(Self::Withdraw),
            Command::Identify | Command::Adopt { .. } | Command::Mark { .. } => None,
        }
    }
}
