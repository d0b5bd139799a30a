//! Settings from the command line, the environment and the configuration file, in this order, and the variables that
//! the command sees.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use common::{Testbed, code, quorlock, stderr, stdout};
use quorlock::settings::{Class, Place, SETTINGS, Setting, variables};

/// No server listens on this port, so a command with valid settings ends with code 69.
const NOBODY: &str = "redis://127.0.0.1:1";

/// The exit code and standard error of a command with these variables.
fn run(args: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let mut command = quorlock(args);
    command.env("QUORLOCK_NODES", NOBODY).envs(variables.iter().copied());
    let output = command.output().unwrap();
    (output.status.code().unwrap(), stderr(&output))
}

const RUN: &[&str] = &["run", "k", "--wait", "0s", "--", "true"];

#[test]
fn a_switch_takes_yes_or_no_and_nothing_else() {
    for variable in ["SHARED", "FENCED", "PASS_NODES", "JSON", "QUIET"] {
        let name = format!("QUORLOCK_{variable}");
        for wrong in ["maybe", "flase", "2", "y", "-"] {
            let (code, said) = run(RUN, &[(&name, wrong)]);
            assert_eq!(code, 78, "{name}={wrong}: {said}");
            assert!(said.contains(&format!("{name}: \"{wrong}\": must be 1, true")), "{said}");
        }
        for right in ["1", "true", "YES", "On", "0", "False", "no", "OFF", "", " "] {
            assert_eq!(run(RUN, &[(&name, right)]).0, 69, "{name}={right}");
        }
        // The command line overrides the variable.
        let flag = format!("--{}=no", variable.to_lowercase().replace('_', "-"));
        let args = ["run", "k", &flag, "--wait", "0s", "true"];
        assert_eq!(run(&args, &[(&name, "maybe")]).0, 69, "{args:?}");
    }
    let (code, said) = run(&["run", "k", "--shared=maybe", "--", "true"], &[]);
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("--shared"), "{said}");
}

#[test]
fn a_flag_with_the_value_no_overrides_its_variable() {
    let Some(testbed) = Testbed::sized(1) else { return };
    let shares = |variable: &str, flags: &[&str]| {
        let args = [&["run", "k", "--status-fd", "1"], flags, &["--", "true"]].concat();
        let output = testbed.quorlock(&args).env("QUORLOCK_SHARED", variable).output().unwrap();
        code(&output, 0);
        stdout(&output).contains(r#""mode":"shared""#)
    };
    assert!(shares("on", &[]) && shares("off", &["--shared"]) && shares("", &["--shared=yes"]));
    assert!(!shares("on", &["--shared=false"]) && !shares("", &[]) && !shares("0", &[]));
}

/// A value for each variable of a run.
const VALUES: &[(&str, &str)] = &[
    ("QUORLOCK_QUORUM", "1"),
    ("QUORLOCK_KEY_PREFIX", "p:"),
    ("QUORLOCK_MAX_TTL", "30s"),
    ("QUORLOCK_RESTART_GUARD", "off"),
    ("QUORLOCK_DURABLE", "a"),
    ("QUORLOCK_NODE_TIMEOUT", "2s"),
    ("QUORLOCK_CONNECT_TIMEOUT", "5s"),
    ("QUORLOCK_YIELD_TO_POLLERS", "no"),
    ("QUORLOCK_USERNAME", "default"),
    ("QUORLOCK_PASSWORD", "x"),
    // An empty value counts as not set. With a non-empty value, the nodes would have to use TLS.
    ("QUORLOCK_TLS_SERVER_NAME", ""),
    ("QUORLOCK_SHARED", "no"),
    ("QUORLOCK_FENCED", "no"),
    ("QUORLOCK_IF_HELD", "fail"),
    ("QUORLOCK_HELD_EXIT_CODE", "3"),
    ("QUORLOCK_MIN_HOLD", "0s"),
    ("QUORLOCK_MAX_HOLD", "1h"),
    ("QUORLOCK_KILL_AFTER", "2s"),
    ("QUORLOCK_TTL", "10s"),
    ("QUORLOCK_WAIT", "30s"),
    ("QUORLOCK_LABEL", "here"),
    ("QUORLOCK_LEASE", "a secret of the outer script"),
    ("QUORLOCK_STATUS_FD", "2"),
    ("QUORLOCK_JSON", "yes"),
    ("QUORLOCK_QUIET", "yes"),
    ("QUORLOCK_PASS_NODES", "no"),
    // `quorlock run` sets these variables for its command. Here they are left from an outer call.
    ("QUORLOCK_KEY", "outer"),
    ("QUORLOCK_TOKEN", "outer"),
    ("QUORLOCK_FENCE", "outer"),
    ("QUORLOCK_VALID_UNTIL_MS", "outer"),
];

#[test]
fn a_command_inherits_no_variable_of_the_call_and_those_about_the_nodes_only_on_request() {
    let Some(testbed) = Testbed::sized(1) else { return };
    let file = testbed.path("file");
    fs::write(&file, "# nothing\n").unwrap();
    let file = file.to_str().unwrap();
    let files = ["CONFIG", "PASSWORD_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY"];
    let files = files.map(|name| (format!("QUORLOCK_{name}"), file.to_owned()));
    let seen = |flags: &[&str]| {
        let args = [&["run", "k"], flags, &["--", "env"]].concat();
        let mut command = testbed.quorlock(&args);
        command.envs(files.clone()).envs(VALUES.iter().copied()).env("QUORLOCK_SERVER", "s");
        let output = command.output().unwrap();
        code(&output, 0);
        let output = stdout(&output);
        let lines = output.lines().filter(|line| line.starts_with("QUORLOCK_"));
        lines.map(|line| line.split_once('=').unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    let tested = |name: &str| {
        name == "QUORLOCK_NODES"
            || VALUES.iter().any(|(other, _)| *other == name)
            || files.iter().any(|(other, _)| *other == name)
    };
    let of = |class| variables().filter(move |(_, other)| *other == class).map(|(name, _)| name);
    for (flags, passes) in [(&[][..], false), (&["--pass-nodes"][..], true)] {
        let seen = seen(flags);
        let has = |name: &str| seen.iter().any(|other| other == name);
        for name in of(Class::Deployment) {
            assert!(tested(&name), "{name} needs a value here");
            assert_eq!(has(&name), passes, "{name} {flags:?}");
        }
        for name in of(Class::Call) {
            assert!(tested(&name), "{name} needs a value here");
            assert!(!has(&name), "{name} {flags:?}");
        }
        assert!(has("QUORLOCK_SERVER"));
        assert!(has("QUORLOCK_KEY") && has("QUORLOCK_TOKEN") && !has("QUORLOCK_FENCE"));
    }
}

/// `--shared false true` must not run `false` under a shared lock, nor `true` under a lock with the name `false`.
#[test]
fn a_word_after_a_flag_that_may_be_its_value_is_refused() {
    for args in [
        &["run", "k", "--shared", "false", "true"][..],
        &["run", "--shared", "no", "true"],
        &["run", "k", "--json", "on", "--", "true"],
        &["run", "k", "-q", "true"],
        &["run", "k", "--pass-nodes", "1", "2"],
    ] {
        let (code, said) = run(args, &[]);
        assert_eq!(code, 64, "{args:?}: {said}");
        assert!(said.contains("put KEY before the options, and -- before CMD"), "{said}");
    }
    let shared = ["run", "k", "--shared", "--wait", "0s"];
    for (args, cmd) in [(&["--", "true"][..], "true"), (&["env", "true"], "env")] {
        assert_eq!(run(&[&shared[..], args].concat(), &[]).0, 69, "{cmd}");
    }
    assert_eq!(run(&["run", "k", "--wait", "0s", "--shared", "--", "true"], &[]).0, 69);
    let (code, said) = run(&["run", "k", "--", ""], &[]);
    assert!(code == 64 && said.contains("CMD is empty"), "{said}");
    let (code, said) = run(&["run", "", "--", "true"], &[]);
    assert!(code == 64 && said.contains("KEY has no name"), "{said}");
}

/// A command does not inherit the variables about the nodes. The error of a nested call must name `--pass-nodes`.
#[test]
fn a_nested_call_without_nodes_names_the_option_that_passes_them_on() {
    let Some(testbed) = Testbed::sized(1) else { return };
    let nested = |flags: &[&str]| {
        let program = env!("CARGO_BIN_EXE_quorlock");
        let args = [&["run", "k"], flags, &["--", program, "status", "other"]].concat();
        let output = testbed.output(&args);
        (output.status.code().unwrap(), stderr(&output))
    };
    let (code, said) = nested(&[]);
    assert!(code == 64 && said.contains("--pass-nodes"), "{said}");
    assert!(said.contains("/etc/quorlock/config.toml"), "{said}");
    assert_eq!(nested(&["--pass-nodes"]).0, 0);
    let (_, said) = run(&["status", "k"], &[("QUORLOCK_NODES", "")]);
    assert!(said.contains("no nodes were given: ") && !said.contains("--pass-nodes"), "{said}");
}

#[test]
fn an_unknown_variable_is_reported_once() {
    let typo = [("QUORLOCK_TLL", "1s"), ("QUORLOCK_ZZZZZZZZ", "1"), ("QUORLOCK_TEST_X", "1")];
    let (code, said) = run(RUN, &typo);
    assert_eq!((code, said.matches("QUORLOCK_TLL").count()), (69, 1), "{said}");
    assert!(
        said.contains("QUORLOCK_TLL (do you mean QUORLOCK_TTL?), QUORLOCK_ZZZZZZZZ\n"),
        "{said}"
    );
    let (_, said) = run(&[&["--json"], RUN].concat(), &typo);
    assert!(said.starts_with(r#"{"event":"warning","message":"unknown variables"#), "{said}");
    assert!(!run(&[&["-q"], RUN].concat(), &typo).1.contains("QUORLOCK_TLL"));
    let known = variables().filter(|(_, class)| matches!(class, Class::Lock | Class::Tool));
    let known: Vec<_> = known.map(|(name, _)| name).collect();
    let known: Vec<_> = known.iter().map(|name| (name.as_str(), "x")).collect();
    assert!(!run(RUN, &known).1.contains("unknown"));
}

#[test]
fn the_command_line_overrides_the_environment_and_the_environment_the_file() {
    let Some(testbed) = Testbed::sized(1) else { return };
    let config = |label: &str| format!("label = \"{label}\"\nkey-prefix = \"p:\"\nwait = \"0s\"\n");
    let (own, other) = (testbed.path("quorlock/config.toml"), testbed.path("other.toml"));
    fs::create_dir(own.parent().unwrap()).unwrap();
    fs::write(&own, config("own")).unwrap();
    fs::write(&other, config("other")).unwrap();
    // `quorlock` does not read a file in the working directory.
    fs::write(testbed.path("config.toml"), "nonsense").unwrap();
    let folder = testbed.folder.path().to_str().unwrap().to_owned();
    let holder = |before: &[&str], behind: &[&str], variables: &[(&str, &str)]| {
        let script = "exec \"$Q\" status k --key-prefix p: --config /dev/null --json";
        let args = [before, &["run", "k"], behind, &["sh", "-c", script]].concat();
        let mut command = testbed.quorlock(&args);
        command.env("Q", env!("CARGO_BIN_EXE_quorlock")).env("QUORLOCK_PASS_NODES", "1");
        command.env("XDG_CONFIG_HOME", &folder).envs(variables.iter().copied());
        let output = command.output().unwrap();
        code(&output, 0);
        let found = ["own", "other", "variable", "typed"];
        let said = stdout(&output);
        found.into_iter().find(|label| said.contains(&format!(" {label}"))).expect(&said)
    };
    let other = other.to_str().unwrap();
    assert_eq!(holder(&[], &[], &[]), "own");
    assert_eq!(holder(&[], &[], &[("QUORLOCK_CONFIG", other)]), "other");
    assert_eq!(holder(&[], &[], &[("QUORLOCK_CONFIG", "")]), "own");
    assert_eq!(holder(&["--config", other], &[], &[]), "other");
    assert_eq!(holder(&[], &["--config", other], &[("QUORLOCK_CONFIG", "/no/such")]), "other");
    let variable = ("QUORLOCK_LABEL", "variable");
    assert_eq!(holder(&["--config", other], &[], &[variable]), "variable");
    assert_eq!(holder(&[], &["--label", "typed"], &[variable]), "typed");
    // Without XDG_CONFIG_HOME, the folder is in the home directory.
    let home = testbed.path("home");
    fs::create_dir_all(home.join(".config/quorlock")).unwrap();
    fs::write(home.join(".config/quorlock/config.toml"), config("other")).unwrap();
    let home = home.to_str().unwrap();
    assert_eq!(holder(&[], &[], &[("XDG_CONFIG_HOME", ""), ("HOME", home)]), "other");
    // A configuration file that other users can change is refused unless the call names it.
    let refused = || {
        let (code, said) = run(RUN, &[("XDG_CONFIG_HOME", &folder)]);
        assert_eq!(code, 78, "{said}");
        assert!(said.contains(&format!("chmod go-w {}", own.display())), "{said}");
        assert_eq!(holder(&["--config", own.to_str().unwrap()], &[], &[]), "own");
    };
    for mode in [0o646, 0o664] {
        fs::set_permissions(&own, Permissions::from_mode(mode)).unwrap();
        refused();
    }
    fs::set_permissions(&own, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(holder(&[], &[], &[]), "own");
    // Only root can give the file to another user. If this test runs as root, a file of another user is refused too.
    if std::os::unix::fs::chown(&own, Some(65_534), None).is_ok() {
        refused();
    }
}

#[test]
fn the_file_takes_every_option_that_does_not_describe_one_call() {
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let secret = written("secret", "hunter2\n");
    let mut text = format!("nodes = [\"a={NOBODY}\"]\npassword-file = {secret:?}\n");
    for name in ["tls-ca", "tls-cert", "tls-key"] {
        text += &format!("{name} = {secret:?}\n");
    }
    text += "quorum = 1\nmax-ttl = \"20s\"\nrestart-guard = \"off\"\ndurable = [\"a\"]\n";
    text +=
        "node-timeout = \"1s\"\nconnect-timeout = \"1s\"\nusername = \"u\"\nkey-prefix = \"p\"\n";
    text += "yield-to-pollers = false\n";
    text +=
        "ttl = \"5s\"\nwait = \"0s\"\nmax-hold = \"1h\"\nmin-hold = \"1s\"\nkill-after = \"1s\"\n";
    text += "if-held = \"skip\"\nheld-exit-code = 3\nlabel = \"x\"\nfenced = true\npass-nodes = false\n";
    let file = written("q.toml", &text);
    for args in [&["run", "k", "true"][..], &["status", "k"], &["doctor"]] {
        let mut command = quorlock(&[&["--config", &file], args].concat());
        let output = command.env("QUORLOCK_NODES", "").output().unwrap();
        let code = if args[0] == "doctor" { 2 } else { 69 };
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
    }
    let doctor = |args: &[&str]| {
        let args = [&["doctor", "-n", NOBODY, "--config"], args].concat();
        stdout(&quorlock(&args).output().unwrap())
    };
    let other = written("other.toml", "");
    assert!(doctor(&[&other]).starts_with(&format!("config   {other}\n")));
    assert!(doctor(&[&other, "--json"]).contains(&format!("\"config\":{other:?}")));
    assert!(!doctor(&[&other, "--quiet"]).contains("config "));
    let none = stdout(&quorlock(&["doctor", "-n", NOBODY]).output().unwrap());
    assert!(none.starts_with("config   no file\n"), "{none}");
    assert!(!Path::new("/etc/quorlock/config.toml").exists(), "these tests read that file");
}

#[test]
fn the_command_begins_at_the_first_word_after_the_key() {
    let Some(testbed) = Testbed::sized(1) else { return };
    let out = |args: &[&str]| {
        let output = testbed.output(args);
        (output.status.code().unwrap(), stdout(&output), stderr(&output))
    };
    for (args, told) in [
        (&["run", "k", "echo", "1"][..], "1\n"),
        (&["run", "k", "--wait", "9s", "echo", "--wait", "-q", "x"], "--wait -q x\n"),
        (&["run", "k", "echo", "--", "x"], "-- x\n"),
        (&["run", "k", "--", "echo", "--", "x"], "-- x\n"),
        (&["run", "--wait", "9s", "k", "--", "echo", "1"], "1\n"),
        (&["run", "k", "--shared", "echo", "1"], "1\n"),
    ] {
        assert_eq!(out(args), (0, told.to_owned(), String::new()), "{args:?}");
    }
    for (args, says) in [
        (&["run", "--", "echo", "1"][..], "KEY stands before --"),
        (&["run", "k", "--nonsense", "echo"], "'-- --nonsense'"),
        (&["run", "k"], "<CMD>"),
    ] {
        let (code, told, said) = out(args);
        assert_eq!((code, told.as_str()), (64, ""), "{args:?}");
        assert!(said.contains(says), "{args:?}: {said}");
    }
}

#[test]
fn the_page_has_the_table_of_settings() {
    let row = |setting: &Setting| {
        let option = match setting.place {
            Place::OnlyVariable => setting.help.to_owned(),
            _ => format!("`--{}`", setting.name),
        };
        let key = setting.key().map(|key| format!(" `{key}`")).unwrap_or_default();
        format!("| {option} | `{}` |{key} |\n", setting.variable())
    };
    let rows: String = SETTINGS.iter().map(row).collect();
    let table = format!("\n| option | variable | key in the file |\n|---|---|---|\n{rows}\n");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains(&table), "docs/cli.md needs this table:\n{table}");
}
