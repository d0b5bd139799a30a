//! Whether the server is reachable, and which rights its user has.

use quorlock::admin::Weight;
use quorlock_core::{Failure, FailureKind, TimingOptions};

use super::trust_state::is_for_its_kind;
use super::{Case, is_busy};
use crate::doctor::Finding;
use crate::doctor::Severity::{self, Error, Note, Warning};
use crate::doctor::look::Facts;

pub(super) const LACKS_RIGHTS: &str = "quorlock doctor --acl USER prints the command that gives them; then ACL SAVE, where an aclfile is used";

/// The remedy for any fault of a certificate: commands that make a new one, which a client accepts.
const NEW_CERTIFICATE: &str = "\
    on the server, with its name for HOST: openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=HOST \
    -addext subjectAltName=DNS:HOST -addext basicConstraints=critical,CA:FALSE -keyout redis.key -out redis.crt (IP:HOST \
    for an address); name both files in its configuration (tls-key-file, tls-cert-file), restart it, and give a copy of \
    redis.crt to --tls-ca";

const SLOWER: &str =
    "locks work, but a waiting client notices a free lock late, or commands need more bytes";

const NOT_SHARED: &str = "locks work, but not those that readers share";

const NOT_LISTED: &str = "locks work, but neither quorlock ls nor quorlock init --fresh can look for those that are held";

/// For each effect on locks ([`Weight`]): severity of missing rights and of a missing command, then both consequences.
const WITHOUT: [(Weight, Severity, Severity, &str, &str); 4] = [
    (
        Weight::Needed,
        Error,
        Error,
        "without these a lock cannot be taken, extended or given back here",
        "without it no lock can be taken, extended or given back here",
    ),
    (Weight::Wanted, Warning, Note, SLOWER, SLOWER),
    (Weight::Shared, Warning, Warning, NOT_SHARED, NOT_SHARED),
    (Weight::Listing, Note, Note, NOT_LISTED, NOT_LISTED),
];

/// The names of the rights or commands that have this effect on locks (`weight`), without duplicates.
fn of(weight: Weight, names: &[(&'static str, Weight)]) -> Vec<&'static str> {
    let mut names: Vec<_> =
        names.iter().filter(|(_, other)| *other == weight).map(|(name, _)| *name).collect();
    names.dedup();
    names
}

impl Case<'_> {
    pub(super) fn unreached(&self, failure: &Failure) -> Finding {
        let login = failure.kind() == FailureKind::Unauthenticated;
        if failure.kind() == FailureKind::Busy {
            return self.busy();
        }
        let check = if login { "login" } else { "reach" };
        let why = "its vote is missing from every lock";
        Error.finding(check, failure.to_string(), why, self.to_reach(failure))
    }

    /// The finding about a server that runs a script or function of another program.
    pub(super) fn busy(&self) -> Finding {
        Error.finding(
            "busy",
            "it runs a script or a function, and refuses all other commands until that has ended",
            "its vote is missing from every lock meanwhile",
            self.to_end_script(),
        )
    }

    fn to_end_script(&self) -> String {
        format!(
            "wait until it has ended, then look again: quorlock doctor; to end it, if it has written nothing: {} (a \
             function: FUNCTION KILL)",
            self.cli("SCRIPT KILL")
        )
    }

    pub(super) fn to_load(&self) -> String {
        format!(
            "wait: {} shows how far it is; then look again: quorlock doctor",
            self.cli("INFO persistence")
        )
    }

    /// The remedy if the server cannot be reached or refuses the login.
    fn to_reach(&self, failure: &Failure) -> String {
        let says = |words: &str| failure.detail().is_some_and(|detail| detail.contains(words));
        if says("sentinel-password") {
            return "give the user and password of the Sentinels: sentinel-user and sentinel-password in the node's URL"
                .to_owned();
        }
        if failure.detail().is_some_and(|detail| detail.starts_with("Sentinel ")) {
            return format!(
                "start the Sentinel, or correct the node's URL, until this lists the master: {}",
                self.cli("SENTINEL MASTERS")
            );
        }
        if says("this is a Sentinel") {
            return format!(
                "give the master's URL, or that of all Sentinels with the master's name, which this shows: {}",
                self.cli("SENTINEL MASTERS")
            );
        }
        if failure.kind() == FailureKind::Unauthenticated {
            return "give the user and password: --username, QUORLOCK_PASSWORD or --password-file"
                .to_owned();
        }
        if failure.kind() == FailureKind::Loading {
            return self.to_load();
        }
        if failure.kind() == FailureKind::MissingCommand {
            return "remove its rename-command line from the server's configuration file, and restart it"
                .to_owned();
        }
        let certificate = [
            ("no subjectAltName", NEW_CERTIFICATE),
            ("(CA:TRUE)", NEW_CERTIFICATE),
            (
                "--tls-server-name",
                "if that is the right server: --tls-server-name NAME with a name of its certificate, or \
                 ?tls-server-name=NAME in the URL of this node alone",
            ),
            (
                "--tls-ca",
                "name the authority that has signed the server's certificate: --tls-ca FILE",
            ),
            (
                "--tls-cert",
                "show the server a certificate that its authority has signed: --tls-cert FILE --tls-key FILE; or let \
                 it ask for none: tls-auth-clients no in its configuration file, and restart it",
            ),
        ];
        if let Some((_, fix)) = certificate.into_iter().find(|(words, _)| says(words)) {
            return format!("{fix}; then look again: quorlock doctor");
        }
        if says("maxclients") {
            return format!(
                "end clients that are idle, or allow more of them: {}",
                self.set(&["maxclients NUMBER"])
            );
        }
        if says("has no database") {
            return "use a lower number in the node's URL in all clients; or write a larger `databases` into the server's \
                    configuration file, and restart it; then look again: quorlock doctor"
                .to_owned();
        }
        let cli = &self.node.redis_cli;
        let other = if says("begins with redis://") {
            format!(
                "if this answers, begin its URL with redis://: {}; else ",
                cli.plain().line("PING")
            )
        } else if says("begins with rediss://") {
            format!(
                "if this answers, begin its URL with rediss://, and name the authority with --tls-ca: {}; else ",
                cli.encrypted().line("PING")
            )
        } else {
            String::new()
        };
        if other.is_empty()
            && matches!(failure.kind(), FailureKind::Silent | FailureKind::ConnectTimeout)
        {
            let timeout = self.topology.timing.connect_timeout();
            let longer = match failure.kind() {
                FailureKind::ConnectTimeout
                    if timeout < TimingOptions::default().connect_timeout =>
                {
                    "choose a longer connect timeout, or none; else, "
                }
                _ => "",
            };
            return format!(
                "{longer}if the server runs, it is frozen or overloaded: continue or restart it; else fix the way to it (its \
                 address, a firewall), until this answers at once; it waits as long as the server does: {}",
                self.cli("PING")
            );
        }
        format!(
            "{other}start the server, or fix the way to it (its address, a firewall, TLS), until this answers: {}",
            self.cli("PING")
        )
    }

    /// Findings about Sentinels that failed to name the master although another Sentinel named it.
    pub(super) fn sentinels(facts: &Facts) -> impl Iterator<Item = Finding> {
        facts.sentinels.iter().map(|failure| {
            Warning.finding(
                "sentinel",
                failure.to_string(),
                "if the other Sentinels fail too, no client finds the master at its next connect",
                "mend that, or take the Sentinel out of the node's URL in all clients; then look again: quorlock doctor",
            )
        })
    }

    pub(super) fn rights(&self, facts: &Facts) -> Vec<Finding> {
        let rights = &facts.rights;
        let mut findings = Vec::new();
        let mut denied = |severity: Severity, what: String, why| {
            findings.push(severity.finding("rights", what, why, LACKS_RIGHTS));
        };
        if rights.keys {
            let prefix = self.topology.own_key("");
            let what = format!("the user may not use keys that begin with {prefix:?}");
            denied(
                Error,
                what,
                "there the node keeps its marker and the counters of fencing tokens",
            );
        }
        for (weight, severity, _, why, _) in WITHOUT {
            let names = of(weight, &rights.denied);
            if !names.is_empty() {
                denied(severity, format!("the user lacks {}", names.join(" ")), why);
            }
        }
        for (weight, _, severity, _, why) in WITHOUT {
            let names = of(weight, &rights.missing);
            if names.is_empty() {
                continue;
            }
            let lines: Vec<String> =
                names.iter().map(|name| format!("rename-command {name}")).collect();
            let commands = if names.len() == 1 { "command" } else { "commands" };
            findings.push(severity.finding(
                "command",
                format!("the server has no {commands} {} (renamed or disabled)", names.join(", ")),
                why,
                format!(
                    "remove what begins with {} from {} and restart it; a service that disables commands cannot be a node",
                    lines.join(" and "),
                    self.configuration_file()
                ),
            ));
        }
        if let Some(error) = &rights.cannot_write {
            let is_reported = match &facts.info {
                Ok(info) => is_for_its_kind(error, info),
                Err(why) => is_busy(why) && is_busy(error),
            };
            let severity = if is_reported { Note } else { Error };
            findings.push(severity.finding(
                "write",
                format!("nothing can be written: {error}"),
                "a vote is a key that is written",
                self.to_write(error),
            ));
        }
        findings
    }

    /// The remedy if the server refuses to write a key. `error` is the server's answer.
    fn to_write(&self, error: &str) -> String {
        match error.split(' ').next().unwrap_or_default() {
            "OOM" => format!(
                "give it more memory than it uses{}: {}",
                self.told_by("INFO memory", ""),
                self.set(&["maxmemory BYTES"])
            ),
            "MISCONF" => format!(
                "make room on its disk and let it write there{}, then: {}",
                self.told_by("INFO persistence", " tells what failed"),
                self.cli("BGSAVE")
            ),
            "NOREPLICAS" => self.set(&["min-replicas-to-write 0"]),
            "BUSY" => self.to_end_script(),
            "LOADING" => self.to_load(),
            _ => format!(
                "fix what else is found here, or what the server says{}; then look again: quorlock doctor",
                self.told_by("INFO", " tells more")
            ),
        }
    }
}
