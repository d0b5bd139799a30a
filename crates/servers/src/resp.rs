//! RESP2 and RESP3 for tests: an incremental parser and a blocking client. The code is separate from the library's, so
//! that tests do not check the library's Redis client against itself.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A message from a server. RESP3 types that RESP2 lacks are converted to their RESP2 equivalents, except pushes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status reply such as `OK`.
    Simple(String),
    /// An error reply with its code: `NOAUTH Authentication required.`
    Error(String),
    /// An integer.
    Int(i64),
    /// A string, or null in any encoding.
    Bulk(Option<Vec<u8>>),
    /// An array. A map becomes alternating keys and values.
    Array(Vec<Reply>),
    /// A push message.
    Push(Vec<Reply>),
}

/// Removes the first message (a reply or a command) from the buffer, if it is complete. Returns it and its bytes.
///
/// # Errors
/// If the buffer does not contain RESP.
pub fn take(read: &mut Vec<u8>) -> io::Result<Option<(Reply, Vec<u8>)>> {
    let Some((message, length)) = first(read)? else { return Ok(None) };
    Ok(Some((message, read.drain(..length).collect())))
}

/// Returns the first message and its length in bytes; `None` if the message is incomplete.
fn first(bytes: &[u8]) -> io::Result<Option<(Reply, usize)>> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (line, mut at) = (&bytes[..end], end + 2);
    let garbled = || {
        let what = format!("not RESP: {}", line.escape_ascii());
        io::Error::new(io::ErrorKind::InvalidData, what)
    };
    let (kind, rest) = line.split_first().ok_or_else(garbled)?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let number = || text(rest).parse::<i64>().map_err(|_| garbled());
    let message = match kind {
        b'+' => Reply::Simple(text(rest)),
        b'-' => Reply::Error(text(rest)),
        b':' => Reply::Int(number()?),
        b'#' => Reply::Int(i64::from(rest == b"t")),
        b',' | b'(' => Reply::Bulk(Some(rest.to_vec())),
        b'_' => Reply::Bulk(None),
        b'$' | b'=' | b'!' | b'*' | b'~' | b'>' | b'%' if number()? < 0 => Reply::Bulk(None),
        b'$' | b'=' | b'!' => {
            let length = number()?.unsigned_abs() as usize;
            let Some(value) = bytes.get(at..at + length + 2) else { return Ok(None) };
            at += length + 2;
            let value = value.strip_suffix(b"\r\n").ok_or_else(garbled)?;
            match kind {
                b'!' => Reply::Error(text(value)),
                // A verbatim string begins with its format: `txt:`.
                b'=' => Reply::Bulk(Some(value.get(4..).ok_or_else(garbled)?.to_vec())),
                _ => Reply::Bulk(Some(value.to_vec())),
            }
        }
        b'*' | b'~' | b'>' | b'%' => {
            let mut parts = Vec::new();
            for _ in 0..number()? * if *kind == b'%' { 2 } else { 1 } {
                let Some((part, length)) = first(&bytes[at..])? else { return Ok(None) };
                parts.push(part);
                at += length;
            }
            if *kind == b'>' { Reply::Push(parts) } else { Reply::Array(parts) }
        }
        _ => return Err(garbled()),
    };
    Ok(Some((message, at)))
}

/// A blocking connection. It uses RESP2 until `HELLO 3`.
#[derive(Debug)]
pub struct RespConnection {
    stream: UnixStream,
    read: Vec<u8>,
    /// Pushes that arrived while a call waited for a reply.
    pub pushed: Vec<Vec<Reply>>,
}

impl RespConnection {
    pub(crate) fn open(
        socket: &Path,
        password: Option<&str>,
        patience: Duration,
    ) -> io::Result<Self> {
        let mut connection = Self::over(UnixStream::connect(socket)?);
        connection.stream.set_write_timeout(Some(patience))?;
        connection.wait(patience)?;
        if let Some(password) = password
            && let Reply::Error(error) = connection.command(&["AUTH", password])?
        {
            return Err(io::Error::other(error));
        }
        Ok(connection)
    }

    fn over(stream: UnixStream) -> Self {
        Self { stream, read: Vec::new(), pushed: Vec::new() }
    }

    /// Sets the read timeout.
    ///
    /// # Errors
    /// If the timeout is zero.
    pub fn wait(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(patience))
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    /// If no reply arrives. An error reply is not an `Err` but a [`Reply::Error`].
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        self.send(&[args])?;
        self.reply()
    }

    /// Sends several commands in one write.
    ///
    /// # Errors
    /// If the write fails.
    pub fn send<A: AsRef<[u8]>>(&mut self, commands: &[&[A]]) -> io::Result<()> {
        let mut request = Vec::new();
        for args in commands {
            request.extend(format!("*{}\r\n", args.len()).bytes());
            for arg in args.iter().map(AsRef::as_ref) {
                request.extend(format!("${}\r\n", arg.len()).bytes());
                request.extend_from_slice(arg);
                request.extend_from_slice(b"\r\n");
            }
        }
        self.stream.write_all(&request)
    }

    /// Waits for the next reply. After a timeout the connection keeps the part that has arrived.
    ///
    /// # Errors
    /// If no complete reply arrives in time, or the data is not RESP.
    pub fn reply(&mut self) -> io::Result<Reply> {
        loop {
            match take(&mut self.read)? {
                Some((Reply::Push(parts), _)) => self.pushed.push(parts),
                Some((reply, _)) => return Ok(reply),
                None => {
                    let mut some = [0; 16 * 1024];
                    let length = match self.stream.read(&mut some) {
                        // A signal interrupted the read, for example when a process was stopped and continued.
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                        read => read?,
                    };
                    if length == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.read.extend_from_slice(&some[..length]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encoded messages and their parsed values.
    fn messages() -> Vec<(&'static [u8], Reply)> {
        let simple = |text: &str| Reply::Simple(text.to_owned());
        let bulk = |text: &str| Reply::Bulk(Some(text.into()));
        vec![
            (b"+OK\r\n", simple("OK")),
            (b"-ERR no\r\n", Reply::Error("ERR no".to_owned())),
            (b"!6\r\nERR\r\nx\r\n", Reply::Error("ERR\r\nx".to_owned())),
            (b":-2\r\n", Reply::Int(-2)),
            (b"#t\r\n", Reply::Int(1)),
            (b"#f\r\n", Reply::Int(0)),
            (b",1.5\r\n", bulk("1.5")),
            (b"(12345678901234567890\r\n", bulk("12345678901234567890")),
            (b"$4\r\na\r\nb\r\n", bulk("a\r\nb")),
            (b"$0\r\n\r\n", bulk("")),
            (b"=7\r\ntxt:a\r\n\r\n", bulk("a\r\n")),
            (b"$-1\r\n", Reply::Bulk(None)),
            (b"*-1\r\n", Reply::Bulk(None)),
            (b"_\r\n", Reply::Bulk(None)),
            (b"*0\r\n", Reply::Array(vec![])),
            (
                b"*2\r\n:1\r\n*1\r\n$0\r\n\r\n",
                Reply::Array(vec![Reply::Int(1), Reply::Array(vec![bulk("")])]),
            ),
            (b"~1\r\n+a\r\n", Reply::Array(vec![simple("a")])),
            (b"%1\r\n+a\r\n:1\r\n", Reply::Array(vec![simple("a"), Reply::Int(1)])),
            (
                b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n",
                Reply::Push(vec![bulk("invalidate"), Reply::Array(vec![bulk("k")])]),
            ),
        ]
    }

    #[test]
    fn every_kind_of_message_wherever_it_is_split() {
        for (bytes, expected) in messages() {
            for place in 0..bytes.len() {
                let (start, end) = bytes.split_at(place);
                let mut read = start.to_vec();
                assert_eq!(take(&mut read).unwrap(), None, "{}", start.escape_ascii());
                assert_eq!(read, start, "a part stays");
                read.extend_from_slice(end);
                read.extend_from_slice(b"+next");
                let taken = take(&mut read).unwrap();
                assert_eq!(taken, Some((expected.clone(), bytes.to_vec())));
                assert_eq!(read, b"+next");
            }
        }
    }

    #[test]
    fn broken_messages_are_errors() {
        for bytes in [&b"\r\n"[..], b"?\r\n", b":x\r\n", b"$x\r\n", b"$1\r\nabc", b"*1\r\n?\r\n"] {
            assert!(take(&mut bytes.to_vec()).is_err(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_connection_puts_pushes_aside_and_says_when_it_has_ended() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let all = messages();
        for (bytes, _) in &all {
            theirs.write_all(bytes).unwrap();
        }
        theirs.write_all(b"+O").unwrap();
        drop(theirs);
        let mut connection = RespConnection::over(ours);
        for (_, expected) in &all[..all.len() - 1] {
            assert_eq!(connection.reply().unwrap(), *expected);
        }
        assert_eq!(connection.reply().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(connection.pushed.len(), 1);
    }
}
