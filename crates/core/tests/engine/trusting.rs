//! Nodes that are not to be trusted: started a moment ago, without their marker, marked for others.

mod beginnings;
mod refused;
mod waiting_out;

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
