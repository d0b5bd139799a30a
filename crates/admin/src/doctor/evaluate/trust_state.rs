//! Whether a node's votes count. A node's marker proves that no data was lost; an adoption is a key that begins a wait.

use std::time::Duration;

use quorlock::admin::Weight;
use quorlock_core::display::{SETTINGS_MAX, seconds, shown, shown_text};
use quorlock_core::info::Info;
use quorlock_core::marker::{Adoption, Cluster, Marker};

use super::Case;
use super::access::LACKS_RIGHTS;
use crate::doctor::Severity::{Error, Note, Warning};
use crate::doctor::look::{Facts, Looked, Seen};
use crate::doctor::{Finding, Votes};

/// The consequence of a finding about a key of the library's own.
const OWN_KEY: &str = "it is the library's own: what it says decides whether votes count";

/// The reason for the wait of a server without a marker.
const FORGOTTEN: &str =
    "a server that quorlock does not know may have forgotten locks that are still held";

/// The remedy for a wait that has begun.
const TIME_MENDS: &str =
    "wait, then look again: quorlock doctor; or stop all clients, then quorlock init --fresh";

/// The remedy for a wait that is over.
const NOTHING: &str = "nothing needs to be fixed";

/// The remedy for a wait that has not begun.
const USE_MENDS: &str = "have a client wait for a lock that long, once; or stop all clients, then quorlock init --fresh";

/// Names of the checks that report how long a node waits until it votes.
pub(super) const WAITS: [&str; 5] = ["restarted", "promoted", "adoption", "unused", "marker"];

/// A client sets a marker's floor, the smallest fencing token that the node gives out, ahead of the clock. This is the
/// largest distance to the clock that is not reported: the distance at the time of writing, plus one minute.
const FLOOR_AHEAD_US: u64 = Marker::FLOOR_AHEAD_US + 60 * 1_000_000;

impl Case<'_> {
    /// Whether the node's votes count, and the findings that explain the answer.
    pub(super) fn trust_state(&self, facts: &Facts, info: &Info) -> (Votes, Vec<Finding>) {
        let key = &self.topology.rules.marker;
        let marker = match &facts.marker {
            Seen::Nothing => None,
            Seen::Unreadable(error) => {
                return (Votes::DoNotCount, vec![self.unread(key, error, facts, info)]);
            }
            Seen::Text(text) => match Marker::parse(text) {
                Some(marker) if marker.cluster == self.topology.rules.cluster => Some(marker),
                Some(marker) => {
                    return (Votes::DoNotCount, vec![self.other("it votes for", &marker.cluster)]);
                }
                None => return (Votes::DoNotCount, vec![self.foreign(key, &quoted(text))]),
            },
        };
        let mut findings: Vec<Finding> =
            marker.iter().filter_map(|marker| floor(facts, marker)).collect();
        let promoted_at = info.promoted_at.unwrap_or(-1);
        let is_of_this_run =
            |old: &Marker| *old.run_id == *info.run_id && old.promoted_at == promoted_at;
        if marker.as_ref().is_some_and(is_of_this_run) {
            return (Votes::Count, findings);
        }
        // A restarted server with a marker votes once its uptime is long enough, unless it may have been promoted.
        let would_tell = self.is_durable(info) || self.topology.rules.would_tell_of_promotions();
        let (votes, finding) = if marker.is_some() && info.promoted_at.is_none() && would_tell {
            self.restarted(info)
        } else {
            self.adopted(facts, info)
        };
        findings.extend(finding);
        (votes, findings)
    }

    fn restarted(&self, info: &Info) -> (Votes, Option<Finding>) {
        let young_for = self.young_for(info);
        if young_for.is_zero() {
            return (Votes::Count, None);
        }
        let (ago, left) = (info.uptime_s, seconds(young_for));
        let finding = Warning.finding(
            "restarted",
            format!("it was restarted {ago} s ago; its votes count in {left} s"),
            "it may have forgotten locks that are still held",
            TIME_MENDS,
        );
        (Votes::CountIn(young_for), Some(finding))
    }

    /// Evaluates a node that votes only after an adoption: a client writes the adoption key, waits, and writes a new
    /// marker. Either the node has the adoption key, and its wait runs or is over, or the next client writes the key.
    fn adopted(&self, facts: &Facts, info: &Info) -> (Votes, Option<Finding>) {
        let no = |finding| (Votes::DoNotCount, Some(finding));
        let quarantine = self.topology.rules.quarantine();
        let key = &self.topology.rules.adoption;
        let adoption = match &facts.adoption {
            Seen::Nothing => None,
            Seen::Unreadable(error) => return no(self.unread(key, error, facts, info)),
            Seen::Text(text) => match Adoption::parse(text) {
                Some(adoption) if adoption.marker.cluster == self.topology.rules.cluster => {
                    Some(adoption)
                }
                Some(adoption) if self.may_replace(&adoption.marker.cluster, text) => {
                    return self.replaced(&adoption);
                }
                Some(adoption) => {
                    return no(self.other("it is in quarantine for", &adoption.marker.cluster));
                }
                None => return no(self.foreign(key, &quoted(text))),
            },
        };
        // An adoption key that is older than the server's start or promotion does not count: a client waits once more.
        let promoted_at = info.promoted_at.unwrap_or(-1);
        let begun = adoption.filter(|Adoption { marker, .. }| {
            *marker.run_id == *info.run_id && marker.promoted_at == promoted_at
        });
        let wait = begun.as_ref().map_or(quarantine, |adoption| {
            let wait = Duration::from_millis(adoption.wait_ms).max(quarantine);
            wait.saturating_sub(facts.adopted_for).max(self.young_for(info))
        });
        let left = seconds(wait);
        // If the wait is over, the next client that locks gets the vote, and nothing needs to be done.
        let (votes, when, severity, mended) = match &begun {
            Some(_) if wait.is_zero() => {
                (Votes::CountIn(wait), "at the next use".to_owned(), Note, NOTHING)
            }
            Some(_) => (Votes::CountIn(wait), format!("in {left} s"), Warning, TIME_MENDS),
            None => {
                let when = format!("{left} s after the next use");
                (Votes::CountAfterUse(wait), when, Warning, USE_MENDS)
            }
        };
        let (check, what, why) = match (info.promoted_at, &begun) {
            (Some(_), _) => (
                "promoted",
                "it was a replica until it was promoted",
                "a replica may not have seen all votes of its master: it waits as a new server does",
            ),
            (None, Some(_)) => ("adoption", "it is in quarantine", FORGOTTEN),
            (None, None) if self.unused => (
                "unused",
                "it has never been used",
                "a server that was never used cannot be told from one that has forgotten its locks",
            ),
            (None, None) => (
                "marker",
                "other nodes have been used, but not this one: it is new, or its data was deleted",
                FORGOTTEN,
            ),
        };
        let fix = match info.promoted_at {
            Some(_) => self.after_promotion(facts, mended),
            None => mended.to_owned(),
        };
        let what = format!("{what}; its votes count {when}");
        (votes, Some(severity.finding(check, what, why, fix)))
    }

    /// Whether a client replaces this adoption of other settings by its own: these settings can have no quorum without the
    /// nodes that have it, and a quorum of nodes votes for the client.
    fn may_replace(&self, theirs: &Cluster, text: &str) -> bool {
        let ours = &self.topology.rules.cluster;
        let facts = || self.looked.iter().filter_map(|node| node.facts.as_ref().ok());
        let is_adopted = |facts: &&Facts| match (&facts.marker, &facts.adoption) {
            (Seen::Nothing, Seen::Text(text)) => {
                Adoption::parse(text).is_some_and(|adoption| adoption.marker.cluster == *theirs)
            }
            _ => false,
        };
        let votes = |facts: &&Facts| match (&facts.marker, &facts.info) {
            (Seen::Text(text), Ok(info)) => Marker::parse(text)
                .is_some_and(|marker| marker.cluster == *ours && marker.run_id == info.run_id),
            _ => false,
        };
        let adopted = facts().filter(is_adopted).count();
        let is_harmless = theirs
            .nodes_and_quorum()
            .is_some_and(|(nodes, quorum)| nodes.saturating_sub(adopted) < quorum);
        let needed = self.topology.quorum.needed();
        !Adoption::was_moved(text) && is_harmless && facts().filter(votes).count() >= needed
    }

    /// The finding about an adoption of other settings that the next client replaces.
    fn replaced(&self, adoption: &Adoption) -> (Votes, Option<Finding>) {
        let theirs = shown(&adoption.marker.cluster.to_string(), SETTINGS_MAX);
        let wait = Duration::from_millis(adoption.wait_ms).max(self.topology.rules.quarantine());
        let left = seconds(wait);
        let finding = Warning.finding(
            "configuration",
            format!(
                "it is in quarantine for {theirs}; the next command with the settings used here takes it back, and its \
                 votes count {left} s after that"
            ),
            "a client with another list of nodes has begun to use a node that had lost its data",
            "find that client and correct its list; the node needs nothing but the next lock",
        );
        (Votes::CountAfterUse(wait), Some(finding))
    }

    /// The remedy for a node whose server was promoted. If one of its replicas were away, another finding would say so.
    fn after_promotion(&self, facts: &Facts, mended: &str) -> String {
        if self.node.replicas > 0 {
            return format!(
                "a failover has this effect, and all replicas are back; to find out why the old master failed, see the \
                 log of Sentinel or of the service; now {mended}"
            );
        }
        let (replicas, address) = (facts.more.replicas.max(1), &self.node.address);
        format!(
            "if a replica may take its place again, add replicas={replicas} to its URL in all clients \
             (…{address}?replicas={replicas}) or, with Sentinel, use redis+sentinel://HOST:26379/NAME?replicas={replicas}; \
             otherwise prevent failovers, and let the same server come back; now {mended}"
        )
    }

    /// Whether the operator has declared that the node keeps its data, and no setting of the server contradicts that.
    fn is_durable(&self, info: &Info) -> bool {
        self.is_declared_durable() && info.forgets_by().is_none()
    }

    /// The time by which the server's uptime is too short for its votes to count; zero for a durable server.
    fn young_for(&self, info: &Info) -> Duration {
        if self.is_durable(info) {
            return Duration::ZERO;
        }
        let told = Duration::from_secs(u64::try_from(info.uptime_s).unwrap_or(0));
        self.topology.rules.quarantine().saturating_sub(told)
    }

    fn other(&self, how: &str, theirs: &Cluster) -> Finding {
        let ours = &self.topology.rules.cluster;
        let all = Looked::settings(self.looked);
        let change = self.topology.init.or_change(all.iter().map(|(node, text)| (*node, &**text)));
        Error.finding(
            "configuration",
            format!("{how} {}, but here it is {ours}", shown(&theirs.to_string(), SETTINGS_MAX)),
            "clients that do not agree about nodes, quorum and longest ttl can hold one lock at the same time",
            format!("give all clients the same settings; {change}"),
        )
    }

    /// The finding: a key of the library's own holds a text that no client has written.
    fn foreign(&self, key: &str, what: &str) -> Finding {
        let delete = self.node.redis_cli.line_about("DEL", key.as_bytes());
        Error.finding(
            "marker",
            format!("its key {key} holds {what}"),
            OWN_KEY,
            format!("find out who wrote it; if nobody needs it: {delete}"),
        )
    }

    /// The finding: the server did not show the value of a key of the library's own. The key may be a good marker, so
    /// the fix does not delete it.
    fn unread(&self, key: &str, error: &str, facts: &Facts, info: &Info) -> Finding {
        if error.starts_with("WRONGTYPE") {
            return self.foreign(key, &format!("no text: {error}"));
        }
        let lacks_right = error.starts_with("NOPERM");
        // If `is_told` is true, another finding reports the cause: the server's role or the missing right.
        let is_told = (lacks_right
            && (facts.rights.keys || facts.rights.is_denied(Weight::Needed)))
            || facts.rights.lacks("GET", "+get")
            || is_for_its_kind(error, info);
        let severity = if is_told { Note } else { Error };
        severity.finding(
            "marker",
            format!("its key {key} cannot be read: {error}"),
            OWN_KEY,
            if lacks_right {
                LACKS_RIGHTS
            } else {
                "leave the key as it is; fix what else is found here, and look again: quorlock doctor"
            },
        )
    }
}

fn floor(facts: &Facts, marker: &Marker) -> Option<Finding> {
    let now = u64::try_from(facts.times.last_us?).ok()?;
    let ahead = marker.floor.checked_sub(now)?;
    let what = format!("its fences begin {} min ahead of its clock", ahead / 60_000_000);
    if ahead > FLOOR_AHEAD_US {
        Some(Warning.finding(
            "floor",
            what,
            "some clock was far ahead when that was written, or this one is behind; fences still grow, but do not tell the time",
            "see that clocks are right, here and there: chronyc tracking; the fencing counters need no change",
        ))
    } else {
        Some(Note.finding(
            "floor",
            what,
            "that is so for two hours after a quarantine; fences still grow",
            "wait; nothing needs to be fixed",
        ))
    }
}

/// Whether `error` follows from a state that `INFO` reports: the server is a replica, part of a cluster, or loading.
pub(super) fn is_for_its_kind(error: &str, info: &Info) -> bool {
    let is_any = |codes: &[&str]| codes.iter().any(|code| error.starts_with(code));
    (!info.is_master && is_any(&["MASTERDOWN", "READONLY"]))
        || (info.is_cluster && is_any(&["CLUSTERDOWN", "MOVED", "ASK"]))
        || (info.is_loading && is_any(&["LOADING"]))
}

fn quoted(text: &str) -> String {
    format!("\"{}\", which is not this version's", shown_text(text))
}
