//! The driver must send commands to a node in the engine's order.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quorlock::node::{Failure, FailureKind, MemoryNode};
use quorlock::{Client, Clock, Delay, LockOptions, Retry};
use quorlock_core::Answer;

/// A node that executes every command, but whose answers to the first batch are lost.
fn loses_first_answers() -> MemoryNode {
    let (node, has_lost) = (MemoryNode::new("a"), AtomicBool::new(false));
    node.intercept(move |_, answers| {
        let loses = !has_lost.swap(true, Ordering::Relaxed);
        async move {
            let mut answers = answers.await;
            if loses {
                assert_eq!(answers, [Answer::Granted, Answer::Granted], "both calls in one batch");
                answers.fill(Answer::Failed(Failure::new(FailureKind::Unreachable)));
            }
            answers
        }
    });
    node
}

/// The calls `last` and `retried` make their attempts in one batch, and both attempts fail. `last` has no attempt left,
/// so `next`, a call for the same lock, begins. `retried` may try again at once, but behind its first release.
///
/// A regression test: the driver once gave the engine the random token for `next` before it had taken the release of
/// `retried` from the engine. The engine then handled its deadlines first. So the driver sent the second attempt of
/// `retried` before that release, and the key of the first attempt made the node refuse the second attempt.
#[tokio::test(start_paused = true)]
async fn a_retry_is_sent_after_the_release_of_the_attempt_before() {
    let node = loses_first_answers();
    let builder = Client::builder().memory_nodes([node.clone()]);
    let client = builder.clock(Clock::Tokio).build().unwrap();
    let at_once = Delay::Between { min: Duration::ZERO, max: Duration::from_nanos(1) };
    let twice = Retry { delay: at_once, attempts_max: Some(2) };
    // All three calls start in one poll of this task, in this order.
    let (last, next, retried) = tokio::join!(
        client.try_acquire("jobs").into_future(),
        client.acquire("jobs").into_future(),
        client.acquire("orders").options(LockOptions::new().retry(twice)).into_future(),
    );
    assert!(!last.unwrap_err().is_contended(), "its answer was lost");
    assert!(next.unwrap().is_valid());
    assert!(retried.expect("the key of the first attempt was released").is_valid());
    client.shutdown(Duration::from_secs(1)).await.unwrap();
    assert_eq!(node.key_count(), 0);
}
