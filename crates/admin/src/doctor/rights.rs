//! Which rights a client needs on a server, and which of them it has.
//!
//! Each is tried on a key that nobody else uses. The answer to the command itself says more than
//! the answer to a question about it. And a user who may lock is seldom allowed to ask.

use quorlock::admin::{AdminConnection, KEY, RIGHTS, Reply, Right, Topology, Weight};
use quorlock_core::shown::{LINE_MAX, shown};
use quorlock_core::{Failure, Token};

use super::acl;

/// What a user lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    /// Without these there are no locks; as an ACL spells them.
    pub(crate) needed: Vec<&'static str>,
    /// Without these it is slower, or tells less.
    pub(crate) wanted: Vec<&'static str>,
    /// Without these no lock can be shared.
    pub(crate) shared: Vec<&'static str>,
    /// Without these nobody can list the locks.
    pub(crate) listing: Vec<&'static str>,
    /// The library's own keys are out of bounds.
    pub(crate) keys: bool,
    /// Why nothing can be written, if not for want of a right.
    pub(crate) cannot_write: Option<String>,
    /// Commands that the server does not know, as an ACL spells them.
    pub(crate) unknown: Vec<&'static str>,
    /// Of these, the commands with which locks work, or work better: each with what becomes of locks without it.
    pub(crate) missing: Vec<(&'static str, Weight)>,
    /// The keys are not in the first database.
    pub(crate) selects: bool,
}

use Weight::{Listing, Needed, Nicety, Shared, Wanted};

/// Tries each right, all in one round trip.
pub(crate) async fn test(
    connection: &AdminConnection,
    topology: &Topology,
) -> Result<Rights, Failure> {
    let mut random = [0; Token::BYTES];
    // Without random bytes two doctors may use one key, and both only find what is there.
    let _ = getrandom::fill(&mut random);
    let key = topology.own_key(&format!("doctor:{}", Token::new(random)));
    let call = |right: &Right| -> Vec<String> {
        let word = |word: &&str| if *word == KEY { key.to_string() } else { (*word).to_owned() };
        right.2.iter().map(word).collect()
    };
    let replies = connection.ask(&RIGHTS.iter().map(call).collect::<Vec<_>>()).await?;
    Ok(Rights { selects: connection.selects(), ..Rights::read(&replies, connection.own_delete()) })
}

impl Rights {
    fn read(replies: &[Reply], own_delete: Option<&str>) -> Self {
        let mut rights = Self::default();
        for ((right, weight, call), reply) in RIGHTS.iter().zip(replies) {
            let Reply::Error(error) = reply else { continue };
            // A command of the server's own is used only if it has told that it has it.
            let is_own = matches!(*right, "+delifeq" | "+delex");
            if is_unknown(error) {
                rights.unknown.push(right);
                if !is_own && *weight != Nicety {
                    rights.missing.push((call[0], *weight));
                }
            } else if is_own && own_delete != Some(call[0]) {
                continue;
            } else if is_about_keys(error) {
                rights.keys = true;
            } else if error.starts_with("NOPERM") {
                match weight {
                    Needed => rights.needed.push(right),
                    Wanted => rights.wanted.push(right),
                    Shared => rights.shared.push(right),
                    Listing => rights.listing.push(right),
                    Nicety => {}
                }
            } else if *right == "+set" {
                rights.cannot_write = Some(shown(error, LINE_MAX));
            }
        }
        rights
    }

    /// Whether this command, or the right to it, is missing.
    pub(crate) fn lacks(&self, command: &str, right: &str) -> bool {
        self.needed.contains(&right) || self.missing.iter().any(|(name, _)| *name == command)
    }

    /// The least with which everything works on this server.
    pub(crate) fn acl(&self, prefix: &str) -> String {
        let known = RIGHTS.iter().map(|(right, ..)| *right);
        let known = known.filter(|right| !self.unknown.contains(right));
        acl::rules(prefix, known.chain(self.selects.then_some("+select")))
    }
}

fn is_unknown(error: &str) -> bool {
    let error = error.to_lowercase();
    error.contains("unknown command") || error.contains("unknown subcommand")
}

fn is_about_keys(error: &str) -> bool {
    error.starts_with("NOPERM") && error.contains(" key")
}
