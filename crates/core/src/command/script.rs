//! The scripts that carry out commands on a node.

use super::{AcquireForm, AttachForm, Command, ExtendForm, HealForm, ReleaseForm};
use crate::keys::Mode;

/// A script that a node executes in one atomic step. The name is that of its file in `quorlock/src/node/scripts`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "each file describes its script")]
pub enum Script {
    Acquire,
    AcquireFenced,
    AcquireShared,
    Adopt,
    Announce,
    Attach,
    AttachShared,
    Downgrade,
    Extend,
    ExtendShared,
    Heal,
    HealFenced,
    Look,
    Mark,
    Raise,
    Release,
    ReleaseShared,
    Take,
    Taken,
}

impl Script {
    /// The number of scripts.
    pub const COUNT: usize = Self::Taken as usize + 1;
}

impl Command {
    /// The script that carries out the command on nodes that have no native command for it. `None` if each node has
    /// one, or if nothing is sent.
    #[inline]
    pub fn script(&self) -> Option<Script> {
        Some(match self {
            Self::Acquire { keys, form, .. } => match form {
                // `SET` carries out this command and the plain heal.
                AcquireForm::Plain if keys.single().is_some() => return None,
                AcquireForm::Plain => Script::Acquire,
                AcquireForm::Fenced { .. } => Script::AcquireFenced,
                AcquireForm::Shared { .. } => Script::AcquireShared,
                AcquireForm::Taken(_) => Script::Take,
            },
            Self::Heal { keys, form, .. } => match form {
                HealForm::Plain if keys.single().is_some() => return None,
                HealForm::Plain => Script::Heal,
                HealForm::Fenced { .. } => Script::HealFenced,
                HealForm::Shared => Script::AcquireShared,
            },
            Self::Extend { form, .. } => match form {
                ExtendForm::Plain | ExtendForm::Fenced { .. } => Script::Extend,
                ExtendForm::Shared => Script::ExtendShared,
                ExtendForm::Taken(_) => Script::Taken,
            },
            Self::Release { form, .. } => match form {
                ReleaseForm::Plain { .. } => Script::Release,
                ReleaseForm::Shared => Script::ReleaseShared,
                ReleaseForm::Taken(_) => Script::Taken,
            },
            Self::Attach { form: AttachForm::Fenced { .. }, .. } => Script::AcquireFenced,
            Self::Attach { form: AttachForm::Plain, .. }
            | Self::GiveBack { mode: Mode::Exclusive, .. } => Script::Attach,
            Self::Attach { form: AttachForm::Shared, .. }
            | Self::GiveBack { mode: Mode::Shared, .. } => Script::AttachShared,
            Self::Inspect { .. } | Self::Watch { .. } => Script::Look,
            Self::Raise { .. } => Script::Raise,
            Self::Downgrade { .. } => Script::Downgrade,
            Self::Announce { .. } => Script::Announce,
            Self::Withdraw { .. } => Script::Release,
            Self::Adopt { .. } => Script::Adopt,
            Self::Mark { .. } => Script::Mark,
            Self::Identify => return None,
        })
    }
}
