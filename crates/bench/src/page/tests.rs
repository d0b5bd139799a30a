use super::*;

const BEGIN: &str = "<!-- bench:begin -->";
const END: &str = "<!-- bench:end -->";

/// Invented figures.
const FIXTURE: &str = include_str!("fixture.json");

fn report() -> Report {
    serde_json::from_str(FIXTURE).unwrap()
}

#[test]
fn what_was_between_the_comments_is_replaced_and_nothing_else() {
    let old = format!("# Title\n\n{BEGIN}\nold\n{END}\n\nmore\n");
    let new = between(&old, ALL, "new\n").unwrap();
    assert_eq!(new, format!("# Title\n\n{BEGIN}\n\nnew\n\n{END}\n\nmore\n"));
    assert_eq!(between(&new, ALL, "new\n").unwrap(), new);
}

#[test]
fn comments_that_are_missing_doubled_or_swapped_are_refused() {
    let refused = [
        ("nothing".to_owned(), "no line"),
        (BEGIN.to_owned(), "no line"),
        (format!("{BEGIN}{END}{BEGIN}"), "more than once"),
        (format!("{END}{BEGIN}"), "before"),
    ];
    for (text, why) in refused {
        let said = between(&text, ALL, "new").unwrap_err();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_target_is_met_or_missed_by_so_much() {
    let verdicts: Vec<_> = report().targets.iter().map(verdict).collect();
    assert_eq!(verdicts, ["met", "**MISSED** by 25.0 %", "**MISSED**", "**MISSED**"]);
}

#[test]
fn the_page_has_what_the_report_has() {
    let page = whole(&report()).unwrap();
    for line in [
        "| machine | Invented CPU @ 1.00GHz, 2 cores, 24 GiB |",
        "| quorlock | 0.1.0, commit 0123abc |",
        "| beside it | redis 1.8.1, rslock 0.10.0 |",
        "| command | `cargo xtask bench --full` |",
        "| hand-over p50, N=1, 2 processes | ≤ 4 × PING | 5.00 | **MISSED** by 25.0 % |",
        "| memory per held lock | ≤ 1024 × 1 byte | not measured | **MISSED** |",
        "| nodes | processes | subject | p50 µs | p99 µs |",
        "| 5 | 8 | quorlock | 0.998 |",
        "| pottery | pairs | no python3 \\| on PATH |",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n\nis not in\n\n{page}");
    }
}

#[test]
fn the_readme_has_the_fastest_first() {
    let table = small(&report());
    let subjects: Vec<_> = table
        .lines()
        .skip(2)
        .filter_map(|row| row.strip_prefix("| ")?.split(" |").next())
        .collect();
    assert_eq!(subjects, ["quorlock", "raw", "rslock", "a<b>&c"]);
    assert!(table.contains("| quorlock | 83\u{a0}000 | 5.20 µs | 125 µs |"), "{table}");
    // The project's own targets and the commit are on the page of benchmarks.
    assert!(!table.contains("target") && !table.contains("commit"), "{table}");
}

#[test]
fn numbers_of_no_commit_stay_out_of_documents() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let empty = format!("{BEGIN}\n{END}\n");
    for page in ["page.md", "readme.md"] {
        fs::write(at(page), &empty).unwrap();
    }
    fs::write(at("dirty.json"), FIXTURE.replace("\"dirty\": false", "\"dirty\": true")).unwrap();
    let write = |any| run(&at("dirty.json"), &at("page.md"), &at("readme.md"), any);
    let why = write(false).unwrap_err();
    assert!(why.contains("commit 0123abc with uncommitted changes"), "{why}");
    assert_eq!(fs::read_to_string(at("page.md")).unwrap(), empty);
    write(true).unwrap();
    assert!(fs::read_to_string(at("readme.md")).unwrap().contains("| quorlock |"));
}

#[test]
fn recovery_has_a_section_of_its_own_and_leaves_the_rest_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let empty = "<!-- recovery:begin -->\nold\n<!-- recovery:end -->\n".to_owned();
    let page = format!("{BEGIN}\nother\n{END}\n{empty}");
    fs::write(at("page.md"), &page).unwrap();
    fs::write(at("readme.md"), "no comments").unwrap();
    let report = FIXTURE.replace("\"workload\": \"", "\"workload\": \"recovery_of_");
    fs::write(at("recovery.json"), report).unwrap();
    run(&at("recovery.json"), &at("page.md"), &at("readme.md"), false).unwrap();
    let written = fs::read_to_string(at("page.md")).unwrap();
    assert!(written.starts_with(&format!("{BEGIN}\nother\n{END}\n")), "{written}");
    assert!(written.contains("#### `recovery_of_pairs`"), "{written}");
    assert!(!written.contains("hand-over p50"), "{written}");
    assert_eq!(fs::read_to_string(at("readme.md")).unwrap(), "no comments");
}
