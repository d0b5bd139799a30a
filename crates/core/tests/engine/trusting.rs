//! Nodes that are not to be trusted: started a moment ago, without their marker, marked for others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::engine::Wait;
use quorlock_core::marker::{Adoption, Cluster, Marker};
use quorlock_core::{
    Answer, Command, Effect, Engine, Event, Failure, FailureKind, LockId, MarkerSeen, NodeId,
    NodeSaid, NodeSet, Proof, Quorum, Reading, RefusalKind, RestartGuard, Rules, Standing, Ticket,
    Token, Words,
};

use quorlock_sim::scripted::story::request;

const SECOND: i64 = 1_000_000_000;
const MAX_TTL: u64 = 10_000;
/// A bit more than the longest ttl.
const QUARANTINE: i64 = 12_100_000_000;

fn at(ns: i64) -> Reading {
    Reading::new(ns, 1_700_000_000 * SECOND + ns)
}

/// A server, as far as this is about it.
#[derive(Clone, Debug)]
struct Server {
    run: u32,
    started: i64,
    epoch: u64,
    greeted: u64,
    /// How often it has said on its connection that its data are others.
    flushes: u64,
    marker: Option<String>,
    adoption: Option<(String, i64)>,
    keys: BTreeMap<String, (i64, quorlock_core::Value)>,
    role: &'static str,
    promoted: i64,
    policy: &'static str,
    same_as: Option<u32>,
    /// What it answers to `INFO` instead.
    no_info: Option<&'static str>,
    /// By so much its wall clock has jumped since the adoption was begun.
    jumped: i64,
}

impl Server {
    fn new(run: u32, started: i64) -> Self {
        Self {
            run,
            started,
            epoch: 1,
            greeted: 0,
            flushes: 0,
            marker: None,
            adoption: None,
            keys: BTreeMap::new(),
            role: "master",
            promoted: -1,
            policy: "noeviction",
            same_as: None,
            no_info: None,
            jumped: 0,
        }
    }

    fn restart(&mut self, keeps_data: bool, now: i64) {
        self.run += 100;
        self.started = now;
        self.epoch += 1;
        self.flushes = 0;
        self.promoted = -1;
        if !keeps_data {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.marker = None;
        self.adoption = None;
        self.keys.clear();
    }

    fn run_id(&self) -> String {
        format!("run{}", self.same_as.unwrap_or(self.run))
    }

    fn info(&self, now: i64) -> String {
        let uptime = (now - self.started).div_euclid(SECOND);
        let time_us = at(now).real_ns() / 1000;
        let id2 = if self.promoted >= 0 { "9a" } else { "00" };
        format!(
            "redis_mode:standalone\nrun_id:{}\nserver_time_usec:{time_us}\n\
             uptime_in_seconds:{uptime}\nrole:{}\nmaster_replid2:{id2}\nsecond_repl_offset:{}\n\
             maxmemory:1\nmaxmemory_policy:{}\nloading:0\naof_enabled:0\n",
            self.run_id(),
            self.role,
            self.promoted,
            self.policy
        )
    }

    fn execute(&mut self, command: &Command, now: i64) -> Answer {
        match command {
            Command::Acquire { key, value, ttl_ms } => {
                let until = now + *ttl_ms as i64 * 1_000_000;
                match self.keys.get(&**key) {
                    Some((end, _)) if *end >= now => Answer::Refused,
                    _ => {
                        self.keys.insert(key.to_string(), (until, value.clone()));
                        Answer::Granted
                    }
                }
            }
            Command::Extend { key, value, ttl_ms } => match self.keys.get_mut(&**key) {
                Some((end, held)) if *end >= now && held == value => {
                    *end = now + *ttl_ms as i64 * 1_000_000;
                    Answer::Extended
                }
                Some((end, _)) if *end >= now => Answer::Other,
                _ => Answer::Absent,
            },
            Command::Release { key, value, .. } => match self.keys.get(&**key) {
                Some((end, held)) if *end >= now && held == value => {
                    self.keys.remove(&**key);
                    Answer::Deleted
                }
                Some((end, _)) if *end >= now => Answer::Other,
                _ => Answer::Absent,
            },
            Command::Greet => Answer::Greeted,
            Command::Inspect { key } | Command::Watch { key } => {
                Answer::Seen(match self.keys.get(&**key) {
                    Some((end, _)) if *end >= now => quorlock_core::Holding::Held {
                        value: b"x".to_vec(),
                        ttl: Some(Duration::from_nanos((*end - now) as u64)),
                    },
                    _ => quorlock_core::Holding::Free,
                })
            }
            Command::Adopt { text, replaces, seen, .. } => {
                if self.marker.as_deref() != seen.as_deref() {
                    return Answer::NotMarked;
                }
                self.marker = None;
                let stale = |(old, _): &(String, i64)| Some(&**old) == replaces.as_deref();
                if self.adoption.as_ref().is_none_or(stale) {
                    self.adoption = Some((format!("{text} since={now}"), now));
                }
                let (text, since) = self.adoption.clone().expect("written just now");
                let age = Duration::from_nanos((now - since + self.jumped) as u64);
                Answer::Adopting { text: text.into(), age }
            }
            Command::Mark { text, replaces, adoption, .. } => {
                let is_old_enough = adoption.as_ref().is_none_or(|wanted| {
                    self.adoption.as_ref().is_some_and(|(text, since)| {
                        **text == *wanted.text
                            && now - since + self.jumped >= wanted.age_ms as i64 * 1_000_000
                    })
                });
                if self.marker.as_deref() != replaces.as_deref() || !is_old_enough {
                    return Answer::NotMarked;
                }
                self.marker = Some(text.to_string());
                self.adoption = None;
                Answer::Marked
            }
            other => panic!("not used here: {other:?}"),
        }
    }
}

/// One client and its nodes; what it sends is answered at once.
struct Scene {
    engine: Engine,
    servers: Vec<Server>,
    now: i64,
    /// What happened and is of interest to callers.
    told: Vec<Effect>,
    sent: Vec<(usize, Command)>,
    draws: u8,
    /// So many nodes do not answer.
    mute: NodeSet,
    /// Nobody listens where these were.
    dead: NodeSet,
    /// An answer takes so long.
    late: i64,
    /// For so long the client stands still when nodes have next said what they are, before it hears that.
    stands_still: i64,
    /// What is asked about adoptions is not answered before [`Scene::hear_of_adoption`].
    slow_to_adopt: bool,
    kept_back: Vec<(usize, Vec<(Ticket, Command)>)>,
}

fn names() -> Vec<Arc<str>> {
    ["a", "b", "c"].map(Arc::from).into()
}

fn cluster() -> Cluster {
    Cluster::new(names(), 2, MAX_TTL)
}

fn rules(guard: RestartGuard) -> Rules {
    let (marker, adoption) = ("quorlock:node".into(), "quorlock:adopt".into());
    let lasting = NodeSet::default();
    let words = Words::default();
    Rules { guard, cluster: cluster(), names: names(), marker, adoption, lasting, words }
}

/// An engine for three nodes that are a millisecond away.
fn engine(rules: Rules) -> Engine {
    let quorum = Quorum::majority(3).expect("three nodes have one");
    Engine::guarded(quorum, rules).with_fixed_round_trip(Duration::from_millis(1))
}

impl Scene {
    fn with(rules: Rules) -> Self {
        let engine = engine(rules);
        // They have been running for a while.
        let servers = (0..3).map(|run| Server::new(run, -100 * SECOND)).collect();
        let (told, sent) = (Vec::new(), Vec::new());
        Self {
            engine,
            servers,
            now: 0,
            told,
            sent,
            draws: 0,
            mute: NodeSet::default(),
            dead: NodeSet::default(),
            late: 0,
            stands_still: 0,
            slow_to_adopt: false,
            kept_back: Vec::new(),
        }
    }

    /// Strict, and the nodes have been marked.
    fn settled() -> Self {
        let mut scene = Self::with(rules(RestartGuard::Strict));
        for server in &mut scene.servers {
            let run_id = server.run_id().into();
            let marker = Marker { cluster: cluster(), run_id, promoted_at: -1, floor: 0 };
            server.marker = Some(marker.to_string());
        }
        scene
    }

    fn tell(&mut self, event: Event) {
        let mut events = vec![event];
        while !events.is_empty() {
            let mut out = Vec::new();
            let draws = &mut self.draws;
            let mut entropy = |_| {
                *draws += 1;
                (Token::new([*draws; 20]), 0)
            };
            for event in events.drain(..) {
                self.engine.handle(event, at(self.now), &mut entropy, &mut out);
            }
            let mut orders: BTreeMap<usize, Vec<(Ticket, Command)>> = BTreeMap::new();
            for effect in out {
                match effect {
                    Effect::Send { nodes, ticket, command } => {
                        for node in nodes.iter() {
                            let order = (ticket, command.clone());
                            orders.entry(node.index()).or_default().push(order);
                        }
                    }
                    other => self.told.push(other),
                }
            }
            let greets = orders.values().flatten().any(|(_, order)| *order == Command::Greet);
            for (node, orders) in orders {
                let adopts =
                    |(_, command): &(Ticket, Command)| matches!(command, Command::Adopt { .. });
                if self.dead.contains(NodeId::new(node)) {
                    let failed = || Answer::Failed(Failure::unsent(FailureKind::Unreachable));
                    let answers = orders.iter().map(|(ticket, _)| (*ticket, failed())).collect();
                    let (node, sent, proof) = (NodeId::new(node), at(self.now), Proof::Vouched);
                    events.insert(0, Event::Answered { node, sent, proof, answers });
                } else if self.slow_to_adopt && orders.iter().any(adopts) {
                    self.kept_back.push((node, orders));
                } else if !self.mute.contains(NodeId::new(node)) {
                    events.push(self.serve(node, orders));
                }
            }
            if greets {
                self.now += std::mem::take(&mut self.stands_still);
            }
        }
    }

    fn serve(&mut self, node: usize, orders: Vec<(Ticket, Command)>) -> Event {
        let sent = at(self.now);
        self.now += self.late;
        let (now, server) = (self.now, &mut self.servers[node]);
        let is_new = server.greeted != server.epoch;
        let greets = is_new || orders.iter().any(|(_, command)| *command == Command::Greet);
        server.greeted = server.epoch;
        let info = greets.then(|| match server.no_info {
            None => Ok(server.info(now).into()),
            Some(why) => Err(Failure::new(FailureKind::Rejected).with_detail(why)),
        });
        let votes = orders.iter().any(|(_, command)| command.is_about_votes());
        let mut answers = Vec::new();
        for (ticket, command) in orders {
            answers.push((ticket, server.execute(&command, now)));
            self.sent.push((node, command));
        }
        let marker = match &server.marker {
            _ if !votes && !greets => MarkerSeen::NotAsked,
            None => MarkerSeen::Missing,
            Some(text) => MarkerSeen::Text(text.as_str().into()),
        };
        let proof = Proof::Seen { epoch: server.epoch, flushes: server.flushes, info, marker };
        Event::Answered { node: NodeId::new(node), sent, proof, answers }
    }

    /// Time passes, and what becomes due in it happens.
    fn pass(&mut self, time: i64) {
        let end = self.now + time;
        while let Some(due) = self.engine.deadline().filter(|due| due.as_nanos() <= end) {
            self.now = self.now.max(due.as_nanos());
            self.tell(Event::Wake);
        }
        self.now = end;
        self.tell(Event::Wake);
    }

    fn hear_of_adoption(&mut self) {
        self.slow_to_adopt = false;
        for (node, orders) in std::mem::take(&mut self.kept_back) {
            let event = self.serve(node, orders);
            self.tell(event);
        }
    }

    fn acquire(&mut self, lock: u64, wait: Wait) {
        let request = quorlock_core::Request { wait, automatic: false, ..request("orders") };
        self.tell(Event::Acquire { lock: LockId(lock), request });
        if wait == Wait::Once {
            // As the driver does at the end of every turn.
            self.tell(Event::Wake);
        }
    }

    /// The outcome of a call: acquired, or why not.
    fn outcome(&self, lock: u64) -> Option<Result<(), &quorlock_core::Refusal>> {
        self.told.iter().find_map(|effect| match effect {
            Effect::Acquired { lock: LockId(it), .. } if *it == lock => Some(Ok(())),
            Effect::NotAcquired { lock: LockId(it), refusal } if *it == lock => Some(Err(refusal)),
            _ => None,
        })
    }

    fn refusal(&self, lock: u64) -> &quorlock_core::Refusal {
        self.outcome(lock).expect("the call has ended").expect_err("without the lock")
    }

    fn failures(&self, lock: u64) -> Vec<FailureKind> {
        let kind = |story: &quorlock_core::NodeStory| match &story.said {
            NodeSaid::Failed(failure) => Some(failure.kind()),
            _ => None,
        };
        self.refusal(lock).nodes.iter().filter_map(kind).collect()
    }

    fn trusted(&self) -> usize {
        let is_trusted = |node| self.engine.standing(NodeId::new(node)) == Some(&Standing::Trusted);
        (0..3).filter(|node| is_trusted(*node)).count()
    }

    fn asked_for_votes(&self, node: usize) -> usize {
        let votes = |(to, command): &&(usize, Command)| {
            *to == node && matches!(command, Command::Acquire { .. })
        };
        self.sent.iter().filter(votes).count()
    }
}

#[test]
fn nodes_that_are_marked_vote_in_the_first_round_trip() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.outcome(1), Some(Ok(())));
    assert!(scene.sent.iter().all(|(_, command)| matches!(command, Command::Acquire { .. })));
    assert_eq!((scene.now, scene.trusted()), (0, 3));
}

#[test]
fn fresh_nodes_wait_once_and_who_waits_is_told_for_how_long() {
    let mut scene = Scene::with(rules(RestartGuard::Strict));
    scene.acquire(1, Wait::Once);
    let refusal = scene.refusal(1);
    assert_eq!(refusal.kind, RefusalKind::Unsafe);
    assert_eq!(refusal.retry_after, Some(Duration::from_nanos(QUARANTINE as u64)));
    // Two of three settle it; that the third is taken into use as well is waited for.
    assert_eq!(scene.failures(1), [FailureKind::Quarantined; 3]);
    assert!(scene.servers.iter().all(|server| server.adoption.is_some()));
    let NodeSaid::Failed(failure) = &refusal.nodes[0].said else { unreachable!() };
    let text = failure.to_string();
    assert_eq!(text, "quarantined: is new, or has lost its data, its votes count in 13 s");
    assert!(scene.servers.iter().all(|server| server.keys.is_empty()), "votes are given back");

    // Whose wait is too short fails at once, and asks nobody.
    let asked = scene.asked_for_votes(0);
    scene.acquire(2, Wait::For(Duration::from_secs(12)));
    assert_eq!(scene.refusal(2).kind, RefusalKind::Unsafe);
    assert_eq!(scene.asked_for_votes(0), asked);

    // Who waits long enough gets it, as soon as may be and no sooner.
    scene.acquire(3, Wait::For(Duration::from_secs(20)));
    assert!(scene.told.iter().any(|effect| matches!(effect, Effect::Waiting { .. })));
    scene.pass(QUARANTINE - 1_000_000);
    assert_eq!((scene.outcome(3), scene.trusted()), (None, 0));
    assert_eq!(scene.asked_for_votes(0), asked, "nothing is asked of a node in quarantine");
    scene.pass(1_100_000_000);
    assert_eq!((scene.outcome(3), scene.trusted()), (Some(Ok(())), 3));
    let marker = Marker::parse(scene.servers[0].marker.as_ref().unwrap()).unwrap();
    let two_hours_on = at(scene.now).real_ns() / 1000 + 7_200_000_000;
    assert!(marker.floor.abs_diff(two_hours_on as u64) < 10_000_000, "{}", marker.floor);
    assert_eq!(scene.servers[0].adoption, None);

    // Another client, later, finds all in order.
    let mut other = Scene::with(rules(RestartGuard::Strict));
    (other.servers, other.now) = (scene.servers.clone(), scene.now);
    other
        .servers
        .iter_mut()
        .for_each(|server| (server.greeted, server.keys) = (0, BTreeMap::new()));
    other.acquire(1, Wait::Once);
    assert_eq!(other.outcome(1), Some(Ok(())));
}

#[test]
fn short_lived_clients_wait_together() {
    let mut servers = Scene::with(rules(RestartGuard::Strict)).servers;
    for second in 0..=13 {
        let mut scene = Scene::with(rules(RestartGuard::Strict));
        (scene.servers, scene.now) = (servers, second * SECOND);
        scene.servers.iter_mut().for_each(|server| server.greeted = 0);
        scene.acquire(1, Wait::Once);
        scene.pass(1000);
        // The first that comes when the wait is over finishes it, and has its lock.
        let has_it = scene.outcome(1).is_some_and(|outcome| outcome.is_ok());
        assert_eq!(has_it, second > 12, "second {second}");
        assert_eq!(scene.trusted() == 3, second > 12, "second {second}");
        servers = scene.servers;
    }
}

/// The same where one node is dead: nothing else is missing when the wait is over, and the first call has its lock.
#[test]
fn short_lived_clients_wait_together_although_a_node_is_dead() {
    for dead in 0..3 {
        let mut servers = Scene::with(rules(RestartGuard::Strict)).servers;
        for second in 0..=13 {
            let mut scene = Scene::with(rules(RestartGuard::Strict));
            (scene.servers, scene.now) = (servers, second * SECOND);
            scene.servers.iter_mut().for_each(|server| server.greeted = 0);
            scene.dead = NodeSet::only(NodeId::new(dead));
            scene.acquire(1, Wait::Once);
            scene.pass(1000);
            let has_it = scene.outcome(1).is_some_and(|outcome| outcome.is_ok());
            assert_eq!(has_it, second > 12, "second {second}, node {dead} is dead");
            if !has_it {
                // It is told for how long, by the clock that counts.
                let refusal = scene.refusal(1);
                assert_eq!(refusal.kind, RefusalKind::Unsafe, "second {second}");
                assert!(refusal.retry_after.is_some_and(|time| !time.is_zero()));
            }
            servers = scene.servers;
        }
    }
}

/// A client that is shut down while a node is being taken into use lets that finish, for a moment.
#[test]
fn who_is_shut_down_lets_an_adoption_finish() {
    for answers in [true, false] {
        let mut scene = Scene::settled();
        scene.servers[2].restart(false, 0);
        scene.acquire(1, Wait::Once);
        assert_eq!(scene.outcome(1), Some(Ok(())));
        // It is adopted, and is 13 s old when the next one comes; which hears of it behind its lock.
        assert!(scene.servers[2].adoption.is_some());
        let mut next = Scene::with(rules(RestartGuard::Strict));
        (next.servers, next.now) = (scene.servers, 13 * SECOND);
        next.servers.iter_mut().for_each(|server| server.greeted = 0);
        next.slow_to_adopt = true;
        next.acquire(1, Wait::Once);
        next.tell(Event::Release { lock: LockId(1), report: false });
        next.tell(Event::Close);
        let is_drained = |scene: &Scene| scene.told.contains(&Effect::Drained);
        assert!(!is_drained(&next), "the adoption has been asked for");
        if answers {
            next.hear_of_adoption();
            assert!(next.servers[2].marker.is_some(), "and the node is marked");
        } else {
            next.pass(SECOND / 4);
        }
        assert!(is_drained(&next));
    }
}

#[test]
fn a_majority_that_comes_back_without_data_does_not_vote_for_a_rival() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.now = SECOND / 10;
    scene.servers[0].restart(false, scene.now);
    scene.servers[1].restart(false, scene.now);

    let mut rival = Scene::with(rules(RestartGuard::Strict));
    (rival.servers, rival.now) = (scene.servers.clone(), scene.now);
    rival.servers.iter_mut().for_each(|server| server.greeted = 0);
    rival.acquire(1, Wait::Once);
    assert_eq!(rival.refusal(1).kind, RefusalKind::Unsafe);

    // With the guard off it has both.
    let mut rival = Scene::with(rules(RestartGuard::Off));
    rival.servers = scene.servers.clone();
    rival.acquire(1, Wait::Once);
    assert_eq!(rival.outcome(1), Some(Ok(())));

    // The holder keeps what it has, and what such a node says changes nothing.
    scene.tell(Event::Extend { lock: LockId(1) });
    assert!(!scene.told.iter().any(|effect| matches!(effect, Effect::Lost { .. })));
    scene.pass(9 * SECOND);
    assert!(scene.told.iter().any(|effect| matches!(effect, Effect::Lost { .. })));
}

#[test]
fn a_node_that_comes_back_with_its_data_waits_by_its_uptime_alone() {
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.restart(true, 0);
    }
    scene.now = 4 * SECOND;
    scene.acquire(1, Wait::For(Duration::from_secs(10)));
    let waiting = scene.told.iter().find_map(|effect| match effect {
        Effect::Waiting { story, .. } => Some(story.clone()),
        _ => None,
    });
    let NodeSaid::Failed(failure) = &waiting.unwrap().nodes[0].said else { panic!() };
    assert_eq!(failure.to_string(), "quarantined: started 4 s ago, its votes count in 9 s");
    scene.pass(8 * SECOND);
    assert_eq!(scene.outcome(1), None);
    scene.pass(SECOND + SECOND / 2);
    assert_eq!(scene.outcome(1), Some(Ok(())));
    let marker = Marker::parse(scene.servers[0].marker.as_ref().unwrap()).unwrap();
    assert_eq!(*marker.run_id, *scene.servers[0].run_id());
    assert!(marker.floor > 0, "counters may have been rolled back");
}

#[test]
fn an_uptime_by_a_clock_that_jumped_is_bounded_by_what_was_seen() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.now = SECOND;
    for server in &mut scene.servers {
        server.restart(true, -1000 * SECOND);
        server.keys.clear();
    }
    scene.acquire(2, Wait::Once);
    scene.tell(Event::Release { lock: LockId(1), report: false });
    scene.acquire(3, Wait::Once);
    assert_eq!(scene.refusal(3).kind, RefusalKind::Unsafe);
    assert_eq!(scene.trusted(), 0, "it cannot have started before it was seen as another");
    scene.pass(12 * SECOND);
    assert_eq!(scene.trusted(), 3);
}

#[test]
fn an_uptime_below_zero_is_no_long_time() {
    // Their clocks have been set back since they were started again; this client knows of no earlier run.
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.restart(true, 1000 * SECOND);
    }
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.refusal(1).kind, RefusalKind::Unsafe);
    assert_eq!(scene.trusted(), 0);
    assert!(scene.servers[0].info(scene.now).contains("uptime_in_seconds:-1000\n"));
}

#[test]
fn data_that_vanishes_on_a_living_connection_is_noticed() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.servers[0].flush();
    scene.servers[1].flush();
    scene.tell(Event::Extend { lock: LockId(1) });
    assert_eq!(scene.trusted(), 1);
    assert!(
        !scene.told.iter().any(|effect| matches!(effect, Effect::Lost { .. })),
        "nobody else can have them"
    );
    scene.pass(30 * SECOND);
    assert_eq!(scene.trusted(), 3, "it is adopted anew");
}

/// A master that was the replica of its own lagging replica for a moment has older data, with its own
/// marker. It has said so between the answers: what comes behind counts only if it is verified anew (F12).
#[test]
fn data_that_are_replaced_on_a_living_connection_are_noticed_by_the_push() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.outcome(1), Some(Ok(())));
    for server in &mut scene.servers[..2] {
        server.keys.clear();
        server.promoted = 15;
        server.flushes += 1;
    }
    let rival = rival_tries(&mut scene);
    assert!(!is_held(&rival, 1), "a new connection sees it");
    scene.tell(Event::Release { lock: LockId(1), report: false });
    scene.acquire(3, Wait::Once);
    assert_eq!(scene.outcome(3).map(|it| it.is_ok()), Some(false), "and so does the old one");
    assert_eq!(scene.trusted(), 1);
    // Where nothing was lost, it is asked once more what it is, and that is all.
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.servers.iter_mut().for_each(|server| server.flushes += 1);
    scene.acquire(2, Wait::For(Duration::from_secs(1)));
    scene.tell(Event::Release { lock: LockId(1), report: false });
    scene.pass(SECOND / 2);
    assert_eq!(scene.outcome(2), Some(Ok(())));
    assert_eq!(scene.trusted(), 3);
}

/// Who is told so looks at once, not when somebody wants a lock.
#[test]
fn a_flush_push_is_followed_by_a_look() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.tell(Event::Release { lock: LockId(1), report: false });
    let greets = |scene: &Scene| {
        let greets = scene.sent.iter().filter(|(_, command)| *command == Command::Greet);
        greets.count()
    };
    let before = greets(&scene);
    scene.servers[0].promoted = 15;
    scene.servers[0].flushes += 1;
    scene.tell(Event::Pushed { node: NodeId::new(0), keys: None });
    assert_eq!(greets(&scene), before + 1);
    assert_eq!(scene.trusted(), 2);
}

#[test]
fn who_has_another_list_is_told_so_with_both() {
    let mut scene = Scene::settled();
    let fewer = Cluster::new(["a", "b"], 2, MAX_TTL);
    scene.engine = engine(Rules { cluster: fewer, ..rules(RestartGuard::Strict) });
    scene.acquire(1, Wait::For(Duration::from_secs(60)));
    assert_eq!(scene.refusal(1).kind, RefusalKind::Unsafe);
    let NodeSaid::Failed(failure) = &scene.refusal(1).nodes[0].said else { panic!() };
    assert_eq!(failure.kind(), FailureKind::OtherConfiguration);
    let text = failure.to_string();
    assert!(text.contains("is_marked: true"), "{text}");
    for settings in ["nodes=a,b,c quorum=2", "nodes=a,b quorum=2"] {
        assert!(text.contains(settings), "{text}");
    }
    assert_eq!(scene.servers[0].adoption, None, "nothing is overwritten");
}

#[test]
fn an_adoption_for_others_is_not_taken_over() {
    let mut scene = Scene::with(rules(RestartGuard::Strict));
    let others = Cluster::new(["a", "b"], 2, MAX_TTL);
    let run_id = scene.servers[1].run_id().into();
    let text =
        Adoption { promoted_at: -1, floor: 0, cluster: others, run_id, wait_ms: 1 }.to_string();
    scene.servers[1].adoption = Some((text.clone(), 0));
    scene.acquire(1, Wait::For(Duration::from_secs(60)));
    assert!(scene.failures(1).contains(&FailureKind::OtherConfiguration));
    assert_eq!(scene.refusal(1).retry_after, None, "time does not mend it");
    assert_eq!(scene.servers[1].adoption, Some((text, 0)));
}

#[test]
fn one_server_under_two_names_is_refused() {
    let mut scene = Scene::settled();
    let marker = scene.servers[0].marker.clone();
    scene.servers[1].same_as = Some(0);
    scene.servers[1].marker = marker;
    scene.acquire(1, Wait::For(Duration::from_secs(60)));
    assert_eq!(scene.refusal(1).kind, RefusalKind::Unsafe);
    let twins = scene.failures(1);
    assert_eq!(twins.iter().filter(|kind| **kind == FailureKind::SameServer).count(), 2);
    scene.acquire(2, Wait::Once);
    assert_eq!(scene.refusal(2).kind, RefusalKind::Unsafe);
}

#[test]
fn replicas_and_nodes_that_evict_are_refused_and_a_minority_of_them_does_no_harm() {
    let mut scene = Scene::settled();
    scene.servers[0].role = "slave";
    scene.acquire(1, Wait::Once);
    assert_eq!((scene.outcome(1), scene.trusted()), (Some(Ok(())), 2));
    scene.tell(Event::Release { lock: LockId(1), report: false });
    scene.servers[1].policy = "allkeys-\u{1b}[2Jlru";
    scene.pass(20 * SECOND);
    assert_eq!(scene.trusted(), 1, "noticed although nobody asked");
    scene.acquire(2, Wait::For(Duration::from_secs(3)));
    scene.pass(4 * SECOND);
    assert_eq!(scene.refusal(2).kind, RefusalKind::Unsafe);
    let NodeSaid::Failed(failure) = &scene.refusal(2).nodes[1].said else { panic!() };
    let told = failure.to_string();
    assert!(told.contains("Evicts(\"allkeys-"), "{told}");
    scene.servers[1].policy = "noeviction";
    scene.acquire(3, Wait::For(Duration::from_secs(5)));
    scene.pass(3 * SECOND);
    assert_eq!(scene.outcome(3), Some(Ok(())), "mended while it waited");
}

#[test]
fn a_promoted_replica_is_adopted_although_its_data_and_its_uptime_say_otherwise() {
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.promoted = 15;
    }
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.failures(1), [FailureKind::Quarantined; 3]);
    scene.pass(13 * SECOND + SECOND / 2);
    scene.acquire(2, Wait::Once);
    assert_eq!(scene.outcome(2), Some(Ok(())));
    let marker = Marker::parse(scene.servers[0].marker.as_ref().unwrap()).unwrap();
    assert_eq!(marker.promoted_at, 15);
}

#[test]
fn a_node_that_turns_read_only_and_back_is_looked_at_again() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    let failure = quorlock_core::Failure::unsent(FailureKind::ReadOnly);
    let ticket = Ticket { lock: LockId(9), round: 1, verb: quorlock_core::Verb::Acquire };
    let marker = MarkerSeen::Text(scene.servers[0].marker.clone().unwrap().into());
    scene.servers[0].role = "slave";
    scene.tell(Event::Answered {
        node: NodeId::new(0),
        sent: at(0),
        proof: Proof::Seen { epoch: 1, flushes: 0, info: None, marker },
        answers: vec![(ticket, Answer::Failed(failure))],
    });
    assert_eq!(scene.trusted(), 2);
}

#[test]
fn who_only_looks_writes_nothing_and_takes_every_vote() {
    let mut scene =
        Scene::with(Rules { guard: RestartGuard::Observe, ..rules(RestartGuard::Strict) });
    scene.servers[0].policy = "allkeys-lru";
    let looks = |scene: &Scene| {
        scene
            .sent
            .iter()
            .all(|(_, command)| !matches!(command, Command::Adopt { .. } | Command::Mark { .. }))
    };
    scene.servers.iter_mut().for_each(|server| server.keys.clear());
    // A look at the adoption is no part of this scene.
    scene.mute = NodeSet::default();
    scene.servers[1].marker = Some(String::from("quorlock 7"));
    scene.servers[2].same_as = Some(0);
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.outcome(1), Some(Ok(())));
    assert!(looks(&scene));
    assert!(matches!(
        scene.engine.standing(NodeId::new(1)),
        Some(Standing::Refused(failure)) if failure.kind() == FailureKind::OtherConfiguration
    ));
}

#[test]
fn what_an_operator_says_of_a_node_waives_its_uptime_and_nothing_else() {
    let lasting = (0..3).map(NodeId::new).collect();
    for (log, outcome) in [
        ("aof_enabled:1", true),
        ("aof_enabled:1\nappendfsync:always\nno-appendfsync-on-rewrite:no", true),
        ("aof_enabled:0", false),
        ("aof_enabled:1\nappendfsync:everysec", false),
        ("aof_enabled:1\nappendfsync:always\nno-appendfsync-on-rewrite:yes", false),
    ] {
        let mut scene = Scene::with(Rules { lasting, ..rules(RestartGuard::Strict) });
        for server in &mut scene.servers {
            server.marker = Some(
                Marker { cluster: cluster(), run_id: "old".into(), promoted_at: -1, floor: 7 }
                    .to_string(),
            );
            server.started = 0;
        }
        scene.now = SECOND;
        // Its INFO may contradict it.
        scene.policy_of_log(log);
        scene.acquire(1, Wait::For(Duration::from_secs(3)));
        scene.pass(SECOND / 2);
        assert_eq!(scene.outcome(1) == Some(Ok(())), outcome, "{log}");
        if !outcome {
            let Some(Standing::Quarantined { why, .. }) = scene.engine.standing(NodeId::new(0))
            else {
                panic!("{log}: it waits")
            };
            assert!(why.contains("declared to forget nothing, but it has "), "{why}");
        }
        if outcome {
            let marker = scene.servers[0].marker.as_ref().unwrap();
            assert_eq!(Marker::parse(marker).unwrap().floor, 7, "nothing was rolled back");
        }
    }
}

impl Scene {
    /// What all servers say of their log, by way of a field that nothing else here uses.
    fn policy_of_log(&mut self, log: &'static str) {
        let policy: &'static str = format!("noeviction\n{log}").leak();
        self.servers.iter_mut().for_each(|server| server.policy = policy);
    }
}

/// What a server says of its uptime was so when it said it, not when it was asked.
#[test]
fn an_answer_that_comes_late_does_not_shorten_the_quarantine() {
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.restart(true, 0);
    }
    scene.mute = [1, 2].map(NodeId::new).into_iter().collect();
    (scene.now, scene.late) = (5 * SECOND, 4 * SECOND);
    scene.acquire(1, Wait::Forever);
    scene.late = 0;
    assert_eq!(
        scene.now,
        9 * SECOND,
        "it stood still, and then said that it has been there for nine"
    );
    scene.pass(3 * SECOND);
    assert_eq!(scene.trusted(), 0, "it has been there for 12 s");
    scene.pass(3 * SECOND);
    assert_eq!(scene.trusted(), 1);
}

#[test]
fn who_only_looks_does_not_ask_all_the_time() {
    let mut scene = Scene::settled();
    let observe = Scene::with(rules(RestartGuard::Observe));
    scene.engine = observe.engine;
    // They came back long ago, and nobody has marked them for it.
    for server in &mut scene.servers {
        server.restart(true, -100 * SECOND);
    }
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.outcome(1), Some(Ok(())));
    scene.late = 2_000_000;
    scene.pass(10 * SECOND);
    let looks = scene.sent.iter().filter(|(_, command)| *command == Command::Greet).count();
    assert!(looks <= 3 * 6, "{looks} looks in ten seconds");
}

/// Others have waited for most of it already: who has time for the rest is not sent away.
#[test]
fn who_has_time_for_the_rest_of_an_adoption_waits_for_it() {
    let mut first = Scene::with(rules(RestartGuard::Strict));
    first.acquire(1, Wait::Once);
    let mut scene = Scene::with(rules(RestartGuard::Strict));
    (scene.servers, scene.now) = (first.servers, 10 * SECOND);
    scene.servers.iter_mut().for_each(|server| server.greeted = 0);
    scene.acquire(1, Wait::For(Duration::from_secs(5)));
    assert_eq!(scene.outcome(1), None);
    scene.pass(3 * SECOND);
    assert_eq!(scene.outcome(1), Some(Ok(())));
}

#[test]
fn a_floor_is_set_on_a_node_that_says_itself_that_it_keeps_no_log() {
    let mut scene = Scene::settled();
    let lasting = NodeSet::only(NodeId::new(0));
    scene.engine = engine(Rules { lasting, ..rules(RestartGuard::Strict) });
    // What the operator says of it is not so: it may have lost its counters.
    scene.servers[0].restart(true, 0);
    scene.acquire(1, Wait::For(Duration::from_secs(20)));
    scene.pass(16 * SECOND);
    let marker = Marker::parse(scene.servers[0].marker.as_ref().unwrap()).unwrap();
    assert_eq!(*marker.run_id, *scene.servers[0].run_id());
    assert!(marker.floor > 0, "counters may have been rolled back");
}

#[test]
fn a_proxy_that_refuses_info_is_told_of() {
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.no_info = Some("ERR unsupported command 'INFO'");
    }
    scene.acquire(1, Wait::Once);
    assert_eq!(scene.refusal(1).kind, RefusalKind::Unsafe);
    let NodeSaid::Failed(failure) = &scene.refusal(1).nodes[0].said else { panic!() };
    let text = failure.to_string();
    assert!(text.starts_with("refused as unsafe: NoInfo(\"ERR unsupp"), "{text}");
}

/// Deleted and begun anew, an adoption says what it said before; then the server's clock jumps.
#[test]
fn an_adoption_that_was_begun_anew_is_no_older_than_when_it_was_seen_to_be_new() {
    let mut scene = Scene::with(rules(RestartGuard::Strict));
    scene.acquire(1, Wait::Forever);
    scene.pass(8 * SECOND);
    for server in &mut scene.servers {
        server.flush();
    }
    scene.pass(3 * SECOND);
    for server in &mut scene.servers {
        server.jumped = 1000 * SECOND;
    }
    scene.pass(7 * SECOND);
    assert_eq!(scene.trusted(), 0);
    scene.pass(6 * SECOND);
    assert_eq!((scene.trusted(), scene.outcome(1)), (3, Some(Ok(()))));
}

/// The same, begun by another client, and the clock has jumped before this one looks: it has seen the adoption
/// before that.
#[test]
fn an_adoption_that_another_has_begun_anew_is_no_older_than_the_look_at_the_one_before() {
    let mut scene = Scene::with(rules(RestartGuard::Strict));
    scene.acquire(1, Wait::Forever);
    scene.pass(8 * SECOND);
    let now = scene.now;
    for server in &mut scene.servers {
        let (text, _) = server.adoption.clone().expect("it is being adopted");
        let (words, _) = text.rsplit_once(' ').expect("since when");
        server.flush();
        server.adoption = Some((format!("{words} since={now}"), now));
        server.jumped = 1000 * SECOND;
    }
    scene.pass(9 * SECOND);
    assert_eq!(scene.trusted(), 0);
    scene.pass(6 * SECOND);
    assert_eq!((scene.trusted(), scene.outcome(1)), (3, Some(Ok(()))));
}

/// A server forgets after an hour that it was a replica: where locks may live for longer, a marker of
/// another run is not enough, however long the server has been there.
#[test]
fn with_a_long_ttl_a_replica_that_was_promoted_long_ago_is_adopted() {
    let cluster = Cluster::new(names(), 2, 7_200_000);
    let mut scene = Scene::with(Rules { cluster: cluster.clone(), ..rules(RestartGuard::Strict) });
    for server in &mut scene.servers {
        let run_id = "another".into();
        let marker = Marker { cluster: cluster.clone(), run_id, promoted_at: -1, floor: 0 };
        (server.marker, server.started) = (Some(marker.to_string()), -10_000 * SECOND);
    }
    scene.acquire(1, Wait::Once);
    scene.pass(7_200 * SECOND);
    assert_eq!(scene.trusted(), 0);
    scene.pass(80 * SECOND);
    assert_eq!(scene.trusted(), 3);
}

/// Also if nobody listens to how it goes on.
#[test]
fn who_turns_out_to_wait_in_vain_is_told_as_soon_as_that_is_known() {
    for progress in [true, false] {
        let mut scene = Scene::with(rules(RestartGuard::Strict));
        let wait = Wait::For(Duration::from_secs(5));
        let request = quorlock_core::Request { wait, progress, ..request("orders") };
        scene.tell(Event::Acquire { lock: LockId(1), request });
        scene.pass(1_000_000);
        assert_eq!(scene.refusal(1).kind, RefusalKind::Unsafe);
    }
}

#[test]
fn a_floor_that_rests_on_the_clocks_of_few_is_told_of() {
    let few = |scene: &Scene| {
        let few = |effect: &Effect| match effect {
            Effect::FloorOfFew { node, clocks } => Some((node.index(), *clocks)),
            _ => None,
        };
        scene.told.iter().find_map(few)
    };
    for (mute, expected) in [(NodeSet::default(), None), (NodeSet::only(NodeId::new(2)), Some(1))] {
        let mut scene = Scene::settled();
        scene.mute = mute;
        scene.servers[0].restart(false, 0);
        scene.acquire(1, Wait::For(Duration::from_secs(30)));
        scene.pass(30 * SECOND);
        let marker = Marker::parse(scene.servers[0].marker.as_ref().unwrap()).unwrap();
        assert!(marker.floor > 0, "it has lost its counters");
        assert_eq!(few(&scene), expected.map(|clocks| (0, clocks)));
    }
}

/// A client stands still between the reading of the clocks and the hearing, while a node is adopted by another. What
/// it heard is of ten seconds ago: a floor by that could be below one that was set meanwhile.
#[test]
fn a_floor_rests_on_no_clock_that_was_heard_late() {
    let mut scene = Scene::settled();
    scene.servers[0].flush();
    scene.acquire(1, Wait::Forever);
    let mut late = Scene::with(rules(RestartGuard::Strict));
    (late.servers, late.now, late.stands_still) = (scene.servers, 5 * SECOND, 10 * SECOND);
    late.acquire(1, Wait::Forever);
    late.pass(QUARANTINE);
    let marker = Marker::parse(late.servers[0].marker.as_ref().unwrap()).unwrap();
    let least = at(15 * SECOND).real_ns() / 1000 + 2 * 3600 * 1_000_000;
    assert!(i64::try_from(marker.floor).unwrap() >= least, "{marker}");
}

/// Another client, which knows nothing yet, wants the lock for a tenth of a second.
fn rival_tries(scene: &mut Scene) -> Scene {
    let mut rival = Scene::with(rules(RestartGuard::Strict));
    (rival.servers, rival.now) = (scene.servers.clone(), scene.now);
    rival.servers.iter_mut().for_each(|server| server.greeted = 0);
    // Other tokens than the first one's.
    rival.draws = 100;
    rival.acquire(1, Wait::For(Duration::from_secs(20)));
    rival.pass(SECOND / 10);
    scene.pass(SECOND / 10);
    rival
}

fn is_held(scene: &Scene, lock: u64) -> bool {
    let ended =
        |effect: &Effect| matches!(effect, Effect::Lost { lock: LockId(it), .. } if *it == lock);
    scene.outcome(lock) == Some(Ok(())) && !scene.told.iter().any(ended)
}

/// This very client has seen the run when it was 4 s old; then the server's clock jumps.
#[test]
fn an_uptime_that_jumps_after_it_was_seen_makes_no_run_older() {
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.restart(true, 0);
        server.keys.clear();
    }
    scene.now = 4 * SECOND;
    scene.acquire(1, Wait::For(Duration::from_secs(10)));
    scene.pass(SECOND);
    assert_eq!(scene.trusted(), 0);
    for server in &mut scene.servers {
        server.started -= 60 * SECOND;
    }
    scene.pass(3 * SECOND);
    assert_eq!((scene.trusted(), scene.outcome(1)), (0, None), "it started 8 s ago");
}

/// Promoted, with older data that has its own marker; after an hour it forgets that.
#[test]
fn a_promotion_that_the_server_has_forgotten_still_counts() {
    let cluster = Cluster::new(names(), 2, 7_200_000);
    let mut scene = Scene::with(Rules { cluster: cluster.clone(), ..rules(RestartGuard::Strict) });
    for server in &mut scene.servers {
        let run_id = server.run_id().into();
        let marker = Marker { cluster: cluster.clone(), run_id, promoted_at: -1, floor: 0 };
        (server.marker, server.started) = (Some(marker.to_string()), -10_000 * SECOND);
        server.promoted = 15;
    }
    scene.acquire(1, Wait::Once);
    scene.pass(3_600 * SECOND);
    assert_eq!(scene.trusted(), 0, "quarantined for 7274 s");
    for server in &mut scene.servers {
        server.promoted = -1;
    }
    scene.pass(10 * SECOND);
    assert_eq!(scene.trusted(), 0, "half of the quarantine has passed");
}

/// It becomes a replica of its own replica, which is behind, and a master again; in the replica's data there
/// is an adoption from before, or none.
#[test]
fn an_adoption_from_before_a_promotion_is_none() {
    for keeps_adoption in [true, false] {
        let mut scene = Scene::with(rules(RestartGuard::Strict));
        scene.acquire(1, Wait::For(Duration::from_secs(20)));
        scene.pass(5 * SECOND);
        let mut lagging = scene.servers[0].clone();
        assert!(lagging.adoption.is_some());
        lagging.adoption = lagging.adoption.filter(|_| keeps_adoption);
        scene.pass(8 * SECOND);
        assert_eq!((scene.trusted(), scene.outcome(1)), (3, Some(Ok(()))));
        scene.tell(Event::Release { lock: LockId(1), report: false });
        scene.mute = NodeSet::only(NodeId::new(2));
        scene.acquire(2, Wait::Once);
        assert!(is_held(&scene, 2));
        scene.servers[0] = Server { promoted: 16, epoch: 2, ..lagging };
        let rival = rival_tries(&mut scene);
        assert!(is_held(&scene, 2), "{keeps_adoption}");
        assert!(!is_held(&rival, 1), "two hold the lock, {keeps_adoption}");
    }
}

/// A node that was suspended answers again on its old connection; meanwhile another name leads to
/// the same server.
#[test]
fn a_node_that_was_away_may_be_another_names_server_when_it_is_back() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    scene.tell(Event::Release { lock: LockId(1), report: false });
    assert_eq!(scene.trusted(), 3);
    // It is looked at while it is suspended.
    scene.now = 15 * SECOND + 1;
    let mut out = Vec::new();
    scene.engine.handle(
        Event::Wake,
        at(scene.now),
        &mut |_| unreachable!("nobody attempts"),
        &mut out,
    );
    for effect in out {
        if let Effect::Send { nodes, ticket, command: Command::Greet } = effect
            && nodes.contains(NodeId::new(0))
        {
            let failure = Failure::unsent(FailureKind::Suspended);
            let answers = vec![(ticket, Answer::Failed(failure))];
            scene.tell(Event::Answered {
                node: NodeId::new(0),
                sent: at(scene.now),
                proof: Proof::Vouched,
                answers,
            });
        }
    }
    // The second name leads to the first server now.
    scene.mute = NodeSet::only(NodeId::new(0));
    scene.servers[1] = Server { epoch: 2, greeted: 0, ..scene.servers[0].clone() };
    scene.acquire(2, Wait::Once);
    assert!(is_held(&scene, 2));
    scene.servers[0].keys = scene.servers[1].keys.clone();
    scene.mute = NodeSet::default();
    scene.told.clear();
    scene.tell(Event::Extend { lock: LockId(2) });
    let mut votes = scene.told.iter().filter_map(|effect| match effect {
        Effect::Changed { validity, .. } => Some(validity.votes(at(scene.now))),
        _ => None,
    });
    assert_eq!(votes.next_back(), Some(2), "there are two servers");
}

/// Another server with an old copy of the data takes a node's place.
#[test]
fn a_server_with_a_copy_that_has_just_started_does_not_vote() {
    let mut scene = Scene::settled();
    scene.mute = NodeSet::only(NodeId::new(2));
    let copy = scene.servers[0].marker.clone();
    scene.acquire(1, Wait::Once);
    scene.servers[0] = Server { marker: copy, ..Server::new(50, 0) };
    let rival = rival_tries(&mut scene);
    assert!(is_held(&scene, 1) && !is_held(&rival, 1));
}

/// A second client's command to adopt comes behind the first one's marker; and what another has left
/// there is not taken for the adoption of a node that was a replica a moment ago.
#[test]
fn an_adoption_that_comes_behind_the_marker_does_nothing() {
    let mut scene = Scene::with(rules(RestartGuard::Strict));
    scene.acquire(1, Wait::For(Duration::from_secs(20)));
    scene.pass(13 * SECOND);
    assert_eq!((scene.trusted(), scene.outcome(1)), (3, Some(Ok(()))));
    scene.tell(Event::Release { lock: LockId(1), report: false });
    // The other has looked before it was marked.
    let adopt = scene
        .sent
        .iter()
        .find(|(to, command)| *to == 0 && matches!(command, Command::Adopt { .. }));
    let (adopt, now) = (adopt.expect("it was adopted").1.clone(), scene.now);
    assert_eq!(scene.servers[0].execute(&adopt, now), Answer::NotMarked);
    assert_eq!(scene.servers[0].adoption, None);
    let Command::Adopt { text, .. } = adopt else { unreachable!("as it was found") };
    scene.servers[0].adoption = Some((text.to_string(), now));
    scene.pass(60 * SECOND);
    scene.mute = NodeSet::only(NodeId::new(2));
    scene.acquire(2, Wait::Once);
    assert!(is_held(&scene, 2));
    // A replica of its own replica, which had not got the vote yet; and a master again.
    let server = &mut scene.servers[0];
    (server.promoted, server.role) = (16, "master");
    server.keys.clear();
    let rival = rival_tries(&mut scene);
    assert!(is_held(&scene, 2));
    assert!(!is_held(&rival, 1), "two hold the lock");
}

/// Its clock was set back since it started, but it has been seen for longer than the quarantine.
#[test]
fn who_has_seen_a_run_for_long_enough_does_not_ask_its_clock() {
    let mut scene = Scene::settled();
    for server in &mut scene.servers {
        server.restart(true, 0);
        server.started += 3600 * SECOND;
    }
    scene.now = SECOND;
    scene.acquire(1, Wait::Forever);
    scene.pass(60 * SECOND);
    assert_eq!(scene.outcome(1), Some(Ok(())), "seen for 60 s: {:?}", scene.told.last());
}

#[test]
fn where_a_node_is_down_and_one_in_quarantine_it_is_told_when_there_will_be_a_quorum() {
    let mut scene = Scene::settled();
    scene.servers[1].restart(true, 0);
    scene.mute = [NodeId::new(2)].into_iter().collect();
    scene.acquire(1, Wait::Once);
    scene.pass(SECOND);
    let refusal = scene.refusal(1);
    assert_eq!(refusal.kind, RefusalKind::NoQuorum);
    let after = refusal.retry_after.expect("the quarantine has an end");
    let range = Duration::from_secs(10)..Duration::from_secs(14);
    assert!(range.contains(&after), "{after:?}");
}

#[test]
fn a_node_that_is_refused_is_not_healed() {
    let mut scene = Scene::settled();
    scene.acquire(1, Wait::Once);
    assert_eq!((scene.outcome(1), scene.asked_for_votes(2)), (Some(Ok(())), 1));
    let server = &mut scene.servers[2];
    (server.policy, server.epoch) = ("allkeys-lru", server.epoch + 1);
    server.keys.clear();
    scene.tell(Event::Extend { lock: LockId(1) });
    let confirmed = |effect: &Effect| {
        matches!(effect, Effect::Extended { outcome: quorlock_core::Extended::Confirmed, .. })
    };
    assert!(scene.told.iter().any(confirmed));
    assert_eq!(scene.asked_for_votes(2), 1);
}
