//! Just enough RESP3 to ask a real server what the protocol asks, and to hear what it says unasked.
//! Written by hand, so that the model node is not held against the lock's own Redis client.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nothing,
    Many(Vec<Reply>),
}

pub(crate) struct Connection {
    stream: BufReader<UnixStream>,
    /// What was pushed: keys, or everything.
    pub(crate) pushed: Vec<Option<String>>,
}

impl Connection {
    pub(crate) fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("the server listens");
        // Only a server that hangs is ever waited for that long.
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out can be set");
        let mut connection = Self { stream: BufReader::new(stream), pushed: Vec::new() };
        let hello = connection.ask(&[&["HELLO", "3"]]).remove(0);
        assert!(matches!(hello, Reply::Many(_)), "{hello:?}");
        connection
    }

    /// Sends all of these commands at once and reads the reply of each.
    pub(crate) fn ask<A: AsRef<[u8]>>(&mut self, commands: &[&[A]]) -> Vec<Reply> {
        let mut request = Vec::new();
        for command in commands {
            request.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for argument in command.iter().map(AsRef::as_ref) {
                request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
                request.extend_from_slice(argument);
                request.extend_from_slice(b"\r\n");
            }
        }
        self.stream.get_mut().write_all(&request).expect("the server reads");
        commands.iter().map(|_| self.reply()).collect()
    }

    /// The next reply; what is pushed before it is put aside.
    fn reply(&mut self) -> Reply {
        loop {
            let (kind, reply) = self.read();
            if kind != b'>' {
                return reply;
            }
            let Reply::Many(parts) = reply else { panic!("a push is an array: {reply:?}") };
            assert_eq!(parts[0], Reply::Bulk(b"invalidate".to_vec()));
            match &parts[1] {
                Reply::Many(keys) => self.pushed.extend(keys.iter().map(|key| match key {
                    Reply::Bulk(key) => Some(String::from_utf8(key.clone()).expect("our keys")),
                    other => panic!("no key: {other:?}"),
                })),
                _ => self.pushed.push(None),
            }
        }
    }

    fn read(&mut self) -> (u8, Reply) {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the server answers");
        let line = line.trim_end();
        let (kind, rest) = (line.as_bytes()[0], &line[1..]);
        let number = || rest.parse::<i64>().expect("a number");
        let reply = match kind {
            b'+' => Reply::Simple(rest.to_owned()),
            b'-' => Reply::Error(rest.to_owned()),
            b':' => Reply::Int(number()),
            b'_' => Reply::Nothing,
            b'$' | b'=' if number() < 0 => Reply::Nothing,
            b'$' | b'=' => {
                let mut bytes = vec![0; number() as usize + 2];
                self.stream.read_exact(&mut bytes).expect("as many bytes as announced");
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(bytes)
            }
            b'*' | b'~' | b'>' => Reply::Many((0..number()).map(|_| self.read().1).collect()),
            b'%' => Reply::Many((0..2 * number()).map(|_| self.read().1).collect()),
            other => panic!("a reply of type {:?}: {line}", other as char),
        };
        (kind, reply)
    }
}
