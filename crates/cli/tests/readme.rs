//! The lines of the README and of the tutorial run on real servers, and compose.yaml has the servers of the README.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use common::{PATIENCE, server, stderr, stdout};
use quorlock_servers::ServerBinary;
use regex_lite::{NoExpand, Regex};

/// The ports of the README and of compose.yaml.
const PORTS: [&str; 3] = ["7001", "7002", "7003"];

fn root(file: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(file)).unwrap()
}

/// The lines of the first code block with this info string.
fn block<'a>(page: &'a str, fence: &str) -> Vec<&'a str> {
    let (_, rest) = page.split_once(&format!("\n```{fence}\n")).unwrap();
    rest.lines().take_while(|line| *line != "```").collect()
}

/// Pairs of commands and the output that the page shows for them, which may be empty.
fn steps(page: &str) -> Vec<(Vec<&str>, Vec<&str>)> {
    let mut steps: Vec<(Vec<&str>, Vec<&str>)> = Vec::new();
    for block in page.split("\n```").skip(1).step_by(2) {
        let mut lines = block.lines();
        match (lines.next(), steps.last_mut()) {
            (Some("sh"), _) => steps.push((lines.collect(), Vec::new())),
            (Some("text"), Some((_, output))) if output.is_empty() => output.extend(lines),
            _ => {}
        }
    }
    steps
}

/// A shell with the programs `quorlock`, `redis-server` and `redis-cli`. Servers of the pages get free ports, because a
/// person may run servers on the ports of the README. Dropping it ends the servers.
struct Shell {
    process: Child,
    input: ChildStdin,
    /// The lines of standard output and standard error.
    output: Receiver<String>,
    ports: Vec<(&'static str, String)>,
    _folder: tempfile::TempDir,
}

impl Shell {
    fn start(server: &ServerBinary) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path().join("programs");
        fs::create_dir(&programs).unwrap();
        // A server may be a script that finds its files beside itself. So `redis-server` is a wrapper script, not a
        // link. Not every server comes with a `redis-cli`, so the test has one for `redis-cli -p PORT shutdown nosave`.
        let start = format!("exec '{}' \"$@\"", server.path.display());
        let stop = "exec 3<>/dev/tcp/127.0.0.1/$2 && echo \"$3 $4\" >&3 && cat <&3";
        for (name, line) in [("redis-server", start.as_str()), ("redis-cli", stop)] {
            let program = programs.join(name);
            fs::write(&program, format!("#!/bin/bash\n{line}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_quorlock"), programs.join("quorlock"))
            .unwrap();
        let listeners = [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let free = listeners.map(|listener| listener.local_addr().unwrap().port().to_string());

        let (reader, writer) = io::pipe().unwrap();
        let mut shell = std::process::Command::new("sh");
        shell.env_clear().env("HOME", folder.path()).env("TMPDIR", folder.path());
        shell.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", programs.display()));
        shell.arg("-u").current_dir(folder.path()).stdin(Stdio::piped());
        let mut process = shell.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
        let (lines, output) = mpsc::channel();
        thread::spawn(move || {
            let read = BufReader::new(reader).lines().map_while(Result::ok);
            read.for_each(|line| drop(lines.send(line)));
        });
        let ports = PORTS.into_iter().zip(free).collect();
        Self { input: process.stdin.take().unwrap(), process, output, ports, _folder: folder }
    }

    /// Runs the commands, and waits until the output contains the lines that the page shows, in their order. Times,
    /// fencing tokens, holders and widths differ from run to run, and `…` stands for any text. A lock is awaited that a command in the
    /// background takes, as a reader of the page does.
    fn run(&mut self, commands: &[&str], shown: &[&str]) {
        let script = commands.join("\n");
        let script = self.ports.iter().fold(script, |text, (port, free)| text.replace(port, free));
        writeln!(self.input, "{script}").unwrap();
        for command in commands.iter().filter(|command| command.ends_with(" &")) {
            let key = command.split(' ').nth(2).unwrap();
            let held = format!("quorlock status {key} 2>&1 | grep -q HELD");
            writeln!(self.input, "until {held}; do sleep 0.05; done").unwrap();
        }
        let mut said = Vec::new();
        for wanted in shown {
            let pattern = pattern(wanted);
            loop {
                let line = self.output.recv_timeout(PATIENCE);
                let line = line.unwrap_or_else(|_| panic!("no {wanted:?} in {said:#?}"));
                let is_it = pattern.is_match(&line);
                said.push(line);
                if is_it {
                    break;
                }
            }
        }
    }
}

/// Matches the line, with other times, fencing tokens, holders and widths.
fn pattern(line: &str) -> Regex {
    let line = regex_lite::escape(line.trim());
    let any = [
        (r"[^ ]+:[0-9]+ sleep", "\u{1}"),
        (r"[0-9]+(\\\.[0-9]+)?(ms|s)\b", "\u{2}"),
        (r"[0-9]{2}:[0-9]{2}:[0-9]{2}Z", "\u{3}"),
        (r"[0-9]{16}", "\u{4}"),
        (r" +", " +"),
        ("\u{1}", "[^ ]+:[0-9]+ sleep"),
        ("\u{2}", "[0-9.]+(µs|ms|s)"),
        ("\u{3}", "[0-9:]{8}Z"),
        ("\u{4}", "[0-9]{16}"),
        ("…", ".*"),
    ];
    let pattern = any.iter().fold(line, |text, (from, to)| {
        Regex::new(from).unwrap().replace_all(&text, NoExpand(to)).into_owned()
    });
    Regex::new(&format!("^ *{pattern} *$")).unwrap()
}

impl Drop for Shell {
    fn drop(&mut self) {
        for (_, port) in &self.ports {
            let Ok(mut stream) = TcpStream::connect(format!("127.0.0.1:{port}")) else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = stream.write_all(b"SHUTDOWN NOSAVE\r\n");
            // The server closes the connection as it ends, so this read waits for its end.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        // Without its servers, a lock that the shell still holds is lost, and its job ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_quick_start_and_the_first_lock_print_what_they_show() {
    let Some(server) = server() else { return };
    let mut shell = Shell::start(&server);
    let readme = root("README.md");
    let quick_start = steps(&readme);
    let [(lines, shown)] = &quick_start[..] else { panic!("{quick_start:?}") };
    assert!(lines.len() <= 5, "the quick start has {} lines", lines.len());
    shell.run(lines, shown);
    let page = root("docs/first-lock.md");
    let steps = steps(&page);
    assert!(steps.len() >= 9, "only {} steps", steps.len());
    for (lines, shown) in &steps {
        shell.run(lines, shown);
    }
}

/// The front page stays one that a newcomer reads to its end, and begins with the two commands for a fresh clone.
#[test]
fn the_readme_is_short_and_begins_with_two_commands() {
    let page = root("README.md");
    assert!(page.lines().count() <= 120, "{} lines", page.lines().count());
    let first: Vec<_> = block(&page, "text").iter().map(|line| line.split("  ").next()).collect();
    assert_eq!(first, [Some("cargo xtask try"), Some("cargo xtask test")]);
}

/// The Rust code of the README must equal an example, because Cargo compiles examples with the tests.
#[test]
fn the_lines_of_rust_are_an_example() {
    let (page, example) = (root("README.md"), root("crates/quorlock/examples/readme.rs"));
    let (_, program) = example.split_once("\n\n").unwrap();
    assert_eq!(program.trim_end(), block(&page, "rust,no_run").join("\n"));
}

#[test]
fn compose_yaml_has_the_servers_of_the_quick_start_on_this_machine_only() {
    let (page, compose) = (root("README.md"), root("compose.yaml"));
    let nodes = |text: &str| {
        let line = text.lines().find(|line| line.contains("export QUORLOCK_NODES=")).unwrap();
        line.trim_start_matches(['#', ' ']).to_owned()
    };
    assert_eq!(nodes(&compose), nodes(block(&page, "sh").join("\n").as_str()));
    let published = compose.lines().filter_map(|line| line.trim().strip_prefix("ports: "));
    let expected = PORTS.map(|port| format!("[\"127.0.0.1:{port}:6379\"]"));
    assert_eq!(published.collect::<Vec<_>>(), expected);
    let image = compose.lines().find_map(|line| line.trim().strip_prefix("image: ")).unwrap();
    assert!(image.split_once(':').is_some_and(|(_, tag)| tag != "latest"), "{image}");
    assert!(!compose.contains('\t'));
    for line in compose.lines().filter(|line| !line.starts_with('#')) {
        assert_eq!((line.len() - line.trim_start().len()) % 2, 0, "{line:?}");
    }
    // If Python has a YAML parser, the parser must accept the file.
    let parse = "import sys, yaml; print(len(yaml.safe_load(open(sys.argv[1]))['services']))";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../compose.yaml");
    let python = std::process::Command::new("python3").args(["-c", parse]).arg(file).output();
    if let Ok(parsed) = python
        && !stderr(&parsed).contains("No module named 'yaml'")
    {
        assert_eq!(stdout(&parsed), "3\n", "{}", stderr(&parsed));
    }
}
