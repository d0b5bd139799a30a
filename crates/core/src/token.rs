//! The token that shows whose lock it is, and the value stored with it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// The name under which a lock is stored on every node: the client's prefix and the resource.
pub type Key = Arc<str>;

/// 160 random bits, fresh for **every attempt** (invariant S6); printed as 40 hexadecimal digits.
///
/// The core has no generator: the bytes come with the event that starts an attempt.
/// `Debug` shows only the first digits, so that tokens do not end up in logs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token([u8; Token::BYTES]);

impl Token {
    /// The length of a token in bytes.
    pub const BYTES: usize = 20;
    const DIGITS: usize = 2 * Self::BYTES;

    /// The token made of these random bytes.
    pub const fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    fn digits(&self) -> [u8; Self::DIGITS] {
        let mut digits = [0; Self::DIGITS];
        for (byte, pair) in self.0.iter().zip(digits.chunks_exact_mut(2)) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        digits
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.digits();
        f.write_str(core::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.digits();
        let start = core::str::from_utf8(&digits[..6]).map_err(|_| fmt::Error)?;
        write!(f, "Token({start}…)")
    }
}

/// What a node stores: the token and, behind a space, who the owner is.
///
/// Every comparison on a node is of the *whole* value (invariant S7).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(Arc<[u8]>);

impl Value {
    /// The value that stores `token` and, if it is not empty, the owner's description.
    pub fn new(token: &Token, owner: &str) -> Self {
        if owner.is_empty() {
            return Self(Arc::new(token.digits()));
        }
        let mut bytes = Vec::with_capacity(Token::DIGITS + 1 + owner.len());
        bytes.extend_from_slice(&token.digits());
        bytes.push(b' ');
        bytes.extend_from_slice(owner.as_bytes());
        Self(bytes.into())
    }

    /// The bytes as stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is that very value, and not only equal to it.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Reads the owner's description out of a stored value, if it was written by this library.
    ///
    /// `None` for a value of another library, `Some("")` for one of ours without a description.
    pub fn owner_of(stored: &[u8]) -> Option<&str> {
        let (token, rest) = stored.split_at_checked(Token::DIGITS)?;
        if !token.iter().all(|digit| HEX.contains(digit)) {
            return None;
        }
        match rest {
            [] => Some(""),
            [b' ', owner @ ..] => core::str::from_utf8(owner).ok(),
            _ => None,
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = core::str::from_utf8(&self.0[..6]).map_err(|_| fmt::Error)?;
        write!(f, "Value({start}…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;

    #[test]
    fn a_token_is_printed_as_forty_digits_but_debugged_as_six() {
        let token = Token::new([0xab; 20]);
        assert_eq!(token.to_string(), "ab".repeat(20));
        assert_eq!(format!("{token:?}"), "Token(ababab…)");
        assert_eq!(format!("{:?}", Value::new(&token, "build-7")), "Value(ababab…)");
    }

    #[test]
    fn the_owner_is_read_back_only_from_our_own_values() {
        let token = Token::new([7; 20]);
        let value = Value::new(&token, "build-7:41 nightly");
        assert_eq!(Value::owner_of(value.as_bytes()), Some("build-7:41 nightly"));
        assert_eq!(Value::owner_of(Value::new(&token, "").as_bytes()), Some(""));
        assert_eq!(Value::owner_of(b"some-other-library"), None);
        assert_eq!(Value::owner_of(&[b'f'; 41]), None);
    }
}
