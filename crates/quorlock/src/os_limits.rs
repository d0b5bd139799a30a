//! The limits of the operating system: which one an error reports, and a runtime that returns such an error.

use std::io::{self, ErrorKind};

use tokio::runtime::{Builder, Runtime};

/// Names the resource that is exhausted, and its limit. `None`: the error has another cause.
///
/// `EAGAIN` counts as the process limit, so the error must come from the start of a thread or process, or from a call
/// that does not report `EAGAIN` for anything else.
pub fn exhausted(error: &io::Error) -> Option<&'static str> {
    Some(match (error.raw_os_error(), error.kind()) {
        (Some(ENFILE), _) if cfg!(unix) => {
            "this machine has no file descriptor left (limit: sysctl fs.file-max)"
        }
        (Some(EMFILE), _) if cfg!(unix) => {
            "this process has no file descriptor left (limit: ulimit -n)"
        }
        (_, ErrorKind::WouldBlock) => {
            "no further process or thread can be started (limits: ulimit -u, ulimit -v, and pids.max of the container)"
        }
        (_, ErrorKind::OutOfMemory) => {
            "no memory is left (limits: ulimit -v, and memory.max of the container)"
        }
        (_, ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => "no space is left on the device",
        _ => return None,
    })
}

/// The error of the operating system, after the name of the exhausted resource if there is one.
pub fn explained(error: &io::Error) -> String {
    match exhausted(error) {
        Some(resource) => format!("{resource}: {error}"),
        None => error.to_string(),
    }
}

/// A runtime on one thread. If tokio is built with signals, it panics when no file descriptor is left for them. This
/// function returns an error instead.
pub fn current_thread_runtime() -> io::Result<Runtime> {
    #[cfg(unix)]
    {
        use std::os::unix::net::UnixStream;
        let spare = [UnixStream::pair()?, UnixStream::pair()?, UnixStream::pair()?];
        drop(spare);
    }
    Builder::new_current_thread().enable_all().build()
}

/// These error numbers are the same on every Unix.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
