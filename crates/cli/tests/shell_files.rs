//! `quorlock completions` and `quorlock man`: the shells and `man` read the files, and the files have every option.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{code, quorlock, stderr, stdout};
use regex_lite::Regex;

const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

/// The standard output of a command that must succeed without a message.
fn printed(args: &[&str]) -> String {
    let output = quorlock(args).output().unwrap();
    code(&output, 0);
    assert_eq!(stderr(&output), "");
    stdout(&output)
}

/// Whether the program is installed. A test omits the checks that need a missing program.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdin(Stdio::null()).output().is_ok();
    if !found {
        eprintln!("not checked: there is no {program}");
    }
    found
}

fn pages() -> (tempfile::TempDir, BTreeMap<String, String>) {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("new/man1");
    assert_eq!(printed(&["man", below.to_str().unwrap()]), "");
    let pages = fs::read_dir(below).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    });
    let pages = pages.collect();
    (folder, pages)
}

#[test]
fn each_shell_accepts_its_script() {
    let folder = tempfile::tempdir().unwrap();
    for shell in SHELLS {
        let script = printed(&["completions", shell]);
        assert!(script.contains("restart-guard"), "{shell}: {script}");
        assert_eq!(script, printed(&["completions", shell]));
        let file = folder.path().join(shell);
        fs::write(&file, script).unwrap();
        if ["bash", "fish", "zsh"].contains(&shell) && has(shell) {
            let checked = Command::new(shell).arg("-n").arg(file).output().unwrap();
            code(&checked, 0);
            assert_eq!(stderr(&checked), "");
        }
    }
}

/// Prints the completions that the script `$1` offers for the last argument. PATH has no programs, not even `quorlock`.
const TAB: &str = r#"
source "$1"; shift
PATH=/no/such/folder
compopt() { :; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_quorlock quorlock "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
echo "${COMPREPLY[*]}"
"#;

#[test]
fn bash_completes_commands_options_and_values() {
    if !has("bash") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("quorlock");
    fs::write(&script, printed(&["completions", "bash"])).unwrap();
    fs::create_dir(folder.path().join("some folder")).unwrap();
    let offers = |words: &str, expected: &str| {
        let words = ["quorlock"].into_iter().chain(words.split(' '));
        let bash = Command::new("bash")
            .args(["--norc", "-c", TAB, "bash"])
            .arg(&script)
            .args(words.clone())
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(stderr(&bash), "");
        assert_eq!(stdout(&bash).trim(), expected, "{:?}", words.collect::<Vec<_>>());
    };
    offers("sta", "status");
    offers("comp", "completions");
    offers("run --if", "--if-held");
    offers("run k --ttl 10s --max", "--max-hold --max-ttl");
    offers("run k --if-held ", "fail skip wait");
    offers("doctor --restart-guard o", "observe off");
    offers("completions z", "zsh");
    // The value of `--ttl` is not completed with file names, and that of `--password-file` is.
    offers("run k --ttl ", "");
    offers("run k --password-file some", "some folder");
    // The words of CMD are not completed with quorlock's options.
    offers("run k -- git --ver", "");
    offers("run k -- git --if", "");
}

#[test]
fn zsh_completes_options_behind_a_key() {
    let script = printed(&["completions", "zsh"]);
    // If a line contains `*::`, zsh's `_arguments` offers no options after its argument, so no line may contain it.
    assert!(!script.contains("'*::"), "{script}");
    assert_eq!(script.matches("_normal; else _command_names").count(), 1, "{script}");
}

#[test]
fn every_command_has_a_page_with_all_its_options() {
    let (_folder, pages) = pages();
    let root = &pages["quorlock.1"];
    assert_eq!(*root, printed(&["man"]));
    assert_eq!(pages, self::pages().1);
    let of_help = Regex::new(r"(?m)^ +(?:-\w, )?--([a-z-]+)").unwrap();
    let of_page = Regex::new(r"(?m)^\.TP\n(?:-\w, )?--([a-z-]+)").unwrap();
    let variable = Regex::new(r"\[env:.(\w+)\]").unwrap();
    let commands = Regex::new(r"(?m)^  ([a-z]+)  ").unwrap();
    let help = printed(&["--help"]);
    let mut names: Vec<&str> =
        commands.captures_iter(&help).map(|it| it.extract::<1>().1[0]).collect();
    names.retain(|name| *name != "help");
    assert!(names.len() >= 9, "{names:?}");
    assert_eq!(pages.len(), names.len() + 1, "{:?}", pages.keys());
    for name in names.into_iter().chain([""]) {
        let help = match name {
            "" => help.clone(),
            name => printed(&[name, "--help"]),
        };
        let file = format!("quorlock-{name}.1").replace("-.1", ".1");
        let page = pages[&file].replace(r"\-", "-").replace(r"\fB", "").replace(r"\fR", "");
        let found = |pattern: &Regex, text: &str| -> BTreeSet<String> {
            pattern.captures_iter(text).map(|it| it.extract::<1>().1[0].to_owned()).collect()
        };
        assert_eq!(found(&of_page, &page), found(&of_help, &help), "{name}: {page}");
        let variables = found(&variable, &help);
        assert_eq!(found(&variable, &page), variables, "{name}: {page}");
        assert!(variables.iter().all(|it| root.contains(&format!("\n\\fB{it}\\fR\n"))));
        assert!(page.contains("\n.SH EXAMPLES\n") || name.is_empty(), "{page}");
        assert!(page.contains("\n.SH ENVIRONMENT\n"), "{page}");
    }
    // In the man page, each exit code has a line of its own.
    let codes = "\n.nf\nthe command\\*(Aqs own, or 128+N if signal N ended it\n64   wrong arguments\n65   the lease";
    assert!(pages["quorlock-run.1"].contains(codes), "{}", pages["quorlock-run.1"]);
    let doctor = &pages["quorlock-doctor.1"];
    assert!(doctor.contains("\n.SH \"EXIT STATUS\"\nExit code 0 if all is well"), "{doctor}");
}

#[test]
fn man_shows_every_page_without_a_warning() {
    if !has("man") || !has("groff") {
        return;
    }
    let (folder, pages) = pages();
    for name in pages.keys() {
        let shown = Command::new("man")
            .args(["--warnings", "-Tutf8", "-l"])
            .arg(folder.path().join("new/man1").join(name))
            .env("LC_ALL", "C.UTF-8")
            .env("MANWIDTH", "80")
            .output()
            .unwrap();
        code(&shown, 0);
        assert_eq!(stderr(&shown), "", "{name}");
        assert!(stdout(&shown).contains("User Commands"), "{name}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |dir: &Path, path: &Path| {
        let output = quorlock(&["man", dir.to_str().unwrap()]).output().unwrap();
        code(&output, 70);
        let said = stderr(&output);
        let expected = format!("quorlock: cannot write {}: ", path.display());
        assert!(said.starts_with(&expected) && said.lines().count() == 1, "{said}");
    };
    let below_a_file = Path::new("/dev/null/man1");
    refused(below_a_file, below_a_file);
    let taken = folder.path().join("quorlock-run.1");
    fs::create_dir(&taken).unwrap();
    refused(folder.path(), &taken);
    for args in [&["man"][..], &["completions", "bash"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = quorlock(args).stdout(full).output().unwrap();
        code(&output, 70);
        assert!(stderr(&output).starts_with("quorlock: cannot write to standard output: "));
        // The reader of a pipe may stop early, as `head` does. `quorlock` must not report this as an error.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = quorlock(args).stdout(writer).output().unwrap();
        code(&output, 0);
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn a_shell_that_is_not_supported_is_refused() {
    let output = quorlock(&["completions", "tcsh"]).output().unwrap();
    code(&output, 64);
    assert!(SHELLS.iter().all(|shell| stderr(&output).contains(shell)), "{}", stderr(&output));
}
