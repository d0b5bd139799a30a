//! The calls of the library. This file is compiled twice, for async and for blocking clients. `main.rs` defines the macros
//! for each: `front!` names a type, `call!` makes a call for a lock, `wait!` any other call, and `near!` awaits what does
//! not belong to the client.

use std::time::Duration;

use futures_util::FutureExt as _;
use quorlock::{LeaseKind, LockOptions, Mode, Query, Verdict};
use tokio::time::{Instant, sleep};

use crate::cells::{Doing, Scene};
use crate::common::{eventually, run};

pub(crate) type Client = front!(Client);

/// Makes one call with a client of its own, and checks its result.
pub(crate) type Call = for<'a> fn(&'a Scene, &'a Client) -> Doing<'a>;

macro_rules! table {
    ($($name:ident)*) => {
        pub(crate) const TABLE: &[(&str, Call)] =
            &[$((stringify!($name), |scene, client| $name(scene, client).boxed_local())),*];
    };
}

table! {
    acquire acquire_that_waits acquire_fenced acquire_shared acquire_several try_acquire downgrade hold
    guard_that_is_dropped extend extended_by_itself lost detach attach attach_fenced extend_lease release_lease
    inspect stats take detach_taken extend_value release_value query shutdown
}

const TTL: Duration = Duration::from_secs(10);
const VALUE: &str = "a value";

/// A call with the bound of an attempt.
macro_rules! bounded {
    ($scene:ident, $call:expr) => {{
        $scene.begin();
        let result = $call.unwrap();
        $scene.ends_in_time();
        result
    }};
}

/// Releases, and looks at the servers.
macro_rules! release {
    ($scene:ident, $guard:expr) => {{
        $scene.begin();
        let released = wait!($guard.release());
        $scene.ends_in_time();
        near!($scene, $scene.released(&released));
    }};
}

async fn acquire(scene: &Scene, client: &Client) {
    let guard = bounded!(scene, call!(client.acquire(scene.key())));
    scene.holds(TTL, guard.remaining());
    assert!(guard.is_valid() && guard.votes() >= 2);
    assert!(near!(scene, scene.near().try_acquire(scene.key())).unwrap_err().is_contended());
    release!(scene, guard);
}

async fn acquire_that_waits(scene: &Scene, client: &Client) {
    let held = near!(scene, scene.near().acquire(scene.key())).unwrap();
    let (waiting, round_trip) = (client.clone(), scene.round_trip());
    let releasing = scene.spawn(async move {
        let asks = || waiting.stats().nodes.iter().all(|node| node.commands > 0);
        eventually("the call asks", || waiting.stats().calls_waiting == 1 && asks()).await;
        // The nodes refuse the lock after the commands have arrived, which no event shows.
        sleep(round_trip).await;
        held.release().await
    });
    scene.begin();
    let guard = call!(client.acquire(scene.key())).unwrap();
    assert!(near!(scene, releasing).unwrap().is_released());
    scene.holds(TTL, guard.remaining());
    release!(scene, guard);
}

async fn acquire_fenced(scene: &Scene, client: &Client) {
    let earlier = near!(scene, scene.near().acquire_fenced(scene.key())).unwrap();
    let token = earlier.fencing_token();
    assert!(near!(scene, earlier.release()).is_released());
    let guard = bounded!(scene, call!(client.acquire_fenced(scene.key())));
    assert!(guard.fencing_token() > token);
    release!(scene, guard);
}

async fn acquire_shared(scene: &Scene, client: &Client) {
    let other = near!(scene, scene.near().acquire_shared(scene.key())).unwrap();
    let guard = bounded!(scene, call!(client.acquire_shared(scene.key())));
    assert!(near!(scene, other.release()).is_released());
    assert!(near!(scene, scene.near().try_acquire(scene.key())).unwrap_err().is_contended());
    release!(scene, guard);
}

async fn acquire_several(scene: &Scene, client: &Client) {
    let other = format!("{} 2", scene.key());
    let guard = bounded!(scene, call!(client.acquire([scene.key(), &other])));
    assert!(near!(scene, scene.near().try_acquire(other)).unwrap_err().is_contended());
    release!(scene, guard);
}

async fn try_acquire(scene: &Scene, client: &Client) {
    let guard = bounded!(scene, wait!(client.try_acquire(scene.key())));
    release!(scene, guard);
    let other = near!(scene, scene.near().acquire(scene.key())).unwrap();
    assert!(wait!(client.try_acquire(scene.key())).unwrap_err().is_contended());
    assert!(near!(scene, other.release()).is_released());
}

async fn downgrade(scene: &Scene, client: &Client) {
    let guard = bounded!(scene, call!(client.acquire(scene.key()))).downgrade();
    bounded!(scene, wait!(guard.extend()));
    assert_eq!(guard.mode(), Mode::Shared);
    let other = near!(scene, scene.near().acquire_shared(scene.key())).unwrap();
    assert!(near!(scene, other.release()).is_released());
    release!(scene, guard);
}

async fn hold(scene: &Scene, client: &Client) {
    assert!(hold!(client.acquire(scene.key()), guard, guard.is_valid()).unwrap());
    near!(scene, scene.is_free());
}

async fn guard_that_is_dropped(scene: &Scene, client: &Client) {
    drop(call!(client.acquire(scene.key())).unwrap());
    near!(scene, scene.is_free());
}

async fn extend(scene: &Scene, client: &Client) {
    // An automatic extension in flight would have begun before this one.
    let unextended = LockOptions::new().auto_extend(false);
    let guard = call!(client.acquire(scene.key()).options(unextended)).unwrap();
    scene.holds(TTL, bounded!(scene, wait!(guard.extend())));
    release!(scene, guard);
}

async fn extended_by_itself(scene: &Scene, client: &Client) {
    let ttl = scene.shortest_ttl();
    let options = LockOptions::new().ttl(ttl);
    let guard = call!(client.acquire(scene.key()).options(options)).unwrap();
    near!(scene, async { sleep(ttl * 5 / 4).await });
    assert!(guard.is_valid(), "{:?}", guard.loss_cause());
    release!(scene, guard);
}

async fn lost(scene: &Scene, client: &Client) {
    let guard = call!(client.acquire(scene.key())).unwrap();
    near!(scene, eventually("all nodes have voted", || guard.votes() == 3));
    scene.nodes().iter().for_each(|node| drop(run(node, &["SET", scene.key(), "another"])));
    let started = Instant::now();
    wait!(guard.lost());
    assert!(started.elapsed() <= TTL && !guard.is_valid());
    scene.nodes().iter().for_each(|node| drop(run(node, &["DEL", scene.key()])));
}

async fn detach(scene: &Scene, client: &Client) {
    let guard = call!(client.acquire(scene.key())).unwrap();
    let lease = bounded!(scene, wait!(guard.detach()));
    assert!(lease.remaining() <= TTL && !lease.remaining().is_zero());
    let lease = near!(scene, scene.near().attach(&lease)).unwrap();
    assert!(near!(scene, lease.release()).is_released());
    near!(scene, scene.is_free());
}

async fn attach(scene: &Scene, client: &Client) {
    let lease = near!(scene, scene.lease());
    let guard = bounded!(scene, call!(client.attach(&lease)));
    scene.holds(TTL, guard.remaining());
    release!(scene, guard);
}

async fn attach_fenced(scene: &Scene, client: &Client) {
    let guard = near!(scene, scene.near().acquire_fenced(scene.key())).unwrap();
    let lease = near!(scene, guard.detach()).unwrap();
    let guard = bounded!(scene, call!(client.attach_fenced(&lease)));
    assert!(guard.fencing_token() > lease.fencing_token().unwrap().get());
    let lease = bounded!(scene, wait!(guard.detach()));
    assert_eq!(lease.kind(), LeaseKind::Fenced);
    near!(scene, scene.released(&wait!(client.release_lease(&lease)).unwrap()));
}

async fn extend_lease(scene: &Scene, client: &Client) {
    let lease = near!(scene, scene.lease());
    let extended = bounded!(scene, wait!(client.extend_lease(&lease)));
    scene.holds(TTL, extended.remaining());
    near!(scene, scene.released(&bounded!(scene, wait!(client.release_lease(&extended)))));
}

async fn release_lease(scene: &Scene, client: &Client) {
    let lease = near!(scene, scene.lease());
    near!(scene, scene.released(&bounded!(scene, wait!(client.release_lease(&lease)))));
}

async fn inspect(scene: &Scene, client: &Client) {
    let guard = near!(scene, scene.near().acquire(scene.key())).unwrap();
    let seen = bounded!(scene, wait!(client.inspect(scene.key())));
    assert_eq!((seen.verdict(), seen.untrusted()), (Verdict::Held, 0), "{seen:?}");
    assert!(near!(scene, guard.release()).is_released());
    let seen = bounded!(scene, wait!(client.inspect(scene.key())));
    assert_eq!(seen.verdict(), Verdict::Free, "{seen:?}");
}

async fn stats(scene: &Scene, client: &Client) {
    let guard = call!(client.acquire(scene.key())).unwrap();
    near!(scene, eventually("all nodes have voted", || guard.votes() == 3));
    for (node, least) in client.stats().nodes.iter().zip(scene.round_trips()) {
        assert!(node.round_trip.unwrap() >= least, "{node:?}");
        assert_eq!(node.timeouts, 0, "{node:?}");
    }
    release!(scene, guard);
    assert_eq!(client.stats().locks_held, 0);
}

async fn take(scene: &Scene, client: &Client) {
    let taken = bounded!(scene, call!(client.take(scene.key(), VALUE, TTL)));
    scene.holds(TTL, taken.remaining());
    scene.holds(TTL, bounded!(scene, wait!(taken.extend())));
    release!(scene, taken);
}

async fn detach_taken(scene: &Scene, client: &Client) {
    let taken = call!(client.take(scene.key(), VALUE, TTL)).unwrap();
    let lease = bounded!(scene, wait!(taken.detach()));
    assert_eq!(lease.value(), Some(VALUE.as_bytes()));
    let lease = bounded!(scene, wait!(client.extend_lease(&lease)));
    near!(scene, scene.released(&wait!(client.release_lease(&lease)).unwrap()));
}

async fn extend_value(scene: &Scene, client: &Client) {
    let taken = near!(scene, scene.near().take(scene.key(), VALUE, TTL)).unwrap();
    let held = bounded!(scene, wait!(client.extend_value(scene.key(), VALUE, TTL)));
    scene.holds(TTL, held);
    // The extension gave the lock a new nonce, so the first holder no longer ends it.
    drop(near!(scene, taken.detach()));
    let released = near!(scene, scene.near().release_value(scene.key(), VALUE));
    near!(scene, scene.released(&released.unwrap()));
}

async fn release_value(scene: &Scene, client: &Client) {
    let lease = near!(scene, scene.near().take(scene.key(), VALUE, TTL)).unwrap();
    drop(near!(scene, lease.detach()).unwrap());
    near!(scene, scene.released(&bounded!(scene, wait!(client.release_value(scene.key(), VALUE)))));
}

async fn query(scene: &Scene, client: &Client) {
    let taken = near!(scene, scene.near().take(scene.key(), VALUE, TTL)).unwrap();
    let seen = bounded!(scene, wait!(client.query(scene.key())));
    assert_eq!(seen, Query::Value(VALUE.into()));
    assert!(near!(scene, taken.release()).is_released());
    assert_eq!(bounded!(scene, wait!(client.query(scene.key()))), Query::Free);
}

async fn shutdown(scene: &Scene, client: &Client) {
    let guard = call!(client.acquire(scene.key())).unwrap();
    bounded!(scene, wait!(client.shutdown(Duration::from_secs(5))));
    assert!(!guard.is_valid());
    near!(scene, scene.is_free());
}
