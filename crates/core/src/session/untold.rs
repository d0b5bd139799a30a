//! Scripts that a node does not know, and could not be told in time.

use crate::command::Command;

/// The scripts that a node has forgotten and that it was too late to tell: the next commands of their kind bring
/// them along. A bit for each kind of command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Untold(u8);

impl Untold {
    /// The bit of a command that must not be asked again late.
    fn of(command: &Command) -> u8 {
        match command {
            // With a single key they need no script.
            Command::Acquire { keys, .. } => u8::from(keys.single().is_none()),
            Command::Heal { keys, .. } => 2 * u8::from(keys.single().is_none()),
            Command::AcquireFenced { .. } => 4,
            Command::HealFenced { .. } => 8,
            Command::AcquireShared { .. } => 16,
            Command::HealShared { .. } => 32,
            Command::Announce { .. } => 64,
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
