//! How `run` and `status` describe a lock on five real servers: foreign keys, waits, and the cause of a loss.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;
use std::process::Output;

use common::{Running, Testbed, await_end_of_group, code, eventually, json_lines, stderr, stdout};
use rustix::process::Signal;
use serde_json::Value;

fn headline(testbed: &Testbed) -> String {
    let output = testbed.output(&["status", "k"]);
    code(&output, 0);
    stdout(&output).lines().next().unwrap().to_owned()
}

/// Returns the messages of a refused `run`: those about its wait, and the final one.
fn refused(testbed: &Testbed, wait: &str) -> (Vec<String>, String) {
    let output = testbed.output(&["run", "k", "--wait", wait, "--", "true"]);
    code(&output, 75);
    let mut lines: Vec<String> = stderr(&output).lines().map(str::to_owned).collect();
    let last = lines.pop().unwrap();
    (lines, last)
}

#[test]
fn a_foreign_key_on_a_minority_does_not_count_for_the_holder() {
    let Some(testbed) = Testbed::new() else { return };
    testbed.on(0..2, &["SET", "k", "x", "PX", "60000"]);
    let args = ["run", "k", "--label", "nightly", "--", "sh", "-c", "echo > up; exec sleep 60"];
    let holder = testbed.start(&args);
    testbed.await_file("up");
    let ours = format!(":{} nightly", holder.id());
    let held = headline(&testbed);
    assert!(held.starts_with("k: HELD by ") && held.contains(&ours), "{held}");
    assert!(held.ends_with("(on 3 of 5 nodes)"), "{held}");
    let (waits, _) = refused(&testbed, "400ms");
    let [waits] = &waits[..] else { panic!("one line: {waits:?}") };
    // Three answers decide the attempt. If they name two different holders, the message names neither holder.
    let named = waits.contains(": held by ") && waits.contains(&ours);
    assert!(named || waits.ends_with(": others hold it or want it"), "{waits}");

    // Three of five nodes have the foreign key now, so its value counts as the holder of the lock.
    testbed.on(2..3, &["SET", "k", "x", "PX", "60000"]);
    let held = headline(&testbed);
    assert!(held.starts_with("k: HELD by the value \"x\", "), "{held}");
    assert!(held.ends_with("(on 3 of 5 nodes)"), "{held}");
}

#[test]
fn query_says_that_a_long_value_is_cut() {
    let Some(testbed) = Testbed::new() else { return };
    for (length, is_cut) in [(511, false), (512, true), (1 << 20, true)] {
        testbed.on_all(&["SET", "k", &"x".repeat(length)]);
        let output = testbed.output(&["query", "k"]);
        code(&output, 0);
        assert_eq!(stdout(&output).trim_end(), "x".repeat(length.min(512)));
        let said = stderr(&output);
        assert_eq!(said.contains("only the first 512 are printed"), is_cut, "{length}: {said}");
    }
    // The cut is within a character.
    testbed.on_all(&["SET", "k", &format!("x{}", "ä".repeat(300))]);
    let value = &json_lines(&stdout(&testbed.output(&["query", "k", "--json"])))[0]["value"];
    assert_eq!(value.as_str(), Some(&*format!("x{}", "ä".repeat(255))));
}

/// A node that is frozen takes a connection and never answers.
#[test]
fn a_command_that_looks_names_the_node_that_it_waits_for() {
    let Some(testbed) = Testbed::sized(3) else { return };
    testbed.nodes[2].pause().unwrap();
    let ask = |args: &[&str]| {
        let mut command = testbed.quorlock(args);
        command.env("QUORLOCK_CONNECT_TIMEOUT", "3s").output().unwrap()
    };
    let waits = "quorlock: no answer from node c yet; waiting for the connect timeout\n";
    for args in
        [&["status", "k"][..], &["query", "k"], &["ls"], &["doctor"], &["init", "--fresh", "--yes"]]
    {
        let output = ask(args);
        assert_eq!(stderr(&output).matches(waits).count(), 1, "{args:?}: {}", stderr(&output));
        assert!(!stderr(&ask(&[args, &["--quiet"]].concat())).contains(waits), "{args:?}");
    }
    let said = stderr(&ask(&["status", "k", "--json"]));
    assert_eq!(json_lines(&said)[0]["event"], "hanging", "{said}");
}

#[test]
fn run_reports_a_node_that_was_down_before_the_lock_once() {
    let Some(testbed) = Testbed::sized(3) else { return };
    testbed.nodes[2].kill().unwrap();
    let args = ["run", "k", "--ttl", "900ms", "--", "sleep", "2"];
    let output = testbed.output(&args);
    code(&output, 0);
    let said = stderr(&output);
    assert_eq!(said.matches("node c: ").count(), 1, "{said}");
    assert!(said.contains("; 2 of 3 nodes confirm \"k\""), "{said}");
}

#[test]
fn a_database_that_the_server_lacks_is_named_with_what_to_do() {
    let Some(testbed) = Testbed::sized(1) else { return };
    let node = format!("a={}?db=99", testbed.nodes[0].url());
    for args in [&["run", "k", "--wait", "0s", "--", "true"][..], &["status", "k"], &["doctor"]] {
        let output = testbed.quorlock(args).env("QUORLOCK_NODES", &node).output().unwrap();
        let said = stdout(&output) + &stderr(&output);
        assert!(said.contains("the server has no database 99"), "{args:?}: {said}");
        assert!(said.contains("lower number") && said.contains("`databases`"), "{args:?}: {said}");
        assert!(!said.contains("start the"), "{args:?}: {said}");
    }
}

/// Other libraries, for example symfony/lock, use other types of keys.
#[test]
fn keys_of_another_type_hold_the_lock() {
    let Some(testbed) = Testbed::new() else { return };
    let zset = ["ZADD", "k", "1", "member"];
    for count in [5, 3] {
        testbed.on(0..5, &["DEL", "k"]);
        testbed.on(0..count, &zset);
        let expected = format!(
            "k: HELD by something that is no lock (a key of another type), without expiry (on {count} of 5 nodes)"
        );
        assert_eq!(headline(&testbed), expected);
        let (waits, refusal) = refused(&testbed, "400ms");
        let [waits] = &waits[..] else { panic!("one line: {waits:?}") };
        assert!(
            waits.contains(": held by something that is no lock (a key of another type)"),
            "{waits}"
        );
        // The end of the message is not compared: it may lack the words about the expiry, if a node answered too late.
        assert!(refusal.contains(" refused (held by something that is no lock"), "{refusal}");
        assert_eq!(testbed.holders_of("k"), count, "the foreign keys stay");
    }
    // Two nodes have a key of another type, three have foreign values. Only equal values on a quorum hold the lock.
    testbed.on(2..5, &["SET", "k", "x"]);
    testbed.on(3..5, &["SET", "k", "y"]);
    assert_eq!(headline(&testbed), "k: SPLIT: nobody has 3 of 5 nodes");
    testbed.on(3..5, &["SET", "k", "x"]);
    assert!(headline(&testbed).starts_with("k: HELD by the value \"x\""));
    testbed.on(2..5, &["DEL", "k"]);
    assert_eq!(headline(&testbed), "k: FREE");
}

#[test]
fn one_message_reports_the_wait_without_a_holder_of_a_minority() {
    let Some(testbed) = Testbed::new() else { return };
    testbed.on(0..2, &["SET", "k", "x"]);
    testbed.on(2..3, &["SET", "k", "y"]);
    // On a terminal, a countdown would be updated twice during this wait. Without a terminal there must be one message.
    let (waits, refusal) = refused(&testbed, "1400ms");
    let [waits] = &waits[..] else { panic!("one line: {waits:?}") };
    assert!(waits.ends_with(" for \"k\": others hold it or want it"), "{waits}");
    assert!(refusal.contains(" refused (held by the value \""), "{refusal}");

    let args = ["run", "k", "--wait", "1400ms", "--status-fd", "1", "--", "true"];
    let output = testbed.output(&args);
    let events = json_lines(&stdout(&output));
    let told = events.iter().filter(|event| event["event"] == "waiting");
    assert_eq!(told.count(), 1, "{events:?}");

    assert_eq!(refused(&testbed, "0s").0, Vec::<String>::new(), "no wait, no message");
}

/// The first attempt takes longer than the time after which a wait is reported. The report must come after the attempt.
#[test]
fn the_wait_is_reported_when_the_first_attempt_has_failed() {
    let Some(testbed) = Testbed::new() else { return };
    testbed.nodes[..3].iter().for_each(|node| node.pause().unwrap());
    let times = ["--connect-timeout", "100ms", "--wait", "1450ms"];
    let args = [&["run", "k"], &times[..], &["--", "true"]].concat();
    let output = testbed.output(&args);
    let told = stderr(&output);
    assert_eq!((output.status.code(), told.lines().count()), (Some(69), 2), "{told}");
    let first = told.lines().next().unwrap();
    // The remaining time shows that this is the first message: a second one would come in the last second of the wait.
    assert!(first.starts_with("quorlock: waiting for 1."), "{told}");
    assert!(first.contains("s more for \"k\": no quorum: nodes a, b, c failed: "), "{told}");
}

#[test]
fn a_refusal_reports_a_late_node_as_a_failure_only_if_its_answer_was_needed() {
    let Some(testbed) = Testbed::new() else { return };
    testbed.on(0..3, &["SET", "k", "x"]);
    testbed.nodes[3..].iter().for_each(|node| node.pause().unwrap());
    let (_, refusal) = refused(&testbed, "0s");
    let late = "nodes d, e: no answer was needed";
    assert!(refusal.contains(late), "{refusal}");
    testbed.nodes[3..].iter().for_each(|node| node.resume().unwrap());

    testbed.on(0..3, &["DEL", "k"]);
    testbed.nodes[..3].iter().for_each(|node| node.pause().unwrap());
    let args = ["run", "k", "--wait", "500ms", "--", "true"];
    let output = testbed.output(&args);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(69), "{told}");
    let refusal = told.lines().last().unwrap();
    assert!(refusal.contains("nodes a, b, c had not answered after "), "{refusal}");
    assert!(!refusal.contains("not needed"), "{refusal}");
}

/// docs/compare.md and docs/moving.md say what happens with libraries that lock on one server only, or put a prefix before the name.
#[test]
fn a_lock_on_one_server_excludes_no_other_and_a_prefix_makes_another_key() {
    let Some(testbed) = Testbed::new() else { return };
    let runs = |args: &[&str]| {
        let args = [&["run", "k", "--wait", "0s"], args, &["--", "true"]].concat();
        testbed.output(&args).status.code()
    };
    testbed.on(0..1, &["SET", "k", "of one server", "NX", "PX", "60000"]);
    assert_eq!(runs(&[]), Some(0));
    assert_eq!(testbed.holders_of("k"), 1, "the other lock stays");
    for prefix in ["redlock:", "lock:", "mutex:"] {
        testbed.on(0..3, &["SET", &format!("{prefix}k"), "x", "NX", "PX", "60000"]);
        assert_eq!(runs(&[]), Some(0));
        assert_eq!(runs(&["--key-prefix", prefix]), Some(75));
    }
}

/// Starts `quorlock run` with a command that ends when the file `go` exists, and waits until the command runs.
fn under_a_lock(testbed: &Testbed) -> Running {
    let script = "echo $$ > up; while [ ! -e go ]; do sleep 0.01; done";
    let args = ["run", "k", "--ttl", "3s", "--status-fd", "1", "--", "sh", "-c", script];
    let run = testbed.start(&args);
    testbed.await_file("up");
    run
}

/// Asserts that the lock was lost. Returns the cause in the event, the cause in the message, and how the command ended.
fn lost(output: &Output) -> (String, String, Value) {
    code(output, 79);
    let events = json_lines(&stdout(output));
    let lost = events.iter().find(|event| event["event"] == "lost").expect("an event");
    let message = lost["message"].as_str().unwrap();
    let text = stderr(output);
    // `quorlock` may have reported earlier that no quorum confirms the lock, so only the last line counts.
    let line = text.lines().last().unwrap_or_default();
    assert!(line.starts_with("quorlock: lost the lock \"k\" while the command ran ("), "{line}");
    assert!(line.ends_with(&format!("); cause: {message}")), "{line}");
    (lost["cause"].as_str().unwrap().to_owned(), message.to_owned(), lost["ended_by"].clone())
}

#[test]
fn a_loss_distinguishes_deleted_keys_from_overwritten_keys() {
    let gone = ("key_gone", "too few nodes still have its key");
    let overwritten =
        ("key_overwritten", "somebody who does not hold the lock writes or deletes its key");
    let del: &[&str] = &["DEL", "k"];
    let (set, zset): (&[&str], &[&str]) = (&["SET", "k", "x"], &["ZADD", "k", "1", "member"]);
    for (changes, (cause, words)) in [
        (&[(0..3, del)][..], gone),
        (&[(0..3, set)], overwritten),
        (&[(0..2, del), (2..3, set)], overwritten),
        (&[(0..3, del), (0..3, zset)], overwritten),
    ] {
        // The next extension finds the changed keys or, if the command ends first, the release finds them.
        for ends_first in [false, true] {
            let Some(testbed) = Testbed::new() else { return };
            let run = under_a_lock(&testbed);
            for (places, command) in changes {
                testbed.on(places.clone(), command);
            }
            if ends_first {
                fs::write(testbed.path("go"), "").unwrap();
            }
            let (told, message, ended_by) = lost(&run.end());
            assert_eq!(told, cause, "{changes:?}: {message}");
            assert!(message.starts_with(words), "{changes:?}: {message}");
            assert_eq!(ended_by.is_null(), ends_first, "{changes:?}: {ended_by}");
        }
    }
}

#[test]
fn a_loss_distinguishes_silent_nodes_from_a_stopped_quorlock() {
    let Some(testbed) = Testbed::new() else { return };
    let run = under_a_lock(&testbed);
    testbed.nodes[..3].iter().for_each(|node| node.pause().unwrap());
    let (cause, message, _) = lost(&run.end());
    let words =
        "too few nodes confirmed an extension in time (to check the nodes: quorlock doctor)";
    assert_eq!(cause, "expired");
    assert!(message.starts_with(&format!("{words}: a, b, c: ")), "{message}");
    testbed.nodes[..3].iter().for_each(|node| node.resume().unwrap());
    eventually("the lock is free", || (testbed.holders_of("k") == 0).then_some(()));

    // While `quorlock` is stopped, the guardian ends the command. With `ends_first`, the command ends before that.
    for ends_first in [false, true] {
        fs::remove_file(testbed.path("up")).unwrap();
        let run = under_a_lock(&testbed);
        let group = testbed.await_file("up").trim().parse().unwrap();
        run.signal(Signal::STOP);
        if ends_first {
            fs::write(testbed.path("go"), "").unwrap();
        }
        await_end_of_group(group);
        eventually("the lock is over", || (testbed.holders_of("k") == 0).then_some(()));
        run.signal(Signal::CONT);
        let (cause, message, ended_by) = lost(&run.end());
        assert_eq!(cause, "stopped", "{message}");
        assert!(message.starts_with("quorlock itself stood still for "), "{message}");
        assert!(message.contains("SIGSTOP") && !message.contains("nodes"), "{message}");
        assert_eq!(ended_by.is_null(), ends_first, "{ended_by}");
    }
}
