//! One horizontal bar per subject, or a few, with a whisker from the lowest to the highest round.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::plot::Failure;
use crate::plot::frame::{FONT, GRID, HEAD, axis_end, colour, page, text};
use crate::report::{Report, Row as Figure};
use crate::saved::number;

pub(super) fn throughput(report: &Report) -> Result<Option<String>, Failure> {
    let series = vec![("", report.values("pairs", "pairs_per_s", 5, 64))];
    let title = "Throughput: acquire + release, 5 nodes, 64 lockers, distinct keys";
    draw(report, title, "pairs per second; more is better", &series, Best::Highest)
}

pub(super) fn latency(report: &Report) -> Result<Option<String>, Failure> {
    let series = vec![
        ("p50", report.values("pairs", "p50_us", 5, 1)),
        ("p99", report.values("pairs", "p99_us", 5, 1)),
    ];
    let title = "Latency: acquire + release, 5 nodes, 1 locker";
    draw(report, title, "microseconds; less is better", &series, Best::Lowest)
}

pub(super) fn cpu(report: &Report) -> Result<Option<String>, Failure> {
    let series = vec![("", report.values("pairs", "cpu_us_per_pair", 5, 64))];
    let title = "Client CPU: acquire + release, 5 nodes, 64 lockers, distinct keys";
    draw(report, title, "microseconds of CPU per pair; less is better", &series, Best::Lowest)
}

#[derive(Clone, Copy)]
enum Best {
    Highest,
    Lowest,
}

/// The height of a bar, and of the gap between two subjects.
const BAR: u32 = 22;
const GAP: u32 = 12;

/// The series' names go to the bars if there are several; subjects are in the order of the first.
fn draw(
    report: &Report,
    title: &str,
    unit: &str,
    series: &[(&str, Vec<&Figure>)],
    best: Best,
) -> Result<Option<String>, Failure> {
    let Some((_, first)) = series.first().filter(|(_, first)| !first.is_empty()) else {
        return Ok(None);
    };
    let mut subjects: Vec<&Figure> = first.clone();
    subjects.sort_by(|a, b| match best {
        Best::Highest => b.median.total_cmp(&a.median),
        Best::Lowest => a.median.total_cmp(&b.median),
    });
    let highest = series.iter().flat_map(|(_, values)| values).map(|one| one.max);
    // Room for the number behind the longest bar.
    let end = axis_end(highest.fold(0.0, f64::max) * 1.12);

    let group = BAR * series.len() as u32 + GAP;
    let plotted = group * subjects.len() as u32;
    // Below the bars the axis, above them a line of room, and the head of the page.
    let height = HEAD + 10 + plotted + 50;
    page(report, title, height, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_right(28)
            .margin_top(10)
            .x_label_area_size(50)
            .y_label_area_size(150)
            .build_cartesian_2d(0.0..end, f64::from(plotted)..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .x_labels(8)
            .x_label_formatter(&|value| if *value == 0.0 { "0".to_owned() } else { number(*value) })
            .x_desc(unit)
            .label_style((FONT, 13))
            .draw()?;
        let plane = chart.plotting_area();
        for (row, subject) in subjects.iter().enumerate() {
            let top = f64::from(group) * row as f64 + f64::from(GAP) / 2.0;
            let middle = top + f64::from(BAR * series.len() as u32) / 2.0;
            let name = Text::new(subject.subject.clone(), (-10, 0), text(14, HPos::Right));
            plane.draw(&(EmptyElement::at((0.0, middle)) + name))?;
            for (bar, (label, values)) in series.iter().enumerate() {
                let Some(value) = values.iter().find(|one| one.subject == subject.subject) else {
                    continue;
                };
                let from = top + f64::from(BAR) * bar as f64;
                let (low, middle, high) =
                    (from + 2.0, from + f64::from(BAR) / 2.0, from + f64::from(BAR) - 2.0);
                let shade = if bar == 0 { 1.0 } else { 0.45 };
                let fill = colour(report, &subject.subject).mix(shade).filled();
                plane.draw(&Rectangle::new([(0.0, low), (value.median, high)], fill))?;
                for line in whisker(value, middle) {
                    plane.draw(&PathElement::new(line, BLACK.stroke_width(1)))?;
                }
                let shown = if label.is_empty() {
                    number(value.median)
                } else {
                    format!("{label} {}", number(value.median))
                };
                let right_of = value.max.max(value.median);
                let shown = Text::new(shown, (8, 0), text(13, HPos::Left));
                plane.draw(&(EmptyElement::at((right_of, middle)) + shown))?;
            }
        }
        Ok(())
    })
    .map(Some)
}

/// A line from the lowest to the highest round, with its two ends.
fn whisker(value: &Figure, y: f64) -> [Vec<(f64, f64)>; 3] {
    let end = |x| vec![(x, y - 4.0), (x, y + 4.0)];
    [vec![(value.min, y), (value.max, y)], end(value.min), end(value.max)]
}
