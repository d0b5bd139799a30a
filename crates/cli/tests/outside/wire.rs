//! The commands that the first server receives.

use std::fmt::Write as _;

use expect_test::expect_file;
use quorlock::admin::{RIGHTS, WITHOUT_RIGHT};
use quorlock_servers::Reply;
use quorlock_servers::resp::RespConnection;

use crate::common::{PATIENCE, boot};
use crate::scene::{Scene, UNTIL_GO, greeted_once};

/// An event that the test causes while `quorlock` runs.
#[derive(Clone, Copy)]
enum Meanwhile {
    /// The command [`UNTIL_GO`] ends.
    Go,
    /// `quorlock` reports that it waits, and then another client deletes the key `k`.
    Delete,
}

/// The test sends this command to mark the end of a recorded run.
const THE_END: &str = r#""ECHO" "the end""#;

/// Reads one line of MONITOR, adds its command to `commands`, and returns the line.
fn note_command(monitor: &mut RespConnection, commands: &mut String) -> String {
    let Reply::Simple(line) = monitor.reply().unwrap() else { panic!("MONITOR sends lines") };
    let (by, command) = line.split_once("] ").unwrap();
    let name = command.split('"').nth(1).unwrap();
    // Except for the test's own `ECHO`, each command must be in `RIGHTS`, which `doctor` checks, or in `WITHOUT_RIGHT`.
    let is_listed = name == "ECHO" || RIGHTS.iter().any(|(.., call)| call[0] == name);
    assert!(is_listed || WITHOUT_RIGHT.contains(&name), "no check looks for the command {name}");
    let by = if by.ends_with(" lua") { "  by the script: " } else { "  " };
    writeln!(commands, "{by}{command}").unwrap();
    line
}

impl Scene {
    /// Records a run, and the commands that the first server receives.
    fn wire(&mut self, what: &str, args: &[&str]) {
        self.wire_until(what, args, None);
    }

    /// Records a run. When the server receives a command with the given text, the test causes the given event.
    fn wire_until(&mut self, what: &str, args: &[&str], text: Option<(&str, Meanwhile)>) {
        let mut monitor = self.testbed.nodes[0].connect().unwrap();
        assert_eq!(monitor.command(&["MONITOR"]).unwrap(), Reply::Simple("OK".to_owned()));
        self.say(what);
        let start = boot();
        let running = self.begin(args);
        let mut commands = String::new();
        if let Some((text, meanwhile)) = text {
            while !note_command(&mut monitor, &mut commands).contains(text) {
                assert!(boot() - start < PATIENCE, "no {text} in\n{commands}");
            }
            match meanwhile {
                Meanwhile::Go => self.go(),
                Meanwhile::Delete => {
                    running.await_line("waiting");
                    self.testbed.on(0..1, &["DEL", "k"]);
                }
            }
        }
        let output = running.end();
        let _ = std::fs::remove_file(self.testbed.path("go"));
        self.note(args, &output);
        self.testbed.on(0..1, &["ECHO", "the end"]);
        while !note_command(&mut monitor, &mut commands).contains(THE_END) {}
        commands = commands.replace(&format!("  {THE_END}\n"), "");
        self.record.push_str(&commands);
        self.record.push('\n');
    }
}

#[test]
fn the_wire_of_leases_and_values() {
    let Some(mut scene) = Scene::new(1) else { return };
    let file = ["--lease-file", "x"];
    for kind in [&[][..], &["--fenced"], &["--shared"], &["--value", "mine"]] {
        let acquire = [&["acquire", "k", "--quiet"], &file[..], kind].concat();
        scene.wire("a lock for a script", &acquire);
        scene.wire("it is extended", &["extend", "--quiet", file[0], file[1]]);
        scene.wire("and released", &["release", file[0], file[1]]);
    }
    for verb in ["acquire", "extend", "release"] {
        scene.wire("by its value alone", &[verb, "k", "--value", "mine", "--quiet"]);
    }
    scene.wire("a look", &["query", "k"]);
    scene.compare(&expect_file!["wire_leases.txt"]);
}

#[test]
fn the_wire_of_each_kind_of_lock() {
    // Each pair has the options of a kind of lock, and a part of the command that extends such a lock.
    let kinds = [
        (&["--fenced"][..], r#""PEXPIRE" "k" "3000""#),
        (&["--shared"], r#""ZREMRANGEBYSCORE" "k""#),
        (&["--also", "l"], r#""PEXPIRE" "k" "3000""#),
        (&["--also", "l", "--fenced"], r#""PEXPIRE" "k" "3000""#),
    ];
    let Some(scenes) = (0..kinds.len()).map(|_| Scene::new(1)).collect::<Option<Vec<_>>>() else {
        return;
    };
    // All scenes run at the same time, so that the test waits only once for the extension after a third of the ttl.
    let record = |(mut scene, (kind, extension)): (Scene, (&[&str], &str))| {
        let times = ["run", "k", "--ttl", "3s", "--node-timeout", "500ms"];
        let args = [&times, kind, &["--", "sh", "-c", UNTIL_GO]].concat();
        scene.wire_until("a lock that is extended once", &args, Some((extension, Meanwhile::Go)));
        scene.recorded()
    };
    let seen: String = std::thread::scope(|scope| {
        let recorded = scenes.into_iter().zip(kinds).map(|it| scope.spawn(move || record(it)));
        let recorded: Vec<_> = recorded.collect();
        recorded.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    expect_file!["wire_kinds.txt"].assert_eq(&greeted_once(&seen));
}

#[test]
fn the_wire_of_a_waiting_call() {
    let Some(mut scene) = Scene::new(1) else { return };
    let waits = (r#""CLIENT" "CACHING""#, Meanwhile::Delete);
    for (what, args) in [
        ("another client's key is deleted", &["run", "k", "--", "true"][..]),
        ("and a reader waits", &["run", "k", "--shared", "--", "true"]),
        ("and a call for two keys waits", &["run", "k", "--also", "l", "--", "true"]),
    ] {
        scene.testbed.on(0..1, &["SET", "k", "other", "PX", "60000"]);
        scene.wire_until(what, args, Some(waits));
    }
    scene.compare(&expect_file!["wire_waiting.txt"]);
}

#[test]
fn the_wire_of_each_command() {
    let Some(mut scene) = Scene::new(1) else { return };
    scene.wire("a lock", &["run", "k", "--", "true"]);
    let extended =
        ["run", "k", "--ttl", "3s", "--node-timeout", "500ms", "--", "sh", "-c", UNTIL_GO];
    scene.wire_until(
        "a lock that is extended once",
        &extended,
        Some((r#""PEXPIRE" "k""#, Meanwhile::Go)),
    );
    scene.wire("with the first fence of a key", &["run", "f", "--fenced", "--", "true"]);
    scene.wire("and again", &["run", "f", "--fenced", "--", "true"]);
    scene.wire("a look", &["status", "k"]);
    scene.testbed.on(0..1, &["SET", "k", "other", "PX", "60000"]);
    scene.wire("a lock that others hold", &["run", "k", "--wait", "0s", "--", "true"]);
    scene.testbed.guard = "strict";
    // The call sends its `SET` only if it begins before the client has evaluated the greeting.
    let recorded = scene.record.len();
    while !scene.record[recorded..].contains(r#""SET" "k""#) {
        scene.record.truncate(recorded);
        scene.testbed.on(0..1, &["FLUSHALL"]);
        scene.wire("is new", &["run", "k", "--wait", "0s", "--", "true"]);
    }
    scene.wire("taken into use", &["init", "--fresh", "--yes"]);
    scene.wire("a lock, with the guard", &["run", "k", "--", "true"]);
    scene.wire("with a fence", &["run", "f", "--fenced", "--", "true"]);
    scene.wire("a look", &["status", "k"]);
    scene.wire("an examination", &["doctor"]);
    scene.compare(&expect_file!["wire.txt"]);
}
