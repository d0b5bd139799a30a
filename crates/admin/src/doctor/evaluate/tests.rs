use std::time::Duration;

use quorlock::Client;
use quorlock_core::info::Info;
use quorlock_core::marker::{Adoption, Cluster, Marker};

use super::*;
use crate::doctor::ClockOffset;
use crate::doctor::Severity::{self, Note};
use crate::doctor::look::{Facts, More, Times};
use crate::doctor::rights::Rights;

const INFO: &str = "redis_version:7.0.15\r\nrun_id:0d2f\r\nuptime_in_seconds:61\r\n\
    role:master\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n\
    appendfsync:always\r\nno-appendfsync-on-rewrite:no\r\n";

fn cluster() -> Cluster {
    Topology::of(&Client::builder().nodes(["a=redis://a"])).unwrap().rules.cluster
}

/// A marker that a client has written during the run `run_id` of the server.
fn marker(run_id: &str) -> String {
    let run_id = run_id.into();
    Marker { cluster: cluster(), run_id, promoted_at: -1, floor: 0 }.to_string()
}

fn facts() -> Facts {
    Facts {
        speaks_resp3: true,
        info: Ok(Info::parse(INFO).unwrap()),
        more: More::default(),
        marker: Seen::Text(marker("0d2f")),
        adoption: Seen::Nothing,
        elsewhere: None,
        adopted_for: Duration::ZERO,
        sentinels: Vec::new(),
        leftovers: Vec::new(),
        fenced: std::collections::BTreeSet::new(),
        unscanned: None,
        may_debug: false,
        rights: Rights::default(),
        times: Times {
            round_trips: vec![Duration::from_millis(1)],
            offset: Some(ClockOffset { ahead_us: 0, error: Duration::ZERO }),
            clock_stands: false,
            last_us: Some(1_795_201_160_638_971),
        },
    }
}

/// The checks that report a warning or an error about a node with invented facts, which `change` modifies.
fn found(durable: bool, change: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
    let report = report(durable, change);
    let bad = report.findings.iter().filter(|finding| finding.severity > Note);
    bad.map(|finding| finding.check).collect()
}

fn report(durable: bool, change: impl FnOnce(&mut Facts)) -> NodeReport {
    report_of(durable, 0, change)
}

fn report_of(durable: bool, replicas: u32, change: impl FnOnce(&mut Facts)) -> NodeReport {
    let mut facts = facts();
    change(&mut facts);
    let settings = Client::builder().nodes(["a=redis://a"]);
    let settings = if durable { settings.durable_nodes(["a"]) } else { settings };
    let topology = Topology::of(&settings).unwrap();
    let node = Looked {
        name: "a".into(),
        address: "a:6379".to_owned(),
        is_located: false,
        redis_cli: topology.servers[0].redis_cli().clone(),
        replicas,
        facts: Ok(facts),
    };
    evaluate(&topology, &[node]).remove(0)
}

#[test]
fn a_node_with_replicas_has_as_many_as_its_url_says() {
    let found = |declared, connected| {
        let report = report_of(false, declared, |facts| facts.more.replicas = connected);
        let found = report.findings.into_iter().filter(|finding| finding.severity > Note);
        found.map(|finding| (finding.severity, finding.what)).collect::<Vec<_>>()
    };
    let error = |what: &str| vec![(Severity::Error, what.to_owned())];
    assert_eq!(found(1, 1), []);
    assert_eq!(found(1, 0), error("it has 0 of 1 replicas"));
    assert_eq!(found(1, 2), error("it has 2 replicas, but its URL says replicas=1"));
    assert_eq!(found(0, 1), [(Severity::Warning, "it has 1 replica".to_owned())]);
    assert_eq!(found(0, 2), [(Severity::Warning, "it has 2 replicas".to_owned())]);
    for (silent, what) in
        [(1, "1 of 2 replicas does not acknowledge"), (2, "2 of 2 replicas do not acknowledge")]
    {
        let report = report_of(false, 2, |facts| {
            (facts.more.replicas, facts.more.silent_replicas) = (2, silent);
        });
        assert_eq!((&*report.findings[0].what, report.votes), (what, Votes::DoNotCount));
    }
    let unnamed = report_of(false, 0, |facts| facts.more.replicas = 1);
    let remedy = "add replicas=1 to its URL in all clients (…a:6379?replicas=1)";
    assert!(unnamed.findings[0].fix.contains(remedy), "{}", unnamed.findings[0].fix);
    let old = report_of(false, 1, |facts| facts.speaks_resp3 = false);
    assert_eq!(old.findings[0].check, "replicas");
    assert_eq!(old.votes, Votes::DoNotCount);
}

/// These tests cannot move the clock of a real server, so this test evaluates invented facts.
#[test]
fn clocks_are_evaluated() {
    let none: [&str; 0] = [];
    let ahead = |ahead_us, error_ms| {
        found(false, |facts| {
            let error = Duration::from_millis(error_ms);
            facts.times.offset = Some(ClockOffset { ahead_us, error });
        })
    };
    assert_eq!(found(false, |_| ()), none);
    assert_eq!(ahead(1_100_000, 50), ["clock"]);
    assert_eq!(ahead(-1_100_000, 50), ["clock"]);
    // With an error of 200 ms the true difference may be below the limit of 1 s, so there is no finding.
    assert_eq!(ahead(1_100_000, 200), none);
    assert_eq!(found(false, |facts| facts.times.clock_stands = true), ["clock_stands"]);
    let set_back = |facts: &mut Facts| {
        facts.info = Ok(Info::parse(&INFO.replace("seconds:61", "seconds:-3598")).unwrap());
    };
    assert_eq!(found(false, set_back), ["uptime"]);
    let far = |facts: &mut Facts| facts.times.round_trips = vec![Duration::from_millis(101)];
    assert_eq!(found(false, far), ["latency"]);
    let apart = |facts: &mut Facts| facts.times.round_trips = vec![Duration::from_millis(501)];
    assert_eq!(
        found(false, apart),
        ["latency", "timeout"],
        "the ttl of 10 s leaves 2 s for an answer"
    );
    let old = |facts: &mut Facts| facts.more.version = Some((6, 0));
    assert_eq!(found(false, old), ["version"]);
}

/// An operator may follow the fix on every node. So the fix deletes a key only if the key certainly holds no marker.
#[test]
fn a_marker_is_deleted_only_if_it_is_none() {
    let fix_of = |error: &str, key_is_marker: bool| {
        let error = Seen::Unreadable(error.to_owned());
        let examined = report(false, |facts| {
            facts.marker = Seen::Nothing;
            *(if key_is_marker { &mut facts.marker } else { &mut facts.adoption }) = error;
        });
        assert_eq!(examined.votes, Votes::DoNotCount);
        let mut findings = examined.findings.into_iter();
        findings.find_map(|finding| (finding.check == "marker").then_some(finding.fix)).unwrap()
    };
    for is_marker in [true, false] {
        assert!(fix_of("WRONGTYPE Operation against a key", is_marker).contains(" DEL "));
        for error in ["NOPERM this user", "MASTERDOWN Link", "CLUSTERDOWN Hash", "BUSY Redis"] {
            assert!(!fix_of(error, is_marker).contains("DEL"), "{error}");
        }
    }
}

#[test]
fn the_remedies_for_a_node_with_replicas_fit_it() {
    let fixes = |replicas| {
        let info = INFO.replace("role:master", "role:master\r\nsecond_repl_offset:15");
        let info = info.replace("aof_enabled:1", "aof_enabled:0");
        let report = report_of(false, replicas, |facts| {
            facts.info = Ok(Info::parse(&info).unwrap());
            facts.more.replicas = replicas.into();
        });
        let fix = |check| report.findings.iter().find(|it| it.check == check).unwrap().fix.clone();
        [fix("promoted"), fix("persistence")]
    };
    let [promoted, persistence] = fixes(0);
    assert!(promoted.contains("…a:6379?replicas=1") && promoted.contains("redis+sentinel://"));
    assert!(persistence.ends_with("; then --durable a"), "{persistence}");
    let [promoted, persistence] = fixes(1);
    assert!(promoted.starts_with("a failover has this effect, and all replicas are back"));
    assert!(persistence.contains("never --durable"), "{persistence}");
}

#[test]
fn a_promoted_server_waits_for_what_is_left_of_its_adoption() {
    let promoted = INFO.replace("role:master", "role:master\r\nsecond_repl_offset:15");
    let (cluster, run_id) = (cluster(), "0d2f".into());
    let waits_for = Marker { cluster, run_id, promoted_at: 15, floor: 0 };
    let adoption = Adoption { marker: waits_for, wait_ms: 32_300 };
    for marker in [Seen::Nothing, Seen::Text(marker("0d"))] {
        let report = report(false, |facts| {
            facts.info = Ok(Info::parse(&promoted).unwrap());
            facts.marker = marker;
            facts.adoption = Seen::Text(adoption.to_string());
            facts.adopted_for = Duration::from_secs(20);
        });
        assert_eq!(report.votes, Votes::CountIn(Duration::from_millis(12_300)));
        assert!(report.findings[0].what.ends_with("its votes count in 13 s"));
    }
}

#[test]
fn who_was_promised_to_forget_nothing_must_not() {
    let none: [&str; 0] = [];
    let with = |durable, from, to| {
        found(durable, |facts| facts.info = Ok(Info::parse(&INFO.replace(from, to)).unwrap()))
    };
    assert_eq!(with(true, "", ""), none);
    assert_eq!(with(true, "appendfsync:always", "appendfsync:everysec"), ["durable"]);
    assert_eq!(with(false, "appendfsync:always", "appendfsync:everysec"), none);
    assert_eq!(with(true, "on-rewrite:no", "on-rewrite:yes"), ["durable"]);
    assert_eq!(with(true, "aof_enabled:1", "aof_enabled:0"), ["durable"]);
}
