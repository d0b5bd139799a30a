//! `quorlock status`, and what is refused before anything is sent.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use common::{Running, Testbed, quorlock, stderr, stdout};
use quorlock_servers::Reply;
use serde_json::Value;

#[test]
fn status_shows_who_holds_a_lock() {
    let Some(testbed) = Testbed::new("status_shows_who_holds_a_lock") else { return };
    let status =
        |args: &[&str]| testbed.quorlock(&[&["status", "k"], args].concat()).output().unwrap();
    let free = status(&[]);
    assert_eq!(free.status.code(), Some(0));
    assert!(stdout(&free).starts_with("k: FREE\n"), "{}", stdout(&free));

    let args = ["run", "k", "--label", "nightly", "--", "sh", "-c", "echo > up; sleep 60"];
    let run = Running::start(&mut testbed.quorlock(&args));
    testbed.await_file("up");
    testbed.nodes[4].kill().unwrap();
    let held: Value = serde_json::from_slice(&status(&["--json"]).stdout).unwrap();
    assert_eq!((&held["verdict"], &held["quorum"]), (&"held".into(), &3.into()));
    assert_eq!(held["nodes"][0]["state"], "held");
    assert!(held["holder"].as_str().unwrap().ends_with(&format!(":{} nightly", run.0.id())));
    assert_eq!(held["nodes"][4]["state"], "failed");
    let table = stdout(&status(&[]));
    assert!(table.contains("nightly") && table.contains("failed"), "{table}");

    testbed.nodes[3].kill().unwrap();
    testbed.nodes[2].kill().unwrap();
    let unknown = status(&[]);
    assert_eq!(unknown.status.code(), Some(69));
    assert!(stdout(&unknown).starts_with("k: UNKNOWN"), "{}", stdout(&unknown));
}

#[test]
fn a_split_lock_is_called_so() {
    let Some(testbed) = Testbed::new("a_split_lock_is_called_so") else { return };
    for (node, value) in testbed.nodes.iter().zip(["x", "x", "y", "y", "z"]) {
        node.command(&["SET", "k", value, "PX", "60000"]).unwrap();
    }
    let output = testbed.quorlock(&["status", "k", "--quiet"]).output().unwrap();
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("SPLIT\n", Some(0)));
}

#[test]
fn the_headline_counts_the_votes_of_one_holder() {
    let Some(testbed) = Testbed::new("the_headline_counts_the_votes_of_one_holder") else { return };
    let set = |places: std::ops::Range<usize>, args: &[&str]| {
        testbed.nodes[places].iter().for_each(|node| drop(node.command(args).unwrap()));
    };
    let headline = |args: &[&str]| {
        let output = testbed.quorlock(&[&["status", "k"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        stdout(&output).lines().next().unwrap().to_owned()
    };
    // Two holders that describe themselves alike are two: these have 2 and 3 nodes.
    let value = |token: &str| format!("{} api", token.repeat(40));
    set(0..2, &["SET", "k", &value("a"), "PX", "60000"]);
    set(2..5, &["SET", "k", &value("b"), "PX", "60000"]);
    let held = headline(&[]);
    assert!(held.starts_with("k: HELD by api") && held.ends_with("(on 3 of 5 nodes)"), "{held}");
    let json: serde_json::Value = serde_json::from_str(&headline(&["--json"])).unwrap();
    assert_eq!((&json["verdict"], &json["holder_nodes"]), (&"held".into(), &3.into()));
    // A quorum of keys of another type holds the name, and no lock does.
    set(0..5, &["DEL", "k"]);
    set(1..5, &["ZADD", "k", "1", "member"]);
    let foreign = headline(&[]);
    assert!(foreign.starts_with("k: HELD by a key that is no lock"), "{foreign}");
    assert!(foreign.ends_with("(on 4 of 5 nodes)"), "{foreign}");
}

/// Nodes that were restarted empty say that the lock is free; they have forgotten it.
#[test]
fn nodes_that_may_have_forgotten_a_lock_do_not_make_it_free() {
    let name = "nodes_that_may_have_forgotten_a_lock_do_not_make_it_free";
    let Some(testbed) = Testbed::new(name) else { return };
    let strict = |args: &[&str]| {
        let mut command = testbed.quorlock(args);
        command.env("QUORLOCK_RESTART_GUARD", "strict").output().unwrap()
    };
    assert_eq!(strict(&["init", "--fresh", "--yes"]).status.code(), Some(0));
    let free = strict(&["status", "k"]);
    assert_eq!((stdout(&free).lines().next(), free.status.code()), (Some("k: FREE"), Some(0)));
    for node in testbed.nodes.iter() {
        node.command(&["SET", "k", "x", "PX", "60000"]).unwrap();
    }
    for node in testbed.nodes.iter().skip(2) {
        node.command(&["FLUSHALL"]).unwrap();
    }
    let status = strict(&["status", "k"]);
    let text = stdout(&status);
    assert_eq!(status.status.code(), Some(69), "{text}");
    assert!(text.starts_with("k: UNKNOWN: held by the foreign value \"x\", "), "{text}");
    assert!(
        text.contains("on 2 of 5 nodes; 3 nodes that say it is free may have forgotten it"),
        "{text}"
    );
    assert!(text.contains("\n  node e: quarantined: "), "{text}");
    let other = strict(&["status", "other"]);
    assert!(stdout(&other).starts_with("other: UNKNOWN: 3 nodes that say"), "{}", stdout(&other));

    // With a majority that knows of it, it is held.
    testbed.nodes[2].command(&["SET", "k", "x", "PX", "60000"]).unwrap();
    assert!(stdout(&strict(&["status", "k"])).starts_with("k: HELD by "));
}

/// Nothing is known of it but that its votes do not count.
#[test]
fn a_node_that_cannot_be_verified_is_told_of() {
    let Some(testbed) = Testbed::new("a_node_that_cannot_be_verified_is_told_of") else { return };
    let strict = |args: &[&str]| {
        let mut command = testbed.quorlock(args);
        command.env("QUORLOCK_RESTART_GUARD", "strict").output().unwrap()
    };
    assert_eq!(strict(&["init", "--fresh", "--yes"]).status.code(), Some(0));
    testbed.nodes[1].command(&["DEL", "quorlock:node"]).unwrap();
    testbed.nodes[1].command(&["LPUSH", "quorlock:node", "x"]).unwrap();
    let status = strict(&["status", "k"]);
    let text = stdout(&status);
    assert!(text.starts_with("k: FREE\n"), "{text}");
    assert!(text.contains("\n  node b: not verified: ") && text.contains("doctor"), "{text}");
    assert!(!text.contains("node a:"), "{text}");
}

/// Arguments, environment, the exit code, and what must be said.
type Wrong = (&'static [&'static str], &'static [(&'static str, &'static str)], i32, &'static str);

const WRONG: &[Wrong] = &[
    (&["run", "", "--", "true"], &[], 64, "the resource must have a name"),
    (&["run", "quorlock:x", "--", "true"], &[], 64, "must not contain \"quorlock:\""),
    (&["status", "app:quorlock:node"], &[], 64, "must not contain \"quorlock:\""),
    (
        &["run", "--key-prefix", "quorlock:", "k", "--", "true"],
        &[],
        64,
        "must not contain \"quorlock:\"",
    ),
    (
        &["run", "--key-prefix", "quor", "lock:x", "--", "true"],
        &[],
        64,
        "must not contain \"quorlock:\"",
    ),
    (&["run", "k", "--ttl", "0s", "--", "true"], &[], 64, "ttl (0ns) must be at least"),
    (
        &["run", "k", "--max-ttl", "0s", "--", "true"],
        &[],
        64,
        "max-ttl (0ns) must be at least 500ms",
    ),
    (&["status", "k", "--max-ttl", "0s"], &[], 64, "max-ttl (0ns) must be at least 100ms"),
    (&["init", "--fresh", "--yes"], &[("QUORLOCK_MAX_TTL", "1ms")], 78, "max-ttl (1ms) must be"),
    (&["run", "k", "--ttl", "50ms", "--", "true"], &[], 64, "ttl (50ms) must be at least"),
    (
        &["run", "k", "--ttl", "31s", "--", "true"],
        &[],
        64,
        "ttl (31s) must not be above max_ttl (30s)",
    ),
    (&["run", "k", "--max-ttl", "999999999s", "--", "true"], &[], 64, "must be at most 86400s"),
    (&["run", "k", "--", "true"], &[("QUORLOCK_TTL", "31s")], 78, "must not be above max_ttl"),
    (
        &["run", "k", "--", "true"],
        &[("QUORLOCK_TTL", "31")],
        78,
        "QUORLOCK_TTL: \"31\": a time has a unit",
    ),
    (&["run", "k", "--ttl", "31", "--", "true"], &[], 64, "a time has a unit, as in"),
    (
        &["run", "k", "--node-timeout", "3s", "--", "true"],
        &[],
        64,
        "at most a quarter of ttl (10s)",
    ),
    (&["run", "k", "--kill-after", "5s", "--", "true"], &[], 64, "less than a third of ttl (10s)"),
    (
        &["run", "k", "--max-hold", "5s", "--", "true"],
        &[],
        64,
        "max_hold (5s) must be at least ttl (10s)",
    ),
    (&["run", "k", "--quorum", "1", "--", "true"], &[], 64, "between 2 (the majority) and 3"),
    (&["run", "k", "--wait", "soon", "--", "true"], &[], 64, "invalid value 'soon'"),
    (
        &["run", "k", "-n", "redis://a", "-n", "redis://A:6379", "--", "true"],
        &[],
        64,
        "listed twice",
    ),
    (&["run", "k", "-n", "ftp://a", "--", "true"], &[], 64, "unknown scheme \"ftp\""),
    (&["run", "k", "-n", "redis://:pw@a:x", "--", "true"], &[], 64, "redis://***"),
    (&["run", "k", "--", "true"], &[("QUORLOCK_NODES", "")], 64, "no nodes were given"),
    (&["run", "k", "--", "true"], &[("QUORLOCK_NODES", "redis://a,redis://a")], 78, "listed twice"),
    (&["run", "k", "--", "true"], &[("QUORLOCK_NODES", "non sense")], 78, "QUORLOCK_NODES: "),
    (&["run", "k", "--", "true"], &[("QUORLOCK_CONFIG", "/no/such/file")], 78, "/no/such/file"),
    (
        &["run", "k", "--status-fd", "77", "--", "true"],
        &[],
        64,
        "--status-fd: cannot write to file descriptor 77",
    ),
    (&["run", "k"], &[], 64, "required"),
    (&["init", "--fresh", "--yes", "--old-node", "redis://a"], &[], 64, "cannot be used with"),
    (&["status", ""], &[], 64, "the resource must have a name"),
    (&["unknown"], &[], 64, "unrecognized subcommand"),
];

#[test]
fn what_is_wrong_is_refused_before_anything_is_sent() {
    let Some(testbed) = Testbed::new("what_is_wrong_is_refused_before_anything_is_sent") else {
        return;
    };
    let three: Vec<String> = testbed.nodes.urls().into_iter().take(3).collect();
    let before = commands(&testbed);
    for (args, env, code, says) in WRONG {
        let mut command = quorlock(args);
        command.env("QUORLOCK_NODES", three.join(","));
        command.envs(env.iter().copied());
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(*code), "{args:?} {env:?}: {said}");
        assert!(said.contains(says), "{args:?} {env:?}: {said}");
        assert!(!said.contains("pw@"), "{said}");
    }
    // INFO counts itself.
    assert_eq!(commands(&testbed), before + 1, "something was sent");
}

/// How many commands the first node has seen.
fn commands(testbed: &Testbed) -> u64 {
    let Ok(Reply::Bulk(Some(info))) = testbed.nodes[0].command(&["INFO", "stats"]) else {
        panic!("INFO answers with a text");
    };
    let info = String::from_utf8(info).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.unwrap().parse().unwrap()
}

#[test]
fn a_file_is_read_and_its_mistakes_are_told_without_secrets() {
    let Some(testbed) = Testbed::new("a_file_is_read_and_its_mistakes_are_told_without_secrets")
    else {
        return;
    };
    let file = testbed.path("quorlock.toml");
    let run = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let mut command = quorlock(&["run", "k", "--", "true"]);
        command.env("QUORLOCK_CONFIG", &file).output().unwrap()
    };
    let nodes = format!("nodes = {:?}\n", testbed.nodes.urls());
    assert_eq!(run(&format!("{nodes}ttl = \"5s\"\nwait = \"1s\"\n")).status.code(), Some(0));
    let long = run(&format!("{nodes}ttl = \"5h\"\n"));
    assert_eq!(long.status.code(), Some(78), "{}", stderr(&long));
    let unknown = run("nodes = [\"redis://:hunter2@a\"]\npassword = \"hunter2\"\n");
    assert_eq!(unknown.status.code(), Some(78));
    let said = stderr(&unknown);
    assert!(said.contains(&format!("password in {}", file.display())), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}
