//! The token that shows whose lock it is, and the value stored with it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::time::Reading;

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

/// What a node stores: the token and, if there is an owner's description, a space, since when, and the description.
///
/// Since when is `@`, the milliseconds since the Unix epoch in decimal digits, and a space.
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
        Self::described(token, &[], owner)
    }

    /// The same, and if there is an owner's description, the time of the attempt that stores the value: the wall
    /// clock's part of `now`. All nodes of an attempt get the same value. A wall clock that was never set is left out.
    pub fn dated(token: &Token, owner: &str, now: Reading) -> Self {
        let since_ms = u64::try_from(now.real_ns() / 1_000_000).unwrap_or(0);
        if owner.is_empty() || !IS_SET_MS.contains(&since_ms) {
            return Self::new(token, owner);
        }
        let mut date = *b"@0000000000000 ";
        let mut rest = since_ms;
        for digit in date[1..=DATE_DIGITS].iter_mut().rev() {
            // A remainder below ten fits.
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        Self::described(token, &date, owner)
    }

    fn described(token: &Token, date: &[u8], owner: &str) -> Self {
        let mut bytes = Vec::with_capacity(Token::DIGITS + 1 + date.len() + owner.len());
        bytes.extend_from_slice(&token.digits());
        bytes.push(b' ');
        bytes.extend_from_slice(date);
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
        Self::parse(stored).map(|(_, owner)| owner)
    }

    /// Since when the owner has the lock, by its own wall clock, in milliseconds since the Unix epoch.
    ///
    /// `None` for a value of another library, one without a description, and one of version 0.1.0.
    pub fn since_ms_of(stored: &[u8]) -> Option<u64> {
        Self::parse(stored)?.0
    }

    fn parse(stored: &[u8]) -> Option<(Option<u64>, &str)> {
        let (token, rest) = stored.split_at_checked(Token::DIGITS)?;
        if !token.iter().all(|digit| HEX.contains(digit)) {
            return None;
        }
        match rest {
            [] => Some((None, "")),
            [b' ', owner @ ..] => {
                let owner = core::str::from_utf8(owner).ok()?;
                Some(match split_date(owner) {
                    Some((since_ms, owner)) => (Some(since_ms), owner),
                    None => (None, owner),
                })
            }
            _ => None,
        }
    }
}

/// The date at the beginning of what follows the token, and the rest.
fn split_date(text: &str) -> Option<(u64, &str)> {
    let (digits, owner) = text.strip_prefix('@')?.split_once(' ')?;
    let is_date = digits.len() == DATE_DIGITS && digits.bytes().all(|it| it.is_ascii_digit());
    Some((digits.parse().ok().filter(|_| is_date)?, owner))
}

/// Enough for milliseconds of the years 2001 to 2286.
const DATE_DIGITS: usize = 13;

/// Times that a wall clock shows that was set: from the year 2020 on, in milliseconds since the Unix epoch.
const IS_SET_MS: core::ops::Range<u64> = 1_577_836_800_000..10_000_000_000_000;

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

    #[test]
    fn a_described_value_has_its_date_and_a_plain_one_or_an_old_one_none() {
        let token = Token::new([7; 20]);
        let read = |value: &[u8]| {
            (Value::since_ms_of(value), Value::owner_of(value).map(ToString::to_string))
        };
        let owner = |text: &str| Some(text.to_string());
        let now = Reading::new(5, 1_764_065_000_123_999_999);
        let dated = Value::dated(&token, "build-7:41 nightly", now);
        let stored = format!("{token} @1764065000123 build-7:41 nightly");
        assert_eq!(dated.as_bytes(), stored.as_bytes());
        assert_eq!(read(dated.as_bytes()), (Some(1_764_065_000_123), owner("build-7:41 nightly")));
        assert_eq!(Value::dated(&token, "", now), Value::new(&token, ""), "the plain token");
        let never_set = Reading::new(5, 5_000_000_000);
        assert_eq!(Value::dated(&token, "x", never_set), Value::new(&token, "x"));
        assert_eq!(Value::dated(&token, "x", Reading::new(5, -1)), Value::new(&token, "x"));
        // Version 0.1.0 wrote none, and what looks like one only in part is the owner's own text.
        for text in ["h:1 nightly", "@17 x", "@1764065000123", "@176406500012x y", "@", "@ "] {
            let old = Value::new(&token, text);
            assert_eq!(read(old.as_bytes()), (None, owner(text)));
        }
        assert_eq!(read(b"some-other-library @1764065000123 x"), (None, None));
    }
}
