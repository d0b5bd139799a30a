//! The rights that a client needs on a server, and those that it lacks.
//!
//! Each command is tried on a key that no other client uses, because the server's answer to the command says more than
//! its answer to a question about rights. Few users who may lock are also allowed to ask about rights.

use quorlock::admin::{
    AdminConnection, KEY, REPLICAS_RIGHT, RIGHTS, Reply, Right, Topology, Weight,
};
use quorlock_core::display::{LINE_MAX, shown};
use quorlock_core::{Failure, Token};

use super::acl;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    /// The rights that the user lacks, in the notation of ACL rules: `+get`.
    pub(crate) denied: Vec<(&'static str, Weight)>,
    /// Whether the user lacks the right to the library's own keys.
    pub(crate) keys: bool,
    /// The error with which the server refuses to write a key, for another reason than a missing right.
    pub(crate) cannot_write: Option<String>,
    /// The rights to commands that the server does not have. [`Rights::acl`] leaves them out.
    unknown: Vec<&'static str>,
    /// The commands that locks use and the server lacks.
    pub(crate) missing: Vec<(&'static str, Weight)>,
    /// Whether the keys are in a database other than the first, so that the user needs the right to SELECT.
    selects: bool,
    /// Whether the node has replicas, so that the user needs the right to `WAIT`.
    waits: bool,
}

/// The rights that a client needs on a node. `waits` is true for a node with replicas.
fn needed(waits: bool) -> impl Iterator<Item = &'static Right> {
    RIGHTS.iter().chain(waits.then_some(&REPLICAS_RIGHT))
}

pub(crate) async fn test(
    connection: &AdminConnection,
    topology: &Topology,
    waits: bool,
) -> Result<Rights, Failure> {
    let mut random = [0; Token::BYTES];
    // Without random bytes two examinations may use the same key, which causes no error. So a failure is ignored.
    let _ = getrandom::fill(&mut random);
    let key = topology.own_key(&format!("doctor:{}", Token::new(random)));
    let call = |right: &Right| -> Vec<String> {
        let word = |word: &&str| if *word == KEY { key.to_string() } else { (*word).to_owned() };
        right.2.iter().map(word).collect()
    };
    let replies = connection.ask(&needed(waits).map(call).collect::<Vec<_>>()).await?;
    let rights = Rights { selects: connection.selects(), waits, ..Rights::default() };
    Ok(rights.read(&replies, connection.own_delete()))
}

impl Rights {
    fn read(self, replies: &[Reply], own_delete: Option<&str>) -> Self {
        let mut rights = self;
        for ((right, weight, call), reply) in needed(rights.waits).zip(replies) {
            let Reply::Error(error) = reply else { continue };
            // A client needs the right to `DELIFEQ` or `DELEX` only if the server has reported this command.
            let is_own = matches!(*right, "+delifeq" | "+delex");
            if is_unknown(error) {
                rights.unknown.push(right);
                if !is_own {
                    rights.missing.push((call[0], *weight));
                }
            } else if is_own && own_delete != Some(call[0]) {
                continue;
            } else if is_about_keys(error) {
                rights.keys = true;
            } else if error.starts_with("NOPERM") {
                rights.denied.push((right, *weight));
            } else if *right == "+set" {
                rights.cannot_write = Some(shown(error, LINE_MAX));
            }
        }
        rights
    }

    /// Whether the server lacks this command, or the user lacks the right to it.
    pub(crate) fn lacks(&self, command: &str, right: &str) -> bool {
        self.denied.contains(&(right, Weight::Needed))
            || self.missing.iter().any(|(name, _)| *name == command)
    }

    pub(crate) fn is_denied(&self, weight: Weight) -> bool {
        self.denied.iter().any(|(_, other)| *other == weight)
    }

    /// The ACL rules with the least rights with which everything works on this server.
    pub(crate) fn acl(&self, prefix: &str) -> String {
        let known = needed(self.waits).map(|(right, ..)| *right);
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
