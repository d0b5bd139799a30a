//! Makes a moving picture of a recorded terminal session. Where pictures do not move, it shows the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::num::NonZeroU16;
use std::time::Duration;

use vt100::{Cell, Color, Parser, Screen};

use super::recording::TerminalSession;
use super::svg::{MONO, escaped, head};

/// How often the screen is looked at.
const FRAME: Duration = Duration::from_millis(500);

/// What is written within this time of each other belongs together.
const TOGETHER: Duration = Duration::from_millis(25);

/// How long the end stands before everything begins again.
const REST: Duration = Duration::from_secs(8);

/// How many rows are seen at a time.
const ROWS: u16 = 32;

/// A character's size in pixels, the ground around all of them, and the bar above.
const CELL: [f64; 2] = [8.43, 19.0];
const MARGIN: f64 = 20.0;
const BAR: f64 = 38.0;

/// What is seen, for people who cannot see it.
const DESCRIPTION: &str = "A recorded terminal session. Twelve workers want one lock on five servers. \
                           Servers are frozen, killed and started again. No two workers held the \
                           lock at the same time, and no update was lost.";

/// Some text on the screen that looks alike and has no gap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    row: u16,
    column: u16,
    class: &'static str,
    text: String,
}

/// The screen at a time.
struct Frame {
    at: Duration,
    runs: BTreeSet<Run>,
    /// How many rows have left the picture at its top.
    gone: u16,
}

/// The picture of a recording.
///
/// # Errors
/// What is wrong with the recording.
pub(super) fn svg(text: &str) -> Result<String, String> {
    let recording = TerminalSession::read(text)?;
    let frames = frames(&recording)?;
    let last = frames.last().ok_or("an empty recording")?;
    let period = last.at + REST;
    let mut styles = styles(period) + &scrolling(&frames, period);
    let mut screen = String::new();
    for ((from, to), runs) in lives(&frames) {
        let class = match (from, to) {
            (0, None) => String::new(),
            _ => {
                let (name, rule) = life(&frames, from, to, period);
                styles += &rule;
                format!(" class=\"{} {name}\"", if to.is_none() { "last" } else { "past" })
            }
        };
        // Writing to a string does not fail, here and below.
        let _ = writeln!(screen, "<g{class}>");
        runs.into_iter().for_each(|run| draw(&mut screen, run));
        screen.push_str("</g>\n");
    }
    let end = percent(last.at, period);
    let _ = writeln!(styles, "@keyframes bar{{0%{{transform:scaleX(0)}}{end}{{transform:none}}}}");
    // Behind all that it has to win against.
    styles += "@media (prefers-reduced-motion: reduce){.past,.last,.screen,.bar{animation:none}}\n";
    let width = f64::from(recording.size[0]) * CELL[0] + 2.0 * MARGIN;
    let height = BAR + f64::from(ROWS) * CELL[1] + MARGIN;
    let size = [width.ceil() as u32, height.ceil() as u32];
    let mut svg = head(size, &recording.title, DESCRIPTION, &styles);
    draw_bar(&mut svg, size[0], &recording.title);
    let _ = writeln!(
        svg,
        "<svg y=\"{}\" width=\"{}\" height=\"{}\">\n\
         <g class=\"screen\" transform=\"translate(0 -{})\">\n{screen}</g>\n</svg>\n</svg>",
        BAR + MARGIN / 2.0,
        size[0],
        f64::from(ROWS) * CELL[1],
        f64::from(last.gone) * CELL[1],
    );
    Ok(svg)
}

/// The bar above the screen: what was called, and how far it is.
fn draw_bar(svg: &mut String, width: u32, title: &str) {
    let _ = writeln!(svg, "<path class=\"rule\" d=\"M1 {BAR}H{}\"/>", width - 1);
    for x in [22, 40, 58] {
        let _ = writeln!(svg, "<circle class=\"shade\" cx=\"{x}\" cy=\"19\" r=\"5.5\"/>");
    }
    let _ = writeln!(
        svg,
        "<text class=\"dim\" x=\"{}\" y=\"24\" text-anchor=\"middle\">$ {}</text>\n\
         <svg x=\"1\" y=\"{}\" width=\"{}\" height=\"2\">\
         <rect class=\"bar blue\" width=\"100%\" height=\"2\"/></svg>",
        width / 2,
        escaped(title),
        BAR - 1.0,
        width - 2,
    );
}

fn styles(period: Duration) -> String {
    let seconds = period.as_secs_f64();
    format!(
        "text{{font:14px {MONO}}}\n.bold{{font-weight:700}}\n.rule{{fill:none}}\n\
         .past{{opacity:0}}\n.past,.last{{animation:{seconds:.1}s step-end infinite}}\n\
         .screen{{animation:screen {seconds:.1}s step-end infinite}}\n\
         .bar{{animation:bar {seconds:.1}s linear infinite}}\n"
    )
}

/// The screen again and again, and at the end.
fn frames(recording: &TerminalSession) -> Result<Vec<Frame>, String> {
    let [columns, rows] = recording.size.map(NonZeroU16::new);
    let (Some(columns), Some(rows)) = (columns, rows) else {
        return Err("a terminal without room".to_owned());
    };
    let mut parser = Parser::new(rows, columns, 0);
    let mut frames: Vec<Frame> = Vec::new();
    let mut due = Duration::ZERO;
    for (place, (at, said)) in recording.pieces.iter().enumerate() {
        parser.process(said.as_bytes());
        let next = recording.pieces.get(place + 1);
        let is_taken = next.is_none_or(|(next, _)| {
            let pause = next.saturating_sub(*at);
            pause >= FRAME || (pause >= TOGETHER && *at >= due)
        });
        if !is_taken {
            continue;
        }
        let screen = parser.screen();
        let runs = runs(screen);
        let used = runs.last().map_or(0, |run| run.row + 1);
        let before = frames.last().map_or(0, |frame| frame.gone);
        // A terminal does not scroll back when rows at its end become empty.
        let gone = before.max(used.saturating_sub(ROWS));
        frames.push(Frame { at: *at, runs, gone });
        due = *at + FRAME;
    }
    Ok(frames)
}

/// What stands on the screen.
fn runs(screen: &Screen) -> BTreeSet<Run> {
    let (rows, columns) = screen.size();
    let mut runs = BTreeSet::new();
    for row in 0..rows.get() {
        let mut run: Option<Run> = None;
        for column in 0..columns.get() {
            let Some(cell) = screen.cell(row, column) else { continue };
            let class = class(cell);
            let is_gap = |column| {
                screen.cell(row, column).is_none_or(|cell| cell.contents().trim().is_empty())
            };
            // Two gaps are a border between columns: what is behind it stands at a place of its own.
            let ends = is_gap(column) && is_gap(column + 1);
            if ends || run.as_ref().is_some_and(|run| run.class != class && !is_gap(column)) {
                runs.extend(run.take());
            }
            if ends || (run.is_none() && is_gap(column)) {
                continue;
            }
            let new = || Run { row, column, class, text: String::new() };
            let text = if cell.has_contents() { cell.contents() } else { " " };
            run.get_or_insert_with(new).text.push_str(text);
        }
        runs.extend(run);
    }
    runs
}

/// How a character looks.
fn class(cell: &Cell) -> &'static str {
    match (cell.fgcolor(), cell.bold(), cell.dim()) {
        (Color::Idx(1), ..) => "red",
        (Color::Idx(2), ..) => "green",
        (Color::Idx(3), ..) => "yellow",
        (_, true, _) => "bold",
        (_, _, true) => "dim",
        _ => "",
    }
}

/// From which frame to before which frame something stands there; no end: to the last one.
type Life = (usize, Option<usize>);

/// What stands on the screen, by when it does.
fn lives(frames: &[Frame]) -> BTreeMap<Life, Vec<&Run>> {
    let mut lives: BTreeMap<Life, Vec<&Run>> = BTreeMap::new();
    let mut since: BTreeMap<&Run, usize> = BTreeMap::new();
    for (place, frame) in frames.iter().enumerate() {
        since.retain(|run, from| {
            let stays = frame.runs.contains(run);
            if !stays {
                lives.entry((*from, Some(place))).or_default().push(run);
            }
            stays
        });
        for run in &frame.runs {
            since.entry(run).or_insert(place);
        }
    }
    for (run, from) in since {
        lives.entry((from, None)).or_default().push(run);
    }
    lives
}

/// The class of what stands there for a time, and the rules for it.
fn life(frames: &[Frame], from: usize, to: Option<usize>, period: Duration) -> (String, String) {
    let end = to.map_or("z".to_owned(), |to| to.to_string());
    let name = format!("f{from}-{end}");
    let start = match from {
        0 => "0%{opacity:1}".to_owned(),
        _ => format!("0%{{opacity:0}}{}{{opacity:1}}", percent(frames[from].at, period)),
    };
    let end =
        to.map_or(String::new(), |to| format!("{}{{opacity:0}}", percent(frames[to].at, period)));
    let rule = format!(".{name}{{animation-name:{name}}}@keyframes {name}{{{start}{end}}}\n");
    (name, rule)
}

/// Moves the screen up whenever a row has left it.
fn scrolling(frames: &[Frame], period: Duration) -> String {
    let mut rule = String::new();
    let mut before = None;
    for Frame { at, gone, .. } in frames {
        if before.replace(gone) != Some(gone) {
            let (at, up) = (percent(*at, period), f64::from(*gone) * CELL[1]);
            let _ = write!(rule, "{at}{{transform:translateY(-{up}px)}}");
        }
    }
    format!("@keyframes screen{{{rule}}}\n")
}

fn percent(at: Duration, period: Duration) -> String {
    format!("{:.2}%", 100.0 * at.as_secs_f64() / period.as_secs_f64())
}

fn draw(svg: &mut String, run: &Run) {
    let x = MARGIN + f64::from(run.column) * CELL[0];
    let y = f64::from(run.row + 1) * CELL[1] - 5.0;
    let class = match run.class {
        "" => String::new(),
        class => format!(" class=\"{class}\""),
    };
    let _ = writeln!(svg, "<text{class} x=\"{x:.1}\" y=\"{y}\">{}</text>", escaped(&run.text));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(pieces: &[(u64, &str)]) -> TerminalSession {
        let piece = |(at, said): &(u64, &str)| (Duration::from_millis(*at), (*said).to_owned());
        let pieces = pieces.iter().map(piece).collect();
        TerminalSession { title: "a & b".to_owned(), size: [20, 60], pieces }
    }

    fn texts(frame: &Frame) -> Vec<(u16, u16, &str, &str)> {
        frame.runs.iter().map(|it| (it.row, it.column, it.class, it.text.as_str())).collect()
    }

    #[test]
    fn a_frame_has_what_stands_on_the_screen() {
        let said = "a b   \u{1b}[32mgreen\u{1b}[0m red\r\n\u{1b}[1mold\u{1b}[0m\r\u{1b}[Knew";
        let frames = frames(&recording(&[(0, said)])).unwrap();
        let expected =
            [(0, 0, "", "a b"), (0, 6, "green", "green "), (0, 12, "", "red"), (1, 0, "", "new")];
        assert_eq!(texts(&frames[0]), expected);
    }

    #[test]
    fn a_frame_is_taken_twice_a_second_and_not_in_the_middle_of_a_change() {
        let pieces =
            [(0, "a"), (100, "b"), (600, "\r\u{1b}[K"), (610, "c"), (800, "d"), (900, "e")];
        let frames = frames(&recording(&pieces)).unwrap();
        let seen: Vec<_> = frames.iter().map(|it| (it.at.as_millis(), texts(it)[0].3)).collect();
        assert_eq!(seen, [(0, "a"), (100, "ab"), (610, "c"), (900, "cde")]);
    }

    #[test]
    fn what_leaves_the_screen_does_not_come_back() {
        let lines = "x\r\n".repeat(40);
        let pieces = [(0, lines.as_str()), (1000, "\u{1b}[20A\u{1b}[J"), (2000, "y")];
        let frames = frames(&recording(&pieces)).unwrap();
        assert_eq!(frames.iter().map(|it| it.gone).collect::<Vec<_>>(), [8, 8, 8]);
    }

    #[test]
    fn the_end_is_seen_where_nothing_moves() {
        let pieces = [(0, "stays\r\n"), (1000, "goes"), (2000, "\r\u{1b}[Kcomes")];
        let svg = svg(&recording(&pieces).to_text()).unwrap();
        let group = |class: &str, text: &str| {
            let text = svg.find(&format!(">{text}</text>")).unwrap();
            svg[..text].rfind("<g").is_some_and(|at| svg[at..].starts_with(class))
        };
        assert!(group("<g>", "stays"), "{svg}");
        assert!(group("<g class=\"past f1-2\">", "goes"), "{svg}");
        assert!(group("<g class=\"last f2-z\">", "comes"), "{svg}");
        assert!(svg.contains("@keyframes f1-2{0%{opacity:0}10.00%{opacity:1}20.00%{opacity:0}}"));
        assert!(svg.contains("$ a &amp; b<"));
    }
}
