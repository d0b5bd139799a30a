//! The task of a [`RedisNode`](super::RedisNode) that another node wraps: it owns the server's link, and sends the
//! batches that the wrapping node gives it.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use quorlock_core::{Answer, BatchId};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::link::Link;
use super::server::Server;
use super::wire::lost;
use super::wire_batch::{Encoder, WireBatch, WireBatches};
use crate::node::{Answers, Batch, PushSink};

#[derive(Clone)]
pub(super) struct Batches {
    sender: mpsc::UnboundedSender<Given>,
    receiver: Arc<Mutex<mpsc::UnboundedReceiver<Given>>>,
}

struct Given {
    batch: Batch,
    reply: oneshot::Sender<Answers>,
}

impl Batches {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { sender, receiver: Arc::new(Mutex::new(receiver)) }
    }

    /// Gives a batch to the task, and returns its answers when they have come.
    pub(super) fn execute(&self, batch: Batch) -> impl Future<Output = Answers> + Send + use<> {
        let count = batch.commands().len();
        let (reply, answers) = oneshot::channel();
        // The send cannot fail, because this object has the receiver.
        let _ = self.sender.send(Given { batch, reply });
        async move {
            // There are no answers if the task was dropped, and the connection with it.
            let failed = |_| vec![Answer::Failed(lost("connection lost")); count].into();
            answers.await.unwrap_or_else(failed)
        }
    }

    /// The task: keeps the server connected, and sends batches in the order in which they were given.
    pub(super) async fn serve(self, server: Arc<Server>, push_sink: PushSink) {
        let receiver = &mut *self.receiver.lock().await;
        let mut task = Wrapped {
            link: Link::new(server, push_sink),
            encoder: Encoder::default(),
            waiting: VecDeque::new(),
            in_flight: BTreeMap::new(),
            sent: 0,
            concluded: Vec::new(),
        };
        poll_fn(|cx| task.poll(receiver, cx)).await
    }
}

struct Wrapped {
    link: Link,
    encoder: Encoder,
    /// Batches that wait for a connection.
    waiting: VecDeque<Given>,
    in_flight: BTreeMap<BatchId, oneshot::Sender<Answers>>,
    sent: u64,
    concluded: WireBatches,
}

impl Wrapped {
    fn poll(
        &mut self,
        receiver: &mut mpsc::UnboundedReceiver<Given>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        self.link.poll(cx, &mut self.encoder, &mut self.concluded);
        while let Poll::Ready(Some(given)) = receiver.poll_recv(cx) {
            self.waiting.push_back(given);
        }
        while let Some(readiness) = self.link.readiness()
            && let Some(Given { batch, reply }) = self.waiting.pop_front()
        {
            match readiness {
                // The result is ignored here and below: a caller that dropped its future needs no answers.
                Err(failure) => drop(reply.send(batch.fail(&failure))),
                Ok(()) => {
                    self.sent += 1;
                    let id = BatchId(self.sent);
                    self.in_flight.insert(id, reply);
                    let batch = Box::new(WireBatch::new(id, batch.send()));
                    self.link.send(batch, &mut self.encoder, &mut self.concluded);
                }
            }
        }
        for mut batch in self.concluded.drain(..) {
            if let Some(reply) = self.in_flight.remove(&batch.exchange.id()) {
                let (answers, evidence) = batch.exchange.take();
                let answers = answers.into_iter().map(|(_, answer)| answer).collect();
                let _ = reply.send(Answers { answers, evidence });
            }
        }
        Poll::Pending
    }
}
