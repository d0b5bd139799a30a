//! The lines of the README run on real servers, and compose.yaml has the servers of the README.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use common::{code, server, stderr, stdout};
use regex_lite::Regex;

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

/// Ends the servers on these ports, which the lines of the README started.
struct Ports(Vec<String>);

impl Drop for Ports {
    fn drop(&mut self) {
        for port in &self.0 {
            let Ok(mut stream) = TcpStream::connect(format!("127.0.0.1:{port}")) else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = stream.write_all(b"SHUTDOWN NOSAVE\r\n");
            // The server closes the connection as it ends, so this read waits for its end.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
}

#[test]
fn the_quick_start_ends_in_a_held_lock() {
    let Some(server) = server() else { return };
    let page = root("README.md");
    let lines = block(&page, "sh");
    assert!(lines.len() <= 6, "the quick start has {} lines", lines.len());
    // The test uses free ports, because a person may run servers on the ports of the README.
    let listeners = [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let free = listeners.map(|listener| listener.local_addr().unwrap().port().to_string());
    let ports = PORTS.iter().zip(&free);
    let script = ports.fold(lines.join("\n"), |text, (port, free)| text.replace(port, free));

    let folder = tempfile::tempdir().unwrap();
    let programs = folder.path().join("programs");
    fs::create_dir(&programs).unwrap();
    // A server may be a script that finds its files beside itself. So `redis-server` is a wrapper script, not a link.
    let start = format!("#!/bin/sh\nexec '{}' \"$@\"\n", server.path.display());
    fs::write(programs.join("redis-server"), start).unwrap();
    fs::set_permissions(programs.join("redis-server"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_quorlock"), programs.join("quorlock")).unwrap();

    let _ports = Ports(free.to_vec());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-eu", "-c", &script]).current_dir(folder.path()).stdin(Stdio::null());
    shell.env_clear().env("HOME", folder.path()).env("TMPDIR", folder.path());
    shell.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", programs.display()));
    let output = shell.output().unwrap();
    let (out, err) = (stdout(&output), stderr(&output));
    code(&output, 0);
    assert!(out.contains("hi\n"), "the command has run: {out}{err}");
    // The line that the README shows as the output of `status`, with any holder and any time.
    let held = Regex::new(
        r"hi: HELD by [^ ]+:[0-9]+ quorlock, since [0-9:]{8}Z \([0-9]+s\) \(on 3 of 3 nodes\)\n",
    )
    .unwrap();
    assert!(held.is_match(&out), "{out}{err}");
    assert!(held.is_match(&page), "the README shows another line");
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
