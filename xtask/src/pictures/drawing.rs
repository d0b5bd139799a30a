//! Draws boxes and arrows.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::diagram::{Arrow, Diagram, Shape, Tracks};
use super::svg::{MONO, SANS, escaped, head};

/// The ground around everything.
const MARGIN: u32 = 24;

/// How far an area reaches beyond its boxes, and how much room the words above them take.
const PADDING: u32 = 16;
const CAPTION: u32 = 26;

/// From one line of text to the next.
const LINE: f64 = 18.0;

/// How far the first line's middle is from the baseline.
const MIDDLE: f64 = 4.5;

/// Between an arrow and the boxes that it joins, and the length of its tip.
const SPACE: f64 = 4.0;
const TIP: f64 = 9.0;

/// How wide a letter is on average, in pixels: of a heading, of other text, and of code.
const WIDTHS: [f64; 3] = [7.6, 6.4, 7.3];

/// The picture that a text describes.
///
/// # Errors
/// What is wrong with the text, for people.
pub(super) fn svg(text: &str) -> Result<String, String> {
    let diagram = Diagram::read(text)?;
    let has_areas = !diagram.areas.is_empty();
    let [side, top] = if has_areas { [PADDING, CAPTION] } else { [0, 0] };
    let width = diagram.columns.length() + 2 * (MARGIN + side);
    let height = diagram.rows.length() + 2 * MARGIN + side + top;
    let mut svg = head([width, height], &diagram.title, &diagram.description, &styles());
    let _ = writeln!(svg, "<g transform=\"translate({} {})\">", MARGIN + side, MARGIN + top);
    diagram.areas.iter().for_each(|area| draw_area(&mut svg, &diagram, area));
    for arrow in &diagram.arrows {
        draw_arrow(&mut svg, &diagram, arrow)?;
    }
    for shape in &diagram.boxes {
        draw_box(&mut svg, &diagram, shape)?;
    }
    svg.push_str("</g>\n</svg>\n");
    Ok(svg)
}

fn styles() -> String {
    format!(
        "text{{font:13px {SANS}}}\n.heading,.step{{font-weight:600}}\n.heading{{font-size:14px}}\n\
         .code{{font-family:{MONO};font-size:12px}}\n.middle{{text-anchor:middle}}\n\
         rect{{stroke-width:1}}\n.arrow{{fill:none;stroke-width:1.75}}\n\
         .line-bad{{stroke-dasharray:5 4}}\n"
    )
}

/// Left, top, right and bottom.
fn edges(diagram: &Diagram, shape: &Shape) -> [f64; 4] {
    let [left, right] = diagram.columns.span(&shape.columns);
    let [top, bottom] = diagram.rows.span(&shape.rows);
    [left, top, right, bottom].map(f64::from)
}

fn draw_area(svg: &mut String, diagram: &Diagram, area: &Shape) {
    let [left, top, right, bottom] = edges(diagram, area);
    let (side, above) = (f64::from(PADDING), f64::from(CAPTION));
    let (x, y) = (left - side, top - above);
    // Writing to a string does not fail, here and below.
    let _ = writeln!(
        svg,
        "<rect class=\"band\" x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"8\"/>",
        right - left + 2.0 * side,
        bottom - top + above + side
    );
    for line in &area.lines {
        text(svg, "dim", [left, y + 18.0], line);
    }
}

fn draw_box(svg: &mut String, diagram: &Diagram, shape: &Shape) -> Result<(), String> {
    let [left, top, right, bottom] = edges(diagram, shape);
    let (width, height) = (right - left, bottom - top);
    let _ = writeln!(
        svg,
        "<rect class=\"box-{}\" x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" \
         rx=\"6\"/>",
        shape.kind
    );
    let middle = (left + right) / 2.0;
    let first = (top + bottom) / 2.0 - (shape.lines.len() as f64 - 1.0) * LINE / 2.0 + MIDDLE;
    for (place, line) in shape.lines.iter().enumerate() {
        let is_heading = place == 0;
        if length(line, is_heading) > width - 8.0 {
            return Err(format!("too long for its box: {line}"));
        }
        let class = if is_heading { "middle heading" } else { "middle dim" };
        text(svg, class, [middle, first + place as f64 * LINE], line);
    }
    Ok(())
}

fn draw_arrow(svg: &mut String, diagram: &Diagram, arrow: &Arrow) -> Result<(), String> {
    let (from, to) = (diagram.named(&arrow.from)?, diagram.named(&arrow.to)?);
    let columns = shared(&from.columns, &to.columns);
    let rows = shared(&from.rows, &to.rows);
    let (from, to) = (edges(diagram, from), edges(diagram, to));
    if let Some(columns) = columns {
        let x = middle(&diagram.columns, &columns, arrow.track)?;
        // Up or down.
        let [start, end] = if from[3] < to[1] { [from[3], to[1]] } else { [from[1], to[3]] };
        draw_line(svg, arrow, [start, end], |along, across| [x + across, along]);
        let first = (start + end) / 2.0 - (arrow.lines.len() as f64 - 1.0) * LINE / 2.0 + MIDDLE;
        for (place, line) in arrow.lines.iter().enumerate() {
            text(svg, &label(arrow), [x + 10.0, first + place as f64 * LINE], line);
        }
        return Ok(());
    }
    let Some(rows) = rows else {
        return Err(format!("{} and {} share no row and no column", arrow.from, arrow.to));
    };
    let y = middle(&diagram.rows, &rows, arrow.track)?;
    let [start, end] = if from[2] < to[0] { [from[2], to[0]] } else { [from[0], to[2]] };
    draw_line(svg, arrow, [start, end], |along, across| [along, y + across]);
    // The first line stands above the arrow, the others below it.
    for (place, line) in arrow.lines.iter().enumerate() {
        if length(line, false) > (end - start).abs() {
            return Err(format!("too long for its arrow: {line}"));
        }
        let y = if place == 0 { y - 8.0 } else { y + place as f64 * LINE };
        text(svg, &format!("middle {}", label(arrow)), [(start + end) / 2.0, y], line);
    }
    Ok(())
}

/// The class of the words beside an arrow.
fn label(arrow: &Arrow) -> String {
    let class = match arrow.kind.as_str() {
        "good" => "green",
        "odd" => "yellow",
        "bad" => "red",
        _ => "",
    };
    class.to_owned()
}

/// A line with a tip; `place` makes a point of how far along and how far across it is.
fn draw_line(
    svg: &mut String,
    arrow: &Arrow,
    [start, end]: [f64; 2],
    place: impl Fn(f64, f64) -> [f64; 2],
) {
    let forth = (end - start).signum();
    let (start, end) = (start + forth * SPACE, end - forth * SPACE);
    let back = end - forth * TIP;
    let kind = &arrow.kind;
    let [[x1, y1], [x2, y2]] = [place(start, 0.0), place(back, 0.0)];
    let _ = writeln!(svg, "<path class=\"arrow line-{kind}\" d=\"M{x1} {y1}L{x2} {y2}\"/>");
    let [[x1, y1], [x2, y2], [x3, y3]] = [place(end, 0.0), place(back, -4.5), place(back, 4.5)];
    let _ = writeln!(svg, "<path class=\"tip-{kind}\" d=\"M{x1} {y1}L{x2} {y2}L{x3} {y3}Z\"/>");
}

/// The columns or rows that two boxes have in common.
fn shared(
    one: &RangeInclusive<usize>,
    other: &RangeInclusive<usize>,
) -> Option<RangeInclusive<usize>> {
    let both = *one.start().max(other.start())..=*one.end().min(other.end());
    (!both.is_empty()).then_some(both)
}

/// Where an arrow lies: in the middle of what its boxes share, or of the one track that it names.
fn middle(
    tracks: &Tracks,
    shared: &RangeInclusive<usize>,
    wanted: Option<usize>,
) -> Result<f64, String> {
    let wanted = wanted.map_or(shared.clone(), |track| track..=track);
    if !(shared.contains(wanted.start()) && shared.contains(wanted.end())) {
        return Err(format!("an arrow in {wanted:?}, but its boxes share {shared:?}"));
    }
    let [start, end] = tracks.span(&wanted);
    Ok(f64::from(start + end) / 2.0)
}

/// About how long a line is.
fn length(line: &str, is_heading: bool) -> f64 {
    let usual = if is_heading { WIDTHS[0] } else { WIDTHS[1] };
    let pieces = line.split('`').enumerate();
    let lengths = pieces.map(|(place, piece)| {
        let width = if place % 2 == 0 { usual } else { WIDTHS[2] };
        piece.chars().count() as f64 * width
    });
    lengths.sum()
}

/// A line of text, with code between backticks. A number at its beginning is that of a step.
fn text(svg: &mut String, class: &str, [x, y]: [f64; 2], line: &str) {
    let _ = write!(svg, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">");
    let is_step = line.starts_with(|first: char| first.is_ascii_digit()) && !class.contains("dim");
    let (step, rest) = match line.split_once(' ') {
        Some((step, rest)) if is_step => (step, rest),
        _ => ("", line),
    };
    if !step.is_empty() {
        let _ = write!(svg, "<tspan class=\"step blue\">{}</tspan> ", escaped(step));
    }
    for (place, piece) in rest.split('`').enumerate().filter(|(_, piece)| !piece.is_empty()) {
        let piece = escaped(piece);
        let _ = match place % 2 {
            0 => write!(svg, "{piece}"),
            _ => write!(svg, "<tspan class=\"code\">{piece}</tspan>"),
        };
    }
    svg.push_str("</text>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "title A\n  B.\ncolumns 100 100 gap 50\nrows 40 40 gap 30\n\
                        box a columns 1 rows 1 good\n  A < B\nbox b columns 2 rows 1 bad\n  b\n\
                        box c columns 1 rows 2 plain\n  c\n";

    fn drawn(line: &str) -> Result<String, String> {
        svg(&format!("{HEAD}{line}\n"))
    }

    #[test]
    fn arrows_join_what_lies_beside_or_below() {
        let beside = drawn("arrow a > b good\n  1 `x`").unwrap();
        assert!(beside.contains("d=\"M104 20L137 20\""), "{beside}");
        assert!(beside.contains("<tspan class=\"step blue\">1</tspan> <tspan class=\"code\">x</"));
        assert!(beside.contains("A &lt; B"));
        let back = drawn("arrow b > a good").unwrap();
        assert!(back.contains("d=\"M146 20L113 20\""), "{back}");
        let below = drawn("arrow a > c good").unwrap();
        assert!(below.contains("d=\"M50 44L50 57\""), "{below}");
        assert!(drawn("arrow b > c good").unwrap_err().contains("share no row"));
        assert!(drawn("arrow b > d good").unwrap_err().contains("no box"));
        assert!(drawn("arrow a > b in 2 good").unwrap_err().contains("boxes share"));
    }

    #[test]
    fn what_would_stick_out_is_refused() {
        assert!(drawn("arrow a > b good\n  far too long a text").unwrap_err().contains("arrow"));
        let long = "box d columns 2 rows 2 good\n  a very long heading indeed";
        assert!(drawn(long).unwrap_err().contains("box"));
    }
}
