//! Tests every fault of the proxy, which forwards a plain TCP connection to a real server.

#![expect(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::future::Future;
use std::io::ErrorKind;
use std::time::Duration;

use quorlock_servers::proxy::Direction::{ToClient, ToServer};
use quorlock_servers::proxy::{Blow, Distance, Effect, Proxy, Traffic};
use quorlock_servers::{Reply, Server, ServerOptions, find_or_skip};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// The timeout of each step, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time to wait for data that must not arrive.
const A_WHILE: Duration = Duration::from_millis(50);

struct Testbed {
    server: Server,
    proxy: Proxy,
}

impl Testbed {
    async fn start(test: &str) -> Option<Self> {
        let server = Server::start(&find_or_skip(test)?, ServerOptions::default()).unwrap();
        let proxy = Proxy::start(&server).await.unwrap();
        Some(Self { server, proxy })
    }

    /// Opens a connection and completes one command on it.
    async fn connect(&self) -> TcpStream {
        let mut stream = self.bare().await;
        assert_eq!(ask(&mut stream, "PING", 7).await, "+PONG\r\n");
        stream
    }

    async fn bare(&self) -> TcpStream {
        let url = self.proxy.url();
        TcpStream::connect(url.strip_prefix("redis://").unwrap()).await.unwrap()
    }

    fn has(&self, key: &str) -> bool {
        self.server.command(&["EXISTS", key]).unwrap() == Reply::Int(1)
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "still not so: {what}");
            sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("it comes")
}

async fn send(stream: &mut TcpStream, command: &str) {
    stream.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
}

async fn read(stream: &mut TcpStream, length: usize) -> String {
    let mut answer = vec![0; length];
    soon(stream.read_exact(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

async fn ask(stream: &mut TcpStream, command: &str, length: usize) -> String {
    send(stream, command).await;
    read(stream, length).await
}

async fn nothing_comes(stream: &mut TcpStream) {
    assert!(timeout(A_WHILE, stream.read_u8()).await.is_err());
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn what_is_delayed_comes_later_and_in_pieces_it_comes_whole() {
    let Some(testbed) = Testbed::start("what_is_delayed_comes_later").await else { return };
    let mut stream = testbed.connect().await;
    testbed.proxy.set(ToClient, Traffic::Delay(A_WHILE));
    let sent = Instant::now();
    assert_eq!(ask(&mut stream, "PING", 7).await, "+PONG\r\n");
    assert!(sent.elapsed() >= A_WHILE);
    testbed.proxy.set(ToClient, Traffic::Open);
    testbed.proxy.set(ToServer, Traffic::Split(1));
    assert_eq!(ask(&mut stream, "ECHO abcdef", 12).await, "$6\r\nabcdef\r\n");
    assert_eq!((testbed.proxy.count(Effect::Delayed), testbed.proxy.count(Effect::Split)), (1, 1));
    // The proxy delivers single bytes, a millisecond apart, so the whole command would take a minute. After the change
    // to `Open`, the rest must arrive at once.
    send(&mut stream, &format!("SET large {}", "x".repeat(60_000))).await;
    testbed.until("it comes in pieces", |testbed| testbed.proxy.count(Effect::Split) > 1).await;
    testbed.proxy.set(ToServer, Traffic::Open);
    assert_eq!(read(&mut stream, 5).await, "+OK\r\n");
}

#[tokio::test]
async fn what_is_held_comes_in_order_on_old_connections_and_new_ones() {
    let Some(testbed) = Testbed::start("what_is_held_comes_in_order").await else { return };
    let mut old = testbed.connect().await;
    testbed.proxy.set(ToServer, Traffic::Hold);
    let mut new = testbed.bare().await;
    send(&mut old, "SET old 1").await;
    send(&mut new, "SET new 1").await;
    nothing_comes(&mut old).await;
    assert!(!testbed.has("old") && !testbed.has("new"));
    send(&mut old, "GET old").await;
    testbed.proxy.open();
    assert_eq!(read(&mut old, 12).await, "+OK\r\n$1\r\n1\r\n");
    assert_eq!(read(&mut new, 5).await, "+OK\r\n");
}

/// Buffered data of a closed connection arrives after later data of a new connection.
#[tokio::test]
async fn what_an_old_connection_holds_comes_after_it_was_closed() {
    let Some(testbed) =
        Testbed::start("what_an_old_connection_holds_comes_after_it_was_closed").await
    else {
        return;
    };
    let mut old = testbed.connect().await;
    testbed.proxy.strike(Blow::Hold(ToServer));
    send(&mut old, "SET key old").await;
    testbed.until("it is held", |testbed| testbed.proxy.count(Effect::Held) == 1).await;
    drop(old);
    let mut new = testbed.connect().await;
    assert_eq!(ask(&mut new, "SET key new", 5).await, "+OK\r\n");
    testbed.proxy.release();
    testbed.until("it has come", |testbed| testbed.proxy.count(Effect::Late) == 1).await;
    let old_value = Reply::Bulk(Some(b"old".to_vec()));
    testbed
        .until("the old is the new", |testbed| {
            testbed.server.command(&["GET", "key"]).unwrap() == old_value
        })
        .await;
}

#[tokio::test]
async fn a_connection_that_has_lost_something_passes_nothing_on_any_more() {
    let Some(testbed) = Testbed::start("a_connection_that_has_lost_something").await else {
        return;
    };
    let mut old = testbed.connect().await;
    testbed.proxy.set(ToClient, Traffic::Drop);
    send(&mut old, "SET key 1").await;
    testbed.until("the command arrives", |testbed| testbed.has("key")).await;
    testbed.until("the answer is lost", |testbed| testbed.proxy.count(Effect::Dropped) == 1).await;
    testbed.proxy.open();
    // An earlier reply was lost, so the proxy must discard this one. The client would take it for the lost reply.
    send(&mut old, "SET other 1").await;
    testbed.until("commands still arrive", |testbed| testbed.has("other")).await;
    nothing_comes(&mut old).await;
    testbed.connect().await;

    testbed.proxy.strike(Blow::Swallow);
    let mut swallowed = old;
    send(&mut swallowed, "SET third 1").await;
    testbed.until("it is swallowed", |testbed| testbed.proxy.count(Effect::Dropped) >= 3).await;
    assert!(!testbed.has("third"));
    testbed.connect().await;
}

#[tokio::test]
async fn half_a_connection_is_closed() {
    let Some(testbed) = Testbed::start("half_a_connection_is_closed").await else { return };
    let mut stream = testbed.connect().await;
    testbed.proxy.strike(Blow::HalfClose(ToClient));
    assert_eq!(read_to_end(&mut stream).await, "");
    send(&mut stream, "SET key 1").await;
    testbed.until("the other half is open", |testbed| testbed.has("key")).await;
    assert_eq!(testbed.proxy.count(Effect::HalfClosed), 1);
}

#[tokio::test]
async fn an_answer_is_cut_off_and_connections_are_closed_and_reset() {
    let Some(testbed) = Testbed::start("an_answer_is_cut_off").await else { return };
    let mut stream = testbed.connect().await;
    testbed.proxy.strike(Blow::Truncate(ToClient, 3));
    send(&mut stream, "PING").await;
    assert_eq!(read_to_end(&mut stream).await, "+PO");

    let mut stream = testbed.connect().await;
    testbed.proxy.strike(Blow::Close);
    assert_eq!(read_to_end(&mut stream).await, "");

    let mut stream = testbed.connect().await;
    testbed.proxy.strike(Blow::Reset);
    let error = soon(stream.read_u8()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    for effect in [Effect::Truncated, Effect::Closed, Effect::Reset] {
        assert_eq!(testbed.proxy.count(effect), 1, "{effect:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_down_takes_no_connection_until_it_is_back() {
    let Some(testbed) = Testbed::start("a_server_that_is_down_takes_no_connection").await else {
        return;
    };
    testbed.server.kill().unwrap();
    assert_eq!(read_to_end(&mut testbed.bare().await).await, "");
    assert_eq!(testbed.proxy.count(Effect::NoServer), 1);
    testbed.server.restart().unwrap();
    testbed.connect().await;
}

#[tokio::test]
async fn new_connections_lead_elsewhere_and_old_ones_stay() {
    let Some(testbed) = Testbed::start("new_connections_lead_elsewhere_and_old_ones_stay").await
    else {
        return;
    };
    let Some(other) = Testbed::start("new_connections_lead_elsewhere_and_old_ones_stay").await
    else {
        return;
    };
    let mut old = testbed.connect().await;
    testbed.proxy.lead_to(&other.server);
    assert_eq!(ask(&mut testbed.connect().await, "SET new 1", 5).await, "+OK\r\n");
    assert_eq!(ask(&mut old, "SET old 1", 5).await, "+OK\r\n");
    assert!(other.has("new") && !other.has("old") && testbed.has("old") && !testbed.has("new"));
}

#[tokio::test]
async fn a_distant_server_takes_round_trips_to_connect_and_to_answer() {
    let Some(testbed) = Testbed::start("a_distant_server_takes_round_trips").await else { return };
    let (to_server, to_client) = (A_WHILE, A_WHILE * 2);
    testbed.proxy.set_distance(Distance { to_server, to_client, jitter_percent: 20 });
    let started = Instant::now();
    let mut far = testbed.connect().await;
    assert!(started.elapsed() >= (to_server + to_client) * 2, "one round trip to connect");
    let sent = Instant::now();
    assert_eq!(ask(&mut far, "PING", 7).await, "+PONG\r\n");
    assert!(sent.elapsed() >= to_server + to_client);
    let round_trips = [Effect::Accepted, Effect::RoundTrip].map(|it| testbed.proxy.count(it));
    assert_eq!(round_trips, [1, 2]);
    // Data on its way arrives, also from a sender that has closed the connection meanwhile.
    send(&mut far, "SET far 1").await;
    drop(far);
    testbed.until("it arrives", |testbed| testbed.has("far")).await;
    testbed.server.kill().unwrap();
    let started = Instant::now();
    assert_eq!(read_to_end(&mut testbed.bare().await).await, "");
    assert!(started.elapsed() >= to_server + to_client, "a refusal takes a round trip");
}
