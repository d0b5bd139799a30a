//! Finds in the library's source every public function that returns a future, so that the sweep covers new ones. A
//! function counts if it is an `async fn`, if its return type is `impl Future` or `BoxFuture`, or if that type
//! implements `Future` or `IntoFuture`.
//!
//! The sweep leaves out `admin`, the connections of `quorlock-admin`, which take no lock; and `legacy`, the deprecated
//! recipe, because a dropped call of the recipe may leave its key.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const LEFT_OUT: [&str; 2] = ["admin.rs", "legacy.rs"];

/// The public functions that return a future, as `Type::function`, sorted.
pub(crate) fn futures_of_the_library() -> Vec<String> {
    let mut sources = Vec::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut sources);
    assert!(sources.len() > 10, "the sources were not found");
    futures(&sources)
}

fn read(folder: &Path, sources: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if LEFT_OUT.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        if path.is_dir() {
            read(&path, sources);
        } else {
            sources.push(fs::read_to_string(path).unwrap());
        }
    }
}

fn futures(sources: &[String]) -> Vec<String> {
    let lines = || sources.iter().flat_map(|source| source.lines().map(str::trim));
    // Matches `impl Future for X {` and `impl IntoFuture for X {`.
    let types: BTreeSet<&str> = lines()
        .filter(|line| line.starts_with("impl"))
        .filter_map(|line| line.split_once("Future for "))
        .map(|(_, name)| word(name))
        .collect();
    let mut found = BTreeSet::new();
    for source in sources {
        let mut owner = "";
        let mut lines = source.lines().map(str::trim);
        while let Some(line) = lines.next() {
            // A line that begins with `impl` and ends with a comma is a type in a signature, not the start of a block.
            if let Some(rest) = line.strip_prefix("impl").filter(|_| !line.ends_with(',')) {
                // The type in `Trait for Type`. Generics are not part of the name.
                let rest =
                    rest.split_once("> ").filter(|_| rest.starts_with('<')).map_or(rest, |r| r.1);
                owner = word(rest.rsplit(" for ").next().unwrap_or(rest).trim());
            }
            if !line.starts_with("pub ") || !line.contains("fn ") {
                continue;
            }
            let mut signature = line.to_owned();
            while !signature.contains(['{', ';']) {
                // Stops at `where`: a bound may name the future of a caller's function, which is not the returned type.
                match lines.next() {
                    Some("where") | None => break,
                    Some(line) => signature.push_str(line),
                }
            }
            let (before, rest) = signature.split_once("fn ").unwrap();
            let returned = rest.rsplit_once("-> ").map_or("", |(_, returned)| returned);
            if before.contains("async ")
                || returned.contains("Future")
                || types.contains(word(returned))
            {
                found.insert(format!("{owner}::{}", word(rest)));
            }
        }
    }
    found.into_iter().collect()
}

/// The identifier at the start of the text.
fn word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

#[test]
fn futures_are_found_in_every_form() {
    let source = "
        pub struct Later;
        impl IntoFuture for Later {
            fn into_future(self) -> Now {}
        }
        impl<T: Clone> Future for Now<T> {}
        impl Lock {
            pub async fn plain(&self) -> u32 {}
            pub const fn value(&self) -> u32 {}
            pub(crate) async fn ours(&self) {}
            pub fn over_lines(
                self,
                name: &str,
            ) -> impl Future<Output = ()> {}
            pub fn boxed(&self) -> Result<
                impl Future<Output = ()> + Send,
                Error,
            > {}
            pub async fn apart(&self) {}
            pub fn later(&self) -> Later {}
        }
        impl<T> Wait<T> {
            pub fn now(self) -> Now<T> {}
        }
    ";
    let found = [
        "Lock::apart",
        "Lock::boxed",
        "Lock::later",
        "Lock::over_lines",
        "Lock::plain",
        "Wait::now",
    ];
    assert_eq!(futures(&[source.to_owned()]), found);
}
