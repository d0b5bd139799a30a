//! Public types are `Send` and `'static`, most of them `Sync`, and public futures are `Send`. The compiler checks this.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::error::Error;
use std::time::Duration;

use quorlock::node::{MemoryNode, NodeConfig, NodeConfigError, NodeState, Tls};
use quorlock::{
    Acquire, AcquireError, Acquiring, BuildError, Client, ClientBuilder, ExtendError, FencedGuard,
    Guard, HoldError, Holder, Inspection, InvalidRequest, LockOptions, NodeAnswer, Released,
    ShutdownError, Stats, Waiting, blocking,
};

fn is_send<T: Send + 'static>() {}

fn is_shared<T: Send + Sync + 'static>() {}

fn is_error<T: Error + Send + Sync + 'static>() {}

fn is_spawned<T: Send>(_: impl Future<Output = T> + Send) {}

fn is_spawned_and_static<T: Send>(_: impl Future<Output = T> + Send + 'static) {}

#[test]
fn types_cross_threads() {
    is_shared::<Client>();
    is_shared::<Guard>();
    is_shared::<FencedGuard>();
    is_shared::<LockOptions>();
    is_shared::<Acquire>();
    is_send::<Acquiring>();
    is_send::<Acquiring<FencedGuard>>();
    is_send::<ClientBuilder>();
    is_shared::<Released>();
    is_shared::<Waiting>();
    is_shared::<Stats>();
    is_shared::<Inspection>();
    is_shared::<Holder>();
    is_shared::<NodeAnswer>();
    is_shared::<MemoryNode>();
    is_shared::<NodeConfig>();
    is_shared::<NodeState>();
    is_shared::<Tls>();
    is_shared::<blocking::Client>();
    is_shared::<blocking::Guard>();
    is_shared::<blocking::Acquire>();
    is_error::<AcquireError>();
    is_error::<BuildError>();
    is_error::<ExtendError>();
    is_error::<HoldError>();
    is_error::<InvalidRequest>();
    is_error::<NodeConfigError>();
    is_error::<ShutdownError>();
}

/// Every public future. This function is compiled and never called.
#[expect(dead_code, reason = "it is enough that it compiles")]
fn futures_cross_threads(client: &Client, guard: &Guard, owned: Guard) {
    is_spawned_and_static(client.acquire("a").into_future());
    is_spawned_and_static(
        client.acquire("a").options(LockOptions::new().wait(Duration::ZERO)).into_future(),
    );
    is_spawned_and_static(owned.release());
    is_spawned(client.inspect("a"));
    is_spawned(client.shutdown(Duration::ZERO));
    is_spawned(guard.lost());
    is_spawned(guard.changed());
    is_spawned(guard.extend());
    is_spawned(client.acquire("a").hold(async |guard: &Guard| guard.is_valid()));
    let client = client.clone();
    is_spawned_and_static(async move {
        let held = client.acquire("a").hold(async |guard| {
            guard.extend().await.is_ok() && guard.lost().await == quorlock::LossCause::Shutdown
        });
        (held.await, client.inspect("a").await, client.shutdown(Duration::ZERO).await)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_can_borrow_and_own_inside_a_spawned_task() {
    let client = Client::builder().memory_nodes([MemoryNode::new("a")]).build().unwrap();
    let text = String::from("owned");
    let task = tokio::spawn(async move {
        let mut lengths = Vec::new();
        client
            .acquire("orders")
            .hold(async |guard| {
                tokio::task::yield_now().await;
                lengths.push(text.len());
                guard.extend().await.unwrap();
                lengths.push(guard.resource().len());
            })
            .await
            .unwrap();
        lengths
    });
    assert_eq!(task.await.unwrap(), [5, 6]);
}
