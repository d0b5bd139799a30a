//! The token that identifies an attempt's lock, and the value that nodes store.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::time::Reading;

/// The name under which a lock is stored on every node: the client's prefix and the resource.
pub type Key = Arc<str>;

/// 160 random bits, fresh for **every attempt** (invariant S6); printed as 40 hexadecimal digits.
///
/// The core has no random generator; [`Entropy`](crate::Entropy) supplies the bytes when an attempt begins.
/// `Debug` shows only the first digits, so that logs contain no tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token([u8; Token::BYTES]);

impl Token {
    /// The length of a token in bytes.
    pub const BYTES: usize = 20;
    const DIGITS: usize = 2 * Self::BYTES;

    /// A token of random bytes.
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

/// The value that a node stores: the token and, if there is an owner's description, a space, a date and the description.
///
/// The date is `@`, the milliseconds since the Unix epoch in decimal digits, and a space. If the writer has lately seen
/// a client of another library hold one of the keys, `-` and the milliseconds since then precede the space.
///
/// A node always compares the *whole* value (invariant S7).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(Arc<[u8]>);

impl Value {
    /// A value without a date. An empty owner's description is left out.
    pub fn new(token: &Token, owner: &str) -> Self {
        if owner.is_empty() {
            return Self(Arc::new(token.digits()));
        }
        Self::described(token, &[], owner)
    }

    /// A value whose date is the time of the attempt by the wall clock. Without an owner's description, or if the wall
    /// clock was never set, the value has no date. All nodes of an attempt receive the same value.
    ///
    /// `foreign_age` is the time since a client of another library was last seen to hold one of the keys.
    pub fn dated(token: &Token, owner: &str, now: Reading, foreign_age: Option<Duration>) -> Self {
        let since_ms = u64::try_from(now.real_ns() / 1_000_000).unwrap_or(0);
        if owner.is_empty() || !IS_SET_MS.contains(&since_ms) {
            return Self::new(token, owner);
        }
        let mut date = *b"@0000000000000 ";
        let mut rest = since_ms;
        for digit in date[1..=DATE_DIGITS].iter_mut().rev() {
            // A digit fits into a byte.
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        match foreign_age {
            None => Self::described(token, &date, owner),
            Some(age) => {
                // Rounded up, so the time of the last foreign holder never gets later when values copy it.
                let date = core::str::from_utf8(&date).unwrap_or_default().trim_end();
                Self::described(token, format!("{date}-{} ", age.as_millis() + 1).as_bytes(), owner)
            }
        }
    }

    /// A value that the caller chose.
    pub fn of_caller(bytes: &[u8]) -> Self {
        Self(bytes.into())
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

    /// Whether the two values share one allocation. Then they are equal without a comparison.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Reads the owner's description from a stored value of this library.
    ///
    /// `None` for a value of another library, `Some("")` for one of ours without a description.
    pub fn owner_of(stored: &[u8]) -> Option<&str> {
        Self::parse(stored).map(|(_, owner)| owner)
    }

    /// Reads the date from a stored value, in milliseconds since the Unix epoch by the owner's wall clock.
    ///
    /// `None` if the value has no date: it is another library's, has no owner's description, or was written by version
    /// 0.1.0.
    pub fn since_ms_of(stored: &[u8]) -> Option<u64> {
        Some(Self::parse(stored)?.0?.since_ms)
    }

    /// Reads from a stored value when its owner last saw a client of another library hold one of the keys, in
    /// milliseconds since the Unix epoch by the owner's wall clock. `None` if the owner has seen none lately.
    pub fn foreign_seen_ms_of(stored: &[u8]) -> Option<u64> {
        let date = Self::parse(stored)?.0?;
        date.since_ms.checked_sub(date.foreign_age_ms?)
    }

    fn parse(stored: &[u8]) -> Option<(Option<Date>, &str)> {
        let (token, rest) = stored.split_at_checked(Token::DIGITS)?;
        if !token.iter().all(|digit| HEX.contains(digit)) {
            return None;
        }
        match rest {
            [] => Some((None, "")),
            [b' ', owner @ ..] => {
                let owner = core::str::from_utf8(owner).ok()?;
                Some(match split_date(owner) {
                    Some((date, owner)) => (Some(date), owner),
                    None => (None, owner),
                })
            }
            _ => None,
        }
    }
}

/// Splits the text after the token into date and owner's description.
fn split_date(text: &str) -> Option<(Date, &str)> {
    let (date, owner) = text.strip_prefix('@')?.split_once(' ')?;
    let number = |digits: &str| {
        let is_number = digits.bytes().all(|it| it.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|_| is_number)
    };
    let (since, age) = date.split_at_checked(DATE_DIGITS)?;
    let foreign_age_ms = match age.strip_prefix('-') {
        Some(age) => Some(number(age)?),
        None if age.is_empty() => None,
        None => return None,
    };
    Some((Date { since_ms: number(since)?, foreign_age_ms }, owner))
}

/// The times in a value, in milliseconds.
struct Date {
    /// Time of the attempt since the Unix epoch.
    since_ms: u64,
    /// Time from the last sight of a client of another library to the attempt; `None` if there was none lately.
    foreign_age_ms: Option<u64>,
}

/// Number of digits of a date in milliseconds in the years 2001 to 2286.
const DATE_DIGITS: usize = 13;

/// Plausible times of a wall clock that was set, in milliseconds since the Unix epoch: from the year 2020 on.
const IS_SET_MS: core::ops::Range<u64> = 1_577_836_800_000..10_000_000_000_000;

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({}…)", self.0[..self.0.len().min(6)].escape_ascii())
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
        let dated = Value::dated(&token, "build-7:41 nightly", now, None);
        let stored = format!("{token} @1764065000123 build-7:41 nightly");
        assert_eq!(dated.as_bytes(), stored.as_bytes());
        assert_eq!(read(dated.as_bytes()), (Some(1_764_065_000_123), owner("build-7:41 nightly")));
        assert_eq!(Value::dated(&token, "", now, None), Value::new(&token, ""), "the plain token");
        let never_set = Reading::new(5, 5_000_000_000);
        assert_eq!(Value::dated(&token, "x", never_set, None), Value::new(&token, "x"));
        assert_eq!(Value::dated(&token, "x", Reading::new(5, -1), None), Value::new(&token, "x"));
        // Version 0.1.0 wrote no date. A text that only begins like a date belongs to the description.
        let texts = ["h:1 nightly", "@17 x", "@1764065000123", "@176406500012x y", "@", "@ "];
        for text in texts.into_iter().chain(["@1764065000123- x", "@1764065000123-1x y"]) {
            let old = Value::new(&token, text);
            assert_eq!(read(old.as_bytes()), (None, owner(text)));
        }
        assert_eq!(read(b"some-other-library @1764065000123 x"), (None, None));
    }

    #[test]
    fn a_value_says_when_its_owner_last_saw_a_foreign_client() {
        let token = Token::new([7; 20]);
        let now = Reading::new(5, 1_764_065_000_123_999_999);
        let age = Some(Duration::from_micros(4_567_890));
        let value = Value::dated(&token, "build-7:41", now, age);
        let stored = value.as_bytes();
        assert_eq!(stored, format!("{token} @1764065000123-4568 build-7:41").as_bytes());
        assert_eq!(Value::owner_of(stored), Some("build-7:41"));
        assert_eq!(Value::since_ms_of(stored), Some(1_764_065_000_123));
        assert_eq!(Value::foreign_seen_ms_of(stored), Some(1_764_064_995_555));
        let without = Value::dated(&token, "build-7:41", now, None);
        assert_eq!(Value::foreign_seen_ms_of(without.as_bytes()), None);
    }
}
