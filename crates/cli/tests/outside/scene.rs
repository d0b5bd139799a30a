//! Commands that run one after the other, and the record of their output.

use std::fmt::Write as _;
use std::process::{Command, Output};

use expect_test::ExpectFile;
use quorlock_servers::Flavor;
use regex_lite::Regex;

use crate::common::{Running, Testbed, not_for, server, stderr, stdout};

/// The server version with which the files were recorded.
const RECORDED: (Flavor, &str) = (Flavor::Redis, "7.0.");

/// Commands that run one after the other on real servers, and the record of their output and of what a server receives.
pub(crate) struct Scene {
    pub(crate) testbed: Testbed,
    pub(crate) node_timeout: &'static str,
    pub(crate) record: String,
}

/// A command that writes the file `up` and ends when the file `go` exists.
pub(crate) const UNTIL_GO: &str = "echo > up; while [ ! -e go ]; do sleep 0.02; done";

impl Scene {
    /// `None`: this machine lacks the version with which the files were recorded, so the test is reported as skipped.
    pub(crate) fn new(nodes: usize) -> Option<Self> {
        let binary = server()?;
        let (flavor, version) = RECORDED;
        if binary.flavor != flavor || !binary.version.to_string().starts_with(version) {
            not_for("the files were recorded with Redis 7.0");
            return None;
        }
        let testbed = Testbed::sized(nodes)?;
        // The node timeout is longer than any answer takes on a busy machine.
        Some(Self { testbed, node_timeout: "2s", record: String::new() })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.testbed.quorlock(args);
        command.env("QUORLOCK_NODE_TIMEOUT", self.node_timeout);
        command
    }

    /// Runs `quorlock` with these environment variables to its end, and records its output.
    pub(crate) fn quorlock_with(&mut self, variables: &[(&str, &str)], args: &[&str]) {
        let output = self.command(args).envs(variables.iter().copied()).output().unwrap();
        let set: String =
            variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        self.note_as(&format!("{set}quorlock"), args, &output);
    }

    /// Runs `quorlock` once for each line, split at its spaces into arguments, and records the outputs.
    pub(crate) fn each<const N: usize>(&mut self, lines: [&str; N]) {
        for line in lines {
            self.quorlock_with(&[], &line.split(' ').collect::<Vec<_>>());
        }
    }

    /// Starts `quorlock` and waits until its command has written the file `up`.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let running = self.begin(args);
        self.testbed.await_file("up");
        std::fs::remove_file(self.testbed.path("up")).unwrap();
        running
    }

    pub(crate) fn begin(&self, args: &[&str]) -> Running {
        Running::start(&mut self.command(args))
    }

    /// Lets the command [`UNTIL_GO`] end.
    pub(crate) fn go(&self) {
        std::fs::write(self.testbed.path("go"), "").unwrap();
    }

    pub(crate) fn note(&mut self, args: &[&str], output: &Output) {
        self.note_as("quorlock", args, output);
    }

    fn note_as(&mut self, command: &str, args: &[&str], output: &Output) {
        let code = output.status.code().map_or("a signal".to_owned(), |code| code.to_string());
        writeln!(self.record, "$ {command} {}", args.join(" ")).unwrap();
        stdout(output).lines().for_each(|line| writeln!(self.record, "{line}").unwrap());
        stderr(output).lines().for_each(|line| writeln!(self.record, "! {line}").unwrap());
        writeln!(self.record, "= {code}\n").unwrap();
    }

    pub(crate) fn say(&mut self, what: &str) {
        writeln!(self.record, "# {what}\n").unwrap();
    }

    pub(crate) fn compare(self, recorded: &ExpectFile) {
        recorded.assert_eq(&greeted_once(&self.recorded()));
    }

    /// The record, with placeholders for the texts that differ from run to run.
    pub(crate) fn recorded(self) -> String {
        let folder = self.testbed.folder.path().display().to_string();
        let mut record = self.record.replace(&folder, "FOLDER");
        for (server, name) in self.testbed.nodes.iter().zip(["a", "b", "c", "d", "e"]) {
            record = record.replace(&server.address(), &format!("ADDRESS_{name}"));
        }
        for (pattern, kind) in KINDS {
            record = Regex::new(pattern).unwrap().replace_all(&record, *kind).into_owned();
        }
        record
    }
}

/// The commands that the client sends when a connection is opened.
const GREETING: &str = r#"(?m)^ +"HELLO"[^\n]*\n( +"(PING|CLIENT|COMMAND|SCRIPT|EVAL" "-- Returns the numbers of the calls[^"]*|EVALSHA" "0{40})"[^\n]*\n)*"#;

/// All greetings are the same, so this function keeps only the first one in full and shortens the others.
pub(crate) fn greeted_once(seen: &str) -> String {
    let Some(greeting) = Regex::new(GREETING).unwrap().find(seen) else { return seen.to_owned() };
    let (first, rest) = seen.split_at(greeting.end());
    first.to_owned() + &rest.replace(greeting.as_str(), "  (greeting)\n")
}

/// Patterns of texts that differ from run to run, and their placeholders.
const KINDS: &[(&str, &str)] = &[
    (r#"("SETNAME") "quorlock(?:-look)?:[!-~]*:[0-9]+""#, "$1 \"NAME\""),
    (r"(TOKEN=|run_id=|doctor:)[0-9a-f]{40}", "${1}ID"),
    (r#"("(?:mine|quorlock:take:k)") "[0-9a-f]{40}""#, "$1 \"NONCE\""),
    (r"quorlock1:[0-9A-Za-z=,%._:@/-]+", "LEASE"),
    (r"at [0-9-]{10}T[0-9:]{8}Z", "at CLOCK"),
    (r"[0-9a-f]{40} @[0-9]{13} [^ ]+:[0-9]+ ", "ID @SINCE HOST:PID "),
    (r"[0-9a-f]{40} @[0-9]{13}-[0-9]+ [^ ]+:[0-9]+ ", "ID @SINCE-AGE HOST:PID "),
    (r"[0-9a-f]{40} [^ ]+:[0-9]+ ", "ID HOST:PID "),
    (r"since [0-9]{2}:[0-9]{2}:[0-9]{2}Z \([^)]*\)", "since CLOCK"),
    (r"[A-Za-z0-9.-]+:[0-9]+ (nightly|true|sh|acquire)", "HOST:PID $1"),
    (r"client [A-Za-z0-9.-]+:[0-9]+ is", "client HOST:PID is"),
    // The record contains only the first line of a script, because the whole text is in the library's sources.
    (r#""(-- [^\\"]*)\\n(?:[^"\\]|\\.)*""#, "\"$1…\""),
    (r#""([a-z_]+_(?:ms|us|s))":-?[0-9]+"#, "\"$1\":N"),
    (r"\b[0-9]{13,16}\b", "N"),
    (r"clock [^ ]+ms", "clock TIME"),
    // Nodes beyond the quorum may answer after the report, so the number of votes differs from run to run.
    (r#""votes":[2-9]"#, r#""votes":N"#),
    (r"[0-9]+\.[0-9]+(?:ms|µs|s)", "TIME"),
    // The client may hear of a refusal before its first attempt, or during the attempt.
    (r"not acquired in TIME \(1 attempt\)", "not acquired in TIME"),
    (r"[0-9]+(?:ms|s) (more|left|unless)", "TIME $1"),
    (r"after [0-9]+ms", "after TIME"),
    (r"[0-9]+ min\b", "N min"),
    (r"up [0-9]+s", "up TIME"),
    (r"[0-9]+ s\b", "N s"),
    (r"  +", "  "),
];
