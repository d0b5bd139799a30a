//! Boxes and arrows as text. The texts say at their heads what a line may be.

use std::ops::RangeInclusive;

/// What a text describes.
#[derive(Debug, Default)]
pub(super) struct Diagram {
    /// What the picture is.
    pub(super) title: String,
    /// What it shows, for people who cannot see it.
    pub(super) description: String,
    pub(super) columns: Tracks,
    pub(super) rows: Tracks,
    pub(super) areas: Vec<Shape>,
    pub(super) boxes: Vec<Shape>,
    pub(super) arrows: Vec<Arrow>,
}

/// Columns or rows: their sizes, and the gap between two of them.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    pub(super) sizes: Vec<u32>,
    pub(super) gap: u32,
}

/// A box, or the ground behind some of them.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) name: String,
    pub(super) columns: RangeInclusive<usize>,
    pub(super) rows: RangeInclusive<usize>,
    pub(super) kind: String,
    pub(super) lines: Vec<String>,
}

/// An arrow between two boxes.
#[derive(Debug)]
pub(super) struct Arrow {
    pub(super) from: String,
    pub(super) to: String,
    /// The row or column that it lies in, where the boxes share several.
    pub(super) track: Option<usize>,
    pub(super) kind: String,
    pub(super) lines: Vec<String>,
}

/// What boxes and arrows may look like.
pub(super) const KINDS: [&str; 5] = ["plain", "good", "odd", "bad", "core"];

/// What an indented line belongs to.
enum Last {
    Nothing,
    Description,
    Area,
    Box,
    Arrow,
}

impl Diagram {
    /// Reads a text.
    ///
    /// # Errors
    /// The first line that is wrong, and why.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut diagram = Self::default();
        let mut last = Last::Nothing;
        for (number, line) in text.lines().enumerate() {
            let is_comment = line.starts_with('#');
            if is_comment || line.trim().is_empty() {
                continue;
            }
            let read = if line.starts_with(' ') {
                diagram.add(&last, line.trim())
            } else {
                diagram.statement(line).map(|it| last = it)
            };
            read.map_err(|why| format!("line {}: {why}: {line}", number + 1))?;
        }
        diagram.examine()?;
        Ok(diagram)
    }

    fn statement(&mut self, line: &str) -> Result<Last, String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        match (word, &words[..]) {
            ("title", _) => {
                rest.clone_into(&mut self.title);
                Ok(Last::Description)
            }
            ("columns", _) => Tracks::read(&words).map(|it| {
                self.columns = it;
                Last::Nothing
            }),
            ("rows", _) => Tracks::read(&words).map(|it| {
                self.rows = it;
                Last::Nothing
            }),
            ("area", ["columns", columns, "rows", rows]) => {
                self.areas.push(Shape::read("", columns, rows, "plain")?);
                Ok(Last::Area)
            }
            ("box", [name, "columns", columns, "rows", rows, kind]) => {
                self.boxes.push(Shape::read(name, columns, rows, kind)?);
                Ok(Last::Box)
            }
            ("arrow", [from, ">", to, kind]) => {
                self.arrows.push(Arrow::new(from, to, None, kind)?);
                Ok(Last::Arrow)
            }
            ("arrow", [from, ">", to, "in", track, kind]) => {
                let track = track.parse().map_err(|_| "no number behind `in`".to_owned())?;
                self.arrows.push(Arrow::new(from, to, Some(track), kind)?);
                Ok(Last::Arrow)
            }
            _ => Err("neither title, columns, rows, area, box nor arrow as they should be".into()),
        }
    }

    /// An indented line.
    fn add(&mut self, last: &Last, line: &str) -> Result<(), String> {
        let lines = match last {
            Last::Description => {
                let space = if self.description.is_empty() { "" } else { " " };
                self.description += &format!("{space}{line}");
                return Ok(());
            }
            Last::Area => self.areas.last_mut().map(|area| &mut area.lines),
            Last::Box => self.boxes.last_mut().map(|it| &mut it.lines),
            Last::Arrow => self.arrows.last_mut().map(|arrow| &mut arrow.lines),
            Last::Nothing => None,
        };
        lines.ok_or("an indented line that belongs to nothing")?.push(line.to_owned());
        Ok(())
    }

    /// Whether all that is named is there.
    fn examine(&self) -> Result<(), String> {
        if self.title.is_empty() || self.description.is_empty() {
            return Err("no title, or no description below it".to_owned());
        }
        for shape in self.areas.iter().chain(&self.boxes) {
            let is_within = |range: &RangeInclusive<usize>, tracks: &Tracks| {
                *range.start() >= 1 && *range.end() <= tracks.sizes.len() && !range.is_empty()
            };
            if !is_within(&shape.columns, &self.columns) || !is_within(&shape.rows, &self.rows) {
                return Err(format!("{:?} lies outside of the columns or rows", shape.name));
            }
        }
        Ok(())
    }

    /// The box with this name.
    pub(super) fn named(&self, name: &str) -> Result<&Shape, String> {
        let found = self.boxes.iter().find(|it| it.name == name);
        found.ok_or_else(|| format!("no box {name:?}"))
    }
}

impl Tracks {
    /// `SIZE SIZE … gap GAP`.
    fn read(words: &[&str]) -> Result<Self, String> {
        let number = |word: &&str| word.parse().map_err(|_| format!("no number: {word}"));
        let [sizes @ .., "gap", gap] = words else { return Err("no gap".to_owned()) };
        let sizes = sizes.iter().map(number).collect::<Result<Vec<u32>, String>>()?;
        Ok(Self { sizes, gap: number(gap)? })
    }

    /// Where a track begins, counted from 1.
    fn start(&self, track: usize) -> u32 {
        self.sizes[..track - 1].iter().map(|size| size + self.gap).sum()
    }

    /// From where to where some tracks reach.
    pub(super) fn span(&self, tracks: &RangeInclusive<usize>) -> [u32; 2] {
        [self.start(*tracks.start()), self.start(*tracks.end()) + self.sizes[tracks.end() - 1]]
    }

    /// How long all of them are.
    pub(super) fn length(&self) -> u32 {
        self.span(&(1..=self.sizes.len()))[1]
    }
}

impl Shape {
    fn read(name: &str, columns: &str, rows: &str, kind: &str) -> Result<Self, String> {
        let (columns, rows) = (range(columns)?, range(rows)?);
        Ok(Self { name: name.into(), columns, rows, kind: known(kind)?, lines: Vec::new() })
    }
}

impl Arrow {
    fn new(from: &str, to: &str, track: Option<usize>, kind: &str) -> Result<Self, String> {
        let (from, to, kind) = (from.into(), to.into(), known(kind)?);
        Ok(Self { from, to, track, kind, lines: Vec::new() })
    }
}

/// `2` or `1-3`.
fn range(text: &str) -> Result<RangeInclusive<usize>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) => Ok(first..=last),
        _ => Err(format!("neither a number nor two with a dash: {text}")),
    }
}

fn known(kind: &str) -> Result<String, String> {
    let is_known = KINDS.contains(&kind);
    is_known.then(|| kind.to_owned()).ok_or_else(|| format!("{kind:?} is none of {KINDS:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# Ours.\ntitle A\n  This is\n  shown.\ncolumns 10 20 gap 5\nrows 7 gap 0\n";

    #[test]
    fn a_text_is_read() {
        let text = format!(
            "{HEAD}box a columns 1-2 rows 1 good\n  one\n  two\narrow a > a in 1 bad\n  no\n"
        );
        let diagram = Diagram::read(&text).unwrap();
        assert_eq!(diagram.description, "This is shown.");
        assert_eq!(diagram.boxes[0].lines, ["one", "two"]);
        assert_eq!(diagram.columns.span(&diagram.boxes[0].columns), [0, 35]);
        assert_eq!(diagram.columns.span(&(2..=2)), [15, 35]);
        assert_eq!(
            (diagram.arrows[0].track, &diagram.arrows[0].lines[..]),
            (Some(1), &["no".to_owned()][..])
        );
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let wrong = |line: &str| Diagram::read(&format!("{HEAD}{line}\n")).unwrap_err();
        assert!(wrong("circle a").starts_with("line 7: neither title"), "{}", wrong("circle a"));
        assert!(wrong("box a columns 1 rows 1 lilac").contains("\"lilac\" is none of"));
        assert!(wrong("box a columns 1-3 rows 1 good").contains("outside"));
        assert!(wrong("box a columns 0 rows 1 good").contains("outside"));
        assert!(wrong("box a columns x rows 1 good").contains("neither a number"));
        assert!(wrong("  text").contains("belongs to nothing"));
        assert!(Diagram::read("title A\n").unwrap_err().contains("no description"));
    }
}
