//! What a server's errors mean.

use quorlock_core::{Failure, FailureKind};

use crate::node::redis::for_people;

/// An error that the server answered to one command, which may have done part of its work.
pub(in crate::node::redis) fn rejected(error: &str) -> Failure {
    // What a script may not do, Redis 7.0 tells without the code for it.
    let kind = if explanation(error).starts_with("The user executing the script") {
        FailureKind::Forbidden
    } else {
        kind_of(code(error))
    };
    Failure::new(kind).with_detail(for_people(error))
}

/// An error in answer to a command that sets a lock. Those known by name come before the server does anything, so no
/// key was set: as good as unsent, and nothing is owed. Others may come from a proxy that has lost
/// its server, and say nothing.
pub(super) fn not_set(error: &str) -> Failure {
    match kind_of(code(error)) {
        FailureKind::Rejected => rejected(error),
        kind => Failure::unsent(kind).with_detail(for_people(error)),
    }
}

/// The first word of an error.
pub(in crate::node::redis) fn code(error: &str) -> &str {
    error.split(' ').next().unwrap_or_default()
}

/// The rest of it.
pub(in crate::node::redis) fn explanation(error: &str) -> &str {
    error.split_once(' ').map_or("", |(_, rest)| rest)
}

pub(in crate::node::redis) fn kind_of(code: &str) -> FailureKind {
    match code {
        "NOAUTH" | "WRONGPASS" => FailureKind::Unauthenticated,
        "NOPERM" => FailureKind::Forbidden,
        "READONLY" => FailureKind::ReadOnly,
        "LOADING" => FailureKind::Loading,
        "MASTERDOWN" => FailureKind::MasterDown,
        "OOM" => FailureKind::OutOfMemory,
        "MISCONF" => FailureKind::CannotPersist,
        "BUSY" => FailureKind::Busy,
        "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" | "TRYAGAIN" => FailureKind::Redirected,
        _ => FailureKind::Rejected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_a_code_and_perhaps_an_explanation() {
        assert_eq!(
            (code("NOPERM no rights"), explanation("NOPERM no rights")),
            ("NOPERM", "no rights")
        );
        assert_eq!((code("ERR"), explanation("ERR")), ("ERR", ""));
    }
}
