//! The meaning of a server's errors.

use quorlock_core::{Failure, FailureKind};

use crate::node::redis::commands::missing_command;
use crate::text::for_people;

/// The failure for a server's error in answer to a command, which may have been executed in part.
pub(in crate::node::redis) fn rejected(error: &str) -> Failure {
    if let Some(missing) = missing_command(error) {
        return missing;
    }
    // For a command inside a script, servers report missing rights without an error code, each server in other words.
    let is_forbidden = ["The user executing the script", "ACL failure in script"]
        .iter()
        .any(|words| error.contains(words));
    if is_forbidden {
        let detail = format!("{}; quorlock doctor names the right", for_people(error));
        return Failure::new(FailureKind::Forbidden).with_detail(detail);
    }
    let error = without_script(error);
    Failure::new(kind_of(code(error))).with_detail(for_people(error))
}

/// The error of the command inside a script, without the words that Redis 6.2 puts in front of it.
fn without_script(error: &str) -> &str {
    let inner = error.rsplit_once("@user_script: ").and_then(|(_, rest)| rest.split_once(": -"));
    match inner {
        Some((line, inner)) if line.bytes().all(|byte| byte.is_ascii_digit()) => inner,
        _ => error,
    }
}

/// The failure for an error in answer to a command that sets a lock. A server replies with an error of a known kind
/// before it writes, so no key was set, and the client need not send a release. An error of an unknown kind
/// (`Rejected`) may come from a proxy that lost its server, so a key may have been set.
pub(super) fn not_set(error: &str) -> Failure {
    match kind_of(code(error)) {
        FailureKind::Rejected => rejected(error),
        kind => Failure::unsent(kind).with_detail(for_people(error)),
    }
}

pub(in crate::node::redis) fn code(error: &str) -> &str {
    error.split(' ').next().unwrap_or_default()
}

/// The text after the first word of an error.
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
        // Our own scripts reply with this error if two nodes of a client are the same server.
        "SAMESERVER" => FailureKind::SameServer,
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

    #[test]
    fn an_error_inside_a_script_of_redis_6_is_known_and_the_script_may_have_written() {
        for (error, kind) in [
            (
                "@user_script: 101: -OOM command not allowed when used memory > 'maxmemory'",
                FailureKind::OutOfMemory,
            ),
            (
                "ERR Error running script (call to f_f1): @user_script:27: @user_script: 27: -MISCONF Redis \
                 is configured to save RDB snapshots",
                FailureKind::CannotPersist,
            ),
        ] {
            let failure = not_set(error);
            assert_eq!(failure.kind(), kind);
            assert!(failure.may_have_been_executed());
            assert!(!failure.to_string().contains("user_script"), "{failure}");
        }
    }

    #[test]
    fn what_a_script_may_not_do_is_forbidden_whatever_the_server() {
        for error in [
            "NOPERM User u has no permissions to run the 'zadd' command",
            "ERR The user executing the script can't run this command script: 37df, on @user_script:1.",
            "ERR ACL failure in script: User u has no permissions to run the 'zadd' command",
            "ERR Error running script (call to f_37df): @user_script:1: @user_script: 1: The user executing \
             the script can't run this command or subcommand",
            "@user_script: 1: The user executing the script can't run this command or subcommand",
        ] {
            assert_eq!(rejected(error).kind(), FailureKind::Forbidden, "{error}");
        }
        assert_eq!(rejected("ERR no").kind(), FailureKind::Rejected);
    }
}
