//! Blocking calls on threads of their own. If such a call hangs, at most one thread waits for it.

use std::io;
use std::thread;

use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Mutex, oneshot};

/// The blocking calls of one kind, such as the look-ups of a node's host name. The key tells the calls apart.
pub(super) struct Offload<K, T> {
    /// The newest call, and its key. It continues even if the attempt to connect that started it has timed out.
    newest: Mutex<(K, oneshot::Receiver<T>)>,
}

impl<K: Default, T> Default for Offload<K, T> {
    fn default() -> Self {
        Self { newest: Mutex::new((K::default(), oneshot::channel().1)) }
    }
}

impl<K: PartialEq, T: Send + 'static> Offload<K, T> {
    /// Waits for the call with this key if it is in progress. Otherwise starts one on a thread of its own, because
    /// tokio panics if it cannot start a thread. Drops an answer that no attempt has awaited, because it may be old by
    /// now.
    ///
    /// # Errors
    /// If no thread can be started, or the call panicked.
    pub(super) async fn run(
        &self,
        key: K,
        thread: &str,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let mut newest = self.newest.lock().await;
        if newest.0 != key || !matches!(newest.1.try_recv(), Err(TryRecvError::Empty)) {
            let (sender, answer) = oneshot::channel();
            let call = move || drop(sender.send(call()));
            thread::Builder::new().name(thread.to_owned()).spawn(call)?;
            *newest = (key, answer);
        }
        (&mut newest.1).await.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// A call that hangs until the test uses the returned sender, and that then returns this number.
    fn hanging(number: u16) -> (Sender<()>, impl FnOnce() -> u16 + Send + 'static) {
        let (end, ended) = channel();
        let call = move || {
            let _ = ended.recv();
            number
        };
        (end, call)
    }

    fn never() -> u16 {
        unreachable!("one call is under way")
    }

    async fn run(
        calls: &Offload<&'static str, u16>,
        key: &'static str,
        call: impl FnOnce() -> u16 + Send + 'static,
    ) -> u16 {
        calls.run(key, "test", call).await.unwrap()
    }

    #[tokio::test]
    async fn of_calls_that_hang_one_is_under_way() {
        let calls = Offload::default();
        let (end, call) = hanging(1);
        let short = Duration::from_millis(1);
        timeout(short, run(&calls, "h", call)).await.expect_err("it hangs");
        for _ in 0..3 {
            timeout(short, run(&calls, "h", never)).await.expect_err("it still hangs");
        }
        let (answered, ()) = tokio::join!(run(&calls, "h", never), async { drop(end) });
        assert_eq!(answered, 1, "the answer to the first call");
        let (end, call) = hanging(2);
        drop(end);
        assert_eq!(run(&calls, "h", call).await, 2, "answers change");
        let (_end, call) = hanging(3);
        timeout(short, run(&calls, "h", call)).await.expect_err("it hangs");
        let (end, call) = hanging(4);
        drop(end);
        assert_eq!(run(&calls, "other", call).await, 4, "another key does not wait for the first");
    }

    #[tokio::test]
    async fn an_answer_that_came_when_no_attempt_waited_is_not_used() {
        let calls = Offload::default();
        let (end, call) = hanging(1);
        timeout(Duration::from_millis(1), run(&calls, "h", call)).await.expect_err("it hangs");
        drop(end);
        while calls.newest.lock().await.1.is_empty() {
            tokio::task::yield_now().await;
        }
        let (end, call) = hanging(2);
        drop(end);
        assert_eq!(run(&calls, "h", call).await, 2);
    }

    #[tokio::test]
    async fn a_call_that_panics_is_an_error() {
        let calls = Offload::default();
        let quiet = || -> u16 { std::panic::resume_unwind(Box::new(())) };
        assert!(calls.run("h", "test", quiet).await.is_err());
        assert_eq!(run(&calls, "h", || 1).await, 1);
    }
}
