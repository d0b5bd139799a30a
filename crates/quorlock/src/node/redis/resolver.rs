//! Looks up the host name of a node. If the system's resolver hangs, at most one thread per node and host waits for it.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread;

use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Mutex, oneshot};

type Addresses = io::Result<Vec<SocketAddr>>;

pub(super) struct Resolver {
    /// The newest look-up, and its host. It continues even if the attempt to connect that started it has timed out.
    look_up: Mutex<(String, oneshot::Receiver<Addresses>)>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self { look_up: Mutex::new((String::new(), oneshot::channel().1)) }
    }
}

impl Resolver {
    pub(super) async fn resolve(&self, host: &str, port: u16) -> Addresses {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![(address, port).into()]);
        }
        let name = host.to_owned();
        self.with(host, move || (&*name, port).to_socket_addrs().map(Iterator::collect)).await
    }

    /// Waits for the look-up of this host if it is in progress. Otherwise starts one on a thread of its own, because
    /// tokio panics if it cannot start a thread. Drops an answer that no attempt has awaited, because it may be old by
    /// now.
    async fn with(
        &self,
        host: &str,
        look_up: impl FnOnce() -> Addresses + Send + 'static,
    ) -> Addresses {
        let mut newest = self.look_up.lock().await;
        if newest.0 != host || !matches!(newest.1.try_recv(), Err(TryRecvError::Empty)) {
            let (tell, addresses) = oneshot::channel();
            let look_up = move || drop(tell.send(look_up()));
            thread::Builder::new().name("resolve".to_owned()).spawn(look_up)?;
            *newest = (host.to_owned(), addresses);
        }
        (&mut newest.1).await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// A look-up that hangs until the test uses the returned sender, and that then returns this port.
    fn hanging(port: u16) -> (Sender<()>, impl FnOnce() -> Addresses + Send + 'static) {
        let (end, ended) = channel();
        let look_up = move || {
            let _ = ended.recv();
            Ok(vec![([127, 0, 0, 1], port).into()])
        };
        (end, look_up)
    }

    fn never() -> Addresses {
        unreachable!("one look-up is under way")
    }

    #[tokio::test]
    async fn a_resolver_that_hangs_has_one_look_up_under_way() {
        let resolver = Resolver::default();
        let (end, look_up) = hanging(1);
        let short = Duration::from_millis(1);
        timeout(short, resolver.with("h", look_up)).await.expect_err("it hangs");
        for _ in 0..3 {
            timeout(short, resolver.with("h", never)).await.expect_err("it still hangs");
        }
        let (answered, ()) = tokio::join!(resolver.with("h", never), async { drop(end) });
        assert_eq!(answered.unwrap()[0].port(), 1, "the answer to the first look-up");
        let (end, look_up) = hanging(2);
        drop(end);
        assert_eq!(resolver.with("h", look_up).await.unwrap()[0].port(), 2, "names change");
        let (_end, look_up) = hanging(3);
        timeout(short, resolver.with("h", look_up)).await.expect_err("it hangs");
        let (end, look_up) = hanging(4);
        drop(end);
        let other = resolver.with("other", look_up).await;
        assert_eq!(other.unwrap()[0].port(), 4, "another host does not wait for the first");
    }

    #[tokio::test]
    async fn an_answer_that_came_when_no_attempt_waited_is_not_used() {
        let resolver = Resolver::default();
        let (end, look_up) = hanging(1);
        timeout(Duration::from_millis(1), resolver.with("h", look_up)).await.expect_err("it hangs");
        drop(end);
        while resolver.look_up.lock().await.1.is_empty() {
            tokio::task::yield_now().await;
        }
        let (end, look_up) = hanging(2);
        drop(end);
        assert_eq!(resolver.with("h", look_up).await.unwrap()[0].port(), 2);
    }
}
