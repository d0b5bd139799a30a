use super::replay::MARKER;
use super::*;
use crate::monitor::{Dump, LOSES, Log, REPLICA, Seen};
use crate::shim::ClockHistory;

const MARK: &str = r#""quorlock 1 nodes=a run_id=r1 promoted=-1 floor=5""#;

/// The stream of a server whose clock is right: what is done at which millisecond, with what
/// scripts do after a `>`.
fn stream(lines: &[(i64, &str)]) -> Log {
    let mut log = Log::default();
    let dump = Dump { run_id: "r1".into(), promoted: "-1".into(), ..Dump::default() };
    log.dumps.insert("d".into(), dump);
    for (ms, words) in [(0, r#""EVAL" "" "0" "d""#)].iter().chain(lines) {
        let (from, words) = words.strip_prefix('>').map_or(("x", *words), |it| ("lua", it));
        let line = format!("0.{:06} [0 {from}] {words}", ms * 1000);
        log.seen.push(Seen::Line(ms * MS, line));
    }
    log
}

fn votes(lines: &[(i64, &str)]) -> Vec<(Time, Time)> {
    votes_in(&stream(lines))
}

fn votes_in(log: &Log) -> Vec<(Time, Time)> {
    votes_by(&ClockHistory::right(0), false, log)
}

fn votes_by(history: &ClockHistory, is_wrong: bool, log: &Log) -> Vec<(Time, Time)> {
    let reading = Reading { history, is_wrong, guarded: true };
    let votes = replay(log, reading).votes;
    votes.iter().map(|vote| (vote.from / MS, vote.to / MS)).collect()
}

const SET: &str = r#""SET" "orders" "t1" "NX" "PX" "100""#;
const SCRIPT: &str = r#""EVALSHA" "5" "1" "orders" "t1""#;

#[test]
fn a_vote_counts_on_a_marked_node_and_ends_with_its_key() {
    let mark = format!(r#""SET" "quorlock:node" {MARK}"#);
    assert_eq!(votes(&[(10, &mark), (20, SET)]), [(20, 120)]);
    let extended = [(90, SCRIPT), (90, r#">"PEXPIRE" "orders" "100""#)];
    assert_eq!(votes(&[&[(10, &*mark), (20, SET)], &extended[..]].concat()), [(20, 190)]);
    let deleted = [(60, SCRIPT), (60, r#">"DEL" "orders""#)];
    assert_eq!(votes(&[&[(10, &*mark), (20, SET)], &deleted[..]].concat()), [(20, 60)]);
    // A flush takes nothing back, but what comes then is none.
    let flush = (60, r#""FLUSHALL""#);
    assert_eq!(votes(&[(10, &mark), (20, SET), flush, (70, SET)]), [(20, 120)]);
}

/// Round 991179. What `DEBUG RELOAD NOSAVE` does stands in no stream: MONITOR does not show it.
#[test]
fn what_another_sets_and_deletes_after_data_was_lost_ends_no_vote_from_before() {
    let mark = format!(r#""SET" "quorlock:node" {MARK}"#);
    let loses = format!(r#""ECHO" "{LOSES}""#);
    let (set, script) = (SET.replace("t1", "t2"), SCRIPT.replace("t1", "t2"));
    let delete = r#">"DEL" "orders""#;
    let others = [(62, &*set), (63, &*script), (63, delete), (64, r#""EVAL" "" "0" "d""#)];
    let begin = [(10, &*mark), (20, SET)];
    let lost = [&begin[..], &[(60, &*loses)], &others].concat();
    assert_eq!(votes(&lost), [(20, 120)]);
    // The same after a restart.
    let mut log = stream(&[&begin[..], &others].concat());
    log.seen.insert(3, Seen::Broken(61 * MS));
    assert_eq!(votes_in(&log), [(20, 120)]);
    // Who deletes its own ends it all the same.
    let own = [(60, &*loses), (62, SCRIPT), (62, delete)];
    assert_eq!(votes(&[&begin[..], &own].concat()), [(20, 62)]);
    // A server that has lost nothing deletes what is there, whatever the script was given.
    assert_eq!(votes(&[&begin[..], &others].concat()), [(20, 63)]);
}

/// A round with node b's clock ten seconds behind for one second: an extension found a key that lived for
/// longer than it asked for, and set nothing; then the clock was set right, and the key was gone.
#[test]
fn what_was_extended_while_the_clock_was_behind_is_owed() {
    let mark = format!(r#""SET" "quorlock:node" {MARK}"#);
    let extend = r#""EVALSHA" "5" "1" "orders" "t1" "100""#;
    let lines = [(10, &*mark), (20, SET), (80, extend), (80, r#">"GET" "orders""#)];
    let found = [(80, r#">"PTTL" "orders""#)];
    let history = ClockHistory::right(0);
    let log = stream(&[&lines[..], &found].concat());
    assert_eq!(votes_by(&history, true, &log), [(20, 180)]);
    assert_eq!(votes_by(&history, false, &log), [(20, 120)]);
    // Of another it says nothing.
    let log = stream(&[&lines[..2], &[(80, &*extend.replace("t1", "t2"))], &found].concat());
    assert_eq!(votes_by(&history, true, &log), [(20, 120)]);
}

/// A round in which node c's clock was set back by an hour, behind the end of a key that nobody had asked
/// for since: the server had taken it away, or not yet.
#[test]
fn what_had_expired_before_the_clock_was_set_back_may_be_gone() {
    let mark = format!(r#""SET" "quorlock:node" {MARK}"#);
    let set = SET.replace("t1", "t2");
    let mut log = stream(&[(10, &*mark), (20, SET)]);
    let later = stream(&[(50, &*set)]);
    // Shown at 50 ms, after 200 ms.
    let Some(Seen::Line(_, line)) = later.seen.last() else { unreachable!("it is a line") };
    log.seen.push(Seen::Line(200 * MS, line.clone()));
    let history = ClockHistory::right(0).and_stepped(150 * MS, -150 * MS);
    assert_eq!(votes_by(&history, true, &log), [(20, 120), (200, 300)]);
    let right = ClockHistory::right(0);
    log.seen[3] = Seen::Line(50 * MS, line.clone());
    assert_eq!(votes_by(&right, true, &log), [(20, 120)]);
}

#[test]
fn a_vote_of_a_node_that_is_not_marked_for_this_run_is_none() {
    assert_eq!(votes(&[(20, SET)]), []);
    let other = format!(r#""SET" "quorlock:node" {}"#, MARK.replace("r1", "r2"));
    assert_eq!(votes(&[(10, &other), (20, SET)]), []);
    // In one breath with the mark.
    let mark = format!(r#""SET" "quorlock:node" {MARK}"#);
    assert_eq!(votes(&[(20, SET), (30, &mark)]), [(20, 120)]);
}

/// Round 1795349233 with Valkey 9.1: `REPLICAOF` and `REPLICAOF NO ONE` 0.4 s later, on a busy machine.
#[test]
fn a_node_that_was_to_follow_another_and_never_did_is_what_it_was() {
    let mark = format!(r#""SET" "quorlock:node" {MARK}"#);
    let replica = format!(r#""ECHO" "{REPLICA}""#);
    let lines = [(10, &*mark), (20, SET), (30, &*replica), (40, r#""EVAL" "" "0" "again""#)];
    let votes_with = |marker: &str, value: &str, run_id: &str, ttl| {
        let mut log = stream(&[&lines[..], &[(70, &SET.replace("orders", "till"))]].concat());
        let data = vec![
            (MARKER.to_owned(), marker.trim_matches('"').to_owned(), -1),
            ("orders".to_owned(), value.to_owned(), ttl),
        ];
        let dump = Dump { run_id: run_id.into(), promoted: "7".into(), data, ..Dump::default() };
        log.dumps.insert("again".into(), dump);
        votes_in(&log)
    };
    assert_eq!(votes_with(MARK, "t1", "r1", 80), [(20, 120), (70, 170)]);
    // Another's data, older ones of its own (without the lock, without its last extension), another run.
    for (marker, value, run_id, ttl) in [
        (&*MARK.replace("r1", "r2"), "t1", "r1", 80),
        (MARK, "t0", "r1", 80),
        (MARK, "t1", "r1", 40),
        (MARK, "t1", "r3", 80),
    ] {
        let votes = votes_with(marker, value, run_id, ttl);
        assert_eq!(votes, [(20, 120)], "{marker} {value} {run_id} {ttl}");
    }
}

#[test]
fn what_may_have_been_refused_does_not_hide_what_was_granted_next() {
    let mark = format!(r#""SET" "quorlock:node" {MARK}"#);
    let (second, third) = (SET.replace("t1", "t2"), SET.replace("t1", "t3"));
    // The second came shortly before the first's end: perhaps it got it. If it did not, the third
    // did.
    let sets = [(10, &*mark), (20, SET), (105, &*second), (150, &*third)];
    assert_eq!(votes(&sets), [(20, 120), (105, 205), (150, 250)]);
    // While the first was there for sure it did not.
    assert_eq!(votes(&[sets[0], sets[1], (80, &*second), sets[3]]), [(20, 120), (150, 250)]);
}

#[test]
fn what_was_there_shows_by_what_a_script_finds() {
    let mark = format!(r#""SET" "quorlock:node" {MARK}"#);
    let second = SET.replace("t1", "t2");
    let begin = [(10, &*mark), (20, SET), (100, &*second)];
    let extend = (105, r#">"PEXPIRE" "orders" "100""#);
    for (value, expected) in [("t1", [(20, 205), (100, 100)]), ("t2", [(20, 120), (100, 205)])] {
        let given = SCRIPT.replace("t1", value);
        let lines = [&begin[..], &[(105, &*given), extend]].concat();
        assert_eq!(votes(&lines), expected, "{value}");
    }
}

#[test]
fn what_is_deleted_if_it_is_there_may_have_been_there() {
    let mark = format!(r#""SET" "quorlock:node" {MARK}"#);
    let (second, third) = (SET.replace("t1", "t2"), SET.replace("t1", "t3"));
    let delete = (60, r#""DELIFEQ" "orders" "t1""#);
    assert_eq!(votes(&[(10, &mark), (20, SET), delete, (70, &second)]), [(20, 60), (70, 170)]);
    let other = (60, r#""DELIFEQ" "orders" "t2""#);
    assert_eq!(votes(&[(10, &mark), (20, SET), other, (70, &second)]), [(20, 120)]);
    // Nobody knows whether the second was there.
    let delete = (110, r#""DELIFEQ" "orders" "t2""#);
    let lines = [(10, &*mark), (20, SET), (105, &second), delete, (112, &third)];
    assert_eq!(votes(&lines), [(20, 120), (105, 110), (112, 212)]);
}

fn hold(token: &str, from: Time, to: Time) -> Hold {
    Hold { token: token.into(), asked: from * MS, ..Hold::test("a", 0, from * MS, to * MS) }
}

fn vote(is_readers: bool) -> Vote {
    Vote { resource: 0, value: "t1 owner".into(), is_readers, from: 0, to: 100 * MS }
}

#[test]
fn a_hold_needs_a_quorum_all_the_time() {
    let vote = |to| Vote { to: to * MS, ..vote(false) };
    let node = |to| Record { votes: vec![vote(to)], ..Record::default() };
    let nodes = [node(100), node(200), node(300)];
    let holds = [hold("t1/3", 10, 200)];
    assert!(check_votes(&holds, &nodes, 2).short.is_empty());
    let holds = [hold("t1", 10, 210)];
    let vote_check = check_votes(&holds, &nodes, 2);
    assert_eq!((vote_check.short[0].at, vote_check.short[0].count), (202 * MS, 1));
    assert_eq!(check_votes(&[hold("t2", 10, 20)], &nodes, 2).short.len(), 1);
    // Somebody did not look.
    let mut nodes = nodes;
    nodes[0].blind.push((50 * MS, 60 * MS));
    let vote_check = check_votes(&holds, &nodes, 2);
    assert_eq!((vote_check.judged, vote_check.blind), (0, 1));
}

#[test]
fn a_lock_of_several_needs_a_quorum_for_each() {
    let votes = [vote(false), Vote { resource: 1, to: 50 * MS, ..vote(false) }];
    let nodes = [Record { votes: votes.to_vec(), ..Record::default() }];
    let both = |to| Hold { resources: vec![1, 0], ..hold("t1", 10, to) };
    let holds = [both(40), both(90), Hold { resources: vec![0, 2], ..both(40) }];
    let vote_check = check_votes(&holds, &nodes, 1);
    let short = vote_check.short.iter().map(|short| (short.resource, short.at / MS));
    assert_eq!((short.collect::<Vec<_>>(), vote_check.judged), (vec![(1, 52), (2, 10)], 3));
}

#[test]
fn a_readers_vote_is_good_for_a_reader_only() {
    let nodes = [Record { votes: vec![vote(true)], ..Record::default() }];
    let short = |reads_from| {
        let holds = [Hold { reads_from, ..hold("t1", 10, 90) }];
        check_votes(&holds, &nodes, 1).short.len()
    };
    assert_eq!((short(10 * MS), short(11 * MS), short(Time::MAX)), (0, 1, 1));
    let nodes = [Record { votes: vec![vote(false)], ..Record::default() }];
    let holds = [Hold { reads_from: 0, ..hold("t1", 10, 90) }];
    assert_eq!(check_votes(&holds, &nodes, 1).short, []);
}

/// What the script does that makes a reader of that value, until then; the key expires with the last one.
fn reads(at: i64, value: &str, until: i64, expires: i64) -> Vec<(i64, String)> {
    vec![
        (at, format!(r#""EVALSHA" "5" "2" "orders" "quorlock:intent:orders" "{value}" "100""#)),
        (at, format!(r#">"ZADD" "orders" "XX" "0" "{value}""#)),
        (at, format!(r#">"ZADD" "orders" "{until}" "{value}""#)),
        (at, format!(r#">"PEXPIREAT" "orders" "{expires}""#)),
    ]
}

fn leaves(at: i64, value: &str, expires: Option<i64>) -> Vec<(i64, String)> {
    let mut lines = vec![
        (at, format!(r#""EVALSHA" "6" "1" "orders" "{value}""#)),
        (at, r#">"ZREM" "orders" """#.to_owned()),
        (at, format!(r#">"ZREM" "orders" "{value}""#)),
    ];
    lines.extend(expires.map(|at_ms| (at, format!(r#">"PEXPIREAT" "orders" "{at_ms}""#))));
    lines
}

fn readers(parts: &[Vec<(i64, String)>]) -> Vec<(Time, Time)> {
    votes_in(&readers_log(parts))
}

fn readers_log(parts: &[Vec<(i64, String)>]) -> Log {
    let lines = parts.concat();
    stream(&lines.iter().map(|(at, words)| (*at, &**words)).collect::<Vec<_>>())
}

fn line(at: i64, words: &str) -> Vec<(i64, String)> {
    vec![(at, words.to_owned())]
}

#[test]
fn readers_vote_for_themselves_each_until_its_score() {
    let mark = line(10, &format!(r#""SET" "quorlock:node" {MARK}"#));
    let both = [&mark, &reads(20, "t1", 120, 120), &reads(30, "t2", 110, 120)].map(Vec::clone);
    assert_eq!(readers(&both), [(20, 120), (30, 110)]);
    // Extended, and given back.
    let and = |more: &[Vec<(i64, String)>]| readers(&[&both, more].concat());
    assert_eq!(and(&[reads(60, "t2", 160, 160)]), [(20, 120), (30, 160)]);
    assert_eq!(and(&[leaves(60, "t1", Some(110))]), [(20, 60), (30, 110)]);
    // As long as one is there, nobody sets the key; afterwards anybody does.
    let set = line(70, &SET.replace("t1", "t3"));
    let one_gone = [leaves(60, "t1", Some(110)), set.clone()];
    assert_eq!(and(&one_gone), [(20, 60), (30, 110)]);
    let all_gone = [leaves(60, "t1", Some(110)), leaves(65, "t2", None), set];
    assert_eq!(and(&all_gone), [(20, 60), (30, 65), (70, 170)]);
    // On a node that is not marked it is none; in one breath with the mark it is.
    assert_eq!(readers(&both[1..]), []);
    let late_mark = line(40, &format!(r#""SET" "quorlock:node" {MARK}"#));
    assert_eq!(readers(&[both[1].clone(), late_mark]), [(20, 120)]);
}

#[test]
fn a_reader_whose_key_expires_earlier_has_a_vote_until_then_only() {
    let mark = line(10, &format!(r#""SET" "quorlock:node" {MARK}"#));
    let wrong = reads(30, "t2", 60, 60);
    let lines = [mark, reads(20, "t1", 120, 120), wrong, line(150, SET)];
    assert_eq!(readers(&lines), [(20, 60), (30, 60), (150, 250)]);
}

#[test]
fn a_downgrade_is_the_end_of_a_writers_vote_and_the_begin_of_a_readers() {
    let mark = line(10, &format!(r#""SET" "quorlock:node" {MARK}"#));
    let downgrade = vec![
        (50, r#""EVALSHA" "7" "1" "orders" "t1""#.to_owned()),
        (50, r#">"PEXPIREAT" "orders" "121""#.to_owned()),
        (50, r#">"DEL" "orders""#.to_owned()),
        (50, r#">"ZADD" "orders" "121" "t1""#.to_owned()),
        (50, r#">"PEXPIREAT" "orders" "121""#.to_owned()),
    ];
    let log = readers_log(&[mark, line(20, SET), downgrade, reads(60, "t2", 160, 160)]);
    assert_eq!(votes_in(&log), [(20, 50), (50, 121), (60, 160)]);
    let history = ClockHistory::right(0);
    let reading = Reading { history: &history, is_wrong: false, guarded: true };
    let nodes = [replay(&log, reading)];
    let of = |reads_from| Hold { reads_from: reads_from * MS, ..hold("t1", 25, 120) };
    assert_eq!(check_votes(&[of(49)], &nodes, 1).short, []);
    assert_eq!(check_votes(&[of(60)], &nodes, 1).short.len(), 1);
}

#[test]
fn it_is_counted_who_leaves_word_that_it_waits() {
    let log = stream(&[
        (20, r#">"SET" "quorlock:intent:orders" "t1" "PX" "1000""#),
        (30, r#">"SET" "quorlock:intent:till" "t2" "PX" "300""#),
    ]);
    let history = ClockHistory::right(0);
    let record = replay(&log, Reading { history: &history, is_wrong: false, guarded: true });
    assert_eq!((record.intents, record.longest_intent, record.votes), (2, 1000, Vec::new()));
}

#[test]
fn readers_are_found_again_in_what_a_server_says_that_it_has() {
    let mark = format!(r#""SET" "quorlock:node" {MARK}"#);
    let replica = line(40, &format!(r#""ECHO" "{REPLICA}""#));
    let again = line(50, r#""EVAL" "" "0" "again""#);
    let lines = [line(10, &mark), reads(20, "t1", 120, 120), replica, again];
    let votes_with = |run_id: &str, readers: &[(&str, i64)]| {
        let mut log = readers_log(&[&lines[..], &[reads(70, "t2", 170, 170)]].concat());
        let data = vec![(MARKER.to_owned(), MARK.trim_matches('"').to_owned(), -1)];
        let readers = readers.iter().map(|(value, until)| ((*value).to_owned(), *until)).collect();
        let sets = vec![("orders".to_owned(), readers, 70)];
        let dump = Dump { run_id: run_id.into(), promoted: "7".into(), data, sets };
        log.dumps.insert("again".into(), dump);
        votes_in(&log)
    };
    assert_eq!(votes_with("r1", &[("t1", 120)]), [(20, 120), (70, 170)]);
    // Another run, or without what it had.
    assert_eq!(votes_with("r2", &[("t1", 120)]), [(20, 120)]);
    assert_eq!(votes_with("r1", &[("t3", 120)]), [(20, 120)]);
}
