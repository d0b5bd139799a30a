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
            .map(|key| Finding {
                severity: Warning,
                check: "leftover",
                what: format!(
                    "its key \"{}\" has the value of a lock and no expiry",
                    shown(key, WORD_MAX)
                ),
                why: if key.starts_with(&*intents) {
                    "the node takes it for a waiting writer, and refuses each reader of that lock, for ever"
                } else {
                    "the node refuses everybody who wants that lock, for ever"
                },
                fix: format!(
                    "if no other program uses the key: {}",
                    self.node.redis_cli.line_about("DEL", key.as_bytes())
                ),
            })
            .collect();
        let more = facts.leftovers.len() - findings.len();
        if more > 0 {
            findings.push(Finding {
                severity: Warning,
                check: "leftover",
                what: format!("{more} more keys have the value of a lock and no expiry"),
                why: "the node refuses everybody who wants these locks, for ever",
                fix: "quorlock ls lists them: they never end".to_owned(),
            });
        }
        let incomplete = facts.unscanned.as_ref();
        if let Some(why) = incomplete.filter(|why| !why.is_about_rights()) {
            findings.push(Finding {
                severity: Note,
                check: "leftover",
                what: format!("not all of its keys were looked at for locks that never end: {why}"),
                why: "such a key makes the node refuse everybody who wants that lock",
                fix: "nothing needs to be fixed; quorlock ls looks at all keys".to_owned(),
            });
        }
        findings
    }
}
