//! `quorlock doctor`: checks whether the nodes are fit to hold locks.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use quorlock::LockOptions;
use quorlock::settings::duration;
use quorlock_admin::doctor::{Examination, Finding, NodeReport, Severity, Votes, examine};
use serde_json::{Value, json};

use super::slow::looking;
use crate::args::{Doctor, OutputArgs};
use crate::exit_code::ExitCode;
use crate::options::{self, Refused};
use crate::output::{self, columns, json_line, millis, plain, time};

pub(crate) fn main(args: &Doctor, format: OutputArgs) -> Result<ExitCode, Refused> {
    let mut builder = options::builder(&args.nodes)?;
    // No option of this command, but the locks of this machine have it.
    if let Some(ttl) = args.nodes.values.get("ttl", duration) {
        builder = builder.options(LockOptions::new().ttl(ttl));
    }
    let examined = super::runtime()?.block_on(looking(&builder, format, examine(&builder)));
    let examined = examined.map_err(|error| options::blamed(error, &args.nodes))?;
    let paint = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let text = if args.systemd {
        examined.systemd()
    } else if let Some(user) = &args.acl {
        if !format.quiet {
            // Standard output has only the commands, because it may be piped to a server.
            let how = "run each line as the arguments of redis-cli -h HOST -p PORT, with a password for PASSWORD; then, to keep it over a \
                       restart: ACL SAVE if the server has an aclfile, else CONFIG REWRITE";
            let _ = writeln!(io::stderr(), "{how}");
        }
        acl(&examined, user)
    } else if format.json {
        let mut json = as_json(&examined);
        json["config"] = json!(args.nodes.values.file);
        json_line(&json)
    } else {
        as_text(&examined, args, format, paint)
    };
    // The text is plain except for the colors.
    output::print_as_is(text)?;
    Ok(match examined.worst() {
        // With --systemd or --acl, the printed text does not depend on the findings, so the exit code does not either.
        _ if args.systemd => ExitCode::Success,
        _ if args.acl.is_some() && is_whole(&examined) => ExitCode::Success,
        Some(Severity::Error) => ExitCode::Errors,
        Some(Severity::Warning) => ExitCode::Warnings,
        _ => ExitCode::Success,
    })
}

/// One line per node with its findings below it. The last line is about all nodes together.
fn as_text(examined: &Examination, args: &Doctor, format: OutputArgs, paint: bool) -> String {
    let mut text = match &args.nodes.values.file {
        _ if format.quiet => String::new(),
        Some(file) => plain(&format!("config   {}\n", file.display())),
        None => "config   no file\n".to_owned(),
    };
    let head = ["NODE", "SERVER", "UPTIME", "ROUND TRIP", "CLOCK", "VOTES"];
    let mut lines = columns(head, examined.nodes.iter().map(row), &[]).into_iter();
    if let Some(head) = lines.next().filter(|_| !format.quiet) {
        text.push_str(&format!("{:7}  {head}\n", ""));
    }
    for (node, line) in examined.nodes.iter().zip(lines) {
        let worst = node.worst().filter(|worst| *worst > Severity::Note);
        if format.quiet && worst.is_none() {
            continue;
        }
        let verdict = worst.map_or_else(|| "ok".to_owned(), |worst| worst.to_string());
        text.push_str(&painted(worst, paint, &format!("{verdict:7}  {line}")));
        text.push('\n');
        for finding in &node.findings {
            if args.notes || finding.severity > Severity::Note {
                text.push_str(&told(finding, paint));
            }
        }
    }
    if let Some(finding) = &examined.together {
        let line = format!("{:7}  {} ({})", finding.severity, finding.what, finding.fix);
        text.push_str(&painted(Some(finding.severity), paint, &line));
        text.push('\n');
    }
    text
}

fn told(finding: &Finding, paint: bool) -> String {
    let severity = Some(finding.severity).filter(|severity| *severity > Severity::Note);
    let what = format!("{}: {}", finding.severity, finding.what);
    let mut text = format!("         {}\n", painted(severity, paint, &what));
    text += &plain(&format!("             why  {}\n", finding.why));
    text += &plain(&format!("             fix  {}\n", finding.fix));
    text
}

fn painted(severity: Option<Severity>, paint: bool, text: &str) -> String {
    let color = match severity {
        None => AnsiColor::Green,
        Some(Severity::Error) => AnsiColor::Red,
        Some(_) => AnsiColor::Yellow,
    };
    let style = if paint { color.on_default() } else { Style::new() };
    format!("{style}{}{style:#}", plain(text))
}

fn row(node: &NodeReport) -> [String; 6] {
    let up = node.uptime_s.map(|seconds| match u64::try_from(seconds) {
        Ok(seconds) => format!("up {}", humantime::format_duration(rounded(seconds))),
        Err(_) => format!("up {seconds}s"),
    });
    [
        match node.is_located {
            true => format!("{} ({})", node.node, node.address),
            false => node.node.to_string(),
        },
        node.server.clone().unwrap_or_default(),
        up.unwrap_or_default(),
        node.latency
            .map(|latency| format!("{:.2}ms", latency.as_secs_f64() * 1000.0))
            .unwrap_or_default(),
        node.clock.map(|clock| offset(clock.ahead_us, clock.error)).unwrap_or_default(),
        match node.votes {
            Votes::Count => "votes count".to_owned(),
            Votes::CountIn(Duration::ZERO) => "votes count at once".to_owned(),
            Votes::CountIn(wait) => format!("votes count in {}", time(wait)),
            Votes::CountAfterUse(wait) => format!("votes count {} after use", time(wait)),
            _ => "no votes".to_owned(),
        },
    ]
}

fn rounded(seconds: u64) -> Duration {
    let unit = match seconds {
        ..3600 => 1,
        3600..86_400 => 60,
        _ => 3600,
    };
    Duration::from_secs(seconds / unit * unit)
}

fn offset(ahead_us: i64, error: Duration) -> String {
    // The offset is rounded here, and 0.0 is added, so that a small negative offset is not shown as -0.0.
    let tenths = (ahead_us as f64 / 100.0).round();
    let (ahead, error) = (tenths / 10.0 + 0.0, error.as_secs_f64() * 1000.0);
    format!("clock {ahead:+.1}±{error:.1}ms")
}

/// Whether [`Examination::acl`] has a command for every node.
fn is_whole(examined: &Examination) -> bool {
    examined.acl("USER").iter().map(|(_, nodes)| nodes.len()).sum::<usize>() == examined.nodes.len()
}

fn acl(examined: &Examination, user: &str) -> String {
    let mut text = String::new();
    let lines = examined.acl(user);
    for (line, nodes) in &lines {
        if lines.len() > 1 {
            text.push_str(&format!("# on {}\n", nodes.join(", ")));
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn as_json(examined: &Examination) -> Value {
    let nodes: Vec<Value> = examined.nodes.iter().map(node_json).collect();
    json!({
        "worst": examined.worst().map_or_else(|| "ok".to_owned(), |worst| worst.to_string()),
        "quorum": examined.quorum,
        "quarantine_ms": millis(examined.quarantine),
        "nodes": nodes,
        "together": examined.together.as_ref().map(finding_json),
    })
}

fn node_json(node: &NodeReport) -> Value {
    let (votes, count_in) = match node.votes {
        Votes::Count => ("count", None),
        Votes::CountIn(wait) => ("count_in", Some(millis(wait))),
        Votes::CountAfterUse(wait) => ("count_after_use", Some(millis(wait))),
        _ => ("do_not_count", None),
    };
    let findings: Vec<Value> = node.findings.iter().map(finding_json).collect();
    json!({
        "node": &*node.node,
        "address": node.address,
        "server": node.server,
        "uptime_s": node.uptime_s,
        "latency_us": node.latency.map(micros),
        "clock_ahead_us": node.clock.map(|clock| clock.ahead_us),
        "clock_error_us": node.clock.map(|clock| micros(clock.error)),
        "votes": votes,
        "votes_count_in_ms": count_in,
        "findings": findings,
    })
}

fn finding_json(finding: &Finding) -> Value {
    json!({
        "severity": finding.severity.to_string(),
        "check": finding.check,
        "what": finding.what,
        "why": finding.why,
        "fix": finding.fix,
    })
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_less_than_nothing() {
        let told = |ahead_us| offset(ahead_us, Duration::from_micros(20));
        assert_eq!(told(-20), "clock +0.0±0.0ms");
        assert_eq!(told(-60), "clock -0.1±0.0ms");
        assert_eq!(told(1_234), "clock +1.2±0.0ms");
    }

    #[test]
    fn good_is_green_and_bad_is_red() {
        assert_eq!(painted(None, true, "ok"), "\x1b[32mok\x1b[0m");
        assert_eq!(painted(Some(Severity::Warning), true, "x"), "\x1b[33mx\x1b[0m");
        assert_eq!(painted(Some(Severity::Error), true, "x"), "\x1b[31mx\x1b[0m");
        assert_eq!(painted(Some(Severity::Error), false, "x"), "x");
    }
}
