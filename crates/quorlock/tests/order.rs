//! The order in which a node is sent what the engine says, where the driver could disturb it.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quorlock::node::{
    Answer, Answers, Batch, BoxFuture, Failure, FailureKind, MemoryNode, Node, PushSink,
};
use quorlock::{Client, Clock, Delay, LockOptions, Retry};

/// A node that does all that it is told; but what it answers to the first batch gets lost.
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

/// One turn in which the engine hears that two attempts have failed. The first was its caller's last, so
/// that the next in the queue begins; the second may be made anew at once. When the driver handed in the
/// token for the one before it had taken the release of the other, what was due came first in the engine:
/// the second attempt began, and its command stood before that release, to be refused by its own key.
#[tokio::test(start_paused = true)]
async fn an_attempt_stands_behind_the_release_of_the_one_before_it() {
    let node = MemoryNode::new("a");
    let loses = LosesFirstAnswers { node: node.clone(), lost: Arc::default() };
    let client = Client::builder().custom_nodes([loses]).clock(Clock::Tokio).build().unwrap();
    let at_once = Delay::Between { min: Duration::ZERO, max: Duration::from_nanos(1) };
    let twice = Retry { delay: at_once, attempts_max: Some(2) };
    // Asked for in one turn, and in this order.
    let (last, next, anew) = tokio::join!(
        client.try_acquire("jobs").into_future(),
        client.acquire("jobs").into_future(),
        client.acquire("orders").options(LockOptions::new().retry(twice)).into_future(),
    );
    assert!(!last.unwrap_err().is_contended(), "its answer was lost");
    assert!(next.unwrap().is_valid());
    assert!(anew.expect("the key of its first attempt had been released").is_valid());
    client.shutdown(Duration::from_secs(1)).await.unwrap();
    assert_eq!(node.key_count(), 0);
}
