//! Scripts that a node does not know, and could not be told in time.

use crate::command::Command;

/// The scripts that a node does not know, or may not, and that it was too late to tell: the next commands of their kind
/// bring them along. A bit for each kind of command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Untold(u8);

impl Default for Untold {
    /// Those of a new connection: the scripts with which readers get a lock and release it are not sent before a reader
    /// comes. A release that has to be sent twice would come behind the next acquire.
    fn default() -> Self {
        Self(Self::READERS | Self::RELEASE_SHARED)
    }
}

impl Untold {
    const READERS: u8 = 16;
    const RELEASE_SHARED: u8 = 64;

    /// The bit of a command that must not be asked again late.
    fn of(command: &Command) -> u8 {
        match command {
            // With a single key they need no script.
            Command::Acquire { keys, .. } => u8::from(keys.single().is_none()),
            Command::Heal { keys, .. } => 2 * u8::from(keys.single().is_none()),
            Command::AcquireFenced { .. } => 4,
            Command::HealFenced { .. } => 8,
            // The same script.
            Command::AcquireShared { .. } | Command::HealShared { .. } => Self::READERS,
            Command::Announce { .. } => 32,
            Command::ReleaseShared { .. } => Self::RELEASE_SHARED,
            _ => 0,
        }
    }

    /// It was too late to ask this command again.
    pub(super) fn note(&mut self, command: &Command) {
        self.0 |= Self::of(command);
    }

    /// Whether these commands are to be sent with the text of their scripts. Then the node knows those of them.
    pub(super) fn is_told_with(&mut self, commands: &[Command]) -> bool {
        if self.0 == 0 {
            return false;
        }
        let told = self.0 & commands.iter().fold(0, |bits, command| bits | Self::of(command));
        self.0 &= !told;
        told != 0
    }
}
