//! If the command cannot start, no lock stays, and the message names the cause.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::ops::Range;
use std::process::{Command, Output};

use common::{Testbed, code, not_for, quorlock, stderr, stdout, through};
use quorlock_servers::{Listen, ServerOptions};

#[test]
fn without_proc_the_lock_is_not_taken() {
    let Some(testbed) = Testbed::new() else { return };
    let hide = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    let mut outer = vec!["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", hide];
    if !through(&outer, &Command::new("true")).status().is_ok_and(|status| status.success()) {
        return not_for("a namespace cannot be made here");
    }
    for round in 0..10 {
        let run = testbed.quorlock(&["run", "k", "--ttl", "10s", "--", "echo", "ran"]);
        let output = through(&outer, &run).output().unwrap();
        assert_eq!((output.status.code(), stdout(&output)), (Some(70), String::new()));
        assert!(stderr(&output).contains("/proc"), "{}", stderr(&output));
        assert_eq!(testbed.holders_of("k"), 0, "round {round}");
    }
    // For `--status-fd`, `quorlock` opens the descriptor through /proc. The message must name /proc as the cause.
    outer.truncate(6);
    let with_descriptor = format!("exec 3>fd; {hide}");
    outer.push(&with_descriptor);
    let run = testbed.quorlock(&["run", "k", "--status-fd", "3", "--", "true"]);
    let output = through(&outer, &run).output().unwrap();
    code(&output, 70);
    assert!(stderr(&output).contains("/proc"), "{}", stderr(&output));
}

/// Runs `quorlock` with each limit, from the lowest until one is high enough. Below that limit each run ends with code
/// 70, names the resource and leaves no key. Returns the number of runs that failed after the lock was granted.
fn at_each_limit(
    testbed: &Testbed,
    limits: Range<u32>,
    resource: &str,
    run: impl Fn(u32) -> Output,
) -> u32 {
    let mut failed_after_the_grant = 0;
    for limit in limits {
        let output = run(limit);
        let said = stderr(&output);
        assert_eq!(testbed.holders_of("k"), 0, "limit {limit}: {said}");
        if output.status.code() == Some(0) {
            assert_eq!(stdout(&output), "ran\n");
            return failed_after_the_grant;
        }
        // At the lowest limits, the dynamic loader already fails. It ends with code 127 before `quorlock` starts.
        if output.status.code() == Some(127) && said.contains("shared libraries") {
            continue;
        }
        assert_eq!(output.status.code(), Some(70), "limit {limit}: {said}");
        assert!(said.contains(resource), "limit {limit}: {said}");
        failed_after_the_grant += u32::from(said.contains("cannot start the command"));
    }
    panic!("the highest limit is still too low");
}

#[test]
fn without_file_descriptors_no_lock_stays_and_the_limit_is_named() {
    let Some(testbed) = Testbed::new() else { return };
    let run = testbed.quorlock(&["run", "k", "--wait", "forever", "--", "echo", "ran"]);
    let resource = "no file descriptor left (limit: ulimit -n)";
    let after_the_grant = at_each_limit(&testbed, 3..100, resource, |limit| {
        through(&["timeout", "30", "prlimit", &format!("--nofile={limit}")], &run).output().unwrap()
    });
    assert!(after_the_grant > 0);
}

#[test]
fn without_processes_no_lock_stays_and_the_limit_is_named() {
    let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
    let Some(testbed) = Testbed::with(5, options) else { return };
    // The limit does not apply to root, so a user without other processes runs `quorlock`.
    let user = (200_000 + std::process::id()).to_string();
    let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
    let as_user = |limit: &str| {
        let limit = format!("--nproc={limit}");
        ["prlimit", &limit, "setpriv", &uid, &gid, "--clear-groups"].map(str::to_owned)
    };
    let run = |args: &[&str], limit: &str, host: &str| {
        let mut inner = quorlock(args);
        let nodes = testbed.nodes.urls().join(",").replace("127.0.0.1", host);
        inner.env("QUORLOCK_NODES", nodes);
        let outer = as_user(limit);
        through(&outer.each_ref().map(String::as_str), &inner).output()
    };
    if !run(&["--version"], "50", "").is_ok_and(|output| output.status.success()) {
        return not_for("another user cannot run quorlock here");
    }
    let args = ["run", "k", "--wait", "0s", "--", "echo", "ran"];
    // A host name needs the name resolver, which starts a further thread.
    let [addresses, _names] = ["127.0.0.1", "localhost"].map(|host| {
        let resource = "no further process or thread can be started";
        at_each_limit(&testbed, 1..60, resource, |limit| {
            run(&args, &limit.to_string(), host).unwrap()
        })
    });
    assert!(addresses > 0);
}

#[test]
fn a_missing_command_is_named_and_no_lock_stays() {
    let Some(testbed) = Testbed::new() else { return };
    std::fs::write(testbed.path("script"), "#!/no/such/interpreter\n").unwrap();
    let executable = Command::new("chmod").arg("+x").arg(testbed.path("script")).status();
    assert!(executable.unwrap().success());
    for (program, code, says) in [
        ("no-such-program", 127, "quorlock: no-such-program: command not found\n"),
        ("/no/such/program", 127, "quorlock: /no/such/program: command not found\n"),
        (
            "./script",
            127,
            "the interpreter that its first line names, or its loader, was not found\n",
        ),
        ("/dev/null", 126, "quorlock: /dev/null: not executable: "),
        ("/", 126, "quorlock: /: not executable: "),
    ] {
        let output = testbed.output(&["run", "k", "--", program]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{program}: {said}");
        assert!(said.contains(says), "{said}");
        assert_eq!(testbed.holders_of("k"), 0, "{program}");
    }
}
