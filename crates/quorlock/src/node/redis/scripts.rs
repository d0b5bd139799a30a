//! What servers are given to execute in one atomic step.

use super::codec::CompareMethod;
use super::resp;

/// All scripts.
pub(super) struct Scripts {
    pub(super) acquire_fenced: Script,
    pub(super) adopt: Script,
    pub(super) extend: Script,
    pub(super) heal_fenced: Script,
    pub(super) mark: Script,
    pub(super) raise: Script,
    pub(super) release: Script,
}

pub(super) struct Script {
    text: &'static str,
    /// The words `EVALSHA` and the hash by which a server knows it, once it has been loaded; as they are written.
    by_hash: Vec<u8>,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            acquire_fenced: Script::new(include_str!("../scripts/acquire_fenced.lua")),
            adopt: Script::new(include_str!("../scripts/adopt.lua")),
            extend: Script::new(include_str!("../scripts/extend.lua")),
            heal_fenced: Script::new(include_str!("../scripts/heal_fenced.lua")),
            mark: Script::new(include_str!("../scripts/mark.lua")),
            raise: Script::new(include_str!("../scripts/raise.lua")),
            release: Script::new(include_str!("../scripts/release.lua")),
        }
    }

    /// The texts of those that are used often, to be loaded.
    pub(super) fn texts(&self) -> [&'static str; 5] {
        let Self { acquire_fenced, extend, heal_fenced, raise, release, .. } = self;
        [acquire_fenced, extend, heal_fenced, raise, release].map(|script| script.text)
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

    /// Says that it is to be executed; it gets one reply.
    pub(super) fn call<const KEYS: usize, const ARGS: usize>(
        &self,
        method: CompareMethod,
        keys: [&[u8]; KEYS],
        args: [&[u8]; ARGS],
        out: &mut Vec<u8>,
    ) {
        resp::start(out, 3 + KEYS + ARGS);
        match method {
            CompareMethod::Native(_) | CompareMethod::Sha => out.extend_from_slice(&self.by_hash),
            CompareMethod::Text => {
                resp::word(out, b"EVAL");
                resp::word(out, self.text.as_bytes());
            }
        }
        resp::word(out, itoa::Buffer::new().format(KEYS).as_bytes());
        keys.into_iter().chain(args).for_each(|word| resp::word(out, word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_are_known_by_the_hash_of_their_text() {
        // As `SCRIPT LOAD` answers.
        let said = b"$7\r\nEVALSHA\r\n$40\r\ne0e1f9fabfc9d4800c877a703b823ac0578ff8db\r\n";
        assert_eq!(Script::new("return 1").by_hash, said);
    }
}
