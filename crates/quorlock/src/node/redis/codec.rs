//! Encodes each command for a server, and decodes its replies.

mod errors;
mod replies;

use quorlock_core::{Command, Failure, Form, Key, Keys, Mode, Taken};

pub(super) use self::errors::{code, explanation, kind_of, rejected};
pub(super) use self::replies::{decode, decode_in_place, is_out_of_protocol};
use super::commands::Lacking;
use super::resp::{self, Reply};
use super::scripts::{Script, Scripts};

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
        match command {
            Command::Acquire { keys, .. } | Command::Heal { keys, .. } => {
                let is_plain = keys.single().is_some();
                self.lacking.no_vote(if is_plain { UNNEEDED_BY_PLAIN } else { &["INFO"] })
            }
            Command::AcquireFenced { .. }
            | Command::AttachFenced { .. }
            | Command::HealFenced { .. } => self.lacking.no_vote(&["INFO"]),
            Command::Attach { mode: Mode::Exclusive, .. } | Command::Take { .. } => {
                self.lacking.no_vote(UNNEEDED_BY_TAKEN)
            }
            Command::Attach { .. } | Command::AcquireShared { .. } | Command::HealShared { .. } => {
                self.lacking.no_readers().or_else(|| self.lacking.no_vote(UNNEEDED_BY_READERS))
            }
            Command::ExtendShared { .. }
            | Command::ReleaseShared { .. }
            | Command::GiveBack { mode: Mode::Shared, .. }
            | Command::Downgrade { .. } => self.lacking.no_readers(),
            _ => None,
        }
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

    /// Reads the answer to the [question](super::commands::question) which commands the server has.
    pub(super) fn note_commands(&mut self, known: &[Reply]) {
        self.delete = Self::delete(known);
        self.lacking = Lacking::read(known);
    }

    fn delete(known: &[Reply]) -> Option<Delete> {
        let has = |place: usize| known.get(place).is_some_and(|info| *info != Reply::Nil);
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
    match command {
        Command::Inspect { keys, intents } | Command::Watch { keys, intents } => {
            let asks_for_pushes = way.watches && matches!(command, Command::Watch { .. });
            let by_script = is_seen_by_script(keys, intents.as_ref(), way);
            usize::from(asks_for_pushes) + if by_script { 1 } else { 2 }
        }
        Command::Acquire { .. }
        | Command::AcquireFenced { .. }
        | Command::AcquireShared { .. }
        | Command::Heal { .. }
        | Command::HealFenced { .. }
        | Command::HealShared { .. }
        | Command::Extend { .. }
        | Command::ExtendFenced { .. }
        | Command::ExtendShared { .. }
        | Command::Raise { .. }
        | Command::Downgrade { .. }
        | Command::Release { .. }
        | Command::ReleaseShared { .. }
        | Command::Attach { .. }
        | Command::AttachFenced { .. }
        | Command::GiveBack { .. }
        | Command::Take { .. }
        | Command::ExtendTaken { .. }
        | Command::ReleaseTaken { .. }
        | Command::Announce { .. }
        | Command::Withdraw { .. }
        | Command::Adopt { .. }
        | Command::Mark { .. } => 1,
        // `Identify` is sent by `evidence`. Any other command is from a later version of the core. Nothing is sent for
        // it, and its answer is a protocol failure.
        _ => 0,
    }
}

/// The number of keys that these commands watch.
pub(super) fn count_watches<'a>(commands: impl Iterator<Item = &'a Command>) -> usize {
    let keys = commands.map(|command| match command {
        Command::Watch { keys, intents } => {
            keys.len() + intents.as_ref().map_or(0, |intents| intents.len())
        }
        _ => 0,
    });
    keys.sum()
}

/// Whether a script must read these keys. `GET` and `PTTL` can read a single key that is absent or holds text. Every
/// other case needs a script.
fn is_seen_by_script(keys: &Keys, intents: Option<&Keys>, way: Encoding) -> bool {
    way.form != Form::Usual || intents.is_some() || keys.single().is_none()
}

pub(super) fn encode(command: &Command, way: Encoding, scripts: &Scripts, out: &mut Vec<u8>) {
    let mut digits = [itoa::Buffer::new(); 3];
    let [first, second, third] = &mut digits;
    if way.refusal(command).is_some() {
        return;
    }
    let form = way.form;
    match command {
        Command::Acquire { keys, value, ttl_ms } | Command::Heal { keys, value, ttl_ms } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            match keys.single() {
                Some(key) => {
                    // Writes the bytes that `resp::write` would write, but joins the constant parts.
                    out.extend_from_slice(b"*6\r\n$3\r\nSET\r\n");
                    resp::word(out, key.as_bytes());
                    resp::word(out, value.as_bytes());
                    out.extend_from_slice(b"$2\r\nNX\r\n$2\r\nPX\r\n");
                    resp::word(out, ttl);
                }
                None => {
                    let is_new = matches!(command, Command::Acquire { .. });
                    let script = if is_new { &scripts.acquire } else { &scripts.heal };
                    script.call(form, [keys], [value.as_bytes(), ttl], out);
                }
            }
        }
        Command::Extend { keys, value, ttl_ms } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            scripts.extend.call(form, [keys], [value.as_bytes(), ttl], out)
        }
        Command::ExtendFenced { keys, value, ttl_ms, counter } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            let keep = second.format(counter.ttl_ms).as_bytes();
            scripts.extend.call(form, [keys, &counter.keys], [value.as_bytes(), ttl, keep], out)
        }
        Command::AcquireFenced { keys, value, ttl_ms, counter, proposal } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            let keep = second.format(counter.ttl_ms).as_bytes();
            let proposal = third.format(*proposal).as_bytes();
            let keys = [keys, &*counter.keys, std::slice::from_ref(&counter.marker)];
            scripts.acquire_fenced.call(form, keys, [value.as_bytes(), ttl, keep, proposal], out)
        }
        Command::Raise { keys, value, counter, to } => {
            let to = first.format(*to).as_bytes();
            let keep = second.format(counter.ttl_ms).as_bytes();
            scripts.raise.call(form, [keys, &counter.keys], [value.as_bytes(), to, keep], out)
        }
        Command::HealFenced { keys, value, ttl_ms, counter, to } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            let to = second.format(*to).as_bytes();
            let keep = third.format(counter.ttl_ms).as_bytes();
            let words = [value.as_bytes(), ttl, to, keep];
            scripts.heal_fenced.call(form, [keys, &counter.keys], words, out)
        }
        Command::AcquireShared { keys, intents, value, ttl_ms } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            scripts.acquire_shared.call(form, [keys, intents], [value.as_bytes(), ttl, b"new"], out)
        }
        Command::HealShared { keys, value, ttl_ms } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            scripts.acquire_shared.call(form, [keys], [value.as_bytes(), ttl, b"again"], out)
        }
        Command::ExtendShared { keys, value, ttl_ms } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            scripts.extend_shared.call(form, [keys], [value.as_bytes(), ttl], out)
        }
        Command::ReleaseShared { keys, value } => {
            scripts.release_shared.call(form, [keys], [value.as_bytes()], out)
        }
        Command::Downgrade { keys, value } => {
            scripts.downgrade.call(form, [keys], [value.as_bytes()], out)
        }
        Command::Attach { keys, mode, from, value, ttl_ms } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            let words = [from.as_bytes(), value.as_bytes(), ttl];
            replacement(*mode, scripts).call(form, [keys], words, out)
        }
        Command::GiveBack { keys, mode, value, to } => {
            let words = [value.as_bytes(), to.as_bytes(), b"0"];
            replacement(*mode, scripts).call(form, [keys], words, out)
        }
        Command::AttachFenced { keys, from, value, ttl_ms, counter, proposal } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            let keep = second.format(counter.ttl_ms).as_bytes();
            let proposal = third.format(*proposal).as_bytes();
            let keys = [keys, &*counter.keys, std::slice::from_ref(&counter.marker)];
            let words = [value.as_bytes(), ttl, keep, proposal, from.as_bytes()];
            scripts.acquire_fenced.call(form, keys, words, out)
        }
        Command::Take { taken: Taken { key, nonce_key, value, nonce }, ttl_ms } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            let words = [value.as_bytes(), nonce.as_bytes(), ttl];
            scripts.take.call(form, [one(key), one(nonce_key)], words, out)
        }
        Command::ExtendTaken { taken, ttl_ms, by_value } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            change_taken((taken, *by_value), ttl, form, scripts, out)
        }
        Command::ReleaseTaken { taken, by_value } => {
            change_taken((taken, *by_value), b"0", form, scripts, out)
        }
        Command::Announce { intents, value, ttl_ms, renews } => {
            let ttl = first.format(*ttl_ms).as_bytes();
            let renews: &[u8] = if *renews { b"1" } else { b"0" };
            scripts.announce.call(form, [intents], [value.as_bytes(), ttl, renews], out)
        }
        Command::Withdraw { intents, value } => {
            scripts.release.call(form, [intents], [value.as_bytes()], out)
        }
        Command::Release { keys, value, .. } => match way.own_delete(keys) {
            Some((Delete::IfEq, key)) => {
                resp::write(out, &[b"DELIFEQ", key.as_bytes(), value.as_bytes()])
            }
            Some((Delete::Ex, key)) => {
                resp::write(out, &[b"DELEX", key.as_bytes(), b"IFEQ", value.as_bytes()])
            }
            None => scripts.release.call(form, [keys], [value.as_bytes()], out),
        },
        Command::Watch { keys, intents } | Command::Inspect { keys, intents } => {
            // `CLIENT CACHING` applies to the next command only, so it is written right before that command.
            if way.watches && matches!(command, Command::Watch { .. }) {
                resp::write(out, &[b"CLIENT", b"CACHING", b"YES"]);
            }
            look(keys, intents.as_ref(), way, scripts, out);
        }
        // The next two commands are rare, so their scripts are not loaded but sent as text.
        Command::Adopt { key, text, replaces, marker, seen } => {
            let [replaces, seen] = [replaces, seen].map(|text| text.as_deref().unwrap_or_default());
            let texts = [text.as_bytes(), replaces.as_bytes(), seen.as_bytes()];
            scripts.adopt.call(Form::Text, [one(key), one(marker)], texts, out)
        }
        Command::Mark { key, text, replaces, adoption } => {
            let how = if replaces.is_some() { "instead" } else { "new" }.as_bytes();
            let old = replaces.as_deref().unwrap_or_default().as_bytes();
            let text = text.as_bytes();
            match adoption {
                None => scripts.mark.call(Form::Text, [one(key)], [text, how, old], out),
                Some(adopted) => {
                    let age = first.format(adopted.age_ms).as_bytes();
                    let words = [text, how, old, adopted.text.as_bytes(), age];
                    scripts.mark.call(Form::Text, [one(key), one(&adopted.key)], words, out)
                }
            }
        }
        _ => {}
    }
}

/// The script that replaces a lock's value.
fn replacement(mode: Mode, scripts: &Scripts) -> &Script {
    match mode {
        Mode::Exclusive => &scripts.attach,
        Mode::Shared => &scripts.attach_shared,
    }
}

/// Encodes an extension of a lock with the caller's value, or its release if the ttl is `0`.
fn change_taken(
    (taken, by_value): (&Taken, bool),
    ttl: &[u8],
    form: Form,
    scripts: &Scripts,
    out: &mut Vec<u8>,
) {
    let Taken { key, nonce_key, value, nonce } = taken;
    let compares: &[u8] = if by_value { b"value" } else { b"nonce" };
    let words = [value.as_bytes(), nonce.as_bytes(), ttl, compares];
    scripts.taken.call(form, [one(key), one(nonce_key)], words, out)
}

fn look(keys: &Keys, intents: Option<&Keys>, way: Encoding, scripts: &Scripts, out: &mut Vec<u8>) {
    match keys.single().filter(|_| !is_seen_by_script(keys, intents, way)) {
        Some(key) => {
            // `CLIENT CACHING` applies only to the first of these two commands, which makes the server track the key.
            resp::write(out, &[b"GET", key.as_bytes()]);
            resp::write(out, &[b"PTTL", key.as_bytes()]);
        }
        None => {
            let intents = intents.map_or(&[][..], |intents| intents);
            let count = itoa::Buffer::new().format(keys.len()).to_owned();
            scripts.look.call(way.form, [keys, intents], [count.as_bytes()], out)
        }
    }
}

fn one(key: &Key) -> &[Key] {
    std::slice::from_ref(key)
}
