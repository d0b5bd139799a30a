//! Records the commands that quorlock uses for each kind of lock on a server, and how a waiter learns of a release.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use quorlock_servers::{Nodes, Reply, ServerBinary, ServerOptions};
use serde_json::{Value, json};

use crate::generated::{self, Rows};

/// The kinds of locks, and the arguments of `quorlock run` for each.
const KINDS: [(&str, &[&str]); 4] = [
    ("exclusive", &[]),
    ("fenced", &["--fenced"]),
    ("shared", &["--shared"]),
    ("several keys", &["--also", "other"]),
];

/// Commands that a client sends when it connects. The results contain only the commands after the last of them.
const AT_CONNECT: [&str; 5] = ["CLIENT", "COMMAND", "HELLO", "PING", "SCRIPT"];

/// The argument of the `ECHO` command after each recorded run. `MONITOR` shows it at the end of the recording.
const END: &str = "the recording ends";

/// The file with the results of all servers.
const RESULTS: &str = "target/matrix.json";

/// The table in `docs/servers.md` stands between these lines.
const TABLE: [&str; 2] =
    ["<!-- `cargo xtask matrix` writes this table. -->\n", "<!-- The table ends here. -->\n"];

/// Takes locks on three servers of this version with `quorlock` at `program`, and returns the results as JSON.
pub(super) fn of(program: &Path, binary: &ServerBinary) -> Result<Value, String> {
    let nodes = Nodes::start(binary, 3, ServerOptions::default()).map_err(|why| why.to_string())?;
    let quorlock = |args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).env("QUORLOCK_NODES", nodes.urls().join(","));
        command.env("QUORLOCK_RESTART_GUARD", "off").stdin(Stdio::null());
        command
    };
    let ask = |words: &[&str]| match nodes[0].command(words) {
        Ok(Reply::Bulk(Some(text))) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Ok(_) => Ok(String::new()),
        Err(why) => Err(format!("{words:?}: {why}")),
    };
    let mut commands = BTreeMap::new();
    for (kind, options) in KINDS {
        let run = || {
            let mut run = quorlock(&[&["run", "lock"], options, &["--", "true"]].concat());
            match run.status() {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => Err(format!("quorlock run, {kind}: {status}")),
                Err(why) => Err(why.to_string()),
            }
        };
        // This run loads the scripts into the servers, so the recorded run below shows the commands of any later lock.
        run()?;
        let mut monitor = nodes[0].connect().map_err(|why| why.to_string())?;
        monitor.command(&["MONITOR"]).map_err(|why| why.to_string())?;
        run()?;
        ask(&["ECHO", END])?;
        let mut used = Vec::new();
        loop {
            match monitor.reply().map_err(|why| why.to_string())? {
                Reply::Simple(line) if line.contains(END) => break,
                Reply::Simple(line) => match sent(&line) {
                    Some(name) if AT_CONNECT.contains(&&*name) => used.clear(),
                    name => used.extend(name),
                },
                other => return Err(format!("MONITOR: {other:?}")),
            }
        }
        used.dedup();
        commands.insert(kind, used);
    }
    let mut holder = quorlock(&["run", "lock", "--", "sh", "-c", "echo held; cat"]);
    holder.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().map_err(|why| why.to_string())?;
    let mut line = String::new();
    let said = holder.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
    let clients = ask(&["CLIENT", "LIST"])?;
    // `wait` closes the command's input, so the command ends.
    let ended = holder.wait().map_err(|why| why.to_string())?;
    if !ended.success() || said.is_none_or(|said| said.is_err()) {
        return Err(format!("quorlock run with a command that waits: {ended}"));
    }
    let is_pushed = clients.lines().any(|client| {
        let flags = client.split(' ').find_map(|field| field.strip_prefix("flags="));
        flags.is_some_and(|flags| flags.contains('t'))
    });
    let notified = if is_pushed { "push" } else { "polling" };
    Ok(json!({"notified": notified, "commands": commands}))
}

/// The command in a line of `MONITOR`; `None` if a script called it.
fn sent(line: &str) -> Option<String> {
    let (client, words) = line.split_once("] \"")?;
    let name = words.split('"').next()?.to_uppercase();
    (!client.ends_with(" lua")).then_some(name)
}

/// Puts the results of a server into [`RESULTS`], and writes the table in `docs/servers.md`. All that this run
/// did not measure stays as it is.
pub(super) fn write(workspace: &Path, name: &str, results: Value) -> Result<(), String> {
    let mut servers = generated::rows_in(workspace, RESULTS);
    let row = servers.entry(name).or_insert(Value::Null);
    for (part, result) in results.as_object().into_iter().flatten() {
        row[part] = result.clone();
    }
    generated::keep_rows(workspace, RESULTS, &servers)?;
    generated::replace(workspace, "docs/servers.md", TABLE, &table(&servers))
}

fn table(servers: &Rows) -> String {
    let kinds: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
    let heads = ["server", "tests passed", "not for it", "beside redlock-py", "notified by"];
    let heads = [&heads, &kinds[..]].concat();
    let mut table = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for row in servers.values() {
        let (tests, profile) = (&row["tests"], &row["profile"]);
        let passed = match tests["failures"].as_array() {
            Some(failures) if failures.is_empty() => tests["passed"].to_string(),
            Some(failures) => format!("**{} failed**", failures.len()),
            None => "not run".to_owned(),
        };
        let not_for = tests["not_for"].as_u64().map_or(String::new(), |count| count.to_string());
        let text = |value: &Value| value.as_str().unwrap_or("not run").to_owned();
        let exclusion = text(&row["exclusion"]);
        let mut cells = vec![text(&row["server"]), passed, not_for, exclusion];
        cells.push(text(&profile["notified"]));
        cells.extend(kinds.iter().map(|kind| {
            let names = profile["commands"][*kind].as_array().into_iter().flatten();
            names.filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
        }));
        table += &format!("| {} |\n", cells.join(" | "));
    }
    table
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn commands_of_scripts_are_not_listed() {
        let sent = |line| sent(&format!("1764065000.123456 [0 {line}"));
        assert_eq!(sent(r#"unix:/r.sock] "SET" "lock" "] \"x\"""#).as_deref(), Some("SET"));
        assert_eq!(sent(r#"127.0.0.1:1] "evalsha" "ab" "1" "lock""#).as_deref(), Some("EVALSHA"));
        assert_eq!(sent(r#"lua] "DEL" "lock""#), None);
    }

    #[test]
    fn a_row_keeps_the_parts_that_a_run_did_not_measure() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("docs/servers.md");
        for name in ["docs", "target"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(&page, TABLE.concat()).unwrap();
        let row_after = |results| {
            write(folder.path(), "redis-7.0", results).unwrap();
            fs::read_to_string(&page).unwrap().lines().nth(3).unwrap().to_owned()
        };
        let commands = json!({"notified": "push", "commands": {"exclusive": ["SET", "EVALSHA"]}});
        let row = row_after(json!({"server": "Redis 7.0.15", "profile": commands}));
        assert_eq!(row, "| Redis 7.0.15 | not run |  | not run | push | SET, EVALSHA |  |  |  |");
        // A program that crashes is a failure without a failed test.
        let tests = json!({"passed": 5, "not_for": 1, "failures": ["cargo test --test crash"]});
        let row = row_after(json!({"tests": tests, "exclusion": "exact"}));
        assert!(
            row.starts_with("| Redis 7.0.15 | **1 failed** | 1 | exact | push | SET, EVALSHA |")
        );
    }
}
