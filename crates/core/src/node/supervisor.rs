//! Keeps a node connected: decides when a connection is made, suspended, probed and replaced, and how long the client
//! stays away from a server that misbehaves.
//!
//! ```text
//!              connected                  silent for too long
//!   Connecting ─────────► Up ◄─────────────────────────────────► Suspended
//!     │  ▲                ▲ │ broken          an answer             │
//!     │  └────────────────┼─┴───────────────────────────────────────┤ broken
//!     │ not connected     │                                         │ still silent: a new
//!     └──────► Down ──────┘ connected                               │ connection replaces it
//!               ▲     (tried again after a pause)        Up ◄───────┘
//!               └── the server flooded us or sent invalid messages, also while we connected
//! ```
//!
//! A silent connection is kept until the new connection is made: if the server only slept, it executes the commands in
//! order. No command has a timeout here: deadlines belong to the engine.
//!
//! Times are durations since a fixed time, on a clock that is never set.

use alloc::format;
use core::time::Duration;

use crate::command::{Failure, FailureKind};
use crate::node::pipeline::NodeState;
use crate::redlock::retry::fraction;

/// The first and the longest delay between attempts to connect, without jitter.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The longest delay for a server that floods the client or sends invalid messages.
const BACKOFF_OFFENDED: Duration = Duration::from_secs(30);

/// If a connection has lasted this long, the client forgets the server's earlier floods and invalid messages.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);

/// One node's connections.
#[derive(Clone, Debug)]
pub struct Supervisor {
    silence: Duration,
    replace_after: Duration,
    state: NodeState,
    connection: Option<LiveConnection>,
    /// Start of the attempt to connect, if one is in progress.
    connecting_since: Option<Duration>,
    /// The time before which no attempt to connect starts.
    retry_at: Duration,
    failures: u32,
    offences: u32,
}

/// The connection that carries commands.
#[derive(Clone, Copy, Debug)]
struct LiveConnection {
    made_at: Duration,
    /// The node counts as silent if it sends no answer for this time.
    silence: Duration,
}

/// The traffic on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Activity {
    /// Whether a command awaits its answer.
    pub is_awaited: bool,
    /// Time of the node's last message or, after a pause without commands, of the first new command.
    pub heard_at: Duration,
}

/// A decision of the supervisor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// Make a connection, and report the outcome: [`Supervisor::connected`], [`Supervisor::not_connected`].
    Connect,
    /// Send a probe, without waiting for its reply.
    Probe,
}

impl Supervisor {
    /// A silent connection is replaced this long after it was suspended.
    pub const REPLACE_AFTER: Duration = Duration::from_secs(2);

    /// A connection without traffic is probed at this interval, which detects dead connections.
    pub const PROBE_EVERY: Duration = Duration::from_secs(15);

    /// A supervisor that connects at once, and suspends the node after `silence` without an answer. If connecting took
    /// more than half of `silence`, the node is suspended only after a silence of twice the time of connecting.
    pub const fn new(silence: Duration) -> Self {
        Self {
            silence,
            replace_after: Self::REPLACE_AFTER,
            state: NodeState::Connecting,
            connection: None,
            connecting_since: None,
            retry_at: Duration::ZERO,
            failures: 0,
            offences: 0,
        }
    }

    /// Replaces a silent connection this long after it was suspended, instead of
    /// [`REPLACE_AFTER`](Self::REPLACE_AFTER).
    #[must_use]
    pub const fn with_replace_after(mut self, replace_after: Duration) -> Self {
        self.replace_after = replace_after;
        self
    }

    /// Sets the silence that suspends the node, also on the present connection. It follows from the node's distance.
    pub const fn set_silence(&mut self, silence: Duration) {
        self.silence = silence;
        if let Some(connection) = &mut self.connection {
            connection.silence = silence;
        }
    }

    /// Whether the node can be used.
    pub const fn state(&self) -> &NodeState {
        &self.state
    }

    /// Decides what to do now. Ignores the activity if there is no connection.
    pub fn next_task(&mut self, now: Duration, activity: Activity) -> Option<Task> {
        if self.connection.is_none() {
            return self.connect(now);
        }
        let Some(silent_for) = self.silent_for(now, activity) else {
            // No answer is late. If the silence ended with the reply to a probe, the suspension ends only here.
            self.heard();
            if self.lived_for(now) >= BACKOFF.1 {
                self.failures = 0;
            }
            let quiet_for = now.saturating_sub(activity.heard_at);
            let is_quiet = !activity.is_awaited && quiet_for >= Self::PROBE_EVERY;
            return is_quiet.then_some(Task::Probe);
        };
        let detail = format!("no answer for {silent_for:.1?}");
        let failure = Failure::unsent(FailureKind::Suspended).with_detail(detail);
        self.state = NodeState::Suspended(failure);
        let is_too_long = self.replace_at(activity).is_some_and(|at| now >= at);
        if is_too_long { self.connect(now) } else { None }
    }

    /// The time at which to call [`next_task`](Self::next_task) next. `None` means not before a call of
    /// [`connected`](Self::connected), [`not_connected`](Self::not_connected) or [`broken`](Self::broken). After each
    /// of these three, call `next_task` at once. Ask for the time again after each `next_task`, and when the first
    /// command after a pause awaits its answer.
    pub fn next_task_at(&self, now: Duration, activity: Activity) -> Option<Duration> {
        let Some(LiveConnection { silence, .. }) = self.connection else {
            return self.connecting_since.is_none().then_some(self.retry_at);
        };
        if !activity.is_awaited {
            return Some(activity.heard_at + Self::PROBE_EVERY);
        }
        if self.silent_for(now, activity).is_none() {
            return Some(activity.heard_at + silence);
        }
        // The next `next_task` follows soon, because the answer may arrive at any time, and because `next_task` updates
        // the duration of the silence in the state.
        let soon = now + silence / 3;
        Some(self.replace_at(activity).map_or(soon, |at| at.min(soon)))
    }

    /// Ends the suspension at once, because the node has answered. Otherwise the next [`next_task`](Self::next_task)
    /// ends it.
    pub fn heard(&mut self) {
        self.state.resume();
    }

    /// Notes that a connection was made.
    ///
    /// Returns whether the new connection is to be used. It then replaces the former connection, which the caller
    /// closes. The new connection is not used if the former one answers again.
    pub fn connected(&mut self, now: Duration, activity: Activity) -> bool {
        let took = now.saturating_sub(self.connecting_since.take().unwrap_or(now));
        if self.connection.is_some() && self.silent_for(now, activity).is_none() {
            self.heard();
            return false;
        }
        self.connection =
            Some(LiveConnection { made_at: now, silence: self.silence.max(2 * took) });
        self.state = NodeState::Up;
        true
    }

    /// Notes that an attempt to connect failed. If the former connection still exists, the state does not change.
    pub fn not_connected(&mut self, now: Duration, failure: Failure, entropy: u64) {
        self.connecting_since = None;
        if self.connection.is_none() {
            if is_offence(&failure) {
                return self.shut_out(now, failure, entropy);
            }
            self.state = NodeState::Down(failure);
        }
        self.pause(now, entropy);
    }

    /// Notes that the connection broke. If a new connection is being made already, because the server was silent, the
    /// caller gives that attempt up.
    pub fn broken(&mut self, now: Duration, failure: Failure, entropy: u64) {
        let lived_for = self.lived_for(now);
        self.connection = None;
        self.connecting_since = None;
        if is_offence(&failure) {
            if lived_for >= FORGIVEN_AFTER {
                self.offences = 0;
            }
            return self.shut_out(now, failure, entropy);
        }
        // Perhaps only the connection broke, so commands wait for the first attempt to make a new one.
        self.state = NodeState::Connecting;
        if lived_for >= BACKOFF.1 {
            self.failures = 0;
            self.retry_at = now;
        } else {
            // Backs off from a server that accepts connections and breaks them at once.
            self.pause(now, entropy);
        }
    }

    /// Duration of the silence; `None` if no answer is late.
    fn silent_for(&self, now: Duration, activity: Activity) -> Option<Duration> {
        let silent_for = now.saturating_sub(activity.heard_at);
        let is_silent = |it: &LiveConnection| activity.is_awaited && silent_for >= it.silence;
        self.connection.as_ref().filter(|it| is_silent(it)).map(|_| silent_for)
    }

    /// The time at which to replace a silent connection; `None` if an attempt to connect is in progress.
    fn replace_at(&self, activity: Activity) -> Option<Duration> {
        let LiveConnection { silence, .. } = self.connection?;
        let at = (activity.heard_at + silence + self.replace_after).max(self.retry_at);
        (self.connecting_since.is_none() && !mutant!(SilentKept)).then_some(at)
    }

    fn lived_for(&self, now: Duration) -> Duration {
        self.connection.map_or(Duration::ZERO, |it| now.saturating_sub(it.made_at))
    }

    fn connect(&mut self, now: Duration) -> Option<Task> {
        if self.connecting_since.is_some() || now < self.retry_at {
            return None;
        }
        self.connecting_since = Some(now);
        Some(Task::Connect)
    }

    fn pause(&mut self, now: Duration, entropy: u64) {
        self.retry_at = now + backoff(self.failures, BACKOFF.1, entropy);
        self.failures = self.failures.saturating_add(1);
    }

    /// Backs off from a server that has misbehaved, for longer each time.
    fn shut_out(&mut self, now: Duration, failure: Failure, entropy: u64) {
        // Later commands fail without being sent, so the failure must not say that they may have been executed.
        self.state = NodeState::Down(failure.unexecuted());
        self.retry_at = now + backoff(self.offences, BACKOFF_OFFENDED, entropy);
        self.offences = self.offences.saturating_add(1);
    }
}

/// Whether the server has misbehaved: it flooded the client, or its messages are not valid.
pub const fn is_offence(failure: &Failure) -> bool {
    matches!(failure.kind(), FailureKind::Protocol | FailureKind::Flooding)
}

/// The pause before the next attempt to connect. It doubles with each failure, and its upper half is random.
fn backoff(failures: u32, longest: Duration, entropy: u64) -> Duration {
    let full = BACKOFF.0.saturating_mul(1 << failures.min(10)).min(longest);
    full / 2 + fraction(full / 2, entropy)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    const SILENCE: Duration = Duration::from_millis(300);

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn idle(heard_at: u64) -> Activity {
        Activity { is_awaited: false, heard_at: ms(heard_at) }
    }

    fn awaited(heard_at: u64) -> Activity {
        Activity { is_awaited: true, heard_at: ms(heard_at) }
    }

    fn unreachable() -> Failure {
        Failure::unsent(FailureKind::Unreachable)
    }

    /// A supervisor that connected immediately, at time zero.
    fn connected() -> Supervisor {
        let mut it = Supervisor::new(SILENCE);
        assert_eq!(it.next_task(ms(0), idle(0)), Some(Task::Connect));
        assert_eq!((it.next_task(ms(1), idle(0)), it.next_task_at(ms(1), idle(0))), (None, None));
        assert!(it.connected(ms(0), idle(0)));
        assert_eq!(*it.state(), NodeState::Up);
        it
    }

    /// The pause in milliseconds until the next attempt to connect. Checks that the attempt begins then and not
    /// earlier.
    fn pause(it: &mut Supervisor, now: Duration) -> u64 {
        let next = it.next_task_at(now, idle(0)).unwrap();
        assert_eq!(
            it.next_task(next.saturating_sub(ms(1)).max(now), idle(0)).is_some(),
            next == now
        );
        if next > now {
            assert_eq!(it.next_task(next, idle(0)), Some(Task::Connect));
        }
        u64::try_from((next - now).as_millis()).unwrap()
    }

    fn detail(it: &Supervisor) -> &str {
        match it.state() {
            NodeState::Suspended(failure) | NodeState::Down(failure) => failure.detail().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_node_that_cannot_be_reached_is_asked_less_and_less_often() {
        let (mut it, mut now, mut pauses) = (Supervisor::new(SILENCE), ms(0), Vec::new());
        assert_eq!(it.next_task(now, idle(0)), Some(Task::Connect));
        for _ in 0..8 {
            it.not_connected(now, unreachable(), 0);
            assert!(matches!(it.state(), NodeState::Down(_)));
            pauses.push(pause(&mut it, now));
            now += ms(*pauses.last().unwrap());
        }
        assert_eq!(pauses, [25, 50, 100, 200, 400, 500, 500, 500]);
        // With the largest random word, the pause is twice as long as with zero.
        it.not_connected(now, unreachable(), u64::MAX);
        assert_eq!(it.next_task_at(now, idle(0)).map(|next| (next - now).as_millis()), Some(999));
        // With the largest number of failures, the computation of the pause does not overflow.
        (it.failures, it.retry_at) = (u32::MAX, now);
        it.not_connected(now, unreachable(), 0);
        assert_eq!(pause(&mut it, now), 500);
    }

    #[test]
    fn a_silent_connection_is_suspended_and_then_replaced() {
        let mut it = connected();
        assert_eq!(it.next_task_at(ms(100), awaited(100)), Some(ms(400)));
        assert_eq!((it.next_task(ms(399), awaited(100)), it.state()), (None, &NodeState::Up));
        assert_eq!(it.next_task(ms(400), awaited(100)), None);
        assert_eq!(detail(&it), "no answer for 300.0ms");
        assert_eq!(it.next_task_at(ms(400), awaited(100)), Some(ms(500)));
        assert_eq!(it.next_task_at(ms(2_350), awaited(100)), Some(ms(2_400)));
        assert_eq!(it.next_task(ms(2_400), awaited(100)), Some(Task::Connect));
        assert_eq!(it.next_task(ms(2_500), awaited(100)), None);
        assert_eq!(it.next_task_at(ms(2_500), awaited(100)), Some(ms(2_600)));
        assert_eq!(detail(&it), "no answer for 2.4s");
        it.not_connected(ms(2_600), unreachable(), 0);
        assert!(matches!(it.state(), NodeState::Suspended(_)), "the old one may answer yet");
        assert_eq!(it.next_task(ms(2_624), awaited(100)), None);
        assert_eq!(it.next_task_at(ms(2_624), awaited(100)), Some(ms(2_625)));
        assert_eq!(it.next_task(ms(2_625), awaited(100)), Some(Task::Connect));
        assert!(it.connected(ms(2_700), awaited(100)));
        assert_eq!(*it.state(), NodeState::Up);
    }

    #[test]
    fn a_connection_that_answers_again_is_kept() {
        let mut it = connected();
        assert_eq!(it.next_task(ms(2_400), awaited(100)), Some(Task::Connect));
        assert!(!it.connected(ms(2_500), awaited(2_450)), "nobody needs the new one");
        assert_eq!(*it.state(), NodeState::Up, "and that was a sign of life");
        assert_eq!(it.next_task(ms(3_000), awaited(2_450)), None);
        it.heard();
        assert_eq!(*it.state(), NodeState::Up);
        // The node is silent again, and then replies to a probe. No command awaits that reply, so only the next
        // `next_task` ends the suspension.
        assert_eq!(
            (it.next_task(ms(3_000), awaited(2_450)), detail(&it)),
            (None, "no answer for 550.0ms")
        );
        assert_eq!((it.next_task(ms(3_100), idle(3_050)), it.state()), (None, &NodeState::Up));
        assert_eq!(it.next_task(ms(6_000), awaited(3_100)), Some(Task::Connect), "silent for good");
    }

    #[test]
    fn a_node_that_is_far_away_is_not_silent_so_soon() {
        let mut it = Supervisor::new(SILENCE);
        assert_eq!(it.next_task(ms(0), idle(0)), Some(Task::Connect));
        assert!(it.connected(ms(200), idle(0)));
        assert_eq!(it.next_task_at(ms(200), awaited(200)), Some(ms(600)));
    }

    #[test]
    fn a_connection_without_traffic_is_probed() {
        let mut it = connected();
        assert_eq!(it.next_task_at(ms(10), idle(5)), Some(ms(15_005)));
        assert_eq!(it.next_task(ms(15_004), idle(5)), None);
        assert_eq!(it.next_task(ms(15_005), idle(5)), Some(Task::Probe));
        assert_eq!(it.next_task_at(ms(15_005), awaited(15_005)), Some(ms(15_305)));
        // No probe is sent while a command awaits its answer, because that answer will show whether the node lives.
        let mut it = Supervisor::new(ms(60_000));
        assert_eq!(it.next_task(ms(0), idle(0)), Some(Task::Connect));
        assert!(it.connected(ms(0), idle(0)));
        assert_eq!(it.next_task(ms(16_000), awaited(0)), None);
    }

    #[test]
    fn how_long_a_silent_connection_is_kept_can_be_set() {
        let mut it = Supervisor::new(SILENCE).with_replace_after(ms(25));
        assert_eq!(it.next_task(ms(0), idle(0)), Some(Task::Connect));
        assert!(it.connected(ms(0), idle(0)));
        assert_eq!(it.next_task(ms(324), awaited(0)), None);
        assert_eq!(it.next_task_at(ms(324), awaited(0)), Some(ms(325)));
        assert_eq!(it.next_task(ms(325), awaited(0)), Some(Task::Connect));
    }

    #[test]
    fn a_broken_connection_is_made_again_at_once_unless_it_broke_at_once() {
        let mut it = connected();
        for (now, wanted) in [(999, 25), (1_030, 50), (1_090, 100)] {
            it.broken(ms(now), unreachable(), 0);
            assert_eq!(*it.state(), NodeState::Connecting, "commands wait");
            assert_eq!(pause(&mut it, ms(now)), wanted);
            assert!(it.connected(ms(now + wanted), idle(0)));
        }
        it.broken(ms(2_190), unreachable(), 0);
        assert_eq!(pause(&mut it, ms(2_190)), 0, "it had lived for a second");
        it.not_connected(ms(2_190), unreachable(), 0);
        assert_eq!(pause(&mut it, ms(2_190)), 25, "and what was before is forgotten");
    }

    #[test]
    fn failures_are_forgotten_once_a_connection_has_lived() {
        let mut it = connected();
        it.failures = 5;
        assert_eq!(it.next_task(ms(999), idle(900)), None);
        assert_eq!(it.failures, 5);
        assert_eq!(it.next_task(ms(1_000), idle(900)), None);
        assert_eq!(it.failures, 0);
    }

    #[test]
    fn a_replacement_is_begun_anew_when_the_old_connection_breaks() {
        let mut it = connected();
        assert_eq!(it.next_task(ms(2_400), awaited(100)), Some(Task::Connect));
        it.not_connected(ms(2_450), unreachable(), 0);
        assert_eq!(it.next_task(ms(2_475), awaited(100)), Some(Task::Connect));
        it.not_connected(ms(2_480), unreachable(), 0);
        it.broken(ms(2_490), unreachable(), 0);
        assert_eq!(pause(&mut it, ms(2_490)), 0, "whatever became of the others");
        it.broken(ms(2_500), unreachable(), 0);
        assert_eq!(pause(&mut it, ms(2_500)), 25);
    }

    #[test]
    fn a_server_that_offends_is_left_alone_for_longer_each_time() {
        let (mut it, mut now, mut pauses) = (connected(), ms(2_400), Vec::new());
        let flood = Failure::new(FailureKind::Flooding).with_detail("too much");
        // An attempt to replace the connection is in progress when the connection breaks.
        assert_eq!(it.next_task(now, awaited(100)), Some(Task::Connect));
        for _ in 0..12 {
            it.broken(now, flood.clone(), 0);
            assert_eq!(detail(&it), "too much");
            let NodeState::Down(failure) = it.state() else { panic!("{:?}", it.state()) };
            assert!(!failure.may_have_been_executed());
            pauses.push(pause(&mut it, now));
            now += ms(*pauses.last().unwrap());
            assert!(it.connected(now, idle(0)));
        }
        assert_eq!(pauses, [25, 50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 15_000, 15_000]);
        now += FORGIVEN_AFTER - ms(1);
        it.broken(now, flood.clone(), 0);
        assert_eq!(pause(&mut it, now), 15_000, "a minute has not passed");
        now += ms(15_000);
        assert!(it.connected(now, idle(0)));
        now += FORGIVEN_AFTER;
        it.broken(now, flood, 0);
        assert_eq!(pause(&mut it, now), 25);
    }

    #[test]
    fn a_server_of_another_language_is_left_alone() {
        let (mut it, mut now, mut pauses) = (Supervisor::new(SILENCE), ms(0), Vec::new());
        assert_eq!(it.next_task(now, idle(0)), Some(Task::Connect));
        for _ in 0..7 {
            it.not_connected(now, Failure::new(FailureKind::Protocol), 0);
            let NodeState::Down(failure) = it.state() else { panic!("{:?}", it.state()) };
            assert!(!failure.may_have_been_executed());
            pauses.push(pause(&mut it, now));
            now += ms(*pauses.last().unwrap());
        }
        assert_eq!(pauses, [25, 50, 100, 200, 400, 800, 1600]);
        // If the old connection still exists, an invalid message on its replacement does not take the node down.
        let mut it = connected();
        assert_eq!(it.next_task(ms(2_400), awaited(100)), Some(Task::Connect));
        it.not_connected(ms(2_400), Failure::new(FailureKind::Protocol), 0);
        assert!(matches!(it.state(), NodeState::Suspended(_)));
    }
}
