//! No wake-up is lost: for every moment of the release and every order of pushes and replies, the waiting call gets
//! the lock long before the keys expire.
//!
//! The keys live longer than the call waits, and the ceiling for polling is higher still. So a lost wake-up makes the
//! acquire fail.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

mod common;

use std::time::Duration;

use common::resp::{Fate, Message, RespProxy, Seen};
use common::{PATIENCE, all_servers, all_up, client, eventually, get, run};
use quorlock::{AcquireError, Client, Delay, Guard, LockOptions, Retry, Waiting};
use quorlock_servers::{Nodes, ServerBinary, ServerOptions};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The ttl of the holder's keys, in milliseconds.
const TTL_MS: &str = "20000";

const WAIT: Duration = Duration::from_secs(5);

/// The largest number of attempts per node that events can cause: the first attempt, one for each push that arrives
/// alone, and one because the lock became free during the inspection. A polling client makes many more.
const ATTEMPTS_MAX: usize = 5;

/// The moment at which a node's key is deleted: `AfterSet` is between the waiting client's `SET` and its next command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    BeforeSet,
    AfterSet,
    AfterCaching,
    AfterGet,
    AfterPttl,
}

const MOMENTS: [Moment; 5] = [
    Moment::BeforeSet,
    Moment::AfterSet,
    Moment::AfterCaching,
    Moment::AfterGet,
    Moment::AfterPttl,
];

impl Moment {
    /// The event that shows that the moment has come.
    fn sign(self) -> Seen {
        match self {
            Self::BeforeSet => Seen::Sent("SET".to_owned()),
            Self::AfterSet => Seen::Executed("SET".to_owned()),
            Self::AfterCaching => Seen::Executed("CLIENT|CACHING".to_owned()),
            Self::AfterGet => Seen::Executed("GET".to_owned()),
            Self::AfterPttl => Seen::Executed("PTTL".to_owned()),
        }
    }

    /// The command that must not be executed before the key is deleted.
    fn next(self) -> &'static str {
        match self {
            Self::BeforeSet => "SET",
            Self::AfterSet => "CLIENT|CACHING",
            Self::AfterCaching => "GET",
            Self::AfterGet => "PTTL",
            Self::AfterPttl => "",
        }
    }

    /// Whether the server has already been asked to push changes of the key.
    fn is_watched(self) -> bool {
        matches!(self, Self::AfterGet | Self::AfterPttl)
    }
}

/// The order in which a node's messages reach the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    AsItComes,
    /// The push arrives before the reply to the command that asked for it, and before all later replies.
    PushFirst,
    /// The push arrives between the replies to `GET` and `PTTL`, and is read together with them.
    PushBetween,
    /// The push arrives after all replies, when the client waits.
    PushLast,
    NoPush,
    /// The reply to `SET` arrives after the other nodes have decided the attempt.
    LateVote,
}

const ORDERS: [Delivery; 4] =
    [Delivery::AsItComes, Delivery::PushFirst, Delivery::PushBetween, Delivery::PushLast];

const RELEASED: &str = "released";
const WAITING: &str = "waiting";

fn reply(name: &str) -> Message {
    Message::Reply(name.to_owned())
}

/// The proxy's rule for a node whose key is deleted at this moment.
fn rule(
    key: &str,
    moment: Moment,
    delivery: Delivery,
) -> impl Fn(&Message, &[Seen]) -> Fate + Send + 'static {
    let (push, told) = (Message::Push(key.to_owned()), Seen::Told(key.to_owned()));
    let answered = Seen::Answered("GET".to_owned());
    let held = Message::Command(moment.next().to_owned());
    let is_pushed = moment.is_watched();
    move |message, seen| {
        let hold_until = |what: &Seen| if seen.contains(what) { Fate::Pass } else { Fate::Hold };
        if *message == held {
            return hold_until(&Seen::Noted(RELEASED));
        }
        match delivery {
            Delivery::PushFirst if is_pushed && *message == reply("CLIENT|CACHING") => {
                hold_until(&told)
            }
            Delivery::PushFirst if *message == push => Fate::PassAlone,
            Delivery::PushBetween if *message == push => hold_until(&answered),
            Delivery::PushBetween if is_pushed && *message == reply("PTTL") => hold_until(&told),
            Delivery::PushLast if *message == push => hold_until(&Seen::Noted(WAITING)),
            Delivery::LateVote if *message == reply("SET") => hold_until(&Seen::Noted(WAITING)),
            Delivery::NoPush if *message == push => Fate::Drop,
            _ => Fate::Pass,
        }
    }
}

/// The receiver of a report each time that the call begins to wait.
type Sleep = mpsc::Receiver<Waiting>;

type Acquiring = JoinHandle<Result<Guard, AcquireError>>;

/// A client behind proxies. It does not poll during a test as long as it receives pushes.
struct Setting {
    nodes: Nodes,
    proxies: Vec<RespProxy>,
    waiter: Client,
    scenarios: usize,
}

impl Setting {
    async fn start(nodes: Nodes) -> Self {
        let mut proxies = Vec::new();
        for node in &nodes {
            proxies.push(RespProxy::start(node).await);
        }
        let never = Delay::Adaptive { ceiling: Duration::from_secs(60) };
        let waiter = common::unguarded()
            .nodes(proxies.iter().map(RespProxy::url))
            .options(
                LockOptions::new()
                    .ttl(Duration::from_secs(20))
                    .node_timeout(Duration::from_secs(4))
                    .retry(Retry { delay: never, attempts_max: None })
                    .wait(WAIT),
            )
            .connect_timeout(Duration::from_secs(10))
            .build()
            .unwrap();
        all_up(&waiter).await;
        Self { nodes, proxies, waiter, scenarios: 0 }
    }

    fn fresh_key(&mut self) -> String {
        self.scenarios += 1;
        format!("orders:{}", self.scenarios)
    }

    /// Takes the lock on every node, as a client of another library does.
    fn is_taken(&self, key: &str, ttl_ms: &str) {
        for node in self.nodes.iter() {
            run(node, &["SET", key, "uuid-of-another-library", "NX", "PX", ttl_ms]);
        }
    }

    /// Starts a call. The receiver reports each time that the call begins to wait.
    fn wait_for(&self, key: &str) -> (Acquiring, Sleep) {
        let (progress, asleep) = mpsc::channel(64);
        let acquire = self.waiter.acquire(key).progress(progress);
        (tokio::spawn(acquire.into_future()), asleep)
    }

    /// Deletes the key on every node at the node's moment, and delivers the node's messages in the given order. The
    /// waiting call must get the lock.
    async fn deleted(&mut self, moments: &[Moment], deliveries: &[Delivery]) {
        let key = self.fresh_key();
        let scenario = format!("{key}: {moments:?} {deliveries:?}");
        self.is_taken(&key, TTL_MS);
        let ways = moments.iter().zip(deliveries);
        for (proxy, (moment, delivery)) in self.proxies.iter().zip(ways) {
            proxy.rule(rule(&key, *moment, *delivery));
        }
        let (acquiring, asleep) = self.wait_for(&key);
        let releasing = self.delete_at(&key, moments.iter().copied());
        let guard = self.got(acquiring, asleep, releasing, &scenario).await;
        self.give_back(guard, &key).await;
    }

    /// Deletes the key on the first nodes, each at its moment. Never returns, because a moment may never come: the
    /// client may not need that node.
    async fn delete_at(&self, key: &str, moments: impl IntoIterator<Item = Moment>) {
        let at_each = self.proxies.iter().zip(self.nodes.iter()).zip(moments);
        let deletions = at_each.map(async |((proxy, node), moment)| {
            proxy.until(&moment.sign()).await;
            run(node, &["DEL", key]);
            proxy.note(Seen::Noted(RELEASED));
        });
        futures_util::future::join_all(deletions).await;
        std::future::pending::<()>().await
    }

    /// Like `deleted`, but `release` frees the lock on all nodes at once. It runs when a quorum of proxies has seen the
    /// event that marks `moment`.
    async fn released(
        &mut self,
        key: &str,
        (moment, delivery): (Moment, Delivery),
        release: impl Future<Output = ()>,
    ) {
        let scenario = format!("{key}: {moment:?} {delivery:?}");
        self.proxies.iter().for_each(|proxy| proxy.rule(rule(key, moment, delivery)));
        let (acquiring, asleep) = self.wait_for(key);
        let releasing = async {
            let sign = moment.sign();
            let quorum = self.proxies.len() / 2 + 1;
            let is_at = |proxy: &&RespProxy| proxy.count(&sign) > 0;
            eventually("a quorum has come so far", || {
                self.proxies.iter().filter(is_at).count() >= quorum
            })
            .await;
            release.await;
            self.proxies.iter().for_each(|proxy| proxy.note(Seen::Noted(RELEASED)));
            std::future::pending::<()>().await
        };
        let guard = self.got(acquiring, asleep, releasing, &scenario).await;
        self.give_back(guard, key).await;
    }

    /// Runs `event` until the call has the lock. Asserts that the call made few attempts, and returns the guard.
    async fn got(
        &self,
        mut acquiring: Acquiring,
        mut asleep: Sleep,
        event: impl Future<Output = ()>,
        scenario: &str,
    ) -> Guard {
        let noting = async {
            let _ = asleep.recv().await;
            self.proxies.iter().for_each(|proxy| proxy.note(Seen::Noted(WAITING)));
            std::future::pending::<()>().await
        };
        let got = tokio::select! {
            got = &mut acquiring => got.unwrap(),
            () = event => unreachable!("this future never completes"),
            () = noting => unreachable!("this future never completes"),
        };
        let story = || self.proxies.iter().map(|proxy| format!("\n{:?}", proxy.seen()));
        let guard = got.unwrap_or_else(|error| {
            panic!("{scenario}: {error}{}", story().collect::<String>());
        });
        for proxy in &self.proxies {
            let attempts = proxy.count(&Seen::Sent("SET".to_owned()));
            let story = || story().collect::<String>();
            assert!(attempts <= ATTEMPTS_MAX, "{scenario}: {attempts} attempts{}", story());
        }
        guard
    }

    /// Lets all messages pass, and releases the lock everywhere.
    async fn give_back(&self, guard: Guard, key: &str) {
        self.proxies.iter().for_each(|proxy| proxy.rule(|_, _| Fate::Pass));
        assert!(guard.release().await.is_released());
        // When the client has no release left to send, no message of this scenario is in flight. So the rules of the
        // next scenario apply only to messages of that scenario.
        let started = Instant::now();
        while self.waiter.stats().releases_owed > 0 {
            assert!(started.elapsed() < PATIENCE, "something was not released");
            sleep(Duration::from_millis(1)).await;
        }
        // The other library's key may still exist on nodes that the client did not need.
        for node in self.nodes.iter() {
            run(node, &["DEL", key]);
        }
    }
}

fn start(binary: &ServerBinary, count: usize) -> Nodes {
    Nodes::start(binary, count, ServerOptions::default()).unwrap()
}

#[tokio::test]
async fn a_deleted_key_on_one_node_wakes_at_every_moment() {
    for binary in all_servers() {
        let mut setting = Setting::start(start(&binary, 1)).await;
        for moment in MOMENTS {
            for order in ORDERS {
                setting.deleted(&[moment], &[order]).await;
            }
        }
    }
}

/// Every combination of moments on three nodes. Combinations that differ only in their order are tested once.
#[tokio::test]
async fn deleted_keys_on_three_nodes_wake_at_every_moment() {
    for binary in all_servers() {
        let mut setting = Setting::start(start(&binary, 3)).await;
        for (place, first) in MOMENTS.into_iter().enumerate() {
            for (next, second) in MOMENTS.into_iter().enumerate().skip(place) {
                for third in MOMENTS.into_iter().skip(next) {
                    let moments = [first, second, third];
                    for order in ORDERS {
                        setting.deleted(&moments, &[order; 3]).await;
                    }
                    for place in 0..3 {
                        let mut deliveries = [Delivery::AsItComes; 3];
                        deliveries[place] = Delivery::NoPush;
                        setting.deleted(&moments, &deliveries).await;
                    }
                }
            }
        }
    }
}

/// Every combination of orders on three nodes. The keys are deleted after the client has asked for pushes, because
/// before that a node pushes nothing.
#[tokio::test]
async fn no_order_of_pushes_and_replies_loses_a_wake_up() {
    for binary in all_servers() {
        let mut setting = Setting::start(start(&binary, 3)).await;
        for moment in [Moment::AfterGet, Moment::AfterPttl] {
            for first in ORDERS {
                for second in ORDERS {
                    for third in [&ORDERS[..], &[Delivery::NoPush, Delivery::LateVote]].concat() {
                        // The client does not inspect a node whose vote comes late, so the moments of an inspection do
                        // not come there. The test deletes the key right after `SET` instead.
                        let late = third == Delivery::LateVote;
                        let last = if late { Moment::AfterSet } else { moment };
                        setting.deleted(&[moment, moment, last], &[first, second, third]).await;
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn a_second_clients_release_wakes_at_every_moment() {
    for binary in all_servers() {
        for count in [1, 3] {
            let nodes = start(&binary, count);
            let holder = client(&nodes);
            let mut setting = Setting::start(nodes).await;
            for moment in MOMENTS {
                for order in ORDERS {
                    let key = setting.fresh_key();
                    let guard = holder
                        .acquire(&key)
                        .options(LockOptions::new().ttl(Duration::from_secs(20)))
                        .await
                        .unwrap();
                    eventually("all nodes have given their votes", || guard.votes() == count).await;
                    let release = async { assert!(guard.release().await.is_released()) };
                    setting.released(&key, (moment, order), release).await;
                }
            }
        }
    }
}

/// A waiting call is woken, and another client is faster. The call must be woken again, even if that client releases
/// the lock in between.
#[tokio::test]
async fn a_waiter_that_was_outrun_is_woken_again_at_every_moment() {
    for binary in all_servers() {
        let mut setting = Setting::start(start(&binary, 3)).await;
        for moment in MOMENTS {
            for order in ORDERS {
                let key = setting.fresh_key();
                setting.is_taken(&key, TTL_MS);
                // All messages pass until the call waits. Its next attempt is held back until another client has
                // taken the lock.
                for proxy in &setting.proxies {
                    proxy.rule(|message, seen| {
                        let set = *message == Message::Command("SET".to_owned());
                        let first = !seen.contains(&Seen::Executed("SET".to_owned()));
                        if set && !first { Fate::Hold } else { Fate::Pass }
                    });
                }
                let (acquiring, mut asleep) = setting.wait_for(&key);
                asleep.recv().await.unwrap();
                for node in setting.nodes.iter() {
                    run(node, &["DEL", &key]);
                    run(node, &["SET", &key, "faster", "NX", "PX", TTL_MS]);
                }
                let sets = |proxy: &RespProxy| proxy.count(&Seen::Sent("SET".to_owned()));
                eventually("it tries again", || setting.proxies.iter().all(|p| sets(p) > 1)).await;
                // From here on, `moment` and `order` refer to the second attempt.
                for proxy in &setting.proxies {
                    proxy.rule(rule(&key, moment, order));
                    proxy.note(Seen::Sent("SET".to_owned()));
                }
                let scenario = format!("{key}: outrun, {moment:?} {order:?}");
                let releasing = setting.delete_at(&key, [moment; 3]);
                let guard = setting.got(acquiring, asleep, releasing, &scenario).await;
                setting.give_back(guard, &key).await;
            }
        }
    }
}

/// Two of five nodes are frozen. The other three must wake the call.
#[tokio::test]
async fn with_a_frozen_minority_no_wake_up_is_lost() {
    for binary in all_servers() {
        let mut setting = Setting::start(start(&binary, 5)).await;
        setting.nodes[3..].iter().for_each(|node| node.pause().unwrap());
        for moment in MOMENTS {
            for order in ORDERS {
                setting.deleted_on_three(moment, order).await;
            }
        }
        setting.nodes[3..].iter().for_each(|node| node.resume().unwrap());
    }
}

impl Setting {
    async fn deleted_on_three(&mut self, moment: Moment, delivery: Delivery) {
        let key = self.fresh_key();
        let scenario = format!("{key}: two frozen, {moment:?} {delivery:?}");
        for node in &self.nodes[..3] {
            run(node, &["SET", &key, "uuid-of-another-library", "NX", "PX", TTL_MS]);
        }
        self.proxies.iter().for_each(|proxy| proxy.rule(rule(&key, moment, delivery)));
        let (acquiring, asleep) = self.wait_for(&key);
        let releasing = self.delete_at(&key, [moment; 3]);
        let guard = self.got(acquiring, asleep, releasing, &scenario).await;
        assert_eq!(guard.votes(), 3);
        self.proxies.iter().for_each(|proxy| proxy.rule(|_, _| Fate::Pass));
        assert!(guard.release().await.is_released());
    }
}

/// The control experiment: without pushes, the call waits until the keys expire.
#[tokio::test]
async fn without_pushes_a_release_is_noticed_only_when_the_keys_would_expire() {
    for binary in all_servers() {
        for count in [1, 3] {
            let mut held = Duration::from_millis(700);
            while !sleeps_until_the_keys_expire(&binary, count, held).await {
                held *= 2;
                assert!(held < PATIENCE, "this machine is too slow to test anything");
            }
        }
    }
}

/// The keys expire after `held`. Returns whether the call began to wait before that.
async fn sleeps_until_the_keys_expire(binary: &ServerBinary, count: usize, held: Duration) -> bool {
    let mut setting = Setting::start(start(binary, count)).await;
    let key = setting.fresh_key();
    let rules = setting.proxies.iter();
    rules.for_each(|proxy| proxy.rule(rule(&key, Moment::AfterPttl, Delivery::NoPush)));
    let taken_at = Instant::now();
    setting.is_taken(&key, &held.as_millis().to_string());
    let (acquiring, mut asleep) = setting.wait_for(&key);
    // On a slow machine the keys may expire before the call begins. Then the call does not wait.
    let slept = asleep.recv().await.is_some();
    if !slept || taken_at.elapsed() >= held {
        acquiring.abort();
        return false;
    }
    for node in setting.nodes.iter() {
        run(node, &["DEL", &key]);
    }
    let guard = acquiring.await.unwrap().unwrap();
    let after = taken_at.elapsed();
    // Servers and clients round to whole milliseconds, so the grant may come slightly early.
    assert!(after + Duration::from_millis(5) >= held && after < held + PATIENCE, "{after:?}");
    let pushed = |proxy: &&RespProxy| proxy.count(&Seen::Pushed(key.clone())) == 1;
    let quorum = count / 2 + 1;
    assert!(setting.proxies.iter().filter(pushed).count() >= quorum, "a push was dropped");
    assert_eq!(get(&setting.nodes[0], &key), Some(guard.token().to_string()));
    setting.give_back(guard, &key).await;
    true
}
