//! The modules of a crate, and what of them can be reached from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::{Attribute, Ident, Item, ItemImpl, Type, UseTree, Visibility};

use super::shown;

/// Reads a file, or says why not.
type Read<'a> = &'a dyn Fn(&Path) -> Result<String, String>;

/// A crate's items by module; a module's path is empty for the root.
#[derive(Default)]
pub(super) struct Krate {
    modules: BTreeMap<Vec<String>, Vec<Item>>,
    /// With the modules that they are in.
    impls: Vec<(Vec<String>, ItemImpl)>,
}

impl Krate {
    /// Reads the crate with this root, and the files of its modules.
    pub(super) fn read(root: &Path, read: Read<'_>) -> Result<Self, String> {
        let mut krate = Self::default();
        let folder = root.parent().unwrap_or(root).to_owned();
        krate.file(root, &folder, Vec::new(), read)?;
        Ok(krate)
    }

    fn file(
        &mut self,
        file: &Path,
        folder: &Path,
        path: Vec<String>,
        read: Read<'_>,
    ) -> Result<(), String> {
        let parsed = syn::parse_file(&read(file)?);
        let parsed = parsed.map_err(|error| format!("{}: {error}", file.display()))?;
        self.module(parsed.items, folder, path, read)
    }

    fn module(
        &mut self,
        items: Vec<Item>,
        folder: &Path,
        path: Vec<String>,
        read: Read<'_>,
    ) -> Result<(), String> {
        let mut kept = Vec::new();
        for item in items.into_iter().filter(|item| is_shipped(shown::attributes(item))) {
            match item {
                Item::Impl(it) => self.impls.push((path.clone(), it)),
                Item::Mod(mut it) => {
                    let inner = folder.join(it.ident.to_string());
                    let path = [&path[..], &[it.ident.to_string()]].concat();
                    match it.content.take() {
                        Some((_, items)) => self.module(items, &inner, path, read)?,
                        None => {
                            let file = [inner.with_extension("rs"), inner.join("mod.rs")];
                            let file: PathBuf = match file {
                                [flat, _] if read(&flat).is_ok() => flat,
                                [_, nested] => nested,
                            };
                            self.file(&file, &inner, path, read)?;
                        }
                    }
                    kept.push(Item::Mod(it));
                }
                item => kept.push(item),
            }
        }
        self.modules.insert(path, kept);
        Ok(())
    }

    /// Every public item under the path by which it is reached.
    pub(super) fn api(&self) -> String {
        let mut found = Found::default();
        self.visit(&[], &mut Vec::new(), &mut found);
        let known = |name: &str| found.names.contains_key(name) || !self.defines(name);
        let impls = self.impls.iter().filter_map(|(module, it)| {
            // Two types of one name are told apart by their modules.
            let at = match found.of(it)? {
                1 => String::new(),
                _ => format!("// in {}\n", module.join("::")),
            };
            Some(at + &shown::implementation(it, known)?)
        });
        let mut sections: Vec<String> = Vec::new();
        for (path, items) in &found.items {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let title = ["crate"].into_iter().chain(path).collect::<Vec<_>>().join("::");
            let items = items.iter().map(|(_, text)| &**text).collect::<Vec<_>>().join("\n");
            sections.push(format!("// {title}\n\n{items}"));
        }
        let impls: BTreeSet<String> = impls.collect();
        let impls = impls.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        sections.push(format!("// Implementations\n\n{impls}"));
        sections.join("\n")
    }

    /// The public items of a module, under the path by which it is reached.
    fn visit(&self, module: &[String], under: &mut Vec<String>, found: &mut Found) {
        for item in self.modules.get(module).into_iter().flatten() {
            if !shown::visibility(item).is_some_and(is_public) {
                continue;
            }
            match item {
                Item::Mod(it) => {
                    under.push(it.ident.to_string());
                    self.visit(&[module, &[it.ident.to_string()]].concat(), under, found);
                    under.pop();
                }
                Item::Use(it) => self.reexport(module, &it.tree, Vec::new(), under, found),
                item => found.add(under, item, None),
            }
        }
    }

    /// What a `pub use` shows: items of this crate as if they were here, others by their path.
    fn reexport(
        &self,
        module: &[String],
        tree: &UseTree,
        path: Vec<String>,
        under: &mut Vec<String>,
        found: &mut Found,
    ) {
        let (name, shown_as) = match tree {
            UseTree::Path(it) => {
                let path = [&path[..], &[it.ident.to_string()]].concat();
                return self.reexport(module, &it.tree, path, under, found);
            }
            UseTree::Group(it) => {
                for tree in &it.items {
                    self.reexport(module, tree, path.clone(), under, found);
                }
                return;
            }
            UseTree::Name(it) => (&it.ident, &it.ident),
            UseTree::Rename(it) => (&it.ident, &it.rename),
            UseTree::Glob(_) => {
                if let Some(inside) = self.resolve(module, &path) {
                    self.visit(&inside, under, found);
                } else {
                    found.text(under, format!("pub use {}::*;\n", path.join("::")));
                }
                return;
            }
        };
        let Some(inside) = self.resolve(module, &path) else {
            let renamed = if name == shown_as { String::new() } else { format!(" as {shown_as}") };
            let full = [&path[..], &[name.to_string()]].concat().join("::");
            found.text(under, format!("pub use {full}{renamed};\n"));
            return;
        };
        for item in self.modules.get(&inside).into_iter().flatten() {
            match item {
                Item::Mod(it) if it.ident == *name => {
                    under.push(shown_as.to_string());
                    self.visit(&[&inside[..], &[name.to_string()]].concat(), under, found);
                    under.pop();
                }
                // A chain of re-exports is followed to where the item is.
                Item::Use(it) => {
                    if let Some(path) = leads_to(&it.tree, name, Vec::new()) {
                        let tree = syn::parse_quote!(#name);
                        self.reexport(&inside, &tree, path, under, found);
                    }
                }
                item if shown::name(item) == Some(name) => {
                    let renamed = (name != shown_as).then_some(shown_as);
                    found.add(under, item, renamed);
                }
                _ => {}
            }
        }
    }

    /// The module of this crate that a path in `module` means; `None` for another crate's.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut at = module.to_vec();
        let mut rest = path;
        match path.first().map(String::as_str) {
            Some("crate") => (at, rest) = (Vec::new(), &path[1..]),
            Some("self") => rest = &path[1..],
            _ => {}
        }
        while rest.first().is_some_and(|it| it == "super") {
            at.pop();
            rest = &rest[1..];
        }
        at.extend(rest.iter().cloned());
        self.modules.contains_key(&at).then_some(at)
    }

    /// Whether the crate defines a trait or a type of this name, public or not.
    fn defines(&self, name: &str) -> bool {
        let mut items = self.modules.values().flatten();
        items.any(|item| shown::name(item).is_some_and(|it| it == name))
    }
}

/// The path before a name that a `use` brings in.
fn leads_to(tree: &UseTree, name: &Ident, path: Vec<String>) -> Option<Vec<String>> {
    match tree {
        UseTree::Path(it) => {
            leads_to(&it.tree, name, [&path[..], &[it.ident.to_string()]].concat())
        }
        UseTree::Group(it) => it.items.iter().find_map(|tree| leads_to(tree, name, path.clone())),
        UseTree::Name(it) => (it.ident == *name).then_some(path),
        UseTree::Rename(_) | UseTree::Glob(_) => None,
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Part of what people build: no test, no mistake that is switched on, no fuzzing.
fn is_shipped(attributes: &[Attribute]) -> bool {
    let left_out = ["test", "doctest", "fuzzing", "quorlock_mutants", "quorlock_stepped_clock"];
    !attributes.iter().any(|attribute| {
        let text = shown::tokens(attribute);
        attribute.path().is_ident("cfg")
            && !text.contains("not (")
            && left_out.iter().any(|word| {
                text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|it| it == *word)
            })
    })
}

/// What has been found to be public.
#[derive(Default)]
struct Found {
    /// By their paths; a name and how it is shown.
    items: BTreeMap<Vec<String>, BTreeSet<(String, String)>>,
    /// The names of public types and traits, and how many have each.
    names: BTreeMap<String, usize>,
}

impl Found {
    fn add(&mut self, under: &[String], item: &Item, renamed: Option<&Ident>) {
        let name = shown::name(item).map(ToString::to_string);
        *self.names.entry(name.clone().unwrap_or_default()).or_default() += 1;
        if let Some(text) = shown::item(item, renamed) {
            let name = name.unwrap_or_default();
            self.items.entry(under.to_vec()).or_default().insert((name, text));
        }
    }

    /// What another crate has.
    fn text(&mut self, under: &[String], text: String) {
        self.items.entry(under.to_vec()).or_default().insert((String::new(), text));
    }

    /// How many public types have the name of the one that this is for; `None` if it is for another.
    fn of(&self, it: &ItemImpl) -> Option<usize> {
        let mut of = &*it.self_ty;
        while let Type::Reference(reference) = of {
            of = &reference.elem;
        }
        let Type::Path(path) = of else { return None };
        self.names.get(&path.path.segments.last()?.ident.to_string()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(files: &[(&str, &str)]) -> String {
        let read = |path: &Path| {
            let name = path.to_str().unwrap();
            let found = files.iter().find(|(file, _)| *file == name);
            found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| format!("no {name}"))
        };
        Krate::read(Path::new("lib.rs"), &read).unwrap().api()
    }

    #[test]
    fn what_is_reached_is_shown_where_it_is_reached() {
        let shown = api(&[
            (
                "lib.rs",
                "mod a; pub mod b; pub use crate::a::{Kept, inner::Deep as Deeper}; pub use other::Thing;",
            ),
            (
                "a.rs",
                "pub(crate) mod inner; pub struct Kept { pub x: u8, y: u8 } pub struct Hidden;",
            ),
            (
                "a/inner.rs",
                "pub struct Deep; impl Deep { pub fn go(&self) -> u8 { 1 } fn no(&self) {} }",
            ),
            (
                "b.rs",
                "#[cfg(test)] mod tests {} /// Text. \npub fn call(at: impl Into<String>) {} fn private() {}",
            ),
        ]);
        for part in [
            "pub x: u8",
            "private fields",
            "Deep as Deeper",
            "pub fn go(&self) -> u8;",
            "// crate::b",
        ] {
            assert!(shown.contains(part), "{part} in\n{shown}");
        }
        for part in ["Hidden", "y: u8", "fn no", "private()", "Text."] {
            assert!(!shown.contains(part), "{part} in\n{shown}");
        }
        assert!(shown.contains("pub fn call(at: impl Into<String>)"), "{shown}");
        assert!(shown.contains("pub use other::Thing;"), "{shown}");
    }

    #[test]
    fn a_changed_signature_changes_the_snapshot_and_a_changed_body_does_not() {
        let of = |text: &str| api(&[("lib.rs", text)]);
        let before = of("pub fn a() -> u8 { 1 }");
        assert_eq!(of("pub fn a() -> u8 { 2 }"), before);
        assert_ne!(of("pub fn a() -> u16 { 1 }"), before);
        assert_ne!(of("#[non_exhaustive] pub enum A { B }"), of("pub enum A { B }"));
        assert_ne!(of("pub struct A; impl Clone for A {}"), of("pub struct A;"));
        assert_ne!(of("#[cfg(feature = \"tls\")] pub struct A;"), of("pub struct A;"));
    }
}
