//! The meaning of a server's errors.

use quorlock_core::{Failure, FailureKind};

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

/// The failure of commands that a server does not have, and therefore has not executed.
pub(in crate::node::redis) fn missing(names: &str) -> Failure {
    let detail = format!(
        "{names} (renamed or disabled); quorlock needs it: remove its rename-command line from the server's \
         configuration and restart the server, or use another server"
    );
    Failure::unsent(FailureKind::MissingCommand).with_detail(detail)
}

/// Whether an error of any known server says that a command is missing, or must not be called from scripts.
pub(in crate::node::redis) fn is_missing(error: &str) -> bool {
    let error = error.to_ascii_lowercase();
    error.starts_with("err unknown command") || is_missing_in_script(&error)
}

/// Like [`is_missing`], if a script called the command. The server's error then names no command. `error` is in lower
/// case.
fn is_missing_in_script(error: &str) -> bool {
    let calls_unknown = error.contains("unknown") && error.contains("command called from");
    calls_unknown || error.contains("command is not allowed from script")
}

/// The failure for an error that says that the server lacks a command.
pub(in crate::node::redis) fn missing_command(error: &str) -> Option<Failure> {
    if !is_missing(error) {
        return None;
    }
    if is_missing_in_script(&error.to_ascii_lowercase()) {
        let detail =
            format!("that a script calls ({}); quorlock doctor names it", for_people(error));
        return Some(Failure::new(FailureKind::MissingCommand).with_detail(detail));
    }
    let quotes = ['\'', '`', '"'];
    let name = error.split(quotes).nth(1).unwrap_or("that was sent");
    Some(missing(&for_people(name).to_uppercase()))
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

    #[test]
    fn a_missing_command_is_known_in_the_words_of_each_server() {
        for (error, named) in [
            ("ERR unknown command 'EVAL', with args beginning with: 'secret' '1'", "EVAL (renamed"),
            ("ERR unknown command `evalsha`, with args beginning with: ", "EVALSHA (renamed"),
            ("ERR unknown command 'GET'", "GET (renamed"),
            (
                "ERR Unknown Redis command called from script script: 1f, on @user_script:2.",
                "a script calls",
            ),
            (
                "ERR Error running script (call to f_1f): @user_script:1: @user_script: 1: Unknown Redis command called from Lua script ",
                "a script calls",
            ),
            (
                "ERR Unknown command called from script script: 1f, on @user_script:2.",
                "a script calls",
            ),
            (
                "ERR This Redis command is not allowed from script script: 1f, on @user_script:2.",
                "a script calls",
            ),
            ("ERR This Valkey command is not allowed from script", "a script calls"),
        ] {
            let failure = missing_command(error).expect(error);
            assert_eq!(failure.kind(), FailureKind::MissingCommand);
            let shown = failure.to_string();
            assert!(shown.contains(named) && !shown.contains("secret"), "{shown}");
            let in_script = named == "a script calls";
            assert_eq!(
                failure.may_have_been_executed(),
                in_script,
                "a script may have written before"
            );
        }
        for other in [
            "ERR unknown subcommand 'X'",
            "NOPERM no",
            "ERR wrong number of arguments for 'get' command",
        ] {
            assert_eq!(missing_command(other), None, "{other}");
        }
    }
}
