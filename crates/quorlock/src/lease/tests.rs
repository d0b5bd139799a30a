//! Tests of a lease's text, its end, and the identity of its configuration.

use std::collections::BTreeSet;
use std::process::Command;

use quorlock_core::{NodeId, Reading, TTL_CEILING, TTL_MIN};

use super::end::BootEnd;
use super::format::sealed;
use super::*;
use crate::resources::Resources;

/// The example of docs/wire.md, "Lease text".
const EXAMPLE: &str = "quorlock1:kind=fenced,key=account:7,key=account:9,\
    value=4f8c0de1a92b3c7d5e6f708192a3b4c5d6e7f809%20@1764065000123%20web-3:812%20transfer,\
    ttl_ms=60000,end_unix_ns=1764065059398000000,\
    boot_id=7a3c9f1e2b4d4c6e8f90a1b2c3d4e5f6,end_boot_ns=5417233000000,\
    hold_until_ms=1764151400123,nodes=5,quorum=3,cluster=475244833841c3e3,unanswered=1.4,\
    fencing_token=1764065000123456,keeper_pid=4711,keeper_started=541723,check=5fabecd7";

fn example() -> Lease {
    EXAMPLE.parse().expect("the text of a lease")
}

fn token(random: &mut fastrand::Rng) -> quorlock_core::Token {
    quorlock_core::Token::new(std::array::from_fn(|_| random.u8(..)))
}

/// A name of any characters that a resource may have.
fn name(random: &mut fastrand::Rng) -> String {
    let is_long = random.u8(..64) == 0;
    let chars_max = if is_long { Resources::NAME_BYTES_MAX / 4 } else { 8 };
    let name: String = (0..random.usize(1..=chars_max)).map(|_| random.char(..)).collect();
    if name.contains("quorlock:") { "it".to_owned() } else { name }
}

/// A number whose length is random too.
fn number(random: &mut fastrand::Rng) -> u64 {
    random.u64(..) >> random.u32(..64)
}

/// A lease with random fields, some of them at their bounds.
fn random_lease(random: &mut fastrand::Rng) -> Lease {
    use LeaseKind::{Exclusive, Fenced, Shared, Taken};
    let kind = [Exclusive, Fenced, Shared, Taken][random.usize(..4)];
    let count = [1, 1, 2, Resources::COUNT_MAX][random.usize(..4)];
    let count = if kind == Taken { 1 } else { count };
    let names: BTreeSet<String> = (0..count).map(|_| name(random)).collect();
    let named = Resources::from(names.into_iter().collect::<Vec<_>>());
    let title = named.title();
    let resources = named.check().expect("names that can be locked");
    let owner = if random.bool() { String::new() } else { name(random) };
    let caller = |random: &mut fastrand::Rng| {
        let bytes: Vec<u8> = (0..random.usize(1..40)).map(|_| random.u8(..)).collect();
        Value::of_caller(&bytes)
    };
    let node_count = random.usize(1..=31);
    let quorum = Quorum::new(node_count, random.usize(node_count / 2 + 1..=node_count));
    let quorum = quorum.expect("at least a majority");
    let reading = Reading::new(number(random) as i64, number(random) as i64);
    let boot_id = random.bool().then(|| random.u128(..));
    let ttl_ms = [
        TTL_MIN.as_millis() as u64,
        TTL_CEILING.as_millis() as u64,
        random.u64(TTL_MIN.as_millis() as u64..=TTL_CEILING.as_millis() as u64),
    ][random.usize(..3)];
    let unanswered = (0..node_count).filter(|_| random.u8(..4) == 0).map(NodeId::new).collect();
    Lease {
        kind,
        resources,
        title,
        value: Value::dated(&token(random), &owner, reading, None),
        taken: (kind == Taken).then(|| caller(random)),
        ttl: Duration::from_millis(ttl_ms),
        end: LeaseEnd::with_boot_id(boot_id, reading, Duration::from_nanos(number(random))),
        hold_until_ms: number(random),
        unanswered,
        cluster: ClusterId { quorum, digest: random.u64(..) },
        fencing_token: (kind == Fenced).then(|| NonZeroU64::new(number(random).max(1)).unwrap()),
        keeper: random.bool().then(|| Keeper { pid: random.u32(..), started: number(random) }),
    }
}

/// The text of a random lease. It is safe in a shell, and the parser reads this lease from it.
pub(crate) fn random_text(random: &mut fastrand::Rng) -> String {
    let lease = random_lease(random);
    let text = lease.to_string();
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "-./:@_%,=".contains(c);
    assert!(text.chars().all(is_safe) && text.len() <= Lease::TEXT_BYTES_MAX, "{text}");
    assert_eq!(text.parse(), Ok(lease), "{text}");
    text
}

#[test]
fn the_example_of_the_protocol_has_these_fields() {
    let lease = example();
    assert_eq!(lease.to_string(), EXAMPLE);
    assert_eq!(lease.kind(), LeaseKind::Fenced);
    assert_eq!(lease.resource(), "account:7, account:9");
    assert_eq!(lease.resources().collect::<Vec<_>>(), ["account:7", "account:9"]);
    let value = b"4f8c0de1a92b3c7d5e6f708192a3b4c5d6e7f809 @1764065000123 web-3:812 transfer";
    assert_eq!(lease.value.as_bytes(), value);
    assert_eq!(lease.value(), None, "the caller chose no value");
    assert_eq!(lease.ttl(), Duration::from_secs(60));
    assert_eq!(lease.valid_until(), UNIX_EPOCH + Duration::from_millis(1_764_065_059_398));
    let boot_id = 0x7a3c_9f1e_2b4d_4c6e_8f90_a1b2_c3d4_e5f6;
    assert_eq!(lease.end.boot, Some(BootEnd { boot_id, ns: 5_417_233_000_000 }));
    assert_eq!(lease.hold_until_ms, 1_764_151_400_123);
    let nodes = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"];
    let nodes = nodes.map(|host| format!("{host}:6379"));
    let nodes = nodes.iter().map(|name| (&**name, 0));
    assert_eq!(lease.cluster, ClusterId::new(Quorum::majority(5).unwrap(), nodes, ""));
    assert_eq!(lease.unanswered.iter().map(NodeId::index).collect::<Vec<_>>(), [1, 4]);
    assert_eq!(lease.fencing_token().map(NonZeroU64::get), Some(1_764_065_000_123_456));
    let keeper = Keeper { pid: 4711, started: 541_723 };
    assert_eq!(lease.keeper(), Some(keeper));
    let other = Keeper { pid: 1, ..keeper };
    assert_eq!(lease.kept_by(other).keeper(), Some(other));
}

/// The checksum detects every edit of one character: replaced, deleted, inserted, or exchanged with the next one.
#[test]
fn each_edit_of_one_character_is_refused() {
    let printable = || (b' '..=b'~').map(char::from);
    let mut edits = 0;
    let mut refuse = |text: &str| {
        edits += 1;
        assert!(text.parse::<Lease>().is_err(), "{text}");
    };
    for place in 0..EXAMPLE.len() {
        let (before, rest) = EXAMPLE.split_at(place);
        let (this, after) = rest.split_at(1);
        refuse(before);
        refuse(&format!("{before}{after}"));
        for other in printable() {
            if !this.starts_with(other) {
                refuse(&format!("{before}{other}{after}"));
            }
            refuse(&format!("{before}{other}{rest}"));
        }
        if let Some(next) = after.chars().next().filter(|next| !this.starts_with(*next)) {
            refuse(&format!("{before}{next}{this}{}", &after[1..]));
        }
    }
    for last in printable().filter(|last| *last != ' ') {
        refuse(&format!("{EXAMPLE}{last}"));
    }
    assert!(edits > 190 * EXAMPLE.len(), "{edits} edits");
}

#[test]
fn a_text_with_a_right_checksum_is_refused_with_the_field_that_is_wrong() {
    use LeaseTextError::{InvalidField, MissingField, UnknownField};
    let (body, _) = EXAMPLE.rsplit_once(",check=").unwrap();
    assert_eq!(sealed(body), EXAMPLE, "the text of an edit has the right checksum");
    let missing = |field| MissingField { field };
    let invalid = |field| InvalidField { field };
    // The impossible values of each field are separated by `|`.
    for (field, values) in [
        ("kind", "writer"),
        ("key", "|account:9|b|account%3a7|account%3A7|%FF|a%2|a=b|app:quorlock:node"),
        ("value", ""),
        ("ttl_ms", "99|86400001|060000|+60000|60000.5|18446744073709611616"),
        ("end_unix_ns", "-1764065059398000000"),
        ("boot_id", "7a3c|7A3C9F1E2B4D4C6E8F90A1B2C3D4E5F6"),
        ("hold_until_ms", ""),
        ("quorum", "2|6"),
        ("cluster", "93c1|1475244833841c3e3"),
        ("unanswered", "|1.5|4.1|1.1|1."),
        ("fencing_token", "0"),
        ("keeper_pid", "4294967296"),
    ] {
        let (before, rest) = body.split_once(&format!("{field}=")).unwrap();
        let (_, after) = rest.split_once(',').unwrap();
        for value in values.split('|') {
            let refused = sealed(&format!("{before}{field}={value},{after}")).parse::<Lease>();
            assert_eq!(refused, Err(invalid(field)), "{field}={value}");
        }
    }
    let id = "boot_id=7a3c9f1e2b4d4c6e8f90a1b2c3d4e5f6,";
    for (from, to, expected) in [
        ("kind=fenced,", "", missing("kind")),
        ("kind=fenced,", "kind=exclusive,", UnknownField),
        ("kind=fenced,", "mode=7,kind=fenced,", UnknownField),
        ("kind=fenced,", "kind=fenced,kind=fenced,", UnknownField),
        ("kind=fenced,", "kind=fenced,,", UnknownField),
        ("key=account:7,key=account:9,", "", missing("key")),
        (",value=4f8c", ",value=4f 8c", invalid("value")),
        (",value=4f8c", ",value=4F8C", invalid("value")),
        (",value=4f8c", ",worth=4f8c", UnknownField),
        ("ttl_ms=60000,", "", missing("ttl_ms")),
        (id, "", UnknownField),
        ("end_boot_ns=5417233000000,", "", missing("end_boot_ns")),
        ("nodes=5", "nodes=2", invalid("quorum")),
        ("nodes=5", "nodes=32", invalid("quorum")),
        ("fencing_token=1764065000123456,", "", missing("fencing_token")),
        ("keeper_pid=4711,", "", UnknownField),
        (",keeper_started=541723", "", missing("keeper_started")),
        ("keeper_started=541723", "keeper_started=541723,more=1", UnknownField),
        ("keeper_started=541723", "keeper_started=541723,", UnknownField),
    ] {
        assert!(body.contains(from), "{from}");
        let refused = sealed(&body.replacen(from, to, 1)).parse::<Lease>();
        assert_eq!(refused, Err(expected), "{from} → {to}");
    }
    let taken = body.replace("fenced", "taken").replace("fencing_token=1764065000123456,", "");
    let with =
        |taken: &str, value: &str| taken.replace(",ttl_ms", &format!(",taken={value},ttl_ms"));
    assert_eq!(sealed(&with(&taken, "mine")).parse::<Lease>(), Err(invalid("key")), "two keys");
    let taken = taken.replace("key=account:9,", "");
    assert_eq!(sealed(&taken).parse::<Lease>(), Err(missing("taken")));
    assert_eq!(sealed(&with(&taken, "")).parse::<Lease>(), Err(invalid("taken")));
    let lease: Lease = sealed(&with(&taken, "mine%00")).parse().expect("a value of the caller");
    assert_eq!(lease.value(), Some(&b"mine\0"[..]));
    let optional = [id, "end_boot_ns=5417233000000,", "unanswered=1.4,"];
    let without = optional.iter().fold(body.to_owned(), |body, field| body.replace(field, ""));
    let lease: Lease = sealed(&without).parse().expect("these fields may be left out");
    assert!(lease.end.boot.is_none() && lease.unanswered.is_empty());
}

#[test]
fn a_text_that_is_no_lease_is_refused_with_the_remedy_and_never_repeated() {
    let long = "x".repeat(Lease::TEXT_BYTES_MAX + 1);
    let (body, check) = EXAMPLE.split_at(EXAMPLE.len() - 8);
    let other_check = format!("{body}{}", check.to_uppercase());
    for (text, expected) in [
        ("", "the lease is empty: the lock was not acquired"),
        (" \r\n", "the lease is empty: the lock was not acquired"),
        ("deploy", "this is no lease: a lease begins with \"quorlock1:\""),
        ("quorlock:", "this is no lease: a lease begins with"),
        (&format!(" {EXAMPLE}"), "this is no lease: a lease begins with"),
        (&EXAMPLE.to_uppercase(), "this is no lease: a lease begins with"),
        (&EXAMPLE.replacen('1', "2", 1), "a format that this version of quorlock does not know"),
        ("quorlock1:", "the lease is damaged"),
        (&other_check, "the lease is damaged"),
        (&EXAMPLE.replace(",unanswered=1.4", ""), "the lease is damaged"),
        (&format!("{EXAMPLE} {EXAMPLE}"), "the lease is damaged"),
        (&long, "the text has 1048577 bytes, and a lease has at most 1048576"),
    ] {
        let told = text.parse::<Lease>().unwrap_err().to_string();
        assert!(told.contains(expected), "{told}");
        assert!(!told.contains("4f8c") && !told.contains("deploy"), "{told}");
    }
    assert!(!format!("{:?}", example()).contains("4f8c"), "{:?}", example());
    for space in ["\n", "\r\n", " ", "\t\n\n"] {
        assert_eq!(format!("{EXAMPLE}{space}").parse(), Ok(example()));
    }
}

/// The shells of this machine pass the text as one unchanged word, from a variable too.
#[test]
fn shells_pass_the_text_unchanged_without_quotes() {
    let named = Resources::from((' '..='~').collect::<String>());
    let (title, resources) = (named.title(), named.check().unwrap());
    let text = Lease { title, resources, ..example() }.to_string();
    let mut shells = 0;
    for shell in ["sh", "dash", "bash", "zsh", "fish"] {
        let assign = if shell == "fish" { "set lease " } else { "lease=" };
        let script = format!("{assign}{text}; printf '<%s>' {text} $lease x{text}");
        let Ok(output) = Command::new(shell).arg("-c").arg(script).output() else { continue };
        let told = String::from_utf8_lossy(&output.stdout);
        assert_eq!(told, format!("<{text}><{text}><x{text}>"), "{shell}");
        shells += 1;
    }
    assert!(shells > 0, "no shell");
}

/// Linux passes at most 128 KiB as one argument, with a zero byte at the end.
#[test]
fn a_lease_of_64_keys_fits_into_one_argument() {
    const ARGUMENT_BYTES_MAX: usize = 128 * 1024 - 1;
    let with = |names: Vec<String>| {
        let named = Resources::from(names);
        let text = Lease { title: named.title(), resources: named.check().unwrap(), ..example() };
        text.to_string()
    };
    let plain = with((0..64).map(|number| format!("{number:02}{}", "x".repeat(1998))).collect());
    assert!(plain.len() <= ARGUMENT_BYTES_MAX, "{} bytes", plain.len());
    let longest = with((0..64).map(|number| format!("{number:02}{}", "\n".repeat(4094))).collect());
    assert!(longest.len() <= Lease::TEXT_BYTES_MAX, "{} bytes", longest.len());
    assert_eq!(longest.parse::<Lease>().unwrap().to_string(), longest);
}

#[test]
fn the_earlier_clock_shows_the_end_and_after_a_reboot_the_wall_clock_alone() {
    let second = |count: i64| count * 1_000_000_000;
    let at = |boot: i64, real: i64| Reading::new(second(boot), second(real));
    let end = LeaseEnd::with_boot_id(Some(7), at(100, 5000), Duration::from_secs(10));
    let left = |boot_id, now| end.remaining_in(boot_id, now).as_secs();
    assert_eq!(left(Some(7), at(104, 5004)), 6);
    assert_eq!(left(Some(7), at(104, 5009)), 1, "the machine was paused");
    assert_eq!(left(Some(7), at(104, 4000)), 6, "the wall clock was set back");
    assert_eq!(left(Some(7), at(110, 5000)), 0);
    assert_eq!(left(Some(8), at(900, 5004)), 6, "after a reboot");
    assert_eq!(left(None, at(900, 5004)), 6, "on a machine without a boot id");
    assert_eq!(end.since_epoch(), Duration::from_secs(5010));
    let over = LeaseEnd::with_boot_id(None, at(-5, -5), Duration::ZERO);
    assert_eq!(over.remaining_in(Some(7), at(-9, -9)), Duration::ZERO);
    for clock in [Clock::System, Clock::Tokio] {
        let minute = LeaseEnd::new(clock, Clock::System.now(), Duration::from_secs(60));
        let lease = Lease { end: minute, ..example() };
        assert!((59..=60).contains(&lease.remaining().as_secs()), "{:?}", lease.remaining());
    }
    assert_eq!(example().remaining(), Duration::ZERO);
}

/// No other process can read the tokio clock, so a lease states its end by the clocks of the system.
#[tokio::test(start_paused = true)]
async fn a_lease_of_a_client_with_the_tokio_clock_ends_by_the_system_clock() {
    let end = LeaseEnd::new(Clock::Tokio, Clock::Tokio.now(), Duration::from_secs(60));
    tokio::time::advance(Duration::from_secs(50)).await;
    assert!(Lease { end, ..example() }.remaining() > Duration::from_secs(50));
}

#[test]
fn another_configuration_has_another_identity() {
    let id = |needed, nodes: &[(&str, u32)], prefix| {
        let quorum = Quorum::new(nodes.len(), needed).unwrap();
        ClusterId::new(quorum, nodes.iter().copied(), prefix)
    };
    let nodes = [("a:1", 0), ("b:1", 0), ("c:1", 0)];
    let ours = id(2, &nodes, "app:");
    assert_eq!(id(2, &nodes, "app:").difference(&ours), None);
    let names = "the names, order or databases of the nodes, or the key prefix, differ";
    for (other, expected) in [
        (id(2, &nodes, "app"), names),
        (id(2, &[nodes[1], nodes[0], nodes[2]], "app:"), names),
        (id(2, &[nodes[0], nodes[1], ("c:2", 0)], "app:"), names),
        (id(2, &[nodes[0], nodes[1], ("c:1", 1)], "app:"), names),
        (id(2, &[nodes[0], nodes[1], ("c:1,database=0", 0)], "app:"), names),
        (
            id(3, &nodes, "app:"),
            "it was made with 3 of 3 nodes as the quorum, and this client needs 2 of 3",
        ),
        (
            id(2, &nodes[..2], "app:"),
            "it was made with 2 of 2 nodes as the quorum, and this client needs 2 of 3",
        ),
    ] {
        assert_eq!(other.difference(&ours).as_deref(), Some(expected));
    }
}

/// With serde, a lease is serialized as its text.
#[cfg(feature = "serde")]
#[test]
fn serde_writes_and_reads_the_text() {
    use ::serde::de::value::{Error, StrDeserializer};
    use ::serde::de::{Deserialize as _, IntoDeserializer as _};
    struct Serialized(Lease);
    impl fmt::Display for Serialized {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            ::serde::Serialize::serialize(&self.0, f)
        }
    }
    assert_eq!(Serialized(example()).to_string(), EXAMPLE);
    let read = |text: &'static str| {
        let text: StrDeserializer<'_, Error> = text.into_deserializer();
        Lease::deserialize(text)
    };
    assert_eq!(read(EXAMPLE).unwrap(), example());
    let damaged = read(&EXAMPLE[..40]).unwrap_err().to_string();
    assert_eq!(damaged, LeaseTextError::Damaged.to_string());
}
