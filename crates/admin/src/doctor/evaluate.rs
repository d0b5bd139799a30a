//! Evaluates the facts about nodes. Sends nothing.

mod access;
mod clock;
mod data;
mod leftovers;
mod server;
mod together;
mod trust_state;

use quorlock::admin::Topology;

use super::Severity::Error;
use super::look::{Looked, Seen};
use super::{NodeReport, Votes};

pub(super) use together::together;

pub(super) fn evaluate(topology: &Topology, looked: &[Looked]) -> Vec<NodeReport> {
    let unused = looked.iter().all(|node| match &node.facts {
        Ok(facts) => facts.marker == Seen::Nothing && facts.adoption == Seen::Nothing,
        Err(_) => true,
    });
    looked.iter().map(|node| Case { topology, looked, node, unused }.report()).collect()
}

struct Case<'a> {
    topology: &'a Topology,
    looked: &'a [Looked],
    node: &'a Looked,
    unused: bool,
}

impl Case<'_> {
    fn report(&self) -> NodeReport {
        let mut report = NodeReport {
            node: self.node.name.clone(),
            address: self.node.address.clone(),
            is_located: self.node.is_located,
            ..NodeReport::default()
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
        findings.extend(Self::sentinels(facts));
        match &facts.info {
            Ok(info) => {
                report.uptime_s = Some(info.uptime_s);
                findings.extend(self.kind(facts, info));
                findings.extend(self.replicas(facts));
                findings.extend(self.duplicates(info));
                findings.extend(self.database(facts));
                let (votes, trust_state) = self.trust_state(facts, info);
                findings.extend(trust_state);
                findings.extend(self.memory(facts, info));
                findings.extend(self.time(facts, info));
                findings.extend(self.disk(info));
                findings.extend(self.leftovers(facts));
                findings.extend(Self::fenced(facts));
                report.votes = votes;
            }
            // Another finding reports the missing command or right.
            Err(_) if facts.rights.lacks("INFO", "+info") => {}
            Err(why) if is_busy(why) => findings.push(self.busy()),
            Err(why) => findings.push(Error.finding(
                "info",
                format!("INFO cannot be used: {why}"),
                "without it nobody knows whether the server was restarted and has forgotten its locks",
                "connect to the server itself, not to a proxy, and give the user the right +info",
            )),
        }
        findings.extend(self.server(facts));
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        if findings.iter().any(|finding| finding.severity == Error) {
            // No wait mends an error. So a node with an error loses the finding that announces the end of its wait.
            if !matches!(report.votes, Votes::Count | Votes::DoNotCount) {
                findings.retain(|finding| !trust_state::WAITS.contains(&finding.check));
            }
            report.votes = Votes::DoNotCount;
        }
        report.findings = findings;
        report
    }

    fn cli(&self, command: &str) -> String {
        self.node.redis_cli.line(command)
    }

    /// The commands that change settings at once and keep them over a restart.
    fn set(&self, settings: &[&str]) -> String {
        let set = settings.iter().map(|setting| self.cli(&format!("CONFIG SET {setting}")));
        set.chain([self.cli("CONFIG REWRITE")]).collect::<Vec<_>>().join(" && ")
    }

    /// The remedy for a setting that the server reads only at start.
    fn configure(&self, setting: &str) -> String {
        format!("set {setting} in {} and restart it", self.configuration_file())
    }

    fn configuration_file(&self) -> String {
        let by_info = self.told_by("INFO server", " names it");
        let by_unit = " (systemctl cat redis-server.service names it)";
        format!("its configuration file{}", if by_info.is_empty() { by_unit } else { &by_info })
    }

    /// The `INFO` command that shows more about a finding, in parentheses; empty if the server does not answer `INFO`.
    fn told_by(&self, info: &str, tells: &str) -> String {
        match &self.node.facts {
            Ok(facts) if facts.info.is_ok() => format!(" ({}{tells})", self.cli(info)),
            _ => String::new(),
        }
    }
}

/// Whether the error says that the server runs a script, and refuses all other commands meanwhile.
fn is_busy(error: &str) -> bool {
    error.starts_with("BUSY ")
}

#[cfg(test)]
mod tests;
