//! The documentation in Rust files: of public items, and of what clap makes help texts of.

use syn::spanned::Spanned as _;
use syn::{Attribute, Expr, ExprLit, Fields, ImplItem, Item, Lit, Meta, TraitItem, Visibility};

/// Derives that turn documentation into help texts.
const CLAP: [&str; 4] = ["Parser", "Args", "Subcommand", "ValueEnum"];

/// Which items of a file are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The public ones, and the file's own text.
    Public,
    /// Those that clap prints.
    Help,
}

/// The text of one item: Markdown, and the line in the file of each of its lines, counted from 1.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Doc {
    pub(super) text: String,
    pub(super) lines: Vec<usize>,
}

/// All texts of a file.
///
/// # Errors
/// The file is no Rust.
pub(super) fn docs(source: &str, scope: Scope) -> syn::Result<Vec<Doc>> {
    let file = syn::parse_file(source)?;
    let mut reader = Reader { scope, docs: Vec::new() };
    if scope == Scope::Public {
        reader.read(&file.attrs);
    }
    reader.items(&file.items);
    Ok(reader.docs)
}

struct Reader {
    scope: Scope,
    docs: Vec<Doc>,
}

impl Reader {
    fn items(&mut self, items: &[Item]) {
        for item in items {
            self.item(item);
        }
    }

    fn item(&mut self, item: &Item) {
        let all = self.scope == Scope::Help;
        match item {
            Item::Mod(module) if !is_test(&module.attrs) => {
                if !all && is_public(&module.vis) {
                    self.read(&module.attrs);
                }
                if let Some((_, items)) = &module.content {
                    self.items(items);
                }
            }
            Item::Struct(item) if self.wants(&item.vis, &item.attrs) => {
                self.read(&item.attrs);
                self.fields(&item.fields, all);
            }
            Item::Enum(item) if self.wants(&item.vis, &item.attrs) => {
                self.read(&item.attrs);
                for variant in &item.variants {
                    self.read(&variant.attrs);
                    self.fields(&variant.fields, true);
                }
            }
            _ if all => {}
            Item::Fn(item) => self.read_if(&item.vis, &item.attrs),
            Item::Const(item) => self.read_if(&item.vis, &item.attrs),
            Item::Static(item) => self.read_if(&item.vis, &item.attrs),
            Item::Type(item) => self.read_if(&item.vis, &item.attrs),
            Item::Trait(item) if is_public(&item.vis) => {
                self.read(&item.attrs);
                for member in &item.items {
                    match member {
                        TraitItem::Fn(member) => self.read(&member.attrs),
                        TraitItem::Const(member) => self.read(&member.attrs),
                        TraitItem::Type(member) => self.read(&member.attrs),
                        _ => {}
                    }
                }
            }
            Item::Impl(item) if item.trait_.is_none() => {
                for member in &item.items {
                    match member {
                        ImplItem::Fn(member) => self.read_if(&member.vis, &member.attrs),
                        ImplItem::Const(member) => self.read_if(&member.vis, &member.attrs),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn wants(&self, vis: &Visibility, attrs: &[Attribute]) -> bool {
        match self.scope {
            Scope::Public => is_public(vis),
            Scope::Help => attrs.iter().any(is_clap),
        }
    }

    /// Those of a variant are as public as the variant.
    fn fields(&mut self, fields: &Fields, all: bool) {
        for field in fields {
            if all || is_public(&field.vis) {
                self.read(&field.attrs);
            }
        }
    }

    fn read_if(&mut self, vis: &Visibility, attrs: &[Attribute]) {
        if is_public(vis) {
            self.read(attrs);
        }
    }

    fn read(&mut self, attrs: &[Attribute]) {
        let (mut text, mut lines) = (String::new(), Vec::new());
        for attr in attrs {
            let Meta::NameValue(pair) = &attr.meta else { continue };
            // An included file is read as a file.
            if let Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) = &pair.value
                && pair.path.is_ident("doc")
            {
                let line = line.value();
                text.push_str(line.strip_prefix(' ').unwrap_or(&line));
                text.push('\n');
                lines.push(attr.span().start().line);
            }
        }
        if !lines.is_empty() {
            self.docs.push(Doc { text, lines });
        }
    }
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn is_test(attrs: &[Attribute]) -> bool {
    let is_test = |meta: &Meta| match meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    };
    attrs.iter().any(|attr| is_test(&attr.meta))
}

fn is_clap(attr: &Attribute) -> bool {
    let Meta::List(list) = &attr.meta else { return false };
    let tokens = list.tokens.to_string();
    list.path.is_ident("derive")
        && tokens.split(|c: char| !c.is_alphanumeric()).any(|name| CLAP.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
//! The file.
/// Shown.
/// Twice.
pub struct Shown {
    /// A field.
    pub a: u8,
    /// Hidden.
    b: u8,
}
/// Hidden.
fn hidden() {}
impl Shown {
    /// A method.
    pub fn method(&self) {}
}
#[derive(Debug, Args)]
/// Help.
struct Options {
    /// An option.
    c: u8,
}
#[cfg(test)]
mod tests {
    /// Hidden.
    pub fn helper() {}
}
";

    fn read(scope: Scope) -> Vec<(String, Vec<usize>)> {
        docs(FILE, scope).unwrap().into_iter().map(|doc| (doc.text, doc.lines)).collect()
    }

    #[test]
    fn public_items_are_read() {
        let expected = [
            ("The file.\n", vec![1]),
            ("Shown.\nTwice.\n", vec![2, 3]),
            ("A field.\n", vec![5]),
            ("A method.\n", vec![13]),
        ];
        assert_eq!(read(Scope::Public), expected.map(|(text, lines)| (text.to_owned(), lines)));
    }

    #[test]
    fn help_texts_are_read() {
        let expected = [("Help.\n", vec![17]), ("An option.\n", vec![19])];
        assert_eq!(read(Scope::Help), expected.map(|(text, lines)| (text.to_owned(), lines)));
    }
}
