//! The only list of the commands that a client sends, directly or in scripts, and of the rights to them.

/// The effect on locks if a command, or the right to it, is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Without the command, no lock works.
    Needed,
    /// Locks are slower, or errors are less precise.
    Wanted,
    /// Readers cannot share a lock. Other locks work.
    Shared,
    /// Locks work, but cannot be listed.
    Listing,
    /// No effect on locks.
    Nicety,
}

/// A right: its ACL rule, the effect if it is missing, and a call that needs it. [`KEY`] in the call stands for the
/// key.
pub type Right = (&'static str, Weight, &'static [&'static str]);

/// Stands for a key in a [`Right`]'s call.
pub const KEY: &str = "KEY";

use Weight::{Listing, Needed, Nicety, Shared, Wanted};

/// All rights, in an order in which their calls can be executed one after the other.
pub const RIGHTS: &[Right] = &[
    ("+info", Needed, &["INFO", "server"]),
    ("+set", Needed, &["SET", KEY, "x", "NX", "PX", "10000"]),
    ("+get", Needed, &["GET", KEY]),
    ("+getrange", Needed, &["GETRANGE", KEY, "0", "1"]),
    ("+exists", Needed, &["EXISTS", KEY]),
    ("+pttl", Needed, &["PTTL", KEY]),
    ("+pexpire", Needed, &["PEXPIRE", KEY, "10000"]),
    ("+eval", Needed, &[EVAL, "return 1", "1", KEY]),
    ("+evalsha", Needed, &[EVALSHA, "0000000000000000000000000000000000000000", "1", KEY]),
    ("+time", Needed, &["TIME"]),
    ("+ping", Wanted, &["PING"]),
    ("+script|load", Wanted, &["SCRIPT", "LOAD", "return 1"]),
    ("+command|info", Wanted, &["COMMAND", "INFO", "SET"]),
    ("+client|tracking", Wanted, &["CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"]),
    ("+client|caching", Wanted, &["CLIENT", "CACHING", "YES"]),
    // `CLIENT SETINFO` only sets the name in the server's list of clients. Servers before 7.2 lack the command.
    ("+client|setinfo", Nicety, &["CLIENT", "SETINFO", "LIB-NAME", "quorlock"]),
    // `init --fresh` looks for clients that are connected. No connection has the id 0.
    ("+client|list", Nicety, &["CLIENT", "LIST", "ID", "0"]),
    ("+delifeq", Needed, &["DELIFEQ", KEY, "y"]),
    ("+delex", Needed, &["DELEX", KEY, "IFEQ", "y"]),
    ("+del", Needed, &["DEL", KEY]),
    // The key is absent by now, and no later call creates it, so the later calls change nothing.
    ("+type", Shared, &["TYPE", KEY]),
    ("+pexpireat", Shared, &["PEXPIREAT", KEY, "1"]),
    ("+zadd", Shared, &["ZADD", KEY, "XX", "0", "x"]),
    ("+zcount", Shared, &["ZCOUNT", KEY, "0", "1"]),
    ("+zrange", Shared, &["ZRANGE", KEY, "0", "1"]),
    ("+zrem", Shared, &["ZREM", KEY, "x"]),
    ("+zremrangebyscore", Shared, &["ZREMRANGEBYSCORE", KEY, "0", "1"]),
    ("+zscore", Shared, &["ZSCORE", KEY, "x"]),
    ("+scan", Listing, &["SCAN", "0", "COUNT", "1"]),
];

/// The right that a node with replicas needs in addition.
pub const REPLICAS_RIGHT: Right = ("+wait", Needed, &["WAIT", "0", "1"]);

/// The commands that need no right, or need one only with some settings: the log-in, the choice of the database, and
/// the settings of a server that was declared durable.
pub const WITHOUT_RIGHT: &[&str] = &["HELLO", "AUTH", "SELECT", "CONFIG"];

/// The native compare-and-delete commands. A server has at most one of them.
pub(super) const OWN_DELETES: [&str; 2] = ["DELIFEQ", "DELEX"];

pub(super) const EVAL: &str = "EVAL";
pub(super) const EVALSHA: &str = "EVALSHA";
