//! The commands that a server lacks, and those that its user may not use.

use quorlock_core::{Failure, FailureKind};

use super::codec::{is_missing, missing};
use super::resp::Reply;
use super::rights::Weight::{self, Needed, Shared};
use super::rights::{EVAL, EVALSHA, KEY, OWN_DELETES, RIGHTS, Right};

/// The rights whose commands every server must have, because without them no vote could be extended or released.
fn checked() -> impl Iterator<Item = (usize, &'static Right)> {
    let is_checked = |(_, (_, weight, call)): &(usize, &Right)| {
        matches!(weight, Needed | Shared) && !OWN_DELETES.contains(&call[0])
    };
    RIGHTS.iter().enumerate().filter(is_checked)
}

/// The commands that ask the server which commands it has. They are sent together with the log-in. A server accepts at
/// most ten words per command from a client that is not logged in, so each question has at most ten.
pub(super) fn command_infos() -> impl Iterator<Item = Vec<&'static str>> {
    let names = checked().map(|(_, (.., call))| call[0]);
    let names: Vec<&str> = OWN_DELETES.into_iter().chain(names).collect();
    let parts: Vec<_> =
        names.chunks(8).map(|names| [&["COMMAND", "INFO"], names].concat()).collect();
    parts.into_iter()
}

/// Calls each command without arguments, if the server does not answer [`command_infos`]. Such a call does nothing, and
/// the server reports a missing command before it checks the arguments and the rights.
pub(super) fn command_calls() -> impl Iterator<Item = [&'static str; 1]> {
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
/// reply for each. All tested calls are one argument, because of the limit of ten words in [`command_infos`].
pub(super) fn rights_calls() -> [Vec<String>; 2] {
    let script = [EVAL, include_str!("../scripts/rights.lua"), "0"].map(str::to_owned);
    let by_hash = [EVALSHA, "0000000000000000000000000000000000000000", "0"].map(str::to_owned);
    let calls: Vec<String> = probed().map(|(_, call)| call).collect();
    [script.into_iter().chain([calls.join("\n")]).collect(), by_hash.to_vec()]
}

/// The commands that a server lacks, and those that the user may not use: a bit for each of [`RIGHTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Lacking {
    missing: u32,
    forbidden: u32,
}

impl Lacking {
    /// Reads the answer to [`command_infos`].
    pub(super) fn of_infos(infos: &[Reply]) -> Self {
        let infos = infos.get(OWN_DELETES.len()..).unwrap_or_default();
        Self::of(infos, |reply| *reply == Reply::Nil)
    }

    /// Reads the answers to [`command_calls`].
    pub(super) fn of_calls(replies: &[Reply]) -> Self {
        Self::of(replies, |reply| matches!(reply, Reply::Error(error) if is_missing(error)))
    }

    fn of(replies: &[Reply], is_missing: impl Fn(&Reply) -> bool) -> Self {
        let lacking = checked().zip(replies).filter(|(_, reply)| is_missing(reply));
        let missing = lacking.fold(0, |bits, ((place, _), _)| bits | 1 << place);
        Self { missing, forbidden: 0 }
    }

    /// Adds the answers to [`rights_calls`]. An answer that does not fit is ignored. `deletes` means that the native
    /// compare-and-delete command is used.
    pub(super) fn with_rights(self, replies: &[Reply], deletes: bool) -> Self {
        let mut forbidden = 0;
        for (name, reply) in [EVAL, EVALSHA].iter().zip(replies) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reply_belongs_to_its_command() {
        let names: Vec<&str> = command_infos().flat_map(|words| words[2..].to_vec()).collect();
        assert!(command_infos().all(|words| words.len() <= 10));
        let count = names.len();
        assert!(RIGHTS.len() <= 32 && RIGHTS[0].2[0] == "INFO", "one bit for each");
        let has = || Reply::List(Vec::new());
        let all: Vec<Reply> = (0..count).map(|_| has()).collect();
        assert_eq!(Lacking::of_infos(&all), Lacking::default());
        for (place, name) in names.into_iter().enumerate() {
            let mut known: Vec<Reply> = (0..count).map(|_| has()).collect();
            known[place] = Reply::Nil;
            let lacking = Lacking::of_infos(&known);
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
            let replies: Vec<Reply> = command_calls()
                .map(|[it]| match it == name {
                    true => Reply::Error(format!("ERR unknown command '{it}'")),
                    false => {
                        Reply::Error(format!("ERR wrong number of arguments for '{it}' command"))
                    }
                })
                .collect();
            assert_eq!(Lacking::of_calls(&replies), lacking);
        }
        // An answer of the wrong length shows no missing command.
        assert_eq!(Lacking::of_infos(&[]), Lacking::default());
    }
}
