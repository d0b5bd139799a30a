//! The reports to callers are true: why a call failed, and how a release went.

use quorlock_core::Wait;
use quorlock_core::{
    Holding, NodeOutcome, NodeReleased, Origin, Outcome, Refusal, RefusalKind, ReleaseReport,
};

use super::Checked;
use crate::fact::Fact;
use crate::guard::GuardId;
use crate::invariants::View;

pub(crate) const NAME: &str = "outcomes";

pub(crate) const SENTENCE: &str = "S26: outcomes are distinct; contention is never inferred from an \
     I/O error. (algorithm)";

pub(crate) fn check(fact: &Fact<'_>, view: &View<'_>) -> Checked {
    match fact {
        Fact::NotAcquired { client, lock, refusal } => {
            let Some(request) = view.ledger.request(*client, *lock) else { return Ok(()) };
            let most = match request.wait {
                Wait::Once => Some(1),
                // A limit of zero attempts still allows one attempt.
                _ => request.retry.attempts_max.map(|most| most.max(1)),
            };
            if most.is_some_and(|most| refusal.attempts > most) {
                let attempts = refusal.attempts;
                return Err(format!("{attempts} attempts were made, more than the caller allows"));
            }
            if let Origin::Detached(_) = request.origin {
                return check_attach(refusal, view);
            }
            check_kind(refusal, request.fenced.is_some(), view)
        }
        Fact::Released { guard, report } => check_release(*guard, report, view),
        _ => Ok(()),
    }
}

/// If an attach fails, `Gone` (the detached lock is over) is right only if fewer nodes than a quorum may still have it.
/// `Contended` (another client has the lock) is right only if a node has another value.
fn check_attach(refusal: &Refusal, view: &View<'_>) -> Checked {
    let quorum = view.terms.quorum;
    let count = |is: fn(&NodeOutcome) -> bool| {
        refusal.nodes.iter().filter(|report| is(&report.said)).count()
    };
    let gone = count(|said| matches!(said, NodeOutcome::Seen(Holding::Free)));
    let refused = count(|said| matches!(said, NodeOutcome::Refused(_)));
    let is_wrong = match refusal.kind {
        RefusalKind::Gone => !quorum.is_out_of_reach(quorum.nodes() - gone, 0),
        RefusalKind::Contended => refused == 0,
        _ => false,
    };
    let kind = refusal.kind;
    match is_wrong {
        true => Err(format!("{kind:?}, when {gone} nodes had no lock and {refused} another's")),
        false => Ok(()),
    }
}

fn check_kind(refusal: &Refusal, fenced: bool, view: &View<'_>) -> Checked {
    let quorum = view.terms.quorum;
    let count = |is: fn(&NodeOutcome) -> bool| {
        refusal.nodes.iter().filter(|report| is(&report.said)).count()
    };
    // If the call only inspected, a node with free keys counts as a node that would have granted.
    let granted =
        count(|said| matches!(said, NodeOutcome::Granted | NodeOutcome::Seen(Holding::Free)));
    let refused = count(|said| matches!(said, NodeOutcome::Refused(_)));
    let untrusted = count(
        |said| matches!(said, NodeOutcome::Failed(failure) if failure.kind().is_about_trust()),
    );
    // A single node that disagrees makes `NodesUntrusted` right: it shows that clients have different configurations.
    let disagreed = count(
        |said| matches!(said, NodeOutcome::Failed(failure) if failure.kind().is_disagreement()),
    );
    let open = count(|said| matches!(said, NodeOutcome::Nothing));
    let wrong = match refusal.kind {
        // Without an attempt, `Contended` is right only if the nodes that refused and those with free keys are a
        // quorum.
        RefusalKind::Contended if refusal.attempts == 0 => !quorum.is_reached(granted + refused),
        // `Contended` is right only if a node refused, and the nodes that granted or refused are a quorum.
        RefusalKind::Contended => refused == 0 || !quorum.is_reached(granted + refused),
        RefusalKind::NoQuorum => refused > 0 && quorum.is_reached(granted + refused),
        // `TooSlow` is right only if the nodes that granted are a quorum. With fencing tokens, nodes without a result
        // (`open`) count too: such a node may have granted, but has not recorded the token yet. A node that cannot
        // record the token counts as failed.
        RefusalKind::TooSlow if fenced => !quorum.is_reached(granted + open),
        RefusalKind::TooSlow => !quorum.is_reached(granted),
        // `NodesUntrusted` is wrong if the trusted nodes alone are a quorum and the configurations agree.
        RefusalKind::NodesUntrusted => {
            disagreed == 0 && quorum.is_reached(quorum.nodes() - untrusted)
        }
        RefusalKind::BusyHere | RefusalKind::Closed => false,
        _ => false,
    };
    if wrong {
        let kind = refusal.kind;
        return Err(format!(
            "{kind:?}, when {granted} nodes granted, {refused} refused and {open} were silent"
        ));
    }
    Ok(())
}

fn check_release(id: GuardId, report: &ReleaseReport, view: &View<'_>) -> Checked {
    if report.handed_over || report.outcome != Outcome::Released {
        return Ok(());
    }
    let Some(token) = view.guards.of(id).and_then(|guard| view.ledger.of_guard(guard)) else {
        return Ok(());
    };
    let said = report.nodes.iter().filter(|node| **node == NodeReleased::Deleted).count();
    if !view.terms.quorum.is_reached(said) || token.deleted < said {
        let deleted = token.deleted;
        return Err(format!(
            "{id} is reported as released by {said} nodes, and {deleted} nodes have deleted it"
        ));
    }
    Ok(())
}
