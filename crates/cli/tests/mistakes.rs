//! Mistakes of operators on a healthy cluster of three nodes. After each of them the cluster grants locks again, by itself
//! or by the one command at the end of its message.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{panic, thread};

use common::{Running, command, eventually, get, paste, quorlock, server, stderr, stdout};
use quorlock_servers::{Listen, Nodes, ServerBinary, ServerOptions};

/// Five servers. The nodes a, b and c of the cluster are the first three. The longest ttl is 900 ms, so a node votes
/// 2.909 s after it is new.
struct Bed {
    servers: Nodes,
    urls: Vec<String>,
}

impl Bed {
    fn new(binary: &ServerBinary) -> Self {
        let options = ServerOptions { listen: Listen::Tcp, ..ServerOptions::default() };
        let servers = Nodes::start(binary, 5, options).unwrap();
        let bed = Self { urls: servers.urls(), servers };
        assert!(bed.cluster("init --fresh --yes").status.success());
        assert!(bed.cluster(RUN).status.success());
        bed
    }

    /// The list of the cluster.
    fn nodes(&self) -> String {
        self.list("a=0 b=1 c=2")
    }

    /// A list of nodes: for each word a name and a place of a server, or a place alone.
    fn list(&self, words: &str) -> String {
        let node = |word: &str| match word.split_once('=') {
            Some((name, place)) => format!("{name}={}", self.urls[place.parse::<usize>().unwrap()]),
            None => self.urls[word.parse::<usize>().unwrap()].clone(),
        };
        words.split(' ').map(node).collect::<Vec<_>>().join(",")
    }

    /// Calls `quorlock` with the settings of the cluster, as a program that is right.
    fn cluster(&self, words: &str) -> Output {
        self.with(&self.nodes(), words)
    }

    /// Calls `quorlock` with another list.
    fn with(&self, nodes: &str, words: &str) -> Output {
        self.command(nodes, words).output().unwrap()
    }

    fn command(&self, nodes: &str, words: &str) -> Command {
        let mut command = quorlock(&words.split(' ').collect::<Vec<_>>());
        Self::environment(&mut command, nodes);
        command
    }

    fn environment(command: &mut Command, nodes: &str) {
        command.env_remove("QUORLOCK_RESTART_GUARD").env("QUORLOCK_NODES", nodes);
        command.env("QUORLOCK_MAX_TTL", "900ms").env("QUORLOCK_NODE_TIMEOUT", "200ms");
    }

    fn on(&self, place: usize, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        drop(command(&self.servers[place], &words));
    }

    /// The cluster grants a lock, at once or after the wait of a node.
    fn grants(&self) -> Result<(), String> {
        let output = self.cluster("run healthy --wait 8s -- true");
        if output.status.success() { Ok(()) } else { Err(stderr(&output)) }
    }

    /// The message of a call that does not get the lock. A call may get it before it has heard the node with the mistake.
    fn refusal(&self) -> String {
        eventually("the mistake has an effect", || self.grants().err())
    }

    /// The cluster does not grant a lock until somebody runs the command of its message.
    fn is_mended_by_its_message(&self) {
        self.is_mended_by(&self.refusal());
    }

    /// A message is one line and ends with a command that mends the mistake.
    fn is_mended_by(&self, said: &str) {
        assert_eq!(said.lines().count(), 1, "{said}");
        self.paste(said, ": quorlock ");
    }

    /// The cluster does not grant a lock. Its message names the doctor, which prints the command.
    fn is_mended_by_the_doctor(&self, beginning: &str) {
        let said = self.refusal();
        assert!(said.contains("quorlock doctor says more") && said.lines().count() == 1, "{said}");
        let found = stdout(&self.cluster("doctor"));
        let fix = found.lines().find(|line| line.contains(beginning));
        self.paste(fix.unwrap_or_else(|| panic!("no command: {found}")), beginning);
    }

    /// Pastes the end of a message, behind its last colon before this beginning of a command, into a shell.
    fn paste(&self, said: &str, beginning: &str) {
        let line = said.rfind(beginning).map(|at| said[at + 2..].trim_end());
        let line = line.unwrap_or_else(|| panic!("no command: {said}"));
        let output = paste(line, |shell| Self::environment(shell, &self.nodes()));
        assert!(output.status.success(), "{line}\n{}", stderr(&output));
    }
}

const RUN: &str = "run k --wait 0s -- true";

/// Asserts the exit code of a mistake, and words of its message.
fn ends(output: &Output, expected: i32, words: &str) {
    let said = stderr(output) + &stdout(output);
    assert_eq!(output.status.code(), Some(expected), "{said}");
    assert!(said.contains(words), "{words}: {said}");
}

/// Repeats a call with another list until it has heard a node that disagrees: a call may end before.
fn is_refused(bed: &Bed, nodes: &str, words: &str, says: &str) {
    eventually(says, || {
        let output = bed.with(nodes, words);
        (output.status.code() == Some(69) && stderr(&output).contains(says)).then_some(())
    });
}

type Mistake = (&'static str, fn(&Bed));

const OTHER: &str = "another configuration";

const PART: &str =
    "list has only some of their nodes, so it may be the wrong list: correct it; only to remove";

const MISTAKES: &[Mistake] = &[
    ("a list with one node of three", |bed| is_refused(bed, &bed.list("1"), RUN, OTHER)),
    ("a list with two nodes of three", |bed| is_refused(bed, &bed.list("a=0 b=1"), RUN, PART)),
    ("a list with a node too many", |bed| {
        is_refused(bed, &bed.list("a=0 b=1 c=2 d=3"), RUN, OTHER);
    }),
    ("a list without names", |bed| is_refused(bed, &bed.list("0 1 2"), RUN, OTHER)),
    ("a list with other names", |bed| is_refused(bed, &bed.list("x=0 y=1 z=2"), RUN, OTHER)),
    ("a list in another order", |bed| ends(&bed.with(&bed.list("c=2 a=0 b=1"), RUN), 0, "")),
    ("a list with two names exchanged", |bed| {
        ends(&bed.with(&bed.list("a=1 b=0 c=2"), RUN), 0, "");
    }),
    ("a server twice", |bed| {
        let twice = format!("{},d={}", bed.nodes(), bed.urls[0].replace("127.0.0.1", "localhost"));
        is_refused(bed, &twice, RUN, OTHER);
    }),
    ("a name twice", |bed| ends(&bed.with(&bed.list("a=0 a=1 c=2"), RUN), 78, "is listed twice")),
    ("a wrong port", |bed| {
        let wrong = format!("{},c=redis://127.0.0.1:1", bed.list("a=0 b=1"));
        ends(&bed.with(&wrong, RUN), 0, "");
    }),
    ("wrong ports", |bed| {
        let wrong = "a=redis://127.0.0.1:1,b=redis://127.0.0.1:2,c=redis://127.0.0.1:3";
        ends(&bed.with(wrong, RUN), 69, "Connection refused");
    }),
    ("TLS on ports without it", |bed| {
        ends(
            &bed.with(&bed.nodes().replace("redis:", "rediss:"), RUN),
            69,
            "its URL begins with redis://",
        );
    }),
    ("a URL without its colon", |bed| {
        ends(&bed.with(&bed.nodes().replace("redis:", "redis"), RUN), 78, "a colon is missing");
    }),
    ("another database", |bed| {
        let other = bed.nodes().replace(',', "/3,") + "/3";
        is_refused(
            bed,
            &other,
            RUN,
            "its locks are in database 0, but this client uses database 3",
        );
    }),
    ("another key prefix", |bed| {
        ends(&bed.cluster("run k --key-prefix app: --wait 8s -- true"), 0, "");
    }),
    ("a wrong password", |bed| {
        (0..3).for_each(|place| bed.on(place, "ACL SETUSER app on >right +@all ~* &*"));
        let wrong = bed.nodes().replace("//", "//app:wrong@");
        ends(&bed.with(&wrong, RUN), 77, "quorlock doctor says what is missing");
    }),
    ("a user that no server has", |bed| {
        ends(&bed.cluster("run k --username nobody --wait 0s -- true"), 77, "not authenticated");
    }),
    ("a larger quorum", |bed| {
        is_refused(bed, &bed.nodes(), "run k --quorum 3 --wait 0s -- true", OTHER)
    }),
    ("a quorum that is no majority", |bed| {
        ends(&bed.cluster("run k --quorum 1 --wait 0s -- true"), 64, "quorum");
    }),
    ("a longer max_ttl", |bed| {
        is_refused(bed, &bed.nodes(), "run k --max-ttl 2s --wait 0s -- true", OTHER)
    }),
    ("a shorter max_ttl", |bed| {
        is_refused(bed, &bed.nodes(), "run k --max-ttl 850ms --wait 0s -- true", OTHER);
    }),
    ("a ttl above max_ttl", |bed| {
        ends(&bed.cluster("run k --ttl 2s --wait 0s -- true"), 64, "max-ttl");
    }),
    ("a client without the restart guard", |bed| {
        ends(&bed.with(&bed.list("1"), "run k --restart-guard off --wait 0s -- true"), 0, "");
    }),
    ("two clusters that share a node", |bed| {
        is_refused(bed, &bed.list("x=3 y=4 c=2"), RUN, OTHER);
        let fresh = bed.with(&bed.list("x=3 y=4 c=2"), "init --fresh --yes");
        ends(&fresh, 64, "nothing was changed: these nodes");
    }),
    ("a stray list of one node, on a node that has just lost its data", |bed| {
        bed.on(1, "FLUSHALL");
        ends(&bed.with(&bed.list("1"), RUN), 69, "");
    }),
    ("a stray list of one node, on a node that was restarted", |bed| {
        bed.servers[1].restart().unwrap();
        ends(&bed.with(&bed.list("1"), RUN), 69, "");
    }),
    ("a script that runs init --fresh at each start", |bed| {
        for _ in 0..3 {
            ends(&bed.cluster("init --fresh --yes"), 0, "");
        }
    }),
    ("a script that runs init --fresh at each start, while a lock is held", |bed| {
        let hold =
            Running::start(&mut bed.command(&bed.nodes(), "run held --ttl 800ms -- sleep 1"));
        eventually("the lock is held", || get(&bed.servers[0], "held"));
        ends(&bed.cluster("init --fresh --yes"), 75, "a lock is in use");
        ends(&hold.end(), 0, "");
    }),
    ("a script that runs init --reconfigure at each start", |bed| {
        for _ in 0..3 {
            ends(&bed.cluster("init --reconfigure --yes"), 0, "votes counted before");
        }
    }),
    ("init --fresh with a list that is too short", |bed| {
        ends(
            &bed.with(&bed.list("a=0 b=1"), "init --fresh --yes"),
            64,
            "nothing was changed: these nodes",
        );
    }),
    ("init --fresh --force with one node", |bed| {
        ends(&bed.with(&bed.list("1"), "init --fresh --yes --force"), 0, "");
        bed.is_mended_by_its_message();
    }),
    ("init --reconfigure with one node", |bed| {
        ends(&bed.with(&bed.list("1"), "init --reconfigure --yes"), 69, "nothing was changed");
    }),
    ("init --reconfigure with a list that is too short", |bed| {
        ends(&bed.with(&bed.list("a=0 b=1"), "init --reconfigure --yes"), 0, "");
        bed.is_mended_by_its_message();
    }),
    ("init --reconfigure with a node too many", |bed| {
        ends(&bed.with(&bed.list("a=0 b=1 c=2 d=3"), "init --reconfigure --yes"), 0, "");
        bed.is_mended_by_its_message();
    }),
    ("init --reconfigure without names", |bed| {
        let names = format!("--old-node {} --old-node {}", bed.list("a=0"), bed.list("b=1"));
        let words = format!("init --reconfigure --yes {names}");
        ends(&bed.with(&bed.list("0 1 2"), &words), 0, "");
        bed.is_mended_by_its_message();
    }),
    ("init --reconfigure with a larger quorum", |bed| {
        ends(&bed.cluster("init --reconfigure --yes --quorum 3"), 0, "");
        bed.is_mended_by_its_message();
    }),
    ("init --reconfigure with a longer max_ttl", |bed| {
        ends(&bed.cluster("init --reconfigure --yes --max-ttl 1s"), 0, "");
        bed.is_mended_by_its_message();
    }),
    ("init --fresh in another database", |bed| {
        let other = bed.nodes().replace(',', "/3,") + "/3";
        ends(&bed.with(&other, "init --fresh --yes --force"), 0, "");
        bed.is_mended_by_its_message();
    }),
    ("a cluster of a later version that shares a node", |bed| {
        drop(command(&bed.servers[2], &["SET", "quorlock:node", "quorlock 2 nodes=c,x,y"]));
        bed.is_mended_by_the_doctor(": redis-cli ");
    }),
    ("FLUSHALL on a node", |bed| bed.on(0, "FLUSHALL")),
    ("FLUSHALL on all nodes", |bed| (0..3).for_each(|place| bed.on(place, "FLUSHALL"))),
    ("a marker that somebody deleted", |bed| bed.on(2, "DEL quorlock:node")),
    ("a node that became a replica", |bed| {
        let address = bed.servers[3].address();
        let (host, port) = address.rsplit_once(':').unwrap();
        bed.on(2, &format!("REPLICAOF {host} {port}"));
    }),
    ("a node that evicts keys", |bed| {
        bed.on(0, "CONFIG SET maxmemory 100mb");
        bed.on(0, "CONFIG SET maxmemory-policy allkeys-lru");
    }),
    ("a node without memory", |bed| bed.on(0, "CONFIG SET maxmemory 1")),
    ("a user without a right on a node", |bed| bed.on(0, "ACL SETUSER default -eval -evalsha")),
];

/// The mistakes run in a few threads, because most of their time is waiting.
#[test]
fn no_mistake_leaves_a_cluster_without_locks() {
    let Some(binary) = server() else { return };
    let (next, failed) = (AtomicUsize::new(0), std::sync::Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some((name, make)) = MISTAKES.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let tried = panic::catch_unwind(|| {
                        let bed = Bed::new(&binary);
                        make(&bed);
                        if let Err(said) = bed.grants() {
                            bed.is_mended_by(&said);
                        }
                        bed.grants().unwrap();
                    });
                    if tried.is_err() {
                        failed.lock().unwrap().push(*name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {}: {failed:?}", failed.len(), MISTAKES.len());
}
