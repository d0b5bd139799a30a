//! The scripts that servers execute, each in one atomic step.

use quorlock_core::{Form, Key};

use super::resp;

pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) acquire_fenced: Script,
    pub(super) acquire_shared: Script,
    pub(super) adopt: Script,
    pub(super) announce: Script,
    pub(super) attach: Script,
    pub(super) attach_shared: Script,
    pub(super) downgrade: Script,
    pub(super) extend: Script,
    pub(super) extend_shared: Script,
    pub(super) heal: Script,
    pub(super) heal_fenced: Script,
    pub(super) look: Script,
    pub(super) mark: Script,
    pub(super) raise: Script,
    pub(super) release: Script,
    pub(super) release_shared: Script,
    pub(super) take: Script,
    pub(super) taken: Script,
}

pub(super) struct Script {
    text: &'static str,
    /// The encoded words `EVALSHA` and the script's hash. A server knows the hash once it has loaded the script.
    by_hash: Vec<u8>,
}

macro_rules! script {
    ($name:literal) => {
        Script::new(include_str!(concat!("../scripts/", $name, ".lua")))
    };
    // Puts the functions for readers, and a comment with the script's name, before the text.
    ($name:literal with readers) => {
        Script::new(concat!(
            "-- ",
            $name,
            ".lua of quorlock, behind holding.lua\n",
            include_str!("../scripts/holding.lua"),
            include_str!(concat!("../scripts/", $name, ".lua"))
        ))
    };
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            acquire: script!("acquire"),
            acquire_fenced: script!("acquire_fenced" with readers),
            acquire_shared: script!("acquire_shared" with readers),
            adopt: script!("adopt"),
            announce: script!("announce"),
            attach: script!("attach"),
            attach_shared: script!("attach_shared" with readers),
            downgrade: script!("downgrade" with readers),
            extend: script!("extend"),
            extend_shared: script!("extend_shared" with readers),
            heal: script!("heal"),
            heal_fenced: script!("heal_fenced"),
            look: script!("look" with readers),
            mark: script!("mark"),
            raise: script!("raise"),
            release: script!("release"),
            release_shared: script!("release_shared" with readers),
            take: script!("take"),
            taken: script!("taken"),
        }
    }

    /// The texts of the scripts that writers use often, to be loaded when the client connects. Any other script is sent
    /// as text with the first command that needs it.
    pub(super) fn texts(&self) -> [&'static str; 6] {
        let Self { acquire, acquire_fenced, extend, heal_fenced, raise, release, .. } = self;
        [acquire, acquire_fenced, extend, heal_fenced, raise, release].map(|script| script.text)
    }
}

impl Script {
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
    fn the_scripts_are_known_by_the_hash_of_their_text() {
        // The hash is the one that `SCRIPT LOAD` returns for this text.
        let said = b"$7\r\nEVALSHA\r\n$40\r\ne0e1f9fabfc9d4800c877a703b823ac0578ff8db\r\n";
        assert_eq!(Script::new("return 1").by_hash, said);
    }
}
