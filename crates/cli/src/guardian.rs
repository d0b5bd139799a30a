//! `quorlock __guardian …`: the process that owns the command and ends it in time.
//!
//! The command must be dead before another client can have the lock, whatever happens to quorlock. The keeper (the
//! quorlock process that holds the lock) can be stopped by Ctrl-Z, killed, swapped out, or busy in its runtime. So a
//! separate process watches the deadlines and does nothing else: it has one thread, no runtime, and a process group of
//! its own that no terminal signal reaches. It reads each new deadline, later or earlier, from a socket. If the keeper
//! sends nothing, the last deadline remains. If the keeper's end of the socket closes, the keeper is dead: the command
//! gets SIGTERM at once, and SIGKILL when another client may get the lock.
//!
//! ```text
//!  keeper ──socket── guardian ──socket── exec step ─exec→ command
//!  own group         own group           the command's group
//! ```
//!
//! The guardian calls itself `lock-guardian`, so that `pkill -9 quorlock` does not kill it. If the guardian is killed
//! nevertheless, the kernel kills the command's own process (by the parent-death signal that [`exec_step`] sets), and
//! the keeper, if it lives, kills the rest. Guardian and keeper both use [`process_tree`].
//!
//! [`kill_policy`] decides when to send which signal. This file waits, asks it, and acts.

pub(crate) mod clock;
pub(crate) mod exec_step;
pub(crate) mod kill_policy;
mod launch;
pub(crate) mod process_tree;
pub(crate) mod procfs;
mod signals;
pub(crate) mod terminal;
pub(crate) mod wire;

use std::ffi::OsString;
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use self::clock::{Alarm, Moment};
use self::kill_policy::{Ending, KillPolicy};
use self::launch::StartedCommand;
pub(crate) use self::launch::own_program;
use self::process_tree::{Change, ProcessTree};
use self::terminal::Terminal;
use self::wire::{Channel, Message, Next};

/// Guards `command` until no process of it is left and the keeper knows that.
pub(crate) fn main(command: Vec<OsString>) -> ExitCode {
    let unblock = signals::block();
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(NAME);
    let Ok((keeper, Message::Start { keeper_group, deadlines })) = Channel::from_stdin() else {
        eprintln!("quorlock: only `quorlock run` starts this program; use that");
        return ExitCode::FAILURE;
    };
    let kill_policy = KillPolicy::new(deadlines);
    if kill_policy.too_late(Moment::now()) {
        deliver(&keeper, Message::TooLate);
        return ExitCode::SUCCESS;
    }
    match unblock
        .and_then(|unblock| StartedCommand::new(&command, (keeper_group, deadlines), unblock))
    {
        Ok(launch) => Guardian::new(keeper, kill_policy, launch).guard(),
        Err(error) => deliver(&keeper, Message::Broken { errno: errno(&error) }),
    }
    ExitCode::SUCCESS
}

/// The first argument that makes this program the guardian.
pub(crate) const GUARDIAN: &str = "__guardian";

/// The first argument that makes this program the exec step.
pub(crate) const EXEC_STEP: &str = "__exec";

struct Guardian {
    /// `None` if the keeper is dead.
    keeper: Option<Channel>,
    kill_policy: KillPolicy,
    alarm: Alarm,
    child_signal: UnixStream,
    /// `None` after the command has started or failed to start.
    exec_step: Option<Channel>,
    /// The last message to the keeper if the command was never started.
    not_started: Option<Message>,
    process_tree: ProcessTree,
    terminal: Option<Terminal>,
    /// The keeper was notified that the command stopped, so this process must also report that it continues.
    stopped: bool,
    /// The command had the terminal when it was stopped.
    stopped_in_foreground: bool,
    /// Pause before the process table is read again.
    look_again_ns: u64,
}

impl Guardian {
    fn new(keeper: Channel, kill_policy: KillPolicy, launch: StartedCommand) -> Self {
        let StartedCommand { child_signal, exec_step, process_tree, terminal } = launch;
        Self {
            keeper: Some(keeper),
            kill_policy,
            alarm: Alarm::new(),
            child_signal,
            exec_step: Some(exec_step),
            not_started: None,
            process_tree,
            terminal,
            stopped: false,
            stopped_in_foreground: false,
            look_again_ns: LOOK_AGAIN_MIN_NS,
        }
    }

    fn guard(mut self) {
        loop {
            // Reaping comes before reading, so the last message of a reaped exec step is read in the same round.
            let (changes, more_died) = self.process_tree.reap();
            self.hear_exec_step();
            for change in changes {
                self.note(change);
            }
            self.hear_keeper();
            if let Some(ending) = self.kill_policy.ending()
                && self.process_tree.is_childless()
            {
                return self.finish(ending);
            }
            // The deadlines are checked before the next steps, which take long if there are many processes.
            let due = self.kill_policy.due(Moment::now());
            if due.is_some() {
                self.look_again_ns = LOOK_AGAIN_MIN_NS;
                // The keeper gets this message before the command gets the signal. If this process then stops or dies,
                // the keeper finds the command dead and knows why.
                if let Some(killed) = self.kill_policy.revoked() {
                    self.tell(Message::Ending(killed));
                }
            }
            // SIGKILL is repeated, because processes can fork while the signals are being sent.
            if let Some(signal) = due.or(self.kill_policy.forced().then_some(Signal::KILL)) {
                self.process_tree.signal_all(signal);
            }
            if let Some(ending) = self.kill_policy.ending()
                && self.process_tree.gone()
            {
                return self.finish(ending);
            }
            if !more_died {
                self.wait();
            }
        }
    }

    fn hear_exec_step(&mut self) {
        let Some(exec_step) = &mut self.exec_step else {
            return;
        };
        match exec_step.next() {
            Next::Nothing => return,
            Next::Message(word @ (Message::CannotRun { .. } | Message::TooLate)) => {
                self.not_started = Some(word);
            }
            Next::Closed | Next::Message(_) => {
                let group =
                    self.process_tree.group().map_or(0, |leader| leader.as_raw_nonzero().get());
                self.tell(Message::Started { group });
            }
        }
        self.exec_step = None;
    }

    fn note(&mut self, change: Change) {
        match change {
            Change::Stopped(signal) => {
                let asks_for_terminal =
                    signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw();
                if asks_for_terminal && self.terminal.as_mut().is_some_and(Terminal::give) {
                    return self.process_tree.signal_group(Signal::CONT);
                }
                self.stopped_in_foreground =
                    self.terminal.as_mut().is_some_and(Terminal::take_back);
                self.stopped = true;
                self.tell(Message::Stopped { signal });
            }
            Change::Continued => {
                if mem::take(&mut self.stopped) {
                    self.tell(Message::Continued);
                }
            }
            Change::Ended(ending) => {
                // The policy needs the newest deadlines, which may have arrived while this process was stopped.
                self.hear_keeper();
                self.kill_policy.ended(ending, Moment::now());
            }
        }
    }

    fn hear_keeper(&mut self) {
        while let Some(keeper) = &mut self.keeper {
            match keeper.next() {
                Next::Nothing => return,
                Next::Message(Message::Deadlines(deadlines)) => self.kill_policy.set(deadlines),
                Next::Message(Message::Terminate { kill }) => self.kill_policy.terminate(kill),
                Next::Message(Message::Signal(number)) => {
                    if let Some(signal) = Signal::from_named_raw(number) {
                        self.pass_on(signal);
                    }
                }
                Next::Closed | Next::Message(_) => {
                    self.keeper = None;
                    self.kill_policy.keeper_died();
                }
            }
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        let Some(signal) = self.kill_policy.user_signal(signal) else {
            return;
        };
        if signal == Signal::CONT && self.stopped_in_foreground {
            // After fg the command needs the foreground before it wakes up. After bg this does nothing.
            let _ = self.terminal.as_mut().is_some_and(Terminal::give);
        }
        self.process_tree.signal_group(signal);
    }

    /// Sleeps until something may have changed.
    fn wait(&mut self) {
        let mut until = self.kill_policy.next_due();
        if self.kill_policy.ending().is_some() || self.kill_policy.forced() {
            // The death of a grandchild sends no SIGCHLD to this process, which therefore looks again by itself.
            until = until.min(Moment::now().after(self.look_again_ns));
            self.look_again_ns = (2 * self.look_again_ns).min(LOOK_AGAIN_MAX_NS);
        }
        let sources = [
            Some(self.child_signal.as_fd()),
            self.keeper.as_ref().map(AsFd::as_fd),
            self.exec_step.as_ref().map(AsFd::as_fd),
        ];
        self.alarm.wait(until, &sources.into_iter().flatten().collect::<Vec<_>>());
        let mut wake_ups = [0_u8; 64];
        while rustix::io::read(&self.child_signal, &mut wake_ups).is_ok_and(|count| count > 0) {}
    }

    fn tell(&self, message: Message) {
        if let Some(keeper) = &self.keeper {
            // If the keeper is stopped for so long that the socket is full, it misses this message. If the
            // keeper is dead, the next read from the socket shows that.
            let _ = keeper.send(message);
        }
    }

    fn finish(mut self, ending: Ending) {
        if let Some(terminal) = &mut self.terminal {
            let had = terminal.take_back();
            if had && matches!(ending, Ending::Signaled { .. }) {
                terminal.restore_modes();
            }
        }
        let result = self.not_started.unwrap_or_else(|| self.kill_policy.result(ending));
        if let Some(keeper) = &self.keeper {
            deliver(keeper, result);
        }
    }
}

/// Sends the last message, and waits for room in the socket. If the keeper is dead, the message is dropped.
fn deliver(keeper: &Channel, message: Message) {
    while let Err(error) = keeper.send(message) {
        if error.kind() != io::ErrorKind::WouldBlock {
            return;
        }
        let _ = poll(&mut [PollFd::new(keeper, PollFlags::OUT)], None);
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error())
}

/// The name for `ps` and `pkill`.
#[cfg(target_os = "linux")]
const NAME: &std::ffi::CStr = c"lock-guardian";

const LOOK_AGAIN_MIN_NS: u64 = 5_000_000;
const LOOK_AGAIN_MAX_NS: u64 = 500_000_000;
