//! Servers that cannot vote: replicas, servers that evict keys, and servers in cluster mode.

use std::net::TcpListener;

use quorlock::NodeTrustState;
use quorlock::node::FailureKind;
use quorlock_servers::{Server, not_for};

use crate::common::{run, server, test_name};
use crate::{strict, trust_state, untrusted_now, with_args};

/// The error that a client gets if this server is its only node.
async fn refusal_of(server: &Server) -> String {
    let client = strict(std::slice::from_ref(server)).build().unwrap();
    // The client cannot know when an operator corrects the server, so the error has no time after which to retry.
    let error = untrusted_now(&client).await;
    assert_eq!(error.retry_after(), None, "{error}");
    let failure = error.nodes()[0].failure().unwrap();
    assert_eq!(failure.kind(), FailureKind::UnsafeNode);
    let NodeTrustState::Refused(trust_state) = trust_state(&client, 0) else { panic!("{error}") };
    assert_eq!(trust_state.to_string(), failure.to_string());
    error.to_string()
}

#[tokio::test]
async fn replicas_and_evicting_servers_are_refused_with_the_cause_and_the_fix() {
    let Some(binary) = server() else { return };
    let server = |args: &[&str]| Server::start(&binary, with_args(args)).unwrap();

    let replica = server(&[]);
    run(&replica, &["REPLICAOF", "127.0.0.1", "1"]);
    let text = refusal_of(&replica).await;
    assert!(text.contains("it is a replica") && text.contains("list masters alone"), "{text}");

    let evicting = server(&["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]);
    let text = refusal_of(&evicting).await;
    assert!(text.contains("its maxmemory-policy is allkeys-lru"), "{text}");
    assert!(text.contains("CONFIG SET maxmemory-policy noeviction"), "{text}");
}

#[tokio::test]
async fn a_server_in_cluster_mode_is_refused_with_the_cause_and_the_fix() {
    let Some(binary) = server() else { return };
    if binary.version.major < 7 {
        return not_for(&binary, &test_name(), "the port of its cluster bus cannot be chosen");
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let args = with_args(&["--cluster-enabled", "yes", "--cluster-port", &free]);
    let clustered = Server::start(&binary, args).unwrap();
    let text = refusal_of(&clustered).await;
    assert!(text.contains("it is in cluster mode"), "{text}");
    assert!(text.contains("use independent masters"), "{text}");
}
