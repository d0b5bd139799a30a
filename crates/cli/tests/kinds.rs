//! `run --shared` and `run --also` on real servers: who runs together, who alone, and who is next.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{Running, Testbed, eventually, stderr, stdout};
use quorlock_servers::{Reply, ServerOptions};
use serde_json::Value;

/// A command that says that it is there, and stays until it may go.
fn stays(name: &str) -> String {
    format!(
        "echo {name} in >> log; echo > {name}; while [ ! -e go ]; do sleep 0.02; done; echo {name} out >> log"
    )
}

impl Testbed {
    fn start(&self, args: &[&str], script: &str) -> Running {
        Running::start(&mut self.quorlock(&[args, &["--", "sh", "-c", script]].concat()))
    }

    /// The exit code of a single attempt, and what it said.
    fn tries(&self, args: &[&str]) -> (i32, String) {
        let args = [&["run", "--wait", "0s"], args, &["--", "true"]].concat();
        let output = self.quorlock(&args).output().unwrap();
        (output.status.code().unwrap(), stderr(&output))
    }

    fn status(&self, key: &str) -> String {
        stdout(&self.quorlock(&["status", key]).output().unwrap())
    }

    fn goes_on(&self) {
        fs::write(self.path("go"), "\n").unwrap();
    }

    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap();
        log.lines().map(str::to_owned).collect()
    }

    /// All of them end well.
    fn all_end(runs: impl IntoIterator<Item = Running>) {
        for run in runs {
            let output = run.end();
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        }
    }
}

/// Two readers run together. A writer that waits is next, although readers keep coming, and runs alone.
fn readers_and_a_writer(testbed: &Testbed, disturb: impl FnOnce()) {
    let readers = ["r1", "r2"].map(|name| testbed.start(&["run", "k", "--shared"], &stays(name)));
    ["r1", "r2"].iter().for_each(|name| drop(testbed.await_file(name)));
    disturb();
    eventually("both are seen", || {
        testbed.status("k").contains("HELD shared by 2 readers").then_some(())
    });
    let (code, said) = testbed.tries(&["k"]);
    assert_eq!(code, 75, "{said}");
    assert!(said.contains("held by 2 readers ("), "{said}");
    let (code, said) = testbed.tries(&["k", "--shared"]);
    assert_eq!(code, 0, "a third reader: {said}");

    let script = "echo w in >> log; sleep 0.2; echo w out >> log";
    let writer = testbed.start(&["run", "k"], script);
    let (code, said) = eventually("readers are held back", || {
        let tried = testbed.tries(&["k", "--shared"]);
        (tried.0 != 0).then_some(tried)
    });
    assert_eq!(code, 75, "{said}");
    assert!(said.contains("waits as a writer"), "{said}");
    let late = testbed.start(&["run", "k", "--shared"], "echo r3 in >> log");
    testbed.goes_on();
    Testbed::all_end(readers.into_iter().chain([writer, late]));
    let log = testbed.log();
    assert_eq!(log[log.len() - 3..], ["w in", "w out", "r3 in"], "{log:?}");
    assert_eq!(testbed.holders_of("k"), 0);
}

#[test]
fn readers_run_together_and_a_writer_that_waits_is_next() {
    let name = "readers_run_together_and_a_writer_that_waits_is_next";
    let Some(testbed) = Testbed::new(name) else { return };
    readers_and_a_writer(&testbed, || {});
}

#[test]
fn the_same_with_two_of_five_killed() {
    let Some(testbed) = Testbed::new("the_same_with_two_of_five_killed") else { return };
    testbed.nodes[1].kill().unwrap();
    readers_and_a_writer(&testbed, || testbed.nodes[4].kill().unwrap());
}

/// The node that was restarted does not vote, and does not let anybody in.
#[test]
fn the_same_with_a_node_restarted_under_the_restart_guard() {
    let name = "the_same_with_a_node_restarted_under_the_restart_guard";
    let Some(mut testbed) = Testbed::new(name) else { return };
    testbed.guard = "strict";
    let init = testbed.quorlock(&["init", "--fresh", "--yes"]).output().unwrap();
    assert_eq!(init.status.code(), Some(0), "{}", stderr(&init));
    readers_and_a_writer(&testbed, || testbed.nodes[2].restart().unwrap());
}

#[test]
fn the_lock_of_a_writer_keeps_readers_out() {
    let Some(testbed) = Testbed::new("the_lock_of_a_writer_keeps_readers_out") else { return };
    let writer = testbed.start(&["run", "k", "--label", "w"], &stays("w"));
    testbed.await_file("w");
    let (code, said) = testbed.tries(&["k", "--shared"]);
    assert_eq!(code, 75, "{said}");
    let reader = testbed.start(&["run", "k", "--shared"], "echo r in >> log");
    testbed.goes_on();
    Testbed::all_end([writer, reader]);
    assert_eq!(testbed.log(), ["w in", "w out", "r in"]);
}

/// What `SET key value NX PX ttl` says, which is all that plain clients of other libraries do.
#[test]
fn plain_locks_of_other_libraries_are_writers() {
    let name = "plain_locks_of_other_libraries_are_writers";
    let Some(testbed) = Testbed::new(name) else { return };
    let plain = |nodes: &[quorlock_servers::Server]| {
        let set = ["SET", "k", "plain", "NX", "PX", "60000"];
        nodes.iter().filter(|node| node.command(&set).unwrap() != Reply::Bulk(None)).count()
    };
    let reader = testbed.start(&["run", "k", "--shared"], &stays("r"));
    testbed.await_file("r");
    eventually("all five have it", || (testbed.holders_of("k") == 5).then_some(()));
    assert_eq!(plain(&testbed.nodes), 0, "refused by every node");
    testbed.goes_on();
    Testbed::all_end([reader]);
    assert_eq!(plain(&testbed.nodes[..3]), 3);
    let (code, said) = testbed.tries(&["k", "--shared"]);
    assert_eq!(code, 75, "{said}");
    assert!(said.contains("held by the foreign value \"plain\""), "{said}");
}

#[test]
fn keys_that_are_no_locks_are_refused_and_never_touched() {
    let name = "keys_that_are_no_locks_are_refused_and_never_touched";
    let Some(testbed) = Testbed::new(name) else { return };
    let all = |args: &[&str]| -> Vec<Reply> {
        testbed.nodes.iter().map(|node| node.command(args).unwrap()).collect()
    };
    // As Redisson keeps its locks; and what an application may have, without expiry and with one.
    let redisson = ["HSET", "k", "8f1b:1", "1"];
    let scores = ["ZADD", "k", "1790000000000", "alice", "3", "bob"];
    for (make, expires, read) in [
        (&redisson[..], true, &["HGETALL", "k"][..]),
        (&scores[..], false, &["ZRANGE", "k", "0", "-1", "WITHSCORES"][..]),
        (&scores[..], true, &["ZRANGE", "k", "0", "-1", "WITHSCORES"][..]),
    ] {
        all(&["DEL", "k"]);
        all(make);
        if expires {
            all(&["PEXPIRE", "k", "600000"]);
        }
        let before = all(read);
        for args in
            [&["k", "--shared"][..], &["k"][..], &["k", "--fenced"][..], &["k", "--also", "b"][..]]
        {
            let (code, said) = testbed.tries(args);
            assert_eq!(code, 75, "{args:?}: {said}");
            assert!(said.contains("something that is no lock"), "{args:?}: {said}");
        }
        assert_eq!(all(read), before);
        let kept = all(&["PTTL", "k"]);
        let is_kept =
            |left: &Reply| matches!(left, Reply::Int(left) if (*left > 300_000) == expires);
        assert!(kept.iter().all(is_kept), "{kept:?}");
        assert!(
            testbed.status("k").contains("HELD by something that is no lock"),
            "{}",
            testbed.status("k")
        );
    }
}

#[test]
fn a_lock_of_two_keys_excludes_those_of_each() {
    let name = "a_lock_of_two_keys_excludes_those_of_each";
    let Some(testbed) = Testbed::new(name) else { return };
    let both = testbed.start(&["run", "a", "--also", "b", "--label", "both"], &stays("both"));
    testbed.await_file("both");
    for args in [&["a"][..], &["b"][..], &["b", "--also", "c"][..], &["b", "--shared"][..]] {
        let (code, said) = testbed.tries(args);
        assert_eq!(code, 75, "{args:?}: {said}");
        assert!(said.contains("both, "), "{args:?}: {said}");
    }
    assert_eq!(testbed.tries(&["c"]).0, 0);
    let (_, said) = testbed.tries(&["c", "--also", "b"]);
    assert!(said.contains("\"b\" held by"), "it says which: {said}");
    testbed.goes_on();
    Testbed::all_end([both]);
    assert_eq!(testbed.holders_of("a") + testbed.holders_of("b") + testbed.holders_of("c"), 0);
}

#[test]
fn opposite_orders_in_two_shells_never_wait_for_each_other() {
    let name = "opposite_orders_in_two_shells_never_wait_for_each_other";
    let Some(testbed) = Testbed::new(name) else { return };
    let shell = |first: &'static str, second: &'static str| {
        let testbed = &testbed;
        move || {
            for _ in 0..15 {
                let args = ["run", first, "--also", second, "--ttl", "2s"];
                Testbed::all_end([
                    testbed.start(&args, "flock --nonblock held sleep 0.01 || echo two >> two")
                ]);
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(shell("a", "b"));
        scope.spawn(shell("b", "a"));
    });
    assert!(!testbed.path("two").exists(), "two held both");
}

#[test]
fn what_does_not_go_together_is_refused_before_anything_is_sent() {
    let options = ServerOptions::default();
    let name = "what_does_not_go_together_is_refused_before_anything_is_sent";
    let Some(testbed) = Testbed::sized(name, 1, options) else { return };
    for (args, why) in [
        (&["k", "--shared", "--fenced"][..], "--shared, --fenced: these do not go together"),
        (&["k", "--also", "k"][..], "\"k\" is named twice"),
        (&["k", "--also", ""][..], "KEY has no name"),
        (&["k", "--also", "quorlock:x"][..], "quorlock:"),
    ] {
        let (code, said) = testbed.tries(args);
        assert_eq!(code, 64, "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    }
}

/// A reader that is killed keeps a writer out for its own ttl, and no longer.
#[test]
fn a_reader_that_crashed_is_waited_for_no_longer_than_its_ttl() {
    let name = "a_reader_that_crashed_is_waited_for_no_longer_than_its_ttl";
    let Some(testbed) = Testbed::new(name) else { return };
    // Another library's process would be gone at once; this one's guardian must be killed as well.
    let value = format!("{} crashed", "c".repeat(40));
    for node in testbed.nodes.iter() {
        let script = "local t = redis.call('TIME') local e = t[1] * 1000 + math.floor(t[2] / 1000) + 700 \
                      redis.call('ZADD', KEYS[1], e, ARGV[1]) redis.call('PEXPIREAT', KEYS[1], e) return 1";
        node.command(&["EVAL", script, "1", "k", &value]).unwrap();
    }
    assert!(
        testbed.status("k").contains("HELD shared by 1 reader: crashed"),
        "{}",
        testbed.status("k")
    );
    let began = common::boot();
    Testbed::all_end([testbed.start(&["run", "k", "--wait", "20s"], "true")]);
    let waited = common::boot() - began;
    // Its ttl bounds the wait; the rest is what a busy machine takes to start a process.
    assert!(waited < Duration::from_secs(10), "{waited:?}");
}

/// Readers of these keys start one after the other, and again and again until a writer has had its lock. Returns how many
/// came in between the writer's intents and its lock.
fn writer_among_readers(testbed: &Testbed, keys: &[&str], writer: &[&str]) -> usize {
    /// Also ends the readers of a test that fails.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let start = |args: &[&str], script: &str| {
        testbed.start(&[&["run", "--wait", "20s"], args].concat(), script)
    };
    let log = || fs::read_to_string(testbed.path("log")).unwrap_or_default();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Ends(&is_over);
        for (nth, key) in keys.iter().enumerate() {
            let (is_over, start) = (&is_over, &start);
            scope.spawn(move || {
                // They overlap, so at no moment is every key free.
                thread::sleep(Duration::from_millis(120) * u32::try_from(nth).unwrap());
                while !is_over.load(Ordering::Relaxed) {
                    Testbed::all_end([start(&[key, "--shared"], "echo r >> log; sleep 0.5")]);
                }
            });
        }
        eventually("all have been there", || (log().lines().count() > keys.len()).then_some(()));
        let run = start(writer, "echo w >> log");
        let intents =
            || keys.iter().map(|key| testbed.holders_of(&format!("quorlock:intent:{key}")));
        let before = eventually("the writer says that it waits, or has its lock", || {
            let log = log();
            (intents().all(|nodes| nodes >= 2) || log.contains('w')).then(|| log.lines().count())
        });
        Testbed::all_end([run]);
        drop(over);
        log().lines().position(|line| line == "w").unwrap().saturating_sub(before)
    })
}

#[test]
fn a_writer_of_two_keys_is_next_although_readers_of_each_take_turns() {
    let name = "a_writer_of_two_keys_is_next_although_readers_of_each_take_turns";
    let Some(testbed) = Testbed::sized(name, 3, ServerOptions::default()) else { return };
    let keys = ["a", "a", "a", "b", "b", "b"];
    let came = writer_among_readers(&testbed, &keys, &["a", "--also", "b"]);
    // Each may have been let in before the intents were there, and told of it afterwards.
    assert!(came <= keys.len(), "{came} later readers");
}

#[test]
fn a_leftover_key_on_one_node_keeps_no_writer_waiting() {
    let name = "a_leftover_key_on_one_node_keeps_no_writer_waiting";
    for leftover in [
        &["SET", "a", "leftover"][..],
        &["SET", "a", "leftover", "PX", "20000"],
        &["HSET", "a", "leftover", "1"],
        &["ZADD", "a", "1790000000000", "leftover"],
    ] {
        let Some(testbed) = Testbed::sized(name, 3, ServerOptions::default()) else { return };
        testbed.nodes[1].command(leftover).unwrap();
        let came = writer_among_readers(&testbed, &["a", "a", "a"], &["a"]);
        assert!(came <= 3, "{leftover:?}: {came} later readers");
        assert!(testbed.holders_of("a") <= 1, "the lock was given back");
    }
}

/// An intent always expires, so one that does not was left behind, and readers would wait for it for ever.
#[test]
fn an_intent_that_never_expires_is_shown_with_what_removes_it() {
    let name = "an_intent_that_never_expires_is_shown_with_what_removes_it";
    let Some(testbed) = Testbed::sized(name, 3, ServerOptions::default()) else { return };
    let intent = ["SET", "quorlock:intent:k", &format!("{} h:1 job", "0".repeat(40))];
    let on_two = |words: &[&str]| {
        testbed.nodes.iter().take(2).for_each(|node| drop(node.command(words).unwrap()));
    };
    let line = " DEL quorlock:intent:k";
    let lines = |text: &str| text.lines().filter(|told| told.ends_with(line)).count();
    let doctor = || stdout(&testbed.quorlock(&["doctor"]).output().unwrap());
    // A waiting writer's own is no leftover.
    on_two(&[&intent[..], &["PX", "60000"]].concat());
    assert_eq!((lines(&testbed.status("k")), lines(&doctor())), (0, 0));
    on_two(&intent);
    let (code, said) = testbed.tries(&["k", "--shared"]);
    assert_eq!(code, 75, "{said}");
    assert!(said.contains("a key without expiry blocks the lock"), "{said}");
    let told = testbed.status("k");
    assert_eq!(lines(&told), 2, "{told}");
    assert!(
        told.contains("  node a: a writer's intent never expires and keeps readers out"),
        "{told}"
    );
    let args = ["status", "l", "k", "--json"];
    let json = stdout(&testbed.quorlock(&args).output().unwrap());
    let looks: Vec<Value> = json.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let removed_by = |look: usize, node: usize| &looks[look]["nodes"][node]["intent_removed_by"];
    assert!(removed_by(1, 1).as_str().unwrap().ends_with(line), "{json}");
    assert!(removed_by(1, 2).is_null() && removed_by(0, 0).is_null(), "{json}");
    let told = doctor();
    assert_eq!(lines(&told), 2, "{told}");
    assert!(told.contains("refuses each reader of that lock"), "{told}");
    on_two(&["DEL", "quorlock:intent:k"]);
    assert_eq!(testbed.tries(&["k", "--shared"]).0, 0);
    assert_eq!((lines(&testbed.status("k")), lines(&doctor())), (0, 0));
}
