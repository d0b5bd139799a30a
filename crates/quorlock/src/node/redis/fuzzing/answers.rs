//! The bounds of the memory that answers use.

use std::sync::Arc;

use quorlock_core::{
    AcquireForm, Answer, AttachForm, Command, Counter, ExtendForm, Form, HealForm, Holding, Key,
    Keys, Mode, Reader, ReleaseForm, TakenFrom, Token, Value,
};

use super::read_in_parts;
use crate::node::redis::codec::{Delete, Encoding, decode};

/// Answers: an answer to any command keeps no more of a reply than can be shown, and no command is sent again
/// endlessly.
pub fn answers(data: &[u8]) {
    are_looked_at(data);
}

/// Decodes the data as replies to a command, which the first two bytes choose. Returns whether any answer reports a
/// holder.
pub(super) fn are_looked_at(data: &[u8]) -> bool {
    let [kind, flags, data @ ..] = data else { return false };
    let mut is_held = false;
    let command = command(*kind, flags & 1 == 0, flags & 2 == 0);
    let (replies, _) = read_in_parts([data]);
    for form in [Form::Usual, Form::Script, Form::Text] {
        let (delete, watches) = (Some(Delete::IfEq), flags & 4 == 0);
        let encoding = Encoding { form, delete, watches, ..Encoding::default() };
        match decode(&command, encoding, &mut replies.iter().cloned()) {
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

/// A command of the kind with this number, for one key or for two. `flag` chooses between two variants of the kind.
fn command(kind: u8, is_single: bool, flag: bool) -> Command {
    let names = if is_single { &["a"][..] } else { &["a", "b"] };
    let keys = Keys::new(names.iter().map(|name| Key::from(*name))).expect("one or two");
    let intents = keys.map(|key| format!("{key}i").into());
    let value = Value::new(&Token::new([7; Token::BYTES]), "");
    let from = value.clone();
    let (key, nonce_key, text): (Key, Key, Arc<str>) = ("a".into(), "n".into(), "text".into());
    let taken = Arc::new(TakenFrom { value: value.clone(), nonce_key, by_value: flag });
    let counter = Counter { keys: intents.clone(), ttl_ms: 1, marker: "m".into() };
    let mode = if flag { Mode::Exclusive } else { Mode::Shared };
    let (ttl_ms, proposal, to) = (1, 2, 3);
    match kind % 26 {
        0 => Command::Inspect { keys, intents: flag.then_some(intents) },
        1 => Command::Watch { keys, intents: flag.then_some(intents) },
        2 => Command::Announce { intents, value, ttl_ms, renews: flag },
        3 => Command::Withdraw { intents, value },
        4 => Command::Acquire { keys, value, ttl_ms, form: AcquireForm::Plain },
        5 => Command::Heal { keys, value, ttl_ms, form: HealForm::Plain },
        6 => Command::Extend { keys, value, ttl_ms, form: ExtendForm::Plain },
        7 => Command::Release { keys, value, form: ReleaseForm::Plain { tell: flag } },
        8 => Command::Acquire { keys, value, ttl_ms, form: AcquireForm::Shared { intents } },
        9 => Command::Heal { keys, value, ttl_ms, form: HealForm::Shared },
        10 => Command::Extend { keys, value, ttl_ms, form: ExtendForm::Shared },
        11 => Command::Release { keys, value, form: ReleaseForm::Shared },
        12 => Command::Downgrade { keys, value },
        13 => {
            let form = AcquireForm::Fenced { counter, proposal };
            Command::Acquire { keys, value, ttl_ms, form }
        }
        14 => Command::Heal { keys, value, ttl_ms, form: HealForm::Fenced { counter, to } },
        15 => Command::Extend { keys, value, ttl_ms, form: ExtendForm::Fenced { counter } },
        16 => Command::Raise { keys, value, counter, to },
        17 => Command::Attach { keys, from, value, ttl_ms, form: mode.into() },
        18 => {
            let form = AttachForm::Fenced { counter, proposal };
            Command::Attach { keys, from, value, ttl_ms, form }
        }
        19 => Command::GiveBack { keys, mode, value, to: from },
        20 => Command::Acquire { keys, value, ttl_ms, form: AcquireForm::Taken(taken) },
        21 => Command::Extend { keys, value, ttl_ms, form: ExtendForm::Taken(taken) },
        22 => Command::Release { keys, value, form: ReleaseForm::Taken(taken) },
        23 => Command::Adopt { key, text, replaces: None, marker: counter.marker, seen: None },
        24 => Command::Mark { key, text, replaces: None, adoption: None },
        _ => Command::Identify,
    }
}
