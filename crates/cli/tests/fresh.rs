//! `quorlock init --fresh` refuses while locks are in use. It replaces different settings only with `--force`.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::thread;

use common::{Testbed, code, command, eventually, get, json_lines, stderr, stdout, unix_ms, value};
use quorlock_servers::{Reply, Server};
use rustix::process::Signal;
use serde_json::json;

const FRESH: &[&str] = &["init", "--fresh", "--yes"];

fn testbed() -> Option<Testbed> {
    let testbed = Testbed::sized(3)?;
    Some(Testbed { guard: "strict", ..testbed })
}

/// `quorlock` with the first `nodes` nodes. It uses this database of each node.
fn quorlock(testbed: &Testbed, nodes: usize, database: u32, args: &[&str]) -> Command {
    let mut command = testbed.quorlock(args);
    let named = testbed.named(0..nodes).replace(',', &format!("?db={database},"));
    command.env("QUORLOCK_NODES", format!("{named}?db={database}"));
    command
}

fn fresh(testbed: &Testbed, more: &[&str]) -> Output {
    fresh_in(testbed, 0, more)
}

fn fresh_in(testbed: &Testbed, database: u32, more: &[&str]) -> Output {
    quorlock(testbed, 3, database, &[FRESH, more].concat()).output().unwrap()
}

/// The URL of a proxy of this server. If a client sends `text`, the server gets it, and the client gets no reply.
fn closed_at(text: &'static str, server: &Server) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, path) = (format!("redis://{}", listener.local_addr().unwrap()), server.socket());
    thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), UnixStream::connect(&path).unwrap());
            let (mut replies, mut to_client) =
                (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut replies, &mut to_client));
            thread::spawn(move || {
                let (mut bytes, mut sent) = ([0; 1 << 16], Vec::new());
                while let Ok(count @ 1..) = client.read(&mut bytes) {
                    sent.extend_from_slice(&bytes[..count]);
                    if String::from_utf8_lossy(&sent).contains(text) {
                        client.shutdown(Shutdown::Both).unwrap();
                    }
                    server.write_all(&bytes[..count]).unwrap();
                }
            });
        }
    });
    url
}

#[test]
fn a_node_whose_answer_is_lost_may_have_been_changed() {
    // The reply is lost first to the call that registers the database, then to the script that writes the marker.
    let changes =
        [("\r\ninstead\r\n", "quorlock:database"), ("Changes a node's marker", "quorlock:node")];
    for (text, key) in changes {
        let Some(testbed) = testbed() else { return };
        let broken = closed_at(text, &testbed.nodes[0]);
        let nodes = format!("x={broken},{}", testbed.named(1..3));
        let output = testbed.quorlock(FRESH).env("QUORLOCK_NODES", nodes).output().unwrap();
        code(&output, 0);
        let said = stderr(&output);
        let unknown = "node x: the change was sent, and its outcome is unknown: unreachable";
        assert!(said.contains(unknown) && said.contains("run the same command again"), "{said}");
        eventually("the node has the key", || get(&testbed.nodes[0], key));
    }
}

#[test]
fn init_is_refused_while_a_lock_is_held_and_names_lock_and_holder() {
    let Some(testbed) = testbed() else { return };
    let output = fresh(&testbed, &[]);
    code(&output, 0);
    assert!(stderr(&output).ends_with("done: 3 nodes vote, and a quorum needs 2\n"));
    let before = get(&testbed.nodes[0], "quorlock:node");
    let hold = ["run", "held", "--label", "nightly", "--", "sleep", "60"];
    let run = testbed.start(&hold);
    eventually("the lock is held", || (testbed.holders_of("held") == 3).then_some(()));
    let output = fresh(&testbed, &[]);
    code(&output, 75);
    let said = stderr(&output);
    for words in [
        "nothing was changed: a lock is in use; wait until it has ended, or give --force",
        "\"held\" in database 0 is held by ",
        " nightly, ",
        "s unless extended (on a, b, c)",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let output = fresh(&testbed, &["--json"]);
    code(&output, 75);
    let event = json_lines(&stderr(&output)).remove(0);
    let told = (&event["event"], &event["locks"][0]["key"]);
    assert_eq!(told, (&json!("not_initialized"), &json!("held")));
    assert!(event["locks"][0]["left_ms"].as_u64().unwrap() <= 10_000, "{event}");
    assert_eq!(get(&testbed.nodes[0], "quorlock:node"), before);

    let output = fresh(&testbed, &["--force"]);
    code(&output, 0);
    assert!(stderr(&output).contains("a lock is in use; --force goes on"), "{}", stderr(&output));
    run.signal(Signal::TERM);
    run.end();
    code(&fresh(&testbed, &[]), 0);
}

#[test]
fn a_lock_of_any_kind_under_any_prefix_on_any_node_counts() {
    let Some(testbed) = testbed() else { return };
    let node = &testbed.nodes[1];
    let in_use = |key: &str| {
        let output = fresh(&testbed, &[]);
        code(&output, 75);
        let said = stderr(&output);
        assert!(said.contains(&format!("\"{key}\" in database 0 is held by h:1")), "{said}");
        assert!(said.contains("unless extended (on b)"), "{said}");
        command(node, &["DEL", key]);
    };
    command(node, &["SET", "other:prefix:k", &value(1, "h:1 job"), "PX", "100000"]);
    in_use("other:prefix:k");
    let end = (unix_ms() + 100_000).to_string();
    command(node, &["ZADD", "read", &end, &value(2, "h:1 reader")]);
    command(node, &["PEXPIREAT", "read", &end]);
    in_use("read");
    // None of these keys is a held lock.
    command(node, &["SET", "left over", &value(3, "h:1")]);
    command(node, &["SET", "session", "x", "PX", "100000"]);
    command(node, &["SET", "quorlock:intent:k", &value(4, "h:1"), "PX", "100000"]);
    code(&fresh(&testbed, &[]), 0);
}

/// Clients in different databases do not exclude each other, so a change of the database must find the old locks.
#[test]
fn locks_in_the_old_database_count() {
    let Some(testbed) = testbed() else { return };
    code(&fresh(&testbed, &[]), 0);
    let key = ["SET", "held", &value(1, "h:1 job"), "PX", "100000"];
    testbed.on_all(&key);
    let other = |more: &[&str]| fresh_in(&testbed, 1, more);
    let output = other(&[]);
    code(&output, 75);
    let said = stderr(&output);
    assert!(said.contains("\"held\" in database 0 is held by h:1 job, "), "{said}");
    testbed.on_all(&["DEL", "held"]);

    // A change of the database needs `--force`. With `--yes` alone it is refused.
    let output = other(&[]);
    code(&output, 64);
    let said = stderr(&output);
    assert!(
        said.contains(
            "old settings of a, b, c: nodes=a,b,c quorum=2 max_ttl_ms=30000, database 0\n"
        ),
        "{said}"
    );
    assert!(said.contains("max_ttl_ms=30000, database 1\n"), "{said}");
    let advice =
        "stop all clients, wait 30s (the longest ttl), and run: quorlock init --fresh --force";
    assert!(said.contains(advice), "{said}");
    code(&other(&["--force"]), 0);

    // The old lock is also found if the key prefix changes too, because the registration names the old prefix.
    testbed.on_all(&["FLUSHALL"]);
    code(&fresh(&testbed, &[]), 0);
    testbed.on_all(&key);
    let output = other(&["--key-prefix", "app:"]);
    code(&output, 75);
    assert!(stderr(&output).contains("\"held\" in database 0"), "{}", stderr(&output));
    testbed.on_all(&["DEL", "held"]);
    let output = other(&["--key-prefix", "app:"]);
    code(&output, 64);
    assert!(stderr(&output).contains("database 1, key prefix \"app:\"\n"), "{}", stderr(&output));
    code(&other(&["--key-prefix", "app:", "--force"]), 0);

    // The old lock is also found after a refused call has registered the new prefix.
    testbed.on_all(&["FLUSHALL"]);
    code(&fresh(&testbed, &[]), 0);
    testbed.on_all(&key);
    let run = ["run", "k", "--key-prefix", "app:", "--wait", "500ms", "--", "true"];
    code(&quorlock(&testbed, 3, 1, &run).output().unwrap(), 69);
    assert_eq!(get(&testbed.nodes[0], "app:quorlock:database").as_deref(), Some("1"));
    code(&other(&["--key-prefix", "app:"]), 75);

    // The next call with `--force` registers a database under each prefix. The calls after it need no `--force`, even
    // though one node has lost its data.
    testbed.on_all(&["DEL", "held"]);
    code(&other(&["--key-prefix", "app:", "--force"]), 0);
    command(&testbed.nodes[0], &["FLUSHALL"]);
    code(&other(&["--key-prefix", "app:"]), 0);
    code(&fresh(&testbed, &[]), 0);
}

#[test]
fn other_nodes_max_ttl_or_prefix_need_more_than_yes() {
    let Some(testbed) = testbed() else { return };
    code(&fresh(&testbed, &[]), 0);
    let before = get(&testbed.nodes[0], "quorlock:node");
    let two = quorlock(&testbed, 2, 0, FRESH).output().unwrap();
    let cases = [
        (two, "nodes=a,b,c quorum=2 max_ttl_ms=30000\n", "nodes=a,b quorum=2 max_ttl_ms=30000"),
        (fresh(&testbed, &["--max-ttl", "1m"]), "max_ttl_ms=30000\n", "max_ttl_ms=60000"),
        (fresh(&testbed, &["--quorum", "3"]), "quorum=2 max_ttl_ms=30000\n", "quorum=3"),
        (fresh(&testbed, &["--key-prefix", "app:"]), "key prefix \"\"\n", "key prefix \"app:\""),
    ];
    for (output, old, new) in cases {
        code(&output, 64);
        let said = stderr(&output);
        let new_line = said.lines().last().unwrap();
        assert!(said.contains("old settings of a, b") && said.contains(old), "{old}: {said}");
        assert!(
            new_line.starts_with("quorlock: new settings: ") && new_line.contains(new),
            "{new}: {said}"
        );
    }
    assert_eq!(get(&testbed.nodes[0], "quorlock:node"), before);
    code(&fresh(&testbed, &["--max-ttl", "1m", "--force"]), 0);
    code(&fresh(&testbed, &["--max-ttl", "1m"]), 0);
}

/// After a flush no lock is found, although its holder still runs.
#[test]
fn init_is_refused_while_a_client_that_takes_locks_is_connected() {
    let Some(testbed) = testbed() else { return };
    code(&fresh(&testbed, &[]), 0);
    let holder = testbed.start(&["run", "billing", "--ttl", "30s", "--", "sleep", "60"]);
    eventually("it is held", || (testbed.holders_of("billing") == 3).then_some(()));
    let watcher = testbed.start(&["status", "billing", "--watch"]);
    eventually("both are connected", || (names(&testbed).len() >= 2).then_some(()));
    testbed.on_all(&["FLUSHALL"]);
    let output = fresh(&testbed, &[]);
    code(&output, 75);
    let said = stderr(&output);
    let refused =
        "nothing was changed: a client that takes locks is connected; stop it, or give --force";
    let process = format!(":{} is connected (to a, b, c)", holder.id());
    assert!(said.contains(refused) && said.contains(&process), "{said}");
    assert!(!said.contains(&format!(":{}", watcher.id())), "a look is no reason: {said}");
    let event = json_lines(&stderr(&fresh(&testbed, &["--json"]))).pop().unwrap();
    let client = &event["clients"][0];
    assert_eq!(client["nodes"], json!(["a", "b", "c"]), "{event}");
    assert!(client["process"].as_str().unwrap().ends_with(&format!(":{}", holder.id())), "{event}");
    assert_eq!(get(&testbed.nodes[0], "quorlock:node"), None, "nothing was written");
    let forced = fresh(&testbed, &["--force"]);
    code(&forced, 0);
    assert!(stderr(&forced).contains("is connected; --force goes on"), "{}", stderr(&forced));
    drop(holder);
    eventually("no client is connected", || {
        let takes_locks = |name: &String| name.starts_with("quorlock:");
        (!names(&testbed).iter().any(takes_locks)).then_some(())
    });
    code(&fresh(&testbed, &[]), 0);
}

/// The names of the connections to the first node.
fn names(testbed: &Testbed) -> Vec<String> {
    let Reply::Bulk(Some(list)) = command(&testbed.nodes[0], &["CLIENT", "LIST"]) else { panic!() };
    let list = String::from_utf8(list).unwrap();
    let names = list.split_whitespace().filter_map(|field| field.strip_prefix("name="));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The reply that lists the connections is longer than a reply that is kept.
#[test]
fn a_client_is_found_among_many_others() {
    let Some(testbed) = testbed() else { return };
    let others: Vec<_> = (0..300)
        .map(|_| {
            let mut other = testbed.nodes[0].connect().unwrap();
            other.command(&["CLIENT", "SETNAME", &"other".repeat(60)]).unwrap();
            other
        })
        .collect();
    let holder = testbed.start(&["run", "k", "--wait", "60s", "--", "sleep", "60"]);
    let is_there = || names(&testbed).iter().any(|name| name.starts_with("quorlock:"));
    eventually("it is connected", || is_there().then_some(()));
    let output = fresh(&testbed, &[]);
    code(&output, 75);
    let process = format!(":{} is connected", holder.id());
    assert!(stderr(&output).contains(&process), "{}", stderr(&output));
    drop((holder, others));
}

#[test]
fn without_the_right_to_list_clients_init_says_that_they_are_not_known() {
    let Some(testbed) = testbed() else { return };
    let rules = ["ACL", "SETUSER", "app", "on", ">x", "+@all", "-client|list", "~*", "&*"];
    testbed.on_all(&rules);
    let mut command = testbed.quorlock(&[FRESH, &["--username", "app"]].concat());
    let output = command.env("QUORLOCK_PASSWORD", "x").output().unwrap();
    code(&output, 0);
    let said = stderr(&output);
    let unknown = "not known whether clients are connected to nodes a, b, c: not allowed: ";
    assert!(said.contains(unknown) && said.contains("+client|list"), "{said}");
}

#[test]
fn a_user_without_the_right_to_scan_needs_force() {
    let Some(testbed) = testbed() else { return };
    testbed.on_all(&["ACL", "SETUSER", "default", "-scan"]);
    let output = fresh(&testbed, &[]);
    code(&output, 77);
    let said = stderr(&output);
    assert!(
        said.contains("the user may not look for locks; give it the rights to SCAN, to SELECT, "),
        "{said}"
    );
    assert!(said.contains("nodes a, b, c: not all keys were looked at: not allowed: "), "{said}");
    code(&fresh(&testbed, &["--force"]), 0);
    // The user can read only keys that match its ACL pattern. Other keys may be locks, so `init` needs `--force`.
    testbed.on_all(&["ACL", "SETUSER", "default", "+scan"]);
    testbed.on_all(&["SET", "app:k", &value(1, "h:1 job")]);
    testbed.on_all(&["SET", "other", "x"]);
    testbed.on_all(&["ACL", "SETUSER", "app", "on", "nopass", "+@all", "~app:*"]);
    let output = fresh(&testbed, &["--key-prefix", "app:", "--username", "app", "--force"]);
    code(&output, 0);
    let said = stderr(&output);
    assert!(said.contains("the user may not look for locks; --force goes on"), "{said}");
    // The user cannot read the key that names the old database either, so `init` without `--force` is refused.
    code(&fresh_in(&testbed, 1, &["--key-prefix", "app:", "--username", "app"]), 77);
}

/// Each case follows the advice in the messages until a lock with the new settings is granted.
#[test]
fn the_advice_for_changed_settings_works_when_it_is_followed() {
    let Some(testbed) = testbed() else { return };
    let follow = |(nodes, database, change): (usize, u32, &[&str]), args: &[&str]| {
        let (args, command) =
            args.split_at(args.iter().position(|it| *it == "--").unwrap_or(args.len()));
        let args = [args, change, command].concat();
        let mut command = quorlock(&testbed, nodes, database, &args);
        command.env("QUORLOCK_TTL", "1s").env("QUORLOCK_MAX_TTL", "1s").output().unwrap()
    };
    let cases: [(usize, u32, &[&str]); 6] = [
        (3, 0, &["--max-ttl", "2s"]),
        (3, 0, &["--quorum", "3"]),
        (2, 0, &[]),
        (3, 0, &["--key-prefix", "app:"]),
        (3, 1, &[]),
        (3, 1, &["--key-prefix", "app:"]),
    ];
    for new in cases {
        code(&follow((3, 0, &[]), &["init", "--fresh", "--yes", "--force"]), 0);
        for first in ["--reconfigure", "--fresh"] {
            let mut args = vec!["init", first, "--yes"];
            let mut steps = 0;
            loop {
                let output = follow(new, &args);
                if output.status.success() {
                    break;
                }
                steps += 1;
                assert!(steps < 3, "{new:?} from {first}: {}", stderr(&output));
                let said = stderr(&output);
                args = if said.contains(": quorlock init --reconfigure --yes ") {
                    vec!["init", "--reconfigure", "--yes"]
                } else if said.contains(": quorlock init --fresh --force --yes ") {
                    vec!["init", "--fresh", "--yes", "--force"]
                } else if said.contains(": quorlock init --fresh --yes ") {
                    vec!["init", "--fresh", "--yes"]
                } else {
                    panic!("{new:?} from {first}: no advice in {said}")
                };
            }
            code(&follow(new, &["run", "k", "--wait", "0s", "--", "true"]), 0);
            code(&follow((3, 0, &[]), &["init", "--fresh", "--yes", "--force"]), 0);
            for key in ["app:quorlock:node", "app:quorlock:database"] {
                testbed.on_all(&["DEL", key]);
            }
        }
    }
}

#[test]
fn a_wrong_password_is_named_as_the_cause() {
    let Some(testbed) = testbed() else { return };
    testbed.on_all(&["ACL", "SETUSER", "app", "on", ">right", "+@all", "~*", "&*"]);
    let with_password = |args: &[&str], password: &str| {
        let mut command = testbed.quorlock(&[args, &["--username", "app"]].concat());
        command.env("QUORLOCK_PASSWORD", password).output().unwrap()
    };
    let output = with_password(FRESH, "wrong");
    code(&output, 77);
    let said = stderr(&output);
    assert!(said.contains("0 of 3 nodes can be used, but 2 must; correct the user, "), "{said}");
    assert!(said.contains("not authenticated: ") && !said.contains("reachable"), "{said}");
    let output = with_password(&["ls"], "wrong");
    code(&output, 77);
    let said = stdout(&output);
    assert!(said.contains("check --username and the password"), "{said}");
    assert!(!said.contains("--acl"), "{said}");
    code(&with_password(FRESH, "right"), 0);
}
