//! As much of SVG as the picture takes: shapes with a class and a word to them.

use std::fmt::Write as _;

/// A picture that is being written.
pub(super) struct Svg(String);

impl Svg {
    /// An empty picture of this size; `style` is CSS.
    pub(super) fn new(width: f64, height: f64, style: &str) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<style>\n{style}</style>\n"
        ))
    }

    /// What is written as it stands.
    pub(super) fn raw(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push('\n');
    }

    /// A rectangle. `fill` is a colour that its class does not give.
    pub(super) fn rect(
        &mut self,
        class: &str,
        fill: Option<&str>,
        [x, y, width, height]: [f64; 4],
        tip: &str,
    ) {
        let fill = fill.map_or(String::new(), |fill| format!(" fill=\"{fill}\""));
        let shape = format!(
            "rect class=\"{class}\"{fill} x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\""
        );
        self.shape("rect", &shape, tip);
    }

    /// Lines through points that are given as SVG gives them.
    pub(super) fn path(&mut self, class: &str, points: &str, tip: &str) {
        self.shape("path", &format!("path class=\"{class}\" d=\"{points}\""), tip);
    }

    fn shape(&mut self, name: &str, shape: &str, tip: &str) {
        // Writing to a string does not fail.
        let _ = match tip {
            "" => writeln!(self.0, "<{shape}/>"),
            tip => writeln!(self.0, "<{shape}><title>{}</title></{name}>", escaped(tip)),
        };
    }

    /// A line of text.
    pub(super) fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let text = escaped(text);
        let _ = writeln!(self.0, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

/// Text that means nothing to a reader of XML. What XML has no place for at all is left out.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' => {}
            other if other.is_control() => escaped.push(' '),
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
        let mut svg = Svg::new(1.0, 1.0, "");
        svg.text("a", 0.0, 0.0, "a < \"b\" & 'c'\u{0}>\u{ffff}");
        svg.path("b", "M0 0", "</title>");
        let svg = svg.finish();
        assert!(svg.contains(">a &lt; &quot;b&quot; &amp; &apos;c&apos; &gt;</text>"), "{svg}");
        assert!(svg.contains("<title>&lt;/title&gt;</title>"), "{svg}");
    }
}
