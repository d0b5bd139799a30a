//! Connections with TLS.

use std::sync::Arc;
use std::time::Duration;

use quorlock::node::{FailureKind, NodeConfig, Tls};
use quorlock::{AcquireError, Client, ClientBuilder, LockOptions, RestartGuard};
use quorlock_servers::certificates::{Authority, Identity};
use quorlock_servers::{Listen, ServerOptions};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::common::tls::{start_tls, trusting};
use crate::common::{
    self, ONCE, PATIENCE, PATIENT, builder, get, key_count, no_key_is_left, start,
};
use crate::does_everything;

#[tokio::test]
async fn tls_with_our_own_authority_and_client_certificates() {
    for client_auth in [false, true] {
        let Some((nodes, authority)) = start_tls(client_auth) else { return };
        let with = |tls: Tls| builder(&nodes).tls(tls).build().unwrap();
        let ca = || trusting(&authority);
        let Identity { certificate, key } = authority.issue();
        let certified = || ca().client_pem(certificate.clone(), key.clone());
        does_everything(&with(certified())).await;
        no_key_is_left(&nodes).await;
        if client_auth {
            let error = with(ca()).acquire("orders").options(ONCE).await.unwrap_err();
            assert_eq!(kind(&error), FailureKind::Unreachable, "no certificate: {error}");
            assert!(error.to_string().to_lowercase().contains("certificate"), "{error}");
        } else {
            does_everything(&with(ca())).await;
            // The URLs have host names, and the certificate authority is set for each node instead of for the client.
            let named = nodes.iter().map(|node| {
                let url = node.url().replace("127.0.0.1", "localhost");
                NodeConfig::parse(&url).unwrap().tls(ca())
            });
            let builder = named.fold(common::unguarded(), ClientBuilder::node).options(PATIENT);
            does_everything(&builder.build().unwrap()).await;
        }
    }
}

/// The certificates are valid only for 127.0.0.1 and localhost, so a client must refuse them for any other name.
#[tokio::test]
async fn a_certificate_for_another_name_needs_that_name() {
    let Some((nodes, authority)) = start_tls(false) else { return };
    let urls = |query: &str| -> Vec<String> {
        nodes.iter().map(|node| format!("{}{query}", node.url())).collect()
    };
    let trust = |builder: ClientBuilder| builder.tls(trusting(&authority));
    let all = |query| trust(common::unguarded().nodes(urls(query)).options(PATIENT));
    does_everything(&all("").tls_server_name("localhost").build().unwrap()).await;
    does_everything(&all("?tls-server-name=localhost").build().unwrap()).await;
    // The server name of the node itself takes precedence over that of the client.
    let named = urls("")
        .into_iter()
        .map(|url| NodeConfig::parse(&url).unwrap().tls_server_name("localhost"));
    let named = trust(named.fold(common::unguarded(), ClientBuilder::node)).options(PATIENT);
    does_everything(&named.tls_server_name("other.internal").build().unwrap()).await;
    for wrong in [all("").tls_server_name("other.internal"), all("?tls-server-name=other.internal")]
    {
        let client = wrong.build().unwrap();
        let error = client.acquire("orders").options(ONCE).await.unwrap_err();
        assert_eq!(kind(&error), FailureKind::Unreachable, "{error}");
        assert!(error.to_string().contains("other.internal"), "{error}");
    }
    let error = all("").tls_server_name("no name").build().unwrap_err().to_string();
    assert!(error.contains("tls-server-name: a server has no such name"), "{error}");
    no_key_is_left(&nodes).await;
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_refused_with_the_cause() {
    let Some((nodes, authority)) = start_tls(false) else { return };
    let other = trusting(&Authority::new());
    // Without `ca_pem`, the client trusts the machine's certificate authorities.
    for tls in [other, Tls::new()] {
        let client = builder(&nodes).tls(tls).build().unwrap();
        let error = client.acquire("orders").options(ONCE).await.unwrap_err();
        assert_eq!(kind(&error), FailureKind::Unreachable, "{error}");
        assert!(error.to_string().contains("invalid peer certificate: UnknownIssuer"), "{error}");
    }
    for (tls, said) in [
        (Tls::new().ca_pem("nonsense"), "TLS: "),
        (Tls::new().client_pem(authority.issue().certificate, "nonsense"), "TLS: "),
        (
            Tls::new().client_pem(authority.issue().certificate, authority.issue().key),
            "TLS: the certificate does not fit its key",
        ),
    ] {
        let error = builder(&nodes).tls(tls).build().unwrap_err().to_string();
        assert!(error.contains(said) && error.contains(&nodes[0].address()), "{error}");
    }
    // The client sends plain text to a TLS port.
    let plain = nodes.iter().map(|node| node.url().replace("rediss://", "redis://"));
    let client = common::unguarded().nodes(plain).build().unwrap();
    assert_eq!(kind(&client.try_acquire("orders").await.unwrap_err()), FailureKind::Unreachable);
    assert_eq!(key_count(&nodes[0]), 0);
}

/// If the program has not installed a provider for rustls, the first connection must not panic. If the program has
/// installed one, the client does not replace it.
#[tokio::test]
async fn the_first_tls_connection_works_on_the_clients_own_thread() {
    let Some((nodes, authority)) = start_tls(false) else { return };
    let client = builder(&nodes).tls(trusting(&authority)).own_thread(true).build();
    let client = client.unwrap();
    does_everything(&client).await;
    assert!(get(&nodes[0], "orders").is_none());
}

/// Some services terminate TLS in a proxy before a server without TLS. The restart guard reads the server's `INFO` and
/// marker through the proxy.
#[tokio::test]
async fn a_proxy_may_terminate_tls() {
    let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
    let Some(nodes) = start(1, options) else { return };
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("rediss://{}", proxy.local_addr().unwrap());
    let server = nodes[0].address();
    let authority = Authority::new();
    let Identity { certificate, key } = authority.issue();
    let certificates = CertificateDer::pem_slice_iter(certificate.as_bytes());
    let certificates = certificates.map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(certificates, key).unwrap());
    let serving = tokio::spawn(async move {
        loop {
            let (client, _) = proxy.accept().await.unwrap();
            let (acceptor, server) = (TlsAcceptor::from(Arc::clone(&config)), server.clone());
            tokio::spawn(async move {
                let mut client = acceptor.accept(client).await.unwrap();
                let mut server = TcpStream::connect(server).await.unwrap();
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    let with = || Client::builder().nodes([&url]).tls(trusting(&authority));
    does_everything(&with().restart_guard(RestartGuard::Off).options(PATIENT).build().unwrap())
        .await;
    no_key_is_left(&nodes).await;
    // A node that is used for the first time is in quarantine. A short `max_ttl` makes the quarantine short.
    let max_ttl = Duration::from_millis(500);
    let ttl = LockOptions::new().ttl(max_ttl).node_timeout(max_ttl / 4).wait(PATIENCE);
    does_everything(&with().max_ttl(max_ttl).options(ttl).build().unwrap()).await;
    serving.abort();
}

fn kind(error: &AcquireError) -> FailureKind {
    let failures = error.nodes().iter().filter_map(|node| node.failure());
    failures.map(|failure| failure.kind()).next().unwrap_or_else(|| panic!("{error}"))
}
