//! What servers are given to execute in one atomic step.

use super::resp;
use super::speech::Way;

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
    /// By which a server knows it, once it has been loaded.
    hash: String,
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
        Self { text, hash: sha1_smol::Sha1::from(text).hexdigest() }
    }

    /// Says that it is to be executed; it gets one reply.
    pub(super) fn call<const KEYS: usize, const ARGS: usize>(
        &self,
        way: Way,
        keys: [&[u8]; KEYS],
        args: [&[u8]; ARGS],
        out: &mut Vec<u8>,
    ) {
        let (name, program) = match way {
            Way::Native(_) | Way::Sha => ("EVALSHA", &*self.hash),
            Way::Text => ("EVAL", self.text),
        };
        let mut digits = itoa::Buffer::new();
        let count = digits.format(KEYS).as_bytes();
        resp::start(out, 3 + KEYS + ARGS);
        for word in [name.as_bytes(), program.as_bytes(), count] {
            resp::word(out, word);
        }
        keys.into_iter().chain(args).for_each(|word| resp::word(out, word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_are_known_by_the_hash_of_their_text() {
        // As `SCRIPT LOAD` answers.
        assert_eq!(Script::new("return 1").hash, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
