//! A client from environment variables and the configuration file. Each case runs this program again with its own variables.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
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
        let client = match env::var_os("QUORLOCK_TEST_FILE") {
            Some(_) => Client::from_settings(),
            None => Client::from_env(),
        };
        match client {
            Err(error @ BuildError::Setting { .. }) => println!("told: {error}"),
            Err(error) => panic!("it names no origin: {error}"),
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
    let client = match env::var_os("QUORLOCK_TEST_FILE") {
        Some(_) => blocking::Client::from_settings(),
        None => blocking::Client::from_env(),
    };
    match client {
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
    fs::write(&file, "s,e\n").unwrap();
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
            "not set; it lists the nodes, as in a=redis://10.0.0.1,b=redis://10.0.0.2,c=redis://10.0.0.3",
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

/// A folder with a configuration file.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(text: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        fs::create_dir(folder.0.path().join("quorlock")).unwrap();
        fs::write(folder.file(), text).unwrap();
        folder
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("quorlock/config.toml")
    }

    /// The line of a child that reads the file.
    fn told(&self, child: &str, variables: &[(&str, &str)]) -> String {
        let folder = self.0.path().to_str().unwrap();
        let common = [("XDG_CONFIG_HOME", folder), ("QUORLOCK_TEST_FILE", "1")];
        told(child, &[&common, variables].concat())
    }
}

#[test]
fn a_service_and_the_command_line_share_one_file() {
    let Some(binary) = find_or_skip("a_service_and_the_command_line_share_one_file") else {
        return;
    };
    let options = ServerOptions { password: Some("s,e".into()), ..ServerOptions::default() };
    let servers = Nodes::start(&binary, 3, options).unwrap();
    let urls: Vec<_> =
        servers.iter().map(|server| format!("redis+unix://{}", server.address())).collect();
    let secrets = tempfile::tempdir().unwrap();
    let password = secrets.path().join("password");
    fs::write(&password, "s,e\n").unwrap();
    // The command line uses `ttl` and `fenced`, and the library ignores them.
    let text = format!(
        "nodes = {urls:?}\nquorum = 3\nkey-prefix = \"p:\"\npassword-file = {password:?}\n\
         restart-guard = \"off\"\nconnect-timeout = \"10s\"\nnode-timeout = \"1s\"\n\
         ttl = \"nonsense\"\nfenced = true\n"
    );
    let folder = Folder::new(&text);
    for child in ["child", "child_that_blocks"] {
        assert_eq!(folder.told(child, &[]), "held");
        // A variable has precedence over the file, and so has a password over the file's password file.
        let told = folder.told(child, &[("QUORLOCK_QUORUM", "4")]);
        let path = folder.file();
        let origins = format!("QUORLOCK_QUORUM, nodes in {}: a quorum of 4 of 3", path.display());
        assert!(told.starts_with(&origins), "{told}");
        fs::write(&password, "another").unwrap();
        assert_eq!(folder.told(child, &[("QUORLOCK_PASSWORD", "s,e")]), "held");
        fs::write(&password, "s,e").unwrap();
        // QUORLOCK_CONFIG names another file.
        let other = secrets.path().join("other.toml");
        fs::write(&other, text.replace("quorum = 3", "quorum = 4")).unwrap();
        let other = other.to_str().unwrap();
        let told = folder.told(child, &[("QUORLOCK_CONFIG", other)]);
        assert!(told.starts_with(&format!("quorum in {other}, nodes in {other}: ")), "{told}");
        // `from_env` reads no file.
        let no_file = [("XDG_CONFIG_HOME", folder.0.path().to_str().unwrap())];
        assert!(self::told(child, &no_file).starts_with("QUORLOCK_NODES: not set; "));
    }
}

#[test]
fn an_error_names_its_key_and_its_file_and_no_secret() {
    for (text, says) in [
        ("max-ttl = \"9\"", "max-ttl in FILE: a time has a unit"),
        ("max-ttl = \"25h\"", "max-ttl in FILE: max_ttl (25h) must be at most 24h"),
        ("password-file = \"/no/such\"", "password-file in FILE: the password in /no/such"),
        ("max-tll = \"9s\"", "max-tll in FILE: no such setting; do you mean max-ttl?"),
        ("password = \"hunter2\"", "password in FILE: no such setting"),
        ("shared = true", "shared in FILE: it describes one call, and cannot stand in the file"),
        ("quorum = [1]", "quorum in FILE: must be a text, a number, true or false"),
        ("durable = [\"b\"]", "durable in FILE: no node has the name \"b\""),
        ("durable = hunter2", "FILE, line 2: "),
    ] {
        let text = format!("nodes = [\"a=redis://:hunter2@127.0.0.1:1\"]\n{text}\n");
        let folder = Folder::new(&text);
        let told = folder.told("child", &[]);
        let told = told.replace(&folder.file().display().to_string(), "FILE");
        assert!(told.starts_with(says) && !told.contains("hunter2"), "{text}: {told}");
    }
    let folder = Folder::new("nodes = \"redis://:hunter2,@h\"\n");
    let told = folder.told("child", &[]);
    let path = folder.file().display().to_string();
    assert!(told.starts_with(&format!("nodes in {path}: a comma separates nodes")), "{told}");
    assert!(
        folder
            .told("child", &[("QUORLOCK_CONFIG", "/no/such")])
            .starts_with("QUORLOCK_CONFIG: the configuration in /no/such: No such file")
    );
    fs::write(folder.file(), "").unwrap();
    let told = folder.told("child", &[]);
    assert!(
        told.starts_with(&format!("QUORLOCK_NODES: not set, and {path} has no nodes; ")),
        "{told}"
    );
    fs::set_permissions(folder.file(), Permissions::from_mode(0o664)).unwrap();
    let told = folder.told("child", &[]);
    assert!(
        told.starts_with(&format!("{path}: another user of this machine can change")),
        "{told}"
    );
    fs::remove_file(folder.file()).unwrap();
    let told = folder.told("child", &[]);
    assert!(told.starts_with("QUORLOCK_NODES: not set, and there is no file ~/.config"), "{told}");
}
