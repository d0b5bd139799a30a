//! A running server process.

use std::env;
use std::fmt;
use std::fs::{self, File, Permissions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

use crate::options::percent_encoded;
use crate::resp::RespConnection;
use crate::spawn::spawn;
use crate::{Listen, Reply, ServerBinary, ServerOptions};

/// Timeout for the start of a server. The start takes about 20 ms on an idle machine.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Timeout of [`Server::command`]. No command takes this long, but a paused server never answers.
const COMMAND_LIMIT: Duration = Duration::from_secs(5);

/// Number of attempts to start a server. An attempt fails if another process binds the chosen port first.
const PORT_TRIES: usize = 8;

/// The range of ports for servers. It lies below the ephemeral ports of Linux and macOS. A client that reconnects to a
/// dead server's port within the ephemeral range may get the same port as its own, and so connect to itself.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 12_000;

/// Longest path of a Unix socket, in bytes. The limit of the kernel is 107 on Linux and 103 on macOS.
const SOCKET_PATH_LIMIT: usize = 103;

/// A server process. Dropping the value kills the process and removes its files.
///
/// All methods take `&self`, so one thread can kill the server while others use it.
pub struct Server {
    binary: ServerBinary,
    options: ServerOptions,
    port: Option<u16>,
    child: Mutex<Option<Child>>,
    /// Removed after `drop` has killed the process, because a running process could create new files in this folder.
    home: TempDir,
}

/// A server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The temporary folder, the files, the port or the process could not be created.
    #[error("cannot prepare or run {}: {source}", path.display())]
    Prepare {
        /// The server's binary.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The process ended before it answered.
    #[error("{} ended with {status} before it answered; its log ends with:\n{log}", path.display())]
    Ended {
        /// The server's binary.
        path: PathBuf,
        /// The exit status.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// TLS was requested, and the binary was built without TLS.
    #[error("{} was built without TLS", path.display())]
    NoTls {
        /// The server's binary.
        path: PathBuf,
    },
    /// The process did not answer within ten seconds, and was killed.
    #[error("{} did not answer within {START_LIMIT:?}; its log ends with:\n{log}", path.display())]
    Silent {
        /// The server's binary.
        path: PathBuf,
        /// The end of its log.
        log: String,
    },
}

impl Server {
    /// Starts a server and returns when it answers.
    ///
    /// # Errors
    /// [`StartError`]. No process is left running.
    pub fn start(binary: &ServerBinary, options: ServerOptions) -> Result<Self, StartError> {
        let tcp = options.listen == Listen::Tcp || options.tls.is_some();
        let mut tries = 1..=PORT_TRIES;
        loop {
            let prepare = |source| StartError::Prepare { path: binary.path.clone(), source };
            let server = Self {
                binary: binary.clone(),
                options: options.clone(),
                port: if tcp { Some(free_port().map_err(prepare)?) } else { None },
                child: Mutex::new(None),
                home: home().map_err(prepare)?,
            };
            let launched = server.launch(&mut server.child());
            match launched {
                Err(error) if tcp && error.port_was_taken() && tries.next().is_some() => {}
                result => return result.map(|()| server),
            }
        }
    }

    /// The binary that runs.
    pub fn binary(&self) -> &ServerBinary {
        &self.binary
    }

    /// The URL for clients, including the password: `redis+unix:///path`, `redis://127.0.0.1:port` or
    /// `rediss://127.0.0.1:port`.
    pub fn url(&self) -> String {
        let password = self.options.password.as_deref();
        let secret = password.map(|secret| percent_encoded(secret.as_bytes(), b""));
        match self.port {
            None => {
                let path = percent_encoded(self.socket().as_os_str().as_encoded_bytes(), b"/");
                let query = secret.map(|secret| format!("?pass={secret}")).unwrap_or_default();
                format!("redis+unix://{path}{query}")
            }
            Some(port) => {
                let scheme = if self.options.tls.is_some() { "rediss" } else { "redis" };
                let user = secret.map(|secret| format!(":{secret}@")).unwrap_or_default();
                format!("{scheme}://{user}127.0.0.1:{port}")
            }
        }
    }

    /// The path of the socket, or `127.0.0.1:port`.
    pub fn address(&self) -> String {
        match self.port {
            None => self.socket().display().to_string(),
            Some(port) => format!("127.0.0.1:{port}"),
        }
    }

    /// The process id. `None` if the process has ended.
    pub fn pid(&self) -> Option<u32> {
        running(&mut self.child()).map(|child| child.id())
    }

    /// Whether the process exists. A paused process counts as running.
    pub fn is_running(&self) -> bool {
        self.pid().is_some()
    }

    /// Kills the process (SIGKILL) and waits for its end. Does nothing if the process has ended before.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn kill(&self) -> io::Result<()> {
        end(&mut self.child())
    }

    /// Stops the process (SIGSTOP) and waits until it has stopped. Clients can still connect, and get no answers.
    ///
    /// # Errors
    /// If the server does not run.
    pub fn pause(&self) -> io::Result<()> {
        let mut child = self.child();
        let pid = signal(&mut child, Signal::STOP)?;
        // The kernel delivers the signal asynchronously, so the server could still answer before this wait ends.
        // `NOWAIT` keeps the event, so that a second `pause` does not wait for a new one.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        retry_on_intr(|| waitid(WaitId::Pid(pid), stopped))?;
        Ok(())
    }

    /// Continues a paused process (SIGCONT).
    ///
    /// # Errors
    /// If the server does not run.
    pub fn resume(&self) -> io::Result<()> {
        signal(&mut self.child(), Signal::CONT).map(drop)
    }

    /// Kills the process if it runs, and starts it again with the same address and options. The new process has no data
    /// unless `args` configures persistence.
    ///
    /// # Errors
    /// [`StartError`]. Then the server does not run.
    pub fn restart(&self) -> Result<(), StartError> {
        let mut child = self.child();
        end(&mut child).map_err(|source| self.not_prepared(source))?;
        self.launch(&mut child)
    }

    /// Sends one command as the default user and waits for the reply, at most five seconds.
    ///
    /// The connection uses the Unix socket, even if clients use TCP or TLS.
    ///
    /// # Errors
    /// If the server does not answer or refuses the password. An error reply to the command itself is a
    /// [`Reply::Error`].
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Reply> {
        self.connect()?.command(args)
    }

    /// Opens a connection to the Unix socket, for several commands.
    ///
    /// # Errors
    /// If the server does not answer or refuses the password.
    pub fn connect(&self) -> io::Result<RespConnection> {
        let password = self.options.password.as_deref();
        RespConnection::open(&self.socket(), password, COMMAND_LIMIT)
    }

    /// The path of the Unix socket. Every server has one.
    pub fn socket(&self) -> PathBuf {
        socket_in(self.home.path())
    }

    /// The working directory of the process, which contains all files that the process writes.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    fn log(&self) -> PathBuf {
        self.home.path().join("log")
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        // A panic of another thread cannot leave the child in an inconsistent state.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launch(&self, child: &mut Option<Child>) -> Result<(), StartError> {
        let run = || {
            let home = self.home.path();
            let config = home.join("conf");
            fs::write(&config, self.options.config(home, &self.socket(), self.port))?;
            // Each start has its own log, so an error never quotes an earlier run. Standard output goes to the log too,
            // because the server writes configuration errors there.
            let log = File::create(self.log())?;
            let errors = log.try_clone()?;
            spawn(&self.binary.path, |command| {
                command
                    .arg(&config)
                    .args(&self.options.args)
                    .envs(self.options.env.iter().cloned())
                    .current_dir(home)
                    .stdin(Stdio::null())
                    .stdout(log)
                    .stderr(errors);
            })
        };
        let running = child.insert(run().map_err(|source| self.not_prepared(source))?);
        let result = self.await_answer(running);
        if result.is_err() {
            // The earlier error is reported, not an error of this clean-up.
            let _ = end(child);
        }
        result
    }

    fn await_answer(&self, child: &mut Child) -> Result<(), StartError> {
        let deadline = now() + START_LIMIT;
        let mut pause = Duration::from_millis(2);
        loop {
            if let Some(status) = child.try_wait().map_err(|source| self.not_prepared(source))? {
                return Err(self.ended(status));
            }
            if self.answers() {
                return Ok(());
            }
            if now() >= deadline {
                return Err(StartError::Silent {
                    path: self.binary.path.clone(),
                    log: self.log_tail(),
                });
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Whether the process answers on the Unix socket. The socket is in our private folder, so no other process can
    /// answer there. A server answers only after it has bound all of its addresses. An error reply counts as an answer,
    /// because `args` may set a password.
    fn answers(&self) -> bool {
        RespConnection::open(&self.socket(), None, Duration::from_secs(1))
            .and_then(|mut connection| connection.command(&["PING"]))
            .is_ok_and(|reply| !matches!(reply, Reply::Error(e) if e.starts_with("LOADING")))
    }

    fn ended(&self, status: ExitStatus) -> StartError {
        let (path, log) = (self.binary.path.clone(), self.log_tail());
        // The log of a server that was built without TLS contains one of these messages. The first is from Redis 6.
        let no_tls = ["'tls-port \"", "Failed finding TLS support"];
        if self.options.tls.is_some() && no_tls.iter().any(|words| log.contains(words)) {
            return StartError::NoTls { path };
        }
        StartError::Ended { path, status, log }
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    fn not_prepared(&self, source: io::Error) -> StartError {
        StartError::Prepare { path: self.binary.path.clone(), source }
    }
}

impl StartError {
    fn port_was_taken(&self) -> bool {
        matches!(self, Self::Ended { log, .. } if log.contains("Address already in use"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL ends a paused process too. `drop` cannot return an error.
        let _ = self.kill();
    }
}

/// Hides the password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("binary", &self.binary)
            .field("address", &self.address())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Returns the child if it runs. A child that has ended is discarded, because its process id may be reused.
fn running(child: &mut Option<Child>) -> Option<&mut Child> {
    if matches!(child.as_mut().map(Child::try_wait), Some(Ok(Some(_)))) {
        *child = None;
    }
    child.as_mut()
}

fn signal(child: &mut Option<Child>, signal: Signal) -> io::Result<Pid> {
    let child = running(child).ok_or_else(|| io::Error::other("the server does not run"))?;
    let pid = Pid::from_child(child);
    kill_process(pid, signal)?;
    Ok(pid)
}

fn end(child: &mut Option<Child>) -> io::Result<()> {
    if let Some(process) = child {
        process.kill()?;
        process.wait()?;
        *child = None;
    }
    Ok(())
}

fn socket_in(home: &Path) -> PathBuf {
    home.join("socket")
}

/// Creates the home folder. Only this user can enter the folder, because the configuration contains the password. The
/// path is short enough for a Unix socket in it.
fn home() -> io::Result<TempDir> {
    let make = |parent: &Path| {
        tempfile::Builder::new()
            .prefix("quorlock-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)
    };
    let home = make(&env::temp_dir())?;
    if socket_in(home.path()).as_os_str().len() <= SOCKET_PATH_LIMIT {
        return Ok(home);
    }
    make(Path::new("/tmp"))
}

fn free_port() -> io::Result<u16> {
    // The standard library seeds its hashers randomly, so processes that start at the same time try different ports.
    let start = RandomState::new().build_hasher().finish();
    (0..u64::from(PORTS))
        .filter_map(|step| u16::try_from(start.wrapping_add(step) % u64::from(PORTS)).ok())
        .map(|offset| FIRST_PORT + offset)
        .find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
        .ok_or_else(|| io::Error::from(io::ErrorKind::AddrInUse))
}

#[expect(
    clippy::disallowed_methods,
    reason = "bounds the wait for a child process, not the validity of a lock"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find_or_skip;

    #[test]
    fn a_port_lost_to_somebody_else_is_recognised() {
        let Some(binary) = find_or_skip("a_port_lost_to_somebody_else_is_recognised") else {
            return;
        };
        let somebody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = Server {
            binary,
            options: ServerOptions::default(),
            port: Some(somebody.local_addr().unwrap().port()),
            child: Mutex::new(None),
            home: home().unwrap(),
        };
        let error = server.restart().unwrap_err();
        assert!(error.port_was_taken(), "{error}");
        assert!(!server.is_running());
    }
}
