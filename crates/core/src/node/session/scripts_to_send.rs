//! The scripts that a node may not know.

use crate::command::{Command, Script};

/// A set of scripts that a node may not know, with one bit for each script. If a script is in the set, the next command
/// that needs it is sent with the text of the script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ScriptsToSend(u32);

impl Default for ScriptsToSend {
    /// The set for a new connection: the scripts that the handshake does not load. Without the text of its script, a
    /// release could be rejected, and its repetition could arrive after the next acquire.
    fn default() -> Self {
        let readers = bit(Script::AcquireShared) | bit(Script::ReleaseShared);
        let attaches = bit(Script::Attach) | bit(Script::AttachShared);
        let values = bit(Script::Take) | bit(Script::Taken);
        Self(bit(Script::AcquireFenced) | readers | attaches | values)
    }
}

impl ScriptsToSend {
    /// Adds the script of a command that failed because the node does not know the script and it was too late to send
    /// the command again.
    pub(super) fn add(&mut self, command: &Command) {
        self.0 |= bit_of(command);
    }

    /// Whether these commands are to be sent with the texts of their scripts. If so, the scripts leave the set.
    pub(super) fn take<'a>(&mut self, commands: impl Iterator<Item = &'a Command>) -> bool {
        if self.0 == 0 {
            return false;
        }
        let needed = self.0 & commands.fold(0, |bits, command| bits | bit_of(command));
        self.0 &= !needed;
        needed != 0
    }
}

fn bit_of(command: &Command) -> u32 {
    match command {
        // A withdrawal shares the script of the releases, which are sent again at any time and so never need the text.
        Command::Withdraw { .. } => 1 << Script::COUNT,
        command => command.script().map_or(0, bit),
    }
}

const fn bit(script: Script) -> u32 {
    1 << script as u32
}
