//! What depends on time, in virtual time: exact, and in no time at all.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::future::IntoFuture as _;
use std::time::Duration;

use quorlock::node::{Answers, Batch, BoxFuture, FailureKind, MemoryNode, News, Node, NodeState};
use quorlock::{
    AcquireError, Client, ClientBuilder, Clock, Delay, ExtendError, HolderKind, LossCause,
    NodeSaid, Outcome, Retry,
};
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// The default ttl.
const TTL: Duration = Duration::from_secs(10);

/// ttl × 0.01 + 2 ms.
const DRIFT: Duration = Duration::from_millis(102);

/// For how long the holder of a lock may rely on it: the margin of 2 % is no part of that.
const HELD_FOR: Duration = Duration::from_millis(10_000 - 102 - 200);

/// tokio's timers are good to a millisecond.
const TICK: Duration = Duration::from_millis(2);

fn nodes<const N: usize>() -> [MemoryNode; N] {
    std::array::from_fn(|place| MemoryNode::new(&format!("n{place}")))
}

fn builder(nodes: &[MemoryNode]) -> ClientBuilder {
    Client::builder().custom_nodes(nodes.to_vec()).clock(Clock::Tokio)
}

fn client(nodes: &[MemoryNode]) -> Client {
    builder(nodes).build().unwrap()
}

fn total_keys(nodes: &[MemoryNode]) -> usize {
    nodes.iter().map(MemoryNode::key_count).sum()
}

/// Whether `elapsed` is `expected`, give or take what timers do.
#[track_caller]
fn assert_took(elapsed: Duration, expected: Duration) {
    assert!(elapsed >= expected && elapsed <= expected + TICK, "{elapsed:?}, not {expected:?}");
}

#[tokio::test(start_paused = true)]
async fn without_extension_a_lock_is_held_for_its_ttl_less_drift_and_margin() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let guard = client.acquire("orders").auto_extend(false).await.unwrap();
    let started = Instant::now();
    assert_eq!(guard.remaining(), HELD_FOR);
    sleep(HELD_FOR - MS).await;
    assert_eq!((guard.is_valid(), guard.remaining()), (true, MS));
    assert_eq!(guard.lost().await, LossCause::Expired);
    assert_took(started.elapsed(), HELD_FOR);
    assert!(!guard.is_valid());
    sleep(MS).await;
    assert_eq!(total_keys(&nodes), 0, "what is lost is given back at once");
    assert_eq!(guard.release().await.outcome, Outcome::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_extended_every_third_of_its_ttl_for_as_long_as_max_hold_allows() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let started = Instant::now();
    let day = Duration::from_secs(24 * 3600);
    let guard = client.acquire("orders").await.unwrap();
    sleep(TTL / 3 - TICK).await;
    assert!(guard.remaining() < HELD_FOR - TTL / 3 + 2 * TICK, "not yet extended");
    sleep(3 * TICK).await;
    assert!(guard.remaining() > HELD_FOR - 3 * TICK, "extended");
    assert!(nodes.iter().all(|node| node.ttl_of("orders").unwrap() > TTL - 3 * TICK));
    sleep(day - 20 * SECOND - started.elapsed()).await;
    assert!(guard.is_valid());
    assert_eq!(guard.lost().await, LossCause::HoldLimit);
    let held = started.elapsed();
    assert!(held <= day && held > day - TTL / 2, "{held:?}");

    let short = client.acquire("short").max_hold(TTL).await.unwrap();
    let started = Instant::now();
    let limit = ExtendError::HoldLimit { resource: "short".into() };
    assert_eq!(short.extend().await, Ok(HELD_FOR), "no time has passed");
    sleep(MS).await;
    assert_eq!(short.extend().await, Err(limit));
    assert_eq!(short.lost().await, LossCause::HoldLimit);
    assert_took(started.elapsed(), HELD_FOR);
}

#[tokio::test(start_paused = true)]
async fn callers_of_one_process_get_the_lock_in_the_order_in_which_they_came() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    let (order, mut seen) = tokio::sync::mpsc::unbounded_channel();
    for place in 0..10 {
        let (call, order) = (client.acquire("orders").wait(60 * SECOND), order.clone());
        tokio::spawn(async move {
            let _guard = call.await.unwrap();
            order.send(place).unwrap();
            sleep(SECOND).await;
        });
        sleep(MS).await;
    }
    assert_eq!(client.stats().calls_waiting, 10);
    assert_eq!(client.stats().nodes[0].commands, 1, "nobody else has asked the nodes");
    let error = client.try_acquire("orders").await.unwrap_err();
    assert_eq!(error.holder().unwrap().kind, HolderKind::ThisProcess);
    assert_eq!(
        error.to_string(),
        "lock \"orders\" not acquired: held or wanted by another caller of this process"
    );
    assert!(error.is_contended() && error.nodes().is_empty());
    let started = Instant::now();
    drop(guard);
    for place in 0..10 {
        assert_eq!(seen.recv().await, Some(place));
    }
    let elapsed = started.elapsed();
    assert!(
        elapsed < 9 * SECOND + 20 * TICK,
        "nobody waits longer than for the others: {elapsed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn there_is_no_reentrancy() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    let started = Instant::now();
    let error = client.acquire("orders").wait(3 * SECOND).await.unwrap_err();
    assert_took(started.elapsed(), 3 * SECOND);
    assert_eq!(
        error.to_string().split(" in ").next(),
        Some("lock \"orders\" not acquired"),
        "{error}"
    );
    assert!(error.is_contended() && guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_when_its_wait_does() {
    let nodes = nodes::<3>();
    let (holder, other) = (client(&nodes), client(&nodes));
    let guard = holder.acquire("orders").await.unwrap();
    for wait in [Duration::ZERO, 700 * MS, 10 * SECOND] {
        let started = Instant::now();
        let call = other.acquire("orders");
        // Ten seconds are the default.
        let call = if wait == 10 * SECOND { call } else { call.wait(wait) };
        let error = call.await.unwrap_err();
        assert_took(started.elapsed(), wait);
        assert!(error.is_contended(), "{error}");
    }
    let patient = other.acquire("orders").wait_forever().into_future();
    assert!(timeout(3600 * SECOND, patient).await.is_err());
    assert!(guard.is_valid());
}

/// V3: a crashed holder blocks others for its ttl, and not much longer.
#[tokio::test(start_paused = true)]
async fn a_lock_left_behind_is_had_right_after_it_expires() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    for node in &nodes {
        node.insert("orders", "left behind", Some(7 * SECOND));
    }
    let started = Instant::now();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert_eq!(error.retry_after(), Some(7 * SECOND));
    let guard = client.acquire("orders").await.unwrap();
    let elapsed = started.elapsed();
    assert!(elapsed >= 7 * SECOND && elapsed < 7 * SECOND + 5 * MS, "{elapsed:?}");
    assert_eq!(guard.votes(), 5);
}

#[tokio::test(start_paused = true)]
async fn attempts_follow_each_other_as_configured() {
    let nodes = nodes::<3>();
    let (holder, other) = (client(&nodes), client(&nodes));
    let _guard = holder.acquire("orders").await.unwrap();
    let delay = Delay::Between { min: 200 * MS, max: 200 * MS };
    let retry = Retry { delay, attempts_max: Some(4) };
    let started = Instant::now();
    let error = other.acquire("orders").retry(retry).await.unwrap_err();
    assert!(error.to_string().contains("not acquired after 4 attempts in 60"), "{error}");
    let elapsed = started.elapsed();
    assert!(elapsed >= 600 * MS && elapsed < 600 * MS + 4 * TICK, "{elapsed:?}");
    // Three nodes, four times: an acquire, a release, and two of them a look, for a no is a no at
    // the second.
    let commands = other.stats().nodes.iter().map(|node| node.commands).sum::<u64>();
    assert!((32..=36).contains(&commands), "{commands}");
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_told_why() {
    let nodes = nodes::<3>();
    let (holder, other) = (builder(&nodes).owner("api-7").build().unwrap(), client(&nodes));
    let guard = holder.acquire("orders").await.unwrap();
    let (told, mut seen) = tokio::sync::watch::channel(None);
    let call = tokio::spawn(other.acquire("orders").progress(told).into_future());
    for attempts in 1..3 {
        seen.changed().await.unwrap();
        let waiting = seen.borrow_and_update().clone().unwrap();
        assert_eq!((waiting.attempts, waiting.contended), (attempts, true));
        assert_eq!(waiting.holder().unwrap().kind, HolderKind::Owner("api-7".to_owned()));
        // The nodes tell that the lock has changed, though not to whose advantage.
        guard.extend().await.unwrap();
    }
    for node in &nodes[1..] {
        node.stop();
    }
    drop(guard);
    let waiting = seen.wait_for(|told| told.as_ref().is_some_and(|told| !told.contended)).await;
    let waiting = waiting.unwrap().clone().unwrap();
    assert_eq!(waiting.nodes[1].failure().unwrap().kind(), FailureKind::Unreachable);
    assert_eq!(waiting.holder(), None);
    nodes.iter().for_each(MemoryNode::start);
    assert!(call.await.unwrap().unwrap().is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_frozen_majority_is_waited_for_by_one_node_timeout() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    for node in &nodes[..3] {
        node.freeze();
    }
    let started = Instant::now();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert_took(started.elapsed(), 50 * MS);
    assert!(matches!(error, AcquireError::NoQuorum(_)));
    for node in &error.nodes()[..3] {
        assert_eq!(node.failure().unwrap().kind(), FailureKind::Silent);
    }
    assert_eq!(error.nodes()[3].said, NodeSaid::Granted);
    assert_eq!(
        error.to_string(),
        "lock \"orders\" not acquired after 1 attempt in 50.0ms: no quorum, 3 of 5 nodes must \
         grant: node n0 failed: no answer in time, node n1 failed: no answer in time, node n2 \
         failed: no answer in time, node n3 granted, node n4 granted"
    );
    assert_eq!(client.stats().nodes[0].timeouts, 1);
    sleep(MS).await;
    assert_eq!(total_keys(&nodes[3..]), 0, "a loser gives back at once");
    nodes.iter().for_each(MemoryNode::thaw);
    sleep(MS).await;
    assert_eq!(total_keys(&nodes), 0, "a grant that comes too late is taken back");
    assert_eq!(client.stats().releases_owed, 0);
}

/// As a server is: else every attempt that needs its vote would wait for it, and keep others from theirs.
#[tokio::test(start_paused = true)]
async fn a_node_that_stays_frozen_is_suspended_until_it_goes_on() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    nodes[0].freeze();
    nodes[1].stop();
    assert!(client.try_acquire("orders").await.is_err());
    sleep(150 * MS).await;
    assert!(matches!(nodes[0].state(), NodeState::Suspended(_)));
    let started = Instant::now();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(error.nodes()[0].failure().unwrap().kind(), FailureKind::Suspended);
    nodes[0].thaw();
    assert_eq!(nodes[0].state(), NodeState::Up);
    assert_eq!(client.try_acquire("orders").await.unwrap().votes(), 2);
    drop(client);
    sleep(SECOND).await;
    assert_eq!(total_keys(&nodes), 0);
}

#[tokio::test(start_paused = true)]
async fn a_minority_is_not_waited_for_and_its_late_votes_count() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    nodes[0].freeze();
    nodes[1].stop();
    let started = Instant::now();
    let guard = client.acquire("orders").auto_extend(false).await.unwrap();
    assert_eq!((started.elapsed(), guard.votes()), (Duration::ZERO, 3));
    sleep(SECOND).await;
    let changed = tokio::spawn({
        let node = nodes[0].clone();
        async move {
            sleep(MS).await;
            node.thaw();
        }
    });
    guard.changed().await;
    changed.await.unwrap();
    assert_eq!(guard.votes(), 4);
    assert_eq!(guard.remaining(), HELD_FOR - SECOND - MS, "each vote counts from its own sending");
}

#[tokio::test(start_paused = true)]
async fn a_vote_is_worth_its_ttl_from_the_time_of_sending() {
    let far = nodes::<3>().map(|node| Delayed { node, round_trip: SECOND });
    let client = Client::builder().custom_nodes(far).clock(Clock::Tokio).node_timeout(2 * SECOND);
    let client = client.build().unwrap();
    let guard = client.acquire("orders").await.unwrap();
    assert!(guard.remaining() <= HELD_FOR - SECOND);
    assert!(guard.remaining() >= HELD_FOR - SECOND - 2 * TICK);
    let enough = client.try_acquire("more").min_validity(TTL - DRIFT - 2 * SECOND).await.unwrap();
    drop(enough);
    let error = client.try_acquire("too much").min_validity(TTL - DRIFT - SECOND / 2).await;
    let error = error.unwrap_err();
    assert!(matches!(error, AcquireError::TooSlow(_)), "{error}");
    assert!(
        error.to_string().contains("granted too late, too little validity was left"),
        "{error}"
    );
    assert!(!error.is_contended() && !error.lacks_rights());
}

/// One that has never answered says nothing of how far away the others are.
#[tokio::test(start_paused = true)]
async fn distant_nodes_are_given_time_although_others_are_down_from_the_start() {
    let [down, silent, near, far, farther] = nodes();
    down.stop();
    silent.freeze();
    let round_trips = [(near, 10 * MS), (far, 80 * MS), (farther, 100 * MS)];
    let distant = round_trips.map(|(node, round_trip)| Delayed { node, round_trip });
    let client = Client::builder()
        .custom_nodes([down, silent])
        .custom_nodes(distant)
        .clock(Clock::Tokio)
        .build()
        .unwrap();
    // The first attempts find out how far away they are.
    let guard = client.acquire("orders").await.unwrap();
    assert_eq!(guard.votes(), 3);
    drop(guard);
    sleep(SECOND).await;
    for _ in 0..10 {
        let started = Instant::now();
        let guard = client.try_acquire("orders").await.unwrap();
        assert!(started.elapsed() <= 100 * MS + TICK);
        assert!(guard.release().await.is_released());
    }
}

/// A node that stood still for a minute was not a minute away.
#[tokio::test(start_paused = true)]
async fn the_time_a_node_was_frozen_is_no_round_trip() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    for _ in 0..10 {
        assert!(client.acquire("orders").await.unwrap().release().await.is_released());
    }
    nodes.iter().for_each(MemoryNode::freeze);
    assert!(client.try_acquire("orders").await.is_err());
    sleep(60 * SECOND).await;
    nodes.iter().for_each(MemoryNode::thaw);
    sleep(SECOND).await;
    nodes.iter().for_each(MemoryNode::freeze);
    let started = Instant::now();
    let error = client.try_acquire("orders").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    let elapsed = started.elapsed();
    assert!(elapsed <= 4 * 30 * MS, "no slower than before: {elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_too_few_confirm_changes_nothing() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let guard = client.acquire("orders").auto_extend(false).await.unwrap();
    sleep(SECOND).await;
    for node in &nodes[2..] {
        node.fail_with(FailureKind::Loading);
    }
    let error = guard.extend().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "lock \"orders\" not extended, still held: node n0 granted, node n1 granted, node n2 \
         failed: is loading its data, node n3 failed: is loading its data, node n4 failed: is \
         loading its data"
    );
    let ExtendError::Unconfirmed { nodes: answers, .. } = &error else { panic!("{error}") };
    assert_eq!(answers.len(), 5);
    assert_eq!(guard.remaining(), HELD_FOR - SECOND);
    assert!(nodes.iter().all(|node| node.contains("orders")), "nothing is deleted");
    nodes.iter().for_each(MemoryNode::recover);
    assert_eq!(guard.extend().await, Ok(HELD_FOR));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_cannot_be_extended_is_lost_in_time() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    let started = Instant::now();
    for node in &nodes[..3] {
        node.freeze();
    }
    assert_eq!(guard.lost().await, LossCause::Expired);
    assert_took(started.elapsed(), HELD_FOR);
    sleep(MS).await;
    assert_eq!(total_keys(&nodes[3..]), 0);
    nodes.iter().for_each(MemoryNode::thaw);
    assert!(!guard.is_valid(), "what is lost stays lost, whatever is answered afterwards");
    sleep(MS).await;
    assert_eq!(total_keys(&nodes), 0);
}

#[tokio::test(start_paused = true)]
async fn votes_that_vanish_are_healed_or_end_the_lock_at_once() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    let token = guard.token().to_string();
    nodes[0].remove("orders");
    nodes[1].stop();
    nodes[1].start();
    sleep(TTL / 3 + 2 * TICK).await;
    assert!(nodes.iter().all(|node| node.value_of("orders").as_deref() == Some(token.as_bytes())));
    assert_eq!(guard.votes(), 5);

    let started = Instant::now();
    for node in &nodes[..2] {
        node.remove("orders");
        node.insert("orders", "taken", None);
    }
    nodes[2].remove("orders");
    assert_eq!(guard.lost().await, LossCause::KeyOverwritten);
    assert!(started.elapsed() <= TTL / 3 + 2 * TICK, "with the next extension");
    let late = guard.release().await;
    assert_eq!(late.outcome, Outcome::TakenByOther);
    assert_eq!(total_keys(&nodes), 2, "others' keys are left alone");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_that_is_kept_is_given_back_with_its_guard() {
    let nodes = nodes::<5>();
    let client = client(&nodes);
    let guard = client.acquire("orders").keep_on_loss().await.unwrap();
    nodes[..3].iter().for_each(|node| assert!(node.remove("orders")));
    assert_eq!(guard.lost().await, LossCause::KeyGone);
    sleep(TTL / 2).await;
    assert_eq!(total_keys(&nodes), 2, "what is left is left alone");
    let refused = client.acquire("orders").wait(TTL / 10).await.unwrap_err();
    assert!(refused.is_contended(), "{refused}");
    assert_eq!(guard.release().await.outcome, Outcome::Expired);
    assert_eq!(total_keys(&nodes), 0);

    let guard = client.acquire("orders").keep_on_loss().await.unwrap();
    nodes[..3].iter().for_each(|node| assert!(node.remove("orders")));
    assert_eq!(guard.lost().await, LossCause::KeyGone);
    drop(guard);
    sleep(MS).await;
    assert_eq!(total_keys(&nodes), 0, "a guard that is dropped gives back what was kept");
}

#[tokio::test(start_paused = true)]
async fn a_release_of_a_lock_that_few_nodes_answer_is_unknown() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    nodes[0].freeze();
    nodes[1].freeze();
    let started = Instant::now();
    let released = guard.release().await;
    assert_eq!(released.outcome, Outcome::Unknown);
    assert_took(started.elapsed(), 50 * MS);
    nodes.iter().for_each(MemoryNode::thaw);
    sleep(MS).await;
    assert_eq!((total_keys(&nodes), client.stats().releases_owed), (0, 0));
}

/// A release whose node died with it is kept in mind for as long as the key can have lived.
#[tokio::test(start_paused = true)]
async fn an_owed_release_is_sent_again_until_the_key_must_have_expired() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    nodes[0].fail_with(FailureKind::Busy);
    drop(guard);
    sleep(SECOND).await;
    assert_eq!((total_keys(&nodes), client.stats().releases_owed), (1, 1));
    nodes[0].recover();
    sleep(SECOND).await;
    assert_eq!((total_keys(&nodes), client.stats().releases_owed), (0, 0));

    let guard = client.acquire("orders").await.unwrap();
    nodes[0].stop();
    drop(guard);
    sleep(TTL / 2).await;
    assert_eq!(client.stats().releases_owed, 1);
    sleep(TTL / 2 + 2 * SECOND).await;
    assert_eq!(client.stats().releases_owed, 0, "the key has expired, were it still there");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_owed_releases_no_longer_than_their_ttl() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    let guard = client.acquire("orders").await.unwrap();
    nodes[0].stop();
    drop(guard);
    let error = client.shutdown(SECOND).await.unwrap_err();
    assert_eq!(error.owed, 1);
    let started = Instant::now();
    client.shutdown(3600 * SECOND).await.unwrap();
    assert!(started.elapsed() <= TTL + 2 * SECOND, "{:?}", started.elapsed());
}

/// What all handles have left behind is drained for a bounded time, and the driver ends.
#[tokio::test(start_paused = true)]
async fn without_any_handle_the_driver_ends() {
    let nodes = nodes::<3>();
    for freeze in [false, true] {
        let (node, watch) = Watched::new(nodes[0].clone());
        let builder = Client::builder().custom_nodes(nodes[1..].to_vec()).clock(Clock::Tokio);
        let client = builder.custom_nodes([node]).build().unwrap();
        let guard = client.acquire("orders").await.unwrap();
        let waiting = tokio::spawn(client.acquire("orders").into_future());
        sleep(MS).await;
        if freeze {
            nodes[0].freeze();
        }
        waiting.abort();
        drop((guard, client));
        let started = Instant::now();
        watch.closed().await;
        let elapsed = started.elapsed();
        if freeze {
            assert!(elapsed > SECOND && elapsed <= 31 * SECOND + TICK, "{elapsed:?}");
        } else {
            assert!(elapsed <= TICK, "nothing is owed: {elapsed:?}");
        }
        assert_eq!(total_keys(&nodes[1..]), 0);
    }
}

/// Everything has a bound: what waits for a node that takes nothing, and what is owed to it.
#[tokio::test(start_paused = true)]
async fn a_frozen_node_costs_a_bounded_amount_of_memory_and_no_key() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    nodes[0].freeze();
    for number in 0..35_000 {
        let guard = client.acquire(format!("lock {number}")).await.unwrap();
        assert!(guard.release().await.is_released());
    }
    let owed = client.stats().releases_owed;
    assert!((32_000..33_000).contains(&owed), "two commands each, and 65 536 of them: {owed}");
    nodes[0].thaw();
    sleep(SECOND).await;
    assert_eq!((total_keys(&nodes), client.stats().releases_owed), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn hold_stops_the_work_when_the_lock_is_lost() {
    let nodes = nodes::<3>();
    let client = client(&nodes);
    nodes[0].stop();
    let started = Instant::now();
    let result = client.hold("orders", async |guard| {
        nodes[1].freeze();
        sleep(3600 * SECOND).await;
        guard.is_valid()
    });
    let error = result.await.unwrap_err();
    assert_took(started.elapsed(), HELD_FOR);
    assert_eq!(
        error.to_string(),
        "lock \"orders\" was lost during the work: its validity ran out before enough nodes \
         confirmed an extension"
    );
    nodes[1].thaw();
    sleep(MS).await;
    assert_eq!(total_keys(&nodes), 0);

    let refused = client.hold("orders", async |_| ()).await;
    assert!(refused.is_ok());
    nodes[1].stop();
    let error = client.hold("orders", async |_| unreachable!("the work is not begun")).await;
    assert!(matches!(error, Err(quorlock::HoldError::NotAcquired(AcquireError::NoQuorum(_)))));
}

#[tokio::test(start_paused = true)]
async fn memory_nodes_freeze_thaw_stop_and_fail_as_servers_do() {
    let [node] = nodes();
    let client = client(std::slice::from_ref(&node));
    let attempt = || client.try_acquire("orders").auto_extend(false);
    let kind = |error: AcquireError| error.nodes()[0].failure().unwrap().kind();
    assert_eq!(node.state(), NodeState::Up);

    // A failing node keeps its data, also while it is frozen.
    let guard = attempt().await.unwrap();
    node.fail_with(FailureKind::OutOfMemory);
    node.freeze();
    assert!(timeout(MS, guard.extend()).await.is_err());
    node.thaw();
    assert!(matches!(guard.extend().await, Err(ExtendError::Unconfirmed { .. })));
    node.start();
    assert!(guard.extend().await.is_err(), "what was not stopped is not started");
    node.recover();
    assert!(guard.extend().await.is_ok());
    assert!(guard.release().await.is_released());

    // A stopped node has lost them, and neither freezing nor recovering starts it.
    let guard = attempt().await.unwrap();
    node.stop();
    node.freeze();
    node.thaw();
    node.fail_with(FailureKind::Busy);
    node.recover();
    assert!(matches!(node.state(), NodeState::Down(_)));
    drop(guard);
    assert_eq!(kind(attempt().await.unwrap_err()), FailureKind::Unreachable);
    node.start();
    assert_eq!((node.state(), node.key_count()), (NodeState::Up, 0));

    // One that is killed while frozen has executed nothing of what it was sent.
    sleep(TTL + SECOND).await;
    node.freeze();
    let call = tokio::spawn(attempt().wait(TTL).into_future());
    sleep(MS).await;
    node.stop();
    assert_eq!(kind(call.await.unwrap().unwrap_err()), FailureKind::Unreachable);
    node.start();
    assert_eq!(node.key_count(), 0);
    // Keys expire while a node is frozen.
    node.insert("other", "value", Some(SECOND));
    node.freeze();
    assert!(node.expire_in("other", 2 * SECOND) && !node.expire_in("absent", SECOND));
    sleep(3 * SECOND).await;
    assert_eq!((node.key_count(), node.value_of("other"), node.remove("other")), (0, None, false));
}

/// A caller that has chosen to wait for an hour after each attempt, or wants more validity than there can be,
/// holds no other caller of its process back.
#[tokio::test(start_paused = true)]
async fn who_pauses_for_reasons_of_its_own_holds_nobody_back() {
    let nodes = nodes::<3>();
    for node in &nodes {
        node.insert("orders", "another's", Some(SECOND));
    }
    let client = client(&nodes);
    let hour = 3600 * SECOND;
    let delay = Delay::Between { min: hour, max: hour };
    let retry = Retry { delay, attempts_max: None };
    let slow = tokio::spawn(client.acquire("orders").retry(retry).wait_forever().into_future());
    sleep(MS).await;
    let started = Instant::now();
    let guard = client.acquire("orders").await.unwrap();
    assert!(started.elapsed() < SECOND + 10 * MS, "{:?}", started.elapsed());
    let _ = guard.release().await;
    let _ = client.try_acquire("orders").await.unwrap().release().await;
    drop(slow.await.unwrap().unwrap());
    assert!(started.elapsed() >= hour - 10 * MS, "it has its lock when it wants it");

    let slow = nodes.map(|node| Delayed { node, round_trip: 20 * MS });
    let client = Client::builder().custom_nodes(slow).clock(Clock::Tokio).build().unwrap();
    let most = TTL - DRIFT - 10 * MS;
    let vain = client.acquire("orders").min_validity(most).wait(30 * SECOND);
    let vain = tokio::spawn(vain.into_future());
    sleep(MS).await;
    let started = Instant::now();
    drop(client.acquire("orders").await.unwrap());
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
    assert!(matches!(vain.await.unwrap(), Err(AcquireError::TooSlow(_))));
}

/// Who waits for a node for less time than it takes to answer never gets a lock, and is told so.
#[tokio::test(start_paused = true)]
async fn a_node_timeout_below_the_round_trip_is_told_with_both() {
    let slow = nodes::<3>().map(|node| Delayed { node, round_trip: 20 * MS });
    let builder = Client::builder().custom_nodes(slow).clock(Clock::Tokio);
    let client = builder.node_timeout(5 * MS).build().unwrap();
    let error = client.acquire("orders").wait(SECOND).await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)));
    let told = "; the node timeout of 5.0ms is shorter than the usual 20.0ms of node n0: choose a longer \
                one, or none, for it then follows the round trip";
    assert!(error.to_string().ends_with(told), "{error}");
}

/// A stall at the first contact says nothing of how far the nodes are.
#[tokio::test(start_paused = true)]
async fn the_first_round_trip_is_believed_no_more_than_others() {
    let slow = nodes::<3>().map(|node| Delayed { node, round_trip: 2 * SECOND });
    let builder = Client::builder().custom_nodes(slow).clock(Clock::Tokio);
    let client = builder.node_timeout(5 * SECOND / 2).build().unwrap();
    drop(client.acquire("orders").await.unwrap());
    for node in client.stats().nodes {
        assert!(node.round_trip.unwrap() <= SECOND / 2, "{:?}", node.round_trip);
    }
}

/// A node that answers later than it executes.
#[derive(Debug)]
struct Delayed {
    node: MemoryNode,
    round_trip: Duration,
}

impl Node for Delayed {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
        let (answers, round_trip) = (self.node.execute(batch), self.round_trip);
        Box::pin(async move {
            sleep(round_trip).await;
            answers.await
        })
    }
}

/// A node that tells when its client has let go of it.
#[derive(Debug)]
struct Watched {
    node: MemoryNode,
    alive: tokio::sync::watch::Receiver<()>,
}

impl Watched {
    fn new(node: MemoryNode) -> (Self, tokio::sync::watch::Sender<()>) {
        let (watch, alive) = tokio::sync::watch::channel(());
        (Self { node, alive }, watch)
    }
}

impl Node for Watched {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
        self.node.execute(batch)
    }

    fn background(&self, _news: News) -> BoxFuture<()> {
        let alive = self.alive.clone();
        Box::pin(async move {
            let _alive = alive;
            std::future::pending().await
        })
    }
}
