//! The meaning of each command, shown on one node. `quorlock_core::store` is the reference for the details; the
//! differential test compares it with every server.
//!
//! Each run uses new keys and removes them.

mod batches;
mod meanings;
mod votes;

use std::time::Duration;

use quorlock::node::MemoryNode;
use quorlock_core::{AcquireForm, Command, ExtendForm, Key, Keys, ReleaseForm, Token, Value};

use crate::subject::Subject;

use self::batches::*;
use self::meanings::*;
use self::votes::*;

/// Access to the node's keys that bypasses the node under test. The suite uses it to write keys of other clients, and
/// to check that the node does not touch them.
pub(crate) trait Outside: 'static {
    /// Sets a key to a string that expires after `ttl`; `None` means never.
    fn set(&self, key: &str, value: &[u8], ttl: Option<Duration>);

    /// Sets a key to another type than a string, such as a list. It expires after `ttl`; `None` means never.
    fn set_other_type(&self, key: &str, ttl: Option<Duration>);

    /// Whether the key exists, whatever its type.
    fn exists(&self, key: &str) -> bool;

    /// The string under a key, if there is one.
    fn value(&self, key: &str) -> Option<Vec<u8>>;

    /// Time until the key expires; `None` if the key does not exist or never expires.
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

/// The ttl of keys that must not expire during the test, and a lower bound of the remaining time. The difference allows
/// for a slow machine, but still reveals a wrong unit.
const LONG: Duration = Duration::from_secs(60);
const STILL_LONG: Duration = Duration::from_secs(30);

pub(crate) async fn all(subject: Subject) {
    a_free_key_is_granted_and_stored(&subject).await;
    a_taken_key_is_refused_and_untouched(&subject).await;
    a_granted_key_expires_after_its_ttl(&subject).await;
    an_extension_lengthens_and_never_shortens(&subject).await;
    an_extension_touches_nothing_of_others(&subject).await;
    a_release_deletes_our_key(&subject).await;
    a_release_touches_nothing_of_others(&subject).await;
    an_inspection_shows_what_the_key_holds(&subject).await;
    commands_of_a_batch_take_effect_in_order(&subject).await;
    batches_take_effect_in_the_order_given(&subject).await;
    every_command_is_judged_by_itself(&subject).await;
    large_batches_are_answered_in_full(&subject).await;
    keys_and_values_may_be_odd(&subject).await;
    a_watched_key_is_pushed_when_it_changes(&subject).await;
    a_batch_is_stamped_before_it_is_answered(&subject).await;
    fences_go_up(&subject).await;
    several_keys_are_one_lock(&subject).await;
    readers_share_and_writers_exclude(&subject).await;
    a_lock_is_taken_over_once_and_given_back(&subject).await;
    a_lock_with_the_callers_value_has_a_nonce(&subject).await;
    a_node_that_is_greeted_proves_itself(&subject).await;
    a_marker_waits_for_its_adoption(&subject).await;
}

/// The time to live of a lock's counters, which hold its fencing tokens.
const KEPT: Duration = Duration::from_secs(7 * 86_400);

fn acquire(keys: &(impl Clone + Into<Keys>), value: &Value, ttl: Duration) -> Command {
    let (keys, value) = (keys.clone().into(), value.clone());
    Command::Acquire { keys, value, ttl_ms: millis(ttl), form: AcquireForm::Plain }
}

fn extend(keys: &(impl Clone + Into<Keys>), value: &Value, ttl: Duration) -> Command {
    let (keys, value) = (keys.clone().into(), value.clone());
    Command::Extend { keys, value, ttl_ms: millis(ttl), form: ExtendForm::Plain }
}

fn release(keys: &(impl Clone + Into<Keys>), value: &Value) -> Command {
    let (keys, value) = (keys.clone().into(), value.clone());
    Command::Release { keys, value, form: ReleaseForm::Plain { tell: true } }
}

fn inspect(keys: &(impl Clone + Into<Keys>)) -> Command {
    Command::Inspect { keys: keys.clone().into(), intents: None }
}

fn watch(keys: &(impl Clone + Into<Keys>)) -> Command {
    Command::Watch { keys: keys.clone().into(), intents: None }
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).expect("the suite's ttls are short")
}

/// Values that differ slightly from `value`. A command for `value` must not change a key that holds one of them.
fn not_quite(value: &Value) -> Vec<Vec<u8>> {
    let whole = value.as_bytes();
    let (shorter, mut longer) = (whole[..whole.len() - 1].to_vec(), whole.to_vec());
    longer.push(b' ');
    vec![b"other".to_vec(), Vec::new(), shorter, longer, whole.to_ascii_uppercase()]
}

pub(crate) fn new_key(what: &str) -> Key {
    format!("quorlock-conformance:{}:{what}", new_token()).into()
}

fn new_keys(what: &str, count: usize) -> Keys {
    let token = new_token();
    let keys = (0..count).map(|nth| format!("quorlock-conformance:{token}:{what}:{nth:02}").into());
    Keys::new(keys).expect("some, and not too many")
}

fn new_value() -> Value {
    Value::new(&new_token(), "conformance suite")
}

fn new_token() -> Token {
    let mut bytes = [0; Token::BYTES];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    Token::new(bytes)
}
