//! How throughput grows with the number of lockers, one small plot per number of nodes. Both axes are
//! logarithmic, for there are decades between the subjects.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::plot::Failure;
use crate::plot::frame::{FONT, GRID, HEAD, WIDTH, colour, page, text};
use crate::report::Report;
use crate::saved::number;

const NODES: [usize; 4] = [1, 3, 5, 7];
const LOCKERS: [u64; 4] = [1, 8, 64, 512];

const PANEL: u32 = 280;
const LEGEND_ROW: u32 = 22;
const LEGEND_COLUMN: u32 = 165;

pub(super) fn growth(report: &Report) -> Result<Option<String>, Failure> {
    let values = |nodes, lockers| report.values("pairs", "pairs_per_s", nodes, lockers);
    let complete = NODES.iter().all(|nodes| LOCKERS.iter().all(|c| !values(*nodes, *c).is_empty()));
    if !complete {
        return Ok(None);
    }
    let mut subjects: Vec<&str> = Vec::new();
    let (mut lowest, mut highest) = (f64::INFINITY, 0.0_f64);
    for nodes in NODES {
        for one in LOCKERS.iter().flat_map(|lockers| values(nodes, *lockers)) {
            (lowest, highest) = (lowest.min(one.median), highest.max(one.median));
            if !subjects.contains(&one.subject.as_str()) {
                subjects.push(&one.subject);
            }
        }
    }
    // Whole decades.
    let from = 10_f64.powf(lowest.max(1.0).log10().floor());
    let to = 10_f64.powf(highest.max(10.0).log10().ceil());

    let columns = WIDTH / LEGEND_COLUMN;
    let legend = LEGEND_ROW * (subjects.len() as u32).div_ceil(columns) + 6;
    let title = "Throughput over the number of lockers: acquire + release, distinct keys";
    page(report, title, HEAD + legend + 2 * PANEL, |area| {
        let (head, body) = area.split_vertically(legend);
        for (index, subject) in subjects.iter().enumerate() {
            let x = 16 + (index as u32 % columns * LEGEND_COLUMN) as i32;
            let y = 8 + (index as u32 / columns * LEGEND_ROW) as i32;
            let line = vec![(x, y), (x + 22, y)];
            head.draw(&PathElement::new(line, colour(report, subject).stroke_width(3)))?;
            head.draw(&Text::new((*subject).to_owned(), (x + 28, y), text(13, HPos::Left)))?;
        }
        for (panel, nodes) in body.split_evenly((2, 2)).iter().zip(NODES) {
            let plural = if nodes == 1 { "" } else { "s" };
            let last = LOCKERS.len() as f64 - 1.0;
            let mut chart = ChartBuilder::on(panel)
                .caption(format!("{nodes} node{plural}"), (FONT, 14))
                .margin_left(8)
                .margin_right(20)
                .x_label_area_size(44)
                .y_label_area_size(72)
                .build_cartesian_2d(-0.1..last + 0.1, (from..to).log_scale())?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .light_line_style(WHITE)
                .bold_line_style(GRID)
                .x_labels(LOCKERS.len())
                .x_label_formatter(&|at| lockers_at(*at))
                .y_labels(6)
                .y_label_formatter(&|value| number(*value))
                .x_desc("lockers")
                .y_desc("pairs/s, logarithmic")
                .label_style((FONT, 12))
                .draw()?;
            for subject in &subjects {
                let mut points = Vec::new();
                for (at, lockers) in LOCKERS.iter().enumerate() {
                    let found = values(nodes, *lockers);
                    let one = found.iter().find(|one| one.subject == *subject);
                    points.extend(one.map(|one| (at as f64, one.median)));
                }
                let colour = colour(report, subject);
                for point in &points {
                    chart.draw_series([Circle::new(*point, 3, colour.filled())])?;
                }
                chart.draw_series([PathElement::new(points, colour.stroke_width(2))])?;
            }
        }
        Ok(())
    })
    .map(Some)
}

/// The axis has the numbers of lockers at equal distances.
fn lockers_at(at: f64) -> String {
    let index = at.round();
    let whole = (at - index).abs() < 1e-6 && index >= 0.0;
    LOCKERS.get(index as usize).filter(|_| whole).map(u64::to_string).unwrap_or_default()
}
