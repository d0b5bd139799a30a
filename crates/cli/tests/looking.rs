//! What `run` and `status` tell of a lock in the odd cases: keys of other programs, waits, and losses with their
//! cause, on real servers.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::ops::Range;
use std::process::Output;

use common::{Running, Testbed, eventually, group_gone_at_ms, stderr, stdout};
use rustix::process::Signal;
use serde_json::Value;

/// Sends the same to some of the nodes.
fn on(testbed: &Testbed, places: Range<usize>, args: &[&str]) {
    testbed.nodes[places].iter().for_each(|node| drop(node.command(args).unwrap()));
}

/// The first line of `status`.
fn headline(testbed: &Testbed) -> String {
    let output = testbed.quorlock(&["status", "k"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    stdout(&output).lines().next().unwrap().to_owned()
}

/// A refusal of `run`: its waiting lines, and its last one.
fn refused(testbed: &Testbed, wait: &str) -> (Vec<String>, String) {
    let output = testbed.quorlock(&["run", "k", "--wait", wait, "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", stderr(&output));
    let mut lines: Vec<String> = stderr(&output).lines().map(str::to_owned).collect();
    let last = lines.pop().unwrap();
    (lines, last)
}

/// A holder of all nodes that are free.
fn holder(testbed: &Testbed) -> Running {
    let args = ["run", "k", "--label", "nightly", "--", "sh", "-c", "echo > up; exec sleep 60"];
    let holder = Running::start(&mut testbed.quorlock(&args));
    testbed.await_file("up");
    holder
}

#[test]
fn a_foreign_key_on_a_minority_is_not_counted_for_the_holder() {
    let name = "a_foreign_key_on_a_minority_is_not_counted_for_the_holder";
    let Some(testbed) = Testbed::new(name) else { return };
    on(&testbed, 0..2, &["SET", "k", "x", "PX", "60000"]);
    let holder = holder(&testbed);
    let ours = format!(":{} nightly", holder.0.id());
    let held = headline(&testbed);
    assert!(held.starts_with("k: HELD by ") && held.contains(&ours), "{held}");
    assert!(held.ends_with("(on 3 of 5 nodes)"), "{held}");
    let (waits, _) = refused(&testbed, "400ms");
    let [waits] = &waits[..] else { panic!("one line: {waits:?}") };
    // The first three answers may have been those of two holders.
    let named = waits.contains(": held by ") && waits.contains(&ours);
    assert!(named || waits.ends_with(": others hold it or want it"), "{waits}");

    // With three of five, it is the foreign one; the holder of the other two has lost it then.
    on(&testbed, 2..3, &["SET", "k", "x", "PX", "60000"]);
    let held = headline(&testbed);
    assert!(held.starts_with("k: HELD by the foreign value \"x\", "), "{held}");
    assert!(held.ends_with("(on 3 of 5 nodes)"), "{held}");
}

/// As symfony/lock's are: it is held, by something that is no lock of this kind.
#[test]
fn keys_of_another_type_hold_the_lock() {
    let Some(testbed) = Testbed::new("keys_of_another_type_hold_the_lock") else { return };
    let zset = ["ZADD", "k", "1", "member"];
    for count in [5, 3] {
        on(&testbed, 0..5, &["DEL", "k"]);
        on(&testbed, 0..count, &zset);
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
        // Of a node that was late, only its refusal may be known.
        assert!(refusal.contains(" refused (held by something that is no lock"), "{refusal}");
        assert_eq!(testbed.holders_of("k"), count, "theirs stay, ours are gone");
    }
    // Beside others, each kind counts for itself.
    on(&testbed, 2..5, &["SET", "k", "x"]);
    on(&testbed, 3..5, &["SET", "k", "y"]);
    assert_eq!(headline(&testbed), "k: SPLIT: nobody has 3 of 5 nodes");
    on(&testbed, 3..5, &["SET", "k", "x"]);
    assert!(headline(&testbed).starts_with("k: HELD by the foreign value \"x\""));
    on(&testbed, 2..5, &["DEL", "k"]);
    assert_eq!(headline(&testbed), "k: FREE");
}

#[test]
fn the_wait_is_told_once_and_names_nobody_who_has_two_of_five() {
    let name = "the_wait_is_told_once_and_names_nobody_who_has_two_of_five";
    let Some(testbed) = Testbed::new(name) else { return };
    on(&testbed, 0..2, &["SET", "k", "x"]);
    on(&testbed, 2..3, &["SET", "k", "y"]);
    // Longer than two ticks of the line that counts down on a terminal.
    let (waits, refusal) = refused(&testbed, "1400ms");
    let [waits] = &waits[..] else { panic!("one line: {waits:?}") };
    assert!(waits.ends_with(" for \"k\": others hold it or want it"), "{waits}");
    assert!(refusal.contains(" refused (held by the foreign value \""), "{refusal}");

    let args = ["run", "k", "--wait", "1400ms", "--status-fd", "1", "--", "true"];
    let output = testbed.quorlock(&args).output().unwrap();
    let events = events(&stdout(&output));
    let told = events.iter().filter(|event| event["event"] == "waiting");
    assert_eq!(told.count(), 1, "{events:?}");

    // Without a wait there is nothing to tell of.
    assert_eq!(refused(&testbed, "0s").0, Vec::<String>::new());
}

/// Not with a timer's first tick, which an attempt may miss by chance: this one takes longer than that.
#[test]
fn the_wait_is_told_when_the_first_attempt_has_failed() {
    let name = "the_wait_is_told_when_the_first_attempt_has_failed";
    let Some(testbed) = Testbed::new(name) else { return };
    testbed.nodes[..3].iter().for_each(|node| node.pause().unwrap());
    let times = ["--connect-timeout", "100ms", "--wait", "1450ms"];
    let args = [&["run", "k"], &times[..], &["--", "true"]].concat();
    let output = testbed.quorlock(&args).output().unwrap();
    let told = stderr(&output);
    assert_eq!((output.status.code(), told.lines().count()), (Some(69), 2), "{told}");
    // With the next tick, there would be less than a second.
    assert!(told.starts_with("quorlock: waiting for 1."), "{told}");
    assert!(
        told.lines()
            .next()
            .unwrap()
            .contains("s more for \"k\": no quorum: nodes a, b, c failed: "),
        "{told}"
    );
}

#[test]
fn a_late_node_is_no_fault_in_a_refusal_that_was_decided_without_it() {
    let name = "a_late_node_is_no_fault_in_a_refusal_that_was_decided_without_it";
    let Some(testbed) = Testbed::new(name) else { return };
    on(&testbed, 0..3, &["SET", "k", "x"]);
    testbed.nodes[3..].iter().for_each(|node| node.pause().unwrap());
    let (_, refusal) = refused(&testbed, "0s");
    let late = "nodes d, e: no answer was needed";
    assert!(refusal.contains(late), "{refusal}");
    testbed.nodes[3..].iter().for_each(|node| node.resume().unwrap());

    // Where it was needed, that is told, and for how long it was waited for.
    on(&testbed, 0..3, &["DEL", "k"]);
    testbed.nodes[..3].iter().for_each(|node| node.pause().unwrap());
    let args = ["run", "k", "--wait", "500ms", "--", "true"];
    let output = testbed.quorlock(&args).output().unwrap();
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(69), "{told}");
    let refusal = told.lines().last().unwrap();
    assert!(refusal.contains("nodes a, b, c had not answered after "), "{refusal}");
    assert!(!refusal.contains("not needed"), "{refusal}");
}

/// The README's words about other libraries.
#[test]
fn a_lock_on_one_server_excludes_nobody_and_a_prefix_makes_another_key() {
    let name = "a_lock_on_one_server_excludes_nobody_and_a_prefix_makes_another_key";
    let Some(testbed) = Testbed::new(name) else { return };
    let runs = |args: &[&str]| {
        let args = [&["run", "k", "--wait", "0s"], args, &["--", "true"]].concat();
        testbed.quorlock(&args).output().unwrap().status.code()
    };
    on(&testbed, 0..1, &["SET", "k", "of one server", "NX", "PX", "60000"]);
    assert_eq!(runs(&[]), Some(0));
    assert_eq!(testbed.holders_of("k"), 1, "theirs stays");
    for prefix in ["redlock:", "lock:", "mutex:"] {
        on(&testbed, 0..3, &["SET", &format!("{prefix}k"), "x", "NX", "PX", "60000"]);
        assert_eq!(runs(&[]), Some(0));
        assert_eq!(runs(&["--key-prefix", prefix]), Some(75));
    }
}

fn events(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A command under a lock of three seconds, which ends when the file `go` is there.
fn under_a_lock(testbed: &Testbed) -> Running {
    let script = "echo $$ > up; while [ ! -e go ]; do sleep 0.01; done";
    let args = ["run", "k", "--ttl", "3s", "--status-fd", "1", "--", "sh", "-c", script];
    let run = Running::start(&mut testbed.quorlock(&args));
    testbed.await_file("up");
    run
}

/// Why the lock was lost: for programs and for people, who are told the same. How CMD was ended, too.
fn lost(output: &Output) -> (String, String, Value) {
    assert_eq!(output.status.code(), Some(79), "{}", stderr(output));
    let events = events(&stdout(output));
    let lost = events.iter().find(|event| event["event"] == "lost").expect("it says so");
    let message = lost["message"].as_str().unwrap();
    let text = stderr(output);
    // A line before it may say that no quorum confirms the lock.
    let line = text.lines().last().unwrap_or_default();
    assert!(line.starts_with("quorlock: lost the lock \"k\" while the command ran ("), "{line}");
    assert!(line.ends_with(&format!("); cause: {message}")), "{line}");
    (lost["cause"].as_str().unwrap().to_owned(), message.to_owned(), lost["ended_by"].clone())
}

#[test]
fn keys_that_are_gone_and_keys_that_are_overwritten_are_told_apart() {
    let name = "keys_that_are_gone_and_keys_that_are_overwritten_are_told_apart";
    let gone = ("key_gone", "too few nodes still have its key");
    let overwritten =
        ("key_overwritten", "somebody who does not hold the lock writes or deletes its key");
    let del: &[&str] = &["DEL", "k"];
    let (set, zset): (&[&str], &[&str]) = (&["SET", "k", "x"], &["ZADD", "k", "1", "member"]);
    for (what, (cause, words)) in [
        (&[(0..3, del)][..], gone),
        (&[(0..3, set)], overwritten),
        (&[(0..2, del), (2..3, set)], overwritten),
        (&[(0..3, del), (0..3, zset)], overwritten),
    ] {
        // Found with the next extension; or, if the command ends first, when the lock is given back.
        for ends_first in [false, true] {
            let Some(testbed) = Testbed::new(name) else { return };
            let run = under_a_lock(&testbed);
            for (places, command) in what {
                on(&testbed, places.clone(), command);
            }
            if ends_first {
                std::fs::write(testbed.path("go"), "").unwrap();
            }
            let (told, message, ended_by) = lost(&run.end());
            assert_eq!(told, cause, "{what:?}: {message}");
            assert!(message.starts_with(words), "{what:?}: {message}");
            assert_eq!(ended_by.is_null(), ends_first, "{what:?}: {ended_by}");
        }
    }
}

#[test]
fn nodes_that_do_not_answer_and_a_quorlock_that_was_stopped_are_told_apart() {
    let name = "nodes_that_do_not_answer_and_a_quorlock_that_was_stopped_are_told_apart";
    let Some(testbed) = Testbed::new(name) else { return };
    let run = under_a_lock(&testbed);
    testbed.nodes[..3].iter().for_each(|node| node.pause().unwrap());
    let (cause, message, _) = lost(&run.end());
    let words =
        "too few nodes confirmed an extension in time (to check the nodes: quorlock doctor)";
    assert_eq!(cause, "expired");
    assert!(message.starts_with(&format!("{words}: a, b, c: ")), "and names them: {message}");
    testbed.nodes[..3].iter().for_each(|node| node.resume().unwrap());
    eventually("the lock is free", || (testbed.holders_of("k") == 0).then_some(()));

    // The guardian ends the command; or it ends by itself, and the lock runs out after that.
    for ends_first in [false, true] {
        std::fs::remove_file(testbed.path("up")).unwrap();
        let run = under_a_lock(&testbed);
        let group = testbed.await_file("up").trim().parse().unwrap();
        run.signal(Signal::STOP);
        if ends_first {
            std::fs::write(testbed.path("go"), "").unwrap();
        }
        group_gone_at_ms(group);
        eventually("the lock is over", || (testbed.holders_of("k") == 0).then_some(()));
        run.signal(Signal::CONT);
        let (cause, message, ended_by) = lost(&run.end());
        assert_eq!(cause, "stopped", "{message}");
        assert!(message.starts_with("quorlock itself stood still for "), "{message}");
        assert!(message.contains("SIGSTOP") && !message.contains("nodes"), "{message}");
        assert_eq!(ended_by.is_null(), ends_first, "{ended_by}");
    }
}
