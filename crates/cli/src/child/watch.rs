//! The thread that starts the guardian, listens to it, and takes its place if it dies.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use nix::unistd::getpgrp;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use tokio::sync::mpsc;

use super::super::guardian::clock::{Alarm, Moment};
use super::super::guardian::kill_policy::{Ending, Killed, KilledBy};
use super::super::guardian::mutants::{Mutant, is_active};
use super::super::guardian::process_tree::{ProcessTree, Strangers};
use super::super::guardian::terminal::Terminal;
use super::super::guardian::wire::{Channel, Message, Next};
use super::spawn::{Launch, SpawnError, not_started};
use super::{ChildEvent, How, Shared};

/// Nothing of the command is left, or it was never started. Made in two places: `ChildWatch::see_the_end`, and where
/// its thread cannot be started. Nothing else gives the lock back.
#[derive(Debug)]
pub(crate) struct Gone(());

impl Gone {
    /// There is no thread that could have started a guardian.
    pub(super) fn never_started() -> Self {
        Self(())
    }
}

/// What the thread works with.
pub(super) struct ChildWatch {
    listener: Channel,
    /// Has something to read when the course has changed.
    woken: UnixStream,
    strangers: Strangers,
    shared: Arc<Shared>,
    events: mpsc::UnboundedSender<ChildEvent>,
}

/// A guardian at work, and the processes that it guards.
struct Guarded {
    guardian: process::Child,
    process_tree: ProcessTree,
    program: OsString,
}

/// The guardian's silence, once it should have killed all of the command.
#[derive(Default)]
struct Silence {
    overdue: Option<Overdue>,
    /// The keeper has killed the command in its place.
    killed: Option<Killed>,
    /// Before it fell silent, the guardian began to end the command.
    begun: Option<Killed>,
}

/// Times of the boot clock, in nanoseconds.
struct Overdue {
    /// Then there is no more patience with it.
    until: u64,
    /// When the keeper sends the next SIGKILL, and how long it then waits for the one after.
    again_at: u64,
    pause: u64,
}

/// How the conversation with the guardian ended.
enum LastWord {
    /// It said that nothing is left, and how that came.
    Over(How),
    /// It could do no work; what it left behind is to be looked at.
    Broken(How),
    /// It is dead, or was silent when it had to speak.
    None,
}

impl ChildWatch {
    pub(super) fn new(
        (listener, woken): (Channel, UnixStream),
        strangers: Strangers,
        shared: Arc<Shared>,
        events: mpsc::UnboundedSender<ChildEvent>,
    ) -> Self {
        Self { listener, woken, strangers, shared, events }
    }

    /// Passes on what the guardian tells until the command has ended.
    pub(super) fn run(mut self, launch: Launch) {
        if let Some((how, gone)) = self.see_the_end(launch) {
            self.tell(ChildEvent::Over { how, gone });
        }
    }

    /// Returns when nothing of the command is left; `None` if nobody wants to know any more.
    fn see_the_end(&mut self, launch: Launch) -> Option<(How, Gone)> {
        let how = match launch.start() {
            Err(error) => How::NotStarted(error.into()),
            Ok((guardian, program)) => {
                let process_tree =
                    ProcessTree::guarded_by(&guardian, std::mem::take(&mut self.strangers));
                let mut guarded = Guarded { guardian, process_tree, program };
                let mut silence = Silence::default();
                match self.listen(&mut guarded, &mut silence) {
                    LastWord::Over(how) => {
                        // It ends right after its last word, and a zombie is nothing to leave behind.
                        let _ = guarded.guardian.wait();
                        how
                    }
                    LastWord::Broken(how) => {
                        self.take_over(&mut guarded)?;
                        how
                    }
                    LastWord::None => {
                        self.take_over(&mut guarded)?;
                        silence.first().map_or(How::Unguarded, How::Killed)
                    }
                }
            }
        };
        Some((how, Gone(())))
    }

    fn listen(&mut self, guarded: &mut Guarded, silence: &mut Silence) -> LastWord {
        let alarm = Alarm::new();
        loop {
            let event = match self.listener.next() {
                Next::Message(Message::Started { group }) => {
                    guarded.process_tree.set_leader(Pid::from_raw(group));
                    ChildEvent::Started
                }
                Next::Message(Message::Stopped { signal }) => ChildEvent::Stopped { signal },
                Next::Message(Message::Continued) => ChildEvent::Continued,
                Next::Message(Message::Ending(killed)) => {
                    silence.begun.get_or_insert(killed);
                    continue;
                }
                Next::Message(message) => {
                    return last_word(silence.corrected(message), &guarded.program);
                }
                Next::Closed => return LastWord::None,
                Next::Nothing => {
                    let Some(until) = self.patience(&guarded.process_tree, silence) else {
                        return LastWord::None;
                    };
                    alarm.wait(until, &[self.listener.as_fd(), self.woken.as_fd()]);
                    let mut wake_ups = [0; 64];
                    while rustix::io::read(&self.woken, &mut wake_ups).is_ok_and(|count| count > 0)
                    {
                    }
                    continue;
                }
            };
            self.tell(event);
        }
    }

    /// Until when the guardian may be silent. A little after the deadline the keeper sends the
    /// SIGKILL itself, again and again, which does no harm if the guardian has sent it; long after, the
    /// guardian must be stopped and there is no more patience. That is counted from when the keeper
    /// notices: after a suspend the two wake up together.
    fn patience(&self, process_tree: &ProcessTree, silence: &mut Silence) -> Option<Moment> {
        let now = Moment::now();
        let help_at = self.shared.kill_policy().kill_at().after(HELP_NS);
        if !help_at.has_come(now) {
            silence.overdue = None;
            return Some(help_at);
        }
        // A command that has ended already is not killed by this.
        if silence.overdue.is_none() && silence.killed.is_none() && process_tree.leader_lives() {
            silence.killed = Some(self.shared.kill_policy().killed_in_its_place(now));
        }
        let overdue = silence.overdue.get_or_insert(Overdue {
            until: now.boot_ns.saturating_add(GIVE_UP_NS),
            again_at: now.boot_ns,
            pause: AGAIN_MIN_NS,
        });
        if overdue.again_at <= now.boot_ns {
            process_tree.signal_all(Signal::KILL);
            overdue.again_at = match is_active(Mutant::OneKillInItsPlace) {
                true => u64::MAX,
                false => now.boot_ns.saturating_add(overdue.pause),
            };
            overdue.pause = (2 * overdue.pause).min(AGAIN_MAX_NS);
        }
        let until = overdue.until.min(overdue.again_at);
        (now.boot_ns < overdue.until).then(|| now.after(until.saturating_sub(now.boot_ns)))
    }

    /// Does what the guardian can no longer do, and returns when nobody is left; `None` if nobody
    /// waits for that any more.
    fn take_over(&mut self, guarded: &mut Guarded) -> Option<()> {
        let Guarded { guardian, process_tree, .. } = guarded;
        if self.abandoned() {
            let _ = guardian.wait();
            return None;
        }
        process_tree.signal_all(Signal::KILL);
        // A stopped one would come back and find numbers that mean others by then. Its death
        // also makes the command's orphans ours, to bury.
        let _ = guardian.kill();
        let _ = guardian.wait();
        let (mut pause, mut waited) = (LOOK_AGAIN_MIN, Duration::ZERO);
        let mut said = false;
        loop {
            let (_, more_died) = process_tree.reap();
            if !more_died && process_tree.gone() {
                break;
            }
            if self.abandoned() {
                return None;
            }
            process_tree.signal_all(Signal::KILL);
            if more_died {
                continue;
            }
            if waited >= STUBBORN && !said {
                said = true;
                self.tell(ChildEvent::Stubborn { left: process_tree.left() });
            }
            thread::sleep(pause);
            waited += pause;
            pause = (2 * pause).min(LOOK_AGAIN_MAX);
        }
        // The guardian would have done that, too.
        if let (Some(keeper), Some(group)) =
            (Pid::from_raw(getpgrp().as_raw()), process_tree.group())
        {
            Terminal::reclaim(keeper, group);
        }
        Some(())
    }

    fn abandoned(&self) -> bool {
        self.shared.abandoned.load(Ordering::Relaxed)
    }

    fn tell(&self, event: ChildEvent) {
        // Without a receiver nobody wants to know.
        let _ = self.events.send(event);
    }
}

impl Silence {
    /// Why the command was ended for the lock's sake, if it was, by a guardian that does not finish that.
    fn first(&self) -> Option<Killed> {
        let first = [self.killed, self.begun].into_iter().flatten().min_by_key(|it| it.at_ns);
        first.map(|killed| Killed { by: KilledBy::Kill, ..killed })
    }

    /// A guardian that was stopped does not know that the keeper killed the command in its place. What came
    /// first is why the command was ended.
    fn corrected(&self, word: Message) -> Message {
        let Some(killed) = self.killed else { return word };
        match word {
            Message::Ended(Ending::Signaled { signal }) if signal == Signal::KILL.as_raw() => {
                Message::Killed(killed)
            }
            Message::Killed(told) => {
                let first = if told.at_ns < killed.at_ns { told } else { killed };
                Message::Killed(Killed { by: KilledBy::Kill, ..first })
            }
            word => word,
        }
    }
}

fn last_word(word: Message, program: &OsString) -> LastWord {
    LastWord::Over(match word {
        Message::Ended(Ending::Exited { code }) => How::Exited { code },
        Message::Ended(Ending::Signaled { signal }) => How::Signaled { signal },
        Message::Killed(killed) => How::Killed(killed),
        Message::Broken { errno } => {
            let error = io::Error::from_raw_os_error(errno);
            return LastWord::Broken(How::NotStarted(error.into()));
        }
        word => match not_started(word, program) {
            Some(error) => How::NotStarted(error),
            // No guardian says anything else, so this one cannot be relied upon.
            None => {
                let error = SpawnError::Machine(Errno::PROTO.into());
                return LastWord::Broken(How::NotStarted(error));
            }
        },
    })
}

/// More than a guardian needs, and less than what lies between the deadline and the end of the
/// lock's validity (50 ms at least).
const HELP_NS: u64 = 25_000_000;

/// How long the keeper waits between two SIGKILLs that it sends in a silent guardian's place.
const AGAIN_MIN_NS: u64 = 5_000_000;
const AGAIN_MAX_NS: u64 = 100_000_000;

/// How long a kill may take, on a busy machine, before the guardian counts as stopped.
const GIVE_UP_NS: u64 = 3_000_000_000;

/// How long the keeper's own kill may take before somebody is told that it does not work.
const STUBBORN: Duration = Duration::from_secs(1);

const LOOK_AGAIN_MIN: Duration = Duration::from_millis(1);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(200);
