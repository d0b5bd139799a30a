//! Passwords and certificates that change while a client runs.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock::admin::{AdminConnection, Topology};
use quorlock::node::{Credentials, FailureKind, NodeConfig, NodeState, Tls};
use quorlock::{Client, ClientBuilder};
use quorlock_servers::certificates::{Authority, Identity};
use quorlock_servers::{Listen, Nodes, Server, ServerOptions};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::{bare_url, does_everything, start_with_user};
use crate::common::tls::start_tls;
use crate::common::{self, PATIENT, eventually, run, start};

/// The authority of the servers' certificates, and the files of a client in its folder.
struct Secrets {
    authority: Authority,
}

impl Secrets {
    const CLIENT: [&str; 3] = ["trusted.pem", "client.pem", "client.key"];

    fn new(authority: Authority) -> Self {
        let secrets = Self { authority };
        secrets.give(&secrets.authority, "one");
        secrets
    }

    /// Writes the client's files: the password, and the certificates of this authority.
    fn give(&self, authority: &Authority, password: &str) {
        let Identity { certificate, key } = authority.issue();
        for (name, text) in Self::CLIENT.into_iter().zip([authority.pem(), &certificate, &key]) {
            self.authority.write(name, text);
        }
        self.authority.write("password", &format!("{password}\n"));
    }

    /// Gives the servers the certificates of this authority, and this password in place of all others.
    fn change_servers(&self, nodes: &Nodes, authority: &Authority, password: &str) {
        let Identity { certificate, key } = authority.issue();
        let files = [("ca.pem", authority.pem()), ("node.pem", &certificate), ("node.key", &key)];
        files.into_iter().for_each(|(name, text)| self.authority.write(name, text));
        for node in nodes.iter() {
            // The server reads all three files again.
            let ca = self.authority.file("ca.pem");
            run(node, &["CONFIG", "SET", "tls-ca-cert-file", ca.to_str().unwrap()]);
            set_password(node, password);
        }
    }

    fn tls(&self) -> Tls {
        let [ca, certificate, key] = Self::CLIENT.map(|name| self.authority.file(name));
        Tls::new().ca_file(ca).client_files(certificate, key)
    }

    fn builder(&self, nodes: &Nodes) -> ClientBuilder {
        let builder = common::builder(nodes).username("locker").tls(self.tls());
        builder.password_file(self.authority.file("password")).options(PATIENT)
    }
}

fn set_password(node: &Server, password: &str) {
    let password = format!(">{password}");
    run(node, &["ACL", "SETUSER", "locker", "on", "resetpass", &password, "~*", "&*", "+@all"]);
}

fn cut(nodes: &[Server]) {
    nodes.iter().for_each(|node| drop(run(node, &["CLIENT", "KILL", "TYPE", "normal"])));
}

/// A client with these settings; the warnings about its files go into the list.
fn with_warnings(builder: ClientBuilder) -> (Client, Arc<Mutex<Vec<String>>>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&warnings);
    let builder = builder.on_warning(move |text| list.lock().unwrap().push(text.to_owned()));
    (builder.build().unwrap(), warnings)
}

#[tokio::test]
async fn a_lock_is_kept_while_all_secrets_change_and_all_connections_break() {
    let Some((nodes, authority)) = start_tls(true) else { return };
    let secrets = Secrets::new(authority);
    nodes.iter().for_each(|node| set_password(node, "one"));
    let client = secrets.builder(&nodes).build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    for password in ["two", "three"] {
        let authority = Authority::new();
        secrets.change_servers(&nodes, &authority, password);
        cut(&nodes);
        // The client uses the old secrets for a while.
        let state = || client.stats().nodes[0].state.clone();
        eventually("the old secrets are refused", || matches!(state(), NodeState::Down(_))).await;
        secrets.give(&authority, password);
        does_everything_beside(&client).await;
        guard.extend().await.unwrap();
    }
    assert!(guard.is_valid());
    assert!(guard.release().await.is_released());
}

/// As [`does_everything`], for another lock.
async fn does_everything_beside(client: &Client) {
    common::all_up(client).await;
    let guard = client.acquire("beside").await.unwrap();
    eventually("all nodes have given their votes", || guard.votes() == 3).await;
    assert!(guard.release().await.is_released());
}

#[tokio::test]
async fn files_that_cannot_be_used_leave_the_last_secrets_in_use_with_one_warning() {
    let Some((nodes, authority)) = start_tls(true) else { return };
    let secrets = Secrets::new(authority);
    nodes.iter().for_each(|node| set_password(node, "one"));
    let (client, warnings) = with_warnings(secrets.builder(&nodes));
    does_everything(&client).await;
    let file = |name: &str| secrets.authority.file(name);
    let good = |name: &str| fs::read_to_string(file(name)).unwrap();
    let (certificate, password) = (good("client.pem"), good("password"));
    let half = certificate[..certificate.len() / 2].to_owned();
    let other = secrets.authority.issue().certificate;
    for (name, text, reason) in [
        ("client.pem", Some(half), "no certificate in PEM format found in "),
        ("client.pem", Some(String::new()), "no certificate in PEM format found in "),
        ("client.pem", Some(other), "/client.pem does not fit its key in "),
        ("client.pem", None, "/client.pem: No such file"),
        (
            "password",
            Some(String::new()),
            "/password: it is empty; what was read before stays in use",
        ),
        ("password", None, "/password: No such file"),
    ] {
        match text {
            Some(text) => secrets.authority.write(name, &text),
            None => fs::remove_file(file(name)).unwrap(),
        }
        for _ in 0..2 {
            cut(&nodes);
            does_everything(&client).await;
        }
        let told = std::mem::take(&mut *warnings.lock().unwrap());
        assert!(matches!(&told[..], [told] if told.contains(reason)), "{reason}: {told:?}");
        assert!(!told[0].contains("one") && !told[0].contains("BEGIN"), "{told:?}");
        // The old content counts as a usable file again.
        secrets.authority.write("client.pem", &certificate);
        secrets.authority.write("password", &password);
        cut(&nodes);
        does_everything(&client).await;
        assert_eq!(*warnings.lock().unwrap(), [""; 0]);
    }
}

#[tokio::test]
async fn files_that_cannot_be_used_at_the_start_are_refused() {
    let authority = Authority::new();
    let missing = authority.file("missing");
    authority.write("empty", "\n");
    let build = |change: &dyn Fn(NodeConfig) -> NodeConfig| {
        let node = change(NodeConfig::parse("a=rediss://127.0.0.1:1").unwrap());
        Client::builder().node(node).build().unwrap_err().to_string()
    };
    let said = build(&|node| node.password_file(&missing));
    assert!(
        said.starts_with("node a: the password in ") && said.contains("No such file"),
        "{said}"
    );
    let said = build(&|node| node.password_file(authority.file("empty")));
    assert!(said.ends_with("empty: it is empty"), "{said}");
    let said = build(&|node| node.tls(Tls::new().ca_file(&missing)));
    assert!(said.starts_with("node a: TLS: ") && said.contains("No such file"), "{said}");
    let said = build(&|node| node.tls(Tls::new().ca_file(authority.file("node.key"))));
    assert!(said.contains("no certificate in PEM format found in "), "{said}");
    authority.write("other.key", &authority.issue().key);
    let [certificate, key] = ["node.pem", "other.key"].map(|name| authority.file(name));
    let said = build(&|node| node.tls(Tls::new().client_files(&certificate, &key)));
    assert!(said.contains("/node.pem does not fit its key in "), "{said}");
}

/// A port that leads to this server. For each connection, calls `accepted` with the number of connections so far, and
/// then lets the server answer.
async fn gate(server: &Server, accepted: impl Fn(u32) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = server.url();
    let (scheme, address) = url.split_once("://").unwrap();
    let (address, gate) = (address.to_owned(), listener.local_addr().unwrap());
    tokio::spawn(async move {
        for number in 1.. {
            let (mut client, _) = listener.accept().await.unwrap();
            accepted(number);
            let address = address.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(address).await.unwrap();
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    format!("{scheme}://{gate}")
}

/// Connects once. Returns the number of connections that this took, and the kind of the failure.
async fn connect_once(
    builder: ClientBuilder,
    connections: &AtomicU32,
) -> (u32, Option<FailureKind>) {
    connections.store(0, Ordering::Relaxed);
    let server = &Topology::of(&builder).unwrap().servers[0];
    let failure = AdminConnection::open(server).await.err().map(|failure| failure.kind());
    (connections.load(Ordering::Relaxed), failure)
}

#[tokio::test]
async fn a_refused_password_is_read_once_more_and_used_at_once_if_it_changed() {
    let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
    let Some(nodes) = start(1, options) else { return };
    set_password(&nodes[0], "two");
    let folder = Authority::new();
    let (file, connections) = (folder.file("password"), Arc::new(AtomicU32::new(0)));
    // The file changes after the client has read it, and before the server refuses what was in it.
    let next = Arc::new(Mutex::new("two"));
    let url = gate(&nodes[0], {
        let (file, connections, next) = (file.clone(), connections.clone(), next.clone());
        move |_| {
            connections.fetch_add(1, Ordering::Relaxed);
            fs::write(&file, *next.lock().unwrap()).unwrap();
        }
    })
    .await;
    let builder = || Client::builder().nodes([&url]).username("locker").password_file(&file);
    fs::write(&file, "one").unwrap();
    assert_eq!(connect_once(builder(), &connections).await, (2, None));
    // Another wrong password is tried once, and one that has not changed is not tried again.
    *next.lock().unwrap() = "three";
    fs::write(&file, "one").unwrap();
    let refused = Some(FailureKind::Unauthenticated);
    assert_eq!(connect_once(builder(), &connections).await, (2, refused));
    assert_eq!(connect_once(builder(), &connections).await, (1, refused));
}

#[tokio::test]
async fn refused_certificates_are_read_once_more_and_used_at_once_if_they_changed() {
    let Some((nodes, authority)) = start_tls(true) else { return };
    let secrets = Arc::new(Secrets::new(authority));
    nodes.iter().for_each(|node| set_password(node, "one"));
    let connections = Arc::new(AtomicU32::new(0));
    // For each connection: an authority whose certificates the client gets after it has read its files.
    let next: Arc<Mutex<Option<Authority>>> = Arc::default();
    let url = gate(&nodes[0], {
        let (secrets, connections, next) = (secrets.clone(), connections.clone(), next.clone());
        move |_| {
            connections.fetch_add(1, Ordering::Relaxed);
            if let Some(authority) = &*next.lock().unwrap() {
                secrets.give(authority, "one");
            }
        }
    })
    .await;
    let builder = || {
        let builder = Client::builder().nodes([&url]).username("locker").tls(secrets.tls());
        builder.password_file(secrets.authority.file("password"))
    };
    assert_eq!(connect_once(builder(), &connections).await, (1, None));
    // The server's certificate is refused.
    let other = Authority::new();
    secrets.change_servers(&nodes, &other, "one");
    assert_eq!(connect_once(builder(), &connections).await, (1, Some(FailureKind::Unreachable)));
    *next.lock().unwrap() = Some(other);
    assert_eq!(connect_once(builder(), &connections).await, (2, None));
    // The server refuses the client's certificate.
    let stranger = Authority::new().issue();
    secrets.authority.write("client.pem", &stranger.certificate);
    secrets.authority.write("client.key", &stranger.key);
    assert_eq!(connect_once(builder(), &connections).await, (2, None));
    *next.lock().unwrap() = None;
    secrets.authority.write("client.pem", &stranger.certificate);
    secrets.authority.write("client.key", &stranger.key);
    assert_eq!(connect_once(builder(), &connections).await, (1, Some(FailureKind::Unreachable)));
}

#[tokio::test]
async fn a_function_for_tls_is_asked_for_each_connection() {
    let Some((nodes, authority)) = start_tls(true) else { return };
    let secrets = Secrets::new(authority);
    nodes.iter().for_each(|node| set_password(node, "one"));
    let answer: Arc<Mutex<Result<Tls, &str>>> = Arc::new(Mutex::new(Err("the vault is sealed")));
    let tls = Tls::from_fn({
        let answer = answer.clone();
        move || {
            let answer = answer.lock().unwrap().clone();
            async move { answer }
        }
    });
    assert_eq!(format!("{tls:?}"), "Tls { .. }");
    let (client, warnings) = with_warnings(secrets.builder(&nodes).tls(tls));
    let said = "unreachable: no certificates: the vault is sealed";
    let detail = || match &client.stats().nodes[0].state {
        NodeState::Down(failure) => failure.to_string(),
        state => format!("{state:?}"),
    };
    eventually(said, || detail().contains(said)).await;
    let issue = |authority: &Authority| {
        let Identity { certificate, key } = authority.issue();
        Tls::new().ca_pem(authority.pem()).client_pem(certificate, key)
    };
    *answer.lock().unwrap() = Ok(issue(&secrets.authority));
    does_everything(&client).await;
    let other = Authority::new();
    secrets.change_servers(&nodes, &other, "one");
    *answer.lock().unwrap() = Ok(issue(&other));
    cut(&nodes);
    does_everything(&client).await;
    assert_eq!(*warnings.lock().unwrap(), [""; 0]);
    // Unusable answers leave the last certificates in use.
    for (unusable, said) in [
        (Err("the vault is sealed"), "TLS: the vault is sealed; "),
        (Ok(Tls::new().ca_pem("nonsense")), "TLS: no certificate in PEM format found; "),
        (Ok(Tls::from_fn(|| async { Err("asked in vain") })), "returned another function"),
    ] {
        *answer.lock().unwrap() = unusable;
        cut(&nodes);
        does_everything(&client).await;
        let told = std::mem::take(&mut *warnings.lock().unwrap());
        assert!(matches!(&told[..], [told] if told.contains(said)), "{told:?}");
        *answer.lock().unwrap() = Ok(issue(&other));
        cut(&nodes);
        does_everything(&client).await;
    }
}

/// The source of all nodes does not replace a node's own password.
#[tokio::test]
async fn one_call_sets_the_source_of_passwords_for_all_nodes() {
    let Some(nodes) = start_with_user("locker on >one ~* +@all") else { return };
    let mut configs: Vec<_> =
        nodes.iter().map(|node| NodeConfig::parse(&bare_url(node)).unwrap()).collect();
    run(&nodes[0], &["ACL", "SETUSER", "locker", "resetpass", ">own"]);
    configs[0] = configs[0].clone().password("own");
    let build = |set: &dyn Fn(ClientBuilder) -> ClientBuilder| {
        let nodes = configs.iter().cloned();
        let builder = nodes.fold(common::unguarded(), ClientBuilder::node).username("locker");
        set(builder.password("wrong")).options(PATIENT).build().unwrap()
    };
    let ask = || async { Ok::<_, &str>(Credentials::password("one")) };
    does_everything(&build(&|builder| builder.credentials(ask))).await;
    let folder = Authority::new();
    folder.write("password", "one\r\n");
    let file = folder.file("password");
    does_everything(&build(&|builder| builder.password_file(&file))).await;
    let client = build(&|builder| builder.connect_timeout(Duration::from_secs(10)));
    assert!(client.try_acquire("orders").await.unwrap_err().is_permission_denied());
}
