//! Several processes. A child process runs this program again, limited to one of the ignored tests.

use std::env;
use std::fs::{File, remove_file};
use std::process::Stdio;
use std::time::Duration;

use quorlock::Lease;
use quorlock_servers::Server;
use quorlock_servers::proxy::{Blow, Direction, Effect, Proxy, Traffic};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines, Stdin, stdin};
use tokio::process::{ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::common::{PATIENCE, all_up, five, get, no_key_is_left, run};
use crate::{LONG, client, eventually, key_is, long, named, proxied_client, proxies, take_three};

const NODES: &str = "LEASES_NODES";
const LEASE: &str = "LEASES_LEASE";
const INSIDE: &str = "LEASES_INSIDE";
const VALUE: &str = "LockTakeValue";

/// A child process, killed on drop.
struct Child {
    process: tokio::process::Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Child {
    fn start(
        test: &str,
        nodes: impl IntoIterator<Item = String>,
        (name, value): (&str, &str),
    ) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", &format!("processes::{test}"), "--ignored", "--nocapture"])
            .env(NODES, named(nodes).join(","))
            .env(name, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, output }
    }

    /// The next line that the child's test prints with [`tell`].
    async fn told(&mut self) -> String {
        let told = async {
            loop {
                let line = self.output.next_line().await.unwrap().expect("the child has ended");
                if let Some((_, told)) = line.split_once("told: ") {
                    return told.to_owned();
                }
            }
        };
        timeout(PATIENCE, told).await.unwrap()
    }

    async fn go(&mut self) {
        self.process.stdin.as_mut().unwrap().write_all(b"go\n").await.unwrap();
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }
}

fn tell(what: impl std::fmt::Display) {
    println!("told: {what}");
}

/// The client of a child process, and the lines of its standard input. Waits until the client is connected.
async fn in_child() -> (quorlock::Client, Lines<BufReader<Stdin>>) {
    let nodes = env::var(NODES).unwrap();
    let urls = nodes.split(',').map(|node| node.split_once('=').unwrap().1.to_owned());
    let client = proxied_client(urls);
    all_up(&client).await;
    tell("ready");
    (client, BufReader::new(stdin()).lines())
}

#[tokio::test]
#[ignore = "a child of the other tests"]
async fn child_that_detaches() {
    let (client, _) = in_child().await;
    let guard = match env::var(LEASE).unwrap().as_str() {
        "" => client.acquire("k").options(long()).await.unwrap(),
        text => client.attach(&text.parse::<Lease>().unwrap()).await.unwrap(),
    };
    let lease = guard.detach().await.unwrap();
    tell(lease);
}

#[tokio::test]
async fn a_lease_survives_the_processes_that_made_it() {
    let Some(nodes) = five() else { return };
    let mut text = String::new();
    for _ in 0..3 {
        let mut child = Child::start("child_that_detaches", nodes.urls(), (LEASE, &text));
        assert_eq!(child.told().await, "ready");
        text = child.told().await;
        child.process.wait().await.unwrap();
    }
    let client = proxied_client(nodes.urls());
    let lease = text.parse::<Lease>().unwrap();
    let guard = client.attach(&lease).await.unwrap();
    assert!(guard.extend().await.unwrap() <= LONG);
    assert!(guard.release().await.is_released());
    no_key_is_left(&nodes).await;
}

#[tokio::test]
#[ignore = "a child of the other tests"]
async fn child_that_takes() {
    let (client, mut input) = in_child().await;
    input.next_line().await.unwrap();
    let taken = client.take("k", VALUE, LONG).await;
    // `shutdown` waits until the releases of a failed attempt have been answered.
    client.shutdown(PATIENCE).await.unwrap();
    tell(if taken.is_ok() { "held" } else { "refused" });
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Killed,
    Frozen,
    CutOff,
}

/// P1 has the votes of three nodes, and on the other two the key is absent. P2 is killed, frozen or cut off while its
/// commands to some nodes, or their replies, are on their way.
#[tokio::test]
async fn a_second_process_with_an_equal_value_never_ends_the_lock_of_the_first() {
    let Some(nodes) = five() else { return };
    let ways = proxies(&nodes).await;
    let (abc, de) = nodes.split_at(3);
    let first = client(&nodes).await;
    for fate in [Fate::Killed, Fate::Frozen, Fate::CutOff] {
        for direction in [Direction::ToServer, Direction::ToClient] {
            for held in [1, 3, 5] {
                let case = format!("{fate:?}, {direction:?} of {held} nodes");
                let taken = take_three(&first, &nodes, VALUE).await;
                let urls = ways.iter().map(Proxy::url);
                let mut child = Child::start("child_that_takes", urls, ("CASE", &case));
                assert_eq!(child.told().await, "ready", "{case}");
                meets_its_fate(&mut child, &ways[..held], direction, fate, de).await;
                assert!(taken.is_valid(), "{case}");
                if fate != Fate::Killed {
                    ways.iter().for_each(Proxy::open);
                    assert_eq!(child.told().await, "refused", "{case}");
                    eventually("P2 has released its votes", || key_is(de, "k", None)).await;
                }
                assert!(key_is(abc, "k", Some(VALUE)), "{case}");
                assert!(taken.extend().await.unwrap() > LONG / 2, "{case}");
                assert!(taken.release().await.is_released(), "{case}");
                no_key_is_left(abc).await;
                // A killed process leaves its votes until they expire.
                de.iter().for_each(|node| drop(run(node, &["FLUSHALL"])));
            }
        }
    }
}

async fn meets_its_fate(
    child: &mut Child,
    held: &[Proxy],
    direction: Direction,
    fate: Fate,
    free: &[Server],
) {
    let before: Vec<u64> = held.iter().map(|way| way.count(Effect::Held)).collect();
    held.iter().for_each(|way| way.set(direction, Traffic::Hold));
    child.go().await;
    let are_held =
        || held.iter().zip(&before).all(|(way, before)| way.count(Effect::Held) > *before);
    eventually("messages are on their way", are_held).await;
    if direction == Direction::ToClient || held.len() == 3 {
        eventually("the free nodes vote for P2", || key_is(free, "k", Some(VALUE))).await;
    }
    match fate {
        Fate::Killed => {
            child.process.kill().await.unwrap();
            held.iter().for_each(Proxy::open);
        }
        Fate::Frozen => {
            child.signal(Signal::STOP);
            held.iter().for_each(Proxy::open);
            sleep(Duration::from_millis(20)).await;
            child.signal(Signal::CONT);
        }
        Fate::CutOff => held.iter().for_each(|way| way.strike(Blow::Close)),
    }
}

/// The work of a child process: takes and releases the lock repeatedly, like `LockTake` of StackExchange.Redis.
#[tokio::test]
#[ignore = "a child of the other tests"]
async fn child_of_the_example() {
    let (client, mut input) = in_child().await;
    let path = env::var(INSIDE).unwrap();
    input.next_line().await.unwrap();
    let started = Instant::now();
    let mut count = 0;
    while started.elapsed() < Duration::from_secs(6) {
        let pause = async |ms| sleep(Duration::from_millis(fastrand::u64(0..ms))).await;
        let Ok(taken) = client.take("LockTakeTest", VALUE, Duration::from_secs(10)).await else {
            pause(50).await;
            continue;
        };
        if File::create_new(&path).is_err() && taken.is_valid() {
            return tell("two processes hold the lock");
        }
        pause(5).await;
        assert!(taken.is_valid(), "this machine paused for seconds");
        remove_file(&path).unwrap();
        count += 1;
        let _ = taken.release().await;
    }
    let _ = client.shutdown(PATIENCE).await;
    tell(format!("held {count} times"));
}

/// Each process has its own delay for each node, and the delays change all the time.
#[tokio::test]
async fn of_ten_processes_with_one_value_at_most_one_holds_the_lock() {
    let Some(nodes) = five() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("inside").to_str().unwrap().to_owned();
    let (mut ways, mut children) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let proxies = proxies(&nodes).await;
        let urls = proxies.iter().map(Proxy::url);
        children.push(Child::start("child_of_the_example", urls, (INSIDE, &path)));
        ways.extend(proxies);
    }
    for child in &mut children {
        assert_eq!(child.told().await, "ready");
    }
    for child in &mut children {
        child.go().await;
    }
    let delays = tokio::spawn(async move {
        loop {
            for way in &ways {
                let ms = if fastrand::bool() { 0 } else { fastrand::u64(0..40) };
                way.set(Direction::ToServer, Traffic::Delay(Duration::from_millis(ms)));
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    let mut counts = Vec::new();
    for child in &mut children {
        let told = child.told().await;
        let count = told.strip_prefix("held ").and_then(|rest| rest.split_once(' '));
        counts.push(count.unwrap_or_else(|| panic!("{told}")).0.parse::<u32>().unwrap());
    }
    delays.abort();
    assert!(counts.iter().filter(|count| **count > 0).count() > 1, "{counts:?}");
    assert_eq!(get(&nodes[0], "LockTakeTest"), None);
}
