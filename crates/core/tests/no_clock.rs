//! The core must not use `std::time::Instant::now()` or anything else of the standard library.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{fs, io};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

fn sources() -> io::Result<Vec<(PathBuf, String)>> {
    let mut folders = vec![PathBuf::from("src")];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(Path::new(CRATE).join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                sources.push((path, fs::read_to_string(entry.path())?));
            }
        }
    }
    assert!(sources.len() > 10, "the sources have been found");
    Ok(sources)
}

/// Compiles the sources in `folder` without cargo and without dependencies.
fn compile(folder: &Path) -> io::Result<Output> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let mut command = Command::new(rustc);
    command.args(["--edition", "2024", "--crate-type", "lib", "--crate-name", "core_copy"]);
    command.args(["--emit", "metadata", "--out-dir"]).arg(folder).arg(folder.join("src/lib.rs"));
    command.output()
}

#[test]
fn a_clock_in_the_core_does_not_compile() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no_clock");
    let sources = sources()?;
    for (path, source) in &sources {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&folder))?;
        fs::write(path, source)?;
    }
    let output = compile(&folder)?;
    assert!(output.status.success(), "as it is, it compiles: {output:?}");

    for module in ["src/time.rs", "src/client/engine.rs", "src/client/engine/calls.rs"] {
        let (path, source) = sources.iter().find(|(path, _)| path.ends_with(module)).unwrap();
        let clock = "fn now() {\n    let _ = std::time::Instant::now();\n}\n";
        fs::write(folder.join(path), format!("{source}\n{clock}"))?;
        let output = compile(&folder)?;
        fs::write(folder.join(path), source)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{module} compiles with a clock in it");
        assert!(errors.contains("error[E0433]") && errors.contains("`std`"), "{module}: {errors}");
        assert!(errors.contains(module), "{module}: {errors}");
    }
    fs::remove_dir_all(folder)
}

#[test]
fn the_core_is_no_std_and_depends_on_nothing() -> io::Result<()> {
    let lib = fs::read_to_string(Path::new(CRATE).join("src/lib.rs"))?;
    assert!(lib.lines().any(|line| line == "#![no_std]"));
    let manifest = fs::read_to_string(Path::new(CRATE).join("Cargo.toml"))?;
    let tables: Vec<&str> = manifest.lines().filter(|line| line.starts_with('[')).collect();
    assert_eq!(
        tables,
        ["[package]", "[package.metadata.docs.rs]", "[lints]", "[dev-dependencies]"]
    );
    Ok(())
}

#[test]
fn outside_its_tests_the_core_does_not_mention_std() -> io::Result<()> {
    for (path, source) in sources()? {
        if path.ends_with("tests.rs") {
            continue;
        }
        // The unit tests at the end of a file may use `std` and `cfg`, so they are cut off here.
        let production = source.split("#[cfg(test)]\nmod tests").next().unwrap_or(&source);
        for line in production.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
            assert!(!line.contains("std::"), "{}: {line}", path.display());
            let conditional = line.contains("cfg(") || line.contains("cfg_attr(");
            // `doctest` is for the example of the README. The last two are for builds with mutants (deliberate bugs).
            let known = [
                "#[cfg(test)]",
                "#[cfg(doctest)]",
                "#[cfg(quorlock_mutants)]",
                "#[cfg(not(quorlock_mutants))]",
            ];
            let known = path.ends_with("lib.rs") && known.contains(&line);
            assert!(!conditional || known, "{}: {line}", path.display());
        }
    }
    Ok(())
}
