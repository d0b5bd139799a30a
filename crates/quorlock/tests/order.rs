//! The driver must send commands to a node in the engine's order.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quorlock::node::{
    Answer, Answers, Batch, BoxFuture, Failure, FailureKind, MemoryNode, Node, PushSink,
};
use quorlock::{Client, Clock, Delay, LockOptions, Retry};

/// A node that executes every command, but whose answers to the first batch are lost.
#[derive(Debug)]
struct LosesFirstAnswers {
    node: MemoryNode,
    lost: Arc<AtomicBool>,
}

impl Node for LosesFirstAnswers {
    fn name(&self) -> &str {
        self.node.name()
    }

    fn execute(&self, batch: Batch) -> BoxFuture<Answers> {
        let loses = !self.lost.swap(true, Ordering::Relaxed);
        let answers = self.node.execute(batch);
        Box::pin(async move {
            let answers = answers.await;
            if !loses {
                return answers;
            }
            assert_eq!(
                answers.answers,
                [Answer::Granted, Answer::Granted],
                "both calls in one batch"
            );
            let lost = Answer::Failed(Failure::new(FailureKind::Unreachable));
            vec![lost; answers.answers.len()].into()
        })
    }

    fn background(&self, push_sink: PushSink) -> BoxFuture<()> {
        self.node.background(push_sink)
    }
}

/// The calls `last` and `retried` make their attempts in one batch, and both attempts fail. `last` has no attempt left,
/// so `next`, a call for the same lock, begins. `retried` may try again at once, but behind its first release.
///
/// A regression test: the driver once gave the engine the random token for `next` before it had taken the release of
/// `retried` from the engine. The engine then handled its deadlines first. So the driver sent the second attempt of
/// `retried` before that release, and the key of the first attempt made the node refuse the second attempt.
#[tokio::test(start_paused = true)]
async fn a_retry_is_sent_after_the_release_of_the_attempt_before() {
    let node = MemoryNode::new("a");
    let loses = LosesFirstAnswers { node: node.clone(), lost: Arc::default() };
    let client = Client::builder().custom_nodes([loses]).clock(Clock::Tokio).build().unwrap();
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
