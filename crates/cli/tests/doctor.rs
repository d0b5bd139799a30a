//! `quorlock doctor` on healthy servers and on misconfigured servers.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::process::Command;

use common::{Testbed, code, command, eventually, get, info, server, stderr, stdout};
use quorlock_servers::{Listen, Nodes, Reply, Server, ServerOptions, find_all};
use serde_json::Value;

/// For each node, the severity and the `check` of each of its warnings and errors, in order.
fn found(examined: &Value) -> Vec<Vec<String>> {
    let checks = |node: &Value| {
        let findings = node["findings"].as_array().unwrap().iter();
        for finding in findings.clone() {
            assert!(finding["why"].as_str().unwrap().len() > 10, "{finding}");
            assert!(finding["fix"].as_str().unwrap().len() > 10, "{finding}");
        }
        let bad = findings.filter(|finding| finding["severity"] != "note");
        bad.map(|finding| {
            let [severity, check] = ["severity", "check"].map(|it| finding[it].as_str().unwrap());
            format!("{severity} {check}")
        })
        .collect()
    };
    examined["nodes"].as_array().unwrap().iter().map(checks).collect()
}

fn examine(testbed: &Testbed, args: &[&str]) -> (Value, i32) {
    let output = testbed.output(&[&["doctor", "--json"], args].concat());
    let examined = serde_json::from_slice(&output.stdout);
    (examined.unwrap_or_else(|_| panic!("{}", stderr(&output))), output.status.code().unwrap())
}

fn what(examined: &Value, node: usize, check: &str) -> String {
    let findings = examined["nodes"][node]["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["check"] == check);
    finding.unwrap_or_else(|| panic!("no {check} in {findings:?}"))["what"].as_str().unwrap().into()
}

const FRESH: &[&str] = &["init", "--fresh", "--yes", "--quiet"];

#[test]
fn five_healthy_servers_are_five_lines() {
    let Some(testbed) = Testbed::new() else { return };
    let doctor = |expected| {
        let output = testbed.output(&["doctor", "--restart-guard", "strict"]);
        code(&output, expected);
        stdout(&output)
    };
    // Servers that were never used do not vote, so the doctor reports an error.
    let text = doctor(2);
    let warned = |text: &str| text.lines().filter(|line| line.starts_with("warning  ")).count();
    assert_eq!((warned(&text), text.matches("never been used").count()), (5, 5), "{text}");
    let last = text.lines().last().unwrap();
    assert!(
        last.starts_with(
            "error    0 of 5 nodes vote, but 3 must vote: no lock can be granted until a client has waited 33 s once"
        ) && last.contains("quorlock init --fresh"),
        "{text}"
    );
    let (examined, _) = examine(&testbed, &[]);
    assert_eq!(examined["nodes"][0]["votes"], "count_after_use");
    assert_eq!(
        (&examined["together"]["check"], &examined["worst"]),
        (&"quorum".into(), &"error".into())
    );

    assert!(testbed.quorlock(FRESH).status().unwrap().success());
    let text = doctor(0);
    assert_eq!(text.lines().count(), 7, "{text}");
    assert!(text.starts_with("config   no file\n         NODE  SERVER"), "{text}");
    assert!(text.lines().all(|line| line.len() < 100), "{text}");
    assert!(text.lines().skip(2).all(|line| line.starts_with("ok  ")), "{text}");
    let (examined, _) = examine(&testbed, &[]);
    assert_eq!(
        (&examined["together"], &examined["nodes"][0]["votes"]),
        (&Value::Null, &"count".into())
    );
    // The marker, which shows that no data was lost, and the registration of the database are the only keys. The doctor
    // has removed its trial keys.
    for node in testbed.nodes.iter() {
        assert_eq!(command(node, &["DBSIZE"]), Reply::Int(2));
    }
}

#[test]
fn replicas_evicting_and_silent_servers_are_named() {
    let Some(testbed) = Testbed::new() else { return };
    let [a, b, c, d, e] = &testbed.nodes[..] else { panic!("five") };
    command(a, &["REPLICAOF", "127.0.0.1", "1"]);
    command(b, &["REPLICAOF", "127.0.0.1", "1"]);
    command(b, &["REPLICAOF", "NO", "ONE"]);
    command(c, &["CONFIG", "SET", "maxmemory", "100mb"]);
    command(c, &["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    command(d, &["MSET", "x", "1", "y", "1"]);
    command(d, &["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    command(d, &["CONFIG", "SET", "maxmemory", "1"]);
    // Even without keys the server exceeds the memory limit. So it evicts its keys, and also refuses this write.
    let _ = d.command(&["SET", "z", "1"]);
    command(d, &["CONFIG", "SET", "maxmemory", "0"]);
    e.pause().unwrap();
    let (examined, exit) = examine(&testbed, &["--connect-timeout", "300ms"]);
    let found = found(&examined);
    assert!(found[0].contains(&"error role".to_owned()), "{found:?}");
    assert_eq!(found[1], ["warning promoted"]);
    // The first advice for a replica is to list its master instead, because few users want to end the replication.
    let role = &examined["nodes"][0]["findings"];
    let role = role.as_array().unwrap().iter().find(|finding| finding["check"] == "role").unwrap();
    assert!(role["fix"].as_str().unwrap().starts_with("list its master 127.0.0.1:1 "), "{role}");
    assert_eq!(found[2], ["error eviction"]);
    assert_eq!(found[3], ["warning unused", "warning evicted"]);
    assert_eq!(found[4], ["error reach"]);
    assert_eq!(exit, 2);
    let text = stdout(&testbed.output(&["doctor", "--connect-timeout", "300ms"]));
    assert!(text.contains("fix  redis-cli -s "), "{text}");
    assert!(text.contains("maxmemory-policy noeviction"), "{text}");

    // `init` fails: it writes no marker to these misconfigured nodes.
    let refused = testbed.output(FRESH);
    code(&refused, 69);
    let said = stderr(&refused);
    assert!(said.contains("node a: it is a replica"), "{said}");
    assert!(said.contains("node c: it deletes"), "{said}");
    assert_eq!(b.command(&["EXISTS", "quorlock:node"]).unwrap(), Reply::Int(0));
}

#[test]
fn behind_sentinel_the_address_and_the_remedies_are_those_of_the_master() {
    let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
    let Some(testbed) = Testbed::with(1, options.clone()) else { return };
    let options = ServerOptions { args: vec!["--sentinel".to_owned()], ..options };
    let sentinel = Server::start(testbed.nodes[0].binary(), options).unwrap();
    let (master, watcher) = (testbed.nodes[0].address(), sentinel.address());
    let (host, port) = master.rsplit_once(':').unwrap();
    command(&sentinel, &["SENTINEL", "MONITOR", "locks", host, port, "1"]);
    let url = format!("redis+sentinel://{watcher}/locks?replicas=1");
    let at = ["-n", &url, "--restart-guard", "strict"];
    let (examined, exit) = examine(&testbed, &at);
    assert_eq!((&examined["nodes"][0]["address"], exit), (&master.clone().into(), 2));
    assert_eq!(what(&examined, 0, "replicas"), "it has 0 of 1 replicas");
    assert!(examined.to_string().contains(&format!("-h {host} -p {port} INFO")), "{examined}");
    let text = stdout(&testbed.output(&["doctor", at[0], at[1], at[2], at[3]]));
    assert!(text.contains(&format!("error    locks ({master})")), "{text}");
    let (examined, _) =
        examine(&testbed, &[at[0], &format!("{url}&sentinel=127.0.0.1:1"), at[2], at[3]]);
    assert!(what(&examined, 0, "sentinel").contains("Sentinel 127.0.0.1:1: "), "{examined}");
    assert_eq!(found(&examined)[0], ["error replicas", "warning sentinel"]);
    // No replica exists that could acknowledge a write. `status` only reads, so it still gets an answer.
    let status = testbed.output(&["status", "k", at[0], at[1], at[2], at[3]]);
    assert!(stdout(&status).starts_with("k: UNKNOWN"), "{}", stderr(&status));
    let at = [at[0], &url.replace("/locks", "/lock"), at[2], at[3]];
    let (examined, _) = examine(&testbed, &at);
    assert!(what(&examined, 0, "reach").contains("it knows no master"), "{examined}");
    let (host, port) = watcher.rsplit_once(':').unwrap();
    let remedy = format!("redis-cli -h {host} -p {port} SENTINEL MASTERS");
    assert!(examined.to_string().contains(&remedy), "{examined}");
    let (examined, _) = examine(&testbed, &["-n", &sentinel.url()]);
    let url = format!("this is a Sentinel; use redis+sentinel://{watcher}/NAME?replicas=1");
    assert!(what(&examined, 0, "reach").contains(&url), "{examined}");
    assert!(examined.to_string().contains(&remedy), "{examined}");
}

#[test]
fn the_exit_code_reports_warnings() {
    let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
    let Some(testbed) = Testbed::with(5, options) else { return };
    assert!(testbed.quorlock(FRESH).status().unwrap().success());
    let master = testbed.nodes[0].address();
    let port = master.rsplit(':').next().unwrap();
    // This server is a replica of the first node, and not itself a node. The doctor must warn about it.
    let replica = Nodes::start(testbed.nodes[0].binary(), 1, ServerOptions::default()).unwrap();
    command(&replica[0], &["REPLICAOF", "127.0.0.1", port]);
    eventually("the replica is attached", || {
        info(&testbed.nodes[0], "replication", "connected_slaves:").filter(|count| count == "1")
    });
    let (examined, exit) = examine(&testbed, &[]);
    assert_eq!(found(&examined)[0], ["warning replicas"]);
    assert_eq!((exit, &examined["worst"]), (1, &"warning".into()));
}

#[test]
fn one_server_under_two_names_and_a_dead_one() {
    let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
    let Some(testbed) = Testbed::with(5, options) else { return };
    let url = testbed.nodes[0].url();
    let duplicate = format!("twin={}", url.replace("127.0.0.1", "localhost"));
    let dead = format!("dead={}", testbed.nodes[1].url());
    testbed.nodes[1].kill().unwrap();
    let nodes = ["-n", &format!("one={url}"), "-n", &duplicate, "-n", &dead];
    let (examined, exit) = examine(&testbed, &nodes);
    assert_eq!(found(&examined)[..2], [["error same_server"], ["error same_server"]]);
    assert!(what(&examined, 0, "same_server").contains("node twin (localhost:"));
    assert_eq!((found(&examined)[2].clone(), exit), (vec!["error reach".to_owned()], 2));
}

#[test]
fn different_settings_and_damaged_markers_are_named() {
    let Some(testbed) = Testbed::new() else { return };
    assert!(testbed.quorlock(FRESH).status().unwrap().success());
    let (examined, exit) = examine(&testbed, &["--quorum", "4"]);
    assert_eq!((found(&examined)[0].clone(), exit), (vec!["error configuration".to_owned()], 2));
    let both = what(&examined, 0, "configuration");
    assert!(both.contains("quorum=3 ") && both.contains("quorum=4 "), "{both}");

    // Node a lost its data, and b and c have keys of other programs. The marker of d contains the node's floor, its
    // smallest fencing token, which is far ahead of the clocks.
    let [a, b, c, d, _] = &testbed.nodes[..] else { panic!("five") };
    command(a, &["FLUSHALL"]);
    command(b, &["SET", "quorlock:node", "mine"]);
    command(c, &["DEL", "quorlock:node"]);
    command(c, &["LPUSH", "quorlock:node", "x"]);
    let marker = get(d, "quorlock:node").unwrap();
    let (rest, floor) = marker.rsplit_once('=').unwrap();
    let day = 86_400_000_000_u64;
    let ahead = format!("{rest}={}", floor.parse::<u64>().unwrap() + day);
    command(d, &["SET", "quorlock:node", &ahead]);
    let (examined, exit) = examine(&testbed, &[]);
    let found = found(&examined);
    assert_eq!(
        found[..4],
        [["warning marker"], ["error marker"], ["error marker"], ["warning floor"]]
    );
    assert_eq!((found[4].len(), exit), (0, 2));
    // Fencing tokens continue from the floor of node d.
    assert!(testbed.quorlock(&[FRESH, &["--force"]].concat()).status().unwrap().success());
    let marker = get(c, "quorlock:node").unwrap();
    assert!(marker.ends_with(ahead.rsplit_once('=').unwrap().1), "{marker}");
}

#[test]
fn a_restarted_server_with_its_data_waits_before_it_votes() {
    let args = ["--appendonly", "yes", "--appendfsync", "always"].map(String::from).to_vec();
    let Some(testbed) = Testbed::with(5, ServerOptions { args, ..ServerOptions::default() }) else {
        return;
    };
    assert!(testbed.quorlock(FRESH).status().unwrap().success());
    testbed.nodes[2].restart().unwrap();
    let (examined, exit) = examine(&testbed, &[]);
    assert_eq!((found(&examined)[2].clone(), exit), (vec!["warning restarted".to_owned()], 1));
    assert_eq!(examined["nodes"][2]["votes"], "count_in");
    assert_eq!(examined["nodes"][1]["votes"], "count");
    // Three of five nodes have restarted now. None of them votes at first, so no lock can be granted.
    testbed.nodes[0].restart().unwrap();
    testbed.nodes[1].restart().unwrap();
    let (examined, exit) = examine(&testbed, &["--restart-guard", "strict"]);
    assert_eq!((found(&examined)[0].clone(), exit), (vec!["warning restarted".to_owned()], 2));
    let said = examined["together"]["what"].as_str().unwrap();
    assert!(
        said.starts_with("2 of 5 nodes vote, but 3 must vote: no lock can be granted for about 3"),
        "{said}"
    );
}

/// Lets the doctor examine this server as the only node.
fn only(testbed: &Testbed, server: &Server, args: &[&str]) -> (Value, i32) {
    let url = server.url();
    // This result is ignored: `init` fails on a server that must not vote, and such servers are examined too.
    let _ = testbed.output(&[FRESH, &["-n", &url]].concat());
    examine(testbed, &[&["-n", &url], args].concat())
}

#[test]
fn cluster_mode_resp2_and_debug_commands_are_named() {
    let Some(binary) = server() else { return };
    let one = |args: &[&str]| {
        let args = args.iter().map(ToString::to_string).collect();
        let options = ServerOptions { args, ..ServerOptions::default() };
        let server = Server::start(&binary, options).unwrap();
        let testbed = Testbed::of(Nodes::start(&binary, 0, ServerOptions::default()).unwrap());
        only(&testbed, &server, &[])
    };
    let (cluster, exit) = one(&["--cluster-enabled", "yes"]);
    assert!(found(&cluster)[0].contains(&"error cluster".to_owned()), "{cluster}");
    assert_eq!(exit, 2);
    let (old, exit) = one(&["--rename-command", "HELLO", ""]);
    assert_eq!((found(&old)[0].clone(), exit), (vec!["warning resp2".to_owned()], 1));
    // Servers before 7.0 do not have `enable-debug-command`.
    if binary.version.major >= 7 {
        let (debug, exit) = one(&["--enable-debug-command", "yes"]);
        assert_eq!((found(&debug)[0].clone(), exit), (vec!["warning debug".to_owned()], 1));
    }
}

/// With each installed server version, the rights of `doctor --acl` must suffice. The doctor must name a missing right.
#[test]
fn the_printed_rights_are_the_rights_that_quorlock_needs() {
    let Some(_) = server() else { return };
    for binary in find_all(None).unwrap() {
        let nodes = Nodes::start(&binary, 3, ServerOptions::default()).unwrap();
        let testbed = Testbed::of(nodes);
        let prefix = ["--key-prefix", "locks:"];
        let acl = testbed.output(&[&["doctor", "--acl", "app"], &prefix[..]].concat());
        code(&acl, 0);
        let said = stderr(&acl);
        assert!(said.contains("ACL SAVE"), "{said}");
        assert!(said.contains("arguments of redis-cli -h HOST -p PORT"), "{said}");
        let line = stdout(&acl).trim().replace(">PASSWORD", ">secret");
        // A shell must not expand the pattern of the keys, even if a file matches it.
        std::fs::write(testbed.path("~locks:file"), "").unwrap();
        let words = Command::new("sh")
            .args(["-c", &format!("printf '%s\\n' {line}")])
            .current_dir(testbed.folder.path())
            .output()
            .unwrap();
        assert_eq!(stderr(&words), "", "{binary}: {line}");
        let words = stdout(&words);
        let words: Vec<&str> = words.lines().collect();
        assert!(words.contains(&"~locks:*") && words.contains(&"+script|load"), "{line}");
        let as_app = |args: &[&str]| {
            let args = [&args[..1], &prefix, &["--username", "app"], &args[1..]].concat();
            let mut command = testbed.quorlock(&args);
            command.env("QUORLOCK_PASSWORD", "secret").output().unwrap()
        };
        testbed.on_all(&words);
        for args in [
            FRESH,
            &["doctor"],
            &["run", "--restart-guard", "strict", "k", "--", "true"],
            &["ls"][..],
        ] {
            let output = as_app(args);
            let said = stdout(&output) + &stderr(&output);
            assert_eq!(output.status.code(), Some(0), "{binary} {args:?}: {said}");
        }
        for right in words.iter().filter(|word| word.starts_with('+')) {
            let fewer: Vec<&str> = words.iter().filter(|word| *word != right).copied().collect();
            testbed.on_all(&fewer);
            let output = as_app(&["doctor", "--notes"]);
            let text = stdout(&output);
            let told =
                text.contains(right) || (*right == "+info" && text.contains("INFO says nothing"));
            let is_nicety = matches!(*right, "+client|setinfo" | "+client|list");
            assert!(told || is_nicety, "{binary} without {right}: {text}");
            // Locks need none of `CLIENT SETINFO`, `CLIENT LIST` and `SCAN`, so the doctor may succeed without these.
            let is_note = is_nicety || *right == "+scan";
            assert!(output.status.code() != Some(0) || is_note, "{binary} without {right}: {text}");
        }
        // First, the user may use other keys only. Then a login uses a wrong password. The doctor must name both
        // causes.
        let elsewhere: Vec<&str> =
            words.iter().map(|word| if *word == "~locks:*" { "~other:*" } else { word }).collect();
        testbed.on_all(&elsewhere);
        let text = stdout(&as_app(&["doctor"]));
        assert!(text.contains("may not use keys that begin with \"locks:quorlock:\""), "{text}");
        let args = ["doctor", "--username", "app"];
        let output = testbed.quorlock(&args).env("QUORLOCK_PASSWORD", "guess").output().unwrap();
        code(&output, 2);
        let text = stdout(&output);
        assert!(text.contains("not authenticated") && !text.contains("guess"), "{text}");
    }
}

/// A key without expiry blocks the lock on its node for ever.
#[test]
fn a_lock_that_never_expires_is_named_with_the_line_that_removes_it() {
    let Some(testbed) = Testbed::sized(3) else { return };
    assert!(testbed.quorlock(FRESH).status().unwrap().success());
    let token = "0a".repeat(20);
    let [a, b, _] = &testbed.nodes[..] else { panic!("three") };
    command(a, &["SET", "it's old", &format!("{token} h:1 job")]);
    command(a, &["SET", "fine", &token, "PX", "100000"]);
    command(a, &["SET", "foreign", "x"]);
    command(b, &["ZADD", "read", "1", &format!("{token} h:1 job")]);
    let (examined, exit) = examine(&testbed, &[]);
    let leftover = vec!["warning leftover".to_owned()];
    assert_eq!((found(&examined), exit), (vec![leftover.clone(), leftover, vec![]], 1));
    let fix = |node: usize| examined["nodes"][node]["findings"][0]["fix"].as_str().unwrap();
    let line = fix(0).strip_prefix("if no other program uses the key: ").unwrap();
    let expected = format!("redis-cli -s {} --quoted-input DEL '\"it\\x27s old\"'", a.address());
    assert_eq!(line, expected);
    // If this machine has a redis-cli, the printed line must remove the key.
    if let Ok(output) = Command::new("sh").args(["-c", line]).output()
        && output.status.success()
    {
        assert_eq!(stdout(&output), "1\n");
        assert_eq!(a.command(&["EXISTS", "it's old"]).unwrap(), Reply::Int(0));
    }
    assert!(fix(1).ends_with(&format!("redis-cli -s {} DEL read", b.address())), "{}", fix(1));
    // If many keys never expire, the doctor names only some of them.
    let many = "for n = 1, 9 do redis.call('SET', 'k' .. n, ARGV[1]) end";
    command(a, &["EVAL", many, "0", &token]);
    let (examined, _) = examine(&testbed, &[]);
    assert_eq!(found(&examined)[0].len(), 6);
    assert!(examined["nodes"][0].to_string().contains(" more keys have the value of a lock"));
}

#[test]
fn a_durable_node_needs_settings_that_persist_every_write() {
    let Some(testbed) = Testbed::new() else { return };
    let (examined, exit) = only(&testbed, &testbed.nodes[0], &[]);
    assert_eq!(exit, 0);
    assert!(what(&examined, 0, "persistence").contains("appendonly no"));
    let drop_in = testbed.output(&["doctor", "--systemd", "--max-ttl", "10s"]);
    // The quarantine, the time without votes, is 10 s × 1.01 + 2 s, rounded up: the largest ttl, 1 % of it, and 2 s.
    assert!(stdout(&drop_in).contains("ExecStartPre=/bin/sleep 13\n"), "{}", stdout(&drop_in));
    assert!(stdout(&drop_in).contains("about twice as long"), "{}", stdout(&drop_in));
    let (promised, exit) =
        only(&testbed, &testbed.nodes[0], &["--durable", &testbed.nodes[0].address()]);
    let findings = promised["nodes"][0]["findings"].as_array().unwrap();
    let fix =
        findings.iter().find(|finding| finding["check"] == "durable").unwrap()["fix"].to_string();
    for part in ["appendonly yes", "appendfsync always", "CONFIG REWRITE"] {
        assert!(fix.contains(part), "{fix}");
    }
    assert_eq!(exit, 2);
}
