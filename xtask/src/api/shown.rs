//! How an item is written down: its signature, formatted as Rust.

use quote::ToTokens;
use syn::{
    Attribute, Fields, File, Ident, ImplItem, Item, ItemImpl, TraitItem, Visibility, parse_quote,
};

/// Attributes that users of an item depend on.
const KEPT: [&str; 6] = ["cfg", "derive", "non_exhaustive", "must_use", "deprecated", "repr"];

pub(super) fn tokens(of: &impl ToTokens) -> String {
    of.to_token_stream().to_string()
}

macro_rules! of_each_kind {
    ($item:expr, $it:ident => $value:expr, $other:expr) => {
        match $item {
            Item::Const($it) => $value,
            Item::Enum($it) => $value,
            Item::Mod($it) => $value,
            Item::Static($it) => $value,
            Item::Struct($it) => $value,
            Item::Trait($it) => $value,
            Item::Type($it) => $value,
            Item::Union($it) => $value,
            _ => $other,
        }
    };
}

pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        item => of_each_kind!(item, it => &it.attrs, &[]),
    }
}

pub(super) fn visibility(item: &Item) -> Option<&Visibility> {
    match item {
        Item::Fn(it) => Some(&it.vis),
        Item::Use(it) => Some(&it.vis),
        item => of_each_kind!(item, it => Some(&it.vis), None),
    }
}

pub(super) fn name(item: &Item) -> Option<&Ident> {
    match item {
        Item::Fn(it) => Some(&it.sig.ident),
        item => of_each_kind!(item, it => Some(&it.ident), None),
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn keep(attributes: &mut Vec<Attribute>) {
    attributes.retain(|it| KEPT.iter().any(|kept| it.path().is_ident(kept)));
}

/// Formatted; and what cannot be formatted as it is.
fn pretty(item: Item) -> String {
    prettyplease::unparse(&File {
        shebang: None,
        frontmatter: None,
        attrs: Vec::new(),
        items: vec![item],
    })
}

/// An item without what its users do not see; `None` for what is no item of its own.
pub(super) fn item(item: &Item, renamed: Option<&Ident>) -> Option<String> {
    let mut hidden = false;
    let mut shown = item.clone();
    match &mut shown {
        Item::Struct(it) => {
            keep(&mut it.attrs);
            hidden = fields(&mut it.fields);
        }
        Item::Enum(it) => {
            keep(&mut it.attrs);
            for variant in &mut it.variants {
                keep(&mut variant.attrs);
                variant.fields.iter_mut().for_each(|field| keep(&mut field.attrs));
            }
        }
        Item::Trait(it) => {
            keep(&mut it.attrs);
            for member in &mut it.items {
                match member {
                    TraitItem::Fn(it) => {
                        keep(&mut it.attrs);
                        if it.default.is_some() {
                            it.default = Some(parse_quote!({ .. }));
                        }
                    }
                    TraitItem::Const(it) => keep(&mut it.attrs),
                    TraitItem::Type(it) => keep(&mut it.attrs),
                    _ => {}
                }
            }
        }
        Item::Fn(it) => {
            keep(&mut it.attrs);
            let (attrs, vis, sig) = (&it.attrs, &it.vis, &it.sig);
            return Some(called(
                format!("{}\n", signature(attrs, vis, sig)),
                renamed,
                &it.sig.ident,
            ));
        }
        Item::Const(it) => keep(&mut it.attrs),
        Item::Static(it) => keep(&mut it.attrs),
        Item::Type(it) => keep(&mut it.attrs),
        Item::Union(it) => keep(&mut it.attrs),
        _ => return None,
    }
    let text = pretty(shown);
    let text = if hidden { format!("// It has private fields.\n{text}") } else { text };
    Some(name(item).map_or(text.clone(), |name| called(text, renamed, name)))
}

fn called(text: String, renamed: Option<&Ident>, name: &Ident) -> String {
    renamed.map_or(text.clone(), |renamed| format!("// {name} as {renamed}\n{text}"))
}

/// Takes private fields away; whether there were any.
fn fields(fields: &mut Fields) -> bool {
    let count = fields.len();
    match fields {
        Fields::Named(it) => {
            it.named =
                std::mem::take(&mut it.named).into_iter().filter(|it| is_public(&it.vis)).collect();
            it.named.iter_mut().for_each(|field| keep(&mut field.attrs));
        }
        Fields::Unnamed(it) => {
            let all_public = it.unnamed.iter().all(|it| is_public(&it.vis));
            if !all_public {
                it.unnamed.clear();
            }
        }
        Fields::Unit => {}
    }
    fields.len() != count
}

/// A function's head, formatted.
fn signature(attrs: &[Attribute], vis: &Visibility, sig: &syn::Signature) -> String {
    let text = pretty(parse_quote!(#(#attrs)* #vis #sig {}));
    format!("{};", text.trim_end().trim_end_matches("{}").trim_end())
}

/// An implementation: its public members if it is the type's own, its head if it is of a trait that users know.
pub(super) fn implementation(it: &ItemImpl, is_known: impl Fn(&str) -> bool) -> Option<String> {
    let mut head = it.clone();
    keep(&mut head.attrs);
    let kept = std::mem::take(&mut head.items);
    if let Some((path, _)) = &head.trait_ {
        let name = path.segments.last()?.ident.to_string();
        if !is_known(&name) {
            return None;
        }
        head.items = kept.into_iter().filter(|it| matches!(it, ImplItem::Type(_))).collect();
        return Some(pretty(Item::Impl(head)));
    }
    let members = kept.into_iter().filter_map(|it| match it {
        ImplItem::Fn(mut it) if is_public(&it.vis) => {
            keep(&mut it.attrs);
            Some(signature(&it.attrs, &it.vis, &it.sig))
        }
        ImplItem::Const(mut it) if is_public(&it.vis) => {
            keep(&mut it.attrs);
            let (attrs, vis, ident, ty) = (&it.attrs, &it.vis, &it.ident, &it.ty);
            let value = &it.expr;
            Some(
                pretty(parse_quote!(#(#attrs)* #vis const #ident: #ty = #value;))
                    .trim_end()
                    .to_owned(),
            )
        }
        _ => None,
    });
    let members: Vec<String> =
        members.map(|text| text.lines().map(|line| format!("    {line}\n")).collect()).collect();
    if members.is_empty() {
        return None;
    }
    let head = pretty(Item::Impl(head));
    let head = head.trim_end().trim_end_matches('}').trim_end();
    Some(format!("{head}\n{}}}\n", members.concat()))
}
