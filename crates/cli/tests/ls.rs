//! `quorlock ls` on three real servers.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::hostile::{hostile, page};
use common::{Testbed, calls, code, command, eventually, server, stderr, stdout, value};
use quorlock_servers::{Nodes, Reply, Server, ServerOptions};
use serde_json::{Value, json};

fn ls(testbed: &Testbed, args: &[&str]) -> Output {
    testbed.output(&[&["ls"], args].concat())
}

fn listed(testbed: &Testbed, args: &[&str]) -> Value {
    let output = ls(testbed, &[&["--json"], args].concat());
    code(&output, 0);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn keys(found: &Value) -> Vec<&str> {
    found["locks"].as_array().unwrap().iter().map(|lock| lock["key"].as_str().unwrap()).collect()
}

/// Keys that resemble locks, but are not locks.
const FOREIGN: &str = "
    for n = 1, 20000 do redis.call('SET', 'foreign:' .. n, 'some value ' .. n) end
    local token = string.rep('0a', 20)
    redis.call('SET', 'days', token, 'PX', 172800000)
    redis.call('SET', 'upper', string.rep('0A', 20), 'PX', 10000000)
    redis.call('SET', 'more', token .. 'b', 'PX', 10000000)
    redis.call('SET', 'endless', token .. ' ' .. string.rep('x', 700), 'PX', 10000000)
    redis.call('SET', 'quorlock:intent:k', token, 'PX', 10000000)
    redis.call('SET', 'binary\\255', token, 'PX', 10000000)
    redis.call('HSET', 'hash', token, token)
    redis.call('RPUSH', 'list', token)
    redis.call('ZADD', 'board', 1, 'alice', 2, 'bob')
    redis.call('ZADD', 'ended', 1, token)
    redis.call('PEXPIRE', 'ended', 10000000)";

#[test]
fn fifty_locks_of_every_kind_are_listed_among_many_other_keys() {
    let Some(testbed) = Testbed::sized(3) else { return };
    testbed.on_all(&["EVAL", FOREIGN, "0"]);
    assert_eq!(stdout(&ls(&testbed, &[])), "no locks\n");
    let mut expected: Vec<String> = (0..46).map(|n| format!("lock:{n:02}")).collect();
    for (n, key) in expected.iter().enumerate() {
        let value = value(u8::try_from(n).unwrap(), "host:1 job");
        testbed.on_all(&["SET", key, &value, "PX", "10000000"]);
    }
    let hold = |args: &[&str]| {
        let command = ["--ttl", "30s", "--", "sleep", "60"];
        testbed.start(&[&["run"], args, &command].concat())
    };
    let _held = [
        hold(&["fenced", "--fenced"]),
        hold(&["one", "--also", "two"]),
        hold(&["read", "--shared"]),
        hold(&["read", "--shared"]),
    ];
    for key in ["fenced", "one", "two", "read"] {
        eventually("every lock is held", || (testbed.holders_of(key) == 3).then_some(()));
        expected.push(key.to_owned());
    }
    let readers = || command(&testbed.nodes[0], &["ZCARD", "read"]) == Reply::Int(2);
    eventually("both read", || readers().then_some(()));
    expected.push("read".to_owned());
    expected.sort_unstable();
    let slow = "slowlog-log-slower-than";
    testbed.on_all(&["CONFIG", "SET", slow, "1000"]);
    testbed.on_all(&["CONFIG", "RESETSTAT"]);

    let found = listed(&testbed, &[]);
    assert_eq!(
        (keys(&found), found["complete"].clone()),
        (expected.iter().map(|key| &**key).collect(), json!(true))
    );
    for lock in found["locks"].as_array().unwrap() {
        let key = lock["key"].as_str().unwrap();
        assert_eq!(lock["nodes"], json!(["a", "b", "c"]), "{lock}");
        assert_eq!(lock["below_quorum"], false, "{lock}");
        assert_eq!(lock["kind"], if key == "read" { "shared" } else { "exclusive" }, "{lock}");
        assert_eq!(lock["fencing_token"].is_u64(), key == "fenced", "{lock}");
        assert_eq!(lock["since_unix_ms"].is_u64(), !key.starts_with("lock:"), "{lock}");
        let is_job = key.starts_with("lock:");
        let holder = lock["holder"].as_str().unwrap();
        assert!(if is_job { holder == "host:1 job" } else { holder.ends_with(" sleep") }, "{lock}");
        let left = lock["left_ms"].as_u64().unwrap();
        assert!(left <= if is_job { 10_000_000 } else { 30_000 } && left > 10_000, "{lock}");
    }
    for node in testbed.nodes.iter() {
        let Reply::Int(all) = command(node, &["DBSIZE"]) else { panic!() };
        // `SCAN` calls must use small pages: a larger page would block the server for longer. After a page that took 10 ms,
        // which happens on a busy machine, pages have up to 1000 keys.
        let (all, scans) = (u64::try_from(all).unwrap(), calls(node, "scan"));
        assert!((2 * all / 1000..30 * all / 1000).contains(&scans), "{scans} for {all} keys");
        assert_eq!(calls(node, "keys"), 0);
        // Each key is read once, and only the few keys that may be locks are read a second time.
        assert!(calls(node, "getrange") < all + 300, "{}", calls(node, "getrange"));
    }

    let table = stdout(&ls(&testbed, &["fenced"]));
    let [head, line] = table.lines().collect::<Vec<_>>()[..] else { panic!("{table}") };
    assert!(head.starts_with("KEY     KIND       HOLDER"), "{table}");
    assert!(line.starts_with("fenced  exclusive  ") && line.contains(" sleep  3 of 3"), "{table}");
    let found = |args: &[&str]| keys(&listed(&testbed, args)).join(" ");
    assert_eq!(found(&["t?o"]), "two");
    assert_eq!(found(&["[or]*e*"]), "one read read");
    assert_eq!(found(&["--holder", " sleep"]), "fenced one read read two");
    assert_eq!(found(&["nothing*"]), "");
    assert_eq!(stdout(&ls(&testbed, &["-q", "*e*"])), "fenced\none\nread\n");
    assert_eq!(ls(&testbed, &[""]).status.code(), Some(64));
}

/// Nodes that have lost their data list no locks, although a lock may be held.
#[test]
fn nodes_that_may_have_forgotten_locks_do_not_show_that_there_are_none() {
    let Some(mut testbed) = Testbed::sized(3) else { return };
    testbed.guard = "strict";
    code(&ls(&testbed, &[]), 69);
    code(&testbed.output(&["init", "--fresh", "--yes"]), 0);
    assert_eq!(stdout(&ls(&testbed, &[])), "no locks\n");
    let held = testbed.start(&["run", "billing", "--ttl", "30s", "--", "sleep", "60"]);
    eventually("it is held", || (testbed.holders_of("billing") == 3).then_some(()));
    // A minority that has forgotten changes nothing.
    testbed.on(2..3, &["FLUSHALL"]);
    let found = listed(&testbed, &[]);
    assert_eq!((keys(&found), &found["complete"]), (vec!["billing"], &json!(true)));
    let forgotten = |node: &Value| node["incomplete"].as_str().unwrap_or_default().to_owned();
    let why = "it may have forgotten locks: quarantined: ";
    assert!(forgotten(&found["nodes"][2]).starts_with(why), "{found}");

    testbed.on_all(&["FLUSHALL"]);
    let output = ls(&testbed, &[]);
    code(&output, 69);
    let (table, said) = (stdout(&output), stderr(&output));
    assert!(table.starts_with("node") && table.contains(why), "{table}");
    let counted = "the answers of 0 of 3 nodes count, but 2 are needed; nodes a, b, c may have";
    assert!(said.contains(counted), "{said}");
    let output = ls(&testbed, &["--json"]);
    code(&output, 69);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["complete"], keys(&found).len()), (&json!(false), 0));
    code(&ls(&testbed, &["--quiet"]), 69);
    drop(held);
}

/// The names have 4 kB, so a page of a hundred keys exceeds the largest reply that the client accepts.
#[test]
fn pages_become_smaller_where_names_are_long() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let long = "for n = 1, 500 do redis.call('SET', string.rep('long', 1000) .. n, n) end";
    testbed.on_all(&["EVAL", long, "0"]);
    let key = "k".repeat(4096);
    testbed.on_all(&["SET", &key, &value(1, "h:1"), "PX", "100000"]);
    assert_eq!(keys(&listed(&testbed, &[])), [key]);
}

#[test]
fn the_pattern_matches_names_without_their_prefix() {
    let Some(testbed) = Testbed::sized(3) else { return };
    for key in ["a*[:x", "a*[:y", "abc[:x", "a*:x"] {
        testbed.on_all(&["SET", key, &value(1, "h:1"), "PX", "100000"]);
    }
    let found = |args: &[&str]| {
        keys(&listed(&testbed, &[&["--key-prefix", "a*[:"], args].concat())).join(" ")
    };
    assert_eq!(found(&[]), "x y");
    assert_eq!(found(&["[x"]), "x");
    assert_eq!(found(&["[^x]"]), "y");
}

#[test]
fn a_lock_below_the_quorum_is_marked_and_can_be_listed_alone() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let [a, b, c] = &testbed.nodes[..] else { panic!("three") };
    let set = |node, key: &str, token| {
        command(node, &["SET", key, &value(token, "h:1"), "PX", "100000"]);
    };
    testbed.on_all(&["SET", "held", &value(1, "h:1"), "PX", "100000"]);
    set(a, "lost", 2);
    set(a, "split", 3);
    set(b, "split", 4);
    set(a, "most", 5);
    set(b, "most", 5);
    set(c, "most", 6);
    command(b, &["SET", "left over", &value(7, "")]);
    let table = stdout(&ls(&testbed, &["--stale"]));
    let marked: Vec<&str> = table.lines().filter(|line| line.ends_with("below quorum")).collect();
    let names = marked.iter().map(|line| line.split("  ").next().unwrap());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["left over", "lost", "most", "split", "split"],
        "{table}"
    );
    assert!(table.contains("a client without a name  1 of 3  never ends"), "{table}");
    assert_eq!(table.lines().count(), 6, "{table}");
    let found = listed(&testbed, &["most"]);
    let nodes = |place: usize| found["locks"][place]["nodes"].clone();
    assert_eq!((nodes(0), nodes(1)), (json!(["a", "b"]), json!(["c"])));
}

/// An intent, by which a waiting writer keeps new readers out, is not a lock. Without an expiry it keeps them out for
/// ever.
#[test]
fn an_intent_without_expiry_is_listed() {
    let Some(testbed) = Testbed::sized(3) else { return };
    testbed.on_all(&["SET", "p:quorlock:intent:waits", &value(1, "h:1"), "PX", "100000"]);
    testbed.on(1..2, &["SET", "p:quorlock:intent:left", &value(2, "h:2 job")]);
    let found = listed(&testbed, &["--key-prefix", "p:"]);
    assert_eq!(keys(&found), ["left"], "{found}");
    let lock = &found["locks"][0];
    assert_eq!((&lock["kind"], &lock["left_ms"]), (&json!("intent"), &Value::Null), "{lock}");
    assert_eq!(lock["nodes"], json!(["b"]), "{lock}");
    let table = stdout(&ls(&testbed, &["--key-prefix", "p:"]));
    assert!(table.contains("left  intent  h:2 job  1 of 3  never ends"), "{table}");
    let named = listed(&testbed, &["--key-prefix", "p:", "l*"]);
    assert!(keys(&named).is_empty(), "a pattern lists locks only");
}

#[test]
fn with_too_few_readable_nodes_ls_does_not_report_an_empty_list() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let [a, b, c] = &testbed.nodes[..] else { panic!("three") };
    command(a, &["SET", "k", &value(1, "h:1"), "PX", "100000"]);
    let forbid = |node| command(node, &["ACL", "SETUSER", "default", "-scan"]);
    forbid(c);
    let output = ls(&testbed, &[]);
    code(&output, 0);
    let text = stdout(&output);
    assert!(text.contains("\nnode c: not all keys were looked at: not allowed: "), "{text}");
    assert!(text.contains("'scan'") && text.contains("--acl USER"), "{text}");
    // `ls` cannot read node c, which may have the second vote. So `ls` must not mark the lock as below quorum.
    assert!(!text.contains("below quorum"), "{text}");

    forbid(b);
    let output = ls(&testbed, &["x"]);
    assert_eq!(output.status.code(), Some(77), "{}", stdout(&output));
    assert!(!stdout(&output).contains("no locks"), "{}", stdout(&output));
    let said = "locks may be missing: the answers of 1 of 3 nodes count, but 2 are needed";
    assert!(stderr(&output).contains(said), "{}", stderr(&output));
    let output = ls(&testbed, &["--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((found["complete"].clone(), keys(&found)), (json!(false), vec!["k"]));
    assert!(
        found["nodes"][1]["incomplete"].is_string() && found["nodes"][0]["incomplete"].is_null()
    );

    b.kill().unwrap();
    command(c, &["ACL", "SETUSER", "default", "+scan"]);
    assert_eq!(ls(&testbed, &[]).status.code(), Some(0));
    c.kill().unwrap();
    assert_eq!(ls(&testbed, &[]).status.code(), Some(69));
}

/// The scans reach the key on each node at a different time, so the lock may first seem to be below the quorum.
#[test]
fn a_lock_that_is_acquired_during_the_scan_is_not_marked() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let [a, b, c] = &testbed.nodes[..] else { panic!("three") };
    let value = value(1, "h:1");
    let set = |node| command(node, &["SET", "k", &value, "PX", "100000"]);
    set(c);
    c.pause().unwrap();
    let args = ["ls", "--connect-timeout", "30s"];
    let scanning = testbed.start(&args);
    let is_scanned = |node: &Server| calls(node, "scan") >= 2;
    eventually("two nodes are scanned", || (is_scanned(a) && is_scanned(b)).then_some(()));
    set(a);
    set(b);
    c.resume().unwrap();
    let text = stdout(&scanning.end());
    assert!(text.contains("  3 of 3  ") && !text.contains("below quorum"), "{text}");
}

/// The nodes of the list are those of the testbed, except for the given ones: `SCAN` there is answered in these ways.
fn with_scans(testbed: &Testbed, ways: &[fn(usize) -> Vec<u8>]) -> String {
    let named = testbed.named(0..testbed.nodes.len() - ways.len());
    let behind = testbed.nodes.iter().rev().zip(ways).zip(["x", "y"]);
    let hostile = behind.map(|((server, way), name)| {
        let (way, pages) = (*way, AtomicUsize::new(1));
        let url = hostile(server, move |words| {
            (words[0] == "SCAN").then(|| way(pages.fetch_add(1, Ordering::Relaxed)))
        });
        format!("{name}={url}")
    });
    [named].into_iter().chain(hostile).collect::<Vec<_>>().join(",")
}

#[test]
fn ls_ends_although_the_scan_of_a_node_never_does() {
    let Some(testbed) = Testbed::sized(5) else { return };
    let value = value(1, "h:1");
    testbed.on(0..3, &["SET", "k", &value, "PX", "1000000"]);
    let new_keys = |n: usize| {
        let keys: Vec<String> = (0..100).map(|key| format!("{n}:{key}")).collect();
        page(&n.to_string(), &keys)
    };
    let silent = |_: usize| Vec::new();
    let look = |testbed: &Testbed, nodes: &str, expected| {
        let mut command = testbed.quorlock(&["ls", "--json", "--connect-timeout", "2s"]);
        let output = command.env("QUORLOCK_NODES", nodes).output().unwrap();
        code(&output, expected);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let found = look(&testbed, &with_scans(&testbed, &[new_keys, silent]), 0);
    assert_eq!((found["complete"].clone(), keys(&found)), (json!(true), vec!["k"]));
    let reasons: Vec<&str> = found["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| it["incomplete"].as_str())
        .collect();
    let [endless, silent] = reasons[..] else { panic!("{found}") };
    assert!(endless.contains("its SCAN does not end"), "{endless}");
    assert!(silent.contains("no answer in time"), "{silent}");

    // Two of three: `ls` reports that locks may be missing, and the locks that it has found.
    let nodes = Nodes::start(&server().unwrap(), 3, ServerOptions::default()).unwrap();
    let testbed = Testbed::of(nodes);
    testbed.on(0..1, &["SET", "k", &value, "PX", "1000000"]);
    let same = |_: usize| page("17", &[]);
    let same_key = |_: usize| page("17", &["k".to_owned()]);
    let found = look(&testbed, &with_scans(&testbed, &[same, same_key]), 69);
    assert_eq!((found["complete"].clone(), keys(&found)), (json!(false), vec!["k"]));
}
