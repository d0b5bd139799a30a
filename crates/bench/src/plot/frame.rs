//! What all plots have in common: the page, the title, the small print, the colours.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::plot::Failure;
use crate::report::Report;

pub(super) const WIDTH: u32 = 860;

/// The height of the title with the small print below it.
pub(super) const HEAD: u32 = 74;

pub(super) const FONT: &str = "sans-serif";

const SMALL: RGBColor = RGBColor(90, 90, 90);
pub(super) const GRID: RGBColor = RGBColor(225, 225, 225);

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws a page of `height` with its head, gives what is below the head to `draw`, and returns
/// the SVG.
pub(super) fn page(
    report: &Report,
    title: &str,
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<(), Failure>,
) -> Result<String, Failure> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        area.draw(&Text::new(title.to_owned(), (16, 12), (FONT, 19).into_font()))?;
        let machine = &report.machine;
        let place = format!(
            "{}, {} cores shared by servers and clients · {} · {}",
            machine.cpu,
            machine.cores,
            machine.os,
            report.servers_in_words()
        );
        let when = format!(
            "{} · {} · median of {} rounds",
            report.date,
            report.commit_in_words(),
            report.rounds
        );
        for (line, y) in [(place, 38), (when, 53)] {
            area.draw(&Text::new(line, (16, y), (FONT, 12).into_font().color(&SMALL)))?;
        }
        let (_, body) = area.split_vertically(HEAD);
        draw(&body)?;
        area.present()?;
    }
    Ok(svg)
}

/// A text style whose anchor is the middle of the given side.
pub(super) fn text(size: u32, side: HPos) -> TextStyle<'static> {
    (FONT, size).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center))
}

/// A subject's colour, the same in all plots of a report: quorlock stands out, raw sockets are the
/// measure, the others follow in the order in which they come.
pub(super) fn colour(report: &Report, subject: &str) -> RGBColor {
    // Told apart also by those who do not see all colours (Okabe and Ito).
    const OTHERS: [RGBColor; 7] = [
        RGBColor(213, 94, 0),
        RGBColor(86, 180, 233),
        RGBColor(230, 159, 0),
        RGBColor(204, 121, 167),
        RGBColor(0, 114, 178),
        RGBColor(189, 177, 38),
        RGBColor(100, 60, 30),
    ];
    const FIXED: [(&str, RGBColor); 2] =
        [("quorlock", RGBColor(0, 128, 96)), ("raw", RGBColor(120, 120, 120))];
    if let Some((_, colour)) = FIXED.iter().find(|(name, _)| *name == subject) {
        return *colour;
    }
    let mut others: Vec<&str> = Vec::new();
    for row in &report.results {
        let name = row.subject.as_str();
        if !others.contains(&name) && !FIXED.iter().any(|(fixed, _)| *fixed == name) {
            others.push(name);
        }
    }
    let index = others.iter().position(|name| *name == subject).unwrap_or(0);
    OTHERS[index % OTHERS.len()]
}

/// A round number not below `value` that an axis can end at.
pub(super) fn axis_end(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(1e-9).log10().floor());
    let steps = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    let fits = steps.iter().map(|step| step * power).find(|end| *end >= value);
    fits.unwrap_or(10.0 * power)
}
