//! The text of a lease: one line that is safe without quotes in a shell.
//!
//! ```text
//! quorlock1:kind=fenced,key=deploy,value=…,ttl_ms=60000,end_unix_ns=…,…,check=0a1b2c3d
//! ```
//!
//! Each lease has exactly one text, so the parser refuses any other spelling of the same fields.

use std::fmt::{self, Write as _};
use std::iter::Peekable;
use std::str::{FromStr, Split};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use quorlock_core::{NodeId, NodeSet, Quorum, TTL_CEILING, TTL_MIN, Value};

use super::end::{BootEnd, LeaseEnd};
use super::{ClusterId, Keeper, Lease, LeaseKind};
use crate::client::Client;
use crate::resources::Resources;

/// The start of each text: the library, and the version of the format.
pub(super) const START: &str = "quorlock1:";

const CHECK: &str = ",check=";

/// The characters that are percent-encoded: all but letters, digits and six characters that no shell interprets.
pub(super) const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'/').remove(b':').remove(b'@').remove(b'_');

/// The names of all fields, in the order of the text. `key` is repeated for each resource.
const FIELDS: [&str; 17] = [
    "kind",
    "key",
    "value",
    "taken",
    "ttl_ms",
    "end_unix_ns",
    "boot_id",
    "end_boot_ns",
    "hold_until_ms",
    "nodes",
    "quorum",
    "cluster",
    "unanswered",
    "fencing_token",
    "keeper_pid",
    "keeper_started",
    "check",
];

const KINDS: [(LeaseKind, &str); 4] = [
    (LeaseKind::Exclusive, "exclusive"),
    (LeaseKind::Fenced, "fenced"),
    (LeaseKind::Shared, "shared"),
    (LeaseKind::Taken, "taken"),
];

/// The reason why a text is not a lease. The message never contains the text, because a lease is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseTextError {
    /// There is no text.
    #[error(
        "the lease is empty: the lock was not acquired, or the variable or file that should have the lease was not written"
    )]
    Empty,
    /// The text does not begin as a lease does.
    #[error(
        "this is no lease: a lease begins with \"{START}\"; pass the whole line that was printed for the lock"
    )]
    NotALease,
    /// Another version of the library wrote the text.
    #[error(
        "the lease has a format that this version of quorlock does not know; use the version that wrote it"
    )]
    OtherVersion,
    /// The text is longer than any lease.
    #[error("no lease: the text has {bytes} bytes, and a lease has at most {max}")]
    TooLong {
        /// Bytes in the text.
        bytes: usize,
        /// The largest number of bytes.
        max: usize,
    },
    /// The checksum does not match.
    #[error(
        "the lease is damaged: characters are missing, added or changed; pass the whole line that was printed for the lock"
    )]
    Damaged,
    /// The text has a field that no lease of this version has at this place.
    #[error(
        "the lease has a field that this version of quorlock does not write there; use the version that wrote it"
    )]
    UnknownField,
    /// A field is missing.
    #[error("the lease has no field \"{field}\"; use the version of quorlock that wrote it")]
    MissingField {
        /// The name of the field.
        field: &'static str,
    },
    /// The value of a field is impossible.
    #[error(
        "the lease has an impossible value in its field \"{field}\"; use the version of quorlock that wrote it"
    )]
    InvalidField {
        /// The name of the field.
        field: &'static str,
    },
}

impl Lease {
    /// The longest text, in bytes. The longest one that this version writes is about 800 KB: 64 names of 4096 bytes, all
    /// percent-encoded.
    pub const TEXT_BYTES_MAX: usize = 1024 * 1024;

    /// The text without the checksum.
    fn body(&self) -> String {
        let mut text = START.to_owned();
        // Writing to a string never fails.
        let _ = self.write_body(&mut text);
        text
    }

    fn write_body(&self, text: &mut String) -> fmt::Result {
        let kind = KINDS.iter().find(|(kind, _)| *kind == self.kind);
        write!(text, "kind={}", kind.map_or("", |(_, name)| name))?;
        for resource in self.resources.iter() {
            write!(text, ",key={}", percent_encode(resource.as_bytes(), ESCAPED))?;
        }
        write!(text, ",value={}", percent_encode(self.value.as_bytes(), ESCAPED))?;
        if let Some(taken) = &self.taken {
            write!(text, ",taken={}", percent_encode(taken.as_bytes(), ESCAPED))?;
        }
        let LeaseEnd { real_ns, boot } = self.end;
        write!(text, ",ttl_ms={},end_unix_ns={real_ns}", self.ttl.as_millis())?;
        if let Some(BootEnd { boot_id, ns }) = boot {
            write!(text, ",boot_id={boot_id:032x},end_boot_ns={ns}")?;
        }
        let ClusterId { quorum, digest } = self.cluster;
        let (nodes, needed) = (quorum.nodes(), quorum.needed());
        write!(text, ",hold_until_ms={}", self.hold_until_ms)?;
        write!(text, ",nodes={nodes},quorum={needed},cluster={digest:016x}")?;
        for (place, node) in self.unanswered.iter().enumerate() {
            let before = if place == 0 { ",unanswered=" } else { "." };
            write!(text, "{before}{}", node.index())?;
        }
        if let Some(fencing_token) = self.fencing_token {
            write!(text, ",fencing_token={fencing_token}")?;
        }
        if let Some(Keeper { pid, started }) = self.keeper {
            write!(text, ",keeper_pid={pid},keeper_started={started}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&sealed(&self.body()))
    }
}

/// The text with its checksum.
pub(super) fn sealed(body: &str) -> String {
    format!("{body}{CHECK}{}", checksum(body))
}

/// The first eight hexadecimal digits of the SHA-1.
fn checksum(body: &str) -> String {
    let [a, b, c, d, ..] = sha1_smol::Sha1::from(body).digest().bytes();
    format!("{:08x}", u32::from_be_bytes([a, b, c, d]))
}

impl FromStr for Lease {
    type Err = LeaseTextError;

    /// Reads the text that `Display` writes. White space after the text is ignored.
    fn from_str(text: &str) -> Result<Self, LeaseTextError> {
        let (bytes, max) = (text.len(), Self::TEXT_BYTES_MAX);
        if bytes > max {
            return Err(LeaseTextError::TooLong { bytes, max });
        }
        let text = text.trim_ascii_end();
        if text.is_empty() {
            return Err(LeaseTextError::Empty);
        }
        if !text.starts_with(START) {
            return Err(match is_of_other_version(text) {
                true => LeaseTextError::OtherVersion,
                false => LeaseTextError::NotALease,
            });
        }
        let (body, check) = text.rsplit_once(CHECK).ok_or(LeaseTextError::Damaged)?;
        if checksum(body) != check {
            return Err(LeaseTextError::Damaged);
        }
        let fields = body.strip_prefix(START).ok_or(LeaseTextError::NotALease)?;
        Fields(fields.split(',').peekable()).lease()
    }
}

fn is_of_other_version(text: &str) -> bool {
    let version = text.strip_prefix("quorlock").and_then(|rest| rest.split_once(':'));
    version.is_some_and(|(it, _)| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The fields of a text that are not yet read.
struct Fields<'a>(Peekable<Split<'a, char>>);

impl<'a> Fields<'a> {
    fn lease(mut self) -> Result<Lease, LeaseTextError> {
        let kind = self.required("kind", |text| {
            KINDS.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind)
        })?;
        let first = self.required("key", resource)?;
        let mut names = vec![first];
        while let Some(name) = self.optional("key", resource)? {
            names.push(name);
        }
        let wrong_key = LeaseTextError::InvalidField { field: "key" };
        let named = Resources::from(&names);
        let title = named.title();
        let resources = named.check().map_err(|_| wrong_key)?;
        let is_sorted = resources.iter().map(|name| &**name).eq(names.iter().map(String::as_str));
        if !is_sorted || (kind == LeaseKind::Taken && names.len() > 1) {
            return Err(wrong_key);
        }
        let value = self.required("value", |text| {
            bytes(text).filter(|value| Value::owner_of(value).is_some())
        })?;
        let taken = self.only_if(kind == LeaseKind::Taken, "taken", |text| {
            bytes(text).filter(|value| (1..=Client::VALUE_BYTES_MAX).contains(&value.len()))
        })?;
        let ttl = self.required("ttl_ms", |text| {
            let ttl = Duration::from_millis(number(text)?);
            (TTL_MIN..=TTL_CEILING).contains(&ttl).then_some(ttl)
        })?;
        let real_ns = self.required("end_unix_ns", number)?;
        let boot_id = self.optional("boot_id", |text| hex(text, 32))?;
        let end_boot_ns = self.only_if(boot_id.is_some(), "end_boot_ns", number)?;
        let boot = boot_id.zip(end_boot_ns).map(|(boot_id, ns)| BootEnd { boot_id, ns });
        let hold_until_ms = self.required("hold_until_ms", number)?;
        let nodes = self.required("nodes", number)?;
        let quorum = self.required("quorum", |text| Quorum::new(nodes, number(text)?).ok())?;
        let digest = self.required("cluster", |text| hex(text, 16))?;
        let digest =
            u64::try_from(digest).map_err(|_| LeaseTextError::InvalidField { field: "cluster" })?;
        let unanswered = self.optional("unanswered", |text| node_set(text, quorum))?;
        let fencing_token = self.only_if(kind == LeaseKind::Fenced, "fencing_token", number)?;
        let pid = self.optional("keeper_pid", number)?;
        let started = self.only_if(pid.is_some(), "keeper_started", number)?;
        let keeper = pid.zip(started).map(|(pid, started)| Keeper { pid, started });
        if self.0.next().is_some() {
            return Err(LeaseTextError::UnknownField);
        }
        Ok(Lease {
            kind,
            resources,
            title,
            value: Value::of_caller(&value),
            taken: taken.map(|taken| Value::of_caller(&taken)),
            ttl,
            end: LeaseEnd { real_ns, boot },
            hold_until_ms,
            unanswered: unanswered.unwrap_or_default(),
            cluster: ClusterId { quorum, digest },
            fencing_token,
            keeper,
        })
    }

    /// Reads the next field if it has this name.
    fn optional<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<Option<T>, LeaseTextError> {
        let is_next = |next: &&str| next.strip_prefix(field).is_some_and(|it| it.starts_with('='));
        let Some(next) = self.0.next_if(is_next) else { return Ok(None) };
        let text = &next[field.len() + 1..];
        read(text).map(Some).ok_or(LeaseTextError::InvalidField { field })
    }

    fn required<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, LeaseTextError> {
        if let Some(value) = self.optional(field, read)? {
            return Ok(value);
        }
        let place = |name: &str| FIELDS.iter().position(|field| *field == name);
        let next = self.0.peek().map(|next| place(next.split('=').next().unwrap_or_default()));
        Err(match next {
            // The next field has a name that no field has, or belongs before the field that is missing here.
            Some(next) if next < place(field) => LeaseTextError::UnknownField,
            _ => LeaseTextError::MissingField { field },
        })
    }

    /// Reads the field if the earlier fields require it. Otherwise the field stays unread, and is refused as unknown.
    fn only_if<T>(
        &mut self,
        is_needed: bool,
        field: &'static str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<Option<T>, LeaseTextError> {
        if is_needed { self.required(field, read).map(Some) } else { Ok(None) }
    }
}

/// The percent-decoded bytes of `text`. `None` if `Display` would encode them in another way.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let bytes: Vec<u8> = percent_decode_str(text).collect();
    let is_usual = percent_encode(&bytes, ESCAPED).flat_map(str::bytes).eq(text.bytes());
    is_usual.then_some(bytes)
}

fn resource(text: &str) -> Option<String> {
    String::from_utf8(bytes(text)?).ok()
}

/// A decimal number without sign and leading zeros.
fn number<T: FromStr + ToString>(text: &str) -> Option<T> {
    text.parse().ok().filter(|number: &T| number.to_string() == text)
}

/// A number of `digits` lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let number = u128::from_str_radix(text, 16).ok()?;
    (format!("{number:0digits$x}") == text).then_some(number)
}

/// Parses node positions: one or more, below the number of nodes, in rising order, separated by dots.
fn node_set(text: &str, quorum: Quorum) -> Option<NodeSet> {
    let mut before = None;
    let positions = text.split('.').map(|text| {
        let position = number::<usize>(text)?;
        let is_next = before.is_none_or(|before| before < position) && position < quorum.nodes();
        before = Some(position);
        is_next.then(|| NodeId::new(position))
    });
    positions.collect()
}
