//! Every node that comes with the crate passes the suite of the trait's contract.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::time::Duration;

use quorlock::node::conformance::{self, Outside};
use quorlock::node::{MemoryNode, NodeConfig, RedisNode};
use quorlock_servers::{Listen, Reply, Server, ServerBinary, ServerOptions};

#[tokio::test(start_paused = true)]
async fn the_memory_node_keeps_the_contract() {
    let node = MemoryNode::new("memory");
    conformance::all(node.clone(), node.clone()).await;
    assert_eq!(node.key_count(), 0, "the suite leaves nothing behind");
}

/// One test per server that is installed would need a list at compile time; the message names the
/// server instead.
#[tokio::test]
async fn the_redis_node_keeps_the_contract_on_every_server() {
    let servers = common::all_servers("the_redis_node_keeps_the_contract_on_every_server");
    for binary in servers {
        for listen in [Listen::UnixSocket, Listen::Tcp] {
            eprintln!("{binary}, {listen:?}");
            keeps_the_contract(&binary, listen).await;
        }
    }
}

async fn keeps_the_contract(binary: &ServerBinary, listen: Listen) {
    let options = ServerOptions { listen, ..ServerOptions::default() };
    let server = Server::start(binary, options).unwrap();
    let config = NodeConfig::parse(&server.url()).unwrap();
    // No silence is long enough to be one: a busy machine is not a broken contract.
    let silence = Duration::from_secs(60);
    let node = RedisNode::new(config, Duration::from_secs(10), silence).unwrap();
    let past = Past(server);
    conformance::all(node, past).await;
}

/// The server, past the node.
struct Past(Server);

impl Past {
    fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Reply {
        match self.0.command(args).unwrap() {
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
    /// The server's time of day.
    fn now(&self) -> Duration {
        let Reply::Array(time) = self.command(&["TIME"]) else { panic!("no time") };
        let part = |nth: usize| match &time[nth] {
            Reply::Bulk(Some(digits)) => str::from_utf8(digits).unwrap().parse().unwrap(),
            other => panic!("TIME answered {other:?}"),
        };
        Duration::from_secs(part(0)) + Duration::from_micros(part(1))
    }
}

impl Drop for Past {
    fn drop(&mut self) {
        if !std::thread::panicking() {
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

    fn set_sorted_set(&self, key: &str, members: &[(&[u8], Duration)], ttl: Option<Duration>) {
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

    fn sorted_set(&self, key: &str) -> Vec<(Vec<u8>, Duration)> {
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
