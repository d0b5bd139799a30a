//! The scripts that servers execute, each in one atomic step.

use std::ops::Index;

use quorlock_core::{Form, Key, Script};

use super::resp;

pub(super) struct Scripts([ScriptText; Script::COUNT]);

pub(super) struct ScriptText {
    text: &'static str,
    /// The encoded words `EVALSHA` and the script's hash. A server knows the hash once it has loaded the script.
    by_hash: Vec<u8>,
}

macro_rules! text {
    ($name:literal) => {
        include_str!(concat!("../scripts/", $name, ".lua"))
    };
    // Puts the functions for readers, and a comment with the script's name, before the text.
    ($name:literal with readers) => {
        concat!(
            "-- ",
            $name,
            ".lua of quorlock, behind holding.lua\n",
            include_str!("../scripts/holding.lua"),
            include_str!(concat!("../scripts/", $name, ".lua"))
        )
    };
}

const TEXTS: [(Script, &str); Script::COUNT] = [
    (Script::Acquire, text!("acquire")),
    (Script::AcquireFenced, text!("acquire_fenced" with readers)),
    (Script::AcquireShared, text!("acquire_shared" with readers)),
    (Script::Adopt, text!("adopt")),
    (Script::Announce, text!("announce")),
    (Script::Attach, text!("attach")),
    (Script::AttachShared, text!("attach_shared" with readers)),
    (Script::Downgrade, text!("downgrade" with readers)),
    (Script::Extend, text!("extend")),
    (Script::ExtendShared, text!("extend_shared" with readers)),
    (Script::Heal, text!("heal")),
    (Script::HealFenced, text!("heal_fenced")),
    (Script::Look, text!("look" with readers)),
    (Script::Mark, text!("mark")),
    (Script::Raise, text!("raise")),
    (Script::Release, text!("release")),
    (Script::ReleaseShared, text!("release_shared" with readers)),
    (Script::Take, text!("take")),
    (Script::Taken, text!("taken")),
];

impl Index<Script> for Scripts {
    type Output = ScriptText;

    fn index(&self, script: Script) -> &ScriptText {
        &self.0[script as usize]
    }
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self(TEXTS.map(|(_, text)| ScriptText::new(text)))
    }

    /// The texts of the scripts that writers use often, to be loaded when the client connects. Any other script is sent
    /// as text with the first command that needs it. The greeting must fit the first window of TCP, some 14 600 bytes, so
    /// that it takes one round trip; the script of fenced acquires alone has 9 800.
    pub(super) fn texts(&self) -> [&'static str; 5] {
        let often =
            [Script::Acquire, Script::Extend, Script::HealFenced, Script::Raise, Script::Release];
        often.map(|script| self[script].text)
    }
}

impl ScriptText {
    fn new(text: &'static str) -> Self {
        let hash = sha1_smol::Sha1::from(text).hexdigest();
        let mut by_hash = Vec::new();
        resp::word(&mut by_hash, b"EVALSHA");
        resp::word(&mut by_hash, hash.as_bytes());
        Self { text, by_hash }
    }

    /// Writes a call of the script with these keys, one group after the other. The call gets one reply.
    pub(super) fn call<const GROUPS: usize, const ARGS: usize>(
        &self,
        form: Form,
        keys: [&[Key]; GROUPS],
        args: [&[u8]; ARGS],
        out: &mut Vec<u8>,
    ) {
        let count: usize = keys.iter().map(|group| group.len()).sum();
        resp::start(out, 3 + count + ARGS);
        match form {
            Form::Usual | Form::Script => out.extend_from_slice(&self.by_hash),
            Form::Text => {
                resp::word(out, b"EVAL");
                resp::word(out, self.text.as_bytes());
            }
        }
        resp::word(out, itoa::Buffer::new().format(count).as_bytes());
        keys.into_iter().flatten().for_each(|key| resp::word(out, key.as_bytes()));
        args.into_iter().for_each(|word| resp::word(out, word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_has_its_own_text() {
        let scripts = Scripts::new();
        assert!(TEXTS.iter().all(|(script, text)| scripts[*script].text == *text));
    }

    #[test]
    fn the_scripts_are_known_by_the_hash_of_their_text() {
        // The hash is the one that `SCRIPT LOAD` returns for this text.
        let words = b"$7\r\nEVALSHA\r\n$40\r\ne0e1f9fabfc9d4800c877a703b823ac0578ff8db\r\n";
        assert_eq!(ScriptText::new("return 1").by_hash, words);
    }
}
