//! The registration: a key in a server's first database that names the database with the locks. It detects clients that
//! use different databases. A marker cannot detect them, because each client reads the marker in its own database.

use quorlock_core::shown::shown_text;
use quorlock_core::{Failure, FailureKind, Key};

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
    pub(crate) fn beside(marker: &Key, database: u32) -> Option<Self> {
        let prefix = prefix_of_marker(marker)?;
        Some(Self { key: own_key(prefix, DATABASE), database })
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
        let detail = if theirs.parse::<u32>().is_ok() {
            format!(
                "its locks are in database {theirs}, but this client uses database {}; give all clients the same, \
                 or, if no lock is in use, run quorlock init --fresh",
                self.database
            )
        } else {
            format!(
                "its key {} in database 0 holds \"{theirs}\", which is not this version's; find out whose it is; \
                 if nobody's, delete the key",
                self.key
            )
        };
        Err(Failure::new(FailureKind::OtherConfiguration).with_detail(detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_is_told_with_both_numbers() {
        assert!(Registration::beside(&"x".into(), 0).is_none());
        let ours = Registration::beside(&"app:quorlock:node".into(), 3).unwrap();
        assert_eq!(&ours.ask(Do::Register)[2..], ["1", "app:quorlock:database", "3", "new"]);
        assert_eq!(ours.check(&Reply::Nil), Ok(()));
        assert_eq!(ours.check(&Reply::Bytes(b"3".to_vec())), Ok(()));
        for (theirs, said) in [
            (Reply::Bytes(b"0".to_vec()), "in database 0, but this client uses database 3"),
            (Reply::Bytes(b"\x1b[2J".to_vec()), "which is not this version's"),
            (Reply::Error("WRONGTYPE Operation".to_owned()), "which is not this version's"),
        ] {
            let failure = ours.check(&theirs).unwrap_err();
            assert_eq!(failure.kind(), FailureKind::OtherConfiguration);
            let detail = failure.detail().unwrap();
            assert!(detail.contains(said) && !detail.contains('\x1b'), "{detail}");
        }
        // A foreign value may be a token, so only its beginning is shown.
        let token = "6f9619ff-8b86-d011-b42d-00cf4fc964ff";
        let failure = ours.check(&Reply::Bytes(token.into())).unwrap_err();
        assert!(failure.detail().unwrap().contains("\"6f9619…\""), "{failure}");
        let loading = ours.check(&Reply::Error("LOADING it is".to_owned())).unwrap_err();
        assert_eq!(loading.kind(), FailureKind::Loading);
    }
}
