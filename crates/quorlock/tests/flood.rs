//! A server floods a client with data. It must not exhaust the client's memory, and the client must still get locks
//! from the other nodes.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::resp::{command_name, strings};
use common::{NODE_TIMEOUT, PATIENCE, no_key_is_left, start, unguarded};
use quorlock::LockOptions;
use quorlock::node::{FailureKind, NodeState};
use quorlock_servers::resp::take;
use quorlock_servers::{Server, ServerOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The data that the hostile server sends after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flood {
    /// Pushes about keys that no client watches, each time another key.
    Pushes,
    /// Like `Pushes`, but with keys of 100 kB.
    LongPushes,
    /// Replies without a request.
    Replies,
    /// A line without an end.
    Line,
    /// A value without an end, in reply to `GET`.
    Value,
}

struct Hostile {
    url: String,
    connections: Arc<AtomicUsize>,
    bytes: Arc<AtomicU64>,
    talks: Arc<Mutex<Vec<JoinHandle<Option<()>>>>>,
}

impl Hostile {
    async fn start(flood: Flood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("hostile=redis://{}", listener.local_addr().unwrap());
        let (connections, bytes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
        let talks: Arc<Mutex<Vec<_>>> = Arc::default();
        let (count, said, all) = (connections.clone(), bytes.clone(), talks.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                all.lock().unwrap().push(tokio::spawn(exchange(stream, flood, said.clone())));
            }
        });
        Self { url, connections, bytes, talks }
    }
}

/// Answers the handshake like a server, and then floods until the connection is closed.
async fn exchange(mut stream: TcpStream, flood: Flood, said: Arc<AtomicU64>) -> Option<()> {
    let mut read = Vec::new();
    let mut said_hello = false;
    while !(said_hello && flood != Flood::Value) {
        while let Some((command, _)) = take(&mut read).unwrap() {
            let known;
            let answer = match &*command_name(&command) {
                "HELLO" => "%2\r\n+proto\r\n:3\r\n+version\r\n+7.0.15\r\n",
                "PING" => "+PONG\r\n",
                "COMMAND" => {
                    let names = &strings(&command)[2..];
                    // The server knows every command, except those that compare and delete.
                    let info = |name: &String| {
                        if name.starts_with("DELI") || name == "DELEX" { "_\r\n" } else { "*0\r\n" }
                    };
                    let infos: String = names.iter().map(info).collect();
                    known = format!("*{}\r\n{infos}", names.len());
                    &known
                }
                "GET" if flood == Flood::Value => {
                    stream.write_all(b"$536870912\r\n").await.ok()?;
                    return pour(stream, flood, &said).await;
                }
                "GET" => "_\r\n",
                "PTTL" => ":-2\r\n",
                "EVAL" | "EVALSHA" => ":1\r\n",
                "SET" => {
                    said_hello = true;
                    "+OK\r\n"
                }
                _ => "+OK\r\n",
            };
            stream.write_all(answer.as_bytes()).await.ok()?;
        }
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
    pour(stream, flood, &said).await
}

async fn pour(mut stream: TcpStream, flood: Flood, said: &AtomicU64) -> Option<()> {
    if flood == Flood::Line {
        stream.write_all(b"+").await.ok()?;
    }
    let push = |key: &str| format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n${}\r\n{key}\r\n", key.len());
    let mut number = 0_u64;
    loop {
        let chunk = match flood {
            Flood::Pushes => (number..number + 400).map(|n| push(&format!("{n:020}"))).collect(),
            Flood::LongPushes => push(&format!("{number:020}").repeat(5000)),
            Flood::Replies => "+OK\r\n".repeat(1000),
            Flood::Line | Flood::Value => "x".repeat(64 * 1024),
        };
        number += 400;
        stream.write_all(chunk.as_bytes()).await.ok()?;
        said.fetch_add(chunk.len() as u64, Ordering::Relaxed);
    }
}

/// The resident memory of this process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Bound for the growth of this process: far more than a client needs, far less than a buffered flood.
const GROWTH_MAX: u64 = 48 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_floods_takes_neither_memory_nor_locks() {
    let Some(nodes) = start(2, ServerOptions::default()) else { return };
    for flood in [Flood::Pushes, Flood::LongPushes, Flood::Replies, Flood::Line, Flood::Value] {
        flooded(&nodes, flood).await;
        no_key_is_left(&*nodes).await;
    }
}

async fn flooded(nodes: &[Server], flood: Flood) {
    let hostile = Hostile::start(flood).await;
    let urls = nodes.iter().map(Server::url).chain([hostile.url.clone()]);
    let client = unguarded()
        .nodes(urls)
        .options(LockOptions::new().wait(PATIENCE).node_timeout(NODE_TIMEOUT))
        .build()
        .unwrap();
    let before = resident();
    let held = client.acquire("held").await.unwrap();
    let begun = Instant::now();
    let mut seen = None;
    // The test ends after the client has closed several connections, or has read and discarded much of a long value.
    let is_over = || match flood {
        Flood::Value => hostile.bytes.load(Ordering::Relaxed) > 128 * 1024 * 1024,
        _ => hostile.connections.load(Ordering::Relaxed) > 3,
    };
    while !is_over() {
        assert!(begun.elapsed() < PATIENCE, "{flood:?}: never hung up on: {:?}", client.stats());
        if flood == Flood::Value {
            let _ = client.inspect("held").await;
        }
        let guard = client.acquire("orders").await.unwrap();
        guard.extend().await.unwrap();
        assert!(guard.is_valid());
        let _ = guard.release().await;
        if let NodeState::Down(failure) = &client.stats().nodes[2].state {
            seen = Some(failure.clone());
        }
        let growth = resident().saturating_sub(before);
        assert!(growth < GROWTH_MAX, "{flood:?}: {growth} bytes more than before");
    }
    assert!(held.is_valid(), "{flood:?}: held, and extended meanwhile");
    let _ = held.release().await;
    let expected = match flood {
        Flood::Pushes | Flood::LongPushes => Some(FailureKind::Flooding),
        Flood::Replies | Flood::Line => Some(FailureKind::Protocol),
        // The value has an allowed length, so the test expects no particular failure.
        Flood::Value => seen.as_ref().map(quorlock::node::Failure::kind),
    };
    assert_eq!(seen.as_ref().map(quorlock::node::Failure::kind), expected, "{flood:?}");
    assert!(seen.iter().all(|failure| failure.detail().is_some()), "it says why: {seen:?}");
    client.shutdown(PATIENCE).await.unwrap();
    // The server has a task for each connection. If an unexpected command made a task panic, `unwrap` reports it.
    let talks = std::mem::take(&mut *hostile.talks.lock().unwrap());
    for exchange in talks {
        let _: Option<()> = exchange.await.unwrap();
    }
    println!("{flood:?}: {} kB more than before", resident().saturating_sub(before) / 1024);
}
