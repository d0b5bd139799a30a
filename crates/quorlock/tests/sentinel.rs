//! A node behind Sentinel: the client asks the Sentinels which server is the master.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::time::Duration;

use common::replication::master_and;
use common::{ONCE, PATIENCE, all_servers, eventually, get, run};
use quorlock::node::{NodeConfig, Tls};
use quorlock::{AcquireError, Client, ClientBuilder, LockOptions, NodeTrustState};
use quorlock_servers::certificates::Authority;
use quorlock_servers::{Listen, Nodes, Reply, Server, ServerBinary, ServerOptions, StartError};
use tokio::time::Instant;

const TTL: Duration = Duration::from_millis(800);

/// A master and its replica, and the Sentinels that watch them.
struct Watched {
    servers: Nodes,
    sentinels: Nodes,
}

impl Watched {
    async fn start(binary: &ServerBinary, sentinels: usize, password: Option<&str>) -> Self {
        let servers = master_and(1, binary).await;
        let options = ServerOptions {
            args: vec!["--sentinel".to_owned()],
            listen: Listen::Tcp,
            password: password.map(str::to_owned),
            ..ServerOptions::default()
        };
        let sentinels = Nodes::start(binary, sentinels, options).unwrap();
        let address = servers[0].address();
        let (host, port) = address.rsplit_once(':').unwrap();
        for sentinel in &sentinels {
            // The last argument lets one Sentinel decide alone: no test needs the agreement of several Sentinels.
            run(sentinel, &["SENTINEL", "MONITOR", "locks", host, port, "1"]);
        }
        Self { servers, sentinels }
    }

    fn url(&self, options: &str) -> String {
        let [first, others @ ..] = &self.sentinels[..] else { panic!("a Sentinel") };
        let others: String =
            others.iter().map(|it| format!("&sentinel={}", it.address())).collect();
        format!("redis+sentinel://{}/locks?replicas=1{others}{options}", first.address())
    }
}

/// The node timeout is long, so that a busy machine does not look like a missing replica.
fn builder(url: &str) -> ClientBuilder {
    Client::builder()
        .nodes([url])
        .options(LockOptions::new().ttl(TTL).node_timeout(TTL / 4).wait(PATIENCE))
        .connect_timeout(Duration::from_secs(4))
        .max_ttl(TTL)
}

fn client(url: &str) -> Client {
    builder(url).build().unwrap()
}

async fn refused(url: &str) -> AcquireError {
    client(url).acquire("orders").options(ONCE).await.unwrap_err()
}

#[tokio::test]
async fn after_a_failover_the_client_goes_to_the_new_master_and_waits_there() {
    for binary in all_servers() {
        let watched = Watched::start(&binary, 1, None).await;
        let [master, replica] = &watched.servers[..] else { panic!("two servers") };
        let sentinel = &watched.sentinels[0];
        let client = client(&watched.url(""));
        let guard = client.acquire("orders").await.unwrap();
        assert!(get(master, "orders").is_some() && get(replica, "orders").is_some());
        assert_eq!(client.stats().nodes[0].name, "locks".into());
        let known = || matches!(run(sentinel, &["SENTINEL", "REPLICAS", "locks"]), Reply::Array(all) if !all.is_empty());
        eventually("the Sentinel knows the replica", known).await;
        // The Sentinel refuses a failover until it has inspected the replica twice, so the test repeats the command.
        let started = Instant::now();
        eventually("the failover begins", || {
            !matches!(sentinel.command(&["SENTINEL", "FAILOVER", "locks"]), Ok(Reply::Error(_)))
        })
        .await;
        // The lost lock's key may still be on the new master. The client releases it there.
        eventually("the lock is lost", || !guard.is_valid()).await;
        drop(guard);
        let guard = client.acquire("orders").await.unwrap();
        assert!(get(replica, "orders").is_some() && guard.is_valid());
        let quarantine = TTL.mul_f64(1.01) + Duration::from_secs(2);
        assert!(started.elapsed() >= quarantine, "it voted {:?} after", started.elapsed());
        assert_eq!(client.stats().nodes[0].trust_state, NodeTrustState::Trusted);
    }
}

#[tokio::test]
async fn a_sentinel_that_is_down_or_silent_is_passed_over() {
    for binary in all_servers() {
        let watched = Watched::start(&binary, 3, None).await;
        watched.sentinels[0].kill().unwrap();
        watched.sentinels[1].pause().unwrap();
        for _ in 0..2 {
            assert!(client(&watched.url("")).acquire("orders").await.unwrap().is_valid());
        }
        watched.sentinels[2].kill().unwrap();
        let error = refused(&watched.url("")).await.to_string();
        // The client begins with a random Sentinel and reports the error of the last one, so either error may come.
        let is_known = error.contains("Connection refused") || error.contains("nothing within");
        assert!(is_known, "{error}");
        let remedy = "; start it, or correct its address in the URL";
        let named = |it: &Server| error.contains(&format!("Sentinel {}: ", it.address()));
        assert!(watched.sentinels.iter().any(named), "{error}");
        assert!(error.contains(remedy), "{error}");
    }
}

#[tokio::test]
async fn errors_name_the_sentinel_and_the_remedy() {
    for binary in all_servers() {
        let watched = Watched::start(&binary, 1, Some("hunter2")).await;
        let address = watched.sentinels[0].address();
        let server = watched.servers[0].address();
        let url = watched.url("&sentinel-password=hunter2");
        assert!(client(&url).acquire("orders").await.unwrap().is_valid());
        for (url, said) in [
            (
                url.replace("/locks", "/lock"),
                "it knows no master \"lock\"; correct the name in the URL",
            ),
            (watched.url(""), "a password is needed; check sentinel-user and sentinel-password"),
            (
                watched.url("&sentinel-password=hunter3"),
                "check sentinel-user and sentinel-password",
            ),
            (url.replace(&address, &server), "this is no Sentinel; correct its port"),
        ] {
            let error = refused(&url).await.to_string();
            let sentinel = if url.contains(&address) { &address } else { &server };
            assert!(error.contains(&format!("Sentinel {sentinel}: ")), "{error}");
            assert!(error.contains(said), "{error}");
            assert!(!error.contains("hunter"), "{error}");
        }
        watched.servers[0].kill().unwrap();
        let error = refused(&url).await.to_string();
        assert!(error.contains(&format!("the master at {server}: Connection refused")), "{error}");
    }
}

#[tokio::test]
async fn a_sentinel_url_needs_the_number_of_replicas() {
    let url = "redis+sentinel://127.0.0.1:1/locks";
    let error = builder(url).build().unwrap_err().to_string();
    assert!(
        error.contains(
            "node URL \"redis+sentinel://127.0.0.1:1/locks\": add the parameter replicas=1 "
        ),
        "{error}"
    );
    assert!(builder(&format!("{url}?replicas=0")).build().is_err());
    let config = NodeConfig::parse(url).unwrap();
    assert!(Client::builder().node(config.clone().replicas(1)).build().is_ok());
    let shown = format!("{:?}", NodeConfig::parse(&format!("{url}?sentinel-password=hunter2")));
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[tokio::test]
async fn with_tls_the_certificates_of_sentinel_and_master_are_checked() {
    let authority = Authority::new();
    let (tls, files) = (Tls::new().ca_file(authority.file("ca.pem")), authority.server(false));
    for binary in all_servers() {
        let options = ServerOptions { tls: Some(files.clone()), ..ServerOptions::default() };
        let sentinel = ServerOptions { args: vec!["--sentinel".to_owned()], ..options.clone() };
        let server = match Server::start(&binary, options) {
            Err(StartError::NoTls { .. }) => continue,
            server => server.unwrap(),
        };
        let sentinel = Server::start(&binary, sentinel).unwrap();
        let (address, watcher) = (server.address(), sentinel.address());
        let (host, port) = address.rsplit_once(':').unwrap();
        run(&sentinel, &["SENTINEL", "MONITOR", "locks", host, port, "1"]);
        let url = format!("rediss+sentinel://{watcher}/locks?replicas=1");
        let look = |client: Client| async move {
            format!("{:?}", client.inspect("orders").await.unwrap().nodes[0])
        };
        let trusting = builder(&url).tls(tls.clone()).build().unwrap();
        let said = look(trusting).await;
        assert!(said.contains(" free"), "{said}");
        let said = look(client(&url)).await;
        assert!(said.contains(&format!("Sentinel {watcher}: invalid peer certificate")), "{said}");
        let said = look(client(&url.replace("rediss", "redis"))).await;
        assert!(said.contains("if this port is for TLS, its URL begins with rediss"), "{said}");
    }
}
