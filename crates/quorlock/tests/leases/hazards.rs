//! The same execution twice: P1 releases once by a call that compares only the value, and once by `Taken`, which also
//! compares a nonce. After the first release, the lock has two holders in the end. After the second, it has one.
//!
//! P1 holds nodes a, b and c. The take of P2, with an equal value, has d and e, and its commands to a, b and c are
//! late. P1 releases. Then a command of P2 reaches a, and P3 takes the lock.

use quorlock::{AcquireError, Client, Taken};
use quorlock_servers::Nodes;
use quorlock_servers::proxy::{Direction, Effect, Proxy, Traffic};

use crate::common::{all_up, eventually, five, get};
use crate::{LONG, key_is, patient_client, proxies, take_three};

/// Runs the execution above. `release` is the call by which P1 releases. Returns the locks of P2 and P3.
async fn execution(
    nodes: &Nodes,
    release: impl AsyncFnOnce(&Client, Taken),
) -> (Taken, Result<Taken, AcquireError>) {
    let ways = proxies(nodes).await;
    let (p1, p3) = (patient_client(nodes.urls()), patient_client(nodes.urls()));
    let p2 = patient_client(ways.iter().map(Proxy::url));
    for client in [&p1, &p2, &p3] {
        all_up(client).await;
    }
    let (abc, de) = nodes.split_at(3);
    let taken = take_three(&p1, nodes, "v").await;
    ways[..3].iter().for_each(|way| way.set(Direction::ToServer, Traffic::Hold));
    let taking = tokio::spawn(p2.take("k", "v", LONG).into_future());
    eventually("P2 has d and e", || key_is(de, "k", Some("v"))).await;
    let are_held = || ways[..3].iter().all(|way| way.count(Effect::Held) > 0);
    eventually("the other commands of P2 are late", are_held).await;
    assert!(taken.is_valid());
    release(&p1, taken).await;
    eventually("P1 has released", || key_is(abc, "k", None)).await;

    ways[0].open();
    let second = taking.await.unwrap().unwrap();
    let third = p3.take("k", "v3", LONG).await;
    assert_eq!(get(&nodes[0], "k").as_deref(), Some("v"));
    (second, third)
}

#[tokio::test]
async fn a_release_by_value_alone_can_make_two_holders() {
    let Some(nodes) = five() else { return };
    let (second, third) = execution(&nodes, async |client: &Client, _: Taken| {
        assert!(client.release_value("k", "v").await.unwrap().is_released());
    })
    .await;
    assert!(second.is_valid() && third.unwrap().is_valid(), "this is the documented hazard");
}

#[tokio::test]
async fn the_same_release_by_taken_leaves_one_holder() {
    let Some(nodes) = five() else { return };
    let (second, third) = execution(&nodes, async |_: &Client, taken: Taken| {
        assert!(taken.release().await.is_released());
    })
    .await;
    let error = third.unwrap_err();
    assert!(second.is_valid() && error.is_contended(), "{error}");
    assert!(key_is(&nodes[3..], "k", Some("v")), "the votes of the second holder");
}
