//! Text that other clients have written is shown without control characters and without tokens.

mod common;

use std::process::{Command, Stdio};

use common::hostile::{bulk, hostile};
use common::{Running, Testbed, command, quorlock, stderr, stdout};
use quorlock_servers::Reply;

const TOKEN: &str = "0123456789abcdef0123456789abcdef01234567";

/// The longest allowed line of output, in bytes. Some lines contain the settings of five nodes.
const LINE_MAX: usize = 16_000;

#[test]
fn no_output_has_control_characters_or_a_token() {
    let Some(testbed) = Testbed::new() else { return };
    let nasty = "\u{1b}[2J\u{1b}]0;x\u{7}\r\u{202e}".repeat(4096);
    let rest = "quorum=2 max_ttl_ms=30000 run_id=0d2f promoted=-1 floor=0 wait_ms=1";
    let plants = [
        format!("{TOKEN} {nasty}"),
        format!("quorlock 1 nodes={nasty},{TOKEN} {rest}"),
        TOKEN.to_owned(),
    ];
    let calls: [&[&str]; 8] = [
        &["status", "k"],
        &["status", "k", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["run", "k", "--wait", "200ms", "--", "true"],
        &["run", "k", "--json", "--wait", "200ms", "--", "true"],
        &["init", "--reconfigure", "--yes"],
        &["init", "--reconfigure", "--yes", "--json"],
    ];
    for key in ["quorlock:node", "quorlock:adopt", "k"] {
        for plant in &plants {
            for args in calls.iter().filter(|args| args[0] != "init" || key != "k") {
                testbed.on_all(&["FLUSHALL"]);
                testbed.on_all(&["SET", key, plant]);
                let mut command = testbed.quorlock(args);
                command.env("QUORLOCK_RESTART_GUARD", "strict").env("QUORLOCK_MAX_TTL", "1s");
                if args[0] == "run" {
                    command.env("QUORLOCK_TTL", "1s");
                }
                let output = command.output().expect("quorlock starts");
                let printed = stdout(&output) + &stderr(&output);
                assert!(!printed.is_empty(), "{args:?}");
                let is_obeyed = |c: char| c.is_control() && c != '\n';
                assert!(!printed.contains(is_obeyed), "{args:?}: {printed:?}");
                assert!(!printed.contains(TOKEN), "{args:?}: {printed}");
                assert!(printed.lines().all(|line| line.len() <= LINE_MAX), "{args:?}: {printed}");
            }
        }
    }
}

/// Every character that a terminal obeys or that changes the order of text, and a line that pretends to be quorlock's.
fn nasty() -> String {
    let obeyed = (0..0x20).chain(0x7f..0xa0).chain([0x61c, 0x200e, 0x200f, 0x2028, 0x2029]);
    let obeyed = obeyed.chain(0x202a..0x202f).chain(0x2066..0x206a);
    format!("\u{1b}]0;x\u{7}\n{FAKE}{}", obeyed.filter_map(char::from_u32).collect::<String>())
}

/// The beginning of a line that the test has planted.
const FAKE: &str = "FAKE";

fn check(printed: &[u8], what: &dyn std::fmt::Debug) {
    let printed = std::str::from_utf8(printed).unwrap_or_else(|_| panic!("{what:?}: no text"));
    let planted: Vec<char> =
        nasty().chars().filter(|c| *c != '\n' && !c.is_alphanumeric()).collect();
    let obeyed = printed.chars().find(|c| planted.contains(c) && !"];".contains(*c));
    assert_eq!(obeyed, None, "{what:?}: {printed:?}");
    assert!(!printed.lines().any(|line| line.starts_with(FAKE)), "{what:?}: {printed}");
    let longest = printed.lines().map(str::len).max().unwrap_or(0);
    assert!(longest <= LINE_MAX, "{what:?}: {longest} bytes in {printed:.500}");
}

/// The places of foreign text: keys, their names and values of each kind, what servers say of themselves, their errors
/// to each command, and the arguments, variables and files of the call.
#[test]
fn nothing_foreign_reaches_a_terminal_as_it_is() {
    let Some(testbed) = Testbed::new() else { return };
    let nasty = nasty();
    let error = |text: &str| format!("!{}\r\nERR {text}\r\n", text.len() + 4).into_bytes();
    let line = format!("-ERR {}\r\n", nasty.replace(['\r', '\n'], " ")).into_bytes();
    let [a, b, c, d, e] = &testbed.nodes[..] else { panic!("five") };
    let said = nasty.clone();
    let info = move |server_says: &str| {
        let fields = ["redis_version", "valkey_version", "maxmemory_policy", "slave0", "role"];
        let forged = |line: &str| match line.split_once(':') {
            Some((name, value)) if fields.contains(&name) => {
                format!("{name}:{value}{}\r\n", said.replace(['\r', '\n'], " "))
            }
            _ => format!("{line}\r\n"),
        };
        bulk(server_says.lines().map(forged).collect::<String>())
    };
    let Reply::Bulk(Some(real)) = command(c, &["INFO"]) else { panic!("a text") };
    let real = String::from_utf8(real).expect("text");
    let all = nasty.clone();
    let nodes = [
        hostile(a, move |words| (words[0] == "HELLO").then(|| line.clone())),
        hostile(b, move |words| (words[0] != "HELLO").then(|| error(&all))),
        hostile(c, move |words| (words[0] == "INFO").then(|| info(&real))),
        d.url(),
        e.url(),
    ];
    let nodes: Vec<String> = ["a", "b", "c", "d", "e"]
        .iter()
        .zip(nodes)
        .map(|(name, url)| format!("{name}={url}"))
        .collect();

    let (large, bytes) =
        (nasty.repeat((1 << 20) / nasty.len() + 1), [0x80, 0x9b, 0xff, 0x1b, 0xc2]);
    let owner = format!("{TOKEN} {nasty}");
    let kinds: [&[&[u8]]; 7] = [
        &[b"SET", b"k", owner.as_bytes(), b"PX", b"1000000"],
        &[b"SET", b"k", nasty.as_bytes(), b"PX", b"1000000"],
        &[b"SET", b"k", large.as_bytes()],
        &[b"SET", b"k", &bytes],
        &[b"ZADD", b"k", b"9e15", owner.as_bytes()],
        &[b"SET", nasty.as_bytes(), owner.as_bytes()],
        &[b"SET", b"quorlock:node", owner.as_bytes()],
    ];
    let calls: [&[&str]; 12] = [
        &["status", "k"],
        &["status", &nasty.replace('\0', "")],
        &["ls"],
        &["ls", "--quiet"],
        &["doctor", "--notes"],
        &["run", "k", "--wait", "200ms", "--", "true"],
        &["run", "k", "--shared", "--wait", "200ms", "--", "true"],
        &["acquire", "k", "--wait", "0s", "--label", &nasty.replace('\0', "")],
        &["release", "k", "--value", "v"],
        &["extend", "k", "--value", "v"],
        &["init", "--fresh", "--yes"],
        &["init", "--reconfigure", "--yes"],
    ];
    for words in kinds {
        testbed.on_all(&["FLUSHALL"]);
        testbed.nodes.iter().for_each(|node| drop(node.command(words).expect("an answer")));
        let calls =
            calls.iter().flat_map(|args| [args.to_vec(), [*args, &["--json"][..]].concat()]);
        let running = calls.map(|args| {
            let mut command = testbed.quorlock(&args);
            command.env("QUORLOCK_NODES", nodes.join(",")).env("QUORLOCK_MAX_TTL", "10s");
            command.env("QUORLOCK_RESTART_GUARD", "strict");
            (Running::start(&mut command), format!("{args:?}"))
        });
        for (running, args) in running.collect::<Vec<_>>() {
            let (output, what) = (running.end(), (args, words[1]));
            check(&output.stdout, &what);
            check(&output.stderr, &what);
        }
    }

    // A pipe gets the value as it is stored; a terminal gets it escaped, on one line.
    testbed.on_all(&["FLUSHALL"]);
    testbed.on_all(&["SET", "k", &nasty]);
    let query = ["query", "k"];
    check(&testbed.output(&["query", "k", "--json"]).stdout, &"query --json");
    assert_eq!(testbed.output(&query).stdout, format!("{nasty}\n").into_bytes());
    let mut on_terminal = Command::new("script");
    on_terminal.args(["-qec", &format!("{} query k", env!("CARGO_BIN_EXE_quorlock")), "/dev/null"]);
    let inner = testbed.quorlock(&query);
    on_terminal.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = on_terminal.stdin(Stdio::null()).output().expect("script(1) of util-linux");
    let shown = stdout(&output).replace("\r\n", "\n");
    check(shown.as_bytes(), &"a terminal");
    assert!(shown.contains("\\u{1b}]0;x\\u{7}\\nFAKE"), "{shown:?}");
}

#[test]
fn no_mistake_in_a_call_prints_control_characters() {
    let nasty = nasty().replace('\0', "");
    // An error about an argument repeats it with its line feeds.
    let typed = nasty.replace('\n', " ");
    let folder = tempfile::tempdir().expect("a folder");
    let file = |text: &str| {
        let path = folder.path().join("config.toml");
        std::fs::write(&path, text).expect("a file");
        path
    };
    let node = |text: &str| text.replace('N', &typed);
    let texts = [
        "N",
        "N=redis://h",
        "a=N",
        "redis://N",
        "redis://h/N",
        "redis://h?N=1",
        "N://h",
        "redis+unix:///N",
    ];
    let mut calls: Vec<Command> = Vec::new();
    for option in [
        "--node",
        "--key-prefix",
        "--username",
        "--ttl",
        "--quorum",
        "--password-file",
        "--config",
        "--durable",
    ] {
        calls.push(quorlock(&["status", "k", option, &typed]));
    }
    calls.extend(texts.iter().map(|text| quorlock(&["status", "k", "--node", &node(text)])));
    calls.push(quorlock(&[&typed]));
    calls.push(quorlock(&["run", &nasty]));
    calls.push(quorlock(&["run", "quorlock:", "--", &nasty]));
    calls.push(quorlock(&["release", &nasty]));
    calls.push(quorlock(&["acquire", "k", "--lease-file", &nasty]));
    calls.push(quorlock(&["completions", &typed]));
    for (name, value) in
        [("QUORLOCK_NODES", &*nasty), ("QUORLOCK_TTL", &nasty), ("QUORLOCK_WAIT", &nasty)]
    {
        let mut call = quorlock(&["run", "k", "--", "true"]);
        call.env(name, value);
        calls.push(call);
    }
    let mut call = quorlock(&["status", "k"]);
    call.env(format!("QUORLOCK_{}", nasty.replace('=', "")), "1");
    calls.push(call);
    for text in [
        nasty.clone(),
        format!("\"{nasty}\" = 1"),
        format!("nodes = ['{nasty}']"),
        "\"\\u001b\" = 1".to_owned(),
    ] {
        let output = quorlock(&["status", "k"]).env("QUORLOCK_CONFIG", file(&text)).output();
        check(&output.expect("quorlock starts").stderr, &text);
    }
    for mut call in calls {
        for json in [false, true] {
            let output =
                call.env("QUORLOCK_JSON", json.to_string()).output().expect("quorlock starts");
            assert!(!output.status.success(), "{call:?}");
            check(&output.stdout, &call);
            check(&output.stderr, &call);
        }
    }
}
