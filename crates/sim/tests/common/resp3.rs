//! A connection on which a real server is asked what the protocol asks, and says unasked what has changed.

use std::time::Duration;

use quorlock_servers::{Reply, Server, resp};

pub(crate) struct RespConnection {
    connection: resp::RespConnection,
    /// What was pushed: keys, or everything.
    pub(crate) pushed: Vec<Option<String>>,
}

impl RespConnection {
    pub(crate) fn open(server: &Server) -> Self {
        let mut connection = server.connect().expect("the server listens");
        // Only a server that hangs is ever waited for that long.
        connection.wait(Duration::from_secs(60)).expect("a time-out can be set");
        let hello = connection.command(&["HELLO", "3"]).expect("the server answers");
        assert!(matches!(hello, Reply::Array(_)), "{hello:?}");
        Self { connection, pushed: Vec::new() }
    }

    /// Sends all of these commands at once and reads the reply of each; what is pushed before it is put aside.
    pub(crate) fn ask<A: AsRef<[u8]>>(&mut self, commands: &[&[A]]) -> Vec<Reply> {
        self.connection.send(commands).expect("the server reads");
        let reply = |_| self.connection.reply().expect("the server answers");
        let replies = commands.iter().map(reply).collect();
        for parts in self.connection.pushed.drain(..) {
            assert_eq!(parts[0], Reply::Bulk(Some(b"invalidate".to_vec())));
            match &parts[1] {
                Reply::Array(keys) => self.pushed.extend(keys.iter().map(|key| match key {
                    Reply::Bulk(Some(key)) => {
                        Some(String::from_utf8(key.clone()).expect("our keys"))
                    }
                    other => panic!("no key: {other:?}"),
                })),
                _ => self.pushed.push(None),
            }
        }
        replies
    }
}
