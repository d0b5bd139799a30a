//! `quorlock status`, and what is refused before anything is sent.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use common::{Running, Testbed, quorlock, stderr, stdout, unix_ms};
use quorlock_servers::{Reply, find_or_skip, not_for};
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
    assert!(foreign.starts_with("k: HELD by something that is no lock"), "{foreign}");
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
    assert!(text.contains(" e: quarantined: "), "{text}");
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
    (&["run", "", "--", "true"], &[], 64, "KEY has no name"),
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
    (&["run", "k", "--ttl", "0s", "--", "true"], &[], 64, "ttl (0s) must be at least"),
    (
        &["run", "k", "--max-ttl", "0s", "--", "true"],
        &[],
        64,
        "max-ttl (0s) must be at least 500ms",
    ),
    (&["status", "k", "--max-ttl", "0s"], &[], 64, "max-ttl (0s) must be at least 100ms"),
    (&["init", "--fresh", "--yes"], &[("QUORLOCK_MAX_TTL", "1ms")], 78, "max-ttl (1ms) must be"),
    (&["run", "k", "--ttl", "50ms", "--", "true"], &[], 64, "ttl (50ms) must be at least"),
    (
        &["run", "k", "--ttl", "31s", "--", "true"],
        &[],
        64,
        "ttl (31s) must not be above max-ttl (30s)",
    ),
    (&["run", "k", "--max-ttl", "999999999s", "--", "true"], &[], 64, "must be at most 24h"),
    (&["run", "k", "--", "true"], &[("QUORLOCK_TTL", "31s")], 78, "must not be above max-ttl"),
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
        "max-hold (5s) must be at least ttl (10s)",
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
    (&["status", ""], &[], 64, "KEY has no name"),
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

/// The time is that of the attempt, the same on all nodes; a plain token, as version 0.1.0 wrote them too, has none.
#[test]
fn since_when_a_lock_is_held_is_told_by_its_holder() {
    let Some(testbed) = Testbed::new("since_when_a_lock_is_held_is_told_by_its_holder") else {
        return;
    };
    let before = unix_ms();
    let args = ["run", "k", "--label", "nightly", "--", "sh", "-c", "echo > up; sleep 60"];
    let run = Running::start(&mut testbed.quorlock(&args));
    testbed.await_file("up");
    let values: Vec<Reply> =
        testbed.nodes.iter().map(|node| node.command(&["GET", "k"]).unwrap()).collect();
    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
    let status = |args: &[&str]| {
        let output = testbed.quorlock(&[&["status", "k"], args].concat()).output().unwrap();
        stdout(&output)
    };
    let json: Value = serde_json::from_str(&status(&["--json"])).unwrap();
    let since = json["since_unix_ms"].as_u64().unwrap();
    assert!((before..=unix_ms()).contains(&since), "{before} {json}");
    assert_eq!(json["nodes"][0]["since_unix_ms"], since);
    assert!(json["holder"].as_str().unwrap().ends_with(&format!(":{} nightly", run.0.id())));
    let Reply::Bulk(Some(value)) = &values[0] else { panic!("a value: {values:?}") };
    let value = String::from_utf8(value.clone()).unwrap();
    assert!(value[40..].starts_with(&format!(" @{since} ")), "{value}");
    let table = status(&[]);
    let headline = table.lines().next().unwrap();
    assert!(headline.contains("nightly, since ") && headline.contains("Z ("), "{headline}");
    assert!(table.lines().nth(1).unwrap().contains("TTL LEFT"), "{table}");
    drop(run);

    for (value, says) in
        [("a".repeat(40), "a client without a name"), ("a".repeat(40) + " old", "old")]
    {
        testbed
            .nodes
            .iter()
            .for_each(|node| drop(node.command(&["SET", "k", &value, "PX", "60000"])));
        let headline = status(&[]).lines().next().unwrap().to_owned();
        assert_eq!(headline, format!("k: HELD by {says}, since unknown (on 5 of 5 nodes)"));
    }
}

#[test]
fn several_keys_have_a_table_each_and_one_exit_code() {
    let name = "several_keys_have_a_table_each_and_one_exit_code";
    let Some(testbed) = Testbed::new(name) else { return };
    let on = |places: std::ops::Range<usize>, args: &[&str]| {
        testbed.nodes[places].iter().for_each(|node| drop(node.command(args).unwrap()));
    };
    on(0..5, &["SET", "held", "x", "PX", "60000"]);
    on(0..2, &["SET", "split", "x", "PX", "60000"]);
    on(2..4, &["SET", "split", "y", "PX", "60000"]);
    let status = |args: &[&str]| {
        let output = testbed.quorlock(&[&["status"], args].concat()).output().unwrap();
        (output.status.code().unwrap(), stdout(&output))
    };
    assert_eq!(
        status(&["free", "held", "split", "-q"]),
        (0, "free: FREE\nheld: HELD\nsplit: SPLIT\n".into())
    );
    for (keys, code) in [
        (&["free"][..], 0),
        (&["free", "other"], 0),
        (&["free", "held"], 75),
        (&["split", "free"], 75),
    ] {
        assert_eq!(status(&[keys, &["--exit-code"]].concat()).0, code, "{keys:?}");
    }
    let (_, json) = status(&["held", "free", "--json"]);
    let verdicts = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let verdicts: Vec<(Value, Value)> =
        verdicts.map(|it| (it["key"].clone(), it["verdict"].clone())).collect();
    assert_eq!(verdicts, [("held".into(), "held".into()), ("free".into(), "free".into())]);
    let (_, tables) = status(&["held", "free"]);
    assert!(
        tables.starts_with("held: HELD by ") && tables.contains("\nfree: FREE\n  NODE"),
        "{tables}"
    );
    // What is unknown comes first.
    testbed.nodes[..3].iter().for_each(|node| node.kill().unwrap());
    assert_eq!(status(&["held", "free", "--exit-code"]).0, 69);
}

#[test]
fn for_a_key_that_never_expires_the_line_that_removes_it_is_printed_and_works() {
    let name = "for_a_key_that_never_expires_the_line_that_removes_it_is_printed_and_works";
    let Some(testbed) = Testbed::new(name) else { return };
    testbed.nodes[1].command(&["SET", "app:it's mine", "x"]).unwrap();
    testbed.nodes[3].command(&["HSET", "app:it's mine", "field", "x"]).unwrap();
    testbed.nodes[4].command(&["SET", "app:it's mine", "x", "PX", "60000"]).unwrap();
    let status = || {
        let args = ["status", "it's mine", "--key-prefix", "app:"];
        stdout(&testbed.quorlock(&args).output().unwrap())
    };
    let table = status();
    let lines: Vec<&str> =
        table.lines().filter(|line| line.contains("its key never expires")).collect();
    let [b, d] = &lines[..] else { panic!("one line for each of two nodes: {table}") };
    assert!(b.starts_with("  node b: ") && d.starts_with("  node d: "), "{table}");
    if std::process::Command::new("redis-cli").arg("--version").output().is_err() {
        return not_for(&find_or_skip(name).unwrap(), name, "there is no redis-cli here");
    }
    for line in lines {
        let (_, command) = line.split_once("if no program uses it: ").unwrap();
        let output = std::process::Command::new("sh").args(["-c", command]).output().unwrap();
        assert_eq!(stdout(&output), "1\n", "{command}: {}", stderr(&output));
    }
    assert!(!status().contains("never expires"), "{}", status());
}

/// A node lists 64 readers at most.
#[test]
fn more_readers_than_a_node_lists_are_counted_right() {
    let Some(testbed) = Testbed::new("more_readers_than_a_node_lists_are_counted_right") else {
        return;
    };
    let script = "local t = redis.call('TIME') local e = t[1] * 1000 + 60000 \
                  for i = 1, 200 do redis.call('ZADD', KEYS[1], e, string.format('%040x', i) .. ' r' .. i) end \
                  redis.call('PEXPIREAT', KEYS[1], e) return 1";
    for node in testbed.nodes.iter() {
        node.command(&["EVAL", script, "1", "k"]).unwrap();
    }
    let table = stdout(&testbed.quorlock(&["status", "k"]).output().unwrap());
    let headline = table.lines().next().unwrap();
    assert!(headline.starts_with("k: HELD shared by 200 readers (10 of 200 shown): r"), "{table}");
    assert!(table.contains("200 readers (r"), "{table}");
    let json = stdout(&testbed.quorlock(&["status", "k", "--json"]).output().unwrap());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["verdict"], &json["readers"]), (&"shared".into(), &200.into()));
}

#[test]
fn a_result_that_cannot_be_written_is_no_success() {
    let name = "a_result_that_cannot_be_written_is_no_success";
    let Some(testbed) = Testbed::new(name) else { return };
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    for args in [&["status", "k"][..], &["status", "k", "--json"], &["doctor"], &["ls"]] {
        let mut command = testbed.quorlock(args);
        let output = command.stdout(full.try_clone().unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(70), "{args:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains("cannot write to standard output: "),
            "{}",
            stderr(&output)
        );
    }
}
