//! `quorlock doctor` on real servers: five that are well, and every misconfiguration, set up for real.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use common::{Testbed, eventually, stderr, stdout};
use quorlock_servers::{Listen, Nodes, Reply, Server, ServerOptions, find_all, find_or_skip};
use serde_json::Value;

/// What was found on each node: checks of warnings and errors, in order.
fn found(examined: &Value) -> Vec<Vec<String>> {
    let checks = |node: &Value| {
        let findings = node["findings"].as_array().unwrap().iter();
        for finding in findings.clone() {
            assert!(finding["why"].as_str().unwrap().len() > 10, "{finding}");
            assert!(finding["fix"].as_str().unwrap().len() > 10, "{finding}");
        }
        let bad = findings.filter(|finding| finding["severity"] != "note");
        bad.map(|finding| {
            format!(
                "{} {}",
                finding["severity"].as_str().unwrap(),
                finding["check"].as_str().unwrap()
            )
        })
        .collect()
    };
    examined["nodes"].as_array().unwrap().iter().map(checks).collect()
}

fn examine(testbed: &Testbed, args: &[&str]) -> (Value, i32) {
    let output = testbed.quorlock(&[&["doctor", "--json"], args].concat()).output().unwrap();
    let examined = serde_json::from_slice(&output.stdout);
    (examined.unwrap_or_else(|_| panic!("{}", stderr(&output))), output.status.code().unwrap())
}

fn command(server: &Server, words: &[&str]) {
    let reply = server.command(words).unwrap();
    assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
}

fn what(examined: &Value, node: usize, check: &str) -> String {
    let findings = examined["nodes"][node]["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["check"] == check);
    finding.unwrap_or_else(|| panic!("no {check} in {findings:?}"))["what"].as_str().unwrap().into()
}

const FRESH: &[&str] = &["init", "--fresh", "--yes", "--quiet"];

#[test]
fn five_servers_that_are_well_are_five_lines() {
    let Some(testbed) = Testbed::new("five_servers_that_are_well_are_five_lines") else { return };
    let doctor = |code| {
        let output = testbed.quorlock(&["doctor", "--restart-guard", "strict"]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}{}", stdout(&output), stderr(&output));
        stdout(&output)
    };
    // Who has never been used does not vote, and what to do about that is said without being asked for.
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
    // Only the marker and the database's number are there; what was tried is gone.
    for node in testbed.nodes.iter() {
        assert_eq!(node.command(&["DBSIZE"]).unwrap(), Reply::Int(2));
    }
}

#[test]
fn what_a_server_is_decides() {
    let Some(testbed) = Testbed::new("what_a_server_is_decides") else { return };
    let [a, b, c, d, e] = &testbed.nodes[..] else { panic!("five") };
    command(a, &["REPLICAOF", "127.0.0.1", "1"]);
    command(b, &["REPLICAOF", "127.0.0.1", "1"]);
    command(b, &["REPLICAOF", "NO", "ONE"]);
    command(c, &["CONFIG", "SET", "maxmemory", "100mb"]);
    command(c, &["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    command(d, &["MSET", "x", "1", "y", "1"]);
    command(d, &["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    command(d, &["CONFIG", "SET", "maxmemory", "1"]);
    // It is refused; what is there is deleted all the same.
    let _ = d.command(&["SET", "z", "1"]);
    command(d, &["CONFIG", "SET", "maxmemory", "0"]);
    e.pause().unwrap();
    let (examined, code) = examine(&testbed, &["--connect-timeout", "300ms"]);
    let found = found(&examined);
    assert!(found[0].contains(&"error role".to_owned()), "{found:?}");
    assert_eq!(found[1], ["warning promoted"]);
    // Its master first: to end the replication is for who means it.
    let role = &examined["nodes"][0]["findings"];
    let role = role.as_array().unwrap().iter().find(|finding| finding["check"] == "role").unwrap();
    assert!(role["fix"].as_str().unwrap().starts_with("list its master 127.0.0.1:1 "), "{role}");
    assert_eq!(found[2], ["error eviction"]);
    assert_eq!(found[3], ["warning unused", "warning evicted"]);
    assert_eq!(found[4], ["error reach"]);
    assert_eq!(code, 2);
    let text =
        stdout(&testbed.quorlock(&["doctor", "--connect-timeout", "300ms"]).output().unwrap());
    assert!(
        text.contains("fix  redis-cli -s ") && text.contains("maxmemory-policy noeviction"),
        "{text}"
    );

    // Such nodes are not to be marked by an operator's word either.
    let refused = testbed.quorlock(FRESH).output().unwrap();
    assert_eq!(refused.status.code(), Some(69));
    let said = stderr(&refused);
    assert!(
        said.contains("node a: it is a replica") && said.contains("node c: it deletes"),
        "{said}"
    );
    assert_eq!(b.command(&["EXISTS", "quorlock:node"]).unwrap(), Reply::Int(0));
}

#[test]
fn warnings_alone_are_told_by_the_exit_code() {
    let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
    let Some(testbed) = Testbed::with("warnings_alone_are_told_by_the_exit_code", options) else {
        return;
    };
    assert!(testbed.quorlock(FRESH).status().unwrap().success());
    let master = testbed.nodes[0].address();
    let port = master.rsplit(':').next().unwrap();
    // A server besides, which is none of the nodes.
    let replica = Nodes::start(testbed.nodes[0].binary(), 1, ServerOptions::default()).unwrap();
    command(&replica[0], &["REPLICAOF", "127.0.0.1", port]);
    eventually("the replica is attached", || {
        let Ok(Reply::Bulk(Some(info))) = testbed.nodes[0].command(&["INFO", "replication"]) else {
            panic!("INFO answers with a text");
        };
        String::from_utf8(info).unwrap().contains("connected_slaves:1").then_some(())
    });
    let (examined, code) = examine(&testbed, &[]);
    assert_eq!(found(&examined)[0], ["warning replicas"]);
    assert_eq!((code, &examined["worst"]), (1, &"warning".into()));
}

#[test]
fn one_server_under_two_names_and_a_dead_one() {
    let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
    let Some(testbed) = Testbed::with("one_server_under_two_names_and_a_dead_one", options) else {
        return;
    };
    let url = testbed.nodes[0].url();
    let duplicate = format!("twin={}", url.replace("127.0.0.1", "localhost"));
    let dead = format!("dead={}", testbed.nodes[1].url());
    testbed.nodes[1].kill().unwrap();
    let nodes = ["-n", &format!("one={url}"), "-n", &duplicate, "-n", &dead];
    let (examined, code) = examine(&testbed, &nodes);
    assert_eq!(found(&examined)[..2], [["error same_server"], ["error same_server"]]);
    assert!(what(&examined, 0, "same_server").contains("node twin (localhost:"));
    assert_eq!((found(&examined)[2].clone(), code), (vec!["error reach".to_owned()], 2));
}

#[test]
fn clients_that_do_not_agree_are_shown_both_settings() {
    let name = "clients_that_do_not_agree_are_shown_both_settings";
    let Some(testbed) = Testbed::new(name) else { return };
    assert!(testbed.quorlock(FRESH).status().unwrap().success());
    let (examined, code) = examine(&testbed, &["--quorum", "4"]);
    assert_eq!((found(&examined)[0].clone(), code), (vec!["error configuration".to_owned()], 2));
    let both = what(&examined, 0, "configuration");
    assert!(both.contains("quorum=3 ") && both.contains("quorum=4 "), "{both}");

    // Lost data, a key of somebody else's, a floor that some clock has set, and a restart.
    let [a, b, c, d, _] = &testbed.nodes[..] else { panic!("five") };
    command(a, &["FLUSHALL"]);
    command(b, &["SET", "quorlock:node", "mine"]);
    command(c, &["DEL", "quorlock:node"]);
    command(c, &["LPUSH", "quorlock:node", "x"]);
    let Ok(Reply::Bulk(Some(marker))) = d.command(&["GET", "quorlock:node"]) else {
        panic!("text")
    };
    let marker = String::from_utf8(marker).unwrap();
    let (rest, floor) = marker.rsplit_once('=').unwrap();
    let day = 86_400_000_000_u64;
    let ahead = format!("{rest}={}", floor.parse::<u64>().unwrap() + day);
    command(d, &["SET", "quorlock:node", &ahead]);
    let (examined, code) = examine(&testbed, &[]);
    let found = found(&examined);
    assert_eq!(
        found[..4],
        [["warning marker"], ["error marker"], ["error marker"], ["warning floor"]]
    );
    assert_eq!((found[4].len(), code), (0, 2));
    // Fences go on from there.
    assert!(testbed.quorlock(&[FRESH, &["--force"]].concat()).status().unwrap().success());
    let Ok(Reply::Bulk(Some(marker))) = c.command(&["GET", "quorlock:node"]) else {
        panic!("text")
    };
    assert!(String::from_utf8(marker).unwrap().ends_with(ahead.rsplit_once('=').unwrap().1));
}

#[test]
fn a_server_that_came_back_with_its_data_waits() {
    let name = "a_server_that_came_back_with_its_data_waits";
    let args = ["--appendonly", "yes", "--appendfsync", "always"].map(String::from).to_vec();
    let Some(testbed) = Testbed::with(name, ServerOptions { args, ..ServerOptions::default() })
    else {
        return;
    };
    assert!(testbed.quorlock(FRESH).status().unwrap().success());
    testbed.nodes[2].restart().unwrap();
    let (examined, code) = examine(&testbed, &[]);
    assert_eq!((found(&examined)[2].clone(), code), (vec!["warning restarted".to_owned()], 1));
    assert_eq!(examined["nodes"][2]["votes"], "count_in");
    assert_eq!(examined["nodes"][1]["votes"], "count");
    // A minority has forgotten nothing that matters; more have.
    testbed.nodes[0].restart().unwrap();
    testbed.nodes[1].restart().unwrap();
    let (examined, code) = examine(&testbed, &["--restart-guard", "strict"]);
    assert_eq!((found(&examined)[0].clone(), code), (vec!["warning restarted".to_owned()], 2));
    let said = examined["together"]["what"].as_str().unwrap();
    assert!(
        said.starts_with("2 of 5 nodes vote, but 3 must vote: no lock can be granted for about 3"),
        "{said}"
    );
}

/// One server of the lab, alone.
fn only(testbed: &Testbed, place: usize, args: &[&str]) -> (Value, i32) {
    let url = testbed.nodes[place].url();
    // One that may not vote is not marked.
    let _ = testbed.quorlock(&[FRESH, &["-n", &url]].concat()).status().unwrap();
    examine(testbed, &[&["-n", &url], args].concat())
}

#[test]
fn a_cluster_resp2_and_debug() {
    let name = "a_cluster_resp2_and_debug";
    let Some(binary) = find_or_skip(name) else { return };
    let one = |args: &[&str]| {
        let args = args.iter().map(ToString::to_string).collect();
        let options = ServerOptions { args, ..ServerOptions::default() };
        let server = Server::start(&binary, options).unwrap();
        let testbed = Testbed::of(Nodes::start(&binary, 0, ServerOptions::default()).unwrap());
        // One that may not vote is not marked.
        let _ = testbed.quorlock(&[FRESH, &["-n", &server.url()]].concat()).output().unwrap();
        examine(&testbed, &["-n", &server.url()])
    };
    let (cluster, code) = one(&["--cluster-enabled", "yes"]);
    assert!(found(&cluster)[0].contains(&"error cluster".to_owned()), "{cluster}");
    assert_eq!(code, 2);
    let (old, code) = one(&["--rename-command", "HELLO", ""]);
    assert_eq!((found(&old)[0].clone(), code), (vec!["warning resp2".to_owned()], 1));
    // Servers before 7.0 do not have the setting.
    if binary.version.major >= 7 {
        let (debug, code) = one(&["--enable-debug-command", "yes"]);
        assert_eq!((found(&debug)[0].clone(), code), (vec!["warning debug".to_owned()], 1));
    }
}

/// On every server that is here: who has the rights that are printed needs no others, and who lacks
/// one of them is told which.
#[test]
fn the_rights_that_are_printed_are_those_that_are_needed() {
    let name = "the_rights_that_are_printed_are_those_that_are_needed";
    if find_or_skip(name).is_none() {
        return;
    }
    for binary in find_all(None).unwrap() {
        let nodes = Nodes::start(&binary, 3, ServerOptions::default()).unwrap();
        let testbed = Testbed::of(nodes);
        let prefix = ["--key-prefix", "locks:"];
        let acl = testbed
            .quorlock(&[&["doctor", "--acl", "app"], &prefix[..]].concat())
            .output()
            .unwrap();
        let said = stderr(&acl);
        assert!(said.contains("ACL SAVE") && acl.status.success(), "{said}");
        assert!(said.contains("behind redis-cli -h HOST -p PORT"), "{said}");
        let line = stdout(&acl).trim().replace(">PASSWORD", ">secret");
        // As a shell reads it, in a folder with a file that the pattern of the keys would match.
        std::fs::write(testbed.path("~locks:file"), "").unwrap();
        let words = std::process::Command::new("sh")
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
        testbed.nodes.iter().for_each(|node| command(node, &words));
        for args in [
            FRESH,
            &["doctor"],
            &["run", "--restart-guard", "strict", "k", "--", "true"],
            &["ls"][..],
        ] {
            let output = as_app(args);
            assert_eq!(
                output.status.code(),
                Some(0),
                "{binary} {args:?}: {}{}",
                stdout(&output),
                stderr(&output)
            );
        }
        // Each right but one.
        for right in words.iter().filter(|word| word.starts_with('+')) {
            let fewer: Vec<&str> = words.iter().filter(|word| *word != right).copied().collect();
            testbed.nodes.iter().for_each(|node| command(node, &fewer));
            let output = as_app(&["doctor", "--notes"]);
            let text = stdout(&output);
            let told =
                text.contains(right) || (*right == "+info" && text.contains("INFO says nothing"));
            let is_nicety = *right == "+client|setinfo";
            assert!(told || is_nicety, "{binary} without {right}: {text}");
            // Locks work without it.
            let is_note = is_nicety || *right == "+scan";
            assert!(output.status.code() != Some(0) || is_note, "{binary} without {right}: {text}");
        }
        // Other keys, and a wrong password.
        let elsewhere: Vec<&str> =
            words.iter().map(|word| if *word == "~locks:*" { "~other:*" } else { word }).collect();
        testbed.nodes.iter().for_each(|node| command(node, &elsewhere));
        let text = stdout(&as_app(&["doctor"]));
        assert!(text.contains("may not use keys that begin with \"locks:quorlock:\""), "{text}");
        let args = ["doctor", "--username", "app"];
        let output = testbed.quorlock(&args).env("QUORLOCK_PASSWORD", "guess").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = stdout(&output);
        assert!(text.contains("not authenticated") && !text.contains("guess"), "{text}");
    }
}

/// A key that a client left, or somebody made permanent, keeps others from that lock on its node for ever.
#[test]
fn a_lock_that_never_ends_is_named_with_the_line_that_removes_it() {
    let name = "a_lock_that_never_ends_is_named_with_the_line_that_removes_it";
    let Some(testbed) = Testbed::sized(name, 3, ServerOptions::default()) else { return };
    assert!(testbed.quorlock(FRESH).status().unwrap().success());
    let token = "0a".repeat(20);
    let [a, b, _] = &testbed.nodes[..] else { panic!("three") };
    command(a, &["SET", "it's old", &format!("{token} h:1 job")]);
    command(a, &["SET", "fine", &token, "PX", "100000"]);
    command(a, &["SET", "foreign", "x"]);
    command(b, &["ZADD", "read", "1", &format!("{token} h:1 job")]);
    let (examined, code) = examine(&testbed, &[]);
    let leftover = vec!["warning leftover".to_owned()];
    assert_eq!((found(&examined), code), (vec![leftover.clone(), leftover, vec![]], 1));
    let fix = |node: usize| examined["nodes"][node]["findings"][0]["fix"].as_str().unwrap();
    let line = fix(0).strip_prefix("if no other program uses the key: ").unwrap();
    let expected = format!("redis-cli -s {} --quoted-input DEL '\"it\\x27s old\"'", a.address());
    assert_eq!(line, expected);
    // What it prints does what it says, where there is a redis-cli.
    if let Ok(output) = std::process::Command::new("sh").args(["-c", line]).output()
        && output.status.success()
    {
        assert_eq!(stdout(&output), "1\n");
        assert_eq!(a.command(&["EXISTS", "it's old"]).unwrap(), Reply::Int(0));
    }
    assert!(fix(1).ends_with(&format!("redis-cli -s {} DEL read", b.address())), "{}", fix(1));
    // Of many, some are named.
    let many = "for n = 1, 9 do redis.call('SET', 'k' .. n, ARGV[1]) end";
    command(a, &["EVAL", many, "0", &token]);
    let (examined, _) = examine(&testbed, &[]);
    assert_eq!(found(&examined)[0].len(), 6);
    assert!(examined["nodes"][0].to_string().contains(" more keys have the value of a lock"));
}

#[test]
fn what_is_on_disk_matters_where_it_was_promised() {
    let Some(testbed) = Testbed::new("what_is_on_disk_matters_where_it_was_promised") else {
        return;
    };
    let (examined, code) = only(&testbed, 0, &[]);
    assert_eq!(code, 0);
    assert!(what(&examined, 0, "persistence").contains("appendonly no"));
    let drop_in = testbed.quorlock(&["doctor", "--systemd", "--max-ttl", "10s"]).output().unwrap();
    // 10 s and a hundredth, and two seconds.
    assert!(stdout(&drop_in).contains("ExecStartPre=/bin/sleep 13\n"), "{}", stdout(&drop_in));
    assert!(stdout(&drop_in).contains("about twice as long"), "{}", stdout(&drop_in));
    // All that it lacks at once, and over a restart.
    let (promised, code) = only(&testbed, 0, &["--durable", &testbed.nodes[0].address()]);
    let findings = promised["nodes"][0]["findings"].as_array().unwrap();
    let fix =
        findings.iter().find(|finding| finding["check"] == "durable").unwrap()["fix"].to_string();
    for part in ["appendonly yes", "appendfsync always", "CONFIG REWRITE"] {
        assert!(fix.contains(part), "{fix}");
    }
    assert_eq!(code, 2);
}
