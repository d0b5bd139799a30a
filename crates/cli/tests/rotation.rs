//! Passwords and certificates that change while a command runs.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;

use common::{
    Running, Testbed, calls, code, command, eventually, server, stderr, stdout, test_name,
};
use quorlock_servers::certificates::{Authority, Identity};
use quorlock_servers::{Nodes, Reply, Server, ServerOptions, StartError, without_tls};

/// Three servers with TLS that require certificates of their clients, and the authority of the certificates. The
/// client's files are in the testbed's folder.
fn start() -> Option<(Testbed, Authority)> {
    let (binary, authority) = (server()?, Authority::new());
    let tls = Some(authority.server(true));
    let nodes = match Nodes::start(&binary, 3, ServerOptions { tls, ..ServerOptions::default() }) {
        Err(StartError::NoTls { .. }) => {
            without_tls(&binary, &test_name());
            return None;
        }
        nodes => nodes.unwrap(),
    };
    let testbed = Testbed::of(nodes);
    change(&testbed, &authority, &authority, "password-1");
    give(&testbed, &authority, "password-1");
    Some((testbed, authority))
}

/// Gives the servers certificates of the authority `next`, and the user this password in place of all others. Then cuts
/// all connections.
fn change(testbed: &Testbed, authority: &Authority, next: &Authority, password: &str) {
    let Identity { certificate, key } = next.issue();
    let files = [("ca.pem", next.pem()), ("node.pem", &certificate), ("node.key", &key)];
    files.into_iter().for_each(|(name, text)| authority.write(name, text));
    let ca = authority.file("ca.pem");
    testbed.on_all(&["CONFIG", "SET", "tls-ca-cert-file", ca.to_str().unwrap()]);
    let password = format!(">{password}");
    let rules = ["ACL", "SETUSER", "locker", "on", "resetpass", &password, "~*", "&*", "+@all"];
    testbed.on_all(&rules);
    testbed.on_all(&["CLIENT", "KILL", "TYPE", "normal"]);
}

/// Writes the client's files.
fn give(testbed: &Testbed, authority: &Authority, password: &str) {
    let Identity { certificate, key } = authority.issue();
    let password = format!("{password}\n");
    for (name, text) in
        [("ca.pem", authority.pem()), ("c.pem", &certificate), ("c.key", &key), ("p", &password)]
    {
        fs::write(testbed.path(name), text).unwrap();
    }
}

fn is_connected(node: &Server) -> bool {
    let Reply::Bulk(Some(list)) = command(node, &["CLIENT", "LIST"]) else { panic!("a text") };
    String::from_utf8(list).unwrap().contains("user=locker")
}

fn await_connected(testbed: &Testbed) {
    let all = || testbed.nodes.iter().all(is_connected).then_some(());
    eventually("the client is connected to all nodes", all);
}

const FILES: [&str; 10] = [
    "--username",
    "locker",
    "--password-file",
    "p",
    "--tls-ca",
    "ca.pem",
    "--tls-cert",
    "c.pem",
    "--tls-key",
    "c.key",
];

/// A command that runs under the lock `k` until the file `end` exists.
fn run(testbed: &Testbed, options: &[&str]) -> Running {
    let script = "echo started; until test -e end; do sleep 0.05; done";
    let cmd = ["--ttl", "3s", "--", "sh", "-c", script];
    let running = testbed.start(&[&["run", "k"], &FILES[..], options, &cmd].concat());
    running.await_line("started");
    running
}

#[test]
fn a_job_keeps_its_lock_while_password_and_certificates_are_replaced() {
    let Some((testbed, authority)) = start() else { return };
    let running = run(&testbed, &["--json"]);
    for password in ["password-2", "password-3"] {
        let next = Authority::new();
        change(&testbed, &authority, &next, password);
        give(&testbed, &next, password);
        await_connected(&testbed);
        let extensions = || testbed.nodes.iter().map(|node| calls(node, "pexpire"));
        let before: Vec<u64> = extensions().collect();
        eventually("all nodes have extended the lock over new connections", || {
            extensions().zip(&before).all(|(now, before)| now > *before).then_some(())
        });
    }
    fs::write(testbed.path("end"), "").unwrap();
    let output = running.end();
    code(&output, 0);
    let said = stderr(&output);
    assert!(!said.contains("\"lost\"") && said.contains("\"released\""), "{said}");
    assert!(!said.contains("password-") && !said.contains("BEGIN"), "{said}");
}

#[test]
fn a_file_that_cannot_be_used_gives_one_warning_and_the_job_goes_on() {
    let Some((testbed, _authority)) = start() else { return };
    let running = run(&testbed, &[]);
    fs::write(testbed.path("c.key"), "-----BEGIN PRIVATE KEY-----\nMIGH").unwrap();
    fs::write(testbed.path("p"), "\n").unwrap();
    for _ in 0..2 {
        testbed.on_all(&["CLIENT", "KILL", "TYPE", "normal"]);
        await_connected(&testbed);
    }
    fs::write(testbed.path("end"), "").unwrap();
    let output = running.end();
    code(&output, 0);
    let said = stderr(&output);
    for warning in [
        "quorlock: TLS: no private key in PEM format found in c.key; what was read before stays in use\n",
        "quorlock: the password in p: it is empty; what was read before stays in use\n",
    ] {
        assert_eq!(said.matches(warning).count(), 1, "{said}");
    }
    assert!(!said.contains("MIGH") && !said.contains("password-"), "{said}");
}

/// The keeper has another working directory than the script.
#[test]
fn a_keeper_reads_the_files_again_and_reports_those_that_it_cannot_use() {
    let Some((testbed, authority)) = start() else { return };
    let script = Running::start(std::process::Command::new("sleep").arg("60"));
    let pid = script.id().to_string();
    let options = ["--ttl", "10s", "--hold-by", &pid, "--log", "log", "--lease-file", "lease"];
    code(&testbed.output(&[&["acquire", "k"], &FILES[..], &options].concat()), 0);
    let next = Authority::new();
    change(&testbed, &authority, &next, "password-2");
    give(&testbed, &next, "password-2");
    await_connected(&testbed);
    fs::remove_file(testbed.path("p")).unwrap();
    testbed.on_all(&["CLIENT", "KILL", "TYPE", "normal"]);
    await_connected(&testbed);
    let log = testbed.await_file("log");
    assert!(log.contains("the password in p: No such file"), "{log}");
    give(&testbed, &next, "password-2");
    let release = [&["release", "--lease-file", "lease"], &FILES[..]].concat();
    let output = testbed.output(&release);
    code(&output, 0);
    assert!(!(log + &stdout(&output)).contains("password-2"));
}
