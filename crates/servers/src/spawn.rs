//! Starts child processes that do not outlive this process.
//!
//! On Linux the kernel can send a process a signal when its parent dies. `setpriv --pdeathsig` requests this and then
//! execs the program, so no unsafe code runs between fork and exec. The kernel regards the *thread* that forked as the
//! parent, and a test's thread ends with the test. So one thread, which lives as long as the process, starts all
//! children.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{LazyLock, OnceLock};
use std::thread;

type Job = (Command, Sender<io::Result<Child>>);

/// Starts `program`. If `setpriv` is usable, the child dies with this process, and signals from the terminal do not
/// reach the child.
///
/// # Errors
/// The error of the operating system.
pub fn spawn(program: &Path, configure: impl FnOnce(&mut Command)) -> io::Result<Child> {
    let mut command = if dies_with_parent() {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        // The child gets its own process group, so Ctrl-C in the terminal reaches only this process, which then stops
        // the child. Without setpriv, the child stays in the terminal's process group, so that Ctrl-C ends it too.
        command.process_group(0);
        command
    } else {
        Command::new(program)
    };
    configure(&mut command);

    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, answer) in queue {
                // The receiver waits for the answer, so `send` cannot fail.
                let _ = answer.send(command.spawn());
            }
        });
        jobs
    });
    let (answer, child) = mpsc::channel();
    let gone = || io::Error::other("the thread that starts servers has ended");
    spawner.send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

/// Whether children die with this process even on SIGKILL. True if `setpriv` knows `--pdeathsig`. The `setpriv` of
/// busybox does not.
pub(crate) fn dies_with_parent() -> bool {
    static WORKS: LazyLock<bool> = LazyLock::new(|| {
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "true"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    });
    *WORKS
}
