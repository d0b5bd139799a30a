//! What every sentence is held to.

use super::markdown::{Sentence, sentences};
use super::phrases::PHRASES;

/// The most words in a sentence. Guides for technical English say 20 to 25; a condition, its
/// consequence and the name of an error need about ten more. Only longer ones had to be read twice.
pub(super) const MOST_WORDS: usize = 35;

/// The fewest words in the first line of a public item: "The node." says less than its name does.
const FEWEST_WORDS: usize = 3;

/// A sentence that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Counted from 0, in the text that was checked.
    pub(super) line: usize,
    pub(super) sentence: String,
    pub(super) rule: String,
    pub(super) advice: &'static str,
}

/// Checks a text. That of an item must also begin as the first line of a public item does.
pub(super) fn check(markdown: &str, is_item: bool) -> Vec<Finding> {
    let sentences = sentences(markdown);
    let mut found = Vec::new();
    if let Some(first) = sentences.first().filter(|first| is_item && !first.is_heading)
        && first.words() < FEWEST_WORDS
    {
        let rule = format!("first line of {} words", first.words());
        let advice = "say with a noun or verb phrase what it is or does, in three words or more";
        found.push(finding(first, rule, advice));
    }
    for sentence in &sentences {
        if !sentence.is_in_table && sentence.words() > MOST_WORDS {
            let rule = format!("{} words, at most {MOST_WORDS}", sentence.words());
            found.push(finding(sentence, rule, "make two sentences or a list of it"));
        }
        let tokens = sentence.tokens();
        for (phrase, instead) in PHRASES {
            if tokens.contains(&format!(" {phrase} ")) {
                found.push(finding(sentence, format!("\"{phrase}\""), instead));
            }
        }
    }
    found
}

fn finding(sentence: &Sentence, rule: String, advice: &'static str) -> Finding {
    Finding { line: sentence.line, sentence: sentence.shown(), rule, advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(markdown: &str, is_item: bool) -> Vec<String> {
        check(markdown, is_item).into_iter().map(|found| found.rule).collect()
    }

    #[test]
    fn long_sentences_are_found() {
        let words = |count| format!("{}.\n", ["word"; 40][..count].join(" "));
        assert!(rules(&words(MOST_WORDS), false).is_empty());
        assert_eq!(rules(&words(MOST_WORDS + 1), false), ["36 words, at most 35"]);
        let items = format!("Some:\n\n- {}- {}", words(20), words(20));
        assert!(rules(&items, false).is_empty(), "items are not one sentence");
        let cell = format!("| a |\n|---|\n| {} |\n", words(40).trim());
        assert!(rules(&cell, false).is_empty(), "a cell is not prose");
    }

    #[test]
    fn each_phrase_is_found() {
        for (phrase, instead) in PHRASES {
            let sentence = match phrase.strip_prefix("^ ") {
                Some(rest) => rest.to_owned(),
                None => format!("It {phrase} it"),
            };
            let sentence = sentence.replace(" ,", ",");
            let quoted = format!("\"{phrase}\"");
            assert!(rules(&sentence, false).contains(&quoted), "{sentence}");
            assert!(rules(&format!("| a |\n|---|\n| {sentence} |\n"), false).contains(&quoted));
            assert!(!instead.is_empty());
        }
    }

    #[test]
    fn phrases_are_whole_words_and_no_code() {
        assert!(rules("A blessing is celestial. See `lest`.", false).is_empty());
        assert_eq!(rules("It waits, Lest it fails.", false), ["\"lest\""]);
    }

    #[test]
    fn short_first_lines_are_found() {
        assert_eq!(rules("Where.", true), ["first line of 1 words"]);
        assert_eq!(rules("Which lock.\n\nMore of it here.", true), ["first line of 2 words"]);
        assert!(rules("The node's name.", true).is_empty());
        assert!(rules("Where.", false).is_empty(), "only of items");
    }
}
