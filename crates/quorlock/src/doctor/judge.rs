//! What follows for locks from what was seen on the nodes. Reads facts, and asks nobody.

use std::time::Duration;

use quorlock_core::info::Info;
use quorlock_core::marker::{Adoption, Marker};
use quorlock_core::{Failure, FailureKind};

use super::look::{Facts, Looked, Seen};
use super::{ClockOffset, Finding, NodeReport, Severity, Votes};
use crate::builder::Survey;
use crate::error::printable;
use crate::node::Node as _;

use Severity::{Error, Note, Warning};

/// Clocks that differ by more are worth a word; a lock does not compare them, but its ttl does not
/// survive a step.
const OFFSET_MAX: Duration = Duration::from_secs(1);

/// A lock takes a round trip at least; with more than this it is felt.
const LATENCY_MAX: Duration = Duration::from_millis(100);

/// A floor is two hours ahead of the clocks when it is written.
const FLOOR_AHEAD_US: u64 = 2 * 3600 * 1_000_000 + 60 * 1_000_000;

/// The oldest servers that are supported.
const VERSION_MIN: (u32, u32) = (6, 2);

/// A word on each node, in order.
pub(super) fn judge(survey: &Survey, looked: &[Looked]) -> Vec<NodeReport> {
    let unused = looked.iter().all(|node| match &node.facts {
        Ok(facts) => facts.marker == Seen::Nothing && facts.adoption == Seen::Nothing,
        Err(_) => true,
    });
    looked.iter().map(|node| Case { survey, looked, node, unused }.report()).collect()
}

/// One node among the others.
struct Case<'a> {
    survey: &'a Survey,
    looked: &'a [Looked],
    node: &'a Looked,
    /// No node has ever been used.
    unused: bool,
}

impl Case<'_> {
    fn report(&self) -> NodeReport {
        let mut report = NodeReport {
            node: self.node.name.clone(),
            address: self.node.address.clone(),
            server: None,
            uptime_s: None,
            latency: None,
            clock: None,
            votes: Votes::DoNotCount,
            findings: Vec::new(),
        };
        let facts = match &self.node.facts {
            Ok(facts) => facts,
            Err(failure) => {
                report.findings.push(self.unreached(failure));
                return report;
            }
        };
        report.server = facts.more.software.clone();
        report.latency = facts.latency();
        report.clock = facts.clock;
        let mut findings = self.rights(facts);
        match &facts.info {
            Ok(info) => {
                report.uptime_s = Some(info.uptime_s);
                findings.extend(self.kind(info));
                findings.extend(self.twins(info));
                let (votes, standing) = self.standing(facts, info);
                findings.extend(standing);
                findings.extend(self.memory(facts, info));
                findings.extend(self.time(facts, info));
                findings.extend(self.disk(facts, info));
                report.votes = votes;
            }
            Err(why) => findings.push(Finding {
                severity: Error,
                check: "info",
                what: format!("INFO says nothing of use: {why}"),
                why: "without it nobody knows whether the server was restarted and has forgotten its locks",
                fix: Some(
                    "connect to the server itself, not to a proxy, and give the user the right +info"
                        .to_owned(),
                ),
            }),
        }
        findings.extend(self.server(facts));
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        if findings.iter().any(|finding| finding.severity == Error) {
            report.votes = Votes::DoNotCount;
        }
        report.findings = findings;
        report
    }

    fn cli(&self, command: &str) -> Option<String> {
        Some(redis_cli(&self.node.address, command))
    }

    fn unreached(&self, failure: &Failure) -> Finding {
        let login = failure.kind() == FailureKind::Unauthenticated;
        Finding {
            severity: Error,
            check: if login { "login" } else { "reach" },
            what: failure.to_string(),
            why: "its vote is missing from every lock",
            fix: if login {
                Some(
                    "give the user and password: --username, QUORLOCK_PASSWORD or --password-file"
                        .to_owned(),
                )
            } else {
                self.cli("PING")
            },
        }
    }

    fn rights(&self, facts: &Facts) -> Vec<Finding> {
        let rights = &facts.rights;
        let mut findings = Vec::new();
        let fix =
            || Some("quorlock doctor --acl USER prints the command that gives them".to_owned());
        if rights.keys {
            findings.push(Finding {
                severity: Error,
                check: "rights",
                what: format!(
                    "the user may not use keys that begin with {:?}",
                    self.survey.own_key("")
                ),
                why: "there the node keeps who it votes for, and how far fences have been counted",
                fix: fix(),
            });
        }
        if !rights.needed.is_empty() {
            findings.push(Finding {
                severity: Error,
                check: "rights",
                what: format!("the user lacks {}", rights.needed.join(" ")),
                why: "without these a lock cannot be taken, extended or given back here",
                fix: fix(),
            });
        }
        if !rights.wanted.is_empty() {
            findings.push(Finding {
                severity: Warning,
                check: "rights",
                what: format!("the user lacks {}", rights.wanted.join(" ")),
                why: "locks work, but those who wait for one are told late, or commands are sent the long way",
                fix: fix(),
            });
        }
        if let Some(error) = &rights.cannot_write {
            findings.push(Finding {
                severity: Error,
                check: "write",
                what: format!("nothing can be written: {error}"),
                why: "a vote is a key that is written",
                fix: None,
            });
        }
        findings
    }

    /// Whether it is a server that may vote at all.
    fn kind(&self, info: &Info) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut error = |check, what: String, why, fix| {
            findings.push(Finding { severity: Error, check, what, why, fix });
        };
        if !info.is_master {
            error(
                "role",
                "it is a replica".to_owned(),
                "it repeats another server's votes and has none of its own",
                self.cli("REPLICAOF NO ONE"),
            );
        }
        if info.is_cluster {
            error(
                "cluster",
                "it is part of a cluster (cluster-enabled yes)".to_owned(),
                "a cluster moves keys, and fails over to replicas that have not seen every vote",
                Some("use servers with cluster-enabled no".to_owned()),
            );
        }
        if info.is_loading {
            error(
                "loading",
                "it is loading its data".to_owned(),
                "until then it answers nobody",
                None,
            );
        }
        if let Some(policy) = &info.evicts_by {
            error(
                "eviction",
                format!(
                    "it deletes keys when its memory is full (maxmemory-policy {})",
                    printable(policy)
                ),
                "a lock that is deleted while it is held is granted to a second holder",
                self.cli("CONFIG SET maxmemory-policy noeviction"),
            );
        }
        findings
    }

    fn twins(&self, info: &Info) -> Option<Finding> {
        let is_twin = |other: &&Looked| {
            let run_id = other.facts.as_ref().ok().and_then(|facts| facts.info.as_ref().ok());
            !std::ptr::eq(*other, self.node)
                && run_id.is_some_and(|other| other.run_id == info.run_id)
        };
        let twin = self.looked.iter().find(is_twin)?;
        Some(Finding {
            severity: Error,
            check: "same_server",
            what: format!("it is the same server as node {} ({})", twin.name, twin.address),
            why: "one server would vote twice, and a majority of votes be no majority of servers",
            fix: Some("list it once; if it was copied or cloned, restart it".to_owned()),
        })
    }

    /// Whether its votes count, by its marker.
    fn standing(&self, facts: &Facts, info: &Info) -> (Votes, Vec<Finding>) {
        let ours = &self.survey.rules.cluster;
        let key = &self.survey.rules.marker;
        let foreign = |key: &str, what: String| Finding {
            severity: Error,
            check: "marker",
            what: format!("its key {key} holds {what}"),
            why: "it is the library's own: what it says decides whether votes count",
            fix: self.cli(&format!("DEL {key}")),
        };
        let other = |how: &str, theirs: &dyn std::fmt::Display| {
            Finding {
            severity: Error,
            check: "configuration",
            what: format!("{how} {}, but here it is {ours}", printable(&theirs.to_string())),
            why: "clients that do not agree about nodes, quorum and longest ttl can hold one lock at the same time",
            fix: Some(
                "give all clients the same settings; or, to change them, quorlock init --reconfigure"
                    .to_owned(),
            ),
        }
        };
        let no = |finding| (Votes::DoNotCount, vec![finding]);
        let marker = match &facts.marker {
            Seen::Nothing => return self.without_marker(facts, info, &foreign, &other),
            Seen::Unreadable(error) => return no(foreign(key, format!("no text: {error}"))),
            Seen::Text(text) => match Marker::parse(text) {
                Some(marker) if marker.cluster == *ours => marker,
                Some(marker) => return no(other("it votes for", &marker.cluster)),
                None => return no(foreign(key, quoted(text))),
            },
        };
        let mut findings = self.floor(facts, &marker);
        if *marker.run_id == *info.run_id && marker.promoted_at == info.promoted_at.unwrap_or(-1) {
            return (Votes::Count, findings);
        }
        if info.promoted_at.is_some() {
            findings.push(self.promoted());
            return (Votes::CountIn(self.survey.quarantine()), findings);
        }
        let young_for = self.young_for(info);
        if !young_for.is_zero() {
            findings.push(Finding {
                severity: Warning,
                check: "restarted",
                what: format!(
                    "it was restarted {} s ago; its votes count in {} s",
                    info.uptime_s,
                    seconds(young_for)
                ),
                why: "it may have forgotten locks that are still held",
                fix: None,
            });
            return (Votes::CountIn(young_for), findings);
        }
        (Votes::Count, findings)
    }

    fn without_marker(
        &self,
        facts: &Facts,
        info: &Info,
        foreign: &dyn Fn(&str, String) -> Finding,
        other: &dyn Fn(&str, &dyn std::fmt::Display) -> Finding,
    ) -> (Votes, Vec<Finding>) {
        let quarantine = self.survey.quarantine();
        let key = &self.survey.rules.adoption;
        let adoption = match &facts.adoption {
            Seen::Nothing => None,
            Seen::Unreadable(error) => {
                return (Votes::DoNotCount, vec![foreign(key, format!("no text: {error}"))]);
            }
            Seen::Text(text) => match Adoption::parse(text) {
                Some(adoption) if adoption.cluster == self.survey.rules.cluster => Some(adoption),
                Some(adoption) => {
                    let finding = other("it is being taken into use for", &adoption.cluster);
                    return (Votes::DoNotCount, vec![finding]);
                }
                None => return (Votes::DoNotCount, vec![foreign(key, quoted(text))]),
            },
        };
        let mut findings = Vec::new();
        if info.promoted_at.is_some() {
            findings.push(self.promoted());
        }
        let promoted_at = info.promoted_at.unwrap_or(-1);
        let begun = adoption.filter(|adoption| {
            *adoption.run_id == *info.run_id && adoption.promoted_at == promoted_at
        });
        let wait = match &begun {
            Some(adoption) => {
                let wait = Duration::from_millis(adoption.wait_ms).max(quarantine);
                wait.saturating_sub(facts.adopted_for).max(self.young_for(info))
            }
            None => quarantine,
        };
        let left = seconds(wait);
        let forgotten = "a server without its marker may have forgotten locks that are still held";
        findings.push(match (&begun, self.unused) {
            (Some(_), _) => Finding {
                severity: Note,
                check: "adoption",
                what: format!("it is being taken into use; its votes count in {left} s"),
                why: forgotten,
                fix: None,
            },
            (None, true) => Finding {
                severity: Note,
                check: "unused",
                what: format!("it has never been used; its votes count {left} s after the first use"),
                why: "a server that was never used cannot be told from one that has forgotten its locks",
                fix: Some("quorlock init --fresh, if no lock is in use".to_owned()),
            },
            (None, false) => Finding {
                severity: Warning,
                check: "marker",
                what: format!(
                    "its marker is missing, unlike others': it is new, or its data was deleted; its \
                     votes count {left} s after the next use"
                ),
                why: forgotten,
                fix: None,
            },
        });
        (Votes::CountIn(wait), findings)
    }

    fn promoted(&self) -> Finding {
        Finding {
            severity: Warning,
            check: "promoted",
            what: "it was a replica until it was promoted".to_owned(),
            why: "a replica may not have seen all votes of its master: it waits as a new server does",
            fix: Some("do not fail over to replicas: let the same server come back".to_owned()),
        }
    }

    /// For how much longer it must run, by its own clock.
    fn young_for(&self, info: &Info) -> Duration {
        let told = Duration::from_secs(u64::try_from(info.uptime_s).unwrap_or(0));
        self.survey.quarantine().saturating_sub(told)
    }

    fn floor(&self, facts: &Facts, marker: &Marker) -> Vec<Finding> {
        let now = facts.time_us.and_then(|time| u64::try_from(time).ok());
        let Some(ahead) = now.and_then(|now| marker.floor.checked_sub(now)) else {
            return Vec::new();
        };
        let minutes = ahead / 60_000_000;
        let is_far = ahead > FLOOR_AHEAD_US;
        vec![Finding {
            severity: if is_far { Warning } else { Note },
            check: "floor",
            what: format!("its fences begin {minutes} min ahead of its clock"),
            why: if is_far {
                "some clock was far ahead when that was written, or this one is behind; fences still grow, but do not tell the time"
            } else {
                "that is so for two hours after a node was taken into use; fences grow all the same"
            },
            fix: None,
        }]
    }

    fn memory(&self, facts: &Facts, info: &Info) -> Option<Finding> {
        let evicted = facts.more.evicted_keys;
        (evicted > 0 && info.evicts_by.is_none()).then(|| Finding {
            severity: Warning,
            check: "evicted",
            what: format!("it has deleted {evicted} keys for want of memory since it was started"),
            why: "locks may have been among them; it does not do so now",
            fix: self.cli("CONFIG RESETSTAT"),
        })
    }

    fn time(&self, facts: &Facts, info: &Info) -> Vec<Finding> {
        let mut findings = Vec::new();
        if info.uptime_s < 0 {
            findings.push(Finding {
                severity: Warning,
                check: "uptime",
                what: format!(
                    "it says that it was started in {} s: its clock was set back",
                    -info.uptime_s
                ),
                why: "its keys expire late by as much, and after a restart it waits for longer",
                fix: Some(
                    "set clocks before the server is started: After=time-sync.target".to_owned(),
                ),
            });
        }
        if facts.clock_stands {
            findings.push(Finding {
                severity: Error,
                check: "clock_stands",
                what: format!(
                    "its clock stands still (it says that it has run for {} s)",
                    info.uptime_s
                ),
                why: "keys never expire, so a lock whose holder has crashed stays",
                fix: Some("restart the server; see the clock source of its machine".to_owned()),
            });
        } else if let Some(finding) = facts.clock.and_then(|clock| self.offset(clock)) {
            findings.push(finding);
        }
        findings
    }

    fn offset(&self, ClockOffset { ahead_us, error }: ClockOffset) -> Option<Finding> {
        let size = Duration::from_micros(ahead_us.unsigned_abs());
        (size.saturating_sub(error) > OFFSET_MAX).then(|| Finding {
            severity: Warning,
            check: "clock",
            what: format!(
                "its clock is {:.3} s {} ours, give or take {:.3} s",
                size.as_secs_f64(),
                if ahead_us < 0 { "behind" } else { "ahead of" },
                error.as_secs_f64()
            ),
            why: "when a clock is set right by a step, locks on it end early, or late, by as much",
            fix: Some(
                "keep clocks in step with NTP, by slewing; step them only before the server starts"
                    .to_owned(),
            ),
        })
    }

    /// What is left of its data after a restart.
    fn disk(&self, facts: &Facts, info: &Info) -> Option<Finding> {
        let place = self.survey.servers.iter().position(|server| *server.name() == *self.node.name);
        let is_lasting = place.is_some_and(|place| {
            self.survey.rules.lasting.contains(quorlock_core::NodeId::new(place))
        });
        let rests = facts.rests_on_rewrite == Some(true);
        let what = match (info.keeps_log, facts.appendfsync.as_deref()) {
            (Some(false), _) => "nothing is kept on disk (appendonly no)".to_owned(),
            (_, Some("always")) if rests => {
                "writes are on disk before they are answered, but not while the log is rewritten \
                 (no-appendfsync-on-rewrite yes)"
                    .to_owned()
            }
            (_, Some("always") | None) => return None,
            (_, Some(policy)) => {
                format!(
                    "the last writes are lost if the machine stops (appendfsync {})",
                    printable(policy)
                )
            }
        };
        if is_lasting {
            return Some(Finding {
                severity: Error,
                check: "lasting",
                what: format!("it was declared to forget nothing (--lasting), but {what}"),
                why: "after a restart it would vote at once, and has forgotten locks that are still held",
                fix: self.cli(match (info.keeps_log, rests) {
                    (Some(false), _) => "CONFIG SET appendonly yes",
                    (_, true) => "CONFIG SET no-appendfsync-on-rewrite no",
                    _ => "CONFIG SET appendfsync always",
                }),
            });
        }
        Some(Finding {
            severity: Note,
            check: "persistence",
            what,
            why: "after a restart it does not vote for as long as any lock may be held, so that does no harm",
            fix: None,
        })
    }

    /// What it can do, and what may be done to it.
    fn server(&self, facts: &Facts) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut warning = |check, what: String, why, fix| {
            findings.push(Finding { severity: Warning, check, what, why, fix });
        };
        let more = &facts.more;
        if more.version.is_some_and(|version| version < VERSION_MIN) {
            warning(
                "version",
                format!("{} is older than 6.2", more.software.as_deref().unwrap_or("its version")),
                "nobody has tried whether locks work there",
                Some("upgrade it".to_owned()),
            );
        }
        if !facts.speaks_resp3 {
            warning(
                "resp2",
                "it speaks RESP2 only".to_owned(),
                "those who wait for a lock are not told when it is free, and have to ask again and again",
                Some("connect to the server itself, Redis 6 or later".to_owned()),
            );
        }
        if more.replicas > 0 {
            warning(
                "replicas",
                format!("it has {} replica(s)", more.replicas),
                "a replica that takes its place has not seen all votes; if a tool may do that by itself, locks depend on the quarantine alone",
                Some("switch automatic failover off for this server".to_owned()),
            );
        }
        if facts.debug.as_deref() == Some("yes") {
            warning(
                "debug",
                "everybody may send DEBUG (enable-debug-command yes)".to_owned(),
                "DEBUG RELOAD NOSAVE makes it forget all votes while it runs",
                Some("set enable-debug-command no in its configuration and restart it".to_owned()),
            );
        }
        if let Some(latency) = facts.latency().filter(|latency| *latency > LATENCY_MAX) {
            warning(
                "latency",
                format!("a round trip takes {latency:.1?}"),
                "every lock takes at least one, and its validity is shorter by as much",
                Some("use nodes that are nearer".to_owned()),
            );
        }
        findings
    }
}

/// How a person talks to that server.
fn redis_cli(address: &str, command: &str) -> String {
    match address.rsplit_once(':') {
        Some((host, port)) if !address.starts_with('/') => {
            let host = host.trim_matches(['[', ']']);
            format!("redis-cli -h {host} -p {port} {command}")
        }
        _ => format!("redis-cli -s {address} {command}"),
    }
}

fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(80).collect();
    format!("\"{}\", which is not this version's", printable(&shown))
}

/// Whole seconds, and no less than that.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use quorlock_core::info::Info;

    use super::*;
    use crate::Client;
    use crate::doctor::look::More;
    use crate::doctor::rights::Rights;

    const INFO: &str = "redis_version:7.0.15\r\nrun_id:0d2f\r\nuptime_in_seconds:61\r\n\
        role:master\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";

    fn facts() -> Facts {
        Facts {
            speaks_resp3: true,
            info: Ok(Info::parse(INFO).unwrap()),
            more: More::default(),
            marker: Seen::Nothing,
            adoption: Seen::Nothing,
            adopted_for: Duration::ZERO,
            appendfsync: Some("always".to_owned()),
            rests_on_rewrite: Some(false),
            debug: None,
            rights: Rights::default(),
            round_trips: vec![Duration::from_millis(1)],
            clock: Some(ClockOffset { ahead_us: 0, error: Duration::ZERO }),
            clock_stands: false,
            time_us: Some(1_795_201_160_638_971),
        }
    }

    /// The checks that fail on a node of which this is so; notes are left out.
    fn found(lasting: bool, change: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
        let mut facts = facts();
        change(&mut facts);
        let settings = Client::builder().nodes(["a=redis://a"]);
        let settings = if lasting { settings.lasting_nodes(["a"]) } else { settings };
        let survey = settings.survey().unwrap();
        let node = Looked { name: "a".into(), address: "a:6379".to_owned(), facts: Ok(facts) };
        let report = judge(&survey, &[node]).remove(0);
        let bad = report.findings.iter().filter(|finding| finding.severity > Note);
        bad.map(|finding| finding.check).collect()
    }

    /// What cannot be had from a server here.
    #[test]
    fn clocks_are_judged() {
        let none: [&str; 0] = [];
        let ahead = |ahead_us, error_ms| {
            found(false, |facts| {
                let error = Duration::from_millis(error_ms);
                facts.clock = Some(ClockOffset { ahead_us, error });
            })
        };
        assert_eq!(found(false, |_| ()), none);
        assert_eq!(ahead(1_100_000, 50), ["clock"]);
        assert_eq!(ahead(-1_100_000, 50), ["clock"]);
        // It may be within the bound, for all that is known.
        assert_eq!(ahead(1_100_000, 200), none);
        assert_eq!(found(false, |facts| facts.clock_stands = true), ["clock_stands"]);
        let set_back = |facts: &mut Facts| {
            facts.info = Ok(Info::parse(&INFO.replace("seconds:61", "seconds:-3598")).unwrap());
        };
        assert_eq!(found(false, set_back), ["uptime"]);
        let far = |facts: &mut Facts| facts.round_trips = vec![Duration::from_millis(101)];
        assert_eq!(found(false, far), ["latency"]);
        let old = |facts: &mut Facts| facts.more.version = Some((6, 0));
        assert_eq!(found(false, old), ["version"]);
    }

    #[test]
    fn who_was_promised_to_forget_nothing_must_not() {
        let none: [&str; 0] = [];
        assert_eq!(found(true, |_| ()), none);
        let every_second = |facts: &mut Facts| facts.appendfsync = Some("everysec".to_owned());
        assert_eq!(found(true, every_second), ["lasting"]);
        assert_eq!(found(false, every_second), none);
        assert_eq!(found(true, |facts| facts.rests_on_rewrite = Some(true)), ["lasting"]);
        let no_log = |facts: &mut Facts| {
            facts.info = Ok(Info::parse(&INFO.replace("aof_enabled:1", "aof_enabled:0")).unwrap());
        };
        assert_eq!(found(true, no_log), ["lasting"]);
    }

    #[test]
    fn the_command_is_one_for_that_server() {
        assert_eq!(redis_cli("a:6380", "PING"), "redis-cli -h a -p 6380 PING");
        assert_eq!(redis_cli("[::1]:6380", "PING"), "redis-cli -h ::1 -p 6380 PING");
        assert_eq!(redis_cli("/run/r.sock", "PING"), "redis-cli -s /run/r.sock PING");
    }
}
