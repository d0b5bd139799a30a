//! The deprecated lock with a timestamp as its value, against a client that executes the recipe as plain commands.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]
#![allow(clippy::disallowed_methods, reason = "the recipe uses the wall clock")]

mod common;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{client, get, pttl, run, start, unguarded};
use quorlock::legacy::{TimestampError, TimestampLock};
use quorlock::node::MemoryNode;
use quorlock_servers::{Nodes, Reply, Server, ServerOptions};

const KEY: &str = "lock.foo";
const TIMEOUT: u64 = 10;

/// A Unix time in seconds, at which most tests begin.
const NOW: u64 = 1_764_100_000;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn one() -> Option<Nodes> {
    start(1, ServerOptions::default())
}

fn lock_of(node: &Server) -> TimestampLock {
    let client = client(std::slice::from_ref(node));
    TimestampLock::new(&client, KEY, Duration::from_secs(TIMEOUT)).unwrap()
}

/// A client that executes the recipe as the Redis documentation of `SETNX` describes it.
struct Recipe<'a> {
    node: &'a Server,
    timeout: u64,
}

impl Recipe<'_> {
    fn end(&self, now: u64) -> u64 {
        now + self.timeout + 1
    }

    fn text(&self, now: u64) -> String {
        self.end(now).to_string()
    }

    /// Sends `SETNX`, then `GET`, and `GETSET` if the lock has ended. Returns the new end if this client has the lock.
    fn try_lock(&self, now: u64) -> Option<u64> {
        if run(self.node, &["SETNX", KEY, &self.text(now)]) == Reply::Int(1) {
            return Some(self.end(now));
        }
        self.sees_the_end(now).then(|| self.replace(now)).flatten()
    }

    /// Sends `GET`. Returns whether the end of the lock has passed. The value is this end, as a Unix time.
    fn sees_the_end(&self, now: u64) -> bool {
        get(self.node, KEY).is_some_and(|end| end.parse::<u64>().unwrap() < now)
    }

    /// Sends `GETSET`. This client has the lock only if `GETSET` returns an end that has passed.
    fn replace(&self, now: u64) -> Option<u64> {
        let Reply::Bulk(before) = run(self.node, &["GETSET", KEY, &self.text(now)]) else {
            panic!("GETSET answers a string")
        };
        let before: u64 = String::from_utf8(before.unwrap()).unwrap().parse().unwrap();
        (before < now).then(|| self.end(now))
    }

    /// Sends `DEL` only if the end of this client's lock has not passed.
    fn unlock(&self, end: u64, now: u64) {
        if now < end {
            run(self.node, &["DEL", KEY]);
        }
    }
}

#[tokio::test]
async fn the_lock_and_a_client_of_the_recipe_exclude_each_other() {
    let Some(nodes) = one() else { return };
    let (ours, other) = (lock_of(&nodes[0]), Recipe { node: &nodes[0], timeout: TIMEOUT });

    let guard = ours.try_acquire(at(NOW)).await.unwrap();
    assert_eq!(get(&nodes[0], KEY), Some((NOW + TIMEOUT + 1).to_string()), "as the recipe has it");
    assert_eq!((pttl(&nodes[0], KEY), guard.end()), (-1, at(NOW + TIMEOUT)));
    for now in [NOW, NOW + TIMEOUT, NOW + TIMEOUT + 1] {
        assert_eq!(other.try_lock(now), None);
    }
    guard.release(at(NOW + TIMEOUT - 1)).await.unwrap();

    let late = ours.try_acquire(at(NOW)).await.unwrap();
    assert_eq!(late.release(at(NOW + TIMEOUT)).await, Err(TimestampError::NotHeld));
    assert_eq!(get(&nodes[0], KEY), Some(other.text(NOW)), "no key is deleted after the end");
    run(&nodes[0], &["DEL", KEY]);

    let end = other.try_lock(NOW).unwrap();
    for now in [NOW, end - 1, end] {
        assert_eq!(ours.try_acquire(at(now)).await.unwrap_err(), TimestampError::Held);
    }
    other.unlock(end, NOW + 1);
    drop(ours.try_acquire(at(NOW)).await.unwrap());
}

#[tokio::test]
async fn a_lock_whose_end_has_passed_is_taken_over_in_both_directions() {
    let Some(nodes) = one() else { return };
    let (ours, other) = (lock_of(&nodes[0]), Recipe { node: &nodes[0], timeout: TIMEOUT });
    let crashed = other.try_lock(NOW).unwrap();
    let guard = ours.try_acquire(at(crashed + 1)).await.unwrap();
    assert_eq!(get(&nodes[0], KEY), Some((crashed + 1 + TIMEOUT + 1).to_string()));

    let late = crashed + 1 + TIMEOUT + 2;
    let end = other.try_lock(late).unwrap();
    assert_eq!(guard.release(at(late)).await, Err(TimestampError::NotHeld));
    assert_eq!(get(&nodes[0], KEY), Some(end.to_string()), "the successor's key stays");
    assert_eq!(ours.try_acquire(at(late)).await.unwrap_err(), TimestampError::Held);

    // Other clients may write ends with fractions of a second. `TimestampLock` rounds such an end up.
    run(&nodes[0], &["SET", KEY, &format!("{NOW}.25")]);
    assert_eq!(ours.try_acquire(at(NOW + 1)).await.unwrap_err(), TimestampError::Held);
    drop(ours.try_acquire(at(NOW + 2)).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_under_both_clients_loses_no_update() {
    let Some(nodes) = one() else { return };
    let nodes = &*Box::leak(Box::new(nodes));
    let counter = &*Box::leak(Box::new(AtomicU32::new(0)));
    let add = async || {
        let read = counter.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(1)).await;
        counter.store(read + 1, Ordering::Relaxed);
    };
    let ours = async || {
        let lock = lock_of(&nodes[0]);
        for _ in 0..20 {
            let guard = loop {
                match lock.try_acquire(SystemTime::now()).await {
                    Err(TimestampError::Held) => tokio::time::sleep(Duration::from_millis(1)).await,
                    guard => break guard.unwrap(),
                }
            };
            add().await;
            guard.release(SystemTime::now()).await.unwrap();
        }
    };
    let theirs = async || {
        let other = Recipe { node: &nodes[0], timeout: TIMEOUT };
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        for _ in 0..20 {
            let end = loop {
                match other.try_lock(now()) {
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                    Some(end) => break end,
                }
            };
            add().await;
            other.unlock(end, now());
        }
    };
    tokio::join!(ours(), theirs(), ours(), theirs());
    assert_eq!(counter.load(Ordering::Relaxed), 4 * 20);
}

/// Most of these values are times in the past, so only form, type or ttl shows that the recipe did not set the key.
#[tokio::test]
async fn a_key_that_the_recipe_has_not_set_is_refused_and_left_unchanged() {
    let Some(nodes) = one() else { return };
    let (ours, node) = (lock_of(&nodes[0]), &nodes[0]);
    let plain = ["a0b1c2", "", "-5", "+5", " 5", "5 ", "1e3", "5.", ".5", "5.5.5", "0x5", "5\n"];
    let plain = plain.map(|value| vec!["SET", KEY, value]);
    let others = [
        vec!["SET", KEY, "5", "PX", "600000"],
        vec!["HSET", KEY, "5", "5"],
        vec!["ZADD", KEY, "5", "5"],
        vec!["LPUSH", KEY, "5"],
        vec!["SET", KEY, "99999999999999999999"],
    ];
    for set in plain.iter().chain(&others) {
        run(node, &["DEL", KEY]);
        let guard = ours.try_acquire(at(NOW)).await.unwrap();
        run(node, &["DEL", KEY]);
        run(node, set);
        let before = run(node, &["DUMP", KEY]);
        let refused = ours.try_acquire(at(NOW)).await.unwrap_err();
        assert!(matches!(refused, TimestampError::Foreign(_)), "{set:?}: {refused}");
        assert!(guard.release(at(NOW)).await.is_err());
        assert_eq!(run(node, &["DUMP", KEY]), before, "{set:?}");
    }
    assert!(pttl(node, KEY) == -1);
}

#[tokio::test]
async fn a_lock_of_this_library_and_a_lock_of_the_recipe_exclude_each_other() {
    let Some(nodes) = one() else { return };
    let (client, ours) = (client(&nodes), lock_of(&nodes[0]));
    let guard = client.acquire(KEY).await.unwrap();
    let refused = ours.try_acquire(at(NOW)).await.unwrap_err();
    assert_eq!(refused, TimestampError::Foreign("its ttl"));
    assert!(guard.release().await.is_released());
    let guard = ours.try_acquire(at(NOW)).await.unwrap();
    assert!(client.try_acquire(KEY).await.unwrap_err().is_contended());
    guard.release(at(NOW)).await.unwrap();
}

#[tokio::test]
async fn the_recipe_is_for_one_server_and_its_timeout_has_the_bounds_of_a_ttl() {
    let Some(nodes) = start(2, ServerOptions::default()) else { return };
    let second = Duration::from_secs(1);
    let two = client(&nodes);
    let memory = unguarded().memory_nodes([MemoryNode::new("a")]).build().unwrap();
    for client in [two, memory] {
        let refused = TimestampLock::new(&client, KEY, second).unwrap_err();
        assert_eq!(refused, TimestampError::NotOneServer);
    }
    let one = client(&nodes[..1]);
    for (resource, timeout) in
        [(KEY, Duration::ZERO), (KEY, 31 * second), ("", second), ("quorlock:node", second)]
    {
        let refused = TimestampLock::new(&one, resource, timeout).unwrap_err();
        assert!(matches!(refused, TimestampError::Invalid(_)), "{refused}");
    }
    let prefixed = common::builder(&nodes[..1]).key_prefix("lock.").build().unwrap();
    drop(TimestampLock::new(&prefixed, "foo", second).unwrap().try_acquire(at(NOW)).await);
    assert_eq!(get(&nodes[0], KEY), Some((NOW + 2).to_string()));
}

/// Polls `future`, and runs `act` before the poll with this number, so `act` may run between two answers.
/// Returns `None` if the future ended before that poll.
async fn with_act_at<F: Future>(poll: u32, act: impl FnOnce(), future: F) -> Option<F::Output> {
    let (mut future, mut act, mut count) = (pin!(future), Some(act), 0);
    let output = poll_fn(|cx| {
        count += 1;
        if count == poll {
            act.take().unwrap()();
        }
        future.as_mut().poll(cx)
    });
    let output = output.await;
    act.is_none().then_some(output)
}

/// At any moment of an acquire, another client takes the ended lock. `TimestampLock` must not move that client's end.
#[tokio::test]
async fn an_end_is_not_moved_whenever_another_client_wins() {
    let Some(nodes) = one() else { return };
    let (ours, node) = (lock_of(&nodes[0]), &nodes[0]);
    let winner = Recipe { node, timeout: 500 };
    let mut wins = 0;
    for poll in 1.. {
        run(node, &["SET", KEY, "5"]);
        let mut theirs = None;
        let act = || theirs = winner.try_lock(NOW);
        let Some(outcome) = with_act_at(poll, act, ours.try_acquire(at(NOW))).await else { break };
        assert_ne!(outcome.is_ok(), theirs.is_some(), "one holder, at poll {poll}");
        if let Some(end) = theirs {
            wins += 1;
            assert_eq!(outcome.unwrap_err(), TimestampError::Held);
            assert_eq!(get(node, KEY), Some(end.to_string()), "at poll {poll}");
        }
    }
    assert!(wins >= 2, "before the look, and between the look and the change: {wins}");
}

/// At any moment of a release, a successor takes over the key. `TimestampLock` must not delete the successor's value.
#[tokio::test]
async fn a_successors_key_is_not_deleted_whenever_it_appears() {
    let Some(nodes) = one() else { return };
    let (ours, node) = (lock_of(&nodes[0]), &nodes[0]);
    let successor = (NOW + 500).to_string();
    let mut kept = 0;
    for poll in 1.. {
        run(node, &["DEL", KEY]);
        let guard = ours.try_acquire(at(NOW)).await.unwrap();
        let act = || drop(run(node, &["GETSET", KEY, &successor]));
        let Some(outcome) = with_act_at(poll, act, guard.release(at(NOW))).await else { break };
        assert_eq!(get(node, KEY), Some(successor.clone()), "at poll {poll}");
        kept += u32::from(outcome == Err(TimestampError::NotHeld));
    }
    assert!(kept >= 2, "before the look, and between the look and the change: {kept}");
}

/// Hazard 1 in the documentation of `TimestampLock`.
#[tokio::test]
async fn a_client_whose_clock_is_ahead_takes_a_lock_that_is_held() {
    let Some(nodes) = one() else { return };
    let (ours, other) = (lock_of(&nodes[0]), Recipe { node: &nodes[0], timeout: TIMEOUT });
    let guard = ours.try_acquire(at(NOW)).await.unwrap();
    let ahead = NOW + TIMEOUT + 2;
    assert!(other.try_lock(ahead).is_some());
    assert!(at(NOW) < guard.end(), "the first holder's end has not passed by its own clock");
}

/// Hazard 2. The loser has read the ended value before the winner replaced it.
#[tokio::test]
async fn the_loser_of_a_race_moves_the_winners_end_and_a_third_client_gets_the_lock() {
    let Some(nodes) = one() else { return };
    let (ours, node) = (lock_of(&nodes[0]), &nodes[0]);
    let (loser, third) = (Recipe { node, timeout: 1 }, Recipe { node, timeout: TIMEOUT });
    run(node, &["SET", KEY, "5"]);
    assert!(loser.sees_the_end(NOW));
    let guard = ours.try_acquire(at(NOW)).await.unwrap();
    assert_eq!(loser.replace(NOW), None, "the loser knows that it has not got the lock");
    assert_eq!(get(node, KEY), Some(loser.text(NOW)), "but the end is the loser's");

    let soon = NOW + 3;
    assert!(third.try_lock(soon).is_some());
    assert!(at(soon) < guard.end(), "two holders");
    assert_eq!(guard.release(at(soon)).await, Err(TimestampError::NotHeld));
}

/// Hazard 3. The holder checks its end, is paused, and continues.
#[tokio::test]
async fn two_clients_hold_the_lock_after_a_pause() {
    let Some(nodes) = one() else { return };
    let (ours, other) = (lock_of(&nodes[0]), Recipe { node: &nodes[0], timeout: TIMEOUT });
    let guard = ours.try_acquire(at(NOW)).await.unwrap();
    let is_held = at(NOW + 1) < guard.end();
    let after_the_pause = NOW + TIMEOUT + 2;
    assert!(other.try_lock(after_the_pause).is_some());
    assert!(is_held, "the holder continues on the result of a check from before the pause");
    assert_eq!(guard.release(at(after_the_pause)).await, Err(TimestampError::NotHeld));
}

/// Hazard 4. The other client checks its end, is paused, and then sends `DEL`.
#[tokio::test]
async fn a_check_and_a_later_del_delete_a_successors_key() {
    let Some(nodes) = one() else { return };
    let (ours, node) = (lock_of(&nodes[0]), &nodes[0]);
    let (paused, third) = (Recipe { node, timeout: TIMEOUT }, Recipe { node, timeout: TIMEOUT });
    let end = paused.try_lock(NOW).unwrap();
    let guard = ours.try_acquire(at(end + 1)).await.unwrap();
    // The paused client made its check before the pause, when the end of its lock was still ahead. So it sends `DEL`.
    paused.unlock(end, end - 1);
    assert!(third.try_lock(end + 2).is_some());
    assert!(at(end + 2) < guard.end(), "two holders");
    assert_eq!(guard.release(at(end + 2)).await, Err(TimestampError::NotHeld));

    // A value identifies no client: a successor that acquires in the same second has an equal value.
    run(node, &["DEL", KEY]);
    let guard = ours.try_acquire(at(NOW)).await.unwrap();
    paused.unlock(end, end - 1);
    assert!(third.try_lock(NOW).is_some());
    guard.release(at(NOW)).await.unwrap();
    assert_eq!(get(node, KEY), None, "the successor's key is gone");
}
