//! A client from environment variables. Each case runs this program again with its own variables.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::env;
use std::process::Command;
use std::time::Duration;

use quorlock::{BuildError, Client, LockOptions, blocking};
use quorlock_servers::{Nodes, ServerOptions, find_or_skip};

/// Runs a child process and returns the line that it prints: an error, or that it held a lock.
fn told(child: &str, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", child, "--ignored", "--nocapture"]);
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("QUORLOCK_") {
            command.env_remove(name);
        }
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = told.lines().find_map(|line| line.split_once("told: "));
    line.unwrap_or_else(|| panic!("{output:?}")).1.to_owned()
}

#[test]
#[ignore = "a child of the other tests"]
fn child() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match Client::from_env() {
            Err(error @ BuildError::Environment { .. }) => println!("told: {error}"),
            Err(error) => panic!("it names no variable: {error}"),
            Ok(client) => {
                let guard = client
                    .acquire("k")
                    .options(LockOptions::new().wait(Duration::from_secs(30)))
                    .await
                    .unwrap();
                let _ = guard.release().await;
                client.shutdown(Duration::from_secs(5)).await.unwrap();
                println!("told: held");
            }
        }
    });
}

#[test]
#[ignore = "a child of the other tests"]
fn child_that_blocks() {
    match blocking::Client::from_env() {
        Err(error) => println!("told: {error}"),
        Ok(client) => {
            let guard = client
                .acquire("k")
                .options(LockOptions::new().wait(Duration::from_secs(30)))
                .call()
                .unwrap();
            let _ = guard.release();
            println!("told: held");
        }
    }
}

#[test]
fn the_environment_describes_a_client() {
    let Some(binary) = find_or_skip("the_environment_describes_a_client") else { return };
    let options = ServerOptions { password: Some("s,e".into()), ..ServerOptions::default() };
    let servers = Nodes::start(&binary, 3, options).unwrap();
    let addresses = servers.iter().map(|server| format!("redis+unix://{}", server.address()));
    let nodes = addresses.collect::<Vec<_>>().join(",");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "s,e\n").unwrap();
    let common = [("QUORLOCK_NODES", &*nodes), ("QUORLOCK_RESTART_GUARD", "off")];
    let settings = [
        ("QUORLOCK_KEY_PREFIX", "p:"),
        ("QUORLOCK_QUORUM", "3"),
        ("QUORLOCK_MAX_TTL", "5s"),
        ("QUORLOCK_NODE_TIMEOUT", "1s"),
        ("QUORLOCK_CONNECT_TIMEOUT", "10s"),
        ("QUORLOCK_YIELD_TO_POLLERS", "no"),
        ("QUORLOCK_DURABLE", ""),
        ("QUORLOCK_TLS_CA", " "),
        // The command line uses these variables, and the library ignores them.
        ("QUORLOCK_TTL", "nonsense"),
        ("QUORLOCK_SHARED", "nonsense"),
    ];
    let file = [("QUORLOCK_PASSWORD_FILE", file.to_str().unwrap())];
    let password = [("QUORLOCK_PASSWORD", "s,e")];
    for child in ["child", "child_that_blocks"] {
        assert_eq!(told(child, &[&common[..], &password, &settings].concat()), "held");
        assert_eq!(told(child, &[&common[..], &file].concat()), "held");
    }
}

#[test]
fn an_error_names_its_variable() {
    let nodes = ("QUORLOCK_NODES", "a=redis://:hunter2@127.0.0.1:1");
    for (variable, value, says) in [
        (
            "QUORLOCK_NODES",
            "",
            "not set; it lists the nodes, as in redis://10.0.0.1,redis://10.0.0.2",
        ),
        ("QUORLOCK_NODES", "redis://:hunter2,@h", "a comma separates nodes"),
        ("QUORLOCK_NODES", "a=redis://h,a=redis://g", "node a is listed twice"),
        ("QUORLOCK_MAX_TTL", "9", "a time has a unit"),
        ("QUORLOCK_MAX_TTL", "1ms", "max-ttl (1ms) must be at least 100ms"),
        ("QUORLOCK_QUORUM", "two", "must be a number"),
        ("QUORLOCK_RESTART_GUARD", "of", "must be strict, observe or off"),
        ("QUORLOCK_CONNECT_TIMEOUT", "1", "a time has a unit"),
        ("QUORLOCK_MAX_TTL", "25h", "max_ttl (25h) must be at most 24h"),
        ("QUORLOCK_NODE_TIMEOUT", "9s", "node timeout (9s) must be above zero"),
        ("QUORLOCK_DURABLE", "b", "no node has the name \"b\"; the nodes are: a"),
        ("QUORLOCK_KEY_PREFIX", "quorlock:", "the key prefix"),
        ("QUORLOCK_PASSWORD_FILE", "/no/such/file", "the password in /no/such/file"),
        ("QUORLOCK_TLS_KEY", "/no/such/file", "tls-cert and tls-key go together"),
    ] {
        for child in ["child", "child_that_blocks"] {
            let told = told(child, &[nodes, (variable, value)]);
            assert!(told.starts_with(&format!("{variable}: {says}")), "{variable}={value}: {told}");
            assert!(!told.contains("hunter2"), "{told}");
        }
    }
    let told = told("child", &[nodes, ("QUORLOCK_QUORUM", "2")]);
    assert!(
        told.starts_with("QUORLOCK_QUORUM, QUORLOCK_NODES: a quorum of 2 of 1 nodes"),
        "{told}"
    );
}
