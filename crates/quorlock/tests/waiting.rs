//! Who waits, waits: it sends nothing until a node says that the lock has changed, or the keys
//! expire; and where nodes say nothing, it looks at the pace it was given.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{PATIENCE, all_servers, all_up, builder, calls, client, eventually, run, skip};
use quorlock::{Client, Delay, Guard, LockOptions, Retry, Waiting};
use quorlock_servers::{Nodes, Reply, Server, ServerBinary, ServerOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

fn start(binary: &ServerBinary, args: &[&str]) -> Nodes {
    let args = args.iter().copied().map(String::from).collect();
    Nodes::start(binary, 3, ServerOptions { args, ..ServerOptions::default() }).unwrap()
}

/// Another library takes the lock.
fn is_taken(nodes: &Nodes, ttl: Duration) {
    let ttl_ms = ttl.as_millis().to_string();
    for node in nodes {
        run(node, &["SET", "orders", "uuid-of-another-library", "NX", "PX", &ttl_ms]);
    }
}

/// A call that waits and has gone to sleep; and what it is told each time it does so.
async fn asleep(client: &Client) -> (JoinHandle<Guard>, watch::Receiver<Option<Waiting>>) {
    let (told, mut seen) = watch::channel(None);
    let acquire = client.acquire("orders").progress(told);
    let acquiring = tokio::spawn(async move { acquire.await.unwrap() });
    seen.wait_for(Option::is_some).await.unwrap();
    (acquiring, seen)
}

/// How many attempts were in vain.
fn attempts(told: &watch::Receiver<Option<Waiting>>) -> u32 {
    told.borrow().as_ref().map_or(0, |waiting| waiting.attempts)
}

/// All that a client can say while it waits.
const COMMANDS: [&str; 7] = ["set", "get", "pttl", "eval", "evalsha", "delifeq", "ping"];

/// How often any of it was said.
fn said(nodes: &Nodes) -> u64 {
    let by = |node: &Server| COMMANDS.iter().map(|command| calls(node, command)).sum::<u64>();
    nodes.iter().map(by).sum()
}

fn forget_what_was_said(nodes: &Nodes) {
    for node in nodes {
        run(node, &["CONFIG", "RESETSTAT"]);
    }
}

/// Lets the waiter sleep until it has said nothing for a second. What it sent before may be on its way
/// for a while on a busy machine; but who looks again and again is never so quiet.
async fn sleeps_in_silence(nodes: &Nodes) {
    let started = Instant::now();
    loop {
        forget_what_was_said(nodes);
        sleep(Duration::from_secs(1)).await;
        let said = said(nodes);
        if said == 0 {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "it says something while it waits: {said} commands");
    }
}

/// An attempt that a push has brought about, and at most two more: pushes come one by one, and the
/// first may be acted upon before the others are here.
fn few_attempts(nodes: &Nodes) {
    for node in nodes {
        let attempts = calls(node, "set");
        assert!((1..=3).contains(&attempts), "{attempts} attempts");
    }
}

#[tokio::test]
async fn a_plain_del_wakes_a_waiter_that_says_nothing_meanwhile() {
    for binary in all_servers() {
        let nodes = start(&binary, &[]);
        let client = client(&nodes);
        all_up(&client).await;
        let (taken, ttl) = (Instant::now(), 3 * PATIENCE);
        is_taken(&nodes, ttl);
        let (acquiring, _) = asleep(&client).await;
        sleeps_in_silence(&nodes).await;
        assert_eq!(client.stats().wakeups, 0);
        for node in &nodes {
            run(node, &["DEL", "orders"]);
        }
        let guard = acquiring.await.unwrap();
        few_attempts(&nodes);
        // Who is not told waits for the end that was seen. `wakeups` need not say so: on a busy machine the
        // first of the pushes has an attempt made before the others have come.
        assert!(taken.elapsed() < ttl);
        assert!(guard.release().await.is_released());
    }
}

/// A lock of redis-py's on each node, given back when it is told to.
struct RedisPy(Child);

impl RedisPy {
    fn can_run() -> bool {
        let mut python = Command::new("python3");
        python.args(["-c", "import redis"]).stderr(Stdio::null());
        python.status().is_ok_and(|status| status.success())
    }

    fn take(nodes: &Nodes) -> Self {
        let script = "import sys, redis\n\
             locks = [redis.Redis(unix_socket_path=path).lock('orders', timeout=60)\n         \
                      for path in sys.argv[1:]]\n\
             print(all(lock.acquire(blocking=False) for lock in locks), flush=True)\n\
             sys.stdin.readline()\n\
             for lock in locks: lock.release()\n";
        let mut python = Command::new("python3");
        python.args(["-c", script]).args(nodes.iter().map(Server::address));
        let mut python = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(python.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "True\n");
        Self(python)
    }

    fn give_back(&mut self) {
        self.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for RedisPy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn redis_pys_release_wakes_a_waiter_that_says_nothing_meanwhile() {
    if !RedisPy::can_run() {
        return skip("python3 has no module redis");
    }
    for binary in all_servers() {
        let nodes = start(&binary, &[]);
        let client = client(&nodes);
        all_up(&client).await;
        let mut holder = RedisPy::take(&nodes);
        let (acquiring, _) = asleep(&client).await;
        sleeps_in_silence(&nodes).await;
        holder.give_back();
        let guard = acquiring.await.unwrap();
        few_attempts(&nodes);
        assert!(guard.release().await.is_released());
        assert!(holder.0.wait().unwrap().success());
    }
}

/// Servers expire keys lazily, and the more others expire the later they say so. The waiter does not
/// depend on it: these never say so by themselves.
#[tokio::test]
async fn an_expired_lock_is_had_though_no_server_says_that_it_has_expired() {
    const HELD: Duration = Duration::from_secs(1);
    for binary in all_servers() {
        let args: &[&str] = match binary.version.major {
            ..7 => &[],
            7.. => &["--enable-debug-command", "yes"],
        };
        let nodes = start(&binary, args);
        let client = client(&nodes);
        all_up(&client).await;
        for node in &nodes {
            run(node, &["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        }
        let before = Instant::now();
        is_taken(&nodes, HELD);
        let (acquiring, told) = asleep(&client).await;
        let guard = acquiring.await.unwrap();
        // Servers reckon in whole milliseconds, of a clock that they read now and then.
        assert!(before.elapsed() + Duration::from_millis(5) >= HELD, "before it expired");
        assert!(attempts(&told) <= 3, "{} attempts were in vain", attempts(&told));
        assert!(guard.release().await.is_released());
    }
}

/// Where a server cannot push, the lock is looked at every now and then.
#[tokio::test]
async fn without_resp3_the_lock_is_polled_at_the_pace_that_was_set() {
    const CEILING: Duration = Duration::from_millis(50);
    for binary in all_servers() {
        let nodes = start(&binary, &["--rename-command", "HELLO", ""]);
        let retry = Retry { delay: Delay::Adaptive { ceiling: CEILING }, attempts_max: None };
        let client = builder(&nodes).options(LockOptions::new().retry(retry)).build().unwrap();
        all_up(&client).await;
        is_taken(&nodes, 4 * PATIENCE);
        let (acquiring, told) = asleep(&client).await;
        let at_first = attempts(&told);
        let since = Instant::now();
        eventually("it polls", || attempts(&told) >= at_first + 20).await;
        let polled = attempts(&told) - at_first;
        // The first delays are shorter: they double from a few round trips up to the ceiling, which
        // are no more than this many.
        let at_the_ceiling = polled.saturating_sub(12);
        let paced = CEILING / 2 * at_the_ceiling;
        assert!(since.elapsed() >= paced, "{polled} times in {:?}", since.elapsed());
        assert_eq!(client.stats().wakeups, 0, "there is nobody to wake it");

        forget_what_was_said(&nodes);
        for node in &nodes {
            run(node, &["DEL", "orders"]);
        }
        let guard = acquiring.await.unwrap();
        assert!(guard.is_valid());
        for node in &nodes {
            // One that had begun before the last key was deleted, and the next one.
            assert!(calls(node, "set") <= 2, "the next attempt gets it");
        }
        assert!(matches!(run(&nodes[0], &["EXISTS", "orders"]), Reply::Int(1)));
    }
}
