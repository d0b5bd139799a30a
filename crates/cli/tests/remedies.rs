//! The advice of `doctor` and of error messages works when a person follows it.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::process::Command;

use common::hostile::{bulk, hostile};
use common::{Testbed, code, command, eventually, json_lines, server, stderr, stdout, test_name};
use quorlock_servers::certificates::{Alone, Authority, Identity};
use quorlock_servers::{
    Listen, Nodes, Reply, Server, ServerBinary, ServerOptions, StartError, skip, without_tls,
};

/// A server with TLS and the certificate `node.pem` of this authority's folder. `None`: the server or `redis-cli` is
/// built without TLS, and the test is reported as skipped. `client_auth`: the server requires a client certificate.
fn with_tls(binary: &ServerBinary, authority: &Authority, client_auth: bool) -> Option<Server> {
    let tls = Some(authority.server(client_auth));
    let server = match Server::start(binary, ServerOptions { tls, ..ServerOptions::default() }) {
        Err(StartError::NoTls { .. }) => {
            without_tls(binary, &test_name());
            return None;
        }
        server => server.unwrap(),
    };
    let help = Command::new("redis-cli").arg("--help").output();
    let speaks = help.is_ok_and(|help| (stdout(&help) + &stderr(&help)).contains("--cacert"));
    if !speaks {
        skip(&test_name(), "no redis-cli that was built with TLS");
    }
    speaks.then_some(server)
}

fn no_nodes(binary: &ServerBinary) -> Testbed {
    Testbed::of(Nodes::start(binary, 0, ServerOptions::default()).unwrap())
}

/// The advice (`fix`) in the first finding of `doctor` about the only node.
fn fix(testbed: &Testbed, args: &[&str]) -> String {
    let output = testbed.output(&[&["doctor", "--json"], args].concat());
    json_lines(&stdout(&output))[0]["nodes"][0]["findings"][0]["fix"].as_str().unwrap().to_owned()
}

/// Runs the command that the text has between `before` and `behind`, as a person pastes it into a shell.
fn paste(text: &str, before: &str, behind: &str) -> String {
    let command = text.split_once(before).unwrap_or_else(|| panic!("{before:?} in {text}")).1;
    let command = if behind.is_empty() { command } else { command.split_once(behind).unwrap().0 };
    let output = Command::new("timeout").args(["10", "sh", "-c", command]).output().unwrap();
    format!("{}{}", stdout(&output), stderr(&output))
}

#[test]
fn the_command_for_a_server_with_tls_answers_as_soon_as_the_server_runs() {
    let Some(binary) = server() else { return };
    let authority = Authority::new();
    let Some(server) = with_tls(&binary, &authority, false) else { return };
    let (testbed, url, ca) = (no_nodes(&binary), server.url(), authority.file("ca.pem"));
    let args = ["-n", &url, "--tls-ca", ca.to_str().unwrap()];
    server.kill().unwrap();
    let told = fix(&testbed, &args);
    assert_ne!(paste(&told, "until this answers: ", "").trim(), "PONG", "the server is down");
    server.restart().unwrap();
    assert_eq!(paste(&told, "until this answers: ", "").trim(), "PONG", "{told}");
}

#[test]
fn a_wrong_scheme_is_named_and_the_right_scheme_works() {
    let Some(binary) = server() else { return };
    let authority = Authority::new();
    let Some(server) = with_tls(&binary, &authority, false) else { return };
    let testbed = no_nodes(&binary);
    let tcp = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
    let plain = Server::start(&binary, tcp).unwrap();
    let run = |url: &str| {
        let ca = authority.file("ca.pem");
        let args =
            ["run", "k", "-n", url, "--tls-ca", ca.to_str().unwrap(), "--wait", "0s", "--", "true"];
        testbed.output(&args)
    };
    for (right, before) in [
        (server.url(), "name the authority with --tls-ca: "),
        (plain.url(), "begin its URL with redis://: "),
    ] {
        let (scheme, rest) = right.split_once("://").unwrap();
        let wrong = format!("{}://{rest}", if scheme == "redis" { "rediss" } else { "redis" });
        let output = run(&wrong);
        code(&output, 69);
        let hint = format!("its URL begins with {scheme}://");
        assert!(stderr(&output).contains(&hint), "{wrong}: {}", stderr(&output));
        let told = fix(&testbed, &["-n", &wrong]);
        assert_eq!(paste(&told, before, "; else ").trim(), "PONG", "{told}");
        let output = run(&right);
        assert!(output.status.success(), "{right}: {}", stderr(&output));
    }
}

/// The advice must not use `redis-cli`, which does not check the name in a certificate.
#[test]
fn an_error_of_a_certificate_names_the_option_that_fixes_it() {
    let Some(binary) = server() else { return };
    let authority = Authority::new();
    let Some(server) = with_tls(&binary, &authority, false) else { return };
    let Some(strict) = with_tls(&binary, &authority, true) else { return };
    let testbed = no_nodes(&binary);
    let [ca, cert, key] = ["ca.pem", "node.pem", "node.key"]
        .map(|name| authority.file(name).to_str().unwrap().to_owned());
    let run = |url: &str, args: &[&str]| {
        let args = [&["run", "k", "-n", url, "--wait", "0s"], args, &["--", "true"]].concat();
        testbed.output(&args)
    };
    let trusted = ["--tls-ca", &*ca];
    let other = format!("{}?tls-server-name=other.internal", server.url());
    let own = [&trusted[..], &["--tls-cert", &*cert, "--tls-key", &*key]].concat();
    for (url, wrong, option, mended, right) in [
        (&other, &trusted[..], "--tls-server-name NAME", &server.url(), &trusted[..]),
        (&server.url(), &[], "--tls-ca FILE", &server.url(), &trusted),
        (&strict.url(), &trusted, "--tls-cert FILE", &strict.url(), &own),
    ] {
        let output = run(url, wrong);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains(option) && !said.contains("begins with"), "{said}");
        let fix = fix(&testbed, &[&["-n", url], wrong].concat());
        assert!(fix.contains(option) && !fix.contains("redis-cli"), "{fix}");
        let output = run(mended, right);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    // Without TLS, a server name would have no effect, so the option is refused.
    let output = run("redis://h", &["--tls-server-name", "n"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("--tls-server-name") && said.contains("rediss://"), "{said}");
    let mut command = testbed.quorlock(&["run", "k", "-n", "redis://h", "--", "true"]);
    let output = command.env("QUORLOCK_TLS_SERVER_NAME", "n").output().unwrap();
    code(&output, 78);
    assert!(stderr(&output).contains("QUORLOCK_TLS_SERVER_NAME"), "{}", stderr(&output));
}

/// No option of the client helps with these certificates.
#[test]
fn a_certificate_of_an_authority_or_without_names_must_be_replaced() {
    let Some(binary) = server() else { return };
    let testbed = no_nodes(&binary);
    let of_authority =
        "the certificate of an authority (CA:TRUE): give the server one with CA:FALSE";
    let nameless = "no subjectAltName, and its CN does not count: give the server one with it";
    let authority = Authority::new();
    for (kind, hint) in
        [(Alone::Authority, of_authority), (Alone::Nameless, nameless), (Alone::Valid, "")]
    {
        let Identity { certificate, key } = Identity::alone(kind);
        authority.write("node.pem", &certificate);
        authority.write("node.key", &key);
        let Some(server) = with_tls(&binary, &authority, false) else { return };
        let ca = authority.file("node.pem");
        let nodes = ["-n", &server.url(), "--tls-ca", ca.to_str().unwrap()];
        let args = [&["run", "k"], &nodes[..], &["--wait", "0s", "--", "true"]].concat();
        let output = testbed.output(&args);
        if hint.is_empty() {
            code(&output, 0);
            continue;
        }
        code(&output, 69);
        let said = stderr(&output);
        assert!(said.contains(hint) && !said.contains("--tls-server-name"), "{said}");
        let fix = fix(&testbed, &nodes);
        for part in ["openssl req -x509", "subjectAltName=DNS:HOST", "CA:FALSE", "tls-cert-file"] {
            assert!(fix.contains(part) && !fix.contains("--tls-server-name"), "{fix}");
        }
    }
}

#[test]
fn a_server_without_free_client_connections_is_named() {
    let args = vec!["--maxclients".to_owned(), "5".to_owned()];
    let options = ServerOptions { args, ..ServerOptions::default() };
    let Some(testbed) = Testbed::with(1, options) else { return };
    // A connection that the start of the server used may still count against `maxclients`, so `eventually` retries.
    let served = || {
        let mut client = testbed.nodes[0].connect().ok()?;
        let reply = client.command(&["PING"]).ok()?;
        matches!(reply, Reply::Simple(_)).then_some(client)
    };
    let _clients = [(); 5].map(|()| eventually("the server has a free place", served));
    let output = testbed.output(&["run", "k", "--wait", "0s", "--", "true"]);
    code(&output, 69);
    let named = "the server has no client connection left (its limit is maxclients)";
    assert!(stderr(&output).contains(named), "{}", stderr(&output));
    let output = testbed.output(&["doctor"]);
    let told = stdout(&output);
    assert!(told.contains(named) && told.contains("CONFIG SET maxclients NUMBER"), "{told}");
}

/// After its quarantine, in which a node does not vote, the node votes in the next call.
#[test]
fn idle_nodes_are_healthy_after_their_quarantine() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let testbed = Testbed { guard: "strict", ..testbed };
    let quorlock = |args: &[&str]| {
        let mut command = testbed.quorlock(args);
        command.env("QUORLOCK_MAX_TTL", "1s").env("QUORLOCK_TTL", "1s").output().unwrap()
    };
    let output = quorlock(&["run", "k", "--wait", "0s", "--", "true"]);
    code(&output, 69);
    let waiting = quorlock(&["doctor"]);
    assert_eq!(waiting.status.code(), Some(2), "{}", stdout(&waiting));
    assert!(stdout(&quorlock(&["status", "k"])).starts_with("k: UNKNOWN"));
    let text = eventually("doctor finds no problem", || {
        let output = quorlock(&["doctor"]);
        (output.status.code() == Some(0)).then(|| stdout(&output))
    });
    assert_eq!(text.matches("votes count at once").count(), 3, "{text}");
    assert!(!text.contains("no lock can be granted"), "{text}");
    let status = quorlock(&["status", "k"]);
    assert_eq!((status.status.code(), stdout(&status).starts_with("k: FREE")), (Some(0), true));
    assert!(stdout(&status).contains("its votes count at the next use"), "{}", stdout(&status));
    let output = quorlock(&["run", "k", "--wait", "10s", "--", "true"]);
    code(&output, 0);
    assert_eq!(stderr(&output), "", "no message about a wait that ends at once");
}

/// Calls that need the nodes.
const CALLS: [&[&str]; 10] = [
    &["extend", "k", "--value", "v"],
    &["release", "k", "--value", "v"],
    &["query", "k"],
    &["run", "k", "--wait", "300ms", "--", "true"],
    &["acquire", "k", "--wait", "0s"],
    &["status", "k"],
    &["ls"],
    &["doctor"],
    &["init", "--fresh", "--yes"],
    &["init", "--reconfigure", "--yes"],
];

#[test]
fn a_busy_node_is_named_with_what_ends_its_script_and_init_is_not_suggested() {
    let Some(mut testbed) = Testbed::sized(1) else { return };
    testbed.guard = "strict";
    code(&testbed.output(&["init", "--fresh", "--yes"]), 0);
    command(&testbed.nodes[0], &["CONFIG", "SET", "lua-time-limit", "1"]);
    let mut other = testbed.nodes[0].connect().unwrap();
    other.send(&[&["EVAL", "while true do end", "0"]]).unwrap();
    let info = || testbed.nodes[0].command(&["INFO"]).unwrap();
    eventually("it is busy", || matches!(info(), Reply::Error(_)).then_some(()));
    for args in CALLS {
        let output = testbed.quorlock(args).env("QUORLOCK_NODE_TIMEOUT", "1s").output().unwrap();
        assert!(!output.status.success() || args[0] == "status", "{args:?}");
        let said = stdout(&output) + &stderr(&output);
        let is_named = said.contains("busy with a script") || said.contains("it runs a script");
        assert!(is_named, "{args:?}: {said}");
        assert!(!said.contains("quorlock init") && !said.contains("start the"), "{args:?}: {said}");
    }
    let told = fix(&testbed, &[]);
    assert_eq!(paste(&told, "if it has written nothing: ", " (a function").trim(), "OK", "{told}");
    assert!(matches!(other.reply().unwrap(), Reply::Error(_)));
    code(&testbed.output(&["run", "k", "--", "true"]), 0);
}

#[test]
fn a_node_that_loads_its_data_is_waited_for_and_init_is_not_suggested() {
    let Some(mut testbed) = Testbed::sized(1) else { return };
    testbed.guard = "strict";
    let Reply::Bulk(Some(info)) = command(&testbed.nodes[0], &["INFO"]) else { panic!("a text") };
    let info = String::from_utf8(info).unwrap().replace("\nloading:0", "\nloading:1");
    let node = hostile(&testbed.nodes[0], move |words| match &*words[0] {
        "HELLO" | "CLIENT" => None,
        "INFO" => Some(bulk(&info)),
        _ => Some(b"-LOADING Redis is loading the dataset in memory\r\n".to_vec()),
    });
    for args in CALLS {
        let mut command = testbed.quorlock(args);
        // Enough for a slow machine: the test is about the node's answer, and it must be heard.
        command.env("QUORLOCK_NODES", format!("a={node}")).env("QUORLOCK_NODE_TIMEOUT", "1s");
        let output = command.output().unwrap();
        let said = stdout(&output) + &stderr(&output);
        assert!(said.contains("loading"), "{args:?}: {said}");
        assert!(!said.contains("quorlock init") && !said.contains("start the"), "{args:?}: {said}");
        if matches!(args[0], "run" | "acquire" | "doctor") {
            assert!(said.contains("wait"), "{args:?}: {said}");
        }
    }
}
