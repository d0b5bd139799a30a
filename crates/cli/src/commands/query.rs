//! `quorlock query KEY`: prints the value that a quorum of nodes stores.

use std::io::{self, Write as _};

use quorlock::admin::list_nodes;
use quorlock::{Query as Found, Verdict};
use serde_json::json;

use super::status::{headline, reader, trust_states, why_unknown};
use crate::args::{OutputArgs, Query};
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{self, Output};

pub(crate) fn main(args: &Query, format: OutputArgs) -> Result<ExitCode, Refused> {
    options::check_key(&args.key, &args.nodes)?;
    let client = options::build(reader(&args.nodes)?, &args.nodes)?;
    let runtime = super::runtime()?;
    let look = || {
        let seen = runtime.block_on(client.inspect(&args.key));
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
    if format.json {
        let text = value.and_then(|value| std::str::from_utf8(value).ok());
        let answer = json!({ "key": args.key, "state": state, "value": text });
        output::print(&format!("{answer}\n"))?;
    } else if let Some(value) = value {
        let mut out = io::stdout();
        out.write_all(&[value, b"\n"].concat()).and_then(|()| out.flush())?;
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
