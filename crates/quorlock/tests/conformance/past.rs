//! Direct access to a server, past the node under test.

use std::sync::Arc;
use std::time::Duration;

use quorlock_servers::{Reply, Server};

use crate::suite::Outside;

#[derive(Clone)]
pub(crate) struct Past {
    server: Arc<Server>,
    /// Whether the test may leave keys on the server. If not, `drop` asserts that the server is empty.
    leaves_keys: bool,
}

impl Past {
    pub(crate) fn new(server: Server) -> Self {
        Self { server: Arc::new(server), leaves_keys: false }
    }

    pub(crate) fn leaving_keys(mut self) -> Self {
        self.leaves_keys = true;
        self
    }

    pub(crate) fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Reply {
        match self.server.command(args).unwrap() {
            Reply::Error(error) if !error.starts_with("WRONGTYPE") => panic!("{error}"),
            reply => reply,
        }
    }

    fn expire(&self, key: &str, ttl: Option<Duration>) {
        if let Some(ttl) = ttl {
            self.command(&["PEXPIRE", key, &ttl.as_millis().to_string()]);
        }
    }
}

impl Past {
    fn now(&self) -> Duration {
        let Reply::Array(time) = self.command(&["TIME"]) else { panic!("no time") };
        let part = |nth: usize| match &time[nth] {
            Reply::Bulk(Some(digits)) => str::from_utf8(digits).unwrap().parse().unwrap(),
            other => panic!("TIME answered {other:?}"),
        };
        Duration::from_secs(part(0)) + Duration::from_micros(part(1))
    }

    /// Sets a key to a sorted set. Each score is a time: the server's clock plus the given distance.
    pub(crate) fn set_sorted_set(
        &self,
        key: &str,
        members: &[(&[u8], Duration)],
        ttl: Option<Duration>,
    ) {
        let now = self.now();
        let at = |later: Duration| (now + later).as_millis().to_string();
        self.command(&["DEL", key]);
        for (member, ends) in members {
            self.command(&[b"ZADD", key.as_bytes(), at(*ends).as_bytes(), member]);
        }
        if let Some(ttl) = ttl {
            self.command(&["PEXPIREAT", key, &at(ttl)]);
        }
    }

    /// The members of a sorted set in order. Each score, a time, is returned as its distance from the server's time.
    pub(crate) fn sorted_set(&self, key: &str) -> Vec<(Vec<u8>, Duration)> {
        let now = self.now();
        let Reply::Array(listed) = self.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]) else {
            return Vec::new();
        };
        let text = |reply: &Reply| match reply {
            Reply::Bulk(Some(text)) => text.clone(),
            other => panic!("ZRANGE answered {other:?}"),
        };
        let members = listed.chunks(2).map(|pair| {
            let ends: u64 = String::from_utf8(text(&pair[1])).unwrap().parse().unwrap();
            (text(&pair[0]), Duration::from_millis(ends).saturating_sub(now))
        });
        members.collect()
    }
}

impl Drop for Past {
    fn drop(&mut self) {
        if !std::thread::panicking() && !self.leaves_keys && Arc::strong_count(&self.server) == 1 {
            assert_eq!(self.command(&["DBSIZE"]), Reply::Int(0), "the suite leaves nothing behind");
        }
    }
}

impl Outside for Past {
    fn set(&self, key: &str, value: &[u8], ttl: Option<Duration>) {
        self.command(&[b"SET", key.as_bytes(), value]);
        self.expire(key, ttl);
    }

    fn set_other_type(&self, key: &str, ttl: Option<Duration>) {
        self.command(&["RPUSH", key, "element"]);
        self.expire(key, ttl);
    }

    fn exists(&self, key: &str) -> bool {
        self.command(&["EXISTS", key]) == Reply::Int(1)
    }

    fn value(&self, key: &str) -> Option<Vec<u8>> {
        match self.command(&["GET", key]) {
            Reply::Bulk(value) => value,
            _ => None,
        }
    }

    fn ttl(&self, key: &str) -> Option<Duration> {
        match self.command(&["PTTL", key]) {
            Reply::Int(ms) => u64::try_from(ms).ok().map(Duration::from_millis),
            other => panic!("PTTL answered {other:?}"),
        }
    }

    fn remove(&self, key: &str) {
        self.command(&["DEL", key]);
    }
}
