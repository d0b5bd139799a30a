//! Encodes each command for a server, and decodes its replies.

mod errors;
mod holdings;
mod replies;

use quorlock_core::{
    AcquireForm, AttachForm, Command, ExtendForm, Failure, Form, HealForm, Key, Keys, ReleaseForm,
    Script, TakenFrom,
};

pub(super) use self::errors::{
    code, explanation, is_missing, kind_of, missing, missing_command, rejected,
};
pub(super) use self::replies::{decode, decode_in_place, is_out_of_protocol};
use super::lacking::Lacking;
use super::resp::{self, Reply};
use super::scripts::Scripts;

/// Commands that a lock of one key without a fencing token does not need, so the user need not have the rights to them.
const UNNEEDED_BY_PLAIN: &[&str] = &["INFO", "GETRANGE", "EXISTS", "TIME"];

const UNNEEDED_BY_TAKEN: &[&str] = &["INFO", "GETRANGE", "TIME"];

const UNNEEDED_BY_READERS: &[&str] = &["INFO", "SET", "GETRANGE", "EXISTS", "PEXPIRE"];

/// How commands are encoded on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Encoding {
    pub(super) form: Form,
    /// The server's native compare-and-delete command, if it has one. Used only if `form` is `Usual`.
    pub(super) delete: Option<Delete>,
    /// Whether the server can push. If so, a `Watch` makes the server track the keys.
    pub(super) watches: bool,
    /// The commands that the server lacks, or that the user may not use.
    pub(super) lacking: Lacking,
}

impl Encoding {
    /// The failure if this command must not be sent, because the server lacks one of the commands that carry it out, or
    /// the user lacks a right.
    #[inline]
    fn refusal(&self, command: &Command) -> Option<Failure> {
        if self.lacking == Lacking::default() { None } else { self.refusal_if_lacking(command) }
    }

    #[cold]
    fn refusal_if_lacking(&self, command: &Command) -> Option<Failure> {
        let script = command.script();
        let no_readers = match script {
            Some(
                Script::AcquireShared
                | Script::AttachShared
                | Script::Downgrade
                | Script::ExtendShared
                | Script::ReleaseShared,
            ) => self.lacking.no_readers(),
            _ => None,
        };
        let unneeded = match script {
            None => UNNEEDED_BY_PLAIN,
            Some(Script::Attach | Script::Take) => UNNEEDED_BY_TAKEN,
            Some(Script::AcquireShared | Script::AttachShared) => UNNEEDED_BY_READERS,
            Some(_) => &["INFO"],
        };
        let no_vote = || self.lacking.no_vote(unneeded).filter(|_| command.sets_a_lock());
        no_readers.or_else(no_vote)
    }

    /// The server's native command that releases these keys, if it has one.
    fn own_delete(self, keys: &Keys) -> Option<(Delete, &Key)> {
        match self.form {
            Form::Usual => self.delete.zip(keys.single()),
            _ => None,
        }
    }
}

/// A command that deletes a key if it holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delete {
    /// `DELIFEQ key value`: Valkey from 9.0 on.
    IfEq,
    /// `DELEX key IFEQ value`: Redis from 8.4 on.
    Ex,
}

/// The abilities that a server reported on this connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capabilities {
    /// The server pushes when a watched key changes.
    pub(super) watches: bool,
    /// The server's native compare-and-delete command, if it has one.
    pub(super) delete: Option<Delete>,
    /// The server accepts several sections in one `INFO`: Redis and Valkey from 7.0 on.
    pub(super) sections: bool,
    /// The commands that the server lacks, or that the user may not use.
    pub(super) lacking: Lacking,
}

impl Capabilities {
    pub(super) const fn encoding(self, form: Form) -> Encoding {
        let Self { watches, delete, lacking, .. } = self;
        Encoding { form, delete, watches, lacking }
    }

    /// Reads the replies to [`command_infos`](super::lacking::command_infos).
    pub(super) fn note_commands(&mut self, infos: &[Reply]) {
        self.delete = Self::delete(infos);
        self.lacking = Lacking::of_infos(infos);
    }

    fn delete(infos: &[Reply]) -> Option<Delete> {
        let has = |place: usize| infos.get(place).is_some_and(|info| *info != Reply::Nil);
        match (has(0), has(1)) {
            (true, _) => Some(Delete::IfEq),
            (false, true) => Some(Delete::Ex),
            (false, false) => None,
        }
    }
}

pub(super) fn replies_to(command: &Command, way: Encoding) -> usize {
    if way.refusal(command).is_some() {
        return 0;
    }
    let (Command::Inspect { keys, intents } | Command::Watch { keys, intents }) = command else {
        // `Identify` is sent by `evidence`.
        return usize::from(!matches!(command, Command::Identify));
    };
    let asks_for_pushes = way.watches && matches!(command, Command::Watch { .. });
    let by_script = is_seen_by_script(keys, intents.as_ref(), way);
    usize::from(asks_for_pushes) + if by_script { 1 } else { 2 }
}

/// The number of keys that these commands watch.
pub(super) fn count_watches<'a>(commands: impl Iterator<Item = &'a Command>) -> usize {
    let keys = commands.map(|command| {
        let Command::Watch { keys, intents } = command else { return 0 };
        keys.len() + intents.as_ref().map_or(0, |intents| intents.len())
    });
    keys.sum()
}

/// Whether a script must read these keys. `GET` and `PTTL` can read a single key that is absent or holds text. Every
/// other case needs a script.
fn is_seen_by_script(keys: &Keys, intents: Option<&Keys>, way: Encoding) -> bool {
    way.form != Form::Usual || intents.is_some() || keys.single().is_none()
}

pub(super) fn encode(command: &Command, way: Encoding, scripts: &Scripts, out: &mut Vec<u8>) {
    if way.refusal(command).is_some() {
        return;
    }
    let Some(script) = command.script() else { return encode_set(command, out) };
    let (wire, script) = (way.form, &scripts[script]);
    let mut digits = [itoa::Buffer::new(); 3];
    let [first, second, third] = &mut digits;
    match command {
        Command::Acquire { keys, value, ttl_ms, form } => {
            let (value, ttl) = (value.as_bytes(), first.format(*ttl_ms).as_bytes());
            match form {
                AcquireForm::Plain => script.call(wire, [keys], [value, ttl], out),
                AcquireForm::Fenced { counter, proposal } => {
                    let keep = second.format(counter.ttl_ms).as_bytes();
                    let proposal = third.format(*proposal).as_bytes();
                    let keys = [keys, &*counter.keys, one(&counter.marker)];
                    script.call(wire, keys, [value, ttl, keep, proposal], out)
                }
                AcquireForm::Shared { intents } => {
                    script.call(wire, [keys, intents], [value, ttl, b"new"], out)
                }
                AcquireForm::Taken(from) => {
                    let words = [from.value.as_bytes(), value, ttl];
                    script.call(wire, [keys, one(&from.nonce_key)], words, out)
                }
            }
        }
        Command::Heal { keys, value, ttl_ms, form } => {
            let (value, ttl) = (value.as_bytes(), first.format(*ttl_ms).as_bytes());
            match form {
                HealForm::Plain => script.call(wire, [keys], [value, ttl], out),
                HealForm::Fenced { counter, to } => {
                    let to = second.format(*to).as_bytes();
                    let keep = third.format(counter.ttl_ms).as_bytes();
                    script.call(wire, [keys, &counter.keys], [value, ttl, to, keep], out)
                }
                HealForm::Shared => script.call(wire, [keys], [value, ttl, b"again"], out),
            }
        }
        Command::Extend { keys, value, ttl_ms, form } => {
            let (value, ttl) = (value.as_bytes(), first.format(*ttl_ms).as_bytes());
            match form {
                ExtendForm::Plain | ExtendForm::Shared => {
                    script.call(wire, [keys], [value, ttl], out)
                }
                ExtendForm::Fenced { counter } => {
                    let keep = second.format(counter.ttl_ms).as_bytes();
                    script.call(wire, [keys, &counter.keys], [value, ttl, keep], out)
                }
                ExtendForm::Taken(from) => {
                    let words = [from.value.as_bytes(), value, ttl, compared(from)];
                    script.call(wire, [keys, one(&from.nonce_key)], words, out)
                }
            }
        }
        Command::Release { keys, value, form } => {
            let value = value.as_bytes();
            match form {
                ReleaseForm::Plain { .. } => match way.own_delete(keys) {
                    Some((Delete::IfEq, key)) => {
                        resp::write(out, &[b"DELIFEQ", key.as_bytes(), value])
                    }
                    Some((Delete::Ex, key)) => {
                        resp::write(out, &[b"DELEX", key.as_bytes(), b"IFEQ", value])
                    }
                    None => script.call(wire, [keys], [value], out),
                },
                ReleaseForm::Shared => script.call(wire, [keys], [value], out),
                ReleaseForm::Taken(from) => {
                    let words = [from.value.as_bytes(), value, b"0", compared(from)];
                    script.call(wire, [keys, one(&from.nonce_key)], words, out)
                }
            }
        }
        Command::Attach { keys, from, value, ttl_ms, form } => {
            let (from, value) = (from.as_bytes(), value.as_bytes());
            let ttl = first.format(*ttl_ms).as_bytes();
            match form {
                AttachForm::Plain | AttachForm::Shared => {
                    script.call(wire, [keys], [from, value, ttl], out)
                }
                AttachForm::Fenced { counter, proposal } => {
                    let keep = second.format(counter.ttl_ms).as_bytes();
                    let proposal = third.format(*proposal).as_bytes();
                    let keys = [keys, &*counter.keys, one(&counter.marker)];
                    script.call(wire, keys, [value, ttl, keep, proposal, from], out)
                }
            }
        }
        Command::GiveBack { keys, value, to, .. } => {
            script.call(wire, [keys], [value.as_bytes(), to.as_bytes(), b"0"], out)
        }
        Command::Watch { keys, intents } | Command::Inspect { keys, intents } => {
            // `CLIENT CACHING` applies to the next command only, so it is written right before that command.
            if way.watches && matches!(command, Command::Watch { .. }) {
                resp::write(out, &[b"CLIENT", b"CACHING", b"YES"]);
            }
            match keys.single().filter(|_| !is_seen_by_script(keys, intents.as_ref(), way)) {
                Some(key) => {
                    // `CLIENT CACHING` applies only to the first of these two commands, which makes the server track
                    // the key.
                    resp::write(out, &[b"GET", key.as_bytes()]);
                    resp::write(out, &[b"PTTL", key.as_bytes()]);
                }
                None => {
                    let count = first.format(keys.len()).as_bytes();
                    let intents = intents.as_deref().unwrap_or_default();
                    script.call(wire, [keys, intents], [count], out)
                }
            }
        }
        Command::Raise { keys, value, counter, to } => {
            let to = first.format(*to).as_bytes();
            let keep = second.format(counter.ttl_ms).as_bytes();
            script.call(wire, [keys, &counter.keys], [value.as_bytes(), to, keep], out)
        }
        Command::Downgrade { keys, value } | Command::Withdraw { intents: keys, value } => {
            script.call(wire, [keys], [value.as_bytes()], out)
        }
        Command::Announce { intents, value, ttl_ms, renews } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            let renews: &[u8] = if *renews { b"1" } else { b"0" };
            script.call(wire, [intents], [value.as_bytes(), ttl, renews], out)
        }
        // The next two commands are rare, so their scripts are not loaded but sent as text.
        Command::Adopt { key, text, replaces, marker, seen } => {
            let [replaces, seen] = [replaces, seen].map(|text| text.as_deref().unwrap_or_default());
            let texts = [text.as_bytes(), replaces.as_bytes(), seen.as_bytes()];
            script.call(Form::Text, [one(key), one(marker)], texts, out)
        }
        Command::Mark { key, text, replaces, adoption } => {
            let how = if replaces.is_some() { "instead" } else { "new" }.as_bytes();
            let old = replaces.as_deref().unwrap_or_default().as_bytes();
            let text = text.as_bytes();
            match adoption {
                None => script.call(Form::Text, [one(key)], [text, how, old], out),
                Some(adopted) => {
                    let age = first.format(adopted.age_ms).as_bytes();
                    let words = [text, how, old, adopted.text.as_bytes(), age];
                    script.call(Form::Text, [one(key), one(&adopted.key)], words, out)
                }
            }
        }
        Command::Identify => {}
    }
}

/// Encodes a lock of one key as `SET`. Any other command without a script is not sent.
#[inline]
fn encode_set(command: &Command, out: &mut Vec<u8>) {
    if let Command::Acquire { keys, value, ttl_ms, form: AcquireForm::Plain }
    | Command::Heal { keys, value, ttl_ms, form: HealForm::Plain } = command
        && let Some(key) = keys.single()
    {
        // Writes the bytes that `resp::write` would write, but joins the constant parts.
        out.extend_from_slice(b"*6\r\n$3\r\nSET\r\n");
        resp::word(out, key.as_bytes());
        resp::word(out, value.as_bytes());
        out.extend_from_slice(b"$2\r\nNX\r\n$2\r\nPX\r\n");
        resp::word(out, itoa::Buffer::new().format(*ttl_ms).as_bytes());
    }
}

/// The word that names the part of a lock with the caller's value that a script compares.
const fn compared(from: &TakenFrom) -> &'static [u8] {
    if from.by_value { b"value" } else { b"nonce" }
}

fn one(key: &Key) -> &[Key] {
    std::slice::from_ref(key)
}
