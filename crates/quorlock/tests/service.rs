//! The example `service` on real servers: no deposit is lost, each refusal has its HTTP status, a shutdown leaves no
//! key.

#![expect(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;
#[path = "../examples/service/ledger.rs"]
mod ledger;
#[path = "../examples/service/service.rs"]
mod service;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quorlock::Client;
use quorlock_servers::{Reply, Server, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use common::{client, eventually, run, start};
use ledger::Ledger;

struct Machine {
    address: SocketAddr,
    client: Client,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), String>>,
}

impl Machine {
    async fn start(nodes: &[Server], ledger: &Arc<Ledger>, interval: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let (client, ledger) = (client(nodes), ledger.clone());
        let stopped = async { stopped.await.unwrap() };
        let serve = service::serve(listener, client.clone(), ledger, interval, stopped);
        let served = tokio::spawn(async { serve.await.map_err(|error| error.to_string()) });
        Self { address, client, stop, served }
    }

    /// Returns the status and the body of the response.
    async fn ask(address: SocketAddr, request: String) -> (u16, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("{request} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

#[tokio::test]
async fn two_machines_share_accounts_and_a_shutdown_answers_requests_and_leaves_no_key() {
    let Some(nodes) = start(3, ServerOptions::default()) else { return };
    let ledger = Arc::new(Ledger::default());
    let often = Machine::start(&nodes, &ledger, Duration::from_millis(20)).await;
    let seldom = Machine::start(&nodes, &ledger, Duration::from_secs(3600)).await;
    let deposit = |machine: &Machine, to: &'static str| {
        tokio::spawn(Machine::ask(machine.address, format!("POST /accounts/{to}/deposits/1")))
    };

    let deposits: Vec<_> =
        (0..10).flat_map(|_| [deposit(&often, "ann"), deposit(&seldom, "ann")]).collect();
    for deposit in deposits {
        let (status, body) = deposit.await.unwrap();
        assert_eq!(status, 200, "{body}");
    }
    let balance = Machine::ask(often.address, "GET /accounts/ann".to_owned()).await;
    assert_eq!(balance, (200, "20\n".to_owned()), "no deposit is lost");
    eventually("the job closes the books again and again", || ledger.look("books") > 3).await;
    let (status, health) = Machine::ask(often.address, "GET /health".to_owned()).await;
    assert_eq!((status, health.matches(": Up").count()), (200, 3), "{health}");

    // Another client holds the lock of bob's account for longer than a request waits.
    nodes
        .iter()
        .for_each(|node| drop(run(node, &["SET", "account/bob", "another", "PX", "60000"])));
    assert_eq!(deposit(&often, "bob").await.unwrap().0, 409);

    let waiting = deposit(&seldom, "bob");
    eventually("the request waits", || seldom.client.stats().calls_waiting == 1).await;
    seldom.stop.send(()).unwrap();
    nodes.iter().for_each(|node| drop(run(node, &["DEL", "account/bob"])));
    assert_eq!(waiting.await.unwrap(), (200, "1\n".to_owned()));
    assert_eq!(seldom.served.await.unwrap(), Ok(()));

    // Too few nodes are left for a quorum.
    nodes[0].kill().unwrap();
    nodes[1].kill().unwrap();
    let (status, body) = deposit(&often, "ann").await.unwrap();
    assert_eq!(status, 503, "{body}");
    let (status, health) = Machine::ask(often.address, "GET /health".to_owned()).await;
    assert_eq!(status, 503, "{health}");
    often.stop.send(()).unwrap();
    let _ = often.served.await.unwrap();
    for key in ["account/ann", "account/bob", "books"] {
        assert_eq!(run(&nodes[2], &["EXISTS", key]), Reply::Int(0), "{key} is left");
    }
}
