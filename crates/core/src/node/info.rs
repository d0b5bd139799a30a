//! The parts of a server's `INFO` that decide whether its votes count.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::fmt;

use crate::display::{WORD_MAX, shown};

/// A server's `INFO`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Info {
    /// Random id of the server process, new at every start.
    pub run_id: Box<str>,
    /// Uptime in whole seconds of the server's wall clock. Negative if that clock was set back.
    pub uptime_s: i64,
    /// Whether the server is a master.
    pub is_master: bool,
    /// Whether the server is part of a cluster, which may move keys to other nodes.
    pub is_cluster: bool,
    /// Whether the server is loading its data.
    pub is_loading: bool,
    /// Replication offset at which the server was promoted; `None` if it was no replica since its start.
    pub promoted_at: Option<i64>,
    /// The server's eviction policy; `None` if the server deletes no keys when its memory is full.
    pub evicts_by: Option<Box<str>>,
    /// Number of replicas that are connected to the server.
    pub replicas: u32,
    /// The server's wall clock in microseconds since the Unix epoch, if `INFO` contains it.
    pub time_us: Option<i64>,
    /// Whether the server keeps an append-only file; `None` if `INFO` does not contain this.
    pub keeps_log: Option<bool>,
    /// The setting `appendfsync`: when the append-only file is written to the disk. `None` if it was not read.
    pub appendfsync: Option<Box<str>>,
    /// The setting `no-appendfsync-on-rewrite`: no sync of the append-only file during its rewrite. `None` if not read.
    pub rests_on_rewrite: Option<bool>,
}

/// A part of `INFO` that is missing or malformed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Incomplete(&'static str);

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its INFO does not tell {}", self.0)
    }
}

/// The sections of `INFO` that the client requests if the server can send a selection.
pub const SECTIONS: [&str; 5] = ["server", "replication", "memory", "persistence", "stats"];

/// The longest run id that the client accepts; the run ids of known servers have 40 digits.
const RUN_ID_MAX: usize = 128;

/// The names of the fields of `INFO` that [`Info::parse`] reads.
const NAMES: [&str; 17] = [
    "run_id",
    "uptime_in_seconds",
    "role",
    "redis_mode",
    "server_mode",
    "cluster_enabled",
    "loading",
    "async_loading",
    "master_replid2",
    "second_repl_offset",
    "maxmemory",
    "maxmemory_policy",
    "server_time_usec",
    "aof_enabled",
    "connected_slaves",
    // Server settings. The client appends them to `INFO` if the node was declared durable.
    "appendfsync",
    "no-appendfsync-on-rewrite",
];

impl Info {
    /// Reads the answer to `INFO`.
    ///
    /// # Errors
    /// The first required part that is missing or malformed.
    pub fn parse(text: &str) -> Result<Self, Incomplete> {
        // A single pass over the text, because the client reads `INFO` every few seconds.
        let mut found = [None; NAMES.len()];
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            if let Some(place) = NAMES.iter().position(|known| *known == name) {
                found[place].get_or_insert(value.trim());
            }
        }
        let find = |name: &'static str| {
            found.iter().zip(NAMES).find_map(|(value, known)| value.filter(|_| known == name))
        };
        let need = |name| find(name).ok_or(Incomplete(name));
        let number = |name| find(name).and_then(|number| number.parse::<i64>().ok());
        // The uptime is negative if the wall clock was set back, and must not be taken for a long uptime.
        let uptime_s = number("uptime_in_seconds").ok_or(Incomplete("uptime_in_seconds"))?;
        let policy = need("maxmemory_policy")?;
        let evicts = number("maxmemory").is_none_or(|limit| limit != 0) && policy != "noeviction";
        let old_id = find("master_replid2").unwrap_or_default();
        let promoted = number("second_repl_offset").unwrap_or(-1);
        let was_replica = old_id.bytes().any(|byte| byte != b'0') || promoted >= 0;
        Ok(Self {
            run_id: need("run_id").and_then(run_id)?,
            uptime_s,
            is_master: need("role")? == "master",
            // Redis calls this field `redis_mode`, and Valkey calls it `server_mode`.
            is_cluster: ["redis_mode", "server_mode"].map(find).contains(&Some("cluster"))
                || number("cluster_enabled") == Some(1),
            is_loading: [number("loading"), number("async_loading")].contains(&Some(1)),
            promoted_at: was_replica.then_some(promoted),
            evicts_by: evicts.then(|| policy.into()),
            replicas: number("connected_slaves")
                .map_or(0, |count| u32::try_from(count).unwrap_or(u32::MAX)),
            time_us: number("server_time_usec"),
            keeps_log: number("aof_enabled").map(|enabled| enabled == 1),
            appendfsync: find("appendfsync").map(Into::into),
            rests_on_rewrite: find("no-appendfsync-on-rewrite").map(|rests| rests == "yes"),
        })
    }

    /// A setting that lets the server lose its last writes when it stops; `None` if `INFO` shows no such setting.
    /// Such a setting contradicts an operator who declared the server durable.
    pub fn forgets_by(&self) -> Option<String> {
        match (self.keeps_log, self.appendfsync.as_deref(), self.rests_on_rewrite) {
            (Some(false), ..) => Some("appendonly no".into()),
            (_, Some(policy), _) if policy != "always" => {
                Some(format!("appendfsync {}", shown(policy, WORD_MAX)))
            }
            (.., Some(true)) => Some("no-appendfsync-on-rewrite yes".into()),
            _ => None,
        }
    }
}

/// Checks a run id. It must be a single word, because the node's marker, a line of words, contains it.
fn run_id(name: &str) -> Result<Box<str>, Incomplete> {
    let is_word =
        (1..=RUN_ID_MAX).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
    if is_word { Ok(name.into()) } else { Err(Incomplete("run_id")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const TYPICAL: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n\
        run_id:0d2f\r\nserver_time_usec:1795201160638971\r\nuptime_in_seconds:61\r\n\
        # Replication\r\nrole:master\r\nconnected_slaves:2\r\nmaster_replid2:0000\r\nsecond_repl_offset:-1\r\n\
        # Memory\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n# Persistence\r\nloading:0\r\n\
        async_loading:0\r\naof_enabled:0\r\n";

    fn with(from: &str, to: &str) -> Result<Info, Incomplete> {
        assert!(TYPICAL.contains(from));
        Info::parse(&TYPICAL.replace(from, to))
    }

    #[test]
    fn a_sound_master_is_recognized() {
        let info = Info::parse(TYPICAL).unwrap();
        assert_eq!((&*info.run_id, info.uptime_s), ("0d2f", 61));
        assert!(info.is_master && !info.is_cluster && !info.is_loading && info.replicas == 2);
        assert_eq!((info.promoted_at, info.evicts_by), (None, None));
        assert_eq!((info.time_us, info.keeps_log), (Some(1_795_201_160_638_971), Some(false)));
    }

    #[test]
    fn each_fault_is_seen() {
        assert_eq!(with("seconds:61", "seconds:-3598").unwrap().uptime_s, -3598);
        assert!(!with("role:master", "role:slave").unwrap().is_master);
        assert!(with("mode:standalone", "mode:cluster").unwrap().is_cluster);
        assert!(with("redis_mode:standalone", "server_mode:cluster").unwrap().is_cluster);
        assert!(with("\nloading:0", "\nloading:1").unwrap().is_loading);
        assert!(with("async_loading:0", "async_loading:1").unwrap().is_loading);
        let promoted =
            with("replid2:0000\r\nsecond_repl_offset:-1", "replid2:9a0\r\nsecond_repl_offset:15");
        assert_eq!(promoted.unwrap().promoted_at, Some(15));
        let evicting = with("maxmemory:0", "maxmemory:1000000").unwrap();
        assert_eq!(evicting.evicts_by.as_deref(), Some("allkeys-lru"));
        let roomy =
            TYPICAL.replace("allkeys-lru", "noeviction").replace("maxmemory:0", "maxmemory:9");
        assert_eq!(Info::parse(&roomy).unwrap().evicts_by, None);
    }

    #[test]
    fn without_what_matters_nothing_is_said() {
        let missing = |line| with(line, "").unwrap_err().to_string();
        assert_eq!(missing("run_id:0d2f"), "its INFO does not tell run_id");
        for odd in
            ["run_id:", "run_id:a b", "run_id:\u{1b}[2J", &format!("run_id:{}", "a".repeat(129))]
        {
            assert!(with("run_id:0d2f", odd).is_err(), "it would not be a word of a marker");
        }
        assert_eq!(missing("uptime_in_seconds:61"), "its INFO does not tell uptime_in_seconds");
        assert!(Info::parse("").is_err());
        assert_eq!(with("server_time_usec:1795201160638971", "").unwrap().time_us, None);
    }
}
