//! One word for one thing: no identifier of the project uses a name that was replaced by the field's own.
//!
//! Identifiers are the tokens of each file, those inside of macros too. Comments, strings, the CHANGELOG and names of
//! tests are prose, where an ordinary English word is welcome.

#![allow(clippy::unwrap_used, reason = "a test's helper may panic as its test may")]

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};

/// An identifier that is gone everywhere, and what is said for it.
const GONE: &[(&str, &str)] = &[
    ("Courtesy", "KeyBackoff"),
    ("Manners", "BackoffTable"),
    ("Crowd", "ContentionWindow"),
    ("Greet", "Identify"),
    ("Vouched", "NotRequired"),
    ("Sought", "FenceRequest"),
    ("Recording", "WriteBack"),
    ("Passing", "PendingHandover"),
    ("Story", "AttemptReport"),
    ("NodeStory", "NodeResult"),
    ("NodeSaid", "NodeOutcome"),
    ("WhyNot", "FailureReason"),
    ("Attempts", "AcquireFailure"),
    ("Ask", "DriverCommand"),
    ("News", "PushSink"),
    ("Order", "TicketedCommand"),
    ("Skills", "Capabilities"),
    ("Looks", "EvidenceRequest"),
    ("Survey", "Topology"),
    ("Moving", "Reconfiguration"),
    ("Mishap", "FaultEvent"),
    ("Happening", "SimEvent"),
    ("Tape", "Timeline"),
    ("Crew", "Workers"),
    ("Lab", "Testbed"),
    ("Slice", "Sample"),
    ("Course", "KillPolicy"),
    ("Family", "ProcessTree"),
    ("Mood", "NodeFault"),
    ("Unsafe", "NodesUntrusted, UnsafeNode"),
    ("lacks_rights", "is_permission_denied"),
    ("TURNS_MAX", "HANDOVERS_MAX"),
    ("unsafe_now", "untrusted_now"),
];

/// A word that is part of no identifier of up to three words, and what is said for it. Longer ones are sentences.
const WORDS: &[(&str, &str)] = &[
    ("courtesy", "backoff"),
    ("manners", "backoff"),
    ("crowd", "contention, window"),
    ("twin", "duplicate"),
    ("twins", "duplicates"),
    ("doubt", "distrust_reason"),
    ("doubted", "distrusted"),
    ("doubtful", "untrusted"),
    ("barred", "excluded"),
    ("lasting", "durable"),
    ("vouched", "not required"),
    ("sought", "fence_request"),
    ("greet", "identify, handshake"),
    ("greeted", "identified"),
    ("greeting", "identifying, handshake"),
    ("standings", "trust_states"),
    ("mishap", "fault"),
    ("skills", "capabilities"),
    ("luggage", "passed_fd"),
    ("mood", "node_fault"),
    ("tape", "timeline"),
    ("crew", "workers"),
    ("lab", "testbed"),
];

/// A name that one part of the project gives to one thing only.
const ONCE: &[(&str, &str)] = &[
    ("World", "crates/sim/src/world.rs"),
    ("Plan", "crates/sim/src/plan.rs"),
    ("Verdict", "crates/quorlock/src/inspect.rs"),
    ("Connection", "crates/quorlock/src/node/redis/connection.rs"),
    ("Evidence", "crates/core/src/evidence.rs"),
    ("Transport", "crates/quorlock/src/node/transport.rs, crates/sim/src/client.rs"),
    ("NodeMonitor", "crates/core/src/trust.rs"),
    ("NodePipeline", "crates/core/src/pipeline.rs"),
    ("Checker", "crates/sim/src/checker.rs"),
    ("Link", ""),
    ("Line", ""),
    ("Watch", ""),
    ("Way", ""),
    ("Said", ""),
];

fn sources() -> Vec<(String, TokenStream)> {
    fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                walk(&path, files);
            } else if path.extension().is_some_and(|it| it == "rs") {
                files.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut files = Vec::new();
    ["crates", "xtask", "fuzz"].iter().for_each(|folder| walk(&root.join(folder), &mut files));
    assert!(files.len() > 300, "{} files", files.len());
    let read = |file: PathBuf| {
        let name = file.strip_prefix(&root).unwrap().display().to_string();
        let tokens = fs::read_to_string(&file).unwrap().parse();
        (name, tokens.unwrap_or_else(|error| panic!("{}: {error}", file.display())))
    };
    files.into_iter().map(read).collect()
}

/// Gives each identifier, and the one before it on the same level, to `see`.
fn identifiers(tokens: TokenStream, see: &mut dyn FnMut(&str, &str)) {
    let mut before = String::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => identifiers(group.stream(), see),
            TokenTree::Ident(it) => {
                let it = it.to_string();
                see(&before, &it);
                before = it;
                continue;
            }
            // A comment for documentation is a string behind `doc`.
            TokenTree::Literal(_) | TokenTree::Punct(_) => {}
        }
        before.clear();
    }
}

/// `AGuard`, `a_guard` and `A_GUARD` are the words a and guard.
fn words(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_upper = true;
    for letter in identifier.chars() {
        if letter == '_' || letter.is_uppercase() && !was_upper {
            words.push(String::new());
        }
        was_upper = letter.is_uppercase() || letter == '_';
        if letter != '_' {
            words.last_mut().unwrap().extend(letter.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// What is wrong with the names of a file.
fn findings(file: &str, tokens: TokenStream) -> Vec<String> {
    let mut findings = Vec::new();
    identifiers(tokens, &mut |before, name| {
        let mut instead = |say: &str| findings.push(format!("{file}: {name}; say {say}"));
        if let Some((_, say)) = GONE.iter().find(|(gone, _)| *gone == name) {
            instead(say);
        }
        let parts = words(name);
        if parts.len() <= 3
            && let Some((_, say)) = WORDS.iter().find(|(gone, _)| parts.iter().any(|it| it == gone))
        {
            instead(say);
        }
        let is_defined = matches!(before, "struct" | "enum" | "trait" | "type" | "union");
        if let Some((_, place)) = ONCE.iter().find(|(once, _)| is_defined && *once == name)
            && !place.split(", ").any(|place| place == file)
        {
            instead(&format!("something else: {name} is {place}"));
        }
    });
    findings
}

#[test]
fn no_identifier_has_a_name_that_was_replaced() {
    let wrong: Vec<String> = sources()
        .into_iter()
        // Here they are all told.
        .filter(|(file, _)| file != "crates/quorlock/tests/names.rs")
        .flat_map(|(file, tokens)| findings(&file, tokens))
        .collect();
    assert!(wrong.is_empty(), "{} names:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn an_old_name_is_found_wherever_it_is() {
    let found = |text: &str| findings("some.rs", text.parse().unwrap()).len();
    assert_eq!(found("fn a(lasting: bool) {}"), 1);
    assert_eq!(found("struct NodeStory;"), 1);
    assert_eq!(found("a_macro!(is_lasting)"), 1);
    assert_eq!(found("struct World;"), 1, "there is one already");
    assert_eq!(found("let world: World;"), 0, "it may be used");
    assert_eq!(found("fn a_lasting_server_is_durable() {}"), 0, "a test's name is a sentence");
    assert_eq!(found("// a lasting one\nfn a() -> &str { \"a twin\" }"), 0, "prose");
}
