//! The sentences of a Markdown text, each with its line.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Stands for a space inside of code, so that `SET key value` is one word.
const SPACE_IN_CODE: char = '\u{2}';

/// A full stop behind one of these ends no sentence.
const ABBREVIATIONS: [&str; 5] = ["e.g.", "i.e.", "vs.", "cf.", "approx."];

/// One sentence of prose.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sentence {
    /// Counted from 0, in the text that it was read from.
    pub(super) line: usize,
    text: String,
    pub(super) is_in_table: bool,
    /// Headings and table cells have other lengths than sentences.
    pub(super) is_heading: bool,
}

impl Sentence {
    /// As a person reads it.
    pub(super) fn shown(&self) -> String {
        self.text.replace(SPACE_IN_CODE, " ")
    }

    /// The number of words. Code in backticks is one word, whatever is in it.
    pub(super) fn words(&self) -> usize {
        let is_word = |word: &&str| word.contains(|c: char| c.is_alphanumeric() || c == '`');
        self.text.split_whitespace().filter(is_word).count()
    }

    /// Lower-case words and punctuation marks, one space between each. Code is a lone backtick.
    pub(super) fn tokens(&self) -> String {
        let mut tokens = String::from(" ^ ");
        for word in self.text.split_whitespace() {
            if word.contains('`') {
                tokens.push_str("` ");
                let after = word.rsplit('`').next().unwrap_or_default();
                push_word(&mut tokens, after);
            } else {
                push_word(&mut tokens, word);
            }
        }
        tokens
    }
}

fn push_word(tokens: &mut String, word: &str) {
    let is_part = |c: char| c.is_alphanumeric() || c == '-' || c == '_' || c == '\'';
    let mut inside = false;
    for c in word.chars() {
        if inside && !is_part(c) {
            tokens.push(' ');
        }
        inside = is_part(c);
        tokens.extend(c.to_lowercase());
        if !inside {
            tokens.push(' ');
        }
    }
    if inside {
        tokens.push(' ');
    }
}

/// All sentences of paragraphs, list items, headings and table cells. Code blocks, and what a
/// program writes between `<!-- name:begin -->` and `<!-- name:end -->`, are left out.
pub(super) fn sentences(markdown: &str) -> Vec<Sentence> {
    let mut block = Block::default();
    let mut found = Vec::new();
    let (mut in_code, mut is_generated) = (false, false);
    let parser = Parser::new_ext(markdown, Options::ENABLE_TABLES);
    for (event, range) in parser.into_offset_iter() {
        match event {
            Event::Html(html) => is_generated = in_generated(&html).unwrap_or(is_generated),
            Event::Start(Tag::CodeBlock(_)) => in_code = true,
            Event::End(TagEnd::CodeBlock) => in_code = false,
            _ if in_code || is_generated => {}
            Event::Start(tag) if is_block(&tag) => {
                block.finish(markdown, &mut found);
                block.is_heading = matches!(tag, Tag::Heading { .. });
                block.is_in_table = matches!(tag, Tag::TableCell);
            }
            Event::End(
                TagEnd::Paragraph | TagEnd::Heading(_) | TagEnd::Item | TagEnd::TableCell,
            ) => {
                block.finish(markdown, &mut found);
                (block.is_heading, block.is_in_table) = (false, false);
            }
            Event::Text(text) => block.push(&text, range.start),
            Event::Code(code) => {
                let code = code.replace(char::is_whitespace, &SPACE_IN_CODE.to_string());
                block.push(&format!("`{code}`"), range.start);
            }
            Event::SoftBreak | Event::HardBreak => block.push(" ", range.start),
            _ => {}
        }
    }
    block.finish(markdown, &mut found);
    found
}

fn in_generated(html: &str) -> Option<bool> {
    if html.contains(":begin -->") {
        return Some(true);
    }
    html.contains(":end -->").then_some(false)
}

fn is_block(tag: &Tag<'_>) -> bool {
    matches!(tag, Tag::Paragraph | Tag::Heading { .. } | Tag::Item | Tag::TableCell)
}

/// The text of one block, and where each of its pieces begins in the source.
#[derive(Default)]
struct Block {
    text: String,
    pieces: Vec<(usize, usize)>,
    is_in_table: bool,
    is_heading: bool,
}

impl Block {
    fn push(&mut self, text: &str, source: usize) {
        self.pieces.push((self.text.len(), source));
        self.text.push_str(text);
    }

    fn finish(&mut self, markdown: &str, found: &mut Vec<Sentence>) {
        let mut from = 0;
        for end in ends(&self.text) {
            let text = &self.text[from..end];
            let begin = from + (text.len() - text.trim_start().len());
            if !text.trim().is_empty() {
                let piece = self.pieces.iter().rev().find(|(start, _)| *start <= begin);
                let (start, source) = piece.copied().unwrap_or_default();
                let at = (source + begin - start).min(markdown.len());
                let line = markdown.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
                let text = text.trim().to_owned();
                let (is_in_table, is_heading) = (self.is_in_table, self.is_heading);
                found.push(Sentence { line, text, is_in_table, is_heading });
            }
            from = end;
        }
        self.text.clear();
        self.pieces.clear();
    }
}

/// Where the sentences of a block end.
fn ends(text: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut in_code = false;
    for (at, c) in text.char_indices() {
        in_code ^= c == '`';
        if in_code || !matches!(c, '.' | '!' | '?') {
            continue;
        }
        let after = &text[at + c.len_utf8()..];
        let closing = after.len() - after.trim_start_matches(['"', '\'', '”', '’', ')', ']']).len();
        let end = at + c.len_utf8() + closing;
        let is_followed_by_space = text[end..].starts_with(char::is_whitespace);
        let word = text[..=at].rsplit(char::is_whitespace).next().unwrap_or_default();
        let word = word.trim_start_matches(['(', '"']);
        if is_followed_by_space && !ABBREVIATIONS.contains(&word) {
            ends.push(end);
        }
    }
    ends.push(text.len());
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(markdown: &str) -> Vec<(usize, String)> {
        sentences(markdown).iter().map(|found| (found.line, found.shown())).collect()
    }

    #[test]
    fn sentences_are_found_with_their_lines() {
        let page =
            "# Title\n\nOne is\nhere. quorlock (7.0.1, e.g. this) is\ntwo. Three.\n\n- four\n";
        let expected = [
            (0, "Title"),
            (2, "One is here."),
            (3, "quorlock (7.0.1, e.g. this) is two."),
            (4, "Three."),
            (6, "four"),
        ];
        assert_eq!(shown(page), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn code_blocks_and_generated_parts_are_no_prose() {
        let page = "```text\nSome code. More.\n```\n\n<!-- x:begin -->\n\nWritten.\n\n<!-- x:end -->\n\nProse.\n";
        assert_eq!(shown(page), [(10, "Prose.".to_owned())]);
    }

    #[test]
    fn code_is_one_word() {
        let found = sentences("Send `SET key value NX` to all — now.");
        assert_eq!(found[0].words(), 5);
        assert_eq!(found[0].tokens(), " ^ send ` to all — now . ");
    }

    #[test]
    fn cells_of_tables_are_marked() {
        let found = sentences("| a b | c |\n|---|---|\n| One. Two | d |\n");
        assert_eq!(found.len(), 5);
        assert!(found.iter().all(|cell| cell.is_in_table));
        assert_eq!(found[3].line, 2);
    }
}
