//! `quorlock status` on five real servers.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs::OpenOptions;
use std::process::{Command, Output};

use common::{Testbed, code, eventually, get, json_lines, not_for, stderr, stdout, unix_ms, value};
use serde_json::Value;

fn status(testbed: &Testbed, args: &[&str]) -> Output {
    testbed.output(&[&["status"], args].concat())
}

fn headline(output: &Output) -> String {
    stdout(output).lines().next().unwrap().to_owned()
}

fn json(output: &Output) -> Value {
    json_lines(&stdout(output)).remove(0)
}

fn strict() -> Option<Testbed> {
    let mut testbed = Testbed::new()?;
    testbed.guard = "strict";
    code(&testbed.output(&["init", "--fresh", "--yes"]), 0);
    Some(testbed)
}

#[test]
fn two_holders_with_the_same_label_are_counted_apart() {
    let Some(testbed) = Testbed::new() else { return };
    testbed.on(0..2, &["SET", "k", &value(1, "api"), "PX", "60000"]);
    testbed.on(2..5, &["SET", "k", &value(2, "api"), "PX", "60000"]);
    let held = headline(&status(&testbed, &["k"]));
    assert!(held.starts_with("k: HELD by api") && held.ends_with("(on 3 of 5 nodes)"), "{held}");
    let json = json(&status(&testbed, &["k", "--json"]));
    assert_eq!((&json["verdict"], &json["holder_nodes"]), (&"held".into(), &3.into()));
}

/// A node that lost its data reports a free lock, which must not count.
#[test]
fn nodes_that_may_have_forgotten_a_lock_do_not_make_it_free() {
    let Some(testbed) = strict() else { return };
    let free = status(&testbed, &["k"]);
    code(&free, 0);
    assert_eq!(headline(&free), "k: FREE");
    testbed.on_all(&["SET", "k", "x", "PX", "60000"]);
    testbed.on(2..5, &["FLUSHALL"]);
    let output = status(&testbed, &["k"]);
    code(&output, 69);
    let text = stdout(&output);
    assert!(text.starts_with("k: UNKNOWN: held by the value \"x\", "), "{text}");
    let forgotten = "on 2 of 5 nodes; 3 nodes that say it is free may have forgotten it";
    assert!(text.contains(forgotten) && text.contains(" e: quarantined: "), "{text}");
    let other = headline(&status(&testbed, &["other"]));
    assert!(other.starts_with("other: UNKNOWN: 3 nodes that say"), "{other}");

    testbed.on(2..3, &["SET", "k", "x", "PX", "60000"]);
    let held = headline(&status(&testbed, &["k"]));
    assert!(held.starts_with("k: HELD by "), "a majority has the key: {held}");
}

#[test]
fn a_node_in_quarantine_that_cannot_be_reached_is_down() {
    let Some(mut testbed) = Testbed::sized(1) else { return };
    testbed.guard = "strict";
    let run = testbed.start(&["status", "k", "--watch", "--json"]);
    run.await_line(r#""trust_state":"quarantined""#);
    testbed.nodes[0].kill().unwrap();
    // An inspection that is in flight at the kill may print one more line with `quarantined`. The test skips it.
    let line = run.await_line(r#""trust_state":"unverified""#);
    assert!(line.contains(r#""state":"failed""#), "{line}");
}

#[test]
fn a_node_that_cannot_be_verified_is_named() {
    let Some(testbed) = strict() else { return };
    testbed.on(1..2, &["DEL", "quorlock:node"]);
    testbed.on(1..2, &["LPUSH", "quorlock:node", "x"]);
    let text = stdout(&status(&testbed, &["k"]));
    assert!(text.starts_with("k: FREE\n"), "{text}");
    assert!(text.contains("\n  node b: not verified: ") && text.contains("doctor"), "{text}");
    assert!(!text.contains("node a:"), "{text}");
}

/// Each value contains the time of its attempt. A value that version 0.1.0 wrote has no time.
#[test]
fn the_holder_and_the_time_since_when_it_holds_the_lock_are_shown() {
    let Some(testbed) = Testbed::new() else { return };
    let before = unix_ms();
    let args = ["run", "k", "--label", "nightly", "--", "sh", "-c", "echo > up; sleep 60"];
    let run = testbed.start(&args);
    testbed.await_file("up");
    let value = get(&testbed.nodes[0], "k").unwrap();
    assert!(testbed.nodes.iter().all(|node| get(node, "k").as_ref() == Some(&value)));
    let json = json(&status(&testbed, &["k", "--json"]));
    let since = json["since_unix_ms"].as_u64().unwrap();
    assert!((before..=unix_ms()).contains(&since), "{before} {json}");
    assert_eq!(json["nodes"][0]["since_unix_ms"], since);
    assert!(json["holder"].as_str().unwrap().ends_with(&format!(":{} nightly", run.id())));
    assert!(value[40..].starts_with(&format!(" @{since} ")), "{value}");
    let table = stdout(&status(&testbed, &["k"]));
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].contains("nightly, since ") && lines[0].contains("Z ("), "{table}");
    assert!(lines[1].contains("TTL LEFT"), "{table}");
    drop(run);

    for (label, shown) in [("", "a client without a name"), (" old", "old")] {
        testbed.on_all(&["SET", "k", &format!("{}{label}", "a".repeat(40)), "PX", "60000"]);
        let expected = format!("k: HELD by {shown}, since unknown (on 5 of 5 nodes)");
        assert_eq!(headline(&status(&testbed, &["k"])), expected);
    }
}

#[test]
fn each_key_has_its_table_and_all_keys_share_one_exit_code() {
    let Some(testbed) = Testbed::new() else { return };
    testbed.on_all(&["SET", "held", "x", "PX", "60000"]);
    testbed.on(0..2, &["SET", "split", "x", "PX", "60000"]);
    testbed.on(2..4, &["SET", "split", "y", "PX", "60000"]);
    let quiet = status(&testbed, &["free", "held", "split", "-q"]);
    code(&quiet, 0);
    assert_eq!(stdout(&quiet), "free: FREE\nheld: HELD\nsplit: SPLIT\n");
    for (keys, expected) in [
        (&["free"][..], 0),
        (&["free", "other"], 0),
        (&["free", "held"], 75),
        (&["split", "free"], 75),
    ] {
        code(&status(&testbed, &[keys, &["--exit-code"]].concat()), expected);
    }
    let looks = json_lines(&stdout(&status(&testbed, &["held", "free", "--json"])));
    let verdicts: Vec<_> = looks.iter().map(|it| [&it["key"], &it["verdict"]]).collect();
    assert_eq!(verdicts, [["held", "held"], ["free", "free"]]);
    let tables = stdout(&status(&testbed, &["held", "free"]));
    assert!(tables.starts_with("held: HELD by ") && tables.contains("\nfree: FREE\n  NODE"));
    testbed.nodes[..3].iter().for_each(|node| node.kill().unwrap());
    code(&status(&testbed, &["held", "free", "--exit-code"]), 69);
}

#[test]
fn the_printed_line_removes_a_key_that_never_expires() {
    let Some(testbed) = Testbed::new() else { return };
    testbed.on(1..2, &["SET", "app:it's mine", "x"]);
    testbed.on(3..4, &["HSET", "app:it's mine", "field", "x"]);
    testbed.on(4..5, &["SET", "app:it's mine", "x", "PX", "60000"]);
    let table = || stdout(&status(&testbed, &["it's mine", "--key-prefix", "app:"]));
    let text = table();
    let lines: Vec<_> = text.lines().filter(|it| it.contains("its key never expires")).collect();
    let [b, d] = &lines[..] else { panic!("one line for each of two nodes: {text}") };
    assert!(b.starts_with("  node b: ") && d.starts_with("  node d: "), "{text}");
    if Command::new("redis-cli").arg("--version").output().is_err() {
        return not_for("there is no redis-cli here");
    }
    for line in lines {
        let (_, command) = line.split_once("if no program uses it: ").unwrap();
        let output = Command::new("sh").args(["-c", command]).output().unwrap();
        assert_eq!(stdout(&output), "1\n", "{command}: {}", stderr(&output));
    }
    assert!(!table().contains("never expires"), "{}", table());
}

/// A node lists at most 64 readers.
#[test]
fn more_readers_than_a_node_lists_are_counted() {
    let Some(testbed) = Testbed::new() else { return };
    let script = "local t = redis.call('TIME') local e = t[1] * 1000 + 60000 \
                  for i = 1, 200 do redis.call('ZADD', KEYS[1], e, string.format('%040x', i) .. ' r' .. i) end \
                  redis.call('PEXPIREAT', KEYS[1], e) return 1";
    testbed.on_all(&["EVAL", script, "1", "k"]);
    let table = stdout(&status(&testbed, &["k"]));
    assert!(table.starts_with("k: HELD shared by 200 readers (10 of 200 shown): r"), "{table}");
    assert!(table.contains("200 readers (r"), "{table}");
    let json = json(&status(&testbed, &["k", "--json"]));
    assert_eq!((&json["verdict"], &json["readers"]), (&"shared".into(), &200.into()));
}

/// A master that lacks its replica may have been replaced. All looks say the same about it.
#[test]
fn no_look_counts_a_master_that_lacks_its_replica() {
    let Some(mut testbed) = Testbed::sized(1) else { return };
    testbed.guard = "strict";
    code(&testbed.output(&["init", "--fresh", "--yes"]), 0);
    code(&testbed.output(&["query", "k"]), 1);
    let node = format!("a={}?replicas=1", testbed.nodes[0].url());
    let look =
        |args: &[&str]| testbed.quorlock(args).env("QUORLOCK_NODES", &node).output().unwrap();
    let why = "it has 0 of 1 replicas, so another server may have taken its place";
    for args in [&["status", "k"][..], &["query", "k"], &["ls"]] {
        let output = look(args);
        code(&output, 69);
        let said = stdout(&output) + &stderr(&output);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    let json = json(&look(&["status", "k", "--json"]));
    assert_eq!(json["nodes"][0]["trust_state"], "unverified");
    assert!(json["nodes"][0]["trust_state_text"].as_str().unwrap().contains(why), "{json}");
}

/// All holders of a key need a fencing token, or none does.
#[test]
fn a_key_with_a_fencing_counter_is_shown_as_such() {
    let Some(testbed) = Testbed::new() else { return };
    let without = json(&status(&testbed, &["f", "--json"]));
    assert_eq!(without["fencing_token"], Value::Null);
    code(&testbed.output(&["run", "f", "--fenced", "--", "true"]), 0);
    let with = json(&status(&testbed, &["f", "--json"]));
    let token = with["fencing_token"].as_u64().unwrap();
    let said = stdout(&status(&testbed, &["f"]));
    let line = format!(
        "  the last fencing token of this key is {token}: all writers of it must use --fenced\n"
    );
    assert!(said.contains(&line), "{said}");
    let notes = stdout(&testbed.output(&["doctor", "--notes"]));
    assert!(notes.contains("it has fencing counters for \"f\""), "{notes}");

    // The command that waits for the key asks for the counter, and warns.
    let holder = testbed.start(&["run", "f", "--fenced", "--", "sleep", "60"]);
    eventually("it is held", || (testbed.holders_of("f") >= 3).then_some(()));
    let listed = json(&testbed.output(&["ls", "--json"]));
    assert_eq!(listed["locks"][0]["has_fencing_counter"], true, "{listed}");
    let warning = "other holders of \"f\" have fencing tokens, and this one will have none";
    for (args, warns) in
        [(&["f"][..], true), (&["f", "--fenced"], false), (&["f", "--shared"], false)]
    {
        let command = [&["run", "--wait", "1s"], args, &["--", "true"]].concat();
        let output = testbed.output(&command);
        code(&output, 75);
        assert_eq!(stderr(&output).contains(warning), warns, "{args:?}: {}", stderr(&output));
    }
    // Of several keys, the warning names those that have a counter.
    let output = testbed.output(&["run", "g", "--also", "f", "--wait", "1s", "--", "true"]);
    code(&output, 75);
    assert!(stderr(&output).contains(warning), "{}", stderr(&output));
    drop(holder);
}

#[test]
fn a_command_that_cannot_write_its_result_fails() {
    let Some(testbed) = Testbed::new() else { return };
    let Ok(full) = OpenOptions::new().write(true).open("/dev/full") else { return };
    for args in [&["status", "k"][..], &["status", "k", "--json"], &["doctor"], &["ls"]] {
        let mut command = testbed.quorlock(args);
        let output = command.stdout(full.try_clone().unwrap()).output().unwrap();
        code(&output, 70);
        let said = stderr(&output);
        assert!(said.contains("cannot write to standard output: "), "{args:?}: {said}");
    }
}
