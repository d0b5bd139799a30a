//! `run --shared` and `run --also` on real servers.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{Running, Testbed, code, command, eventually, json_lines, stderr, stdout};
use quorlock_servers::Reply;

/// A script that creates the file `name` and ends when the file `go` exists. It logs its beginning and its end.
fn stays(name: &str) -> String {
    format!(
        "echo {name} in >> log; echo > {name}; while [ ! -e go ]; do sleep 0.02; done; echo {name} out >> log"
    )
}

impl Testbed {
    fn run(&self, args: &[&str], script: &str) -> Running {
        self.start(&[&["run"], args, &["--", "sh", "-c", script]].concat())
    }

    fn tries(&self, args: &[&str]) -> (i32, String) {
        let output = self.output(&[&["run", "--wait", "0s"], args, &["--", "true"]].concat());
        (output.status.code().unwrap(), stderr(&output))
    }

    /// Asserts that a single attempt is refused, and returns its messages.
    fn is_held(&self, args: &[&str]) -> String {
        let (code, said) = self.tries(args);
        assert_eq!(code, 75, "{args:?}: {said}");
        said
    }

    fn status(&self, key: &str) -> String {
        stdout(&self.output(&["status", key]))
    }

    fn go(&self) {
        fs::write(self.path("go"), "\n").unwrap();
    }

    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

fn all_succeed(runs: impl IntoIterator<Item = Running>) {
    runs.into_iter().for_each(|run| code(&run.end(), 0));
}

/// Two readers run, and `disturb` is called. A waiting writer gets the lock before later readers, and runs alone.
fn readers_and_a_writer(testbed: &Testbed, disturb: impl FnOnce()) {
    let readers = ["r1", "r2"].map(|name| testbed.run(&["k", "--shared"], &stays(name)));
    ["r1", "r2"].iter().for_each(|name| drop(testbed.await_file(name)));
    disturb();
    eventually("status shows both", || {
        testbed.status("k").contains("HELD shared by 2 readers").then_some(())
    });
    let said = testbed.is_held(&["k"]);
    assert!(said.contains("held by 2 readers ("), "{said}");
    let (code, said) = testbed.tries(&["k", "--shared"]);
    assert_eq!(code, 0, "a third reader: {said}");

    let writer = testbed.run(&["k"], "echo w in >> log; sleep 0.2; echo w out >> log");
    let said = eventually("readers are refused", || {
        let (code, said) = testbed.tries(&["k", "--shared"]);
        (code == 75).then_some(said)
    });
    assert!(said.contains("waits as a writer"), "{said}");
    let late = testbed.run(&["k", "--shared"], "echo r3 in >> log");
    late.await_line("waiting");
    testbed.go();
    all_succeed(readers.into_iter().chain([writer, late]));
    let log = testbed.log();
    assert_eq!(log[log.len() - 3..], ["w in", "w out", "r3 in"], "{log:?}");
    assert_eq!(testbed.holders_of("k"), 0);
}

#[test]
fn readers_run_together_and_a_waiting_writer_is_next() {
    let Some(testbed) = Testbed::new() else { return };
    readers_and_a_writer(&testbed, || {});
}

#[test]
fn a_waiting_writer_is_next_with_two_of_five_nodes_killed() {
    let Some(testbed) = Testbed::new() else { return };
    testbed.nodes[1].kill().unwrap();
    readers_and_a_writer(&testbed, || testbed.nodes[4].kill().unwrap());
}

/// The restart guard keeps the restarted node from voting. The waiting writer must still be next.
#[test]
fn a_waiting_writer_is_next_with_a_node_restarted_under_the_restart_guard() {
    let Some(mut testbed) = Testbed::new() else { return };
    testbed.guard = "strict";
    code(&testbed.output(&["init", "--fresh", "--yes"]), 0);
    readers_and_a_writer(&testbed, || testbed.nodes[2].restart().unwrap());
}

#[test]
fn a_writer_keeps_readers_out() {
    let Some(testbed) = Testbed::new() else { return };
    let writer = testbed.run(&["k"], &stays("w"));
    testbed.await_file("w");
    testbed.is_held(&["k", "--shared"]);
    let reader = testbed.run(&["k", "--shared"], "echo r in >> log");
    reader.await_line("waiting");
    testbed.go();
    all_succeed([writer, reader]);
    assert_eq!(testbed.log(), ["w in", "w out", "r in"]);
}

/// Clients of other libraries send `SET key value NX PX ttl`. Such a key must exclude readers and writers.
#[test]
fn locks_of_other_libraries_count_as_writers() {
    let Some(testbed) = Testbed::new() else { return };
    let plain = |nodes: &[quorlock_servers::Server]| {
        let set = ["SET", "k", "plain", "NX", "PX", "60000"];
        nodes.iter().filter(|node| command(node, &set) != Reply::Bulk(None)).count()
    };
    let reader = testbed.run(&["k", "--shared"], &stays("r"));
    testbed.await_file("r");
    eventually("all five nodes have the key", || (testbed.holders_of("k") == 5).then_some(()));
    assert_eq!(plain(&testbed.nodes), 0, "every node refuses");
    testbed.go();
    all_succeed([reader]);
    assert_eq!(plain(&testbed.nodes[..3]), 3);
    let said = testbed.is_held(&["k", "--shared"]);
    assert!(said.contains("held by the value \"plain\""), "{said}");
}

#[test]
fn keys_of_other_types_are_refused_and_stay() {
    let Some(testbed) = Testbed::new() else { return };
    let all = |words: &[&str]| -> Vec<Reply> {
        testbed.nodes.iter().map(|node| command(node, words)).collect()
    };
    // The keys are a lock of Redisson, and sorted sets of an application, one without and one with an expiry.
    let redisson = ["HSET", "k", "8f1b:1", "1"];
    let scores = ["ZADD", "k", "1790000000000", "alice", "3", "bob"];
    let read_scores: &[&str] = &["ZRANGE", "k", "0", "-1", "WITHSCORES"];
    for (make, expires, read) in [
        (&redisson[..], true, &["HGETALL", "k"][..]),
        (&scores[..], false, read_scores),
        (&scores[..], true, read_scores),
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
            let said = testbed.is_held(args);
            assert!(said.contains("something that is no lock"), "{args:?}: {said}");
        }
        assert_eq!(all(read), before);
        let ttls = all(&["PTTL", "k"]);
        let is_kept =
            |left: &Reply| matches!(left, Reply::Int(left) if (*left > 300_000) == expires);
        assert!(ttls.iter().all(is_kept), "{ttls:?}");
        let status = testbed.status("k");
        assert!(status.contains("HELD by something that is no lock"), "{status}");
    }
}

#[test]
fn a_lock_of_two_keys_excludes_the_locks_of_each_key() {
    let Some(testbed) = Testbed::new() else { return };
    let both = testbed.run(&["a", "--also", "b", "--label", "both"], &stays("both"));
    testbed.await_file("both");
    for args in [&["a"][..], &["b"][..], &["b", "--also", "c"][..], &["b", "--shared"][..]] {
        let said = testbed.is_held(args);
        assert!(said.contains("both, "), "{args:?}: {said}");
    }
    assert_eq!(testbed.tries(&["c"]).0, 0);
    let said = testbed.is_held(&["c", "--also", "b"]);
    assert!(said.contains("\"b\" held by"), "the message names the key: {said}");
    testbed.go();
    all_succeed([both]);
    assert_eq!(testbed.holders_of("a") + testbed.holders_of("b") + testbed.holders_of("c"), 0);
}

#[test]
fn two_loops_that_take_two_keys_in_opposite_order_make_progress() {
    let Some(testbed) = Testbed::new() else { return };
    let repeat = |first: &'static str, second: &'static str| {
        let testbed = &testbed;
        move || {
            for _ in 0..15 {
                let args = [first, "--also", second, "--ttl", "2s"];
                let script = "flock --nonblock held sleep 0.01 || echo two >> two";
                all_succeed([testbed.run(&args, script)]);
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(repeat("a", "b"));
        scope.spawn(repeat("b", "a"));
    });
    assert!(!testbed.path("two").exists(), "two commands held both keys");
}

#[test]
fn invalid_sets_of_keys_are_refused() {
    let Some(testbed) = Testbed::sized(1) else { return };
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

#[test]
fn a_crashed_reader_keeps_a_writer_out_only_until_its_ttl_ends() {
    let Some(testbed) = Testbed::new() else { return };
    // The test itself writes the vote of a crashed reader, so that it can choose when the vote ends.
    let value = format!("{} crashed", "c".repeat(40));
    let script = "local t = redis.call('TIME') local e = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[2] \
                  redis.call('ZADD', KEYS[1], e, ARGV[1]) redis.call('PEXPIREAT', KEYS[1], e) return 1";
    let crash = |ttl_ms: &str| testbed.on_all(&["EVAL", script, "1", "k", &value, ttl_ms]);
    crash("60000");
    let status = testbed.status("k");
    assert!(status.contains("HELD shared by 1 reader: crashed"), "{status}");
    crash("1000");
    // The wait (20 s) is enough only if the key expires with the reader's ttl (1 s), not with the writer's (30 s).
    all_succeed([testbed.run(&["k", "--ttl", "30s", "--wait", "20s"], "true")]);
}

/// Starts readers of these keys again and again until the writer has had its lock. Returns the number of readers that
/// ran after the writer had set its intents, which keep new readers out, and before it had its lock.
fn writer_among_readers(testbed: &Testbed, keys: &[&str], writer: &[&str]) -> usize {
    /// Ends the readers, also if the test fails.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let run =
        |args: &[&str], script: &str| testbed.run(&[args, &["--wait", "20s"]].concat(), script);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Ends(&is_over);
        for (nth, key) in keys.iter().enumerate() {
            let (is_over, run) = (&is_over, &run);
            scope.spawn(move || {
                // The readers start at different times and overlap, so the keys are never free at the same time.
                thread::sleep(Duration::from_millis(120) * u32::try_from(nth).unwrap());
                while !is_over.load(Ordering::Relaxed) {
                    all_succeed([run(&[key, "--shared"], "echo r >> log; sleep 0.5")]);
                }
            });
        }
        eventually("each reader has run", || (testbed.log().len() > keys.len()).then_some(()));
        let writer = run(writer, "echo w >> log");
        let intents =
            || keys.iter().map(|key| testbed.holders_of(&format!("quorlock:intent:{key}")));
        let before = eventually("the writer has intents or its lock", || {
            let log = testbed.log();
            let is_in = log.contains(&"w".to_owned());
            (is_in || intents().all(|nodes| nodes >= 2)).then_some(log.len())
        });
        all_succeed([writer]);
        drop(over);
        testbed.log().iter().position(|line| line == "w").unwrap().saturating_sub(before)
    })
}

#[test]
fn a_writer_of_two_keys_is_next_although_readers_of_each_take_turns() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let keys = ["a", "a", "a", "b", "b", "b"];
    let later = writer_among_readers(&testbed, &keys, &["a", "--also", "b"]);
    // Each reader may get its lock before the writer sets the intents, and write its line after that, but only once.
    assert!(later <= keys.len(), "{later} later readers");
}

#[test]
fn a_leftover_key_on_one_node_keeps_no_writer_waiting() {
    for leftover in [
        &["SET", "a", "leftover"][..],
        &["SET", "a", "leftover", "PX", "20000"],
        &["HSET", "a", "leftover", "1"],
        &["ZADD", "a", "1790000000000", "leftover"],
    ] {
        let Some(testbed) = Testbed::sized(3) else { return };
        testbed.on(1..2, leftover);
        let later = writer_among_readers(&testbed, &["a", "a", "a"], &["a"]);
        assert!(later <= 3, "{leftover:?}: {later} later readers");
        assert!(testbed.holders_of("a") <= 1, "the lock is released");
    }
}

/// An intent is the key by which a waiting writer keeps new readers out. A client sets it with an expiry. An intent
/// without an expiry keeps readers out for ever.
#[test]
fn the_printed_line_removes_an_intent_that_never_expires() {
    let Some(testbed) = Testbed::sized(3) else { return };
    let intent = ["SET", "quorlock:intent:k", &format!("{} h:1 job", "0".repeat(40))];
    let line = " DEL quorlock:intent:k";
    let lines = |text: &str| text.lines().filter(|told| told.ends_with(line)).count();
    let doctor = || stdout(&testbed.output(&["doctor"]));
    testbed.on(0..2, &[&intent[..], &["PX", "60000"]].concat());
    assert_eq!(
        (lines(&testbed.status("k")), lines(&doctor())),
        (0, 0),
        "a waiting writer's intent"
    );
    testbed.on(0..2, &intent);
    let said = testbed.is_held(&["k", "--shared"]);
    assert!(said.contains("a key without expiry blocks the lock"), "{said}");
    let status = testbed.status("k");
    assert_eq!(lines(&status), 2, "{status}");
    let named = "  node a: a writer's intent never expires and keeps readers out";
    assert!(status.contains(named), "{status}");
    let looks = json_lines(&stdout(&testbed.output(&["status", "l", "k", "--json"])));
    let removed_by = |look: usize, node: usize| &looks[look]["nodes"][node]["intent_removed_by"];
    assert!(removed_by(1, 1).as_str().unwrap().ends_with(line), "{looks:?}");
    assert!(removed_by(1, 2).is_null() && removed_by(0, 0).is_null(), "{looks:?}");
    let examined = doctor();
    assert_eq!(lines(&examined), 2, "{examined}");
    assert!(examined.contains("refuses each reader of that lock"), "{examined}");
    testbed.on(0..2, &["DEL", "quorlock:intent:k"]);
    assert_eq!(testbed.tries(&["k", "--shared"]).0, 0);
    assert_eq!((lines(&testbed.status("k")), lines(&doctor())), (0, 0));
}
