//! Asking again: a node that does not know a script has not run it, so its command may be sent once more, with the
//! script's text. That repeats nothing (S8).

use crate::command::Command;

/// Whether the command at this place of a batch may be asked again. `has_moved_on`: something was sent on this
/// connection since.
///
/// A command that sets a lock must not come behind its release: nobody would take back what it sets. So it is
/// asked again only if nothing can have been sent since that releases it.
///
/// # Panics
/// If there is no such place.
pub fn may_ask_again(commands: &[Command], place: usize, has_moved_on: bool) -> bool {
    let (Command::AcquireFenced { value, .. } | Command::HealFenced { value, .. }) =
        &commands[place]
    else {
        return true;
    };
    let releases = |command: &Command| matches!(command, Command::Release { value: released, .. } if released == value);
    mutant!(AskedAgainLate) || !has_moved_on && !commands[place..].iter().any(releases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Counter;
    use crate::token::{Token, Value};

    #[test]
    fn what_sets_a_lock_is_not_asked_again_behind_its_release() {
        let (key, value) = ("k".into(), |token| Value::new(&Token::new([token; 20]), ""));
        let counter = Counter { key: "c".into(), ttl_ms: 1000, marker: "m".into() };
        let acquire = |token| Command::AcquireFenced {
            key: "k".into(),
            value: value(token),
            ttl_ms: 1000,
            counter: counter.clone(),
            proposal: 0,
        };
        let release = |token| Command::Release { key: "k".into(), value: value(token), tell: true };
        let extend = Command::Extend { key, value: value(1), ttl_ms: 1000 };
        assert!(may_ask_again(&[acquire(1), release(2)], 0, false));
        assert!(!may_ask_again(&[acquire(1), release(2)], 0, true), "who knows what was sent");
        assert!(!may_ask_again(&[acquire(1), release(1)], 0, false));
        assert!(may_ask_again(&[release(1), acquire(1)], 1, false));
        assert!(may_ask_again(&[extend, release(1)], 0, true), "it sets nothing");
    }
}
