//! The bounds of the memory that answers use.

use quorlock_core::{
    Answer, Command, Counter, Form, Holding, Keys, Mode, Reader, Taken, Token, Value,
};

use super::read_in_parts;
use crate::node::redis::codec::{Delete, Encoding, decode};

/// Answers: an answer to any command keeps no more of a reply than can be shown, and no command is sent again
/// endlessly.
pub fn answers(data: &[u8]) {
    are_looked_at(data);
}

/// Decodes the data as replies to each command. Returns whether any answer reports a holder.
pub(super) fn are_looked_at(data: &[u8]) -> bool {
    let Some((which, data)) = data.split_first() else { return false };
    let mut is_held = false;
    let commands = all_commands();
    let command = &commands[usize::from(*which) % commands.len()];
    let (replies, _) = read_in_parts(&[data]);
    for form in [Form::Usual, Form::Script, Form::Text] {
        let (delete, watches) = (Some(Delete::IfEq), which % 2 == 0);
        let encoding = Encoding { form, delete, watches, ..Encoding::default() };
        match decode(command, encoding, &mut replies.iter().cloned()) {
            Ok(Answer::Seen(holding) | Answer::Watched(holding)) => {
                is_bounded(&holding);
                is_held |= holding != Holding::Free;
            }
            Ok(Answer::RefusedFenced { holding, fence }) => {
                is_bounded(&holding);
                assert!(fence < Counter::LIMIT);
                is_held = true;
            }
            Ok(_) => {}
            Err(again) => assert!(again > form, "{command:?} would be asked for ever"),
        }
    }
    is_held
}

fn is_bounded(holding: &Holding) {
    assert!(holding.each().len() <= 2, "more than was asked");
    for holding in holding.each() {
        match holding {
            Holding::Held { value, .. } | Holding::Announced { value, .. } => {
                assert!(value.capacity() <= Holding::VALUE_BYTES_MAX);
            }
            Holding::Shared { readers, .. } => {
                assert!(readers.len() <= Holding::READERS_MAX);
                let is_short = |it: &Reader| it.value.capacity() <= Holding::VALUE_BYTES_MAX;
                assert!(readers.iter().all(is_short));
            }
            _ => {}
        }
    }
}

/// One command of each kind. Commands about locks are included for one key and for two.
fn all_commands() -> Vec<Command> {
    let (ttl_ms, proposal, to) = (1, 2, 3);
    let mut commands = vec![Command::Identify];
    for keys in [Keys::new(["a".into()]), Keys::new(["a".into(), "b".into()])] {
        let keys = keys.expect("one or two");
        let intents = keys.map(|key| format!("{key}i").into());
        let value = Value::new(&Token::new([7; Token::BYTES]), "");
        let counter = Counter { keys: intents.clone(), ttl_ms, marker: "m".into() };
        let parts = || (keys.clone(), value.clone(), counter.clone());
        let some = Some(intents.clone());
        commands.extend([
            Command::Inspect { keys: keys.clone(), intents: None },
            Command::Inspect { keys: keys.clone(), intents: some.clone() },
            Command::Watch { keys: keys.clone(), intents: None },
            Command::Watch { keys: keys.clone(), intents: some },
            Command::Announce {
                intents: intents.clone(),
                value: value.clone(),
                ttl_ms,
                renews: true,
            },
            Command::Withdraw { intents: intents.clone(), value: value.clone() },
        ]);
        let (keys, value, counter) = parts();
        commands.push(Command::AcquireFenced { keys, value, ttl_ms, counter, proposal });
        let (keys, value, counter) = parts();
        commands.push(Command::HealFenced { keys, value, ttl_ms, counter, to });
        let (keys, value, counter) = parts();
        commands.push(Command::Raise { keys, value, counter, to });
        let of_value: [fn(Keys, Value) -> Command; 8] = [
            |keys, value| Command::Acquire { keys, value, ttl_ms: 1 },
            |keys, value| Command::Heal { keys, value, ttl_ms: 1 },
            |keys, value| Command::Extend { keys, value, ttl_ms: 1 },
            |keys, value| Command::Release { keys, value, tell: true },
            |keys, value| Command::HealShared { keys, value, ttl_ms: 1 },
            |keys, value| Command::ExtendShared { keys, value, ttl_ms: 1 },
            |keys, value| Command::ReleaseShared { keys, value },
            |keys, value| Command::Downgrade { keys, value },
        ];
        commands.extend(of_value.iter().map(|command| {
            let (keys, value, _) = parts();
            command(keys, value)
        }));
        let (keys, value, _) = parts();
        commands.push(Command::AcquireShared { keys, intents, value, ttl_ms });
        for mode in [Mode::Exclusive, Mode::Shared] {
            let (keys, value, _) = parts();
            let from = value.clone();
            commands.push(Command::Attach { keys, mode, from, value, ttl_ms });
            let (keys, value, _) = parts();
            let to = value.clone();
            commands.push(Command::GiveBack { keys, mode, value, to });
        }
        let (keys, value, counter) = parts();
        let from = value.clone();
        commands.push(Command::AttachFenced { keys, from, value, ttl_ms, counter, proposal });
        let (keys, value, _) = parts();
        let (key, nonce_key, nonce) = (keys[0].clone(), keys[0].clone(), value.clone());
        let taken = Taken { key, nonce_key, value, nonce };
        commands.push(Command::Take { taken: taken.clone(), ttl_ms });
        for by_value in [true, false] {
            let taken = taken.clone();
            commands.push(Command::ExtendTaken { taken: taken.clone(), ttl_ms, by_value });
            commands.push(Command::ReleaseTaken { taken, by_value });
        }
    }
    commands
}
