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
