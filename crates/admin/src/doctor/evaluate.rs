//! What follows for locks from what was seen on the nodes. Reads facts, and asks nobody.

mod leftovers;
mod together;
mod trust_state;

use std::time::Duration;

use quorlock::admin::{RedisCli, Topology};
use quorlock::node::Node as _;
use quorlock_core::info::Info;
use quorlock_core::shown::{WORD_MAX, shown};
use quorlock_core::{Failure, FailureKind};

use super::look::{Facts, Looked, Seen};
use super::{ClockOffset, Finding, NodeReport, Severity, Votes};
use quorlock::admin::Weight;
use trust_state::is_for_its_kind;

use Severity::{Error, Note, Warning};

pub(super) use together::together;

/// Clocks that differ by more are worth a word; a lock does not compare them, but its ttl does not
/// survive a step.
const OFFSET_MAX: Duration = Duration::from_secs(1);

/// A lock takes a round trip at least; with more than this it is felt.
const LATENCY_MAX: Duration = Duration::from_millis(100);

/// The oldest servers that are supported.
const VERSION_MIN: (u32, u32) = (6, 2);

/// What mends a want of rights.
const LACKS_RIGHTS: &str = "quorlock doctor --acl USER prints the command that gives them; then ACL SAVE, where an aclfile is used";

/// Locks without what is wanted.
const SLOWER: &str =
    "locks work, but those who wait for one are told late, or commands are sent the long way";

/// Locks without what lists them.
const NOT_LISTED: &str = "locks work, but neither quorlock ls nor quorlock init --fresh can look for those that are held";

/// A word on each node, in order.
pub(super) fn evaluate(topology: &Topology, looked: &[Looked]) -> Vec<NodeReport> {
    let unused = looked.iter().all(|node| match &node.facts {
        Ok(facts) => facts.marker == Seen::Nothing && facts.adoption == Seen::Nothing,
        Err(_) => true,
    });
    looked.iter().map(|node| Case { topology, looked, node, unused }.report()).collect()
}

/// One node among the others.
struct Case<'a> {
    topology: &'a Topology,
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
        report.latency = facts.times.latency();
        report.clock = facts.times.offset;
        let mut findings = self.rights(facts);
        match &facts.info {
            Ok(info) => {
                report.uptime_s = Some(info.uptime_s);
                findings.extend(self.kind(facts, info));
                findings.extend(self.duplicates(info));
                findings.extend(Self::database(facts));
                let (votes, trust_state) = self.trust_state(facts, info);
                findings.extend(trust_state);
                findings.extend(self.memory(facts, info));
                findings.extend(self.time(facts, info));
                findings.extend(self.disk(facts, info));
                findings.extend(self.leftovers(facts));
                report.votes = votes;
            }
            Err(why) => findings.push(Finding {
                severity: Error,
                check: "info",
                what: format!("INFO cannot be used: {why}"),
                why: "without it nobody knows whether the server was restarted and has forgotten its locks",
                fix: "connect to the server itself, not to a proxy, and give the user the right +info"
                    .to_owned(),
            }),
        }
        findings.extend(self.server(facts));
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        if findings.iter().any(|finding| finding.severity == Error) {
            report.votes = Votes::DoNotCount;
            // No wait ends that, and none is told of.
            findings
                .retain(|finding| !trust_state::WAITS.contains(&(finding.check, finding.severity)));
        }
        report.findings = findings;
        report
    }

    fn cli(&self, command: &str) -> String {
        self.node.redis_cli.line(command)
    }

    /// Settings that are in force at once, and after a restart.
    fn set(&self, settings: &[&str]) -> String {
        let set = settings.iter().map(|setting| self.cli(&format!("CONFIG SET {setting}")));
        set.chain([self.cli("CONFIG REWRITE")]).collect::<Vec<_>>().join(" && ")
    }

    /// What is set at start only.
    fn configure(&self, setting: &str) -> String {
        format!(
            "set {setting} in its configuration file ({} names it) and restart it",
            self.cli("INFO server")
        )
    }

    fn unreached(&self, failure: &Failure) -> Finding {
        let login = failure.kind() == FailureKind::Unauthenticated;
        Finding {
            severity: Error,
            check: if login { "login" } else { "reach" },
            what: failure.to_string(),
            why: "its vote is missing from every lock",
            fix: self.to_reach(failure),
        }
    }

    /// What mends that the server cannot be reached or logged in to.
    fn to_reach(&self, failure: &Failure) -> String {
        let says = |words| failure.detail().is_some_and(|detail| detail.contains(words));
        if failure.kind() == FailureKind::Unauthenticated {
            return "give the user and password: --username, QUORLOCK_PASSWORD or --password-file"
                .to_owned();
        }
        if failure.kind() == FailureKind::MissingCommand {
            return "remove its rename-command line from the server's configuration file, and restart it"
                .to_owned();
        }
        if says("maxclients") {
            return format!(
                "end clients that are idle, or allow more of them: {}",
                self.set(&["maxclients NUMBER"])
            );
        }
        let cli = &self.node.redis_cli;
        let other = if says("begins with redis://") {
            format!(
                "if this answers, begin its URL with redis://: {}; else ",
                cli.plain().line("PING")
            )
        } else if says("begins with rediss://") {
            format!(
                "if this answers, begin its URL with rediss://, and name the authority with --tls-ca: {}; else ",
                cli.encrypted().line("PING")
            )
        } else {
            String::new()
        };
        format!(
            "{other}start the server, or fix the way to it (its address, a firewall, TLS), until this answers: {}",
            self.cli("PING")
        )
    }

    fn rights(&self, facts: &Facts) -> Vec<Finding> {
        let rights = &facts.rights;
        let mut findings = Vec::new();
        let fix = || LACKS_RIGHTS.to_owned();
        if rights.keys {
            findings.push(Finding {
                severity: Error,
                check: "rights",
                what: format!(
                    "the user may not use keys that begin with {:?}",
                    self.topology.own_key("")
                ),
                why: "there the node keeps who it votes for, and how far fences have been counted",
                fix: fix(),
            });
        }
        let lacking = [
            (
                Error,
                &rights.needed,
                "without these a lock cannot be taken, extended or given back here",
            ),
            (Warning, &rights.wanted, SLOWER),
            (Warning, &rights.shared, "locks work, but not those that readers share"),
            (Note, &rights.listing, NOT_LISTED),
        ];
        findings.extend(self.missing(&rights.missing));
        for (severity, rights, why) in
            lacking.into_iter().filter(|(_, rights, _)| !rights.is_empty())
        {
            let what = format!("the user lacks {}", rights.join(" "));
            findings.push(Finding { severity, check: "rights", what, why, fix: fix() });
        }
        if let Some(error) = &rights.cannot_write {
            let is_told = facts.info.as_ref().is_ok_and(|info| is_for_its_kind(error, info));
            findings.push(Finding {
                severity: if is_told { Note } else { Error },
                check: "write",
                what: format!("nothing can be written: {error}"),
                why: "a vote is a key that is written",
                fix: self.to_write(error),
            });
        }
        findings
    }

    /// Commands that the server does not have.
    fn missing(&self, missing: &[(&'static str, Weight)]) -> Vec<Finding> {
        let weights = [
            (Weight::Needed, Error, "without it no lock can be taken, extended or given back here"),
            (Weight::Shared, Warning, "locks work, but not those that readers share"),
            (Weight::Wanted, Note, SLOWER),
            (Weight::Listing, Note, NOT_LISTED),
        ];
        let findings = weights.into_iter().filter_map(|(weight, severity, why)| {
            let mut names: Vec<&str> =
                missing.iter().filter(|(_, other)| *other == weight).map(|(name, _)| *name).collect();
            names.dedup();
            let (first, rest) = names.split_first()?;
            let lines: Vec<String> =
                names.iter().map(|name| format!("rename-command {name}")).collect();
            let commands = if rest.is_empty() { "command" } else { "commands" };
            let names = rest.iter().fold((*first).to_owned(), |all, name| all + ", " + name);
            Some(Finding {
                severity,
                check: "command",
                what: format!("the server has no {commands} {names} (renamed or disabled)"),
                why,
                fix: format!(
                    "remove what begins with {} from its configuration file ({} names it) and restart it; a service                      that disables commands cannot be a node",
                    lines.join(" and "),
                    self.cli("INFO server")
                ),
            })
        });
        findings.collect()
    }

    /// What mends that nothing can be written, by what the server says.
    fn to_write(&self, error: &str) -> String {
        match error.split(' ').next().unwrap_or_default() {
            "OOM" => format!(
                "give it more memory than it uses ({}): {}",
                self.cli("INFO memory"),
                self.set(&["maxmemory BYTES"])
            ),
            "MISCONF" => format!(
                "make room on its disk and let it write there ({} tells what failed), then: {}",
                self.cli("INFO persistence"),
                self.cli("BGSAVE")
            ),
            "NOREPLICAS" => self.set(&["min-replicas-to-write 0"]),
            _ => format!(
                "fix what else is found here, or what the server says ({} tells more); then look again: quorlock doctor",
                self.cli("INFO")
            ),
        }
    }

    /// Whether it is a server that may vote at all.
    fn kind(&self, facts: &Facts, info: &Info) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut error = |check, what: String, why, fix| {
            findings.push(Finding { severity: Error, check, what, why, fix });
        };
        if !info.is_master {
            error(
                "role",
                "it is a replica".to_owned(),
                "it repeats another server's votes and has none of its own",
                format!(
                    "list its master{} in its place; only if it is meant to be a node of its own, and nobody needs the copy: {}",
                    facts.more.master.as_ref().map(|at| format!(" {at}")).unwrap_or_default(),
                    self.cli("REPLICAOF NO ONE")
                ),
            );
        }
        if info.is_cluster {
            error(
                "cluster",
                "it is part of a cluster (cluster-enabled yes)".to_owned(),
                "a cluster moves keys, and fails over to replicas that have not seen every vote",
                format!("use a server of its own; or {}", self.configure("cluster-enabled no")),
            );
        }
        if info.is_loading {
            error(
                "loading",
                "it is loading its data".to_owned(),
                "until then it refuses all commands",
                format!(
                    "wait: {} shows how far it is; then look again: quorlock doctor",
                    self.cli("INFO persistence")
                ),
            );
        }
        if let Some(policy) = &info.evicts_by {
            error(
                "eviction",
                format!(
                    "it deletes keys when its memory is full (maxmemory-policy {})",
                    shown(policy, WORD_MAX)
                ),
                "a lock that is deleted while it is held is granted to a second holder",
                self.set(&["maxmemory-policy noeviction"]),
            );
        }
        findings
    }

    fn database(facts: &Facts) -> Option<Finding> {
        let failure = facts.elsewhere.as_ref().filter(|it| it.kind().is_disagreement())?;
        Some(Finding {
            severity: Error,
            check: "database",
            what: failure.detail().unwrap_or_default().to_owned(),
            why: "clients in different databases know nothing of each other's locks",
            fix: "give all clients the same URL; or, if no lock is in use: quorlock init --fresh"
                .to_owned(),
        })
    }

    fn duplicates(&self, info: &Info) -> Option<Finding> {
        let is_duplicate = |other: &&Looked| {
            let run_id = other.facts.as_ref().ok().and_then(|facts| facts.info.as_ref().ok());
            !std::ptr::eq(*other, self.node)
                && run_id.is_some_and(|other| other.run_id == info.run_id)
        };
        let duplicate = self.looked.iter().find(is_duplicate)?;
        Some(Finding {
            severity: Error,
            check: "same_server",
            what: format!(
                "it is the same server as node {} ({})",
                duplicate.name, duplicate.address
            ),
            why: "one server would vote twice, and a majority of votes be no majority of servers",
            fix: "list it once (-n, QUORLOCK_NODES or the file); if it was cloned, restart it"
                .to_owned(),
        })
    }

    fn memory(&self, facts: &Facts, info: &Info) -> Option<Finding> {
        let evicted = facts.more.evicted_keys;
        (evicted > 0 && info.evicts_by.is_none()).then(|| Finding {
            severity: Warning,
            check: "evicted",
            what: format!(
                "it has deleted {evicted} keys because its memory was full since it was started"
            ),
            why: "locks may have been among them; it does not do so now",
            fix: format!(
                "nothing is left to fix; to reset this count: {}",
                self.cli("CONFIG RESETSTAT")
            ),
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
                fix: "see that its clock is right: chronyc tracking; and have it set before the server starts: \
                      systemctl edit redis-server.service, there After=time-sync.target in [Unit]"
                    .to_owned(),
            });
        }
        if facts.times.clock_stands {
            findings.push(Finding {
                severity: Error,
                check: "clock_stands",
                what: format!(
                    "its clock stands still (it says that it has run for {} s)",
                    info.uptime_s
                ),
                why: "keys never expire, so a lock whose holder has crashed stays",
                fix: "see the clock of its machine (timedatectl; a virtual machine that was paused; libfaketime), \
                      and restart the server"
                    .to_owned(),
            });
        } else if let Some(finding) = facts.times.offset.and_then(|clock| self.offset(clock)) {
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
            fix: "find the wrong one with chronyc tracking, here and there; set it while the server is stopped: \
                  chronyc makestep; then let chronyd keep it, by slewing"
                .to_owned(),
        })
    }

    /// The operator says that it forgets nothing when it stops.
    fn is_declared_durable(&self) -> bool {
        let place =
            self.topology.servers.iter().position(|server| *server.name() == *self.node.name);
        place.is_some_and(|place| {
            self.topology.rules.durable.contains(quorlock_core::NodeId::new(place))
        })
    }

    /// What is left of its data after a restart.
    fn disk(&self, facts: &Facts, info: &Info) -> Option<Finding> {
        let rests = facts.settings.rests_on_rewrite == Some(true);
        let what = match (info.keeps_log, facts.settings.appendfsync.as_deref()) {
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
                    shown(policy, WORD_MAX)
                )
            }
        };
        if self.is_declared_durable() {
            return Some(Finding {
                severity: Error,
                check: "durable",
                what: format!("it was declared to forget nothing (--durable), but {what}"),
                why: "after a restart it would vote at once, and has forgotten locks that are still held",
                fix: self.set(&self.to_last(facts, info)),
            });
        }
        Some(Finding {
            severity: Note,
            check: "persistence",
            what,
            why: "after a restart it does not vote for as long as any lock may be held, so that does no harm",
            fix: format!(
                "nothing needs to be fixed; for it to vote at once after a restart, {}; then --durable {}",
                self.set(&self.to_last(facts, info)),
                self.node.name
            ),
        })
    }

    /// The settings that it lacks to forget nothing.
    fn to_last(&self, facts: &Facts, info: &Info) -> Vec<&'static str> {
        let lacks = [
            (info.keeps_log != Some(true), "appendonly yes"),
            (facts.settings.appendfsync.as_deref() != Some("always"), "appendfsync always"),
            (facts.settings.rests_on_rewrite == Some(true), "no-appendfsync-on-rewrite no"),
        ];
        lacks.into_iter().filter_map(|(lacks, setting)| lacks.then_some(setting)).collect()
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
                "install Redis 6.2 or later, or Valkey, and restart it".to_owned(),
            );
        }
        if !facts.speaks_resp3 {
            warning(
                "resp2",
                "it speaks RESP2 only".to_owned(),
                "those who wait for a lock are not told when it is free, and have to ask again and again",
                format!(
                    "connect to the server itself, not to a proxy, Redis 6 or later, until this answers: {}",
                    self.cli("HELLO 3")
                ),
            );
        }
        if more.replicas > 0 {
            warning(
                "replicas",
                format!("it has {} replica(s)", more.replicas),
                "a replica that takes its place has not seen all votes; if a tool may do that by itself, locks depend on the quarantine alone",
                format!(
                    "take this server out of Sentinel (SENTINEL REMOVE), or forbid to promote its replicas: {}",
                    unpromoted(&self.node.redis_cli, &more.replica_addresses)
                ),
            );
        }
        if facts.settings.debug.as_deref() == Some("yes") {
            warning(
                "debug",
                "everybody may send DEBUG (enable-debug-command yes)".to_owned(),
                "DEBUG RELOAD NOSAVE makes it forget all votes while it runs",
                self.configure("enable-debug-command no"),
            );
        }
        if let Some(latency) = facts.times.latency().filter(|latency| *latency > LATENCY_MAX) {
            warning(
                "latency",
                format!("a round trip takes {latency:.1?}"),
                "every lock takes at least one, and its validity is shorter by as much",
                format!(
                    "see what takes so long: {} and {}; if it is the way, use nodes that are nearer",
                    self.cli("--latency"),
                    self.cli("SLOWLOG GET 10")
                ),
            );
        }
        findings
    }
}

/// Replicas whose priority is 0 are promoted by no Sentinel. They are reached as their master is.
fn unpromoted(master: &RedisCli, replicas: &[String]) -> String {
    let command = "CONFIG SET replica-priority 0";
    if replicas.is_empty() {
        return master.at("REPLICA:PORT").line(command);
    }
    let all = replicas.iter().map(|replica| {
        let replica = master.at(replica);
        format!("{} && {}", replica.line(command), replica.line("CONFIG REWRITE"))
    });
    all.collect::<Vec<_>>().join(" && ")
}

#[cfg(test)]
mod tests;
