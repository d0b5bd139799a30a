//! `quorlock init --fresh` refuses while locks are in use, and does not change settings unasked.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::process::{Command, Output};

use common::{Running, Testbed, eventually, stderr, stdout};
use quorlock_servers::{Reply, Server, ServerOptions};
use rustix::process::Signal;
use serde_json::{Value, json};

const FRESH: &[&str] = &["init", "--fresh", "--yes"];

fn testbed(test: &str) -> Option<Testbed> {
    Testbed::sized(test, 3, ServerOptions::default())
}

/// Strict, on the first so many nodes, in this database.
fn strict(testbed: &Testbed, nodes: usize, database: u32, args: &[&str]) -> Command {
    let mut command = testbed.quorlock(args);
    let named = ["a", "b", "c"].iter().zip(testbed.nodes.urls()).take(nodes);
    let named = named.map(|(name, url)| format!("{name}={url}?db={database}"));
    command.env("QUORLOCK_NODES", named.collect::<Vec<_>>().join(","));
    command.env("QUORLOCK_RESTART_GUARD", "strict");
    command
}

fn with(args: &[&str], more: &[&str]) -> Vec<String> {
    args.iter().chain(more).map(ToString::to_string).collect()
}

fn fresh(testbed: &Testbed, more: &[&str]) -> Output {
    let args = with(FRESH, more);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    strict(testbed, 3, 0, &args).output().unwrap()
}

fn code(output: &Output, expected: i32) {
    assert_eq!(output.status.code(), Some(expected), "{}{}", stdout(output), stderr(output));
}

fn command(server: &Server, words: &[&str]) {
    let reply = server.command(words).unwrap();
    assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
}

fn marker(server: &Server) -> Reply {
    server.command(&["GET", "quorlock:node"]).unwrap()
}

/// What a client stores.
fn value(token: u8, owner: &str) -> String {
    format!("{} {owner}", format!("{token:02x}").repeat(20))
}

#[test]
fn it_is_refused_while_a_lock_is_held_and_names_lock_and_holder() {
    let name = "it_is_refused_while_a_lock_is_held_and_names_lock_and_holder";
    let Some(testbed) = testbed(name) else { return };
    let output = fresh(&testbed, &[]);
    code(&output, 0);
    assert!(stderr(&output).ends_with("done: 3 nodes vote, and a quorum needs 2\n"));
    let before = marker(&testbed.nodes[0]);
    let hold = ["run", "held", "--label", "nightly", "--", "sleep", "60"];
    let run = Running::start(&mut strict(&testbed, 3, 0, &hold));
    eventually("it is held", || (testbed.holders_of("held") == 3).then_some(()));
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
    let event: Value = serde_json::from_str(stderr(&output).trim()).unwrap();
    assert_eq!(
        (&event["event"], &event["locks"][0]["key"]),
        (&json!("not_initialized"), &json!("held"))
    );
    assert!(event["locks"][0]["left_ms"].as_u64().unwrap() <= 10_000, "{event}");
    assert_eq!(marker(&testbed.nodes[0]), before);

    // The operator may know better.
    let output = fresh(&testbed, &["--force"]);
    code(&output, 0);
    assert!(stderr(&output).contains("a lock is in use; --force goes on"), "{}", stderr(&output));
    run.signal(Signal::TERM);
    run.end();
    code(&fresh(&testbed, &[]), 0);
}

#[test]
fn locks_of_every_kind_count_under_any_prefix_and_on_any_node() {
    let name = "locks_of_every_kind_count_under_any_prefix_and_on_any_node";
    let Some(testbed) = testbed(name) else { return };
    let node = &testbed.nodes[1];
    let in_use = |key: &str| {
        let output = fresh(&testbed, &[]);
        code(&output, 75);
        assert!(
            stderr(&output).contains(&format!("\"{key}\" in database 0 is held by h:1")),
            "{}",
            stderr(&output)
        );
        assert!(stderr(&output).contains("unless extended (on b)"), "{}", stderr(&output));
        command(node, &["DEL", key]);
    };
    command(node, &["SET", "other:prefix:k", &value(1, "h:1 job"), "PX", "100000"]);
    in_use("other:prefix:k");
    let end = u64::try_from(rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec)
        .unwrap()
        + 100;
    let end = (end * 1000).to_string();
    command(node, &["ZADD", "read", &end, &value(2, "h:1 reader")]);
    command(node, &["PEXPIREAT", "read", &end]);
    in_use("read");
    // None of these is a lock that is held.
    command(node, &["SET", "left over", &value(3, "h:1")]);
    command(node, &["SET", "session", "x", "PX", "100000"]);
    command(node, &["SET", "quorlock:intent:k", &value(4, "h:1"), "PX", "100000"]);
    code(&fresh(&testbed, &[]), 0);
}

/// Clients in two databases know nothing of each other.
#[test]
fn locks_in_the_database_that_was_used_so_far_count() {
    let name = "locks_in_the_database_that_was_used_so_far_count";
    let Some(testbed) = testbed(name) else { return };
    code(&fresh(&testbed, &[]), 0);
    let key = ["SET", "held", &value(1, "h:1 job"), "PX", "100000"];
    testbed.nodes.iter().for_each(|node| command(node, &key));
    let other = |more: &[&str]| {
        let args = with(FRESH, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        strict(&testbed, 3, 1, &args).output().unwrap()
    };
    let output = other(&[]);
    code(&output, 75);
    assert!(
        stderr(&output).contains("\"held\" in database 0 is held by h:1 job, "),
        "{}",
        stderr(&output)
    );
    testbed.nodes.iter().for_each(|node| command(node, &["DEL", "held"]));

    // --yes does not answer whether the database is to change.
    let output = other(&[]);
    code(&output, 64);
    let said = stderr(&output);
    assert!(said.contains("old settings, as a, b, c say: database 0\n"), "{said}");
    assert!(said.contains("max_ttl_ms=30000, database 1\n"), "{said}");
    assert!(said.contains("stop all clients with the old ones, then give --force\n"), "{said}");
    code(&other(&["--force"]), 0);

    // Another prefix as well: the registration has the old one.
    testbed.nodes.iter().for_each(|node| command(node, &["FLUSHALL"]));
    code(&fresh(&testbed, &[]), 0);
    testbed.nodes.iter().for_each(|node| command(node, &key));
    let output = other(&["--key-prefix", "app:"]);
    code(&output, 75);
    assert!(stderr(&output).contains("\"held\" in database 0"), "{}", stderr(&output));
    testbed.nodes.iter().for_each(|node| command(node, &["DEL", "held"]));
    let output = other(&["--key-prefix", "app:"]);
    code(&output, 64);
    assert!(stderr(&output).contains("database 1, key prefix \"app:\"\n"), "{}", stderr(&output));
    code(&other(&["--key-prefix", "app:", "--force"]), 0);

    // A lock that was refused has registered the new prefix already.
    testbed.nodes.iter().for_each(|node| command(node, &["FLUSHALL"]));
    code(&fresh(&testbed, &[]), 0);
    testbed.nodes.iter().for_each(|node| command(node, &key));
    let run = ["run", "k", "--key-prefix", "app:", "--wait", "500ms", "--", "true"];
    code(&strict(&testbed, 3, 1, &run).output().unwrap(), 69);
    let registered = testbed.nodes[0].command(&["GET", "app:quorlock:database"]).unwrap();
    assert_eq!(registered, Reply::Bulk(Some(b"1".to_vec())));
    code(&other(&["--key-prefix", "app:"]), 75);
}

#[test]
fn other_nodes_max_ttl_or_prefix_need_more_than_yes() {
    let name = "other_nodes_max_ttl_or_prefix_need_more_than_yes";
    let Some(testbed) = testbed(name) else { return };
    code(&fresh(&testbed, &[]), 0);
    let before = marker(&testbed.nodes[0]);
    let two = strict(&testbed, 2, 0, FRESH).output().unwrap();
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
        assert!(said.contains("old settings, as a, b") && said.contains(old), "{old}: {said}");
        assert!(
            new_line.starts_with("quorlock: new settings: ") && new_line.contains(new),
            "{new}: {said}"
        );
    }
    assert_eq!(marker(&testbed.nodes[0]), before);
    code(&fresh(&testbed, &["--max-ttl", "1m", "--force"]), 0);
    code(&fresh(&testbed, &["--max-ttl", "1m"]), 0);
}

#[test]
fn who_may_not_look_for_locks_is_told_so() {
    let Some(testbed) = testbed("who_may_not_look_for_locks_is_told_so") else { return };
    let every = |words: &[&str]| testbed.nodes.iter().for_each(|node| command(node, words));
    every(&["ACL", "SETUSER", "default", "-scan"]);
    let output = fresh(&testbed, &[]);
    code(&output, 77);
    let said = stderr(&output);
    assert!(said.contains("the user may not look for locks; give it the right to SCAN"), "{said}");
    assert!(said.contains("nodes a, b, c: not all keys were looked at: not allowed: "), "{said}");
    code(&fresh(&testbed, &["--force"]), 0);
    // Others' keys cannot be read, so they may be locks.
    every(&["ACL", "SETUSER", "default", "+scan"]);
    every(&["SET", "app:k", &value(1, "h:1 job")]);
    every(&["SET", "other", "x"]);
    every(&["ACL", "SETUSER", "app", "on", "nopass", "+@all", "~app:*"]);
    let app = |more: &[&str]| {
        fresh(&testbed, &[&["--key-prefix", "app:", "--username", "app", "--force"], more].concat())
    };
    let output = app(&[]);
    code(&output, 0);
    assert!(
        stderr(&output).contains("the user may not look for locks; --force goes on"),
        "{}",
        stderr(&output)
    );
    // Neither can the registration that says where others' locks are.
    let args = with(FRESH, &["--key-prefix", "app:", "--username", "app"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    code(&strict(&testbed, 3, 1, &args).output().unwrap(), 77);
}

/// Changed settings, each by the way that the program advises, until a lock is held with the new ones.
#[test]
fn the_advice_for_changed_settings_works_when_it_is_followed() {
    let name = "the_advice_for_changed_settings_works_when_it_is_followed";
    let Some(testbed) = testbed(name) else { return };
    let quorlock = |(nodes, database, change): (usize, u32, &[&str]), args: &[&str]| {
        let (args, command) =
            args.split_at(args.iter().position(|it| *it == "--").unwrap_or(args.len()));
        let args = [args, change, command].concat();
        let mut command = strict(&testbed, nodes, database, &args);
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
        code(&quorlock((3, 0, &[]), &["init", "--fresh", "--yes", "--force"]), 0);
        for first in ["--reconfigure", "--fresh"] {
            let mut args = vec!["init", first, "--yes"];
            let mut steps = 0;
            loop {
                let output = quorlock(new, &args);
                if output.status.success() {
                    break;
                }
                steps += 1;
                assert!(steps < 3, "{new:?} from {first}: {}", stderr(&output));
                let said = stderr(&output);
                args = if said.contains("quorlock init --reconfigure changes them safely") {
                    vec!["init", "--reconfigure", "--yes"]
                } else if said.contains("stop all clients with the old ones, then give --force") {
                    vec!["init", "--fresh", "--yes", "--force"]
                } else if said.contains("if no lock is in use, run quorlock init --fresh") {
                    vec!["init", "--fresh", "--yes"]
                } else {
                    panic!("{new:?} from {first}: no advice in {said}")
                };
            }
            code(&quorlock(new, &["run", "k", "--wait", "0s", "--", "true"]), 0);
            code(&quorlock((3, 0, &[]), &["init", "--fresh", "--yes", "--force"]), 0);
            for key in ["app:quorlock:node", "app:quorlock:database"] {
                testbed.nodes.iter().for_each(|node| command(node, &["DEL", key]));
            }
        }
    }
}

#[test]
fn a_wrong_password_is_called_so() {
    let Some(testbed) = testbed("a_wrong_password_is_called_so") else { return };
    for node in testbed.nodes.iter() {
        command(node, &["ACL", "SETUSER", "app", "on", ">right", "+@all", "~*", "&*"]);
    }
    let with_password = |args: &[&str], password: &str| {
        let mut command = strict(&testbed, 3, 0, &[args, &["--username", "app"]].concat());
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
    assert!(
        said.contains("check --username and the password") && !said.contains("--acl"),
        "{said}"
    );
    code(&with_password(FRESH, "right"), 0);
}
