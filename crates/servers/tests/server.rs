//! Tests every operation of `Server` with a real server.

#![expect(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use quorlock_servers::certificates::Authority;
use quorlock_servers::{
    Listen, Nodes, Reply, Server, ServerBinary, ServerOptions, StartError, find_or_skip, skip,
    without_tls,
};

fn ok() -> Reply {
    Reply::Simple("OK".to_owned())
}

fn pong() -> Reply {
    Reply::Simple("PONG".to_owned())
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(Some(text.as_bytes().to_vec()))
}

/// The name of the current test, which is the name of its thread.
fn test_name() -> String {
    thread::current().name().unwrap_or("a test").to_owned()
}

fn server_binary() -> Option<ServerBinary> {
    find_or_skip(&test_name())
}

fn start(binary: &ServerBinary) -> Server {
    Server::start(binary, ServerOptions::default()).unwrap()
}

fn exists(pid: u32) -> bool {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::test_kill_process(pid).is_ok()
}

#[test]
fn answers_over_its_socket_in_a_folder_of_its_own() {
    let Some(binary) = server_binary() else { return };
    let (one, other) = (start(&binary), start(&binary));
    assert_eq!(one.command(&["SET", "key", "a b\r\nc"]).unwrap(), ok());
    assert_eq!(one.command(&["GET", "key"]).unwrap(), bulk("a b\r\nc"));
    assert_eq!(other.command(&["GET", "key"]).unwrap(), Reply::Bulk(None), "they are independent");
    assert_eq!(one.url(), format!("redis+unix://{}", one.address()));
    UnixStream::connect(one.address()).unwrap();
    assert_eq!(one.binary(), &binary);
    let Reply::Bulk(Some(info)) = one.command(&["INFO", "server"]).unwrap() else {
        panic!("INFO answers a string")
    };
    let pid = format!("process_id:{}\r\n", one.pid().unwrap());
    assert!(
        String::from_utf8(info).unwrap().contains(&pid),
        "its pid is the server's, not setpriv's"
    );
}

#[test]
fn killed_and_restarted_it_is_empty_and_where_it_was() {
    let Some(binary) = server_binary() else { return };
    for listen in [Listen::UnixSocket, Listen::Tcp] {
        let server =
            Server::start(&binary, ServerOptions { listen, ..Default::default() }).unwrap();
        let (address, pid) = (server.address(), server.pid());
        server.command(&["SET", "key", "value"]).unwrap();
        server.kill().unwrap();
        assert!(!server.is_running());
        assert_eq!(server.pid(), None);
        assert_eq!(server.command(&["PING"]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        server.kill().unwrap();
        server.restart().unwrap();
        assert_eq!(server.command(&["GET", "key"]).unwrap(), Reply::Bulk(None));
        assert_eq!(server.address(), address);
        assert_ne!(server.pid(), pid);
        server.restart().unwrap();
        assert_eq!(server.command(&["PING"]).unwrap(), pong(), "a running server restarts too");
    }
}

#[test]
fn keeps_its_data_over_a_restart_when_told_to() {
    let Some(binary) = server_binary() else { return };
    let args = ["--appendonly", "yes", "--appendfsync", "always"].map(String::from).to_vec();
    let server = Server::start(&binary, ServerOptions { args, ..Default::default() }).unwrap();
    server.command(&["SET", "key", "value"]).unwrap();
    server.restart().unwrap();
    assert_eq!(server.command(&["GET", "key"]).unwrap(), bulk("value"));
}

#[test]
fn a_paused_server_takes_connections_and_says_nothing() {
    let Some(binary) = server_binary() else { return };
    let server = start(&binary);
    let mut client = UnixStream::connect(server.address()).unwrap();
    for _ in 0..50 {
        server.pause().unwrap();
        server.pause().unwrap();
        assert!(server.is_running());
        client.write_all(b"PING\r\n").unwrap();
        client.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        let silence = std::io::Read::read(&mut client, &mut [0; 7]).unwrap_err();
        assert_eq!(silence.kind(), ErrorKind::WouldBlock);
        server.resume().unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut answer = [0; 7];
        std::io::Read::read_exact(&mut client, &mut answer).unwrap();
        assert_eq!(&answer, b"+PONG\r\n");
    }
    server.pause().unwrap();
    server.kill().unwrap();
    assert!(server.pause().is_err() && server.resume().is_err(), "there is nothing to pause");
    server.restart().unwrap();
    assert_eq!(server.command(&["PING"]).unwrap(), pong());
}

#[test]
fn nothing_is_left_after_drop() {
    let Some(binary) = server_binary() else { return };
    let leave = |server: &Server| {
        let home = Path::new(&server.address()).parent().unwrap().to_path_buf();
        (server.pid().unwrap(), home)
    };
    let gone = |(pid, home): (u32, PathBuf)| !exists(pid) && !home.exists();

    let server = start(&binary);
    let left = leave(&server);
    drop(server);
    assert!(gone(left), "after a drop");

    let server = start(&binary);
    let left = leave(&server);
    server.pause().unwrap();
    drop(server);
    assert!(gone(left), "after a drop while paused");

    let mut left = None;
    let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
        let server = start(&binary);
        left = Some(leave(&server));
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert!(gone(left.unwrap()), "after a panic");
}

#[test]
fn outlives_the_thread_that_started_it() {
    let Some(binary) = server_binary() else { return };
    let server = thread::spawn(move || start(&binary)).join().unwrap();
    thread::sleep(Duration::from_millis(200));
    assert_eq!(server.command(&["PING"]).unwrap(), pong());
}

#[test]
fn a_password_is_needed_and_not_shown() {
    let Some(binary) = server_binary() else { return };
    // The password contains every character that is special in the configuration file or in a URL.
    let password = "p \"w'\\\n@:/?#%é";
    for listen in [Listen::UnixSocket, Listen::Tcp] {
        let options =
            ServerOptions { listen, password: Some(password.to_owned()), ..Default::default() };
        let server = Server::start(&binary, options).unwrap();
        assert_eq!(server.command(&["PING"]).unwrap(), pong());
        let encoded = "p%20%22w%27%5C%0A%40%3A%2F%3F%23%25%C3%A9";
        let url = match listen {
            Listen::UnixSocket => format!("redis+unix://{}?pass={encoded}", server.address()),
            Listen::Tcp => format!("redis://:{encoded}@{}", server.address()),
        };
        assert_eq!(server.url(), url);
        assert!(!format!("{server:?}").contains("p \\\""), "{server:?}");

        if listen == Listen::UnixSocket {
            let home = Path::new(&server.address()).parent().unwrap().to_path_buf();
            let mode = fs::metadata(home).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "others cannot read the configuration");
        }
        let pid = server.pid().unwrap().to_string();
        let seen = Command::new("ps").args(["-ww", "-o", "args=", "-p", &pid]).output();
        if let Ok(seen) = seen {
            assert!(!String::from_utf8_lossy(&seen.stdout).contains("p \""), "{seen:?}");
        }
        if listen == Listen::Tcp {
            let mut stranger = TcpStream::connect(server.address()).unwrap();
            stranger.write_all(b"PING\r\n").unwrap();
            let mut answer = [0; 7];
            std::io::Read::read_exact(&mut stranger, &mut answer).unwrap();
            assert_eq!(&answer, b"-NOAUTH");
        }
    }
}

#[test]
fn further_arguments_reach_the_server() {
    let Some(binary) = server_binary() else { return };
    let args = ["--maxmemory", "8mb", "--user", "default", "off"].map(String::from).to_vec();
    let server = Server::start(&binary, ServerOptions { args, ..Default::default() }).unwrap();
    let Reply::Error(refused) = server.command(&["PING"]).unwrap() else {
        panic!("the default user is off")
    };
    assert!(refused.starts_with("NOAUTH"), "{refused}");
}

#[test]
fn a_wrong_configuration_fails_with_the_servers_own_words() {
    let Some(binary) = server_binary() else { return };
    let args = vec!["--no-such-thing".to_owned(), "1".to_owned()];
    let error = Server::start(&binary, ServerOptions { args, ..Default::default() }).unwrap_err();
    assert!(matches!(error, StartError::Ended { .. }), "{error:?}");
    let text = error.to_string();
    // The rest of the message differs between versions: "Bad directive", "Unresolved Configuration".
    assert!(text.contains("no-such-thing"), "{text}");
}

#[test]
fn five_nodes_are_five_servers() {
    let Some(binary) = server_binary() else { return };
    for listen in [Listen::UnixSocket, Listen::Tcp] {
        let nodes =
            Nodes::start(&binary, 5, ServerOptions { listen, ..Default::default() }).unwrap();
        let mut urls = nodes.urls();
        urls.sort();
        urls.dedup();
        assert_eq!(urls.len(), 5);
        nodes[1].kill().unwrap();
        nodes[3].kill().unwrap();
        let up: Vec<_> = nodes.iter().map(Server::is_running).collect();
        assert_eq!(up, [true, false, true, false, true]);
        for node in &nodes {
            node.restart().unwrap();
            assert_eq!(node.command(&["DBSIZE"]).unwrap(), Reply::Int(0));
        }
    }
}

#[test]
fn serves_tls_and_nothing_but_tls() {
    let Some(binary) = server_binary() else { return };
    let authority = Authority::new();
    for client_auth in [false, true] {
        let tls = authority.server(client_auth);
        let options = ServerOptions { tls: Some(tls), ..Default::default() };
        let server = match Server::start(&binary, options) {
            Err(StartError::NoTls { .. }) => return without_tls(&binary, &test_name()),
            started => started.unwrap(),
        };
        assert_eq!(server.url(), format!("rediss://{}", server.address()));
        assert_eq!(server.command(&["PING"]).unwrap(), pong());
        let mut stranger = TcpStream::connect(server.address()).unwrap();
        stranger.write_all(b"PING\r\n").unwrap();
        let mut answer = [0; 7];
        let read = std::io::Read::read_exact(&mut stranger, &mut answer);
        assert!(read.is_err() || answer[0] != b'+', "a client without TLS is served");
        server.restart().unwrap();
        assert_eq!(server.command(&["PING"]).unwrap(), pong());
    }
}

/// Not a test: the next test starts this as a process and kills it. Without the environment variable, it does nothing.
#[test]
fn a_process_that_waits_to_be_killed() {
    let Some(note) = std::env::var_os("QUORLOCK_SERVERS_TEST_NOTE") else {
        return;
    };
    let server = start(&quorlock_servers::find().unwrap());
    let draft = Path::new(&note).with_extension("draft");
    fs::write(&draft, format!("{}\n{}", server.pid().unwrap(), server.address())).unwrap();
    fs::rename(draft, note).unwrap();
    thread::sleep(Duration::from_secs(60));
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_process_takes_its_servers_along() {
    if server_binary().is_none() {
        return;
    }
    let works = Command::new("setpriv").args(["--pdeathsig", "KILL", "--", "true"]).status();
    if !works.is_ok_and(|status| status.success()) {
        return skip(&test_name(), "no setpriv that knows --pdeathsig");
    }
    let dir = tempfile::tempdir().unwrap();
    let note = dir.path().join("note");
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_waits_to_be_killed"])
        .env("QUORLOCK_SERVERS_TEST_NOTE", &note)
        .env("TMPDIR", dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let text = eventually(|| fs::read_to_string(&note).ok()).expect("it starts a server");
    let (pid, address) = text.split_once('\n').unwrap();
    assert!(exists(pid.parse().unwrap()));
    UnixStream::connect(address).unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    // Looks at the socket instead of `exists`, because the killed server may become a zombie, which still exists.
    eventually(|| UnixStream::connect(address).is_err().then_some(()))
        .expect("the server ends too");
}

#[cfg(target_os = "linux")]
fn eventually<T>(mut happened: impl FnMut() -> Option<T>) -> Option<T> {
    (0..500).find_map(|_| {
        thread::sleep(Duration::from_millis(20));
        happened()
    })
}
