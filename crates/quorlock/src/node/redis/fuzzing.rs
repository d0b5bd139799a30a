//! The bodies of the fuzz targets in `fuzz/`. The tests here run each body on some thousand inputs. A body asserts
//! properties of one kind of data from a server. The body for the texts of leases is in `lease/fuzzing.rs`.

#![allow(unreachable_pub, reason = "public where cargo-fuzz builds it, and nowhere else")]
#![allow(missing_docs, clippy::panic, reason = "each says what it asserts")]

mod answers;

use quorlock_core::display::{LINE_MAX, shown, shown_text, shown_value};
use quorlock_core::info::Info;
use quorlock_core::marker::{Adoption, Cluster, Marker};

use super::registration::Registration;
use super::resp::{self, Found, Malformed, Reply};

pub use self::answers::answers;

/// The most places at which an input is split. Long inputs have fewer places: all reads total at most `READ_MAX` bytes.
const SPLITS_MAX: usize = 256;
const READ_MAX: usize = 1024 * 1024;

/// Replies: the parser does not panic, and allocates no more memory than the input justifies. It returns the same
/// replies wherever the input is split. Strings that are read in place equal the parsed ones.
pub fn replies(data: &[u8]) {
    short_values(data);
    let whole = read_in_parts([data]);
    let splits = SPLITS_MAX.min(READ_MAX / data.len().max(1)).max(1);
    let step = data.len() / splits + 1;
    for place in (0..data.len()).step_by(step) {
        let (start, end) = data.split_at(place);
        assert_eq!(read_in_parts([start, end]), whole, "split at {place}");
    }
    let size = step.max(3);
    assert_eq!(read_in_parts(data.chunks(size)), whole, "in pieces of {size}");
}

/// Checks [`resp::short_value`] at all offsets, and returns the number of values that it finds.
fn short_values(data: &[u8]) -> usize {
    let values = (0..data.len()).filter_map(|place| {
        let (value, length) = resp::short_value(&data[place..])?;
        let reply = Reply::Bytes(value.to_vec());
        let found = Found::Reply { reply, length, surplus: 0 };
        assert_eq!(resp::read(&data[place..]), Ok(found), "at {place}");
        Some(())
    });
    values.count()
}

/// Commands: reading a written command gives the same command.
pub fn commands(data: &[u8]) {
    let data = &data[..data.len().min(16 * 1024)];
    let words: Vec<&[u8]> = data.split(|byte| *byte == b'|').collect();
    let mut out = Vec::new();
    resp::write(&mut out, &words);
    let list = Reply::List(words.iter().map(|word| Reply::Bytes(word.to_vec())).collect());
    let found = Found::Reply { reply: list, length: out.len(), surplus: 0 };
    match resp::read(&out) {
        Ok(read) => assert_eq!(read, found),
        // The parser may refuse the words only because they are longer than any reply may be.
        Err(Malformed) => assert!(out.len() > resp::REPLY_MAX, "{} bytes", out.len()),
    }
}

/// The replies that the wire reads if these parts arrive one after the other, and whether the input was valid.
fn read_in_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Reply>, bool) {
    let (mut input, mut replies): (Vec<u8>, Vec<Reply>) = Default::default();
    let (mut at, mut needed, mut surplus) = (0, 1, 0);
    for part in parts {
        input.extend_from_slice(part);
        loop {
            let skipped = surplus.min(input.len() - at);
            (surplus, at) = (surplus - skipped, at + skipped);
            if input.len() - at < needed {
                break;
            }
            match resp::read(&input[at..]) {
                Err(Malformed) => return (replies, false),
                Ok(Found::Part { needed: more }) => {
                    assert!(more > input.len() - at, "it would be looked at for ever");
                    needed = more;
                    break;
                }
                Ok(Found::Reply { reply, length, surplus: rest }) => {
                    assert!(length <= input.len() - at, "of what is not there");
                    assert!(held_by(&reply) <= 64 * length + 32 * 1024, "memory for nothing");
                    (at, needed, surplus) = (at + length, 1, rest);
                    replies.push(reply);
                }
            }
        }
    }
    (replies, true)
}

/// Bytes that a reply has allocated.
fn held_by(reply: &Reply) -> usize {
    match reply {
        Reply::Text(text) | Reply::Error(text) => text.capacity(),
        Reply::Bytes(bytes) => bytes.capacity(),
        Reply::List(list) | Reply::Push(list) => {
            list.capacity() * size_of::<Reply>() + list.iter().map(held_by).sum::<usize>()
        }
        Reply::Okay | Reply::Int(_) | Reply::Nil => 0,
    }
}

/// Markers (keys that show that no data was lost) and adoptions (texts that start a node's wait): writing and parsing
/// one again gives the same one, whatever the names.
pub fn marker(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let cluster = Cluster::new(text.split('\n'), data.len(), data.len() as u64);
    let made = Marker { cluster, run_id: "0d2f".into(), promoted_at: -1, floor: 7 };
    for marker in Marker::parse(&text).into_iter().chain([made.clone()]) {
        assert_eq!(Marker::parse(&marker.to_string()), Some(marker));
    }
    let made = Adoption { marker: made, wait_ms: u64::MAX };
    for adoption in Adoption::parse(&text).into_iter().chain([made]) {
        assert_eq!(Adoption::parse(&adoption.to_string()), Some(adoption));
    }
    is_fit_to_be_shown(&text);
}

/// Registrations: only the number of this client's database is accepted. Any other text is refused, and reported in a
/// form that can be shown.
pub fn registration(data: &[u8]) {
    const OURS: u32 = 3;
    let registration = Registration::of_marker(&"quorlock:node".into(), OURS).expect("its key");
    let as_error = Reply::Error(String::from_utf8_lossy(data).into_owned());
    for reply in [Reply::Bytes(data.to_vec()), as_error] {
        let is_ours = reply == Reply::Bytes(OURS.to_string().into_bytes());
        match registration.check(&reply) {
            Ok(()) => assert!(is_ours, "{reply:?}"),
            Err(failure) => {
                assert!(!is_ours);
                let shown = failure.to_string();
                assert!(!shown.contains(char::is_control), "{shown:?}");
                assert!(shown.chars().count() <= 3 * LINE_MAX, "{shown}");
            }
        }
    }
}

/// `INFO`: the parser does not panic, and the run id fits into a marker.
pub fn info(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(info) = Info::parse(&text) else { return };
    let cluster = Cluster::new(["a"], 1, 30_000);
    let promoted_at = info.promoted_at.unwrap_or(-1);
    let marker = Marker { cluster, run_id: info.run_id, promoted_at, floor: 0 };
    assert_eq!(Marker::parse(&marker.to_string()), Some(marker));
}

fn is_fit_to_be_shown(text: &str) {
    for shown in [shown(text, LINE_MAX), shown_text(text), shown_value(text.as_bytes())] {
        assert!(shown.chars().count() <= LINE_MAX + 1, "{shown}");
        assert!(!shown.contains(char::is_control), "{shown:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use fastrand::Rng;

    use super::*;
    use crate::lease::fuzzing::lease;
    use crate::lease::tests::random_text;

    /// Environment variable that repeats a failed run, if it is set to the printed seed.
    const SEED_VARIABLE: &str = "QUORLOCK_FUZZ_SEED";

    const INPUTS: u64 = 2_000;

    fn pick<'a>(random: &mut Rng, from: &[&'a str]) -> &'a str {
        from[random.usize(..from.len())]
    }

    fn bytes(random: &mut Rng, most: usize) -> Vec<u8> {
        (0..random.usize(..=most)).map(|_| random.u8(..)).collect()
    }

    /// Appends a reply that is valid in most cases.
    fn reply(random: &mut Rng, depth: usize, out: &mut Vec<u8>) {
        let kinds = if depth < 4 { 14 } else { 9 };
        match random.usize(..kinds) {
            0 => out.extend(b"+OK\r\n"),
            1 => out.extend(b"-ERR no\r\n"),
            2 => out.extend(format!(":{}\r\n", random.i64(..)).bytes()),
            3 => out.extend(
                pick(random, &["_\r\n", "$-1\r\n", "*-1\r\n", "#t\r\n", ",1.5\r\n"]).bytes(),
            ),
            4..=8 => {
                let most = [20, 20, 20, 200][random.usize(..4)];
                let bytes = bytes(random, most);
                let mark = pick(random, &["$", "=", "!"]);
                out.extend(format!("{mark}{}\r\n", bytes.len()).bytes());
                out.extend(bytes);
                out.extend(b"\r\n");
            }
            _ => {
                let mark = pick(random, &["*", "*", "~", ">", "%", "|"]);
                let count = random.usize(..5);
                let parts = if matches!(mark, "%" | "|") { 2 * count } else { count };
                out.extend(format!("{mark}{count}\r\n").bytes());
                (0..parts).for_each(|_| reply(random, depth + 1, out));
            }
        }
    }

    fn stream(random: &mut Rng) -> Vec<u8> {
        // `1` makes a value near the size at which values are cut, `2` a line near the size of the largest reply.
        match random.usize(..300) {
            0 => return bytes(random, 200),
            1 => {
                let size = resp::BYTES_KEPT - 5 + random.usize(..100);
                return format!("${size}\r\n{}\r\n:1\r\n", "x".repeat(size)).into_bytes();
            }
            2 => {
                let size = resp::REPLY_MAX - 5 + random.usize(..10);
                return format!("+{}\r\n:1\r\n", "x".repeat(size)).into_bytes();
            }
            _ => {}
        }
        let mut out = Vec::new();
        (0..random.usize(1..7)).for_each(|_| reply(random, 0, &mut out));
        spoil(random, out)
    }

    /// Two bytes that choose a command, then a reply. Most replies contain the list of key states of a script.
    fn answer(random: &mut Rng) -> Vec<u8> {
        // At least half of the commands read keys.
        let kind = if random.bool() { random.u8(..2) } else { random.u8(..) };
        let flags = random.u8(..);
        let mut out = vec![kind, flags];
        if random.u8(..4) == 0 {
            out.extend(stream(random));
            return out;
        }
        // The lowest bit of `flags` decides whether the command has one key or two.
        let keys = 1 + flags % 2;
        let list = format!("*{keys}\r\n");
        let (watched, refused) = (format!("+OK\r\n{list}"), format!("*{}\r\n:7\r\n", keys + 1));
        out.extend(pick(random, &[&list, &list, &watched, &refused, "$1\r\nv\r\n"]).bytes());
        for _ in 0..keys {
            let size = random.usize(..700);
            let value = format!("${size}\r\n{}\r\n", "x".repeat(size));
            let state = match random.u8(..6) {
                0 => pick(random, &[":-2\r\n", ":0\r\n", ":-1\r\n", "_\r\n"]).to_owned(),
                1 => format!("*3\r\n+held\r\n:-1\r\n{value}"),
                2 => format!("*3\r\n$4\r\nheld\r\n:5\r\n{value}"),
                3 => format!("*3\r\n$9\r\nannounced\r\n:5\r\n{value}"),
                4 => "*2\r\n$5\r\nother\r\n:-1\r\n".to_owned(),
                _ => {
                    let readers = [0, 1, 3, 100][random.usize(..4)];
                    let length = 3 + 2 * readers;
                    let start = format!("*{length}\r\n$6\r\nshared\r\n:5\r\n:{readers}\r\n");
                    start + &format!("{value}:3\r\n").repeat(readers)
                }
            };
            out.extend(state.bytes());
        }
        if random.u8(..3) == 0 { spoil(random, out) } else { out }
    }

    /// In half of the cases, changes a few bytes or cuts the text.
    fn spoil(random: &mut Rng, mut text: Vec<u8>) -> Vec<u8> {
        let changes = if random.bool() { 0 } else { random.usize(1..4) };
        for _ in 0..changes {
            if text.is_empty() {
                break;
            }
            let place = random.usize(..text.len());
            match random.u8(..4) {
                0 => text[place] = random.u8(..),
                1 => text.insert(place, b"0123456789-\r\n =,:"[random.usize(..17)]),
                2 => drop(text.remove(place)),
                _ => text.truncate(place + 1),
            }
        }
        text
    }

    /// The text of a marker or of an adoption.
    fn marker_text(random: &mut Rng) -> Vec<u8> {
        let name = |random: &mut Rng| String::from_utf8_lossy(&bytes(random, 8)).into_owned();
        let names: Vec<String> = (0..random.u8(..6)).map(|_| name(random)).collect();
        let cluster = Cluster::new(names, random.usize(..9), random.u64(..) >> random.u32(..64));
        let run_id = pick(random, &["0d2f", "x", "a=b", "run_id=run_id="]).into();
        let (promoted_at, floor) = (random.i64(..), random.u64(..));
        let mut text = Marker { cluster, run_id, promoted_at, floor }.to_string();
        if random.bool() {
            text += &format!(" wait_ms={}", random.u64(..));
        }
        spoil(random, text.into_bytes())
    }

    fn database(random: &mut Rng) -> Vec<u8> {
        if random.u8(..3) == 0 {
            return (random.u64(..) >> random.u32(..64)).to_string().into_bytes();
        }
        let texts = ["3", "0", "15", "WRONGTYPE Operation", "NOPERM no", "LOADING it"];
        let text = pick(random, &texts).into();
        spoil(random, text)
    }

    fn info_text(random: &mut Rng) -> Vec<u8> {
        let mut text = String::from("# Server\r\n");
        for line in [
            "run_id:0d2f",
            "uptime_in_seconds:61",
            "role:master",
            "redis_mode:standalone",
            "loading:0",
            "master_replid2:0000",
            "second_repl_offset:-1",
            "maxmemory:0",
            "maxmemory_policy:noeviction",
            "server_time_usec:1795201160638971",
            "aof_enabled:1",
        ] {
            if random.u8(..20) > 0 {
                text.push_str(line);
                text.push_str(pick(random, &["\r\n", "\r\n", "\r\n", "\n", " ", "9\r\n"]));
            }
        }
        spoil(random, text.into_bytes())
    }

    /// The text of a lease, with or without its checksum. The body of the target computes the checksum.
    fn lease_text(random: &mut Rng) -> Vec<u8> {
        let text = random_text(random);
        if random.u8(..4) == 0 {
            return text.into_bytes();
        }
        let body = text.rsplit_once(",check=").map_or("", |(body, _)| body);
        spoil(random, body.into())
    }

    /// A target: its name, its body, and the generator of its inputs.
    type Target = (&'static str, fn(&[u8]), fn(&mut Rng) -> Vec<u8>);

    const TARGETS: [Target; 7] = [
        ("replies", replies, stream),
        ("answers", answers, answer),
        ("commands", commands, |random| bytes(random, 300)),
        ("marker", marker, marker_text),
        ("registration", registration, database),
        ("info", info, info_text),
        ("lease", lease, lease_text),
    ];

    fn run(seed: u64) {
        println!("{SEED_VARIABLE}={seed}");
        for (name, body, input) in TARGETS {
            let mut random = Rng::with_seed(seed);
            for number in 0..INPUTS {
                let input = input(&mut random);
                let held = std::panic::catch_unwind(|| body(&input));
                if held.is_err() {
                    let shown = input.escape_ascii().to_string();
                    let shown = &shown[..shown.len().min(2000)];
                    panic!("{name}, input {number} of seed {seed}: {shown}");
                }
            }
        }
    }

    #[test]
    fn pinned_inputs_do_no_harm() {
        run(1);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a number that no other day has, and no time")]
    fn inputs_of_the_day_do_no_harm() {
        let now =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        let given = std::env::var(SEED_VARIABLE).ok();
        run(given.map_or(now, |seed| seed.parse().unwrap()));
    }

    /// The generators must make enough inputs of both kinds, valid and invalid.
    #[test]
    fn inputs_are_of_both_kinds() {
        let mut random = Rng::with_seed(1);
        let (mut good, mut bad, mut values, mut held) = (0, 0, 0, 0);
        let (mut markers, mut adoptions, mut infos) = (0, 0, 0);
        for _ in 0..2000 {
            let stream = stream(&mut random);
            let (replies, well) = read_in_parts([&*stream]);
            values += short_values(&stream);
            good += usize::from(well && !replies.is_empty());
            bad += usize::from(!well);
            held += usize::from(answers::are_looked_at(&answer(&mut random)));
            let text = marker_text(&mut random);
            let text = String::from_utf8_lossy(&text);
            markers += usize::from(Marker::parse(&text).is_some());
            adoptions += usize::from(Adoption::parse(&text).is_some());
            let info = info_text(&mut random);
            infos += usize::from(Info::parse(&String::from_utf8_lossy(&info)).is_ok());
        }
        let counts = [good, bad, values, held, markers, adoptions, infos];
        let least = [500, 200, 500, 100, 500, 200, 300];
        assert!(counts.iter().zip(least).all(|(count, least)| *count > least), "{counts:?}");
    }
}
