//! The servers that the benchmark starts: on ports of the loopback interface, and without persistence unless a
//! workload asks for it.

use std::collections::BTreeMap;
use std::path::Path;

use quorlock_servers::{Listen, Nodes, Reply, Server, ServerBinary, ServerOptions};

/// Starts independent servers with further command-line arguments.
///
/// # Errors
/// The message of the server.
pub(crate) fn start(binary: &ServerBinary, count: usize, args: &[&str]) -> Result<Nodes, String> {
    let args = args.iter().map(|&arg| arg.to_owned()).collect();
    let options = ServerOptions { listen: Listen::Tcp, args, ..ServerOptions::default() };
    Nodes::start(binary, count, options).map_err(|error| error.to_string())
}

/// Returns the server that `--server` names, or the first that is found.
///
/// # Errors
/// A message for the user: why the server is unusable, or how to install one.
pub(crate) fn server(name: Option<&str>) -> Result<ServerBinary, String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    quorlock_servers::find_named(name, workspace)
}

pub(crate) fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(Server::url).collect()
}

/// Sums one counter of `INFO stats` over the servers.
///
/// # Errors
/// If a server does not answer, or lacks the counter.
pub(crate) fn counter(servers: &[Server], name: &str) -> Result<u64, String> {
    let value = |server: &Server| {
        let text = info(server, "stats")?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.and_then(|value| value.trim().parse::<u64>().ok());
        value.ok_or_else(|| format!("{}: INFO stats has no {name}", server.address()))
    };
    servers.iter().map(value).sum()
}

fn info(server: &Server, section: &str) -> Result<String, String> {
    match server.command(&["INFO", section]) {
        Ok(Reply::Bulk(Some(text))) => Ok(String::from_utf8_lossy(&text).into_owned()),
        other => Err(format!("{}: INFO {section}: {other:?}", server.address())),
    }
}

/// The number of calls of each command, from the counters of the servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Commands(BTreeMap<String, u64>);

/// Commands that only scripts call, not clients. [`Commands::sent`] subtracts them, and one `get` for each script call.
const INSIDE_SCRIPTS: [&str; 3] = ["del", "pttl", "pexpire"];

impl Commands {
    /// Reads the counters.
    ///
    /// # Errors
    /// If a server does not answer.
    pub(crate) fn read(servers: &[Server]) -> Result<Self, String> {
        let mut all = Self::default();
        for server in servers {
            all.add(&info(server, "commandstats")?);
        }
        Ok(all)
    }

    fn add(&mut self, info: &str) {
        for line in info.lines() {
            let Some((name, rest)) = line.strip_prefix("cmdstat_").and_then(|l| l.split_once(':'))
            else {
                continue;
            };
            let calls = rest.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
            let calls = calls.and_then(|calls| calls.parse::<u64>().ok()).unwrap_or(0);
            *self.0.entry(name.to_owned()).or_default() += calls;
        }
    }

    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Returns the calls after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let new = |(name, calls): (&String, &u64)| (name.clone(), calls - before.calls(name));
        Self(self.0.iter().map(new).filter(|(_, calls)| *calls > 0).collect())
    }

    /// The number of commands that clients sent, without commands in scripts and without reads of the counters.
    pub(crate) fn sent(&self) -> u64 {
        let scripts = self.calls("evalsha") + self.calls("eval");
        let inside = |name: &str| INSIDE_SCRIPTS.contains(&name) && scripts > 0;
        let sent = |(name, calls): (&String, &u64)| match name.as_str() {
            "info" => 0,
            "get" => calls.saturating_sub(scripts),
            name if inside(name) => 0,
            _ => *calls,
        };
        self.0.iter().map(sent).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_scripts_do_is_not_what_was_sent() {
        let mut before = Commands::default();
        before.add("cmdstat_set:calls=7,usec=1\r\n");
        let mut after = Commands::default();
        after.add(
            "# Commandstats\r\ncmdstat_set:calls=17,usec=1\r\ncmdstat_evalsha:calls=10,usec=9\r\n\
             cmdstat_get:calls=12,usec=1\r\ncmdstat_del:calls=9,usec=1\r\ncmdstat_info:calls=2,u=1\r\n",
        );
        let new = after.since(&before);
        assert_eq!((new.calls("set"), new.calls("evalsha"), new.calls("ping")), (10, 10, 0));
        assert_eq!(new.sent(), 10 + 10 + 2);
    }
}
