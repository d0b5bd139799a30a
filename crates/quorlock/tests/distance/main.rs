//! Every call of the library at several distances from the nodes, as the first call of a client and as a later one.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod cells;
#[path = "../common/mod.rs"]
mod common;
mod faults;

macro_rules! front {
    ($name:ident) => {
        quorlock::$name
    };
}
macro_rules! call {
    ($call:expr) => {
        $call.await
    };
}
macro_rules! wait {
    ($call:expr) => {
        $call.await
    };
}
macro_rules! near {
    ($scene:ident, $future:expr) => {
        $future.await
    };
}
macro_rules! hold {
    ($call:expr, $guard:ident, $work:expr) => {
        $call.hold(async |$guard| $work).await
    };
}
#[path = "calls.rs"]
mod async_calls;

macro_rules! front {
    ($name:ident) => {
        quorlock::blocking::$name
    };
}
macro_rules! call {
    ($call:expr) => {
        $call.call()
    };
}
macro_rules! wait {
    ($call:expr) => {
        $call
    };
}
macro_rules! near {
    ($scene:ident, $future:expr) => {
        $scene.block_on($future)
    };
}
macro_rules! hold {
    ($call:expr, $guard:ident, $work:expr) => {
        $call.hold(|$guard| $work)
    };
}
#[allow(clippy::duplicate_mod, reason = "the calls of async and of blocking clients are the same")]
#[path = "calls.rs"]
mod blocking_calls;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::{FutureExt as _, StreamExt as _, stream};
use quorlock::Released;
use quorlock::legacy::{TimestampError, TimestampLock};
use quorlock_servers::ServerOptions;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::cells::{Doing, Place, Scene};
use crate::common::start;
use crate::common::tls::{start_tls, trusting};

/// A call that takes longer than this counts as hanging, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The number of calls at the same time.
const SIDE_BY_SIDE: usize = 48;

/// How a call is made.
#[derive(Clone, Copy, Debug)]
struct Form {
    is_blocking: bool,
    is_first: bool,
}

const FORMS: [Form; 4] = [
    Form { is_blocking: false, is_first: true },
    Form { is_blocking: true, is_first: true },
    Form { is_blocking: false, is_first: false },
    Form { is_blocking: true, is_first: false },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_does_at_every_distance_what_it_does_nearby() {
    let Some(nodes) = start(3, ServerOptions::default()) else { return };
    let nodes = Arc::new(nodes);
    let mut all = Vec::new();
    for (name, millis) in [("400 ms", 400), ("60 ms", 60), ("0 ms", 0)] {
        all.push(Arc::new(Place::new(name, &nodes, None, [millis; 3]).await));
    }
    let mut pairs = Vec::new();
    for (name, millis) in [("20 ms", [20; 3]), ("150 ms", [150; 3]), ("150 ms to one", [0, 0, 150])]
    {
        pairs.push(Arc::new(Place::new(name, &nodes, None, millis).await));
    }
    if let Some((nodes, authority)) = start_tls(false) {
        let tls = Some(trusting(&authority));
        pairs.push(Arc::new(Place::new("60 ms and TLS", &Arc::new(nodes), tls, [60; 3]).await));
    }
    let mut cells: Vec<Doing<'_, _>> = Vec::new();
    for call in 0..async_calls::TABLE.len() {
        for (place, form) in all.iter().flat_map(|place| FORMS.map(|form| (place, form))) {
            cells.push(cell(place, call, form).boxed_local());
        }
        // Each pair of call and distance, and each of distance and form.
        for (place, row) in pairs.iter().zip(0..) {
            cells.push(cell(place, call, FORMS[(call + row) % FORMS.len()]).boxed_local());
        }
    }
    let count = cells.len();
    let failed: Vec<String> = stream::iter(cells)
        .buffer_unordered(SIDE_BY_SIDE)
        .filter_map(async |result: Result<(), String>| result.err())
        .collect()
        .await;
    assert!(failed.is_empty(), "{} of {count} fail:\n{}", failed.len(), failed.join("\n"));
}

/// Makes one call. The error says which one failed, and how.
async fn cell(place: &Arc<Place>, call: usize, form: Form) -> Result<(), String> {
    let (name, _) = async_calls::TABLE[call];
    let front = if form.is_blocking { "blocking" } else { "async" };
    let order = if form.is_first { "first" } else { "later" };
    let name = format!("{name}, {}, {front}, {order}", place.name);
    let scene = Scene::new(place, name.clone());
    let done = if form.is_blocking {
        let (done, result) = oneshot::channel();
        thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                let blocking = AssertUnwindSafe(|| make_blocking(&scene, call, form.is_first));
                // A test that has given up no longer waits.
                let _ = done.send(std::panic::catch_unwind(blocking));
            })
            .unwrap();
        timeout(LIMIT, result).await.map(Result::unwrap)
    } else {
        let making = make(&scene, call, form.is_first);
        timeout(LIMIT, AssertUnwindSafe(making).catch_unwind()).await
    };
    match done {
        Ok(Ok(())) => Ok(()),
        Ok(Err(panic)) => Err(format!("{name}: {}", text_of(&*panic))),
        Err(_) => Err(format!("{name}: it hangs")),
    }
}

async fn make(scene: &Scene, call: usize, is_first: bool) {
    let client = scene.builder().build().unwrap();
    if !is_first {
        let guard = client.acquire(scene.earlier_key()).await.unwrap();
        is_released(&guard.release().await);
    }
    async_calls::TABLE[call].1(scene, &client).await;
}

fn make_blocking(scene: &Scene, call: usize, is_first: bool) {
    let client = scene.builder().blocking().build().unwrap();
    if !is_first {
        let guard = client.acquire(scene.earlier_key()).call().unwrap();
        is_released(&guard.release());
    }
    let done = blocking_calls::TABLE[call].1(scene, &client).now_or_never();
    done.expect("blocking calls have blocked");
}

fn is_released(released: &Released) {
    assert!(released.is_released(), "{released:?}");
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).unwrap_or("it panics")
}

/// This lock is only async, and only for one server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_with_a_timestamp_works_at_every_distance() {
    let Some(nodes) = start(3, ServerOptions::default()) else { return };
    let nodes = Arc::new(nodes);
    let now = UNIX_EPOCH + Duration::from_secs(1_764_100_000);
    for (name, millis) in [("400 ms", 400), ("60 ms", 60), ("0 ms", 0)] {
        let place = Arc::new(Place::new(name, &nodes, None, [millis; 3]).await);
        let scene = Scene::new(&place, name.to_owned());
        let client = scene.builder_of_one().build().unwrap();
        let ttl = Duration::from_secs(10);
        let lock = TimestampLock::new(&client, scene.key(), ttl).unwrap();
        let guard = lock.try_acquire(now).await.unwrap();
        assert_eq!(lock.try_acquire(now).await.unwrap_err(), TimestampError::Held);
        guard.release(now).await.unwrap();
        scene.is_free().await;
    }
}

/// A method that asks a node must be in the table.
#[test]
fn every_call_is_in_the_table() {
    let table = [include_str!("calls.rs"), include_str!("main.rs")].concat();
    let sources = [
        include_str!("../../src/client.rs"),
        include_str!("../../src/client/leases.rs"),
        include_str!("../../src/client/values.rs"),
        include_str!("../../src/acquire.rs"),
        include_str!("../../src/guard.rs"),
        include_str!("../../src/guard/fenced.rs"),
        include_str!("../../src/taken.rs"),
    ];
    let mut calls = 0;
    for method in sources.iter().flat_map(|source| source.split("\n    pub ").skip(1)) {
        let (signature, _) = method.split_once(" {").unwrap();
        let asks = ["async fn", "-> Acquire", "-> Acquiring", "-> Take", "-> impl Future"];
        let Some((_, name)) = signature.lines().next().unwrap().split_once("fn ") else { continue };
        let name = name.split(['(', '<']).next().unwrap();
        // The future of `changed` waits for a change of the guard, and asks no node.
        if name != "changed" && asks.iter().any(|part| signature.contains(part)) {
            calls += 1;
            assert!(table.contains(&format!(".{name}(")), "{name}");
        }
    }
    assert!(calls > 20, "{calls}");
}
