//! Asking again: a node that does not know a script has not run it, so its command may be sent once more, with the
//! script's text. That repeats nothing (S8).

use crate::command::Command;

/// Whether the command at this place of a batch may be asked again. `has_moved_on`: something was sent on this
/// connection since.
///
/// A command that sets a lock must not come behind its release: nobody would take back what it sets. Nor behind any
/// other command about the same lock, whose answer is told after its own. So it is asked again only if none of those
/// can have been sent since.
///
/// # Panics
/// If there is no such place.
pub fn may_ask_again(commands: &[Command], place: usize, has_moved_on: bool) -> bool {
    let (Command::AcquireFenced { value, .. } | Command::HealFenced { value, .. }) =
        &commands[place]
    else {
        return true;
    };
    let mut later = commands[place + 1..].iter().filter_map(Command::value);
    mutant!(AskedAgainLate) || !has_moved_on && !later.any(|other| other == value)
}

/// The scripts that a node has forgotten and that it was too late to tell: the next commands of their kind bring
/// them along.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Untold {
    acquire: bool,
    heal: bool,
}

impl Untold {
    /// It was too late to ask this command again.
    pub const fn note(&mut self, command: &Command) {
        match command {
            Command::AcquireFenced { .. } => self.acquire = true,
            Command::HealFenced { .. } => self.heal = true,
            _ => {}
        }
    }

    /// Whether these commands are to be sent with the text of their scripts. Then the node knows those of them.
    pub fn is_told_with(&mut self, commands: &[Command]) -> bool {
        let has = |is_kind: fn(&Command) -> bool| commands.iter().any(is_kind);
        let acquire = self.acquire && has(|it| matches!(it, Command::AcquireFenced { .. }));
        let heal = self.heal && has(|it| matches!(it, Command::HealFenced { .. }));
        self.acquire &= !acquire;
        self.heal &= !heal;
        acquire || heal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Counter;
    use crate::token::{Token, Value};

    fn value(token: u8) -> Value {
        Value::new(&Token::new([token; 20]), "")
    }

    fn acquire(token: u8) -> Command {
        let counter = Counter { key: "c".into(), ttl_ms: 1000, marker: "m".into() };
        let (key, value) = ("k".into(), value(token));
        Command::AcquireFenced { key, value, ttl_ms: 1000, counter, proposal: 0 }
    }

    fn release(token: u8) -> Command {
        Command::Release { key: "k".into(), value: value(token), tell: true }
    }

    #[test]
    fn a_script_is_told_with_the_next_command_of_its_kind() {
        let mut untold = Untold::default();
        assert!(!untold.is_told_with(&[acquire(1)]));
        untold.note(&acquire(1));
        assert!(!untold.is_told_with(&[release(1)]), "that would not tell it");
        assert!(untold.is_told_with(&[release(1), acquire(2)]));
        assert!(!untold.is_told_with(&[acquire(3)]), "it has been told");
    }

    #[test]
    fn what_sets_a_lock_is_not_asked_again_behind_its_release() {
        let extend = Command::Extend { key: "k".into(), value: value(1), ttl_ms: 1000 };
        assert!(may_ask_again(&[acquire(1), release(2)], 0, false));
        assert!(!may_ask_again(&[acquire(1), release(2)], 0, true), "who knows what was sent");
        assert!(!may_ask_again(&[acquire(1), release(1)], 0, false));
        assert!(!may_ask_again(&[acquire(1), extend.clone()], 0, false), "that was carried out");
        assert!(may_ask_again(&[release(1), acquire(1)], 1, false));
        assert!(may_ask_again(&[extend, release(1)], 0, true), "it sets nothing");
    }
}
