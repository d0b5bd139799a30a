//! Plots of a saved report, as SVG: bars, ranges and curves, each with what it was measured on.
//!
//! The same report gives the same bytes. Text is text, the background is white, so that a page in
//! dark mode shows the same picture.

mod bars;
mod curves;
mod frame;
mod ranges;

use std::fs;
use std::path::Path;

use crate::report::Report;
use crate::saved;

/// What drawing says when it fails; into memory it does not.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A plot that could be drawn from any report that has its data.
#[derive(Debug)]
pub(crate) struct Plot {
    /// The name of the file, without a folder.
    pub(crate) file: &'static str,
    /// What it shows, for those who do not see it.
    pub(crate) shows: &'static str,
    /// Why a report may lack the data.
    needs: &'static str,
    draw: fn(&Report) -> Result<Option<String>, Failure>,
}

/// Every plot there is.
pub(crate) const PLOTS: [Plot; 5] = [
    Plot {
        file: "throughput.svg",
        shows: "Pairs per second of each subject, 5 nodes, 64 lockers",
        needs: "pairs_per_s at 5 nodes, 64 lockers",
        draw: bars::throughput,
    },
    Plot {
        file: "latency.svg",
        shows: "Median and 99th percentile of one pair, 5 nodes, 1 locker",
        needs: "p50_us and p99_us of pairs at 5 nodes, 1 locker",
        draw: bars::latency,
    },
    Plot {
        file: "growth.svg",
        shows: "Pairs per second over the number of lockers, for 1, 3, 5 and 7 nodes",
        needs: "pairs at 1, 3, 5 and 7 nodes; those are measured with --full",
        draw: curves::growth,
    },
    Plot {
        file: "handover.svg",
        shows: "Median and 99th percentile of a hand-over between processes",
        needs: "p50_us and p99_us of handover",
        draw: ranges::handover,
    },
    Plot {
        file: "cpu.svg",
        shows: "Client CPU time per pair of each subject, 5 nodes, 64 lockers",
        needs: "cpu_us_per_pair at 5 nodes, 64 lockers",
        draw: bars::cpu,
    },
];

impl Plot {
    /// The SVG, or `None` if the report lacks the data.
    ///
    /// # Errors
    /// In words, should the drawing library fail.
    pub(crate) fn draw(&self, report: &Report) -> Result<Option<String>, String> {
        (self.draw)(report).map_err(|why| format!("{} cannot be drawn: {why}", self.file))
    }
}

/// Draws all that the report has the data for into `folder`, and says on standard output what it
/// wrote and what it left out.
///
/// # Errors
/// In words, if a file cannot be written.
pub(crate) fn run(report: &Path, folder: &Path) -> Result<(), String> {
    let report = saved::read(report)?;
    let cannot = |path: &Path, why| format!("{} cannot be written: {why}", path.display());
    fs::create_dir_all(folder).map_err(|why| cannot(folder, why))?;
    for plot in &PLOTS {
        let path = folder.join(plot.file);
        match plot.draw(&report)? {
            Some(svg) => {
                fs::write(&path, svg).map_err(|why| cannot(&path, why))?;
                println!("{}: {}", path.display(), plot.shows);
            }
            None => println!("{}: not drawn, the report lacks {}", plot.file, plot.needs),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Invented figures.
    const FIXTURE: &str = include_str!("page/fixture.json");

    fn report() -> Report {
        serde_json::from_str(FIXTURE).unwrap()
    }

    /// The text that a reader sees.
    fn words(svg: &str) -> Vec<String> {
        let tree = roxmltree::Document::parse(svg).expect("valid XML");
        let text = tree.descendants().filter(|node| node.has_tag_name((NAMESPACE, "text")));
        text.map(|node| node.text().unwrap_or_default().trim().to_owned()).collect()
    }

    const NAMESPACE: &str = "http://www.w3.org/2000/svg";

    #[test]
    fn every_plot_is_valid_says_what_it_is_of_and_is_the_same_twice() {
        let report = report();
        for plot in &PLOTS {
            let svg = plot.draw(&report).unwrap().unwrap_or_else(|| panic!("{}", plot.needs));
            assert_eq!(Some(&svg), plot.draw(&report).unwrap().as_ref(), "{}", plot.file);
            let words = words(&svg).join("\n");
            for wanted in ["Invented CPU", "7 × Redis 7.0.15", "2026-01-02", "0123abc", "quorlock"]
            {
                assert!(words.contains(wanted), "{wanted} is not in {}:\n{words}", plot.file);
            }
        }
    }

    /// On a page in dark mode, black text on nothing cannot be read.
    #[test]
    fn the_background_is_white() {
        for plot in &PLOTS {
            let svg = plot.draw(&report()).unwrap().unwrap();
            let tree = roxmltree::Document::parse(&svg).unwrap();
            let first = tree.root_element().first_element_child().unwrap();
            let of = |name| first.attribute(name);
            let root = |name| tree.root_element().attribute(name);
            assert_eq!(of("fill"), Some("#FFFFFF"), "{}", plot.file);
            assert_eq!((of("width"), of("height")), (root("width"), root("height")));
        }
    }

    #[test]
    fn names_with_special_characters_come_out_as_they_are() {
        let svg = PLOTS[0].draw(&report()).unwrap().unwrap();
        assert!(words(&svg).contains(&"a<b>&c".to_owned()));
    }

    #[test]
    fn without_data_there_is_no_plot() {
        let mut report = report();
        report.results.retain(|row| row.nodes == 5 && row.workload == "pairs");
        let drawn = |report: &Report| {
            let all = PLOTS.iter().filter(|plot| plot.draw(report).unwrap().is_some());
            all.map(|plot| plot.file).collect::<Vec<_>>()
        };
        assert_eq!(drawn(&report), ["throughput.svg", "latency.svg", "cpu.svg"]);
        report.results.clear();
        assert_eq!(drawn(&report), [""; 0]);
    }

    #[test]
    fn files_are_written_into_a_folder_that_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("report.json");
        fs::write(&report, FIXTURE).unwrap();
        let plots = folder.path().join("docs/plots");
        run(&report, &plots).unwrap();
        assert_eq!(fs::read_dir(plots).unwrap().count(), PLOTS.len());
        let why = run(&folder.path().join("none.json"), folder.path()).unwrap_err();
        assert!(why.contains("none.json cannot be read"), "{why}");
        fs::write(&report, "{}").unwrap();
        assert!(run(&report, folder.path()).unwrap_err().contains("is not a report"));
    }
}
