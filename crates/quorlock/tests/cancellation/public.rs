//! Which functions of the library give a future: found in its source, so that a new one is not
//! forgotten here. Of the forms in which a future can be given, it knows those that Rust has: `async
//! fn`, a type that is said to be a future (`impl Future`, `BoxFuture`), and the library's own types that
//! are one or become one when awaited.
//!
//! Left out: `node::Node`, whose futures are the driver's and no caller's; the suite of conformance,
//! which is a test; and `admin`, the connections on which `quorlock-admin` talks to servers and takes no lock.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const LEFT_OUT: [&str; 3] = ["admin.rs", "conformance", "conformance.rs"];

/// `Type::function`, in order.
pub(crate) fn futures_of_the_library() -> Vec<String> {
    let mut sources = Vec::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut sources);
    assert!(sources.len() > 10, "the library is not where it was");
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
    // `impl Future for X {` and `impl IntoFuture for X {`.
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
            if let Some(rest) = line.strip_prefix("impl") {
                // Of `Trait for Type` the type; generics do not matter to a name.
                let rest =
                    rest.split_once("> ").filter(|_| rest.starts_with('<')).map_or(rest, |r| r.1);
                owner = word(rest.rsplit(" for ").next().unwrap_or(rest).trim());
            }
            if !line.starts_with("pub ") || !line.contains("fn ") {
                continue;
            }
            let mut signature = line.to_owned();
            while !signature.contains(['{', ';']) {
                signature.push_str(lines.next().unwrap_or(";"));
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

/// The name at the beginning of a text.
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
            pub fn boxed(&self) -> BoxFuture<()> {}
            pub fn later(&self) -> Later {}
        }
        impl<T> Wait<T> {
            pub fn now(self) -> Now<T> {}
        }
    ";
    let found = ["Lock::boxed", "Lock::later", "Lock::over_lines", "Lock::plain", "Wait::now"];
    assert_eq!(futures(&[source.to_owned()]), found);
}
