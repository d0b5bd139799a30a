//! `quorlock acquire`, `extend`, `release` and `query`, as shell scripts use them.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::leases::{
    acquire, acquire_json, await_end_of, await_free, is_free, nothing_is_sent, quorum_holds,
    script, servers,
};
use common::{Running, Testbed, boot, code, eventually, json_lines, stderr, stdout};
use quorlock_servers::Reply;
use rustix::process::{Pid, Signal, kill_process};

/// Sends a signal to a keeper, the process that extends a lock in the background, and waits until the keeper has ended.
fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    await_end_of(pid);
}

#[test]
fn one_process_acquires_another_extends_and_a_third_releases() {
    let Some(testbed) = servers(5) else { return };
    for options in [
        &[][..],
        &["--shared"],
        &["--fenced"],
        &["--also", "l"],
        &["--also", "l", "--fenced"],
        &["--value", "mine"],
    ] {
        let first = acquire(&testbed, options);
        assert!(quorum_holds(&testbed, "k"), "{options:?}");
        code(&testbed.output(&["run", "k", "--wait", "0s", "--", "true"]), 75);
        let extended = testbed.output(&["extend", &first]);
        code(&extended, 0);
        let second = stdout(&extended).trim_end().to_owned();
        assert!(second != first, "{options:?}");
        // The lease from before the extension can still release the lock.
        let released = testbed.output(&["release", &first]);
        code(&released, 0);
        assert_eq!((stdout(&released), stderr(&released)), (String::new(), String::new()));
        assert!(is_free(&testbed, "k") && is_free(&testbed, "l"), "{options:?}");
        let again = testbed.output(&["release", &second]);
        code(&again, 0);
        assert!(stderr(&again).contains("was over already"), "{}", stderr(&again));
        let late = testbed.output(&["extend", &second]);
        code(&late, 79);
        assert_eq!(stdout(&late), "");
    }
}

#[test]
fn a_lease_past_its_end_is_not_extended_and_a_second_holder_keeps_its_lock() {
    let Some(testbed) = servers(5) else { return };
    let output = testbed.output(&["acquire", "k", "--ttl", "1s"]);
    assert!(stderr(&output).contains("unless it is extended"), "{}", stderr(&output));
    let lease = stdout(&output).trim_end().to_owned();
    let second = acquire(&testbed, &[]);
    nothing_is_sent(&testbed, || {
        let late = testbed.output(&["extend", &lease]);
        code(&late, 79);
        assert!(stderr(&late).contains("is over"), "{}", stderr(&late));
    });
    code(&testbed.output(&["release", &lease]), 0);
    assert!(quorum_holds(&testbed, "k"), "the release deletes only its own lock");
    code(&testbed.output(&["release", &second]), 0);
    assert!(is_free(&testbed, "k"));
}

#[test]
fn the_fencing_token_is_in_the_lease_and_in_json_and_grows() {
    let Some(testbed) = servers(5) else { return };
    let mut last = 0;
    for _ in 0..2 {
        let lease = acquire_json(&testbed, &["k", "--fenced"]);
        let token = lease["fence"].as_u64().unwrap();
        assert!(token > last, "{lease}");
        last = token;
        let text = lease["lease"].as_str().unwrap();
        assert!(text.contains(&format!(",fencing_token={token},")), "{text}");
        assert_eq!((&lease["kind"], &lease["keys"][0]), (&"fenced".into(), &"k".into()));
        assert!(lease["valid_for_ms"].as_u64().unwrap() <= 10_000, "{lease}");
        code(&testbed.output(&["release", text]), 0);
    }
}

#[test]
fn a_forged_lease_ends_no_process_but_a_keeper() {
    let Some(testbed) = servers(3) else { return };
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", sleeper.id())).unwrap();
    let started = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap();
    let keeper = quorlock::Keeper { pid: sleeper.id(), started: started.parse().unwrap() };
    let lease: quorlock::Lease = acquire(&testbed, &[]).parse().unwrap();
    code(&testbed.output(&["release", &lease.kept_by(keeper).to_string()]), 0);
    assert!(sleeper.try_wait().unwrap().is_none(), "it goes on");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn a_lease_is_read_from_standard_input() {
    let Some(testbed) = servers(1) else { return };
    let text = "quorlock acquire k | quorlock extend - | quorlock release -";
    code(&script(&testbed, "sh", text).output().unwrap(), 0);
    assert!(is_free(&testbed, "k"));
}

#[test]
fn a_signal_while_acquire_waits_ends_it_and_leaves_nothing() {
    let Some(testbed) = servers(5) else { return };
    let holder = acquire(&testbed, &["--max-hold", "1h"]);
    for (signal, expected) in [(Signal::TERM, Some(143)), (Signal::INT, None)] {
        let waiting = testbed.start(&["acquire", "k", "--also", "l"]);
        waiting.await_line("waiting");
        waiting.signal(signal);
        let output = waiting.end();
        // After Ctrl-C, `quorlock` ends itself with SIGINT, so that a shell also ends a loop around it.
        assert_eq!(output.status.code(), expected, "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
        assert!(is_free(&testbed, "l"));
    }
    code(&testbed.output(&["release", &holder]), 0);
}

#[test]
fn a_lease_that_cannot_be_printed_is_released() {
    let Some(testbed) = servers(5) else { return };
    let full = script(&testbed, "sh", "quorlock acquire k > /dev/full").output().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut unread = testbed.quorlock(&["acquire", "k"]);
    let unread = unread.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    for output in [full, unread.wait_with_output().unwrap()] {
        code(&output, 70);
        assert!(stderr(&output).contains("given back"), "{}", stderr(&output));
        assert!(is_free(&testbed, "k"));
    }
}

#[test]
fn a_lease_file_is_private_and_follows_the_lease() {
    let Some(testbed) = servers(5) else { return };
    let path = testbed.path("deploy.lease");
    let read = || fs::read_to_string(&path).unwrap();
    let quiet = |command: &[&str]| {
        let file = ["--lease-file", "deploy.lease", "--quiet"];
        let output = testbed.output(&[command, &file].concat());
        code(&output, 0);
        assert_eq!(stdout(&output), "");
    };
    quiet(&["acquire", "k"]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let first = read();
    assert!(first.ends_with('\n'));
    quiet(&["extend"]);
    assert!(read() != first);
    quiet(&["release"]);
    assert!(!path.exists() && is_free(&testbed, "k"));

    // `--lease-file` overwrites an empty file, such as mktemp makes, but no other file without a lease.
    fs::write(&path, "").unwrap();
    let output = testbed.output(&["acquire", "k", "--lease-file", "deploy.lease"]);
    assert_eq!(stdout(&output), read());
    quiet(&["release"]);
    for name in ["notes", "."] {
        fs::write(testbed.path("notes"), "notes").unwrap();
        let output = testbed.output(&["acquire", "k", "--lease-file", name]);
        code(&output, 64);
        assert!(is_free(&testbed, "k"));
    }
    assert_eq!(fs::read_to_string(testbed.path("notes")).unwrap(), "notes");
    code(&testbed.output(&["release", "--lease-file", "missing"]), 64);
    code(&testbed.output(&["release", "--lease-file", "notes"]), 65);
}

#[test]
fn a_lease_file_that_cannot_be_written_releases_the_lock() {
    let Some(testbed) = servers(5) else { return };
    let text = "trap '' XFSZ; ulimit -f 0; exec quorlock acquire k --lease-file x";
    for output in [
        script(&testbed, "sh", text).output().unwrap(),
        testbed.output(&["acquire", "k", "--lease-file", "missing/x"]),
    ] {
        code(&output, 70);
        assert_eq!(stdout(&output), "");
        assert!(stderr(&output).contains("cannot write the lease to "), "{}", stderr(&output));
        assert!(!stderr(&output).contains(".tmp"), "{}", stderr(&output));
        assert!(is_free(&testbed, "k"));
    }
    let left = fs::read_dir(testbed.folder.path()).unwrap().count();
    assert_eq!(left, 1, "only the configuration is left");
}

const SCRIPTS: [(&str, &str); 3] = [
    ("sh", SH),
    ("bash", SH),
    (
        "fish",
        "set lease (quorlock acquire k --ttl 2s --hold-by $fish_pid); or exit
         function give_back --on-event fish_exit
             QUORLOCK_LEASE=$lease quorlock release
         end
         echo up > up; while not test -e go; sleep 0.05; end",
    ),
];

const SH: &str = "lease=$(quorlock acquire k --ttl 2s --hold-by $$) || exit
     trap 'QUORLOCK_LEASE=$lease quorlock release' EXIT
     echo up > up; while [ ! -e go ]; do sleep 0.05; done";

/// Starts `text` as a script in this shell, and waits until the script has its lock.
fn start_script(testbed: &Testbed, shell: &str, text: &str) -> Option<Running> {
    let found = Command::new("sh").args(["-c", &format!("command -v {shell}")]).output().unwrap();
    if !found.status.success() {
        eprintln!("skipped: this machine has no {shell}");
        return None;
    }
    let up = testbed.path("up");
    loop {
        let mut running = Running::start(&mut script(testbed, shell, text));
        eventually("up is written, or the script ends", || {
            (up.exists() || !running.is_running()).then_some(())
        });
        if fs::remove_file(&up).is_ok() {
            return Some(running);
        }
        // On a busy machine, the keeper may start only after the ttl. Then `acquire` fails, and the loop tries again.
        let said = stderr(&running.end());
        assert!(said.contains("up before the lease could be printed"), "{said}");
    }
}

/// Asserts that a quorum holds the lock for more than twice its ttl of 2 s.
fn holds_beyond_the_ttl(testbed: &Testbed, key: &str) {
    let start = boot();
    while boot() - start < Duration::from_millis(4300) {
        assert!(quorum_holds(testbed, key), "after {:?}", boot() - start);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `$( )` reads until the pipe is closed. It returns while the keeper runs, so the keeper has closed the pipe.
#[test]
fn the_script_of_the_help_holds_the_lock_through_its_pauses_in_each_shell() {
    let Some(testbed) = servers(5) else { return };
    for (shell, text) in SCRIPTS {
        let Some(script) = start_script(&testbed, shell, text) else { continue };
        holds_beyond_the_ttl(&testbed, "k");
        fs::write(testbed.path("go"), "").unwrap();
        let output = script.end();
        code(&output, 0);
        assert_eq!(stderr(&output), "", "{shell}");
        assert!(is_free(&testbed, "k"), "{shell}");
        fs::remove_file(testbed.path("go")).unwrap();
    }
}

#[test]
fn the_lock_of_a_killed_script_is_free_and_its_keeper_is_gone() {
    let Some(testbed) = servers(5) else { return };
    let text = "quorlock acquire k --ttl 1s --hold-by $$ --json > lease; echo up > up; sleep 60";
    let keeper_of = || json_lines(&testbed.await_file("lease"))[0]["keeper_pid"].as_i64().unwrap();
    let script = start_script(&testbed, "sh", text).unwrap();
    let keeper = i32::try_from(keeper_of()).unwrap();
    script.signal(Signal::KILL);
    await_free(&testbed, "k");
    await_end_of(keeper);

    // If the keeper dies too, the keys expire within one ttl.
    let script = start_script(&testbed, "sh", text).unwrap();
    let keeper = i32::try_from(keeper_of()).unwrap();
    kill(keeper, Signal::KILL);
    script.signal(Signal::KILL);
    for node in testbed.nodes.iter() {
        let Reply::Int(left) = common::command(node, &["PTTL", "k"]) else { panic!("a number") };
        assert!(left <= 1000, "{left}");
    }
    await_free(&testbed, "k");
}

#[test]
fn a_keeper_holds_nothing_of_the_script_open_and_ends_before_a_release() {
    let Some(testbed) = servers(5) else { return };
    let text = "exec 9> mine; trap '' TERM; quorlock acquire k --hold-by $$ --json > lease
                echo up > up; while [ ! -e go ]; do sleep 0.05; done; echo went";
    let script = start_script(&testbed, "sh", text).unwrap();
    let lease = json_lines(&testbed.await_file("lease")).remove(0);
    let keeper = i32::try_from(lease["keeper_pid"].as_i64().unwrap()).unwrap();
    let of_keeper = |name: &str| fs::read_link(format!("/proc/{keeper}/{name}")).unwrap();
    assert_eq!(of_keeper("cwd"), Path::new("/"));
    eventually("the standard streams are detached", || {
        (of_keeper("fd/1") == Path::new("/dev/null")).then_some(())
    });
    let open = fs::read_dir(format!("/proc/{keeper}/fd")).unwrap();
    let open = open.map(|entry| fs::read_link(entry.unwrap().path()).unwrap());
    let files: Vec<_> =
        open.filter(|it| it.is_absolute() && it != Path::new("/dev/null")).collect();
    assert!(files.is_empty(), "{files:?}");
    let command_line = fs::read_to_string(format!("/proc/{keeper}/cmdline")).unwrap();
    assert_eq!(command_line, "lock-keeper\0__keeper\0");

    let status = stdout(&testbed.output(&["status", "k"]));
    assert!(status.contains(&format!("kept for pid {}", script.id())), "{status}");
    // The keeper inherits from the script that SIGTERM is ignored. `release` must still end the keeper.
    code(&testbed.output(&["release", lease["lease"].as_str().unwrap()]), 0);
    await_end_of(keeper);
    assert!(is_free(&testbed, "k"));
    fs::write(testbed.path("go"), "").unwrap();
    let output = script.end();
    code(&output, 0);
    assert_eq!(stdout(&output), "went\n", "the script gets no signal");
}

#[test]
fn a_kept_lock_is_extended_by_its_first_line_beyond_the_end_of_that_line() {
    let Some(testbed) = servers(5) else { return };
    let text = "lease=$(quorlock acquire k --ttl 2s --hold-by $$) || exit; echo up > up
                while [ ! -e go ]; do sleep 0.05; done
                next=$(quorlock extend \"$lease\") && quorlock release \"$lease\" && echo \"$next\"";
    let script = start_script(&testbed, "sh", text).unwrap();
    holds_beyond_the_ttl(&testbed, "k");
    fs::write(testbed.path("go"), "").unwrap();
    let output = script.end();
    code(&output, 0);
    assert_eq!(stderr(&output), "");
    assert!(stdout(&output).contains("keeper_pid="), "the new line names the keeper");
    assert!(is_free(&testbed, "k"));
}

/// Starts a script with a lock that a keeper extends, lets `lose` end the lock, and returns the script's output.
fn lost(testbed: &Testbed, options: &str, body: &str, lose: impl FnOnce(&Running)) -> Output {
    // On a busy machine the first acquire may end without the lock.
    let acquire = format!("quorlock acquire k --ttl 2s --hold-by $$ {options} > lease");
    let text = format!("until {acquire}; do :; done; {body}");
    let script = start_script(testbed, "sh", &text).unwrap();
    lose(&script);
    script.end()
}

#[test]
fn a_script_that_loses_its_lock_gets_the_signal() {
    let Some(testbed) = servers(5) else { return };
    let delete = |_: &Running| testbed.on_all(&["DEL", "k"]);
    let sleeps = "echo up > up; while [ ! -e go ]; do sleep 0.05; done";
    let output = lost(&testbed, "", sleeps, delete);
    assert_eq!(output.status.code(), None, "SIGTERM ends the script");
    let traps = format!("trap 'echo lost; exit 7' USR1; {sleeps}");
    let output = lost(&testbed, "--on-lost USR1", &traps, delete);
    code(&output, 7);
    // When the time of `--max-hold` ends, the script gets the signal as after any other loss.
    let output = lost(&testbed, "--on-lost sigusr1 --max-hold 2s", &traps, |_| ());
    code(&output, 7);
    await_free(&testbed, "k");
    let output = lost(&testbed, "--on-lost none", sleeps, |_| {
        testbed.on_all(&["DEL", "k"]);
        std::thread::sleep(Duration::from_millis(1500));
        fs::write(testbed.path("go"), "").unwrap();
    });
    code(&output, 0);
}

#[test]
fn a_script_gets_the_signal_before_a_lock_without_a_quorum_ends() {
    let Some(testbed) = servers(5) else { return };
    let traps = "trap 'quorlock query k; exit 7' USR1; echo up > up; while :; do sleep 0.05; done";
    let output = lost(&testbed, "--on-lost USR1", traps, |_| {
        testbed.nodes[..3].iter().for_each(|node| node.pause().unwrap());
    });
    code(&output, 7);
    testbed.nodes[..3].iter().for_each(|node| node.resume().unwrap());
    await_free(&testbed, "k");
}

#[test]
fn a_lock_whose_keeper_was_killed_ends_within_its_ttl() {
    let Some(testbed) = servers(5) else { return };
    let text = "quorlock acquire k --ttl 1s --hold-by $$ --json > lease; echo up > up; sleep 60";
    for signal in [Signal::KILL, Signal::TERM] {
        let script = start_script(&testbed, "sh", text).unwrap();
        let lease = json_lines(&testbed.await_file("lease")).remove(0);
        kill(i32::try_from(lease["keeper_pid"].as_i64().unwrap()).unwrap(), signal);
        assert!(quorum_holds(&testbed, "k"), "the keeper releases nothing");
        await_free(&testbed, "k");
        let late = testbed.output(&["extend", lease["lease"].as_str().unwrap()]);
        code(&late, 79);
        let released = testbed.output(&["release", lease["lease"].as_str().unwrap()]);
        code(&released, 0);
        assert!(stderr(&released).contains("over already"), "{}", stderr(&released));
        drop(script);
    }
}

/// A keeper that is stopped cannot extend the lock. When it continues, it must tell the script, and say why.
#[test]
fn a_keeper_that_was_stopped_beyond_the_end_tells_the_script_and_says_why() {
    let Some(testbed) = servers(5) else { return };
    for (signal, json) in [("USR1", ""), ("none", ""), ("USR1", "--json")] {
        let sent = if signal == "none" { "no signal" } else { "SIGUSR1" };
        let text = format!(
            "trap 'exit 7' USR1
             until quorlock acquire k --ttl 2s --hold-by $$ --on-lost {signal} --log log {json} > lease
             do :; done; echo up > up; while [ ! -e go ]; do sleep 0.05; done"
        );
        let mut script = start_script(&testbed, "sh", &text).unwrap();
        let lease = testbed.await_file("lease");
        let pid = lease.split("keeper_pid=").nth(1).unwrap();
        let pid: String = pid.chars().take_while(char::is_ascii_digit).collect();
        let keeper = Pid::from_raw(pid.parse().unwrap()).unwrap();
        kill_process(keeper, Signal::STOP).unwrap();
        // Another client takes the lock when it has ended, and frees it.
        code(&testbed.output(&["run", "k", "--", "true"]), 0);
        // On a busy machine the keeper must still notice that it is late.
        std::thread::sleep(Duration::from_millis(600));
        assert!(script.is_running(), "the script has no signal yet");
        assert!(fs::read_to_string(testbed.path("log")).unwrap().is_empty());
        kill_process(keeper, Signal::CONT).unwrap();
        await_end_of(pid.parse().unwrap());
        if signal == "none" {
            fs::write(testbed.path("go"), "").unwrap();
        }
        let output = script.end();
        code(&output, if signal == "none" { 0 } else { 7 });
        let log = testbed.await_file("log");
        for said in [&stderr(&output), &log] {
            assert!(said.contains("its keeper stood still until "), "{said}");
            assert!(said.contains(&format!(" gets {sent}")), "{said}");
            assert!(!said.contains("quorlock1:"), "{said}");
        }
        if !json.is_empty() {
            let event = json_lines(&log).remove(0);
            assert_eq!((&event["event"], &event["cause"]), (&"lost".into(), &"stopped".into()));
        }
        assert!(is_free(&testbed, "k"));
        ["log", "lease"].iter().for_each(|name| fs::remove_file(testbed.path(name)).unwrap());
        let _ = fs::remove_file(testbed.path("go"));
    }
}

#[test]
fn a_keeper_says_why_a_lock_is_lost_and_a_log_that_cannot_be_written_is_refused() {
    let Some(testbed) = servers(5) else { return };
    let sleeps = "echo up > up; while :; do sleep 0.05; done";
    let output = lost(&testbed, "--log log", sleeps, |_| testbed.on_all(&["DEL", "k"]));
    let log = testbed.await_file("log");
    for said in [&stderr(&output), &log] {
        assert!(said.contains("it expired or was released") && said.contains("SIGTERM"), "{said}");
    }
    let output = lost(&testbed, "--max-hold 2s", sleeps, |_| ());
    assert!(stderr(&output).contains("max_hold"), "{}", stderr(&output));
    await_free(&testbed, "k");
    for (path, why) in [("missing/log", "No such file"), (".", "Is a directory")] {
        let output =
            testbed.output(&["acquire", "k", "--hold-by", "1", "--on-lost", "none", "--log", path]);
        code(&output, 64);
        assert!(stderr(&output).contains(&format!("--log: {path}: {why}")), "{}", stderr(&output));
    }
    assert!(is_free(&testbed, "k"));
}
