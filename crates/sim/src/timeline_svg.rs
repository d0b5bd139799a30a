//! The picture of a run: time from left to right, a lane for each client and for each node, and what
//! happened on them. Pointing at something tells what it is.

mod svg;

use crate::fact::span;
use crate::plan::Plan;
use crate::time::{MS, SECOND, Time};
use crate::timeline::{Bar, Kind, Lane, Mark, Sign, Timeline};
use crate::world::Outcome;

use svg::Svg;

const WIDTH: f64 = 1400.0;
/// Where time begins, and where it ends.
const LEFT: f64 = 96.0;
const RIGHT: f64 = WIDTH - 24.0;
/// Where the lanes begin.
const TOP: f64 = 66.0;
const ROW: f64 = 15.0;
/// Above and below the rows of a lane.
const PADDING: f64 = 5.0;
/// Between two lanes.
const GAP: f64 = 6.0;
/// What is drawn narrower than that is not seen.
const NARROW: f64 = 1.2;
/// So much room a token's beginning takes.
const TOKEN: f64 = 44.0;

/// Colours that those who see few colours tell apart as well, on white and in grey.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#b5548f", "#c98a00", "#3f9bd8", "#6a51a3", "#6b6b2e"];

const STYLE: &str = "\
text{font-family:sans-serif;font-size:12px;fill:#222}
.title{font-size:16px;font-weight:bold}
.note,.tick{font-size:11px;fill:#666}
.tick{text-anchor:middle}
.before{text-anchor:end}
.token{font-family:monospace;font-size:10px;fill:#fff}
.bad{fill:#b00020;font-weight:bold}
.paper{fill:#fff}
.lane{fill:#f6f6f4}
.life{fill:#e9e9e4}
.grid{stroke:#d8d8d8;stroke-width:1}
.healing{stroke:#009e73;stroke-width:1.5;stroke-dasharray:5 3}
.overlap{fill:#e00030;fill-opacity:.25}
.hold,.vote{stroke:#fff;stroke-width:.5}
.second{fill-opacity:.6}
.wait{fill-opacity:.35}
.attempt{fill-opacity:.75}
.still{fill:url(#still)}
.down{fill:url(#down)}
.frozen{fill:url(#still)}
.refuses{fill:#f3c746;fill-opacity:.55}
.foreign{fill:#8c8c8c}
.cut{fill:#111}
.halo{fill:none;stroke:#fff;stroke-width:4;stroke-opacity:.8}
.mark{fill:none;stroke:#111;stroke-width:1.6}
.lost{stroke:#b00020;stroke-width:2}
";

/// What stands still is hatched one way, what is not there the other.
const PATTERNS: &str = "<defs>\
<pattern id=\"still\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
<rect width=\"6\" height=\"6\" fill=\"#cfd8e6\" fill-opacity=\".6\"/>\
<path d=\"M0 6L6 0\" stroke=\"#60708c\" stroke-width=\"1\"/></pattern>\
<pattern id=\"down\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
<rect width=\"6\" height=\"6\" fill=\"#e8c9c9\"/>\
<path d=\"M0 0L6 6\" stroke=\"#8c3030\" stroke-width=\"1\"/></pattern></defs>";

/// Draws a run that was traced.
pub fn draw(plan: &Plan, outcome: &Outcome) -> String {
    Drawing::new(plan, &outcome.timeline).draw(plan, outcome)
}

struct Drawing<'a> {
    timeline: &'a Timeline,
    /// Each lane, where it begins, and how many rows it has.
    lanes: Vec<(Lane, f64, usize)>,
    /// Where the last lane ends.
    bottom: f64,
}

impl<'a> Drawing<'a> {
    fn new(plan: &Plan, timeline: &'a Timeline) -> Self {
        let mut clients: Vec<Lane> = timeline.of(Kind::Life).map(|bar| bar.lane).collect();
        clients.sort_unstable();
        let nodes = (0..plan.servers.quorum.nodes()).map(Lane::Node);
        let (mut lanes, mut bottom) = (Vec::new(), TOP);
        for lane in clients.into_iter().chain(nodes) {
            let rows = match lane {
                Lane::Client(_) => {
                    let its = timeline.bars.iter().filter(|bar| bar.lane == lane);
                    its.map(|bar| bar.row + 1).max().unwrap_or(1)
                }
                Lane::Node(_) => plan.load.resources,
            };
            lanes.push((lane, bottom, rows));
            bottom += height(rows) + GAP;
        }
        Self { timeline, lanes, bottom }
    }

    fn draw(&self, plan: &Plan, outcome: &Outcome) -> String {
        let height = self.bottom + 88.0;
        let mut svg = Svg::new(WIDTH, height, STYLE);
        svg.raw(PATTERNS);
        svg.rect("paper", None, [0.0, 0.0, WIDTH, height], "");
        self.draw_heading(&mut svg, plan, outcome);
        for (lane, y, rows) in &self.lanes {
            let (name, more) = match lane {
                Lane::Client(client) => (format!("client {client}"), String::new()),
                Lane::Node(node) => {
                    let lossy = plan.servers.lossy.contains(node) && plan.has(crate::Fault::Losses);
                    (format!("node {node}"), if lossy { "loses keys" } else { "" }.to_owned())
                }
            };
            svg.rect("lane", None, [LEFT, *y, RIGHT - LEFT, self::height(*rows)], "");
            svg.text("name", 12.0, y + 15.0, &name);
            if *rows > 1 {
                svg.text("note", 12.0, y + 29.0, &more);
            }
        }
        self.draw_overlaps(&mut svg);
        // What lies behind comes first.
        let behind = [Kind::Life, Kind::Still, Kind::Down, Kind::Frozen, Kind::Refuses];
        let before = [Kind::Wait, Kind::Attempt, Kind::Foreign, Kind::Vote, Kind::Hold, Kind::Cut];
        for kind in behind {
            self.timeline.of(kind).for_each(|bar| self.draw_bar(&mut svg, bar));
        }
        self.draw_axis(&mut svg);
        for kind in before {
            self.timeline.of(kind).for_each(|bar| self.draw_bar(&mut svg, bar));
        }
        self.timeline.marks.iter().for_each(|mark| self.draw_mark(&mut svg, mark));
        self.draw_legend(&mut svg, plan);
        svg.finish()
    }

    fn draw_heading(&self, svg: &mut Svg, plan: &Plan, outcome: &Outcome) {
        let (nodes, needed) = (plan.servers.quorum.nodes(), plan.servers.quorum.needed());
        svg.text("title", 12.0, 24.0, &format!("quorlock-sim: seed {}", plan.seed));
        let beyond = plan.outside.map_or(String::new(), |why| {
            format!("; beyond what mutual exclusion assumes: {why:?}")
        });
        let what = format!(
            "{nodes} nodes, {needed} of them needed; ttl {}; faults: {:?}{beyond}",
            span(plan.load.max_ttl),
            plan.faults.kinds
        );
        svg.text("note", 12.0, 42.0, &what);
        if let Some(violation) = &outcome.violation {
            svg.text("bad", 200.0, 24.0, &violation.to_string());
        }
    }

    fn draw_overlaps(&self, svg: &mut Svg) {
        for (from, to) in self.timeline.overlaps() {
            let width = (self.x(to) - self.x(from)).max(NARROW);
            let place = [self.x(from), TOP - 4.0, width, self.bottom - TOP];
            svg.rect("overlap", None, place, "two hold one lock");
        }
    }

    fn draw_bar(&self, svg: &mut Svg, bar: &Bar) {
        let Some((lane_y, rows)) = self.lane(bar.lane) else { return };
        let row_y = lane_y + PADDING + bar.row as f64 * ROW;
        let (class, y, height) = match bar.kind {
            Kind::Life => ("life", lane_y, height(rows)),
            Kind::Still => ("still", lane_y, height(rows)),
            Kind::Down => ("down", lane_y, height(rows)),
            Kind::Frozen => ("frozen", lane_y, height(rows)),
            Kind::Refuses => ("refuses", lane_y, height(rows)),
            Kind::Wait => ("wait", row_y + ROW / 2.0 - 1.0, 2.0),
            Kind::Attempt => ("attempt", row_y + ROW / 2.0 - 3.5, 7.0),
            Kind::Hold => ("hold", row_y + 1.0, ROW - 2.0),
            Kind::Vote => ("vote", row_y + 1.0, ROW - 2.0),
            Kind::Foreign => ("foreign", row_y + 1.0, ROW - 2.0),
            Kind::Cut => ("cut", lane_y + self::height(rows) - 3.0, 3.0),
        };
        let second = if bar.resource > 0 { " second" } else { "" };
        let x = self.x(bar.from);
        let width = (self.x(bar.to) - x).max(NARROW);
        let coloured = matches!(bar.kind, Kind::Wait | Kind::Attempt | Kind::Hold | Kind::Vote);
        let fill = bar.client.filter(|_| coloured).map(colour);
        svg.rect(&format!("{class}{second}"), fill, [x, y, width, height], &bar.tip);
        if width > TOKEN && matches!(bar.kind, Kind::Hold | Kind::Vote) {
            svg.text("token", x + 3.0, y + height - 3.0, &bar.token);
        }
    }

    fn draw_mark(&self, svg: &mut Svg, mark: &Mark) {
        if let Some((y, rows)) = self.lane(mark.lane)
            && mark.at <= self.timeline.until
        {
            let (class, points) = sign(mark.sign, self.x(mark.at), y + height(rows) / 2.0);
            // Seen on white as on a dark bar.
            svg.path("halo", &points, "");
            svg.path(class, &points, &mark.tip);
        }
    }

    fn draw_axis(&self, svg: &mut Svg) {
        let step = tick(self.timeline.until);
        let unit = if step >= SECOND { SECOND } else { MS };
        let mut at = 0;
        while at <= self.timeline.until {
            let x = self.x(at);
            svg.path("grid", &format!("M{x:.1} {TOP}V{:.1}", self.bottom), "");
            let shown = if at == 0 {
                "0".to_owned()
            } else if unit == SECOND {
                format!("{} s", at / SECOND)
            } else {
                format!("{} ms", at / MS)
            };
            svg.text("tick", x, self.bottom + 12.0, &shown);
            at += step;
        }
        if let Some(at) = self.timeline.healing {
            let x = self.x(at);
            let points = format!("M{x:.1} {:.1}V{:.1}", TOP - 6.0, self.bottom);
            svg.path("healing", &points, "the time of faults is over");
            // Near the right edge there is room on the left.
            let (class, x) =
                if x > RIGHT - 90.0 { ("note before", x - 4.0) } else { ("note", x + 4.0) };
            svg.text(class, x, TOP - 6.0, "the faults end");
        }
    }

    fn draw_legend(&self, svg: &mut Svg, plan: &Plan) {
        let y = self.bottom + 36.0;
        let bars = [
            ("hold", Some(colour(0)), 13.0, "client holds the lock, with this token"),
            ("attempt", Some(colour(0)), 7.0, "attempt"),
            ("wait", Some(colour(0)), 2.0, "waits"),
            ("vote", Some(colour(0)), 13.0, "node stores a client's token"),
            ("foreign", None, 13.0, "somebody else's key"),
        ];
        let states = [
            ("still", None, 13.0, "stands still"),
            ("down", None, 13.0, "down"),
            ("refuses", None, 13.0, "refuses"),
            ("cut", None, 3.0, "a client is cut off"),
            ("overlap", None, 13.0, "two hold one lock"),
        ];
        let mut x = LEFT;
        for (class, fill, height, words) in bars {
            svg.rect(class, fill, [x, y + 6.5 - height / 2.0, 28.0, height], "");
            svg.text("word", x + 34.0, y + 11.0, words);
            x += 64.0 + 6.4 * words.len() as f64;
        }
        if plan.load.resources > 1 {
            svg.rect("hold second", Some(colour(0)), [x, y, 28.0, 13.0], "");
            svg.text("word", x + 34.0, y + 11.0, "the other lock");
        }
        x = LEFT;
        for (class, fill, height, words) in states {
            svg.rect(class, fill, [x, y + 30.5 - height / 2.0, 28.0, height], "");
            svg.text("word", x + 34.0, y + 35.0, words);
            x += 64.0 + 6.4 * words.len() as f64;
        }
        for (one, words) in [
            (Sign::Lost, "lock lost"),
            (Sign::End, "killed, shut down"),
            (Sign::Reset, "connection breaks"),
            (Sign::Clock, "clock set"),
            (Sign::KeysLost, "keys lost"),
        ] {
            let (class, points) = sign(one, x + 6.0, y + 30.5);
            svg.path(class, &points, "");
            svg.text("word", x + 16.0, y + 35.0, words);
            x += 40.0 + 6.4 * words.len() as f64;
        }
    }

    fn lane(&self, wanted: Lane) -> Option<(f64, usize)> {
        let found = self.lanes.iter().find(|(lane, ..)| *lane == wanted);
        found.map(|(_, y, rows)| (*y, *rows))
    }

    fn x(&self, at: Time) -> f64 {
        LEFT + (RIGHT - LEFT) * at as f64 / self.timeline.until.max(1) as f64
    }
}

fn height(rows: usize) -> f64 {
    rows as f64 * ROW + 2.0 * PADDING
}

fn colour(client: usize) -> &'static str {
    COLOURS[client % COLOURS.len()]
}

/// What a sign looks like around a point.
fn sign(sign: Sign, x: f64, y: f64) -> (&'static str, String) {
    match sign {
        Sign::Lost => ("mark lost", format!("M{:.1} {:.1}l8 8m0 -8l-8 8", x - 4.0, y - 4.0)),
        Sign::End => ("mark", format!("M{x:.1} {:.1}v14m-4 -10h8", y - 7.0)),
        Sign::Reset => ("mark", format!("M{:.1} {:.1}l5 3l-4 2l5 3", x - 3.0, y - 4.0)),
        Sign::Clock => ("mark", format!("M{x:.1} {:.1}l4 4l-4 4l-4 -4z", y - 4.0)),
        Sign::KeysLost => ("mark", format!("M{:.1} {:.1}h8l-4 7z", x - 4.0, y - 4.0)),
    }
}

/// How far apart the ticks of the axis are: a round number, and about a dozen of them.
fn tick(until: Time) -> Time {
    let least = (until / 16).max(1);
    let mut decade = MS;
    loop {
        for step in [decade, 2 * decade, 5 * decade] {
            if step >= least {
                return step;
            }
        }
        decade *= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_neither_few_nor_many() {
        for until in [MS, 7 * MS, 130 * MS, 999 * MS, 12 * SECOND, 77 * SECOND, 4000 * SECOND] {
            let count = until / tick(until);
            assert!(count <= 16 && (count >= 6 || until < 16 * MS), "{until}: {count}");
        }
    }
}
