//! `quorlock query KEY`: prints the value that a quorum of nodes stores.

use std::io::{self, IsTerminal as _};

use quorlock::admin::list_nodes;
use quorlock::node::Holding;
use quorlock::{Query as Found, Verdict};
use serde_json::json;

use super::slow::looking;
use super::status::{headline, reader, trust_states, why_unknown};
use crate::args::{OutputArgs, Query};
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{self, Output, json_line, one_line};

pub(crate) fn main(args: &Query, format: OutputArgs) -> Result<ExitCode, Refused> {
    options::check_key(&args.key, &args.nodes)?;
    let builder = reader(&args.nodes)?;
    let client = options::build(builder.clone(), &args.nodes)?;
    let runtime = super::runtime()?;
    let look = || {
        let seen = runtime.block_on(looking(&builder, format, client.inspect(&args.key)));
        seen.map_err(|error| Refused::usage(error.to_string()))
    };
    let mut seen = look()?;
    if seen.untrusted() > 0 {
        // The first inspection makes the client ask whether each node is trusted. The second inspection has the answers.
        seen = look()?;
    }
    let found = Found::of(&seen);
    let (state, code) = match (&found, seen.verdict()) {
        (Found::Value(_), _) => ("held", ExitCode::Success),
        (_, Verdict::Held) => ("other_type", ExitCode::Held),
        (Found::Free, _) => ("free", ExitCode::Warnings),
        (Found::Shared, _) => ("shared", ExitCode::Held),
        (Found::Split, _) => ("split", ExitCode::Held),
        _ => ("unknown", why_unknown(&seen)),
    };
    let value = match &found {
        Found::Value(value) => Some(value.as_slice()),
        _ => None,
    };
    let max = Holding::VALUE_BYTES_MAX;
    let is_cut = value.is_some_and(|value| value.len() >= max);
    if is_cut {
        let message = format!(
            "the value has {max} bytes or more, and only the first {max} are printed; redis-cli GET on a node shows all"
        );
        output::say(format.json, "cut", &message);
    }
    if format.json {
        let text = value.and_then(|value| match std::str::from_utf8(value) {
            // The cut may be within a character.
            Err(error) if is_cut && error.error_len().is_none() => {
                std::str::from_utf8(&value[..error.valid_up_to()]).ok()
            }
            text => text.ok(),
        });
        let answer = json!({ "key": args.key, "state": state, "value": text });
        output::print(&json_line(&answer))?;
    } else if let Some(value) = value {
        // A pipe gets the value as it is stored. A terminal would obey control characters in it.
        if io::stdout().is_terminal() {
            output::print(&format!("{}\n", one_line(value)))?;
        } else {
            output::print_as_is([value, b"\n"].concat())?;
        }
    } else if found != Found::Free {
        let key = args.key.escape_debug();
        let mut message = format!("\"{key}\": {}", headline(&seen, false));
        if matches!(seen.verdict(), Verdict::Split | Verdict::Unknown) {
            message += &format!("; {}", list_nodes(&seen.nodes));
        }
        if seen.untrusted() > 0 {
            let states = trust_states(&seen, &client.stats().nodes);
            states.lines().for_each(|line| message += &format!("; {}", line.trim_start()));
        }
        Output::new(format, None)?.error(json!(null), &message);
    }
    Ok(code)
}
