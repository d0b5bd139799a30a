//! Calls of `quorlock acquire`, `extend`, `release` and `query` that fail or are refused, and locks with a value of the
//! caller.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::os::unix::process::CommandExt as _;

use common::leases::{
    acquire, acquire_json, is_free, nothing_is_sent, quorum_holds, script, servers,
};
use common::{code, json_lines, stderr, stdout};
use serde_json::Value;

#[test]
fn a_text_that_is_no_lease_of_these_nodes_is_refused_and_nothing_is_sent() {
    let Some(testbed) = servers(5) else { return };
    let lease = acquire(&testbed, &[]);
    let edited = lease.replacen("key=k", "key=m", 1);
    let indented = format!(" {lease}");
    nothing_is_sent(&testbed, || {
        for text in [&lease[..lease.len() - 1], &lease[1..], &edited, &indented, "", "nonsense"] {
            for command in ["extend", "release"] {
                let output = testbed.output(&[command, text]);
                code(&output, 65);
                assert_eq!(stdout(&output), "");
                assert!(!stderr(&output).contains("value="), "the message shows no secret");
            }
        }
        for command in ["extend", "release"] {
            let mut other = testbed.quorlock(&[command, &lease]);
            other.env("QUORLOCK_NODES", testbed.named(0..3));
            let output = other.output().unwrap();
            code(&output, 65);
            assert!(stderr(&output).contains("another configuration"), "{}", stderr(&output));
            let prefixed = testbed.output(&[command, &lease, "--key-prefix", "p:"]);
            code(&prefixed, 65);
        }
    });
    assert!(quorum_holds(&testbed, "k"));
}

#[test]
fn the_exit_codes_of_acquire_are_those_of_run() {
    let Some(testbed) = servers(3) else { return };
    let refused = |args: &[&str], expected: i32| {
        let output = testbed.output(&[&["acquire"], args].concat());
        code(&output, expected);
        assert_eq!(stdout(&output), "", "{args:?}");
        stderr(&output)
    };
    for (other, options) in [
        ("shared", &["--shared"][..]),
        ("fenced", &["--fenced"]),
        ("also", &["--also", "l"]),
        ("label", &["--label", "l"]),
    ] {
        let said = refused(&[&["k", "--value", "v"], options].concat(), 64);
        assert!(said.contains(&format!("--value, --{other}: ")), "{said}");
    }
    refused(&["k", "--shared", "--fenced"], 64);
    refused(&["k", "--on-lost", "TERM"], 64);
    refused(&["k", "--hold-by", "1", "--on-lost", "NOSUCH"], 64);
    refused(&["k", "--hold-by", "0"], 64);
    let pid = &std::process::id().to_string();
    let said = refused(&["k", "--hold-by", pid, "--on-lost", "none", "--ttl", "499ms"], 64);
    assert!(said.contains("--ttl (499ms) must be at least 500ms"), "{said}");
    let said = refused(&["k", "--hold-by", "2147483647"], 64);
    assert!(said.contains("there is no process 2147483647"), "{said}");
    assert!(is_free(&testbed, "k"));
    let _lease = acquire(&testbed, &[]);
    refused(&["k", "--wait", "0s"], 75);
    testbed.nodes.iter().for_each(|node| node.kill().unwrap());
    refused(&["l", "--wait", "0s"], 69);
    code(&testbed.output(&["query", "k"]), 69);
}

#[test]
fn a_value_is_taken_once_and_queried_and_released_by_lease_or_by_value() {
    let Some(testbed) = servers(5) else { return };
    let query = |expected: i32, text: &str| {
        let output = testbed.output(&["query", "k"]);
        code(&output, expected);
        assert_eq!(stdout(&output), text);
        let output = testbed.output(&["query", "k", "--json"]);
        code(&output, expected);
        json_lines(&stdout(&output)).remove(0)
    };
    assert_eq!(query(1, "")["state"], "free");
    let lease = acquire(&testbed, &["--value", "V 1"]);
    assert_eq!(query(0, "V 1\n")["value"], "V 1");
    let second = testbed.output(&["acquire", "k", "--value", "V 1", "--wait", "0s"]);
    code(&second, 75);
    let waiting = testbed.output(&["acquire", "k", "--value", "V 1", "--wait", "300ms"]);
    code(&waiting, 75);
    assert!(stderr(&waiting).contains("waiting for"), "{}", stderr(&waiting));
    let other = testbed.output(&["release", "k", "--value", "other"]);
    code(&other, 79);
    assert!(
        stderr(&other).contains("\"k\" has another value (nodes a, b, c"),
        "{}",
        stderr(&other)
    );
    assert!(quorum_holds(&testbed, "k"), "another value releases nothing");
    let other = testbed.output(&["extend", "k", "--value", "other"]);
    code(&other, 79);
    assert!(stderr(&other).contains("no quorum of nodes has this value"), "{}", stderr(&other));
    code(&testbed.output(&["release", &lease]), 0);
    assert!(is_free(&testbed, "k"));

    let old = acquire(&testbed, &["--value", "V"]);
    code(&testbed.output(&["release", "k", "--value", "V"]), 0);
    assert!(is_free(&testbed, "k"));
    let _new = acquire(&testbed, &["--value", "V"]);
    // The lease has the nonce of its own lock, so `release` does not end a later lock with an equal value.
    let late = testbed.output(&["release", &old]);
    code(&late, 0);
    assert!(quorum_holds(&testbed, "k") && stderr(&late).contains("over already"));
    let extended = testbed.output(&["extend", "k", "--value", "V", "--ttl", "3s"]);
    code(&extended, 0);
    assert_eq!(stdout(&extended), "");
    code(&testbed.output(&["release", "k", "--value", "V"]), 0);
    let free = testbed.output(&["extend", "k", "--value", "V"]);
    code(&free, 79);
    assert!(stderr(&free).contains("\"k\" is free"), "{}", stderr(&free));
    let free = testbed.output(&["release", "k", "--value", "V"]);
    code(&free, 0);
    assert!(
        stderr(&free).contains("no quorum of nodes had this value at \"k\""),
        "{}",
        stderr(&free)
    );
    code(&testbed.output(&["extend", "k", "--value", "V", "--lease-file", "x"]), 64);

    for (node, value) in ["x", "x", "y", "y", "z"].iter().enumerate() {
        testbed.on(node..node + 1, &["SET", "k", value, "PX", "60000"]);
    }
    assert_eq!(query(75, "")["state"], "split");
    let told = stderr(&testbed.output(&["query", "k"]));
    assert!(told.contains("SPLIT") && told.contains("node e held by the value \"z\""), "{told}");
    testbed.on_all(&["DEL", "k"]);
    testbed.on_all(&["SADD", "k", "member"]);
    assert_eq!(query(75, "")["state"], "other_type");
    let told = stderr(&testbed.output(&["query", "k"]));
    assert!(told.contains("a key of another type"), "{told}");
}

#[test]
fn a_closed_standard_output_is_refused_unless_the_lock_ends_without_a_lease() {
    let Some(testbed) = servers(3) else { return };
    nothing_is_sent(&testbed, || {
        let output = script(&testbed, "sh", "quorlock acquire k >&-").output().unwrap();
        code(&output, 70);
        assert!(stderr(&output).contains("standard output is closed"), "{}", stderr(&output));
    });
    for text in [
        "quorlock acquire k --lease-file x >&- && quorlock release --lease-file x",
        "quorlock acquire k --value v >&- && quorlock release k --value v",
        "quorlock acquire k --ttl 1s >/dev/null",
    ] {
        code(&script(&testbed, "sh", text).output().unwrap(), 0);
    }
    assert!(quorum_holds(&testbed, "k"), "the caller chose to get no lease");
}

#[test]
fn a_process_of_another_user_is_refused_as_the_holder() {
    let Some(testbed) = servers(1) else { return };
    let mut command = testbed.quorlock(&["acquire", "k", "--hold-by", "1"]);
    if rustix::process::geteuid().is_root() {
        // The user 65534 has no access to the test's folder, so the program starts in `/` and reads no configuration.
        command.uid(65534).env("QUORLOCK_CONFIG", "/dev/null").current_dir("/");
    }
    let Ok(output) = command.output() else {
        eprintln!("skipped: another user may not run the program");
        return;
    };
    code(&output, 64);
    let said = stderr(&output);
    assert!(said.contains("--hold-by: process 1 belongs to another user"), "{said}");
    assert!(said.contains("--on-lost none"), "{said}");
}

#[test]
fn a_client_whose_times_do_not_fit_the_lease_is_refused_with_the_value_to_use() {
    let Some(testbed) = servers(3) else { return };
    let lease = acquire(&testbed, &[]);
    nothing_is_sent(&testbed, || {
        for verb in ["extend", "release"] {
            let output = testbed.output(&[verb, &lease, "--max-ttl", "4s"]);
            code(&output, 64);
            let said = stderr(&output);
            assert!(said.contains("the lease of \"k\" has a ttl of 5s: "), "{said}");
            assert!(said.contains("use --max-ttl 5s or more"), "{said}");
            let output = testbed.output(&[verb, &lease, "--node-timeout", "2s"]);
            code(&output, 64);
            assert!(stderr(&output).contains("use --node-timeout 1250ms or less"));
        }
        let output = testbed.output(&["extend", &lease, "--ttl", "6s"]);
        code(&output, 64);
        assert!(stderr(&output).contains("--ttl: a lease keeps the ttl of its acquire, here 5s"));
    });
    let limited = acquire_json(&testbed, &["l", "--max-hold", "10s", "--ttl", "10s"]);
    let output = testbed.output(&["extend", limited["lease"].as_str().unwrap()]);
    code(&output, 79);
    let said = stderr(&output);
    assert!(said.contains("past --max-hold of its acquire; it ends at "), "{said}");
    let by_value = testbed.output(&["extend", "k", "--value", "v", "--ttl", "1h"]);
    code(&by_value, 64);
    let mut ttl = testbed.quorlock(&["extend", &lease]);
    code(&ttl.env("QUORLOCK_TTL", "6s").output().unwrap(), 0);
}

#[test]
fn a_missing_password_is_told_apart_from_a_quorum_that_is_down() {
    let Some(testbed) = servers(3) else { return };
    let lease = acquire(&testbed, &[]);
    testbed.on_all(&["CONFIG", "SET", "requirepass", "secret"]);
    for args in [
        &["acquire", "k", "--wait", "0s"][..],
        &["extend", &lease],
        &["extend", "k", "--value", "v"],
        &["release", &lease],
        &["release", "k", "--value", "v"],
        &["query", "k"],
    ] {
        let output = testbed.output(args);
        code(&output, 77);
        assert!(stderr(&output).contains("a password is needed"), "{}", stderr(&output));
        assert!(!stderr(&output).contains("try again"), "{}", stderr(&output));
    }
}

/// The text of a lease is a secret, and messages end up in the logs of jobs.
#[test]
fn a_lease_in_a_wrong_place_is_refused_and_not_repeated() {
    let Some(testbed) = servers(3) else { return };
    let lease = &acquire(&testbed, &["--label", "l"]);
    let refused = |args: &[&str], expected: i32| {
        let output = testbed.output(args);
        code(&output, expected);
        let said = stderr(&output) + &stdout(&output);
        assert!(!said.contains("key=k"), "{args:?}: {said}");
        said
    };
    for args in [
        &["query", lease][..],
        &["status", lease],
        &["acquire", lease],
        &["acquire", "l", "--also", lease],
        &["run", lease, "--", "true"],
        &["extend", lease, "--value", "v"],
    ] {
        nothing_is_sent(&testbed, || {
            let said = refused(args, 64);
            assert!(said.contains("this is a lease, not the name of a lock"), "{args:?}: {said}");
        });
    }
    let long = &format!("{lease}{}", "a".repeat(300));
    for (args, expected, text) in [
        (&["extend", lease, lease][..], 64, "unexpected argument 'quorlock1:…' found"),
        (&["extend", lease, "--ttl", lease], 64, "invalid value 'quorlock1:…' for"),
        (&["release", "--lease-file", long], 64, "File name too long"),
        (&["acquire", "l", "--lease-file", long], 64, "File name too long"),
        (&["acquire", "l", "--lease-file", long, "--json"], 64, "File name too long"),
        (&["run", "l", "--status-fd", "1", "--", long], 126, "quorlock1:…"),
    ] {
        let said = refused(args, expected);
        assert!(said.contains(text), "{args:?}: {said}");
    }
    let mut variable = testbed.quorlock(&["query", "k"]);
    let output = variable.env("QUORLOCK_TTL", lease).output().unwrap();
    code(&output, 78);
    assert!(!stderr(&output).contains("kind="), "{}", stderr(&output));
    code(&testbed.output(&["release", lease]), 0);
}

/// Asserts that the last line on standard error is an event with these fields, and returns the event.
fn event(output: &std::process::Output, name: &str, fields: &[&str]) -> Value {
    let event = json_lines(&stderr(output)).pop().unwrap();
    assert_eq!(event["event"], name, "{event}");
    for field in fields {
        assert!(event.get(field).is_some(), "{field}: {event}");
    }
    event
}

#[test]
fn the_events_have_the_names_and_fields_of_those_of_run() {
    let Some(testbed) = servers(3) else { return };
    let validity = ["key", "also", "fence", "valid_for_ms", "valid_until_unix_ms"];
    let args = ["acquire", "k", "--also", "l", "--fenced", "--lease-file", "x", "--json"];
    let output = testbed.output(&args);
    let acquired = event(&output, "acquired", &[&validity[..], &["untrusted_nodes"]].concat());
    let printed = json_lines(&stdout(&output)).remove(0);
    assert!(acquired["fence"].is_u64() && acquired["fence"] == printed["fence"], "{printed}");
    let on_file = |verb| testbed.output(&[verb, "--lease-file", "x", "--json"]);
    event(&on_file("extend"), "extended", &validity);
    testbed.on_all(&["DEL", "k", "l"]);
    let lost = event(&on_file("extend"), "lost", &["key", "also", "message", "nodes"]);
    assert_eq!(lost["cause"], "key_gone");
    let released = event(&on_file("release"), "released", &["key", "also"]);
    assert_eq!(released["outcome"], "expired");

    let lease = acquire_json(&testbed, &["k", "--value", "mine"]);
    let wrong = testbed.output(&["extend", "k", "--value", "wrong", "--json"]);
    assert_eq!(event(&wrong, "lost", &["key", "nodes"])["cause"], "key_overwritten");
    testbed.nodes[..2].iter().for_each(|node| node.kill().unwrap());
    let down = testbed.output(&["extend", lease["lease"].as_str().unwrap(), "--json"]);
    let unconfirmed = event(&down, "unconfirmed", &["key", "message", "nodes", "confirmed"]);
    assert_eq!(unconfirmed["of"], 3);
}

/// `status` knows a lock with a value of the caller by its nonce (a second key). Another library writes no nonce.
#[test]
fn status_tells_a_value_of_the_caller_from_that_of_another_library() {
    let Some(testbed) = servers(3) else { return };
    let status = || stdout(&testbed.output(&["status", "k"]));
    let lease = acquire(&testbed, &["--value", "mine"]);
    let taken = status();
    assert!(taken.starts_with("k: HELD by the value \"mine\" that its caller chose, "), "{taken}");
    let refused = stderr(&testbed.output(&["acquire", "k", "--wait", "0s"]));
    assert!(refused.contains("\"mine\", which is not one of quorlock's tokens"), "{refused}");
    code(&testbed.output(&["release", &lease]), 0);
    testbed.on_all(&["SET", "k", "mine", "PX", "60000"]);
    let other = status();
    assert!(other.contains("which is not one of quorlock's tokens"), "{other}");
}
