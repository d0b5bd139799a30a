//! RESP, the servers' protocol, in its versions 2 and 3: writes commands and reads replies.

/// A message of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The status `OK`.
    Okay,
    /// Any other line of text.
    Text(String),
    /// An error: a code and, usually, an explanation.
    Error(String),
    /// A number. A boolean is 1 or 0.
    Int(i64),
    /// The null value.
    Nil,
    /// A string of any bytes. Outside of a list, only its first 64 KiB are kept.
    Bytes(Vec<u8>),
    /// A list. A map is a list in which keys and values alternate.
    List(Vec<Reply>),
    /// A push: a list that answers no command.
    Push(Vec<Reply>),
}

impl Reply {
    /// The text of a `Bytes` or `Text` reply; `None` for any other reply, and for bytes that are not UTF-8.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// The most bytes of a string that are kept, because another client may have written any value under our keys.
pub(super) const BYTES_KEPT: usize = 64 * 1024;

/// The largest value that a server can hold.
const VALUE_MAX: usize = 512 * 1024 * 1024;

/// The largest reply that the client's commands can get, not counting long strings.
pub(super) const REPLY_MAX: usize = 128 * 1024;

const DEPTH_MAX: usize = 8;

#[inline]
pub(super) fn write(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.reserve(words.iter().map(|word| word.len() + 16).sum::<usize>() + 16);
    start(out, words.len());
    words.iter().for_each(|text| word(out, text));
}

#[inline]
pub(super) fn start(out: &mut Vec<u8>, words: usize) {
    write_length(out, b'*', words);
}

#[inline]
pub(super) fn word(out: &mut Vec<u8>, text: &[u8]) {
    write_length(out, b'$', text.len());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn write_length(out: &mut Vec<u8>, mark: u8, length: usize) {
    // The fast path for lengths of at most two digits, which nearly all words have.
    if let Ok(length @ ..100) = u8::try_from(length) {
        let (tens, ones) = (b'0' + length / 10, b'0' + length % 10);
        match length {
            ..10 => out.extend_from_slice(&[mark, ones, b'\r', b'\n']),
            10.. => out.extend_from_slice(&[mark, tens, ones, b'\r', b'\n']),
        }
        return;
    }
    out.push(mark);
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A reply of `length` bytes. The next `surplus` bytes belong to a long value, and are to be skipped.
    Reply { reply: Reply, length: usize, surplus: usize },
    /// A part of a reply. The input must have `needed` bytes before it is read again.
    Part { needed: usize },
}

/// The input is not RESP, or longer than any reply to the client's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

pub(super) fn read(input: &[u8]) -> Result<Found, Malformed> {
    // The fast path for the most frequent replies.
    let short = match input {
        [b'+', b'O', b'K', b'\r', b'\n', ..] => Some((Reply::Okay, 5)),
        [b':', digit @ b'0'..=b'9', b'\r', b'\n', ..] => {
            Some((Reply::Int((digit - b'0').into()), 4))
        }
        [b'_', b'\r', b'\n', ..] => Some((Reply::Nil, 3)),
        _ => None,
    };
    if let Some((reply, length)) = short {
        return Ok(Found::Reply { reply, length, surplus: 0 });
    }
    let mut reader = Reader { input, at: 0, surplus: 0 };
    match reader.reply(0) {
        // A reply this long is malformed even if it arrives whole, as it would be if it arrived in parts.
        Ok(_) if reader.at > REPLY_MAX => Err(Malformed),
        Ok(reply) => Ok(Found::Reply { reply, length: reader.at, surplus: reader.surplus }),
        Err(Stop::Part { needed }) if needed <= REPLY_MAX => Ok(Found::Part { needed }),
        Err(_) => Err(Malformed),
    }
}

/// Reads a bulk string of less than 1000 bytes at the input's beginning. Returns its bytes and the length of the reply
/// if the reply is complete. [`read`] returns the same bytes.
#[inline]
pub(super) fn short_value(input: &[u8]) -> Option<(&[u8], usize)> {
    let digit = |byte: u8| Some(usize::from(byte.checked_sub(b'0').filter(|digit| *digit < 10)?));
    let (size, start) = match *input {
        [b'$', a, b'\r', b'\n', ..] => (digit(a)?, 4),
        [b'$', a, b, b'\r', b'\n', ..] => (10 * digit(a)? + digit(b)?, 5),
        [b'$', a, b, c, b'\r', b'\n', ..] => (100 * digit(a)? + 10 * digit(b)? + digit(c)?, 6),
        _ => return None,
    };
    let value = input.get(start..start + size + 2)?.strip_suffix(b"\r\n")?;
    Some((value, start + size + 2))
}

struct Reader<'a> {
    input: &'a [u8],
    at: usize,
    surplus: usize,
}

enum Stop {
    Part { needed: usize },
    Malformed,
}

impl<'a> Reader<'a> {
    fn reply(&mut self, depth: usize) -> Result<Reply, Stop> {
        if depth > DEPTH_MAX {
            return Err(Stop::Malformed);
        }
        let line = self.line()?;
        let (&mark, rest) = line.split_first().ok_or(Stop::Malformed)?;
        Ok(match mark {
            b'+' if rest == b"OK" => Reply::Okay,
            b'+' | b',' | b'(' => Reply::Text(text(rest)),
            b'-' => Reply::Error(text(rest)),
            b':' => Reply::Int(number(rest)?),
            b'_' => Reply::Nil,
            b'#' => Reply::Int(i64::from(rest == b"t")),
            b'$' | b'=' => match self.bytes(rest, depth)? {
                Some(bytes) => Reply::Bytes(bytes.to_vec()),
                None => Reply::Nil,
            },
            b'!' => Reply::Error(text(self.bytes(rest, depth)?.ok_or(Stop::Malformed)?)),
            b'*' | b'~' => self.list(length(rest)?, depth)?.map_or(Reply::Nil, Reply::List),
            b'>' => Reply::Push(self.list(length(rest)?, depth)?.ok_or(Stop::Malformed)?),
            b'%' => self.list(twice(length(rest)?), depth)?.map_or(Reply::Nil, Reply::List),
            // An attribute describes the reply that follows it, and is skipped.
            b'|' => {
                self.list(twice(length(rest)?), depth)?;
                self.reply(depth + 1)?
            }
            _ => return Err(Stop::Malformed),
        })
    }

    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.input[self.at..];
        let part = Stop::Part { needed: self.input.len() + 1 };
        let end = rest.iter().position(|byte| *byte == b'\r').ok_or(part)?;
        match rest.get(end + 1) {
            Some(b'\n') => {
                self.at += end + 2;
                Ok(&rest[..end])
            }
            Some(_) => Err(Stop::Malformed),
            None => Err(Stop::Part { needed: self.input.len() + 1 }),
        }
    }

    /// Reads a string of `size` bytes, and the line end after it.
    fn bytes(&mut self, size: &[u8], depth: usize) -> Result<Option<&'a [u8]>, Stop> {
        let Some(size) = length(size)? else { return Ok(None) };
        if size > VALUE_MAX {
            return Err(Stop::Malformed);
        }
        if depth == 0 && size > BYTES_KEPT {
            self.surplus = size - BYTES_KEPT + 2;
            let bytes = self.take(BYTES_KEPT)?;
            return Ok(Some(bytes));
        }
        let bytes = self.take(size + 2)?;
        bytes.strip_suffix(b"\r\n").ok_or(Stop::Malformed).map(Some)
    }

    fn take(&mut self, size: usize) -> Result<&'a [u8], Stop> {
        let end = self.at.checked_add(size).ok_or(Stop::Malformed)?;
        let bytes = self.input.get(self.at..end).ok_or(Stop::Part { needed: end })?;
        self.at = end;
        Ok(bytes)
    }

    fn list(&mut self, size: Option<usize>, depth: usize) -> Result<Option<Vec<Reply>>, Stop> {
        let Some(size) = size else { return Ok(None) };
        // The size that the server announced may be wrong, so only a bounded capacity is reserved.
        let mut list = Vec::with_capacity(size.min(64));
        for _ in 0..size {
            list.push(self.reply(depth + 1)?);
        }
        Ok(Some(list))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number(digits: &[u8]) -> Result<i64, Stop> {
    let digits = std::str::from_utf8(digits).map_err(|_| Stop::Malformed)?;
    digits.parse().map_err(|_| Stop::Malformed)
}

/// Parses a length. `None` for -1, which is the null value of RESP2.
fn length(digits: &[u8]) -> Result<Option<usize>, Stop> {
    match number(digits)? {
        -1 => Ok(None),
        length => usize::try_from(length).map(Some).map_err(|_| Stop::Malformed),
    }
}

fn twice(size: Option<usize>) -> Option<usize> {
    size.map(|size| size.saturating_mul(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut input: &[u8]) -> Result<Vec<Reply>, Malformed> {
        let mut replies = Vec::new();
        while !input.is_empty() {
            match read(input)? {
                Found::Reply { reply, length, surplus } => {
                    replies.push(reply);
                    input = &input[length + surplus..];
                }
                Found::Part { .. } => break,
            }
        }
        Ok(replies)
    }

    const STREAM: &[u8] = b"+OK\r\n+PONG\r\n-NOSCRIPT No matching script.\r\n:-2\r\n$-1\r\n_\r\n\
        $5\r\na\r\nbc\r\n*2\r\n:1\r\n*1\r\n$0\r\n\r\n%1\r\n+a\r\n:2\r\n*-1\r\n\
        >2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n#t\r\n,1.5\r\n(12\r\n=5\r\ntxt:x\r\n\
        !3\r\nERR\r\n|1\r\n+ttl\r\n:3\r\n+OK\r\n~1\r\n:7\r\n";

    fn expected() -> Vec<Reply> {
        use Reply::{Bytes, Error, Int, List, Nil, Okay, Push, Text};
        let bytes = |text: &[u8]| Bytes(text.to_vec());
        vec![
            Okay,
            Text("PONG".into()),
            Error("NOSCRIPT No matching script.".into()),
            Int(-2),
            Nil,
            Nil,
            bytes(b"a\r\nbc"),
            List(vec![Int(1), List(vec![bytes(b"")])]),
            List(vec![Text("a".into()), Int(2)]),
            Nil,
            Push(vec![bytes(b"invalidate"), List(vec![bytes(b"k")])]),
            Int(1),
            Text("1.5".into()),
            Text("12".into()),
            bytes(b"txt:x"),
            Error("ERR".into()),
            Okay,
            List(vec![Int(7)]),
        ]
    }

    #[test]
    fn every_kind_of_reply_is_read() {
        assert_eq!(all(STREAM), Ok(expected()));
    }

    #[test]
    fn a_part_is_never_taken_for_a_reply_and_says_how_much_is_missing() {
        let whole = expected();
        for end in 0..STREAM.len() {
            let replies = all(&STREAM[..end]).unwrap();
            assert_eq!(replies, whole[..replies.len()], "of {end} bytes");
        }
        for (part, needed) in [(&b"$5\r\nab"[..], 11), (b"+O", 3), (b"*2\r\n:1\r\n", 9), (b"", 1)] {
            assert_eq!(read(part), Ok(Found::Part { needed }));
        }
    }

    #[test]
    fn what_is_not_resp_is_refused() {
        for input in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"\x15\x03\x03\x00\x02\x02\x28\r\n",
            b"\r\n",
            b"+OK\rX",
            b":12a\r\n",
            b":\r\n",
            b"$-2\r\n",
            b"$3\r\nabcde",
            b"$99999999999999999999\r\n",
            b"$536870913\r\n",
            b"*1\r\n$9223372036854775807\r\n",
            b"*2000000000\r\n$2000000\r\n",
            b">-1\r\n",
        ] {
            assert_eq!(all(input), Err(Malformed), "{}", String::from_utf8_lossy(input));
        }
        let deep = b"*1\r\n".repeat(100);
        assert_eq!(all(&deep), Err(Malformed));
        let endless = vec![b'+'; REPLY_MAX];
        assert_eq!(read(&endless), Err(Malformed));
    }

    #[test]
    fn random_bytes_do_no_harm() {
        let mut word = 1_u64;
        let mut byte = || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            b"+-:_#$=!*~>%|,(0123456789\r\nOKx"[(word >> 33) as usize % 30]
        };
        for length in 0..20_000 {
            let input: Vec<u8> = (0..length % 40).map(|_| byte()).collect();
            if let Ok(Found::Part { needed }) = read(&input) {
                assert!(needed > input.len());
            }
        }
    }

    #[test]
    fn a_short_value_is_what_would_be_read() {
        let long = "x".repeat(1000);
        let long = [999, 1000].map(|size| format!("${size}\r\n{}\r\n", &long[..size]));
        let inputs = ["$0\r\n\r\n", "$3\r\na\r\n\r\n:1\r\n", "$012\r\nabcdefghijkl\r\n"];
        let others =
            ["$-1\r\n", "$+1\r\na\r\n", "$\r\n\r\n", "$1\r\nab\r\n", "$1\rxa\r\n", "+a\r\n"];
        let known = inputs.into_iter().chain([&*long[0]]);
        let all = known.clone().map(|it| (it, true));
        let others = others.into_iter().chain([&*long[1]]).map(|it| (it, false));
        for (input, is_known) in all.chain(others) {
            assert_eq!(short_value(input.as_bytes()).is_some(), is_known, "{input:?}");
        }
        for input in known {
            for end in 0..=input.len() {
                let part = &input.as_bytes()[..end];
                let Some((value, length)) = short_value(part) else { continue };
                let reply = Reply::Bytes(value.to_vec());
                assert_eq!(read(part), Ok(Found::Reply { reply, length, surplus: 0 }));
            }
        }
    }

    #[test]
    fn of_a_long_value_the_beginning_is_kept() {
        let mut input = format!("${}\r\n", BYTES_KEPT + 10).into_bytes();
        input.extend(vec![b'x'; BYTES_KEPT]);
        let Ok(Found::Reply { reply, length, surplus }) = read(&input) else { panic!("a reply") };
        assert_eq!(reply, Reply::Bytes(vec![b'x'; BYTES_KEPT]));
        assert_eq!((length, surplus), (input.len(), 12));
    }

    #[test]
    fn commands_are_written_as_servers_expect_them() {
        let mut out = Vec::new();
        write(&mut out, &[b"SET", b"a key", b"\r\n", b""]);
        assert_eq!(out, b"*4\r\n$3\r\nSET\r\n$5\r\na key\r\n$2\r\n\r\n\r\n$0\r\n\r\n");
        for length in [0, 1, 9, 10, 11, 99, 100, 101, 255, 256, 1234] {
            let (mut out, word) = (Vec::new(), vec![b'x'; length]);
            write(&mut out, &[&word]);
            let expected = format!("*1\r\n${length}\r\n{}\r\n", "x".repeat(length));
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
