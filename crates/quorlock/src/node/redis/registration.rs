//! The registration: a key in a server's first database that names the database with the locks. It detects clients that
//! use different databases. A marker cannot detect them, because each client reads the marker in its own database.

use quorlock_core::display::shown_text;
use quorlock_core::{Difference, Failure, FailureKind, Key};

use super::codec::{code, rejected};
use super::resp::Reply;
use crate::own_keys::{DATABASE, own_key, prefix_of_marker};
use crate::text::for_people;

const SCRIPT: &str = include_str!("../scripts/register.lua");

/// The key of a server's registration, and the database of this client.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    key: Key,
    database: u32,
    /// Whether the client may register its database with a batch.
    may_register: bool,
    /// The server has no registration: the next batch registers the database if the server is in use (S17).
    is_missing: bool,
}

/// The action on the registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Do {
    /// Read the registration.
    Look,
    /// Write the registration if the server has none.
    Register,
    /// Write the registration, and replace that of another database.
    Replace,
}

impl Registration {
    /// The registration with the key prefix of this marker; `None` if the key is not the key of a marker.
    pub(crate) fn of_marker(marker: &Key, database: u32) -> Option<Self> {
        let key = own_key(prefix_of_marker(marker)?, DATABASE);
        Some(Self { key, database, may_register: false, is_missing: false })
    }

    pub(super) fn registering(self, may_register: bool) -> Self {
        Self { may_register, ..self }
    }

    /// The action with the next batch; `None` if the batch neither reads nor writes the registration. The client
    /// registers its database only on a server that is in use, or that a command of this batch takes into use, because
    /// it must write nothing to a server that it refuses.
    pub(super) fn due(
        &self,
        with_info: bool,
        is_in_use: bool,
        is_taken_into_use: bool,
    ) -> Option<Do> {
        let is_in_use = is_in_use || is_taken_into_use;
        let what = if is_in_use && self.may_register { Do::Register } else { Do::Look };
        let is_owed = what == Do::Register && self.is_missing;
        (with_info || is_taken_into_use || is_owed).then_some(what)
    }

    /// Notes and [checks](Self::check) the reply to a batch's action.
    pub(super) fn note(&mut self, reply: &Reply) -> Result<(), Failure> {
        self.is_missing = *reply == Reply::Nil;
        self.check(reply)
    }

    /// The command that carries out the action `what`. It gets one reply.
    pub(crate) fn ask(&self, what: Do) -> [String; 6] {
        let what = match what {
            Do::Look => "look",
            Do::Register => "new",
            Do::Replace => "instead",
        };
        ["EVAL", SCRIPT, "1", &self.key, &self.database.to_string(), what].map(str::to_owned)
    }

    /// Fails unless the reply names this client's database, or the server has no registration.
    pub(crate) fn check(&self, reply: &Reply) -> Result<(), Failure> {
        let theirs = match reply {
            Reply::Nil => return Ok(()),
            Reply::Bytes(text) if **text == *self.database.to_string().as_bytes() => return Ok(()),
            Reply::Bytes(text) => shown_text(&String::from_utf8_lossy(text)),
            Reply::Error(error) if code(error) == "WRONGTYPE" => for_people(error),
            Reply::Error(error) => return Err(rejected(error)),
            _ => return Err(Failure::new(FailureKind::Protocol)),
        };
        let failure = Failure::new(FailureKind::OtherConfiguration);
        Err(if theirs.parse::<u32>().is_ok() {
            let detail = format!(
                "its locks are in database {theirs}, but this client uses database {}; give all clients the same",
                self.database
            );
            failure.with_detail(detail).with_difference(Difference::Database)
        } else {
            failure.with_detail(format!(
                "its key {} in database 0 holds \"{theirs}\", which is not this version's; find out whose it is; \
                 if nobody's, delete the key",
                self.key
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_other_database_and_ours() {
        assert!(Registration::of_marker(&"x".into(), 0).is_none());
        let ours = Registration::of_marker(&"app:quorlock:node".into(), 3).unwrap();
        assert_eq!(&ours.ask(Do::Register)[2..], ["1", "app:quorlock:database", "3", "new"]);
        assert_eq!(ours.check(&Reply::Nil), Ok(()));
        assert_eq!(ours.check(&Reply::Bytes(b"3".to_vec())), Ok(()));
        for (theirs, text) in [
            (Reply::Bytes(b"0".to_vec()), "in database 0, but this client uses database 3"),
            (Reply::Bytes(b"\x1b[2J".to_vec()), "which is not this version's"),
            (Reply::Error("WRONGTYPE Operation".to_owned()), "which is not this version's"),
        ] {
            let failure = ours.check(&theirs).unwrap_err();
            assert_eq!(failure.kind(), FailureKind::OtherConfiguration);
            let detail = failure.detail().unwrap();
            assert!(detail.contains(text) && !detail.contains('\x1b'), "{detail}");
        }
        // A foreign value may be a token, so only its beginning is shown.
        let token = "6f9619ff-8b86-d011-b42d-00cf4fc964ff";
        let failure = ours.check(&Reply::Bytes(token.into())).unwrap_err();
        assert!(failure.detail().unwrap().contains("\"6f9619…\""), "{failure}");
        let loading = ours.check(&Reply::Error("LOADING it is".to_owned())).unwrap_err();
        assert_eq!(loading.kind(), FailureKind::Loading);
    }
}
