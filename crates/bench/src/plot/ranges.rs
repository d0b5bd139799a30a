//! Hand-over: from the median to the 99th percentile, on a logarithmic axis, for there are decades
//! between those who are told that a lock is free and those who ask from time to time.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::plot::Failure;
use crate::plot::frame::{FONT, GRID, HEAD, colour, page, text};
use crate::report::{Report, Row as Figure};
use crate::saved::number;

const ROW: u32 = 28;
const HEADING: u32 = 26;

/// A line of the plot: a heading, or a subject with its two percentiles.
enum Row<'a> {
    Heading(String),
    Range { p50: &'a Figure, p99: &'a Figure },
}

pub(super) fn handover(report: &Report) -> Result<Option<String>, Failure> {
    let rows = rows(report);
    let ends = rows.iter().filter_map(|row| match row {
        Row::Range { p50, p99 } => Some((p50.min, p99.max)),
        Row::Heading(_) => None,
    });
    let Some((low, high)) = ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) else {
        return Ok(None);
    };
    // Whole decades, and room for the number on the right.
    let from = 10_f64.powf(low.max(1.0).log10().floor());
    let to = 10_f64.powf((high.max(1.0) * 1.6).log10().ceil());

    let heights = rows.iter().map(|row| match row {
        Row::Heading(_) => HEADING,
        Row::Range { .. } => ROW,
    });
    let plotted: u32 = heights.sum();
    let title = "Hand-over between processes: release called → acquired elsewhere, 5 ms holds";
    page(report, title, HEAD + 10 + plotted + 50, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_right(28)
            .margin_top(10)
            .x_label_area_size(50)
            .y_label_area_size(150)
            .build_cartesian_2d((from..to).log_scale(), f64::from(plotted)..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .x_label_formatter(&|value| number(*value))
            .x_desc("microseconds, p50 (filled) to p99 (open); logarithmic; less is better")
            .label_style((FONT, 13))
            .draw()?;
        let plane = chart.plotting_area();
        let mut top = 0.0;
        for row in &rows {
            match row {
                Row::Heading(words) => {
                    let y = top + f64::from(HEADING) / 2.0;
                    let words = Text::new(words.clone(), (-140, 0), text(14, HPos::Left));
                    plane.draw(&(EmptyElement::at((from, y)) + words))?;
                    top += f64::from(HEADING);
                }
                Row::Range { p50, p99 } => {
                    let y = top + f64::from(ROW) / 2.0;
                    let colour = colour(report, &p50.subject);
                    let name = Text::new(p50.subject.clone(), (-10, 0), text(14, HPos::Right));
                    plane.draw(&(EmptyElement::at((from, y)) + name))?;
                    let line = vec![(p50.median, y), (p99.median, y)];
                    plane.draw(&PathElement::new(line, colour.stroke_width(3)))?;
                    plane.draw(&Circle::new((p99.median, y), 5, WHITE.filled()))?;
                    plane.draw(&Circle::new((p99.median, y), 5, colour.stroke_width(2)))?;
                    plane.draw(&Circle::new((p50.median, y), 6, colour.filled()))?;
                    let shown = format!("{} – {}", number(p50.median), number(p99.median));
                    let shown = Text::new(shown, (12, 0), text(13, HPos::Left));
                    plane.draw(&(EmptyElement::at((p99.median, y)) + shown))?;
                    top += f64::from(ROW);
                }
            }
        }
        Ok(())
    })
    .map(Some)
}

/// Grouped by nodes and processes, both ascending; subjects in the order of the report.
fn rows(report: &Report) -> Vec<Row<'_>> {
    let all = report.results.iter().filter(|one| one.workload == "handover");
    let mut groups: Vec<_> = all.map(|one| (one.nodes, one.concurrency)).collect();
    groups.sort_unstable();
    groups.dedup();
    let mut rows = Vec::new();
    for (nodes, processes) in groups {
        let p99s = report.values("handover", "p99_us", nodes, processes);
        let mut ranges = Vec::new();
        for p50 in report.values("handover", "p50_us", nodes, processes) {
            let p99 = p99s.iter().find(|one| one.subject == p50.subject);
            ranges.extend(p99.map(|p99| Row::Range { p50, p99 }));
        }
        if !ranges.is_empty() {
            let plural = if nodes == 1 { "" } else { "s" };
            rows.push(Row::Heading(format!("{nodes} node{plural}, {processes} processes")));
            rows.extend(ranges);
        }
    }
    rows
}
