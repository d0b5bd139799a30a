#!/usr/bin/env python3
"""Plots and figures of a benchmark report: plot.py REPORT.json [FOLDER]

Writes one SVG per plot into FOLDER (docs/plots), and prints all figures, separated by tabs. A plot whose figures the report
lacks is left out. The plots follow the reader's light or dark colour scheme.
"""
import json
import math
import sys
from html import escape
from pathlib import Path

STYLE = """<style>
text { font: 13px sans-serif; fill: #1f2328 } .title { font-size: 16px } .page { fill: #ffffff }
.grid { stroke: #d0d7de } .whisker { stroke: #1f2328 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .page { fill: #0d1117 } .grid { stroke: #30363d } .whisker { stroke: #e6edf3 }
}
</style><rect class="page" width="100%" height="100%"/>"""
COLOURS = ["#4c8dff", "#8b949e", "#e8803a", "#3fb950", "#bc6be0", "#d4a72c", "#f0616d", "#39c5cf"]
WIDTH, LEFT, RIGHT = 860, 160, 90

# File, title, unit, figures (workload, metric, nodes, concurrency). The first figure sorts the bars; True: descending.
BARS = [
    ("throughput.svg", "Throughput: acquire + release, 5 nodes, 64 lockers", "pairs per second; more is better",
     [("pairs", "pairs_per_s", 5, 64)], True),
    ("latency.svg", "Latency: acquire + release, 5 nodes, 1 locker", "µs, p50 and p99; less is better",
     [("pairs", "p50_us", 5, 1), ("pairs", "p99_us", 5, 1)], False),
    ("cpu.svg", "Client CPU: acquire + release, 5 nodes, 64 lockers", "µs per pair; less is better",
     [("pairs", "cpu_us_per_pair", 5, 64)], False),
    ("handover.svg", "Hand-over between 8 processes, 5 nodes", "µs, p50 and p99; less is better",
     [("handover", "p50_us", 5, 8), ("handover", "p99_us", 5, 8)], False),
]
NODES, LOCKERS = (1, 3, 5, 7), (1, 8, 64, 512)


def number(value):
    """A number with three digits, and a thin space between thousands."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}".replace(",", "\u202f")


def rows(report, workload, metric, nodes, concurrency):
    wanted = (workload, metric, nodes, concurrency)
    return {row["subject"]: row for row in report["results"]
            if (row["workload"], row["metric"], row["nodes"], row["concurrency"]) == wanted}


def facts(report):
    servers = ", ".join(f"{it['count']} × {it['product'].capitalize()} {it['version']}" for it in report["servers"])
    machine, changed = report["machine"], " with changes" if report["dirty"] else ""
    return f"{machine['cpu']}, {machine['cores']} cores, {servers}, {report['date']}, commit {report['commit']}{changed}"


def text(x, y, words, anchor="start", style=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{escape(words)}</text>'


def line(x1, y1, x2, y2, style):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def page(report, title, height, parts):
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">',
            f"<title>{escape(title)}</title>", STYLE, text(16, 26, title, style="title"), text(16, 46, facts(report))]
    return "\n".join(head + parts + ["</svg>"]) + "\n"


def colours(report):
    """Each subject has one colour in all plots."""
    subjects = dict.fromkeys(row["subject"] for row in report["results"])
    return {subject: COLOURS[place % len(COLOURS)] for place, subject in enumerate(subjects)}


def bars(report, title, unit, figures, is_best_high):
    series = [rows(report, *figure) for figure in figures]
    subjects = sorted(series[0], key=lambda it: series[0][it]["median"], reverse=is_best_high)
    if not subjects:
        return None
    # Hand-overs and latencies may differ by more than a factor of 30; then the axis is logarithmic.
    values = [row for one in series for row in one.values()]
    low, high = min(it["min"] for it in values), max(it["max"] for it in values)
    is_log = len(series) > 1 and high > 30 * low > 0
    span = WIDTH - LEFT - RIGHT
    base = 10 ** math.floor(math.log10(low)) if is_log else 0
    place = (lambda v: LEFT + span * math.log(max(v, base) / base) / math.log(high / base)) if is_log else (
        lambda v: LEFT + span * v / high)
    parts, y, colour = [], 64, colours(report)
    for subject in subjects:
        parts.append(text(LEFT - 10, y + 11 * len(series) + 4, subject, "end"))
        for shade, one in zip((1, 0.5), series):
            if subject in one:
                row = one[subject]
                end = place(row["median"])
                parts.append(f'<rect x="{LEFT}" y="{y + 2}" width="{max(end - LEFT, 1):.1f}" height="18" '
                             f'fill="{colour[subject]}" fill-opacity="{shade}"/>')
                parts.append(line(place(row["min"]), y + 11, place(row["max"]), y + 11, 'class="whisker"'))
                parts.append(text(max(end, place(row["max"])) + 8, y + 15, number(row["median"])))
            y += 22
        y += 10
    scale = ", logarithmic" if is_log else ""
    parts += [line(LEFT, 58, LEFT, y, 'class="grid"'), text(LEFT, y + 18, f"{unit}{scale}; lines: all rounds")]
    return page(report, title, y + 34, parts)


def growth(report):
    data = {(nodes, count): rows(report, "pairs", "pairs_per_s", nodes, count) for nodes in NODES for count in LOCKERS}
    if not all(data.values()):
        return None
    medians = [row["median"] for one in data.values() for row in one.values()]
    low, high = math.floor(math.log10(min(medians))), math.ceil(math.log10(max(medians)))
    colour, parts = colours(report), []
    subjects = dict.fromkeys(subject for one in data.values() for subject in one)
    for place, subject in enumerate(subjects):
        x, y = 16 + place % 5 * 165, 70 + place // 5 * 20
        parts += [line(x, y, x + 22, y, f'stroke="{colour[subject]}" stroke-width="3"'), text(x + 28, y + 4, subject)]
    top = 100 + (len(subjects) - 1) // 5 * 20
    for panel, nodes in enumerate(NODES):
        left, up = 80 + panel % 2 * 420, top + panel // 2 * 270
        at = lambda place, value: (left + 20 + place * 95, up + 210 - 190 * (math.log10(value) - low) / (high - low))
        parts.append(text(left + 160, up, f"{nodes} node{'s' * (nodes > 1)}", "middle"))
        for decade in range(low, high + 1):
            _, y = at(0, 10 ** decade)
            parts += [line(left, y, left + 325, y, 'class="grid"'), text(left - 6, y + 4, number(10 ** decade), "end")]
        for place, count in enumerate(LOCKERS):
            parts.append(text(at(place, 1)[0], up + 230, f"{count}", "middle"))
        for subject in subjects:
            points = [at(place, data[nodes, count][subject]["median"]) for place, count in enumerate(LOCKERS)
                      if subject in data[nodes, count]]
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour[subject]}" stroke-width="2"/>')
    parts.append(text(80, top + 530, "pairs per second over the number of lockers, both logarithmic"))
    return page(report, "Throughput over the number of lockers: acquire + release, distinct keys", top + 548, parts)


def figures(report):
    """Every figure, separated by tabs. The folder `results` has those of the runs that documents show."""
    yield f"# {facts(report)}; medians of {report['rounds']} rounds (lowest, highest); {report['command']}"
    columns = ["workload", "nodes", "concurrency", "subject", "metric", "median", "min", "max"]
    yield "\t".join(columns)
    for row in report["results"]:
        yield "\t".join(f"{row[name]:.6g}" if isinstance(row[name], float) else str(row[name]) for name in columns)
    for absent in report["not_run"]:
        yield f"# not run: {absent['subject']}, {absent['workload']}: {absent['why']}"


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    report = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[2] if len(sys.argv) == 3 else "docs/plots")
    folder.mkdir(parents=True, exist_ok=True)
    plots = {file: bars(report, *rest) for file, *rest in BARS} | {"growth.svg": growth(report)}
    for file, svg in plots.items():
        if svg:
            (folder / file).write_text(svg)
        print(f"{file}: {'written' if svg else 'left out, the report lacks its figures'}", file=sys.stderr)
    print("\n".join(figures(report)))


if __name__ == "__main__":
    main()
