//! The command `quorlock init` that gives the nodes a client's settings, for messages: it can be pasted into a shell.
//! It never contains a password.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal as _, stderr, stdin};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use quorlock_core::display::{WORD_MAX, exactly, shown};
use quorlock_core::marker::Cluster;
use quorlock_core::{Difference, Failure, NODE_COUNT_MAX, Quorum};

use crate::builder::Settings;
use crate::node::{NodeConfig, Provider};
use crate::text::printable;

/// The settings that clients must agree on, as a marker has them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgreedSettings {
    /// The text in the marker.
    pub text: String,
    /// The nodes' names, escaped as in the marker.
    pub names: Vec<String>,
    /// Number of nodes that must grant a lock.
    pub quorum: usize,
    /// The longest ttl, in milliseconds.
    pub max_ttl_ms: u64,
}

/// Separates old and new settings in a marker that fits no client.
pub const BECOMES: &str = " becomes ";

impl AgreedSettings {
    /// Parses the settings of a marker; `None` if the text is no such settings.
    pub fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            text.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        Some(Self {
            text: text.to_owned(),
            names: field("nodes")?.split(',').map(str::to_owned).collect(),
            quorum: field("quorum")?.parse().ok()?,
            max_ttl_ms: field("max_ttl_ms")?.parse().ok()?,
        })
    }

    /// All settings in the text of a [`Cluster`]: several in a marker that an unfinished change has left.
    pub fn all_of(text: &str) -> Vec<Self> {
        text.split(BECOMES).filter_map(Self::parse).collect()
    }

    /// Number of nodes that must be out of use, so that the remaining nodes of these settings are no quorum.
    pub fn needed(&self) -> usize {
        (self.names.len() + 1).saturating_sub(self.quorum)
    }

    /// The name of a node as markers have it.
    pub fn name_in_marker(name: &str) -> String {
        let one = Self::parse(&Cluster::new([name], 1, 1).to_string());
        one.and_then(|one| one.names.into_iter().next()).unwrap_or_default()
    }
}

/// The settings of a client as options of `quorlock init`.
#[derive(Clone, Debug)]
pub struct InitCommand {
    nodes: Vec<NodeConfig>,
    /// The settings as a marker has them.
    ours: String,
    options: String,
    /// Where the command needs passwords that `options` leaves out; empty if it needs none.
    password: &'static str,
    max_ttl: Duration,
}

impl InitCommand {
    pub(crate) fn of(settings: &Settings, quorum: Quorum, cluster: &Cluster) -> Self {
        let nodes = || settings.nodes.iter().flatten();
        let mut options = String::new();
        let has_password = nodes().any(NodeConfig::has_any_password);
        // The command finds the list with its passwords where this program has found it.
        let is_found = settings.nodes_are_set && has_password;
        for node in nodes().filter(|_| !is_found) {
            options += &format!(" -n {}", named(node));
        }
        let max_ttl = settings.times.max_ttl;
        options += &format!(" --quorum {} --max-ttl {}", quorum.needed(), exactly(max_ttl));
        let mut add = |option: &str, value: Option<String>| {
            let word = value.map(|value| format!(" {option} {}", shell_word(&value)));
            options.extend(word);
        };
        add("--key-prefix", Some(settings.prefix.clone()).filter(|prefix| !prefix.is_empty()));
        add("--username", settings.username.clone());
        let file = settings.credentials.as_ref().and_then(Provider::path);
        let lacks_password = match file {
            Some(_) => has_password && !is_found,
            None => {
                let is_given = settings.password.is_some() || settings.credentials.is_some();
                is_given || (has_password && !is_found)
            }
        };
        let mut passwords = nodes().map(NodeConfig::password_in_url);
        let first = passwords.next();
        let password = match lacks_password {
            false => "",
            true if passwords.any(|next| Some(next) != first) => {
                ", with each node's password in its URL"
            }
            true => ", with the password in QUORLOCK_PASSWORD",
        };
        add("--password-file", file);
        add("--tls-server-name", settings.tls_server_name.clone());
        for (option, file) in settings.tls.iter().flat_map(crate::node::Tls::files) {
            add(option, Some(file));
        }
        Self {
            nodes: nodes().cloned().collect(),
            ours: cluster.to_string(),
            options,
            password,
            max_ttl,
        }
    }

    /// The remedy for these failures, each with the name of its node; `None` if none of them is about settings that
    /// clients must share.
    pub(crate) fn remedy<'a>(
        &self,
        failures: impl Iterator<Item = (&'a str, &'a Failure)>,
    ) -> Option<String> {
        let differences: Vec<_> =
            failures.filter_map(|(node, failure)| Some((node, failure.difference()?))).collect();
        if differences.iter().any(|(_, difference)| **difference == Difference::Database) {
            return Some(format!("or, to use this client's database, {}", self.fresh(true, 0)));
        }
        let theirs = differences.iter().filter_map(|(node, difference)| match difference {
            Difference::Settings(theirs) => Some((*node, &**theirs)),
            _ => None,
        });
        (!differences.is_empty()).then(|| self.or_change(theirs))
    }

    /// As [`reconfigure`](Self::reconfigure), as an alternative to other settings of the client. If the client's list is a
    /// part of theirs, the text says first that the client may have the wrong list.
    pub fn or_change<'a>(&self, theirs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
        let theirs: Vec<_> = theirs.collect();
        let run = self.reconfigure(theirs.iter().copied(), &[]);
        let mut others = theirs.iter().flat_map(|(_, text)| AgreedSettings::all_of(text));
        match others.any(|old| self.is_part_of(&old)) {
            true => format!(
                "this client's list has only some of their nodes, so it may be the wrong list: correct it; only to \
                 remove the other nodes from the cluster, {run}"
            ),
            false => format!(
                "or, to give the nodes the settings used here, which all clients then need, {run}"
            ),
        }
    }

    /// Whether each node of this client is in the list of these settings, and the list has more.
    fn is_part_of(&self, old: &AgreedSettings) -> bool {
        let is_in = |node: &NodeConfig| names_of(node).iter().any(|name| old.names.contains(name));
        self.nodes.len() < old.names.len() && self.nodes.iter().all(is_in)
    }

    /// Says how to change the nodes to this client's settings. `theirs`: names of nodes that have other settings, with the
    /// texts of their markers; nodes that have this client's settings may be among them. `given` are old nodes that the command has got already.
    ///
    /// The command is complete if each old node is in the client's list, or its name leads to its URL, as `host:port`
    /// does. For other old nodes the text demands as many URLs as are needed.
    pub fn reconfigure<'a>(
        &self,
        theirs: impl Iterator<Item = (&'a str, &'a str)>,
        given: &[NodeConfig],
    ) -> String {
        let mut old_nodes: Vec<String> = given.iter().map(named).collect();
        let mut missing = Vec::new();
        let mut settings: BTreeMap<AgreedSettings, BTreeSet<&str>> = BTreeMap::new();
        for (node, text) in theirs {
            for old in AgreedSettings::all_of(text) {
                settings.entry(old).or_default().insert(node);
            }
        }
        let (ours, settings): (Vec<_>, Vec<_>) =
            settings.into_iter().partition(|(it, _)| it.text == self.ours);
        let moved: BTreeSet<&str> = ours.into_iter().flat_map(|(_, nodes)| nodes).collect();
        for (old, nodes) in &settings {
            let mut add = |word: String| {
                if !old_nodes.contains(&word) {
                    old_nodes.push(word);
                }
            };
            // A node that only its address shows to be in the old list, and that has the new settings already, counts only if
            // the command names it.
            let (mut found, mut nameless) = (0, Vec::new());
            for name in old.names.iter().take(NODE_COUNT_MAX) {
                let is_given =
                    given.iter().any(|it| AgreedSettings::name_in_marker(it.name()) == *name);
                let listed = self.nodes.iter().find(|node| names_of(node).contains(name));
                let is_shown = listed
                    .is_some_and(|node| names_of(node)[0] == *name || !moved.contains(node.name()));
                match (listed, self.url_of(name)) {
                    (None, None) if !is_given => {
                        nameless.push(name);
                        continue;
                    }
                    (_, Some(url)) if !is_given && !is_shown => add(shell_word(&url)),
                    _ => {}
                }
                found += 1;
            }
            let short = old.needed().saturating_sub(found).min(nameless.len());
            let renamed = self.nodes.iter().find(|node| {
                old.names.len() == 1 && nodes.len() == 1 && nodes.contains(node.name())
            });
            if short == 0 {
                continue;
            }
            let is_name = |name: &str| {
                shown(name, WORD_MAX) == name
                    && NodeConfig::parse(&format!("{name}=redis://h")).is_ok()
            };
            // The only node that has the settings of one node is that node.
            if let Some(node) = renamed.filter(|_| is_name(nameless[0])) {
                add(shell_word(&format!("{}={}", nameless[0], node.url())));
                continue;
            }
            let more = if nameless.len() > LISTED_MAX { ", …" } else { "" };
            let listed = nameless.iter().take(LISTED_MAX).map(|name| shown(name, WORD_MAX));
            missing.push(format!("{short} of {}{more}", listed.collect::<Vec<_>>().join(", ")));
            let names = nameless.iter().map(|name| if is_name(name) { name } else { "NAME" });
            old_nodes.extend(names.take(short.min(LISTED_MAX)).map(|name| format!("{name}=URL")));
        }
        let mut command = "init --reconfigure".to_owned();
        for node in old_nodes {
            command += &format!(" --old-node {node}");
        }
        let which = match missing.is_empty() {
            true => String::new(),
            false => format!(
                " with the URLs of at least {} (nodes of the old list)",
                missing.join(" and of at least ")
            ),
        };
        let run = "run this (refused while clients are connected; --force stops their jobs)";
        format!("{run}{which}{}", self.with_options(&command))
    }

    /// Says how to take the nodes into use if their settings cannot be changed in another way: no client may use them.
    /// `is_forced`: the nodes are marked for other settings, or for clients of another prefix. `theirs_ms`: the longest
    /// ttl of the other clients in milliseconds; zero if it is not known.
    pub fn fresh(&self, is_forced: bool, theirs_ms: u64) -> String {
        let max_ttl = exactly(self.max_ttl.max(Duration::from_millis(theirs_ms)));
        let command = if is_forced { "init --fresh --force" } else { "init --fresh" };
        let command = self.with_options(command);
        let unknown =
            if theirs_ms == 0 { " here; longer if other clients had a longer one" } else { "" };
        format!("stop all clients, wait {max_ttl} (the longest ttl{unknown}), and run{command}")
    }

    /// The end of a text: the password that the command needs, and the command.
    fn with_options(&self, command: &str) -> String {
        // On a terminal the command shows what changes, and asks.
        let is_asked = stdin().is_terminal() && stderr().is_terminal();
        let yes = if is_asked { "" } else { " --yes" };
        format!("{}: quorlock {command}{yes}{}", self.password, self.options)
    }

    /// The URL of a node without a name, from its name in a marker; `None` if it has a name. It is reached like the first node
    /// of the list.
    fn url_of(&self, name: &str) -> Option<String> {
        let name = percent_decode_str(name).decode_utf8().ok()?;
        let config = match name.starts_with('/') {
            true => {
                NodeConfig::parse(&format!("redis+unix://{}", utf8_percent_encode(&name, IN_PATH)))
            }
            false if name.contains(':') => NodeConfig::parse(&name),
            false => return None,
        };
        let config = config.ok().filter(|config| config.name() == name)?;
        let url = config.url_like(self.nodes.first()?);
        // A text that may be a token is not shown.
        (shown(&url, URL_MAX) == url).then_some(url)
    }
}

/// The most old nodes whose names are listed.
const LISTED_MAX: usize = 9;

/// The longest URL of an old node, in characters.
const URL_MAX: usize = 300;

/// The characters that the URL of a socket escapes.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_');

/// The name and the address of a node, as markers have them.
fn names_of(node: &NodeConfig) -> [String; 2] {
    [node.name(), &node.address()].map(AgreedSettings::name_in_marker)
}

/// `NAME=URL` as a word for the shell, without passwords. Without `NAME=` if the node has no other name than the URL's.
fn named(node: &NodeConfig) -> String {
    let url = node.url();
    let is_default = NodeConfig::parse(&url).is_ok_and(|it| it.name() == node.name());
    shell_word(&if is_default { url } else { format!("{}={url}", node.name()) })
}

/// Quotes one word for the shell.
fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", printable(word).replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use crate::builder::{ClientBuilder, Topology};

    use super::*;

    fn command(builder: ClientBuilder) -> InitCommand {
        Topology::of(&builder).unwrap().init
    }

    fn of(nodes: &[&str]) -> InitCommand {
        command(ClientBuilder::new().nodes(nodes))
    }

    /// The text without `--yes`, which depends on the terminal of the tests.
    fn told(command: &InitCommand, theirs: &[&str]) -> String {
        let theirs = theirs.iter().flat_map(|text| ["-", "?"].map(|node| (node, *text)));
        let told = command.reconfigure(theirs, &[]).replace(" --yes", "");
        told.replace(" this (refused while clients are connected; --force stops their jobs)", "")
    }

    #[test]
    fn a_list_that_is_a_part_of_theirs_is_said_to_be_wrong_before_the_command() {
        let theirs = [("h:1", "nodes=h:1,h:2,h:3 quorum=2 max_ttl_ms=30000")];
        for (nodes, is_part) in
            [(&["redis://h:1"][..], true), (&["redis://h:2", "redis://h:4"], false)]
        {
            let says = of(nodes).or_change(theirs.into_iter());
            let (before, _) = says.split_once("run this (refused while clients").unwrap();
            assert_eq!(before.contains("may be the wrong list: correct it"), is_part, "{says}");
        }
    }

    #[test]
    fn names_that_are_addresses_lead_to_urls_and_others_are_asked_for() {
        let list = "-n a=redis://h:1 -n b=redis://h:2 -n c=redis://h:3 --quorum 2 --max-ttl 30s";
        let new = of(&["a=redis://h:1", "b=redis://h:2", "c=redis://h:3"]);
        for (theirs, says) in [
            (
                "nodes=h:1,h:2,h:3 quorum=2 max_ttl_ms=30000",
                format!("run: quorlock init --reconfigure {list}"),
            ),
            (
                "nodes=[::1]:4,h:5,/run/a%20b quorum=2 max_ttl_ms=30000",
                format!(
                    "run: quorlock init --reconfigure --old-node 'redis://[::1]:4' --old-node redis://h:5 --old-node \
                     redis+unix:///run/a%20b {list}"
                ),
            ),
            (
                "nodes=a,x,y quorum=2 max_ttl_ms=30000",
                format!(
                    "run with the URLs of at least 1 of x, y (nodes of the old list): quorlock init --reconfigure \
                     --old-node x=URL {list}"
                ),
            ),
            (
                "nodes=h:9,x,y quorum=2 max_ttl_ms=30000 becomes nodes=a,b,c quorum=2 max_ttl_ms=30000",
                format!(
                    "run with the URLs of at least 1 of x, y (nodes of the old list): quorlock init --reconfigure \
                     --old-node redis://h:9 --old-node x=URL {list}"
                ),
            ),
        ] {
            assert_eq!(told(&new, &[theirs]), says);
        }
    }

    #[test]
    fn the_server_of_an_old_node_is_named_if_only_one_server_can_be_that_node() {
        let renamed = of(&["x=redis://u:hunter2@h:1", "y=redis://h:2", "z=redis://h:3"]);
        let one = "nodes=a quorum=1 max_ttl_ms=30000";
        let says = renamed.reconfigure([("x", one)].into_iter(), &[]);
        assert!(says.contains(" --old-node a=redis://u@h:1 ") && !says.contains("=URL"), "{says}");
        let says = renamed.reconfigure([("x", one), ("y", one)].into_iter(), &[]);
        assert!(says.contains(" --old-node a=URL "), "{says}");
        // Two nodes of a list without names have its successor already, and only their addresses show that they were in it.
        let straggler = ("c", "nodes=h:1,h:2,h:3 quorum=2 max_ttl_ms=30000");
        let named = of(&["a=redis://h:1", "b=redis://h:2", "c=redis://h:3"]);
        let says = named.reconfigure([straggler].into_iter(), &[]);
        assert!(!says.contains("--old-node"), "a and b were not asked: {says}");
        let ours = "nodes=a,b,c quorum=2 max_ttl_ms=30000";
        let says = named.reconfigure([("a", ours), ("b", ours), straggler].into_iter(), &[]);
        let old_nodes = "init --reconfigure --old-node redis://h:1 --old-node redis://h:2 ";
        assert!(says.contains(old_nodes), "{says}");
    }

    /// Other clients write markers, so their names may be anything. The command has none that a shell would obey.
    #[test]
    fn a_foreign_name_is_no_part_of_the_command() {
        for name in
            ["$(reboot):1", "u:p@evil:1", "a;b", "\u{1b}[2J", "h:1:2", "--x", "/a'b", "a`b`:7"]
        {
            let theirs = format!("nodes={name} quorum=1 max_ttl_ms=30000");
            let told = told(&of(&["a=redis://h"]), &[&theirs]);
            let (_, command) = told.split_once(": quorlock ").unwrap();
            assert!(!command.contains(['$', ';', '`', '(', '\u{1b}']), "{told}");
            assert!(!command.contains("evil") && !told.contains('\u{1b}'), "{told}");
        }
    }

    #[test]
    fn a_password_is_left_out_and_mentioned() {
        let theirs = ["nodes=b quorum=1 max_ttl_ms=30000"];
        let url = "a=redis://app:hunter2@h/3?replicas=1";
        let mut builder = ClientBuilder::new().nodes([url]);
        let says = told(&command(builder.clone()), &theirs);
        let options = "-n 'a=redis://app@h:6379/3?replicas=1' --quorum 1 --max-ttl 30s";
        assert!(says.contains(", with the password in QUORLOCK_PASSWORD: quorlock "), "{says}");
        assert!(says.ends_with(options) && !says.contains("hunter2"), "{says}");
        let two = ClientBuilder::new().nodes([url, "b=redis://app:swordfish@i/3"]).quorum(2);
        let says = told(&command(two), &theirs);
        assert!(says.contains(", with each node's password in its URL: quorlock "), "{says}");
        builder.settings.nodes_are_set = true;
        let says = told(&command(builder), &theirs);
        assert!(says.ends_with("--old-node b=URL --quorum 1 --max-ttl 30s"), "{says}");
        assert!(!says.contains("QUORLOCK_PASSWORD"), "{says}");
        let builder = ClientBuilder::new().nodes(["redis://h"]).key_prefix("app's ");
        let says = told(&command(builder), &theirs);
        assert!(
            says.ends_with(r"-n redis://h:6379 --quorum 1 --max-ttl 30s --key-prefix 'app'\''s '"),
            "{says}"
        );
    }

    #[test]
    fn an_old_node_is_reached_like_the_new_ones() {
        let theirs = ["nodes=h:1,/run/s quorum=2 max_ttl_ms=30000"];
        for (node, old) in [
            ("redis://g:1/3", "--old-node redis://h:1/3 --old-node 'redis+unix:///run/s?db=3' "),
            ("rediss://g:1", "--old-node rediss://h:1 --old-node redis+unix:///run/s "),
        ] {
            let says = told(&of(&[node]), &theirs);
            assert!(says.contains(&format!("init --reconfigure {old}-n {node} ")), "{says}");
        }
    }

    #[test]
    fn a_url_is_read_as_it_is_written() {
        for url in [
            "redis://h:6379",
            "rediss://u%3Av@[::1]:1/3?tls-server-name=n",
            "redis+unix:///run/a%20b?user=u&db=2&replicas=1",
            "redis+sentinel://u@h:1/m?sentinel-user=s&sentinel=g:26379&sentinel=[::1]:2&db=4&replicas=1",
        ] {
            assert_eq!(NodeConfig::parse(url).unwrap().url(), url);
        }
    }
}
