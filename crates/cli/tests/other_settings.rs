//! Nodes that have other settings than a client: each message shows the settings of the nodes first, and ends with one
//! command. The tests paste this command into a shell.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::process::{Command, Output};
use std::thread;

use common::{Testbed, code, command, eventually, get, paste, quorlock, server, stderr, stdout};
use quorlock_servers::certificates::Authority;
use quorlock_servers::{Listen, Nodes, Reply, ServerOptions, StartError};

/// A program that uses the nodes: its options, and the variables of its shell.
#[derive(Clone, Default)]
struct Client {
    options: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl Client {
    /// A program with these nodes on its command line.
    fn of(nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let nodes = nodes.into_iter().flat_map(|node| ["-n".to_owned(), node.into()]);
        Self { options: nodes.collect(), variables: Vec::new() }
    }

    fn with(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|&option| option.to_owned()));
        self
    }

    fn knowing(mut self, variable: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((variable, value.into()));
        self
    }

    /// The environment of the shell: nothing but the variables of this program, and short times. A lock lives for
    /// 800 ms; with the longest ttl of 900 ms, nodes vote 2.909 s after they get other settings.
    fn environment(&self, command: &mut Command) {
        command.env_remove("QUORLOCK_RESTART_GUARD");
        command.env("QUORLOCK_NODE_TIMEOUT", "200ms").envs(self.variables.iter().cloned());
    }

    fn call(&self, words: &[&str]) -> Output {
        let (words, rest) =
            words.split_at(words.iter().position(|it| *it == "--").unwrap_or(words.len()));
        let options = self.options.iter().map(String::as_str);
        let is_set = self.options.iter().any(|it| it == "--max-ttl");
        let times = if is_set { &[][..] } else { &["--max-ttl", "900ms"] };
        let all: Vec<&str> = words
            .iter()
            .copied()
            .chain(options)
            .chain(times.iter().copied())
            .chain(rest.iter().copied())
            .collect();
        let mut command = quorlock(&all);
        self.environment(&mut command);
        command.output().unwrap()
    }

    fn locks(&self) -> Output {
        self.call(&["run", "k", "--ttl", "800ms", "--wait", "0s", "--", "true"])
    }

    fn paste(&self, line: &str) -> Output {
        paste(line, |shell| self.environment(shell))
    }
}

/// A pair of settings that people meet.
struct Pair {
    name: &'static str,
    old: Client,
    new: Client,
    /// The beginning of the text that demands URLs, and the URL for each `NAME=URL` of the command. Empty if the command
    /// is complete.
    missing: (&'static str, Vec<(&'static str, String)>),
    /// The text before the command.
    says: &'static str,
}

fn pair(name: &'static str, old: Client, new: Client) -> Pair {
    Pair {
        name,
        old,
        new,
        missing: ("", Vec::new()),
        says: "run this (refused while clients are connected; --force stops their jobs)",
    }
}

/// The command line at the end of a message, which has all settings of the client.
fn printed(message: &str) -> String {
    let lines = message
        .lines()
        .filter_map(|line| line.rfind(": quorlock init --").map(|at| &line[at + 2..]));
    let lines: Vec<&str> = lines.filter(|line| line.contains(" --quorum ")).collect();
    let [line, same @ ..] = &lines[..] else { panic!("no command: {message}") };
    assert!(same.iter().all(|other| other == line), "one command: {message}");
    (*line).to_owned()
}

impl Pair {
    fn with_urls(mut self, demand: &'static str, urls: &[(&'static str, &String)]) -> Self {
        let urls = urls.iter().map(|&(name, url)| (name, url.clone()));
        (self.missing, self.says) = ((demand, urls.collect()), demand);
        self
    }

    fn saying(self, says: &'static str) -> Self {
        Self { says, ..self }
    }

    fn check(&self) {
        let Self { name, old, new, missing, says } = self;
        code(&old.call(&["init", "--fresh", "--yes"]), 0);
        code(&old.locks(), 0);
        // A call may end before it has heard a node with other settings, so it is repeated.
        let refused = eventually(name, || {
            let output = new.locks();
            (output.status.code() == Some(69) && stderr(&output).contains("another configuration"))
                .then_some(output)
        });
        let said = stderr(&refused);
        let line = printed(&said);
        let (theirs, command) =
            (said.find("another configuration: it").unwrap(), said.find(&line).unwrap());
        assert!(theirs < command && said.ends_with(&format!("{line}\n")), "{name}: {said}");
        assert!(said.contains(says) && said.lines().count() == 1, "{name}: {said}");
        let doctor = stdout(&new.call(&["doctor"]));
        assert_eq!(printed(&doctor), line, "{name}");
        // On a busy machine the release of the first call may be confirmed late. Then its lock is still in use.
        let fresh = eventually(name, || {
            let output = new.call(&["init", "--fresh", "--yes"]);
            (output.status.code() != Some(75)).then_some(output)
        });
        code(&fresh, 64);
        assert_eq!(printed(&stderr(&fresh)), line, "{name}");
        for secret in ["hunter2", "pass="] {
            assert!(!said.contains(secret) && !doctor.contains(secret), "{name}: {said}{doctor}");
        }
        if !missing.1.is_empty() {
            let refused = new.call(&["init", "--reconfigure", "--yes"]);
            code(&refused, 69);
            assert!(stderr(&refused).contains(&line), "{name}: {}", stderr(&refused));
            let is_renamed = stderr(&refused).contains(" are in the old list under other names");
            assert_eq!(is_renamed, name.contains("name"), "{name}: {}", stderr(&refused));
        }
        if !missing.1.is_empty() {
            let pasted = new.paste(&line);
            code(&pasted, 64);
            let said = stderr(&pasted);
            assert!(said.contains("\"URL\": this is a placeholder: put the address of"), "{said}");
        }
        let mut line = line;
        for (name, url) in &missing.1 {
            assert!(line.contains(&format!(" {name}=URL")), "{name}: {line}");
            line = line.replace(&format!("{name}=URL"), &format!("{name}={url}"));
        }
        assert!(!line.contains("URL"), "{name}: {line}");
        let output = new.paste(&line);
        assert!(output.status.success(), "{name}: {line}\n{}", stderr(&output));
        let done = stderr(&output);
        // No server is reported as used and as out of use.
        let count = done
            .lines()
            .filter(|line| line.contains("votes count") || line.contains("taken out of use"));
        assert!(count.count() <= 2 && !done.contains("nothing was done"), "{name}: {done}");
        code(&new.locks(), 0);
        let output = old.locks();
        assert_eq!(output.status.code(), Some(69), "{name}: {}", stderr(&output));
        // The same command may be run again. Without nodes that are out of use, it finds that nothing is left to do.
        let again = new.paste(&line);
        assert!(again.status.success(), "{name}: {line}\n{}", stderr(&again));
        let waits = stderr(&again).contains("until the nodes vote");
        assert!(!waits || done.contains("out of use"), "{name}: {}", stderr(&again));
    }
}

/// Checks the pairs at once, because most of their time is waiting.
fn check(pairs: impl IntoIterator<Item = (Nodes, Pair)>) {
    let pairs: Vec<_> = pairs.into_iter().collect();
    thread::scope(|scope| {
        for (_nodes, pair) in &pairs {
            scope.spawn(|| pair.check());
        }
    });
}

fn servers(count: usize) -> Option<(Nodes, Vec<String>)> {
    started(count, ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() })
}

fn started(count: usize, options: ServerOptions) -> Option<(Nodes, Vec<String>)> {
    let nodes = Nodes::start(&server()?, count, options).unwrap();
    let urls = nodes.urls();
    Some((nodes, urls))
}

fn named(names: &[&str], urls: &[String]) -> Client {
    Client::of(names.iter().zip(urls).map(|(name, url)| format!("{name}={url}")))
}

#[test]
fn a_change_of_the_list_is_one_command() {
    let mut pairs = Vec::new();
    let mut add = |count, make: fn(&[String]) -> Pair| {
        let Some((nodes, urls)) = servers(count) else { return };
        let pair = make(&urls);
        pairs.push((nodes, pair));
    };
    add(3, |u| pair("one, then three", Client::of(u[..1].to_vec()), Client::of(u.to_vec())));
    add(5, |u| pair("three, then five", Client::of(u[..3].to_vec()), Client::of(u.to_vec())));
    add(5, |u| {
        pair(
            "three, then five with names",
            named(&["a", "b", "c"], u),
            named(&["a", "b", "c", "d", "e"], u),
        )
    });
    add(3, |u| pair("nameless, then named", Client::of(u.to_vec()), named(&["a", "b", "c"], u)));
    add(3, |u| {
        pair("named, then nameless", named(&["a", "b", "c"], u), Client::of(u.to_vec())).with_urls(
            "with the URLs of at least 2 of a, b, c (nodes of the old list)",
            &[("a", &u[0]), ("b", &u[1])],
        )
    });
    add(3, |u| {
        pair("renamed", named(&["a", "b", "c"], u), named(&["x", "y", "z"], u)).with_urls(
            "with the URLs of at least 2 of a, b, c (nodes of the old list)",
            &[("a", &u[0]), ("b", &u[1])],
        )
    });
    add(3, |u| {
        pair("one, then three with other names", named(&["a"], u), named(&["x", "y", "z"], u))
    });
    add(3, |u| pair("renamed in a circle", named(&["a", "b", "c"], u), named(&["b", "c", "d"], u)));
    add(3, |u| {
        let alias: Vec<String> =
            u.iter().map(|url| url.replace("127.0.0.1", "localhost")).collect();
        let third = |urls: &[String]| Client::of(urls.iter().map(|url| format!("{url}/3")));
        pair("an alias of a host", third(&alias), third(u))
    });
    add(5, |u| {
        pair("other servers, nameless", Client::of(u[..3].to_vec()), Client::of(u[2..].to_vec()))
    });
    add(5, |u| {
        pair(
            "other servers",
            named(&["a", "b", "c"], u),
            Client::of([format!("a={}", u[0]), format!("d={}", u[3]), format!("e={}", u[4])]),
        )
        .with_urls("with the URLs of at least 1 of b, c (nodes of the old list)", &[("b", &u[1])])
    });
    add(3, |u| {
        pair(
            "quorum",
            named(&["a", "b", "c"], u),
            named(&["a", "b", "c"], u).with(&["--quorum", "3"]),
        )
    });
    add(3, |u| {
        pair(
            "max_ttl",
            named(&["a", "b", "c"], u),
            named(&["a", "b", "c"], u).with(&["--max-ttl", "1500ms"]),
        )
    });
    add(3, |u| {
        let odd = ["--key-prefix", "app's $(x):"];
        pair("a prefix", Client::of(u[..1].to_vec()).with(&odd), Client::of(u.to_vec()).with(&odd))
    });
    check(pairs);
}

/// The change from nodes without names is repeated for a node that missed it. The others do not show any more by their
/// markers that they were in the old list.
#[test]
fn a_straggler_is_changed_by_the_command_that_doctor_and_init_print() {
    let Some((nodes, urls)) = servers(3) else { return };
    let (old, new) = (Client::of(urls.clone()), named(&["a", "b", "c"], &urls));
    code(&old.call(&["init", "--fresh", "--yes"]), 0);
    let marker = get(&nodes[2], "quorlock:node").unwrap();
    code(&new.call(&["init", "--reconfigure", "--yes"]), 0);
    drop(command(&nodes[2], &["SET", "quorlock:node", &marker]));
    let refused = new.call(&["init", "--reconfigure", "--yes"]);
    code(&refused, 69);
    let line = printed(&stdout(&new.call(&["doctor"])));
    assert!(stderr(&refused).contains(&line), "{line}: {}", stderr(&refused));
    let pasted = new.paste(&line);
    assert!(pasted.status.success(), "{line}: {}", stderr(&pasted));
    assert!(get(&nodes[2], "quorlock:node").unwrap().contains(" nodes=a,b,c "));
}

#[test]
fn sockets_have_urls_too() {
    let Some((nodes, urls)) = started(3, ServerOptions::default()) else { return };
    let pair = pair(
        "sockets",
        Client::of(urls[..2].to_vec()),
        Client::of(urls[2..].to_vec()).with(&["-n", &urls[1]]),
    );
    check([(nodes, pair)]);
}

/// The command has no password. It works with the password that the shell or a file has.
#[test]
fn the_command_works_with_passwords_that_it_does_not_show() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("it's a password");
    std::fs::write(&file, "hunter2\n").unwrap();
    let file = file.to_str().unwrap();
    let mut pairs = Vec::new();
    let mut add = |make: &dyn Fn(&[String], &[String]) -> Pair| {
        let password = Some("hunter2".to_owned());
        let options = ServerOptions { listen: Listen::Tcp, password, ..ServerOptions::default() };
        let Some((nodes, urls)) = started(3, options) else { return };
        let plain: Vec<String> = urls.iter().map(|url| url.replace(":hunter2@", "")).collect();
        let pair = make(&plain, &urls);
        pairs.push((nodes, pair));
    };
    let alias = |urls: &[String]| -> Vec<String> {
        urls.iter().map(|url| url.replace("127.0.0.1", "localhost")).collect()
    };
    let known = "with the password in QUORLOCK_PASSWORD: quorlock";
    add(&|plain, _| {
        let client =
            |urls: &[String]| Client::of(urls.to_vec()).knowing("QUORLOCK_PASSWORD", "hunter2");
        pair("a variable", client(&alias(plain)), client(plain)).saying(known)
    });
    add(&|plain, _| {
        let client = |urls: &[String]| Client::of(urls.to_vec()).with(&["--password-file", file]);
        pair("a file", client(&alias(plain)), client(plain))
    });
    add(&|_, urls| {
        let client = |urls: &[String]| Client::default().knowing("QUORLOCK_NODES", urls.join(","));
        pair("URLs in the environment", client(&alias(urls)), client(urls))
    });
    add(&|_, urls| {
        let client =
            |urls: &[String]| Client::of(urls.to_vec()).knowing("QUORLOCK_PASSWORD", "hunter2");
        pair("URLs on the command line", client(&alias(urls)), client(urls)).saying(known)
    });
    add(&|plain, urls| {
        let user = |url: &String| url.replace("redis://", "redis://default@");
        let old = Client::of(alias(urls));
        let new = Client::of(plain.iter().map(user)).knowing("QUORLOCK_PASSWORD", "hunter2");
        pair("a user", old, new.with(&["--username", "default"])).saying(known)
    });
    check(pairs);
}

#[test]
fn the_command_reaches_servers_with_tls() {
    let Some(binary) = server() else { return };
    let authority = Authority::new();
    let options = ServerOptions { tls: Some(authority.server(false)), ..ServerOptions::default() };
    let nodes = match Nodes::start(&binary, 3, options) {
        Err(StartError::NoTls { .. }) => {
            return quorlock_servers::without_tls(&binary, &common::test_name());
        }
        nodes => nodes.unwrap(),
    };
    let (urls, ca) = (nodes.urls(), authority.file("ca.pem"));
    let ca = ["--tls-ca", ca.to_str().unwrap()];
    let pair =
        pair("TLS", Client::of(urls.clone()).with(&ca), Client::of(urls[..1].to_vec()).with(&ca));
    check([(nodes, pair)]);
}

#[test]
fn a_server_gets_sentinels_and_loses_them() {
    let Some(binary) = server() else { return };
    let args = ["--repl-diskless-sync-delay", "0"].map(str::to_owned).to_vec();
    let tcp = ServerOptions { args, listen: Listen::Tcp, ..ServerOptions::default() };
    let masters = Nodes::start(&binary, 2, tcp.clone()).unwrap();
    let replicas = Nodes::start(&binary, 2, tcp.clone()).unwrap();
    let args = vec!["--sentinel".to_owned()];
    let sentinels = Nodes::start(&binary, 2, ServerOptions { args, ..tcp }).unwrap();
    let mut urls = Vec::new();
    for (master, (replica, sentinel)) in masters.iter().zip(replicas.iter().zip(&sentinels)) {
        let address = master.address();
        let (host, port) = address.rsplit_once(':').unwrap();
        command(replica, &["REPLICAOF", host, port]);
        // The offset is zero until the replica has loaded the data and acknowledges what it has.
        eventually("the replica acknowledges", || {
            common::info(master, "replication", "slave0:")
                .filter(|line| line.contains("state=online") && !line.contains("offset=0,"))
        });
        command(sentinel, &["SENTINEL", "MONITOR", "mymaster", host, port, "1"]);
        urls.push(format!("redis+sentinel://{}/mymaster?replicas=1", sentinel.address()));
    }
    let direct: Vec<String> =
        masters.urls().iter().map(|url| format!("{url}?replicas=1")).collect();
    let sentinel = pair(
        "direct, then Sentinel",
        Client::of([masters[0].url()]),
        Client::of([urls[0].clone()]),
    );
    let other = pair(
        "Sentinel, then direct",
        Client::of([urls[1].clone()]),
        Client::of([direct[1].clone()]),
    );
    let none = || Nodes::start(&binary, 0, ServerOptions::default()).unwrap();
    check([(none(), sentinel), (none(), other)]);
}

/// The database of a node is no part of its marker. The message says to stop the clients first.
#[test]
fn another_database_is_taken_into_use_by_one_command() {
    let Some((_nodes, urls)) = servers(3) else { return };
    let client = |database: &str| {
        Client::of(
            urls.iter().zip(["a", "b", "c"]).map(|(url, name)| format!("{name}={url}/{database}")),
        )
    };
    let (old, new) = (client("0"), client("3"));
    code(&old.call(&["init", "--fresh", "--yes"]), 0);
    let refused = eventually("the other database is noticed", || {
        let output = new.locks();
        stderr(&output)
            .contains("its locks are in database 0, but this client uses database 3")
            .then_some(output)
    });
    code(&refused, 69);
    let line = printed(&stderr(&refused));
    let advice = "; or, to use this client's database, stop all clients, wait 900ms (the longest ttl here; longer if other \
                  clients had a longer one), and run: ";
    assert!(stderr(&refused).contains(advice), "{}", stderr(&refused));
    assert_eq!(printed(&stdout(&new.call(&["doctor"]))), line);
    for args in [&["init", "--reconfigure", "--yes"][..], &["init", "--fresh", "--yes"]] {
        assert_eq!(printed(&stderr(&new.call(args))), line);
    }
    code(&new.paste(&line), 0);
    code(&new.locks(), 0);
    code(&old.locks(), 69);
}

#[test]
fn an_old_node_may_have_any_name_that_a_marker_shows() {
    let Some(testbed) =
        Testbed::with(3, ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() })
    else {
        return;
    };
    let urls = testbed.nodes.urls();
    let named = named(&["x", "y", "z"], &urls);
    let names: Vec<String> =
        urls.iter().map(|url| url.replace("redis://127.0.0.1", "localhost")).collect();
    let old = Client::of(names.clone());
    let marked = || {
        code(&old.call(&["init", "--fresh", "--yes", "--force"]), 0);
    };
    let reconfigure =
        |more: &[&str]| named.call(&[&["init", "--reconfigure", "--yes"], more].concat());
    let given = |name: &String, url: &String| format!("{name}={url}");
    let [first, second] = [given(&names[0], &urls[0]), given(&names[1], &urls[1])];
    for more in [
        &["--old-node", &first, "--old-node", &second][..],
        &["--old-node", &format!("{first},{second}")],
        &["--old-node", &format!("{},{}", names[0], names[1])],
    ] {
        marked();
        let output = reconfigure(more);
        code(&output, 0);
        assert!(!stderr(&output).contains("out of use"), "{}", stderr(&output));
    }
    // One server cannot have been two nodes, and does not count as two.
    marked();
    let other = given(&names[1], &urls[0]);
    let output = reconfigure(&[
        "--old-node",
        &first,
        "--old-node",
        &other.replace("127.0.0.1", "localhost"),
    ]);
    code(&output, 64);
    assert!(
        stderr(&output).contains("--old-node: nodes ")
            && stderr(&output).contains("are the same server"),
        "{}",
        stderr(&output)
    );
    let output = reconfigure(&["--old-node", &first]);
    code(&output, 69);
    assert!(
        stderr(&output).contains("2 of the nodes that vote for")
            && stderr(&output).contains("1 did"),
        "{}",
        stderr(&output)
    );
    let reply = command(&testbed.nodes[0], &["GET", "quorlock:node"]);
    assert!(matches!(reply, Reply::Bulk(Some(_))));
    // An old node that does not answer is named with the cause.
    let output = reconfigure(&["--old-node", &first, "--old-node", "localhost:1"]);
    code(&output, 69);
}
