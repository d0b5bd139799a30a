//! The places in which the calls run: servers, and proxies that put them at a distance.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorlock::{Client, ClientBuilder, Lease, LockOptions, Released, node::Tls};
use quorlock_admin::init;
use quorlock_core::{ROUND_TRIPS_AWAITED, shortest_ttl};
use quorlock_servers::proxy::{Direction, Distance, Proxy, Traffic};
use quorlock_servers::{Nodes, Reply, Server};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::common::{NODE_TIMEOUT, run};

pub(crate) type Doing<'a, T = ()> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The default of the client.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A confirmed release has deleted the keys of all nodes after this time.
const LEFT: Duration = Duration::from_millis(500);

/// Three nodes, each at its distance.
pub(crate) struct Place {
    pub(crate) name: &'static str,
    nodes: Arc<Nodes>,
    proxies: Vec<Proxy>,
    round_trips: [Duration; 3],
    tls: Option<Tls>,
    /// A client without distance and with time for a busy machine.
    near: Client,
}

impl Place {
    /// Servers for which all votes count at once.
    pub(crate) async fn new(
        name: &'static str,
        nodes: &Arc<Nodes>,
        tls: Option<Tls>,
        millis: [u64; 3],
    ) -> Self {
        let near = builder(nodes.urls(), tls.clone());
        init::fresh(&near).await.unwrap();
        let near = near.options(LockOptions::new().node_timeout(NODE_TIMEOUT)).build().unwrap();
        let round_trips = millis.map(Duration::from_millis);
        let mut proxies = Vec::new();
        for (node, round_trip) in nodes.iter().zip(round_trips) {
            let proxy = Proxy::start(node).await.unwrap();
            proxy.set_distance(Distance::of_round_trip(round_trip));
            proxies.push(proxy);
        }
        Self { name, nodes: nodes.clone(), proxies, round_trips, tls, near }
    }

    /// Nothing passes between clients at this distance and the node any more.
    pub(crate) fn cut_off(&self, node: usize) {
        for direction in [Direction::ToServer, Direction::ToClient] {
            self.proxies[node].set(direction, Traffic::Drop);
        }
    }
}

fn builder(urls: impl IntoIterator<Item = String>, tls: Option<Tls>) -> ClientBuilder {
    let nodes = urls.into_iter().enumerate().map(|(place, url)| format!("n{place}={url}"));
    let builder = Client::builder().nodes(nodes);
    tls.into_iter().fold(builder, ClientBuilder::tls)
}

/// The place and the key of one call. No other call uses the key.
pub(crate) struct Scene {
    place: Arc<Place>,
    key: String,
    runtime: Handle,
    /// The time at which the latest call began.
    began: Mutex<Instant>,
}

impl Scene {
    pub(crate) fn new(place: &Arc<Place>, key: String) -> Self {
        let began = Mutex::new(Instant::now());
        Self { place: place.clone(), key, runtime: Handle::current(), began }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// A key for an earlier call of the same client.
    pub(crate) fn earlier_key(&self) -> String {
        format!("{}, earlier", self.key)
    }

    /// A new client at this distance, with the library's own timeouts.
    pub(crate) fn builder(&self) -> ClientBuilder {
        let urls = self.place.proxies.iter().map(Proxy::url);
        builder(urls, self.place.tls.clone())
    }

    /// A new client of the first node alone.
    pub(crate) fn builder_of_one(&self) -> ClientBuilder {
        builder(self.place.proxies.first().map(Proxy::url), self.place.tls.clone())
    }

    /// Awaits a future outside the runtime.
    pub(crate) fn block_on<F: IntoFuture>(&self, future: F) -> F::Output {
        self.runtime.block_on(async { future.await })
    }

    pub(crate) fn near(&self) -> &Client {
        &self.place.near
    }

    pub(crate) fn nodes(&self) -> &[Server] {
        &self.place.nodes
    }

    pub(crate) fn round_trips(&self) -> [Duration; 3] {
        self.place.round_trips
    }

    /// The longest round trip.
    pub(crate) fn round_trip(&self) -> Duration {
        self.place.round_trips.into_iter().max().unwrap()
    }

    /// The shortest ttl for this distance, but long enough for a busy machine.
    pub(crate) fn shortest_ttl(&self) -> Duration {
        shortest_ttl(self.round_trip()).max(Duration::from_secs(4))
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.spawn(future)
    }

    /// The lease of a lock that a near process has detached.
    pub(crate) async fn lease(&self) -> Lease {
        let guard = self.near().acquire(self.key()).await.unwrap();
        guard.detach().await.unwrap()
    }

    /// Notes that a call begins.
    pub(crate) fn begin(&self) {
        *self.began.lock().unwrap() = Instant::now();
    }

    fn took(&self) -> Duration {
        self.began.lock().unwrap().elapsed()
    }

    /// A call takes at most the connect timeout and one node timeout.
    pub(crate) fn ends_in_time(&self) {
        let node_timeout = (ROUND_TRIPS_AWAITED * self.round_trip()).max(NODE_TIMEOUT);
        let took = self.took();
        assert!(took <= CONNECT_TIMEOUT + node_timeout, "{took:?}");
    }

    /// A lock that this call has acquired or extended is valid for its ttl, without drift and margin, from a time after
    /// the call began.
    pub(crate) fn holds(&self, ttl: Duration, remaining: Duration) {
        let least = (ttl * 96 / 100).saturating_sub(self.took());
        assert!((least..=ttl).contains(&remaining), "{remaining:?} of {ttl:?}");
    }

    pub(crate) async fn released(&self, released: &Released) {
        assert!(released.is_released(), "{released:?}");
        self.is_free().await;
    }

    /// Asserts that all servers delete the key within half a second.
    pub(crate) async fn is_free(&self) {
        let started = Instant::now();
        for node in self.nodes() {
            while run(node, &["EXISTS", self.key()]) != Reply::Int(0) {
                assert!(started.elapsed() <= LEFT, "a key is left: {:?}", started.elapsed());
                sleep(Duration::from_millis(5)).await;
            }
        }
    }
}
