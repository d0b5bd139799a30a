//! Tokens and random words, from the operating system.

use quorlock_core::{LockId, Token};

/// Random bytes from the operating system.
///
/// The driver fetches the bytes in the tick that uses them, for all attempts of the tick together, and never keeps them
/// for a later tick. If a process or a virtual machine is copied while the driver waits, each copy then fetches its own
/// bytes. With bytes from before the copy, two clients would share a token.
#[derive(Debug, Default)]
pub(super) struct Entropy {
    bytes: Vec<u8>,
    expected: usize,
}

/// A token for a command that belongs to no attempt.
pub(crate) fn fresh_token() -> Token {
    quorlock_core::Entropy::draw(&mut Entropy::default(), LockId(0)).0
}

/// The number of bytes for one attempt: those of a token and of a random word.
const DRAW: usize = Token::BYTES + size_of::<u64>();

/// The most attempts whose bytes are fetched together.
const DRAWS_MAX: usize = 64;

impl Entropy {
    /// Announces the number of attempts for which bytes are drawn in this tick.
    pub(super) fn expect(&mut self, draws: usize) {
        self.expected = draws.clamp(1, DRAWS_MAX);
    }

    /// Ends the tick, and forgets its bytes.
    pub(super) fn forget(&mut self) {
        self.bytes.clear();
    }
}

impl quorlock_core::Entropy for Entropy {
    fn draw(&mut self, _: LockId) -> (Token, u64) {
        if self.bytes.is_empty() {
            self.bytes.resize(self.expected.max(1) * DRAW, 0);
            #[expect(clippy::expect_used, reason = "without entropy no token is unique or safe")]
            getrandom::fill(&mut self.bytes).expect("the operating system gives random bytes");
        }
        let (mut token, mut word) = ([0; Token::BYTES], [0; size_of::<u64>()]);
        let rest = self.bytes.len() - DRAW;
        token.copy_from_slice(&self.bytes[rest..rest + Token::BYTES]);
        word.copy_from_slice(&self.bytes[rest + Token::BYTES..]);
        self.bytes.truncate(rest);
        (Token::new(token), u64::from_le_bytes(word))
    }
}
