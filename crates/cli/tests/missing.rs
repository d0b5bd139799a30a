//! In each test a server lacks one of the commands that `quorlock` sends, or the user lacks the right to it. `run` must
//! fail at once, name the command and leave no key. `doctor` must name the command and the remedy.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::time::Duration;

use common::{Testbed, boot, code, command, json_lines, server, stderr, stdout};
use quorlock::admin::{RIGHTS, WITHOUT_RIGHT, Weight};
use quorlock_servers::{Nodes, Reply, ServerBinary, ServerOptions};
use serde_json::Value;

/// A testbed with one server that lacks these commands.
fn without(binary: &ServerBinary, commands: &[&str], guard: &'static str) -> Testbed {
    let args = commands.iter().flat_map(|command| ["--rename-command", command, ""]);
    let args = args.map(str::to_owned).collect();
    let nodes = Nodes::start(binary, 1, ServerOptions { args, ..ServerOptions::default() });
    Testbed { guard, ..Testbed::of(nodes.unwrap()) }
}

/// The arguments of `run` for each kind of lock: a mutex, a reader, a lock with a fencing token, and two keys.
const FORMS: [&[&str]; 4] = [&["k"], &["k", "--shared"], &["k", "--fenced"], &["k", "--also", "l"]];

fn is_shared(form: &[&str]) -> bool {
    form.contains(&"--shared")
}

/// Requests each kind of lock ([`FORMS`]). If `is_refused` is true, the message must name the missing command.
fn each_form(testbed: &Testbed, named: &str, is_refused: impl Fn(&[&str]) -> bool) {
    let said = [&format!("no command {named} (renamed"), "remove its rename-command line"];
    each_form_says(testbed, None, &said, is_refused);
}

/// Like [`each_form`], for this user. If `is_refused` is true of a kind, the message must contain all of `named`.
fn each_form_says(
    testbed: &Testbed,
    user: Option<&str>,
    named: &[&str],
    is_refused: impl Fn(&[&str]) -> bool,
) {
    for form in FORMS {
        for skip in [false, true] {
            let skip: &[&str] = if skip { &["--if-held", "skip"] } else { &[] };
            let args = [&["run"], form, skip, &["--wait", "20s", "--", "touch", "ran"]].concat();
            let began = boot();
            let mut command = testbed.quorlock(&args);
            if let Some(user) = user {
                command.env("QUORLOCK_USERNAME", user).env("QUORLOCK_PASSWORD", "any");
            }
            let output = command.output().unwrap();
            let said = stderr(&output);
            let expected = if is_refused(form) { 77 } else { 0 };
            assert_eq!(output.status.code(), Some(expected), "{named:?}: {args:?}: {said}");
            assert_eq!(testbed.path("ran").exists(), expected == 0, "{named:?}: {args:?}");
            if expected == 0 {
                std::fs::remove_file(testbed.path("ran")).unwrap();
                continue;
            }
            assert!(boot() - began < Duration::from_secs(10), "{named:?}: a wait");
            assert!(named.iter().all(|words| said.contains(words)), "{named:?}: {args:?}: {said}");
            has_no_key(testbed);
        }
    }
}

fn has_no_key(testbed: &Testbed) {
    assert_eq!(command(&testbed.nodes[0], &["DBSIZE"]), Reply::Int(0));
}

fn findings(testbed: &Testbed) -> Vec<Value> {
    let output = testbed.output(&["doctor", "--json"]);
    json_lines(&stdout(&output))[0]["nodes"][0]["findings"].as_array().unwrap().clone()
}

/// The finding of `doctor` about missing commands.
fn doctor(testbed: &Testbed) -> Option<Value> {
    findings(testbed).into_iter().find(|finding| finding["check"] == "command")
}

fn says(finding: &Value, severity: &str, command: &str) {
    assert_eq!(finding["severity"], severity, "{finding}");
    let told = |field: &str, words: &str| finding[field].as_str().unwrap().contains(words);
    assert!(told("what", &format!("no command {command} (renamed or disabled)")), "{finding}");
    assert!(told("fix", &format!("rename-command {command} ")), "{finding}");
}

/// The restart guard is strict, as it is by default. With complete servers, each call would wait for the quarantine, in
/// which new nodes do not vote. Here it must be refused at once.
#[test]
fn without_a_command_that_every_lock_needs_no_lock_is_granted() {
    let Some(binary) = server() else { return };
    for (_, weight, call) in RIGHTS {
        let command = call[0];
        if *weight != Weight::Needed || matches!(command, "DELIFEQ" | "DELEX") {
            continue;
        }
        let testbed = without(&binary, &[command], "strict");
        each_form(&testbed, command, |_| true);
        says(&doctor(&testbed).unwrap(), "error", command);
        code(&testbed.output(&["doctor"]), 2);
        let findings = findings(&testbed);
        let errors: Vec<_> = findings.iter().filter(|it| it["severity"] == "error").collect();
        assert_eq!(errors.len(), 1, "{command}: {errors:?}");
        let fix = errors[0]["fix"].as_str().unwrap();
        assert_eq!(fix.contains("INFO server names it"), command != "INFO", "{fix}");
        assert_eq!(fix.contains("systemctl cat "), command == "INFO", "{fix}");
        init_is_refused(&testbed, command);
    }
}

/// Asserts that `init` fails, names the missing command, and writes no key.
fn init_is_refused(testbed: &Testbed, command: &str) {
    for args in [&["init", "--fresh", "--yes"][..], &["init", "--reconfigure", "--yes"]] {
        let output = testbed.output(args);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(77), "{command}: {args:?}: {said}");
        assert!(said.contains("0 of 1 nodes can be used"), "{said}");
        assert!(said.contains(&format!("no command {command} (renamed")), "{args:?}: {said}");
        assert!(said.contains("remove its rename-command line"), "{said}");
        has_no_key(testbed);
    }
}

/// Asserts that `init` fails for the user `u`, and that the message contains `what`: the missing right.
fn init_lacks(testbed: &Testbed, what: &str) {
    for args in [&["init", "--fresh", "--yes", "--force"][..], &["init", "--reconfigure", "--yes"]]
    {
        let mut command = testbed.quorlock(args);
        command.env("QUORLOCK_USERNAME", "u").env("QUORLOCK_PASSWORD", "any");
        let output = command.output().unwrap();
        code(&output, 77);
        let said = stderr(&output);
        assert!(said.contains(what) && said.contains("correct the user"), "{args:?}: {said}");
    }
}

#[test]
fn init_without_scan_names_the_command() {
    let Some(binary) = server() else { return };
    let testbed = without(&binary, &["SCAN"], "strict");
    let init = |more: &[&str]| {
        let args = [&["init", "--fresh", "--yes"], more].concat();
        testbed.output(&args)
    };
    let output = init(&[]);
    code(&output, 77);
    let said = stderr(&output);
    assert!(said.contains("no command SCAN (renamed"), "{said}");
    let missing = "a command that looks for locks is missing; remove its rename-command line";
    assert!(said.contains(missing), "{said}");
    assert!(!said.contains("right"), "{said}");
    code(&init(&["--force"]), 0);
}

/// Runs `quorlock` with two complete servers and one without this command.
fn with_one_of_three_without(missing: &str, guard: &'static str, args: &[&str], command: &[&str]) {
    let Some(binary) = server() else { return };
    let two = Nodes::start(&binary, 2, ServerOptions::default()).unwrap();
    let one = without(&binary, &[missing], guard);
    let urls: Vec<String> = two.urls().into_iter().chain(one.nodes.urls()).collect();
    let nodes = urls.iter().flat_map(|url| ["-n", url.as_str()]);
    let args: Vec<&str> =
        args.iter().copied().chain(nodes).chain(command.iter().copied()).collect();
    let output = one.output(&args);
    code(&output, 0);
    if guard == "strict" {
        let said = stderr(&output);
        let refused = format!("nothing was done: the server has no command {missing} (renamed");
        assert!(said.contains(&refused), "{said}");
        assert!(said.contains("done: 2 nodes vote"), "{said}");
    }
    has_no_key(&one);
}

#[test]
fn a_lock_is_held_on_the_other_two_nodes() {
    with_one_of_three_without("EVAL", "off", &["run", "k"], &["--", "true"]);
}

#[test]
fn init_marks_the_other_two_nodes() {
    with_one_of_three_without("EVALSHA", "strict", &["init", "--fresh", "--yes"], &[]);
}

#[test]
fn without_a_command_that_readers_need_writers_get_locks() {
    let Some(binary) = server() else { return };
    for (_, _, call) in RIGHTS.iter().filter(|(_, weight, _)| *weight == Weight::Shared) {
        let testbed = without(&binary, &[call[0]], "off");
        each_form(&testbed, call[0], is_shared);
        says(&doctor(&testbed).unwrap(), "warning", call[0]);
    }
}

/// The client sends no further command to a node on which it lacks a right, so it leaves no key there.
#[test]
fn a_missing_right_is_named() {
    for guard in ["strict", "off"] {
        let Some(testbed) = Testbed::sized(1) else { return };
        let testbed = Testbed { guard, ..testbed };
        let user = |rules: &[&str]| {
            testbed.nodes[0].command(&[&["ACL", "SETUSER", "u"], rules].concat()).unwrap();
        };
        let as_user = |right: &str, is_refused: &dyn Fn(&[&str]) -> bool| {
            user(&["reset", "on", "nopass", "~*", "+@all", &right.replace('+', "-")]);
            // Deletes the fencing counters, which locks leave behind.
            testbed.nodes[0].command(&["FLUSHALL"]).unwrap();
            let said = format!("the user lacks {right}; quorlock doctor --acl USER");
            each_form_says(&testbed, Some("u"), &[&said], is_refused);
            if guard == "strict" {
                init_lacks(&testbed, &format!("the user lacks {right}"));
            }
        };
        for (right, weight, call) in RIGHTS {
            // If the user lacks one of these commands, the restart guard reports another error, so the loop skips them.
            if matches!(call[0], "DELIFEQ" | "DELEX" | "INFO") {
                continue;
            }
            match weight {
                Weight::Shared if guard == "off" => as_user(right, &is_shared),
                Weight::Needed if guard == "strict" => as_user(right, &|_| true),
                Weight::Needed => {
                    let by_plain = !["GETRANGE", "EXISTS", "TIME"].contains(&call[0]);
                    let by_readers = !["SET", "GETRANGE", "EXISTS", "PEXPIRE"].contains(&call[0]);
                    let is_needed = |form: &[&str]| match is_shared(form) {
                        true => by_readers,
                        false => by_plain || form.len() > 1,
                    };
                    as_user(right, &is_needed);
                }
                _ => {}
            }
        }
        user(&["reset", "on", "nopass", "~app:*", "+@all"]);
        init_lacks(&testbed, "NOPERM");
        user(&["reset", "on", "nopass", "~*", "+@all"]);
        if guard == "off" {
            each_form_says(&testbed, Some("u"), &[], |_| false);
        }
    }
}

#[test]
fn without_an_optional_command_locks_are_granted() {
    let Some(binary) = server() else { return };
    let wanted =
        RIGHTS.iter().filter(|(_, weight, _)| matches!(weight, Weight::Wanted | Weight::Listing));
    let mut commands: Vec<&str> = wanted.map(|(.., call)| call[0]).collect();
    commands.extend(WITHOUT_RIGHT);
    commands.dedup();
    for command in commands {
        let testbed = without(&binary, &[command], "off");
        each_form(&testbed, command, |_| false);
        let finding = doctor(&testbed);
        match WITHOUT_RIGHT.contains(&command) {
            true => assert_eq!(finding, None, "{command}"),
            false => says(&finding.unwrap(), "note", command),
        }
    }
}

/// Without COMMAND, the client cannot ask which commands exist. It must still name the missing command.
#[test]
fn a_missing_command_is_named_although_command_is_missing_too() {
    let Some(binary) = server() else { return };
    for command in ["EVAL", "DEL", "PTTL"] {
        let testbed = without(&binary, &["COMMAND", command], "off");
        each_form(&testbed, command, |_| true);
        init_is_refused(&testbed, command);
    }
    each_form(&without(&binary, &["COMMAND", "ZADD"], "off"), "ZADD", is_shared);
}
