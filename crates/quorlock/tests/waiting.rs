//! A waiting call sends nothing until a push reports a change or the keys expire. On servers without pushes, it polls
//! at the configured rate.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{PATIENCE, all_servers, all_up, builder, calls, client, eventually, run, skip};
use quorlock::{Client, Delay, Guard, LockOptions, Retry, Waiting};
use quorlock_servers::{Nodes, Reply, Server, ServerBinary, ServerOptions};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

fn start(binary: &ServerBinary, args: &[&str]) -> Nodes {
    let args = args.iter().copied().map(String::from).collect();
    Nodes::start(binary, 3, ServerOptions { args, ..ServerOptions::default() }).unwrap()
}

/// Takes the lock on every node, as a client of another library does.
fn is_taken(nodes: &Nodes, ttl: Duration) {
    let ttl_ms = ttl.as_millis().to_string();
    for node in nodes {
        run(node, &["SET", "orders", "uuid-of-another-library", "NX", "PX", &ttl_ms]);
    }
}

/// Starts a call, and returns after its first attempt has failed.
async fn asleep(client: &Client) -> (JoinHandle<Guard>, Reports) {
    let (progress, mut receiver) = mpsc::channel(1024);
    let acquire = client.acquire("orders").progress(progress);
    let acquiring = tokio::spawn(async move { acquire.await.unwrap() });
    let attempts = receiver.recv().await.unwrap().attempts;
    (acquiring, Reports { receiver, attempts })
}

/// The reports of a waiting call.
struct Reports {
    receiver: mpsc::Receiver<Waiting>,
    attempts: u32,
}

impl Reports {
    /// The number of attempts in the last report.
    fn attempts(&mut self) -> u32 {
        while let Ok(waiting) = self.receiver.try_recv() {
            self.attempts = waiting.attempts;
        }
        self.attempts
    }
}

/// All commands that a waiting client can send.
const COMMANDS: [&str; 7] = ["set", "get", "pttl", "eval", "evalsha", "delifeq", "ping"];

/// The number of commands in `COMMANDS` that the nodes have executed.
fn said(nodes: &Nodes) -> u64 {
    let by = |node: &Server| COMMANDS.iter().map(|command| calls(node, command)).sum::<u64>();
    nodes.iter().map(by).sum()
}

fn forget_what_was_said(nodes: &Nodes) {
    for node in nodes {
        run(node, &["CONFIG", "RESETSTAT"]);
    }
}

/// Returns once the client has sent nothing for a second. On a busy machine, earlier commands may arrive late. A
/// polling client is never silent for a second.
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

/// Asserts one to three attempts per node: the first push causes one, and later pushes of other nodes at most two.
fn few_attempts(nodes: &Nodes) {
    for node in nodes {
        let attempts = calls(node, "set");
        assert!((1..=3).contains(&attempts), "{attempts} attempts");
    }
}

#[tokio::test]
async fn a_plain_del_wakes_a_silent_waiter() {
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
        // Without a push, the call would wait until the keys expire. The test does not assert the count of wake-ups,
        // because the first push may cause an attempt before the pushes of the other nodes arrive.
        assert!(taken.elapsed() < ttl);
        assert!(guard.release().await.is_released());
    }
}

/// A process with a redis-py lock on each node. The process releases the locks on command.
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
async fn a_release_by_redis_py_wakes_a_silent_waiter() {
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

/// Servers expire keys lazily, and with many keys the push comes late. The servers of this test push no expiry at all,
/// so the call must notice the expiry by its own clock.
#[tokio::test]
async fn an_expired_lock_is_granted_without_a_push() {
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
        let (acquiring, mut reports) = asleep(&client).await;
        let guard = acquiring.await.unwrap();
        // Servers use a cached clock in whole milliseconds, so a key may expire slightly early.
        assert!(before.elapsed() + Duration::from_millis(5) >= HELD, "before it expired");
        let attempts = reports.attempts();
        assert!(attempts <= 3, "{attempts} attempts were in vain");
        assert!(guard.release().await.is_released());
    }
}

/// A server that cannot push is polled.
#[tokio::test]
async fn without_resp3_the_lock_is_polled_at_the_configured_rate() {
    const CEILING: Duration = Duration::from_millis(50);
    for binary in all_servers() {
        let nodes = start(&binary, &["--rename-command", "HELLO", ""]);
        let retry = Retry { delay: Delay::Adaptive { ceiling: CEILING }, attempts_max: None };
        let client = builder(&nodes).options(LockOptions::new().retry(retry)).build().unwrap();
        all_up(&client).await;
        is_taken(&nodes, 4 * PATIENCE);
        let (acquiring, mut reports) = asleep(&client).await;
        let at_first = reports.attempts();
        let since = Instant::now();
        eventually("it polls", || reports.attempts() >= at_first + 20).await;
        let polled = reports.attempts() - at_first;
        // The delays double from a few round trips up to the ceiling, so at most twelve are below half the ceiling.
        let at_the_ceiling = polled.saturating_sub(12);
        let paced = CEILING / 2 * at_the_ceiling;
        assert!(since.elapsed() >= paced, "{polled} times in {:?}", since.elapsed());
        assert_eq!(client.stats().wakeups, 0, "no server pushes");

        forget_what_was_said(&nodes);
        for node in &nodes {
            run(node, &["DEL", "orders"]);
        }
        let guard = acquiring.await.unwrap();
        assert!(guard.is_valid());
        for node in &nodes {
            // One attempt may have begun before the last key was deleted, so at most the second attempt gets the lock.
            assert!(calls(node, "set") <= 2, "the next attempt gets it");
        }
        assert!(matches!(run(&nodes[0], &["EXISTS", "orders"]), Reply::Int(1)));
    }
}
