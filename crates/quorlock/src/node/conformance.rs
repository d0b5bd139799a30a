//! The contract of [`Node`] as functions: every implementation must pass them all.
//!
//! For authors of a node of their own. Say what another client can do to the node's keys
//! ([`Outside`]), and run [`all`] in a test; each function also stands for itself. They panic where
//! the contract is broken, with a sentence that says which part of it. Not API-stable: what the
//! client comes to rely on will be added here.
//!
//! The keys used are new in every run, so a server in use can be tested as well, and all of them
//! are removed.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! use quorlock::node::{MemoryNode, conformance};
//!
//! let node = MemoryNode::new("a");
//! conformance::all(node.clone(), node).await;
//! # }
//! ```

mod batches;
mod fences;
mod markers;
mod subject;
mod votes;

use std::time::Duration;

use quorlock_core::Token;

use super::{Command, Key, MemoryNode, Node, Value};

pub use self::batches::*;
pub use self::fences::*;
pub use self::markers::*;
pub use self::subject::Subject;
pub use self::votes::*;

/// What another client can do to the node's keys and see of them, past the node under test: the
/// suite sets traps with it and looks whether anything was touched.
///
/// Its functions may block for as long as a command takes, and panic if they cannot do their work.
pub trait Outside: Send + Sync + 'static {
    /// Sets a key to a string, to expire after `ttl`, or never.
    fn set(&self, key: &str, value: &[u8], ttl: Option<Duration>);

    /// Sets a key to something that is not a string, such as a list, to expire after `ttl`, or
    /// never.
    fn set_other_type(&self, key: &str, ttl: Option<Duration>);

    /// Whether the key exists, whatever it is.
    fn exists(&self, key: &str) -> bool;

    /// The string under a key, if there is one.
    fn value(&self, key: &str) -> Option<Vec<u8>>;

    /// Time until the key expires, if it exists and does.
    fn ttl(&self, key: &str) -> Option<Duration>;

    /// Deletes a key, if it exists.
    fn remove(&self, key: &str);
}

impl Outside for MemoryNode {
    fn set(&self, key: &str, value: &[u8], ttl: Option<Duration>) {
        self.insert(key, value, ttl);
    }

    fn set_other_type(&self, key: &str, ttl: Option<Duration>) {
        self.insert_other_type(key);
        if let Some(ttl) = ttl {
            self.expire_in(key, ttl);
        }
    }

    fn exists(&self, key: &str) -> bool {
        self.contains(key)
    }

    fn value(&self, key: &str) -> Option<Vec<u8>> {
        self.value_of(key)
    }

    fn ttl(&self, key: &str) -> Option<Duration> {
        self.ttl_of(key)
    }

    fn remove(&self, key: &str) {
        Self::remove(self, key);
    }
}

/// The ttl of keys that are not meant to expire during the test, and a lower bound for what is left
/// of it: far enough from it for a slow machine, near enough to tell units apart.
const LONG: Duration = Duration::from_secs(60);
const STILL_LONG: Duration = Duration::from_secs(30);

/// Runs the whole suite on one node.
///
/// # Panics
/// Where the contract is broken.
pub async fn all(node: impl Node, outside: impl Outside) {
    let subject = Subject::new(node, outside);
    a_free_key_is_granted_and_stored(&subject).await;
    a_taken_key_is_refused_and_untouched(&subject).await;
    a_granted_key_expires_after_its_ttl(&subject).await;
    an_extension_lengthens_and_never_shortens(&subject).await;
    an_extension_touches_nothing_of_others(&subject).await;
    a_release_deletes_our_key(&subject).await;
    a_release_touches_nothing_of_others(&subject).await;
    an_inspection_tells_what_the_key_holds(&subject).await;
    commands_of_a_batch_take_effect_in_order(&subject).await;
    batches_take_effect_in_the_order_given(&subject).await;
    a_release_comes_behind_an_acquire_that_nobody_waits_for(&subject).await;
    every_command_is_judged_by_itself(&subject).await;
    large_batches_are_answered_in_full(&subject).await;
    keys_and_values_may_be_odd(&subject).await;
    a_watched_key_is_spoken_of_when_it_changes(&subject).await;
    a_batch_is_stamped_before_it_is_answered(&subject).await;
    a_fenced_grant_moves_the_counter_on(&subject).await;
    a_fenced_refusal_tells_the_counter_and_writes_nothing(&subject).await;
    fences_begin_at_the_floor_and_end_at_their_limit(&subject).await;
    a_proposal_counts_no_further_than_an_hour_ahead(&subject).await;
    a_raise_needs_our_lock_and_never_lowers(&subject).await;
    a_fenced_heal_writes_nothing_behind_a_larger_fence(&subject).await;
    a_fenced_extension_keeps_the_counter_alive(&subject).await;
    a_node_that_is_greeted_proves_itself(&subject).await;
    an_adoption_is_written_once_and_grows_old(&subject).await;
    a_marker_is_written_over_what_was_expected_alone(&subject).await;
    a_marker_waits_for_its_adoption(&subject).await;
    the_node_is_up_and_has_a_name(&subject).await;
}

/// For so long counters are kept, and adoptions.
const KEPT: Duration = Duration::from_secs(7 * 86_400);
const LIFE: Duration = Duration::from_millis(quorlock_core::marker::Adoption::TTL_MS);

fn acquire(key: &Key, value: &Value, ttl: Duration) -> Command {
    Command::Acquire { keys: key.clone().into(), value: value.clone(), ttl_ms: millis(ttl) }
}

fn extend(key: &Key, value: &Value, ttl: Duration) -> Command {
    Command::Extend { keys: key.clone().into(), value: value.clone(), ttl_ms: millis(ttl) }
}

fn release(key: &Key, value: &Value) -> Command {
    Command::Release { keys: key.clone().into(), value: value.clone(), tell: true }
}

fn inspect(key: &Key) -> Command {
    Command::Inspect { keys: key.clone().into(), intents: None }
}

fn watch(key: &Key) -> Command {
    Command::Watch { keys: key.clone().into(), intents: None }
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).expect("the suite's ttls are short")
}

/// Values that are almost, but not quite, the same.
fn not_quite(value: &Value) -> Vec<Vec<u8>> {
    let whole = value.as_bytes();
    let (shorter, mut longer) = (whole[..whole.len() - 1].to_vec(), whole.to_vec());
    longer.push(b' ');
    vec![b"other".to_vec(), Vec::new(), shorter, longer, whole.to_ascii_uppercase()]
}

fn new_key(what: &str) -> Key {
    format!("quorlock-conformance:{}:{what}", new_token()).into()
}

fn new_value() -> Value {
    Value::new(&new_token(), "conformance suite")
}

fn new_token() -> Token {
    let mut bytes = [0; Token::BYTES];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    Token::new(bytes)
}
