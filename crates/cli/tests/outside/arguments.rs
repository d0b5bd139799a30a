//! Arguments, variables and the configuration file.

use expect_test::expect_file;

use crate::common::info;
use crate::scene::Scene;

fn processed_commands(scene: &Scene) -> u64 {
    let count = info(&scene.testbed.nodes[0], "stats", "total_commands_processed:");
    count.unwrap().parse().unwrap()
}

#[test]
fn invalid_arguments_are_refused_before_a_command_is_sent() {
    let Some(mut scene) = Scene::new(1) else { return };
    let before = processed_commands(&scene);
    scene.each([
        "run",
        "run k",
        "run k --ttl soon -- true",
        "run k --ttl 31 -- true",
        "run k --ttl 0s -- true",
        "run k --ttl 1ms -- true",
        "run k --ttl 31s -- true",
        "run k --ttl 1h -- true",
        "run k --max-ttl 0s -- true",
        "run k --max-ttl 999999999s -- true",
        "status k --max-ttl 0s",
        "run k --quorum 2 -- true",
        "run k -n redis://a -n redis://b -n redis://c --quorum 1 -- true",
        "run k --wait -1s -- true",
        "run k --wait soon -- true",
        "run k -n http://x -- true",
        "run k -n redis://:secret@x#y -- true",
        "run k -n redis://:secret@x:y -- true",
        "run k -n redis+sentinel://x,y/z?replicas=1 -- true",
        "run k -n a=redis://x -n a=redis://y -- true",
        "run k -n redis://x -n redis://X:6379 -- true",
        "run k --node-timeout 9s -- true",
        "run k --durable z -- true",
        "run k --kill-after 5s -- true",
        "run k --max-hold 5s -- true",
        "run k --min-hold 2h --max-hold 1h -- true",
        "run k --config missing.toml -- true",
        "run k --status-fd 77 -- true",
        "run quorlock:x -- true",
        "run --key-prefix quorlock: k -- true",
        "run --key-prefix quor lock:x -- true",
        "status app:quorlock:node",
        "status",
        "init",
        "init --fresh --yes --old-node redis://a",
        "nonsense",
        "lock k -- true",
    ]);
    // Two spaces in a row enclose an empty word.
    scene.each(["run  -- true", "status "]);
    for variable in [
        ("QUORLOCK_MAX_TTL", "1ms"),
        ("QUORLOCK_TTL", "31"),
        ("QUORLOCK_TTL", "31s"),
        ("QUORLOCK_NODES", ""),
        ("QUORLOCK_NODES", "redis://a,redis://a"),
        ("QUORLOCK_NODES", "non sense"),
    ] {
        scene.quorlock_with(&[variable], &["run", "k", "--", "true"]);
    }
    // The server has counted one more command: the `INFO` by which this line reads the count.
    assert_eq!(processed_commands(&scene), before + 1, "a command was sent");
    scene.compare(&expect_file!["refused.txt"]);
}

#[test]
fn help_texts() {
    let Some(mut scene) = Scene::new(1) else { return };
    scene.each(["--help"]);
    let verbs = "run acquire extend release query status init doctor demo completions man";
    verbs.split(' ').for_each(|verb| scene.quorlock_with(&[], &[verb, "--help"]));
    scene.compare(&expect_file!["help.txt"]);
}

#[test]
fn variables_and_the_file() {
    let Some(mut scene) = Scene::new(1) else { return };
    let environment = ["run", "k", "--", "sh", "-c", "env | grep ^QUORLOCK_ | sort"];
    let mut all = vec![
        ("QUORLOCK_TTL", "9s"),
        ("QUORLOCK_WAIT", "5s"),
        ("QUORLOCK_LABEL", "nightly"),
        ("QUORLOCK_MAX_TTL", "20s"),
        ("QUORLOCK_KEY_PREFIX", "p:"),
        ("QUORLOCK_USERNAME", "default"),
        ("QUORLOCK_PASSWORD", "secret"),
        ("QUORLOCK_FENCED", "true"),
        ("QUORLOCK_IF_HELD", "skip"),
        ("QUORLOCK_HELD_EXIT_CODE", "3"),
        ("QUORLOCK_MAX_HOLD", "1h"),
        ("QUORLOCK_KILL_AFTER", "2s"),
        ("QUORLOCK_QUIET", "no"),
        ("QUORLOCK_NOSUCH", "x"),
    ];
    scene.quorlock_with(&all, &environment);
    all.push(("QUORLOCK_PASS_NODES", "1"));
    scene.quorlock_with(&all, &environment);
    for variable in [
        ("QUORLOCK_SHARED", "maybe"),
        ("QUORLOCK_SHARED", "1"),
        ("QUORLOCK_SHARED", "no"),
        ("QUORLOCK_SHARED", ""),
        ("QUORLOCK_TTL", "soon"),
        ("QUORLOCK_WAIT", "5"),
        ("QUORLOCK_QUORUM", "2"),
        ("QUORLOCK_IF_HELD", "never"),
        ("QUORLOCK_STATUS_FD", "77"),
        ("QUORLOCK_NODES", "redis://h:1,,x"),
        ("QUORLOCK_RESTART_GUARD", "some"),
        ("QUORLOCK_CONFIG", "missing.toml"),
        ("QUORLOCK_TTL", "1ms"),
        ("QUORLOCK_HELD_EXIT_CODE", "300"),
        ("QUORLOCK_DURABLE", "z"),
        ("QUORLOCK_KEY_PREFIX", "quorlock:"),
        ("QUORLOCK_NODE_TIMEOUT", "9s"),
        ("QUORLOCK_PASSWORD_FILE", "/no/such"),
        ("QUORLOCK_TLS_CERT", "/no/such"),
    ] {
        scene.quorlock_with(&[variable], &["run", "k", "--wait", "0s", "--", "echo", "ran"]);
    }
    // A wrong value is refused even in commands that do not use it.
    for args in [&["ls"][..], &["doctor"], &["status", "k"]] {
        scene.quorlock_with(&[("QUORLOCK_SHARED", "maybe")], args);
        scene.quorlock_with(&[("QUORLOCK_TTL", "banana")], args);
    }
    for file in [
        "ttl = \"5s\"",
        "ttl = 10",
        "ttl = \"soon\"",
        "min-hold = \"0s\"",
        "min-holt = \"1s\"",
        "nodes = [\"redis://:secret@x#y\"]",
        "quorum = 2",
        "ttl = [",
        "password = \"secret\"",
        "ttl = \"1ms\"",
        "ttl = \"1",
        "tls-server-name = \"x\"",
        "nodes = []",
        "quorum = \"x\"",
        "quorum = [1, 2]",
        "max-hold = \"0s\"",
        "max-ttl = \"25h\"",
        "shared = true",
        "fenced = \"maybe\"",
        "max-hold = \"1s\"\n[more]",
    ] {
        scene.say(&format!("config.toml: {file}"));
        std::fs::write(scene.testbed.path("config.toml"), file).unwrap();
        scene.each(["run k --wait 0s --config config.toml -- echo ran"]);
    }
    scene.compare(&expect_file!["settings.txt"]);
}
