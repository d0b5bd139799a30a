//! Findings about keys that look like locks and never expire.

use quorlock_core::shown::{WORD_MAX, shown};

use super::Case;
use crate::doctor::Finding;
use crate::doctor::Severity::{Note, Warning};
use crate::doctor::look::Facts;

const NAMED_MAX: usize = 5;

impl Case<'_> {
    pub(super) fn leftovers(&self, facts: &Facts) -> Vec<Finding> {
        let intents = self.topology.intent("");
        let mut findings: Vec<Finding> = facts
            .leftovers
            .iter()
            .take(NAMED_MAX)
            .map(|key| {
                let delete = self.node.redis_cli.line_about("DEL", key.as_bytes());
                Warning.finding(
                    "leftover",
                    format!("its key \"{}\" has the value of a lock and no expiry", shown(key, WORD_MAX)),
                    if key.starts_with(&*intents) {
                        "the node takes it for a waiting writer, and refuses each reader of that lock, for ever"
                    } else {
                        "the node refuses everybody who wants that lock, for ever"
                    },
                    format!("if no other program uses the key: {delete}"),
                )
            })
            .collect();
        let more = facts.leftovers.len() - findings.len();
        if more > 0 {
            findings.push(Warning.finding(
                "leftover",
                format!("{more} more keys have the value of a lock and no expiry"),
                "the node refuses everybody who wants these locks, for ever",
                "quorlock ls lists them: they never end",
            ));
        }
        let incomplete = facts.unscanned.as_ref();
        if let Some(why) = incomplete.filter(|why| !why.is_about_rights()) {
            findings.push(Note.finding(
                "leftover",
                format!("not all of its keys were looked at for locks that never end: {why}"),
                "such a key makes the node refuse everybody who wants that lock",
                "nothing needs to be fixed; quorlock ls looks at all keys",
            ));
        }
        findings
    }
}
