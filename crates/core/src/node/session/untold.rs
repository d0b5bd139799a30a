//! The scripts that a node may not know.

use crate::command::Command;
use crate::keys::Mode;

/// A set of scripts that a node may not know, with one bit for each kind of command. If a kind of command is in the
/// set, the next command of this kind is sent with the text of its script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Untold(u16);

impl Default for Untold {
    /// The set for a new connection: the scripts that the handshake does not load. Without the text of its script, a
    /// release could be rejected, and its repetition could arrive after the next acquire.
    fn default() -> Self {
        let values = Self::TAKE | Self::TAKEN;
        Self(Self::READERS | Self::RELEASE_SHARED | Self::ATTACH | Self::ATTACH_SHARED | values)
    }
}

impl Untold {
    const READERS: u16 = 16;
    const RELEASE_SHARED: u16 = 64;
    const ATTACH: u16 = 128;
    const ATTACH_SHARED: u16 = 256;
    const TAKE: u16 = 512;
    const TAKEN: u16 = 1024;

    /// The bit of a command's script. Zero if there is no script, or if the command may be sent again at any time.
    fn of(command: &Command) -> u16 {
        match command {
            // For a single key these two commands need no script.
            Command::Acquire { keys, .. } => u16::from(keys.single().is_none()),
            Command::Heal { keys, .. } => 2 * u16::from(keys.single().is_none()),
            Command::AcquireFenced { .. } | Command::AttachFenced { .. } => 4,
            Command::HealFenced { .. } => 8,
            // Both commands use one script.
            Command::AcquireShared { .. } | Command::HealShared { .. } => Self::READERS,
            Command::Announce { .. } => 32,
            Command::Withdraw { .. } => 2048,
            Command::ReleaseShared { .. } => Self::RELEASE_SHARED,
            Command::Attach { mode, .. } | Command::GiveBack { mode, .. } => match mode {
                Mode::Exclusive => Self::ATTACH,
                Mode::Shared => Self::ATTACH_SHARED,
            },
            Command::Take { .. } => Self::TAKE,
            Command::ExtendTaken { .. } | Command::ReleaseTaken { .. } => Self::TAKEN,
            _ => 0,
        }
    }

    /// Notes a command that failed because the node does not know its script and it was too late to send it again.
    pub(super) fn note(&mut self, command: &Command) {
        self.0 |= Self::of(command);
    }

    /// Whether these commands are to be sent with the texts of their scripts. If so, the scripts leave the set.
    pub(super) fn is_told_with<'a>(&mut self, commands: impl Iterator<Item = &'a Command>) -> bool {
        if self.0 == 0 {
            return false;
        }
        let told = self.0 & commands.fold(0, |bits, command| bits | Self::of(command));
        self.0 &= !told;
        told != 0
    }
}
