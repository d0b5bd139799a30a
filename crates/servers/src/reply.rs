//! Just enough of a client to set up and inspect a server: RESP2, blocking, one connection for
//! each command. Written by hand so that tests do not check the lock's Redis client with itself.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status such as `OK`.
    Simple(String),
    /// An error, with its code: `NOAUTH Authentication required.`
    Error(String),
    /// A number.
    Int(i64),
    /// A string, or nothing. RESP2 spells nothing in two ways, as a string and as an array; both
    /// arrive as `Bulk(None)`.
    Bulk(Option<Vec<u8>>),
    /// Several answers.
    Array(Vec<Reply>),
}

pub(crate) struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    pub(crate) fn open(
        socket: &Path,
        password: Option<&str>,
        patience: Duration,
    ) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let mut connection = Self { stream: BufReader::new(stream) };
        if let Some(password) = password {
            match connection.command(&["AUTH", password])? {
                Reply::Error(error) => return Err(io::Error::other(error)),
                _ => return Ok(connection),
            }
        }
        Ok(connection)
    }

    pub(crate) fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args.iter().map(AsRef::as_ref) {
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let Some((kind, rest)) = line.split_at_checked(1) else {
            return Err(garbled(&line));
        };
        let number = || rest.parse::<i64>().map_err(|_| garbled(&line));
        Ok(match kind {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Reply::Bulk(Some(bytes))
                }
                Err(_) => Reply::Bulk(None),
            },
            "*" => match usize::try_from(number()?) {
                Ok(length) => {
                    Reply::Array((0..length).map(|_| self.reply()).collect::<Result<_, _>>()?)
                }
                Err(_) => Reply::Bulk(None),
            },
            _ => return Err(garbled(&line)),
        })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(text) => Ok(text.to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn garbled(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP2: {}", line.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Reply> {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(bytes).unwrap();
        drop(ours);
        Connection { stream: BufReader::new(theirs) }.reply()
    }

    #[test]
    fn every_kind_of_reply() {
        assert_eq!(read(b"+OK\r\n").unwrap(), Reply::Simple("OK".to_owned()));
        assert_eq!(read(b"-ERR no\r\n").unwrap(), Reply::Error("ERR no".to_owned()));
        assert_eq!(read(b":-2\r\n").unwrap(), Reply::Int(-2));
        assert_eq!(read(b"$4\r\na\r\nb\r\n").unwrap(), Reply::Bulk(Some(b"a\r\nb".to_vec())));
        assert_eq!(read(b"$-1\r\n").unwrap(), Reply::Bulk(None));
        assert_eq!(read(b"*-1\r\n").unwrap(), Reply::Bulk(None));
        assert_eq!(
            read(b"*2\r\n:1\r\n*1\r\n$0\r\n\r\n").unwrap(),
            Reply::Array(vec![Reply::Int(1), Reply::Array(vec![Reply::Bulk(Some(vec![]))])])
        );
    }

    #[test]
    fn broken_replies_are_errors() {
        for bytes in [&b""[..], b"\r\n", b"+OK", b"?\r\n", b":x\r\n", b"$5\r\nab\r\n", b"*1\r\n"] {
            assert!(read(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
