//! `quorlock query KEY`: prints the value that a quorum of nodes stores.

use std::io::{self, Write as _};

use quorlock::{Query as Found, RestartGuard};
use serde_json::json;

use crate::args::{OutputArgs, Query};
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{self, Output};

pub(crate) fn main(args: &Query, format: OutputArgs) -> Result<ExitCode, Refused> {
    options::check_key(&args.key, &args.nodes)?;
    let mut builder = options::builder(&args.nodes)?;
    if !options::guard_is_off(&args.nodes) {
        // With the strict restart guard, a client writes markers to nodes. This client must only read.
        builder = builder.restart_guard(RestartGuard::Observe);
    }
    let client = options::build(builder, &args.nodes)?;
    let found = super::runtime()?.block_on(client.query(&args.key));
    let found = found.map_err(|error| Refused::usage(error.to_string()))?;
    let (state, code, message) = match &found {
        Found::Value(_) => ("held", ExitCode::Success, None),
        Found::Free => ("free", ExitCode::Warnings, None),
        Found::Shared => {
            ("shared", ExitCode::Held, Some("readers hold it, each with a value of its own"))
        }
        Found::Split => (
            "split",
            ExitCode::Held,
            Some("the nodes store different values, and none has a quorum"),
        ),
        _ => ("unknown", ExitCode::NoQuorum, Some("too few nodes answered")),
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
    } else if let Some(message) = message {
        let message =
            format!("\"{}\": {message}; quorlock status says more", args.key.escape_debug());
        Output::new(format, None)?.error(json!(null), &message);
    }
    Ok(code)
}
