//! Events, words and exit codes that `run` and the commands for shell scripts share.

use std::time::Duration;

use quorlock::admin::{group, names};
use quorlock::node::{Failure, FailureKind};
use quorlock::{NodeReleased, Outcome, Released};
use serde_json::{Value, json};

use super::caller::unix_ms;
use crate::exit_code::ExitCode;
use crate::output::millis;

pub(super) fn lock_event<'a>(name: &str, mut keys: impl Iterator<Item = &'a str>) -> Value {
    let mut event = json!({ "event": name, "key": keys.next() });
    let also: Vec<&str> = keys.collect();
    if !also.is_empty() {
        event["also"] = json!(also);
    }
    event
}

pub(super) fn add_validity(
    event: &mut Value,
    remaining: Duration,
    fence: Option<u64>,
    is_shared: bool,
) {
    event["fence"] = json!(fence);
    event["valid_for_ms"] = json!(millis(remaining));
    event["valid_until_unix_ms"] = json!(unix_ms().saturating_add(millis(remaining)));
    if is_shared {
        event["mode"] = json!("shared");
    }
}

pub(super) fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Released => "released",
        Outcome::Expired => "expired",
        Outcome::TakenByOther => "taken_by_other",
        _ => "unknown",
    }
}

/// The message about a release with an unknown outcome. `title`: the keys in quotation marks. `end`: the longest
/// time until the lock ends, in words.
pub(super) fn release_unconfirmed(released: &Released, title: &str, end: &str) -> String {
    let failed = released.nodes().filter_map(|(node, said)| match said {
        NodeReleased::Failed(failure) => Some((node, failure.to_string())),
        NodeReleased::Unanswered => Some((node, "no answer".to_owned())),
        _ => None,
    });
    let failed = group(failed, |one, other| one == other);
    let reasons = failed.iter().map(|(nodes, why)| format!("; {}: {why}", names(nodes)));
    let reasons = reasons.collect::<String>();
    format!("too few nodes confirmed the release of {title}, which ends within {end}{reasons}")
}

/// The remedy for failures of this kind, of one node or several; `None` if only the node's own words say it.
fn remedy(kind: FailureKind) -> Option<&'static str> {
    Some(match kind {
        FailureKind::Unreachable
        | FailureKind::ConnectTimeout
        | FailureKind::Suspended
        | FailureKind::Silent => "start the nodes that failed, or fix the way to them",
        FailureKind::Busy => "wait until the script has ended, or end it: SCRIPT KILL",
        FailureKind::Loading => "wait until the data is loaded",
        FailureKind::OutOfMemory => "give the server more memory",
        FailureKind::CannotPersist => "make room on the server's disk, and let it write there",
        _ => return None,
    })
}

/// The remedies for these failures, and where more is said.
pub(super) fn remedies<'a>(failures: impl Iterator<Item = &'a Failure>) -> String {
    // A server that answers but lacks something, such as a database, says so in the failure's own words.
    let lacks =
        |failure: &Failure| failure.detail().is_some_and(|it| it.contains("the server has no "));
    let failures = failures.filter(|failure| !lacks(failure));
    let mut remedies: Vec<&str> = failures.filter_map(|failure| remedy(failure.kind())).collect();
    remedies.sort_unstable();
    remedies.dedup();
    remedies.push("quorlock doctor says more of each");
    remedies.join("; ")
}

/// The exit code if too few of `count` nodes answered, because of these failures.
pub(super) fn too_few<'a>(
    failures: impl Iterator<Item = &'a Failure>,
    count: usize,
    needed: usize,
) -> ExitCode {
    let failures: Vec<FailureKind> = failures.map(Failure::kind).collect();
    let without = |is_such: fn(FailureKind) -> bool| {
        let failed = failures.iter().filter(|kind| is_such(**kind)).count();
        count - failed < needed
    };
    if without(FailureKind::is_about_rights) {
        ExitCode::NotAllowed
    } else if without(|kind| kind == FailureKind::Exhausted) {
        ExitCode::Internal
    } else {
        ExitCode::NoQuorum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_fits_the_failures() {
        let told = |kinds: &[FailureKind]| {
            let failures: Vec<Failure> = kinds.iter().map(|kind| Failure::new(*kind)).collect();
            remedies(failures.iter())
        };
        use FailureKind::{Busy, OutOfMemory, Redirected, Silent, Unreachable};
        let doctor = "quorlock doctor says more of each";
        assert_eq!(told(&[OutOfMemory; 2]), format!("give the server more memory; {doctor}"));
        assert_eq!(told(&[Redirected]), doctor);
        let start = "start the nodes that failed, or fix the way to them";
        assert_eq!(told(&[Silent, Unreachable]), format!("{start}; {doctor}"));
        let wait = "wait until the script has ended, or end it: SCRIPT KILL";
        assert_eq!(told(&[Busy, Silent, Busy]), format!("{start}; {wait}; {doctor}"));
    }
}
