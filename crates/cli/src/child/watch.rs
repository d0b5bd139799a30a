//! The thread that starts the guardian, reads its messages, and takes its place if it dies.

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
use super::super::guardian::process_tree::{ProcessTree, Strangers};
use super::super::guardian::terminal::Terminal;
use super::super::guardian::wire::{Channel, Message, Next};
use super::spawn::{GuardianLaunch, SpawnError, not_started};
use super::{ChildEvent, How, WatchState};

/// Proof that no process of the command is left, or that the command was never started. It is made in two places: in
/// `ChildWatch::see_the_end`, and where the thread cannot be started. The keeper needs it to release the lock.
#[derive(Debug)]
pub(crate) struct Gone(());

impl Gone {
    /// The proof if no thread exists that could have started a guardian.
    pub(super) fn never_started() -> Self {
        Self(())
    }
}

pub(super) struct ChildWatch {
    listener: Channel,
    /// Readable when the kill policy in `shared` has changed.
    woken: UnixStream,
    strangers: Strangers,
    shared: Arc<WatchState>,
    events: mpsc::UnboundedSender<ChildEvent>,
}

/// A running guardian, and the processes that it guards.
struct Guarded {
    guardian: process::Child,
    process_tree: ProcessTree,
    program: OsString,
}

/// State of a guardian that has not yet reported the end of the command.
#[derive(Default)]
struct Silence {
    overdue: Option<Overdue>,
    /// Set when the keeper has killed the command in the guardian's place.
    killed: Option<Killed>,
    /// Set when the guardian has announced that it ends the command.
    begun: Option<Killed>,
}

/// The keeper's next steps after the guardian has missed the deadline. Times are nanoseconds of the boot clock.
struct Overdue {
    /// Time at which the keeper stops waiting for a message, and takes over.
    until: u64,
    /// Time of the keeper's next SIGKILL. `pause` is the time between that and the following SIGKILL.
    again_at: u64,
    pause: u64,
}

/// The end of the guardian's reports.
enum LastWord {
    /// The guardian has reported that no process is left, and how the command ended.
    Over(How),
    /// The guardian could not do its work. Processes may be left.
    Broken(How),
    /// There was no last message: the guardian is dead, or was silent for too long after the deadline.
    None,
}

impl ChildWatch {
    pub(super) fn new(
        (listener, woken): (Channel, UnixStream),
        strangers: Strangers,
        shared: Arc<WatchState>,
        events: mpsc::UnboundedSender<ChildEvent>,
    ) -> Self {
        Self { listener, woken, strangers, shared, events }
    }

    /// Passes on the guardian's messages until the command has ended.
    pub(super) fn run(mut self, launch: GuardianLaunch) {
        if let Some((how, gone)) = self.see_the_end(launch) {
            self.tell(ChildEvent::Over { how, gone });
        }
    }

    /// Returns when no process of the command is left; `None` if the [`Child`](super::Child) was dropped.
    fn see_the_end(&mut self, launch: GuardianLaunch) -> Option<(How, Gone)> {
        let how = match launch.start() {
            Err(error) => How::NotStarted(error.into()),
            Ok((guardian, program)) => {
                let process_tree =
                    ProcessTree::guarded_by(&guardian, std::mem::take(&mut self.strangers));
                let mut guarded = Guarded { guardian, process_tree, program };
                let mut silence = Silence::default();
                match self.listen(&mut guarded, &mut silence) {
                    LastWord::Over(how) => {
                        // The guardian ends right after its last message. It must not remain as a zombie.
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

    /// Returns the time until which the keeper waits for a message. A little after the deadline the keeper sends
    /// SIGKILL itself, repeatedly, which does no harm if the guardian has sent it too. If the guardian is silent for
    /// [`GIVE_UP_NS`] more, it counts as stopped, and the result is `None`. This period begins when the keeper notices
    /// the missed deadline and not at the deadline, because after a suspend keeper and guardian wake up together.
    fn patience(&self, process_tree: &ProcessTree, silence: &mut Silence) -> Option<Moment> {
        let now = Moment::now();
        let help_at = self.shared.kill_policy().kill_at().after(HELP_NS);
        if !help_at.has_come(now) {
            silence.overdue = None;
            return Some(help_at);
        }
        // If the command has already ended, the SIGKILL below is not the cause of its end.
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
            overdue.again_at = now.boot_ns.saturating_add(overdue.pause);
            overdue.pause = (2 * overdue.pause).min(AGAIN_MAX_NS);
        }
        let until = overdue.until.min(overdue.again_at);
        (now.boot_ns < overdue.until).then(|| now.after(until.saturating_sub(now.boot_ns)))
    }

    /// Does the work of the guardian. Returns when no process is left; `None` if the [`Child`](super::Child) was
    /// dropped.
    fn take_over(&mut self, guarded: &mut Guarded) -> Option<()> {
        let Guarded { guardian, process_tree, .. } = guarded;
        if self.abandoned() {
            let _ = guardian.wait();
            return None;
        }
        process_tree.signal_all(Signal::KILL);
        // The guardian must die: continued later, it could send signals to other processes with reused numbers. Its
        // death also makes the command's orphans children of this process, which reaps them.
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
        // The dead guardian can no longer take the terminal back from the command, so the keeper does.
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
        // Without a receiver the event is dropped.
        let _ = self.events.send(event);
    }
}

impl Silence {
    /// The earlier one of the keeper's own SIGKILL and the signal that the guardian announced; `None` without either.
    fn first(&self) -> Option<Killed> {
        let first = [self.killed, self.begun].into_iter().flatten().min_by_key(|it| it.at_ns);
        first.map(|killed| Killed { by: KilledBy::Kill, ..killed })
    }

    /// Corrects the last message of a guardian that was stopped: the guardian does not know that the keeper has killed
    /// the command in its place. The result has the reason of the first signal.
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
            // A working guardian ends with one of the messages above, so this guardian counts as broken.
            None => {
                let error = SpawnError::Machine(Errno::PROTO.into());
                return LastWord::Broken(How::NotStarted(error));
            }
        },
    })
}

/// Time after the deadline of SIGKILL at which the keeper itself kills. It is longer than a guardian needs to act,
/// and shorter than the time between the deadline and the end of the validity (at least 50 ms).
const HELP_NS: u64 = 25_000_000;

/// First and longest pause between two SIGKILLs that the keeper sends in the place of a silent guardian.
const AGAIN_MIN_NS: u64 = 5_000_000;
const AGAIN_MAX_NS: u64 = 100_000_000;

/// The longest time that a guardian needs for a kill on a busy machine. A slower guardian counts as stopped.
const GIVE_UP_NS: u64 = 3_000_000_000;

/// Time after which the keeper reports that its own kill has no effect.
const STUBBORN: Duration = Duration::from_secs(1);

const LOOK_AGAIN_MIN: Duration = Duration::from_millis(1);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(200);
