//! Options with the numbers of other libraries.

use std::time::Duration;

use quorlock_core::{Delay, Retry};

use super::LockOptions;

/// Options with the default numbers of other libraries, for programs that move from one of them to quorlock.
///
/// A preset is a set of options as any other, so each option can be set again after it. A preset never sets the quorum
/// ([`ClientBuilder::quorum`](crate::ClientBuilder::quorum)): a majority of the nodes, unless the client says
/// otherwise. Where a preset sets a number of attempts, it sets no [`wait`](Self::wait): the default of 10 s is longer
/// than all of these attempts.
///
/// The three presets of Redlock libraries have no [`margin`](Self::margin), as these libraries have none: a lock ends
/// with its validity, and a check leaves no time for the action after it.
///
/// Delays between fixed bounds replace pushes: the nodes do not wake a call with such a preset when the lock is
/// released. Keep quorlock's own [`retry`](Self::retry) unless the delays matter.
///
/// `docs/moving.md` in the repository shows which call of quorlock replaces each call of these libraries.
///
/// ```
/// use std::time::Duration;
/// use quorlock::LockOptions;
///
/// const ORDERS: LockOptions = LockOptions::redsync().ttl(Duration::from_secs(20));
/// ```
impl LockOptions {
    /// The numbers of redlock-php, from
    /// [RedLock.php at f063a98](https://github.com/ronnylt/redlock-php/blob/f063a98d5fba75c64295039db5e5ad34da5b4775/src/RedLock.php).
    ///
    /// | redlock-php | line | here |
    /// |---|---|---|
    /// | `$retryCount` 3: 3 attempts | 15, 70 | [`retry`](Self::retry) |
    /// | `$retryDelay` 200: 100 to 200 ms after each attempt | 15, 65 | [`retry`](Self::retry) |
    /// | drift ttl × 0.01 + 2 ms | 8, 47 | [`drift`](Self::drift) |
    /// | validity is ttl − elapsed − drift | 49 | [`margin`](Self::margin) zero |
    /// | no extension | | [`auto_extend`](Self::auto_extend) false |
    /// | ttl, and the timeout of a connection: arguments without a default | 26, 91 | not set |
    /// | the delay after the last attempt | 65 | none: the call ends at once |
    /// | 4 of 5 nodes, 3 of 3 | 22 | not set; `docs/moving.md` has the quorum |
    pub const fn redlock_php() -> Self {
        Self::without_extension(attempts(3, 100, 200))
            .drift(10_000, Duration::from_millis(2))
            .margin(Duration::ZERO)
    }

    /// The numbers of redsync 4, from
    /// [redsync.go](https://github.com/grafana/loki/blob/b92d4f3f4d680a2f6ea88119232b7d919c441482/vendor/github.com/go-redsync/redsync/v4/redsync.go)
    /// and
    /// [mutex.go](https://github.com/grafana/loki/blob/f344b9575a587b02c7088e6457ed6b2ed54bed4f/vendor/github.com/go-redsync/redsync/v4/mutex.go)
    /// as Loki vendors them.
    ///
    /// | redsync | line | here |
    /// |---|---|---|
    /// | `expiry` 8 s | redsync.go 31 | [`ttl`](Self::ttl) |
    /// | `tries` 32 | redsync.go 32 | [`retry`](Self::retry) |
    /// | `delayFunc`: 50 to 250 ms | redsync.go 11, 34 | [`retry`](Self::retry); [`Delay::Custom`] takes a function |
    /// | `driftFactor` 0.01, without a constant | redsync.go 37, mutex.go 115 | [`drift`](Self::drift); no step of a node's clock is allowed for |
    /// | `timeoutFactor` 0.05: 400 ms | redsync.go 38, mutex.go 107 | [`node_timeout`](Self::node_timeout); set it again with another ttl |
    /// | `until` is expiry − elapsed − drift | mutex.go 115 | [`margin`](Self::margin) zero |
    /// | no extension but `Extend` | mutex.go | [`auto_extend`](Self::auto_extend) false |
    /// | `WithFailFast`: off | mutex.go 33 | always on: a majority decides, whichever way |
    /// | `genValueFunc` | redsync.go 36 | an argument of [`Client::take`](crate::Client::take) |
    pub const fn redsync() -> Self {
        Self::without_extension(attempts(32, 50, 250))
            .ttl(Duration::from_secs(8))
            .node_timeout(Duration::from_millis(400))
            .drift(10_000, Duration::ZERO)
            .margin(Duration::ZERO)
    }

    /// The numbers of node-redlock, from the npm packages redlock 5.0.0-beta.2 (`dist/cjs/index.js`) and 4.2.0
    /// (`redlock.js`), which have the same numbers.
    ///
    /// | node-redlock | line in 5.0.0-beta.2, in 4.2.0 | here |
    /// |---|---|---|
    /// | `retryCount` 10: 11 attempts | 58 and 279, 60 and 427 | [`retry`](Self::retry) |
    /// | `retryDelay` 200 ± `retryJitter` 100: 100 to 300 ms | 59 and 291, 61 and 428 | [`retry`](Self::retry) |
    /// | `driftFactor` 0.01, and 2 ms | 57 and 216, 59 and 415 | [`drift`](Self::drift) |
    /// | `expiration` is duration − elapsed − drift | 217, 416 | [`margin`](Self::margin) zero |
    /// | `acquire` does not extend | | [`auto_extend`](Self::auto_extend) false |
    /// | `using` extends 500 ms before the expiry | 61 and 433, none | `auto_extend(true)` extends every third of the ttl |
    /// | the duration: an argument without a default | | not set |
    /// | no timeout of an answer | | not set |
    pub const fn node_redlock() -> Self {
        Self::without_extension(attempts(11, 100, 300))
            .drift(10_000, Duration::from_millis(2))
            .margin(Duration::ZERO)
    }

    /// The numbers of `Lock` in redis-py, from `redis/lock.py` of the package redis 8.1.0.
    ///
    /// **That class locks on one server only**, so the preset is for a client with one node.
    ///
    /// | redis-py | line | here |
    /// |---|---|---|
    /// | `sleep` 0.1 s | 84, 235 | [`retry`](Self::retry), without a bound on the attempts |
    /// | `blocking` true, `blocking_timeout` none | 85, 86 | [`wait_forever`](Self::wait_forever) |
    /// | `timeout` none: the lock stays until its release | 83, 242 | [`auto_extend`](Self::auto_extend) true, so only a crash ends the lock after one ttl |
    /// | no drift, no validity, no timeout of an answer | | not set |
    ///
    /// For a lock with a `timeout`, add `ttl(timeout)` and `auto_extend(false)`.
    pub const fn redis_py() -> Self {
        let sleep = Duration::from_millis(100);
        let delay = Delay::Between { min: sleep, max: sleep };
        Self::new().retry(Retry { delay, attempts_max: None }).wait_forever().auto_extend(true)
    }

    /// The behaviour of `LockTake` in StackExchange.Redis, from
    /// [RedisDatabase.cs at 02c73bb](https://github.com/StackExchange/StackExchange.Redis/blob/02c73bbe4c814afe67e3a9c7824e31477682c28f/src/StackExchange.Redis/RedisDatabase.cs).
    /// [`Client::take`](crate::Client::take) behaves like this without the preset.
    ///
    /// **`LockTake` locks on one server only**, so the preset is for a client with one node.
    ///
    /// | StackExchange.Redis | method | here |
    /// |---|---|---|
    /// | one attempt | `LockTake` | [`wait`](Self::wait) zero |
    /// | no extension but `LockExtend` | `LockExtend` | [`auto_extend`](Self::auto_extend) false |
    /// | expiry: an argument without a default | `LockTake` | not set |
    /// | `SyncTimeout` 5 s, `ConnectTimeout` 5 s | `DefaultOptionsProvider` | not set: the first is above a quarter of the default ttl, the second is [`ClientBuilder::connect_timeout`](crate::ClientBuilder::connect_timeout) |
    pub const fn stack_exchange() -> Self {
        Self::new().wait(Duration::ZERO).auto_extend(false)
    }

    const fn without_extension(retry: Retry) -> Self {
        Self::new().retry(retry).auto_extend(false)
    }
}

const fn attempts(attempts_max: u32, min_ms: u64, max_ms: u64) -> Retry {
    let (min, max) = (Duration::from_millis(min_ms), Duration::from_millis(max_ms));
    Retry { delay: Delay::Between { min, max }, attempts_max: Some(attempts_max) }
}
