//! A server that lacks one of the commands that quorlock sends, or a user who lacks the right to it, each in turn: `run`
//! says so at once and leaves nothing behind, and `doctor` names the command and the remedy.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::time::Duration;

use common::{Testbed, boot, stderr};
use quorlock::admin::{BESIDE, RIGHTS, Weight};
use quorlock_servers::{Nodes, Reply, ServerBinary, ServerOptions, find_or_skip};
use serde_json::Value;

/// One server on which these commands were renamed away.
fn without(binary: &ServerBinary, commands: &[&str], guard: &'static str) -> Testbed {
    let args = commands.iter().flat_map(|command| ["--rename-command", command, ""]);
    let args = args.map(str::to_owned).collect();
    let nodes = Nodes::start(binary, 1, ServerOptions { args, ..ServerOptions::default() });
    Testbed { guard, ..Testbed::of(nodes.unwrap()) }
}

/// The forms of a lock: a plain one, a reader's, and others.
const FORMS: [&[&str]; 4] = [&["k"], &["k", "--shared"], &["k", "--fenced"], &["k", "--also", "l"]];

fn is_shared(form: &[&str]) -> bool {
    form.contains(&"--shared")
}

/// Runs a command under each form of a lock. `named`: the command that must be named where no lock is granted.
fn each_form(testbed: &Testbed, named: &str, is_refused: impl Fn(&[&str]) -> bool) {
    let said = [&format!("no command {named} (renamed"), "remove its rename-command line"];
    each_form_says(testbed, None, &said, is_refused);
}

/// The same. `named`: what must be said where no lock is granted.
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
            assert!(boot() - began < Duration::from_secs(10), "{named:?}: it waited");
            assert!(named.iter().all(|words| said.contains(words)), "{named:?}: {args:?}: {said}");
            let keys = testbed.nodes[0].command(&["DBSIZE"]).unwrap();
            assert!(matches!(keys, Reply::Int(0)), "{named:?}: {args:?} leaves {keys:?}");
        }
    }
}

/// How `doctor` ends, and what it says of the missing command.
fn doctor(testbed: &Testbed) -> (i32, Option<Value>) {
    let output = testbed.quorlock(&["doctor", "--json"]).output().unwrap();
    let examined: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = examined["nodes"][0]["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["check"] == "command").cloned();
    (output.status.code().unwrap(), finding)
}

fn says(finding: &Value, severity: &str, command: &str) {
    assert_eq!(finding["severity"], severity, "{finding}");
    let told = |field: &str, words: &str| finding[field].as_str().unwrap().contains(words);
    assert!(told("what", &format!("no command {command} (renamed or disabled)")), "{finding}");
    assert!(told("fix", &format!("rename-command {command} ")), "{finding}");
}

/// The default guard, for the user who knows of none: a new node would have to be waited for, but nobody waits here.
#[test]
fn a_command_that_every_lock_needs() {
    let Some(binary) = find_or_skip("a_command_that_every_lock_needs") else { return };
    for (_, weight, call) in RIGHTS {
        let command = call[0];
        if *weight != Weight::Needed || matches!(command, "DELIFEQ" | "DELEX") {
            continue;
        }
        let testbed = without(&binary, &[command], "strict");
        each_form(&testbed, command, |_| true);
        let (code, finding) = doctor(&testbed);
        assert_eq!(code, 2, "{command}");
        says(&finding.unwrap(), "error", command);
        let output = testbed.quorlock(&["doctor", "--json"]).output().unwrap();
        let examined: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = examined["nodes"][0]["findings"].as_array().unwrap();
        let errors: Vec<_> = findings.iter().filter(|it| it["severity"] == "error").collect();
        assert_eq!(errors.len(), 1, "{command}: {errors:?}");
        let fix = errors[0]["fix"].as_str().unwrap();
        assert_eq!(fix.contains("INFO server names it"), command != "INFO", "{fix}");
        assert_eq!(fix.contains("systemctl cat "), command == "INFO", "{fix}");
        init_is_refused(&testbed, command);
    }
}

/// `init` names the command before it writes anything.
fn init_is_refused(testbed: &Testbed, command: &str) {
    for args in [&["init", "--fresh", "--yes"][..], &["init", "--reconfigure", "--yes"]] {
        let output = testbed.quorlock(args).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(77), "{command}: {args:?}: {said}");
        assert!(said.contains("0 of 1 nodes can be used"), "{said}");
        assert!(said.contains(&format!("no command {command} (renamed")), "{args:?}: {said}");
        assert!(said.contains("remove its rename-command line"), "{said}");
        let keys = testbed.nodes[0].command(&["DBSIZE"]).unwrap();
        assert!(matches!(keys, Reply::Int(0)), "{command}: {args:?} leaves {keys:?}");
    }
}

/// `init` ends with 77 if the user lacks a right, whatever is forced.
fn init_lacks(testbed: &Testbed, what: &str) {
    for args in [&["init", "--fresh", "--yes", "--force"][..], &["init", "--reconfigure", "--yes"]]
    {
        let mut command = testbed.quorlock(args);
        command.env("QUORLOCK_USERNAME", "u").env("QUORLOCK_PASSWORD", "any");
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(77), "{what}: {args:?}: {said}");
        assert!(said.contains(what) && said.contains("correct the user"), "{args:?}: {said}");
    }
}

#[test]
fn init_without_scan_names_it() {
    let Some(binary) = find_or_skip("init_without_scan_names_it") else { return };
    let testbed = without(&binary, &["SCAN"], "strict");
    let init = |more: &[&str]| {
        let args = [&["init", "--fresh", "--yes"], more].concat();
        testbed.quorlock(&args).output().unwrap()
    };
    let output = init(&[]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(77), "{said}");
    assert!(said.contains("no command SCAN (renamed"), "{said}");
    assert!(
        said.contains("a command that looks for locks is missing; remove its rename-command line"),
        "{said}"
    );
    assert!(!said.contains("right"), "no right is missing: {said}");
    assert_eq!(init(&["--force"]).status.code(), Some(0));
}

/// The lock is held on the others, and no server that lacks a command is marked.
#[test]
fn init_with_one_node_of_three_without_a_command() {
    let Some(binary) = find_or_skip("init_with_one_node_of_three_without_a_command") else {
        return;
    };
    let (two, one) = (
        Nodes::start(&binary, 2, ServerOptions::default()).unwrap(),
        without(&binary, &["EVALSHA"], "strict"),
    );
    let urls: Vec<String> = two.urls().into_iter().chain(one.nodes.urls()).collect();
    let nodes = urls.iter().flat_map(|url| ["-n", url.as_str()]);
    let args: Vec<&str> = ["init", "--fresh", "--yes"].into_iter().chain(nodes).collect();
    let output = one.quorlock(&args).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("nothing was done: the server has no command EVALSHA (renamed"),
        "{said}"
    );
    assert!(said.contains("done: 2 nodes vote"), "{said}");
    assert_eq!(one.nodes[0].command(&["DBSIZE"]).unwrap(), Reply::Int(0));
}

#[test]
fn a_command_that_readers_need() {
    let Some(binary) = find_or_skip("a_command_that_readers_need") else { return };
    for (_, _, call) in RIGHTS.iter().filter(|(_, weight, _)| *weight == Weight::Shared) {
        let testbed = without(&binary, &[call[0]], "off");
        each_form(&testbed, call[0], is_shared);
        says(&doctor(&testbed).1.unwrap(), "warning", call[0]);
    }
}

/// Nothing is asked of the node, so nothing is left behind for the next user to wait for.
#[test]
fn a_right_that_locks_need() {
    let test = "a_right_that_locks_need";
    for guard in ["strict", "off"] {
        let Some(testbed) = Testbed::sized(test, 1, ServerOptions::default()) else { return };
        let testbed = Testbed { guard, ..testbed };
        let user = |rules: &[&str]| {
            testbed.nodes[0].command(&[&["ACL", "SETUSER", "u"], rules].concat()).unwrap();
        };
        let as_user = |right: &str, is_refused: &dyn Fn(&[&str]) -> bool| {
            user(&["reset", "on", "nopass", "~*", "+@all", &right.replace('+', "-")]);
            // Fencing counters stay.
            testbed.nodes[0].command(&["FLUSHALL"]).unwrap();
            let said = format!("the user lacks {right}; quorlock doctor --acl USER");
            each_form_says(&testbed, Some("u"), &[&said], is_refused);
            if guard == "strict" {
                init_lacks(&testbed, &format!("the user lacks {right}"));
            }
        };
        for (right, weight, call) in RIGHTS {
            // The guard has its own words.
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
fn a_command_that_quorlock_can_do_without() {
    let Some(binary) = find_or_skip("a_command_that_quorlock_can_do_without") else { return };
    let wanted =
        RIGHTS.iter().filter(|(_, weight, _)| matches!(weight, Weight::Wanted | Weight::Listing));
    let mut commands: Vec<&str> = wanted.map(|(.., call)| call[0]).collect();
    commands.extend(BESIDE);
    commands.dedup();
    for command in commands {
        let testbed = without(&binary, &[command], "off");
        each_form(&testbed, command, |_| false);
        let finding = doctor(&testbed).1;
        match BESIDE.contains(&command) {
            true => assert_eq!(finding, None, "{command}"),
            false => says(&finding.unwrap(), "note", command),
        }
    }
}

/// Which commands there are cannot be asked with one question then.
#[test]
fn a_server_that_does_not_say_which_commands_it_has() {
    let test = "a_server_that_does_not_say_which_commands_it_has";
    let Some(binary) = find_or_skip(test) else { return };
    for command in ["EVAL", "DEL", "PTTL"] {
        let testbed = without(&binary, &["COMMAND", command], "off");
        each_form(&testbed, command, |_| true);
        init_is_refused(&testbed, command);
    }
    each_form(&without(&binary, &["COMMAND", "ZADD"], "off"), "ZADD", is_shared);
}

/// One node of three without a command is a node that is down, and the lock is held on the others.
#[test]
fn one_node_of_three_without_a_command() {
    let test = "one_node_of_three_without_a_command";
    let Some(binary) = find_or_skip(test) else { return };
    let (two, one) = (
        Nodes::start(&binary, 2, ServerOptions::default()).unwrap(),
        without(&binary, &["EVAL"], "off"),
    );
    let urls: Vec<String> = two.urls().into_iter().chain(one.nodes.urls()).collect();
    let nodes = urls.iter().flat_map(|url| ["-n", url.as_str()]);
    let args: Vec<&str> = ["run", "k"].into_iter().chain(nodes).chain(["--", "true"]).collect();
    let output = one.quorlock(&args).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(one.nodes[0].command(&["DBSIZE"]).unwrap(), Reply::Int(0));
}
