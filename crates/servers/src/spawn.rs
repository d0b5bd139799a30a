//! Starting a child that does not outlive this process.
//!
//! Linux can send a process a signal when its parent dies; `setpriv --pdeathsig` asks for that
//! and then becomes the program, so no unsafe code runs between fork and exec. The kernel takes
//! the *thread* that forked for the parent, and a test's thread ends with the test. So all children
//! are started by one thread that ends with the process only.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{LazyLock, OnceLock};
use std::thread;

type Job = (Command, Sender<io::Result<Child>>);

/// Starts `program` as configured by `configure`. Where `setpriv` can see to it, it dies with this
/// process, and signals of the terminal do not reach it.
///
/// # Errors
/// The error of the system.
pub fn spawn(program: &Path, configure: impl FnOnce(&mut Command)) -> io::Result<Child> {
    let mut command = if dies_with_parent() {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        // A Ctrl-C in the terminal is for this process, which ends its children in order.
        // Without setpriv they stay in the terminal's group, so that Ctrl-C reaches them at all.
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
                // Nobody stops waiting for the answer, so it always has somebody to go to.
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

/// Whether children end with this process even if it is killed: there is a `setpriv` that knows
/// the option (busybox's does not).
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
