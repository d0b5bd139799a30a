//! Whether the server is a master, is listed once, and has a version and settings that suit locks.

use std::time::Duration;

use quorlock::admin::RedisCli;
use quorlock_core::ROUND_TRIPS_AWAITED;
use quorlock_core::display::{WORD_MAX, ceil_ms, exactly, shown};
use quorlock_core::info::Info;

use super::Case;
use crate::doctor::Finding;
use crate::doctor::Severity::{Error, Warning};
use crate::doctor::look::{Facts, Looked};

/// The largest round trip that is not reported. A lock takes at least one round trip.
const LATENCY_MAX: Duration = Duration::from_millis(100);

const VERSION_MIN: (u32, u32) = (6, 2);

impl Case<'_> {
    pub(super) fn kind(&self, facts: &Facts, info: &Info) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut error = |check, what: String, why, fix| {
            findings.push(Error.finding(check, what, why, fix));
        };
        if !info.is_master {
            error(
                "role",
                "it is a replica".to_owned(),
                "it repeats another server's votes and has none of its own",
                if self.node.replicas > 0 {
                    "wait until the failover has ended; then look again: quorlock doctor".to_owned()
                } else {
                    format!(
                        "list its master{} in its place; only if it is meant to be a node of its own, and nobody needs the copy: {}",
                        facts.more.master.as_ref().map(|at| format!(" {at}")).unwrap_or_default(),
                        self.cli("REPLICAOF NO ONE")
                    )
                },
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
                self.to_load(),
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

    pub(super) fn database(&self, facts: &Facts) -> Option<Finding> {
        let failure = facts.elsewhere.as_ref().filter(|it| it.kind().is_disagreement())?;
        Some(Error.finding(
            "database",
            failure.detail().unwrap_or_default(),
            "clients in different databases know nothing of each other's locks",
            format!(
                "give all clients the same URL; or, to use this database, {}",
                self.topology.init.fresh(true, 0)
            ),
        ))
    }

    pub(super) fn duplicates(&self, info: &Info) -> Option<Finding> {
        let is_duplicate = |other: &&Looked| {
            let run_id = other.facts.as_ref().ok().and_then(|facts| facts.info.as_ref().ok());
            !std::ptr::eq(*other, self.node)
                && run_id.is_some_and(|other| other.run_id == info.run_id)
        };
        let duplicate = self.looked.iter().find(is_duplicate)?;
        Some(Error.finding(
            "same_server",
            format!("it is the same server as node {} ({})", duplicate.name, duplicate.address),
            "one server would vote twice, and a majority of votes be no majority of servers",
            "list it once (-n, QUORLOCK_NODES or the file); if it was cloned, restart it",
        ))
    }

    /// Reports an old version, missing features, and settings of the server that endanger locks.
    pub(super) fn server(&self, facts: &Facts) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut warning = |check, what: String, why, fix| {
            findings.push(Warning.finding(check, what, why, fix));
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
                "a waiting client gets no push when a lock is free, so it polls",
                format!(
                    "connect to the server itself, not to a proxy, Redis 6 or later, until this answers: {}",
                    self.cli("HELLO 3")
                ),
            );
        }
        if more.replicas > 0 && self.node.replicas == 0 {
            let plural = if more.replicas == 1 { "" } else { "s" };
            warning(
                "replicas",
                format!("it has {} replica{plural}", more.replicas),
                "a replica that takes its place has not seen all votes; if a tool may do that by itself, locks depend on the quarantine alone",
                format!(
                    "if a replica may take its place under its name, add replicas={0} to its URL in all clients \
                     (…{1}?replicas={0}); otherwise take this server out of Sentinel (SENTINEL REMOVE), or forbid to \
                     promote its replicas: {2}",
                    more.replicas,
                    self.node.address,
                    unpromoted(&self.node.redis_cli, &more.replica_addresses)
                ),
            );
        }
        if facts.may_debug {
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
        let too_short = facts.times.latency().and_then(|latency| self.too_short_for(latency));
        if let Some(setting) = too_short {
            warning(
                "timeout",
                setting,
                "an answer that takes a little longer than usual comes too late, and the node counts as failed",
                "change the setting in all clients".to_owned(),
            );
        }
        findings
    }

    /// The setting that leaves an answer, or a connection, less than four round trips.
    fn too_short_for(&self, latency: Duration) -> Option<String> {
        let timing = &self.topology.timing;
        let (connect_timeout, needed) = (timing.connect_timeout(), latency * ROUND_TRIPS_AWAITED);
        let connecting = (connect_timeout < needed).then(|| {
            format!(
                "a round trip takes {latency:.1?} and the connect timeout is {connect_timeout:.1?}, choose at \
                 least {}, or none",
                exactly(ceil_ms(needed))
            )
        });
        timing.too_short_for(latency).or(connecting)
    }
}

impl Case<'_> {
    /// Reports why the votes of a node with replicas do not count, if they do not.
    pub(super) fn replicas(&self, facts: &Facts) -> Option<Finding> {
        let (declared, connected) = (u64::from(self.node.replicas), facts.more.replicas);
        let (what, why, fix) = if declared == 0 {
            return None;
        } else if !facts.speaks_resp3 {
            (
                "it has replicas, and speaks RESP2 only".to_owned(),
                "without pushes a client does not notice that a replica's data replaced the node's",
                "connect to the server itself, not to a proxy".to_owned(),
            )
        } else if connected > declared {
            (
                format!("it has {connected} replicas, but its URL says replicas={declared}"),
                "a replica that has not acknowledged a vote may be promoted",
                format!("set replicas={connected} in all clients, or remove the other replicas"),
            )
        } else if connected < declared {
            (
                format!("it has {connected} of {declared} replicas"),
                "a vote counts only if every replica acknowledges it",
                format!(
                    "start each replica that is away, or connect it again; this shows those that are there: {}",
                    self.cli("INFO replication")
                ),
            )
        } else if facts.more.silent_replicas > 0 {
            let silent = facts.more.silent_replicas;
            let verb = if silent == 1 { "does" } else { "do" };
            (
                format!("{silent} of {connected} replicas {verb} not acknowledge"),
                "a vote counts only if every replica acknowledges it",
                format!(
                    "start or continue each replica until this shows state=online and a lag of 0 or 1 for it: {}",
                    self.cli("INFO replication")
                ),
            )
        } else {
            return None;
        };
        Some(Error.finding("replicas", what, why, fix))
    }
}

/// Commands that set the priority of replicas to 0, so that Sentinel does not promote them. Each command connects to
/// its replica with the TLS files and the user with which the master is reached.
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
