//! What all pictures share: colours for light and dark pages, fonts, and text in XML.

use std::fmt::Write as _;

/// The rules for a class: its property, and the colour on a light and on a dark page.
type Colour = (&'static str, &'static str, &'static str, &'static str);

/// Every colour of the pictures. Each picture has a ground of its own, because a page may be dark
/// for a reader whose system is light.
const COLOURS: [Colour; 22] = [
    (".ground", "fill", "#ffffff", "#0d1117"),
    (".ground", "stroke", "#d1d9e0", "#30363d"),
    (".band", "fill", "#f6f8fa", "#161b22"),
    (".rule", "stroke", "#d1d9e0", "#30363d"),
    ("text", "fill", "#1f2328", "#e6edf3"),
    (".dim", "fill", "#59636e", "#9198a1"),
    (".green", "fill", "#1a7f37", "#3fb950"),
    (".yellow", "fill", "#8a5a00", "#d29922"),
    (".red", "fill", "#cf222e", "#f85149"),
    (".blue", "fill", "#0969da", "#58a6ff"),
    (".box-plain", "fill", "#f6f8fa", "#161b22"),
    (".box-plain", "stroke", "#818b98", "#656c76"),
    (".box-good", "fill", "#dafbe1", "#12261e"),
    (".box-good", "stroke", "#1a7f37", "#3fb950"),
    (".box-odd", "fill", "#fff8c5", "#272115"),
    (".box-odd", "stroke", "#9a6700", "#d29922"),
    (".box-bad", "fill", "#ffebe9", "#25171c"),
    (".box-bad", "stroke", "#cf222e", "#f85149"),
    (".box-core", "fill", "#ddf4ff", "#121d2f"),
    (".box-core", "stroke", "#0969da", "#58a6ff"),
    (".shade", "fill", "#d1d9e0", "#30363d"),
    (".plain", "fill", "#59636e", "#9198a1"),
];

/// A class of arrows takes its colour from a class of text.
const ARROWS: [(&str, &str); 5] = [
    ("plain", ".plain"),
    ("good", ".green"),
    ("odd", ".yellow"),
    ("bad", ".red"),
    ("core", ".blue"),
];

/// The letters of sentences.
pub(super) const SANS: &str =
    "-apple-system,BlinkMacSystemFont,'Segoe UI','Noto Sans',Helvetica,Arial,sans-serif";

/// The letters of code and of terminals.
pub(super) const MONO: &str =
    "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace";

/// The beginning of a picture, up to the styles, which are the given ones and the colours.
pub(super) fn head(
    [width, height]: [u32; 2],
    title: &str,
    description: &str,
    styles: &str,
) -> String {
    let mut light = String::new();
    let mut dark = String::new();
    for (class, property, on_light, on_dark) in COLOURS {
        // Writing to a string does not fail.
        let _ = writeln!(light, "{class}{{{property}:{on_light}}}");
        let _ = writeln!(dark, "{class}{{{property}:{on_dark}}}");
    }
    for (kind, class) in ARROWS {
        for (_, _, on_light, on_dark) in COLOURS.iter().filter(|(name, ..)| *name == class) {
            let _ =
                writeln!(light, ".line-{kind}{{stroke:{on_light}}}.tip-{kind}{{fill:{on_light}}}");
            let _ = writeln!(dark, ".line-{kind}{{stroke:{on_dark}}}.tip-{kind}{{fill:{on_dark}}}");
        }
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"title what\">\n\
         <title id=\"title\">{}</title>\n<desc id=\"what\">{}</desc>\n\
         <style>\n{light}@media (prefers-color-scheme: dark){{\n{dark}}}\n{styles}</style>\n\
         <rect class=\"ground\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n",
        escaped(title),
        escaped(description),
        width - 1,
        height - 1,
    )
}

/// Text that means nothing to a reader of XML. A control character, which XML has no place for, is left out.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars().filter(|character| !character.is_control()) {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(escaped("a < b & c > \u{1b}d"), "a &lt; b &amp; c &gt; d");
    }

    #[test]
    fn every_kind_of_arrow_has_a_colour_on_both_grounds() {
        let head = head([2, 2], "", "", "");
        for (kind, _) in ARROWS {
            assert_eq!(head.matches(&format!(".line-{kind}{{")).count(), 2, "{kind}");
        }
    }
}
