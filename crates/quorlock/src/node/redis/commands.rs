//! The only list of the commands that a client sends, directly or in scripts, and the check for commands that a server
//! lacks.

use quorlock_core::{Failure, FailureKind};

use super::resp::Reply;
use crate::text::for_people;

/// The effect on locks if a command, or the right to it, is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Without the command, no lock works.
    Needed,
    /// Locks are slower, or errors are less precise.
    Wanted,
    /// Readers cannot share a lock. Other locks work.
    Shared,
    /// Locks work, but cannot be listed.
    Listing,
    /// No effect on locks.
    Nicety,
}

/// A right: its ACL rule, the effect if it is missing, and a call that needs it. [`KEY`] in the call stands for the
/// key.
pub type Right = (&'static str, Weight, &'static [&'static str]);

/// Stands for a key in a [`Right`]'s call.
pub const KEY: &str = "KEY";

use Weight::{Listing, Needed, Nicety, Shared, Wanted};

/// All rights, in an order in which their calls can be executed one after the other.
pub const RIGHTS: &[Right] = &[
    ("+info", Needed, &["INFO", "server"]),
    ("+set", Needed, &["SET", KEY, "x", "NX", "PX", "10000"]),
    ("+get", Needed, &["GET", KEY]),
    ("+getrange", Needed, &["GETRANGE", KEY, "0", "1"]),
    ("+exists", Needed, &["EXISTS", KEY]),
    ("+pttl", Needed, &["PTTL", KEY]),
    ("+pexpire", Needed, &["PEXPIRE", KEY, "10000"]),
    ("+eval", Needed, &[EVAL, "return 1", "1", KEY]),
    ("+evalsha", Needed, &[EVALSHA, "0000000000000000000000000000000000000000", "1", KEY]),
    ("+time", Needed, &["TIME"]),
    ("+ping", Wanted, &["PING"]),
    ("+script|load", Wanted, &["SCRIPT", "LOAD", "return 1"]),
    ("+command|info", Wanted, &["COMMAND", "INFO", "SET"]),
    ("+client|tracking", Wanted, &["CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"]),
    ("+client|caching", Wanted, &["CLIENT", "CACHING", "YES"]),
    // `CLIENT SETINFO` only sets the name in the server's list of clients. Servers before 7.2 lack the command.
    ("+client|setinfo", Nicety, &["CLIENT", "SETINFO", "LIB-NAME", "quorlock"]),
    ("+delifeq", Needed, &["DELIFEQ", KEY, "y"]),
    ("+delex", Needed, &["DELEX", KEY, "IFEQ", "y"]),
    ("+del", Needed, &["DEL", KEY]),
    // The key is absent by now, and no later call creates it, so the later calls change nothing.
    ("+type", Shared, &["TYPE", KEY]),
    ("+pexpireat", Shared, &["PEXPIREAT", KEY, "1"]),
    ("+zadd", Shared, &["ZADD", KEY, "XX", "0", "x"]),
    ("+zcount", Shared, &["ZCOUNT", KEY, "0", "1"]),
    ("+zrange", Shared, &["ZRANGE", KEY, "0", "1"]),
    ("+zrem", Shared, &["ZREM", KEY, "x"]),
    ("+zremrangebyscore", Shared, &["ZREMRANGEBYSCORE", KEY, "0", "1"]),
    ("+zscore", Shared, &["ZSCORE", KEY, "x"]),
    ("+scan", Listing, &["SCAN", "0", "COUNT", "1"]),
];

/// The right that a node with replicas needs in addition.
pub const REPLICAS_RIGHT: Right = ("+wait", Needed, &["WAIT", "0", "1"]);

/// The commands that need no right, or need one only with some settings: the log-in, the choice of the database, and
/// the settings of a server that was declared durable.
pub const BESIDE: &[&str] = &["HELLO", "AUTH", "SELECT", "CONFIG"];

/// The native compare-and-delete commands. A server has at most one of them.
pub(super) const OWN_DELETES: [&str; 2] = ["DELIFEQ", "DELEX"];

/// The rights whose commands every server must have, because without them no vote could be extended or released.
fn checked() -> impl Iterator<Item = (usize, &'static Right)> {
    let is_checked = |(_, (_, weight, call)): &(usize, &Right)| {
        matches!(weight, Needed | Shared) && !OWN_DELETES.contains(&call[0])
    };
    RIGHTS.iter().enumerate().filter(is_checked)
}

/// The commands that ask the server which commands it has. They are sent together with the log-in. A server accepts at
/// most ten words per command from a client that is not logged in, so each question has at most ten.
pub(super) fn question() -> impl Iterator<Item = Vec<&'static str>> {
    let names = checked().map(|(_, (.., call))| call[0]);
    let names: Vec<&str> = OWN_DELETES.into_iter().chain(names).collect();
    let parts: Vec<_> =
        names.chunks(8).map(|names| [&["COMMAND", "INFO"], names].concat()).collect();
    parts.into_iter()
}

/// Calls each command without arguments, if the server does not answer [`question`]. Such a call does nothing, and
/// the server reports a missing command before it checks the arguments and the rights.
pub(super) fn questions() -> impl Iterator<Item = [&'static str; 1]> {
    checked().map(|(_, (.., call))| [call[0]])
}

/// The rights that a script can test, each with a call that changes nothing.
fn probed() -> impl Iterator<Item = (usize, String)> {
    let is_probed = |(_, (_, weight, call)): &(usize, &Right)| {
        matches!(weight, Needed | Shared) && !call[0].starts_with("EVAL")
    };
    let harmless = |word: &&'static str| match *word {
        KEY => "quorlock:doctor:none",
        "NX" => "XX",
        word => word,
    };
    RIGHTS.iter().enumerate().filter(is_probed).map(move |(place, (.., call))| {
        (place, call.iter().map(harmless).collect::<Vec<_>>().join(" "))
    })
}

/// Asks which rights the user lacks. One script tests all rights, because a separate command for each right would add a
/// reply for each. All tested calls are one argument, because of the limit of ten words in [`question`].
pub(super) fn rights_question() -> [Vec<String>; 2] {
    let script = [EVAL, include_str!("../scripts/rights.lua"), "0"].map(str::to_owned);
    let by_hash = [EVALSHA, "0000000000000000000000000000000000000000", "0"].map(str::to_owned);
    let calls: Vec<String> = probed().map(|(_, call)| call).collect();
    [script.into_iter().chain([calls.join("\n")]).collect(), by_hash.to_vec()]
}

const EVAL: &str = "EVAL";
const EVALSHA: &str = "EVALSHA";

/// The commands that a server lacks, and those that the user may not use: a bit for each of [`RIGHTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Lacking {
    missing: u32,
    forbidden: u32,
}

impl Lacking {
    /// Reads the answer to [`question`].
    pub(super) fn read(known: &[Reply]) -> Self {
        let told = known.get(OWN_DELETES.len()..).unwrap_or_default();
        Self::where_it_is(told, |reply| *reply == Reply::Nil)
    }

    /// Reads the answers to [`questions`].
    pub(super) fn read_each(told: &[Reply]) -> Self {
        Self::where_it_is(told, |reply| matches!(reply, Reply::Error(error) if is_missing(error)))
    }

    fn where_it_is(told: &[Reply], is_missing: impl Fn(&Reply) -> bool) -> Self {
        let lacking = checked().zip(told).filter(|(_, reply)| is_missing(reply));
        let missing = lacking.fold(0, |bits, ((place, _), _)| bits | 1 << place);
        Self { missing, forbidden: 0 }
    }

    /// Adds the answers to [`rights_question`]. An answer that does not fit is ignored. `deletes` means that the native
    /// compare-and-delete command is used.
    pub(super) fn with_rights(self, told: &[Reply], deletes: bool) -> Self {
        let mut forbidden = 0;
        for (name, reply) in [EVAL, EVALSHA].iter().zip(told) {
            let is_denied = |nth: i64| match reply {
                Reply::List(places) => places.contains(&Reply::Int(nth)),
                _ => false,
            };
            let denied = (1..).zip(probed()).filter(|(nth, _)| is_denied(*nth));
            forbidden |= denied.fold(0, |bits, (_, (place, _))| bits | 1 << place);
            if matches!(reply, Reply::Error(error) if error.starts_with("NOPERM")) {
                forbidden |= Self::bits(&[name]);
            }
        }
        let unused = if deletes { 0 } else { Self::bits(&OWN_DELETES) };
        Self { forbidden: forbidden & !unused, ..self }
    }

    /// The failure of every lock, if a command or a right is missing. Only the restart guard needs `INFO`, and it
    /// reports a missing right to `INFO` itself. Without the guard, [`no_vote`](Self::no_vote) checks all rights.
    pub(super) fn no_locks(self, is_guarded: bool) -> Option<Failure> {
        let missing = if is_guarded { self.missing } else { self.missing & !Self::bits(&["INFO"]) };
        let forbidden = if is_guarded { self.forbidden & !Self::bits(&["INFO"]) } else { 0 };
        Self { missing, forbidden }.failure(Needed)
    }

    /// The failure of a request for a vote, if the user lacks a right that is not in `unneeded`. Without that right the
    /// vote could not be extended or released.
    pub(super) fn no_vote(self, unneeded: &[&str]) -> Option<Failure> {
        Self { missing: 0, forbidden: self.forbidden & !Self::bits(unneeded) }.failure(Needed)
    }

    /// The failure of every shared lock, if a command or a right is missing.
    pub(super) fn no_readers(self) -> Option<Failure> {
        self.failure(Shared)
    }

    fn bits(commands: &[&str]) -> u32 {
        let places = RIGHTS.iter().enumerate().filter(|(_, right)| commands.contains(&right.2[0]));
        places.fold(0, |bits, (place, _)| bits | 1 << place)
    }

    fn failure(self, weight: Weight) -> Option<Failure> {
        let of = |bits: u32| {
            let is_in = move |place: usize| bits >> place & 1 == 1;
            let rights = RIGHTS.iter().enumerate();
            rights.filter(move |(place, right)| is_in(*place) && right.1 == weight)
        };
        if self == Self::default() {
            return None;
        }
        let names: Vec<&str> = of(self.missing).map(|(_, (.., call))| call[0]).collect();
        let rights: Vec<&str> = of(self.forbidden).map(|(_, (right, ..))| *right).collect();
        match (names.is_empty(), rights.is_empty()) {
            (false, _) => Some(missing(&names.join(", "))),
            (true, false) => Some(forbidden(&rights.join(" "))),
            (true, true) => None,
        }
    }
}

/// The failure of commands that the user may not use, and that therefore were not sent.
fn forbidden(rights: &str) -> Failure {
    let detail = format!(
        "the user lacks {rights}; quorlock doctor --acl USER prints the command that gives all rights that are needed"
    );
    Failure::unsent(FailureKind::Forbidden).with_detail(detail)
}

/// The failure of commands that a server does not have, and therefore has not executed.
fn missing(names: &str) -> Failure {
    let detail = format!(
        "{names} (renamed or disabled); quorlock needs it: remove its rename-command line from the server's \
         configuration and restart the server, or use another server"
    );
    Failure::unsent(FailureKind::MissingCommand).with_detail(detail)
}

/// Whether an error of any known server says that a command is missing, or must not be called from scripts.
fn is_missing(error: &str) -> bool {
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
pub(super) fn missing_command(error: &str) -> Option<Failure> {
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
            let said = failure.to_string();
            assert!(said.contains(named) && !said.contains("secret"), "{said}");
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

    #[test]
    fn each_answer_belongs_to_its_command() {
        let names: Vec<&str> = question().flat_map(|words| words[2..].to_vec()).collect();
        assert!(question().all(|words| words.len() <= 10));
        let count = names.len();
        assert!(RIGHTS.len() <= 32 && RIGHTS[0].2[0] == "INFO", "one bit for each");
        let has = || Reply::List(Vec::new());
        let all: Vec<Reply> = (0..count).map(|_| has()).collect();
        assert_eq!(Lacking::read(&all), Lacking::default());
        for (place, name) in names.into_iter().enumerate() {
            let mut known: Vec<Reply> = (0..count).map(|_| has()).collect();
            known[place] = Reply::Nil;
            let lacking = Lacking::read(&known);
            let weight = if name.starts_with('Z') || matches!(name, "TYPE" | "PEXPIREAT") {
                Shared
            } else {
                Needed
            };
            let Some(failure) = lacking.failure(weight) else {
                assert!(OWN_DELETES.contains(&name), "{name}");
                continue;
            };
            assert!(
                failure.detail().is_some_and(|it| it.starts_with(&format!("{name} ("))),
                "{failure}"
            );
            let told: Vec<Reply> = questions()
                .map(|[it]| match it == name {
                    true => Reply::Error(format!("ERR unknown command '{it}'")),
                    false => {
                        Reply::Error(format!("ERR wrong number of arguments for '{it}' command"))
                    }
                })
                .collect();
            assert_eq!(Lacking::read_each(&told), lacking);
        }
        // An answer of the wrong length shows no missing command.
        assert_eq!(Lacking::read(&[]), Lacking::default());
    }
}
