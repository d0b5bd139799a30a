//! One running server.

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

/// How long a server may take until it answers. They need some 20 ms; a busy machine needs more.
const START_LIMIT: Duration = Duration::from_secs(10);

/// How long [`Server::command`] waits: longer than any command takes, and bounded, because the
/// server may be paused.
const COMMAND_LIMIT: Duration = Duration::from_secs(5);

/// How often a server that lost its port to somebody else between the choice and the bind gets
/// another one.
const PORT_TRIES: usize = 8;

/// The ports to choose from: below the ports that Linux and macOS give to outgoing connections.
/// A client that redials a dead server's port from that range can be given the very same port as
/// its own, and is then connected to itself.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 12_000;

/// The kernel's limit for the path of a Unix socket is 107 bytes on Linux and 103 on macOS.
const SOCKET_PATH_LIMIT: usize = 103;

/// A server process of this program. It ends, and its files go, when this value is dropped.
///
/// Everything that is done to a server takes `&self`, so that one thread can kill it while others
/// use it.
pub struct Server {
    binary: ServerBinary,
    options: ServerOptions,
    port: Option<u16>,
    child: Mutex<Option<Child>>,
    /// Removed after `drop` has ended the process, which could otherwise put new files there.
    home: TempDir,
}

/// A server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its temporary folder, its files or its port could not be had, or the process not be made.
    #[error("cannot prepare or run {}: {source}", path.display())]
    Prepare {
        /// The server's binary.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// It ended before it answered.
    #[error("{} ended with {status} before it answered; its log ends with:\n{log}", path.display())]
    Ended {
        /// The server's binary.
        path: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// It was to serve TLS and was built without.
    #[error("{} was built without TLS", path.display())]
    NoTls {
        /// The server's binary.
        path: PathBuf,
    },
    /// It runs but did not answer within ten seconds. It was killed.
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
    /// [`StartError`], with the end of the server's log; nothing is left running.
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

    /// The URL to connect to, with the password in it if there is one:
    /// `redis+unix:///path`, `redis://127.0.0.1:port` or `rediss://127.0.0.1:port`.
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

    /// Where it listens: the path of its socket, or `127.0.0.1:port`.
    pub fn address(&self) -> String {
        match self.port {
            None => self.socket().display().to_string(),
            Some(port) => format!("127.0.0.1:{port}"),
        }
    }

    /// The process, unless it has ended.
    pub fn pid(&self) -> Option<u32> {
        running(&mut self.child()).map(|child| child.id())
    }

    /// Whether the process exists; a paused one does.
    pub fn is_running(&self) -> bool {
        self.pid().is_some()
    }

    /// Kills the process without a warning, and returns when it is gone. A server that has
    /// already ended is left at that.
    ///
    /// # Errors
    /// When the system refuses, which it has no reason to do for our own child.
    pub fn kill(&self) -> io::Result<()> {
        end(&mut self.child())
    }

    /// Stops the process where it is, as a long pause of the machine would, and returns when it
    /// stands. Clients see a server that takes connections and says nothing.
    ///
    /// # Errors
    /// When the server does not run.
    pub fn pause(&self) -> io::Result<()> {
        let mut child = self.child();
        let pid = signal(&mut child, Signal::STOP)?;
        // The signal alone is only a request: the server might still answer what comes now.
        // Leaving the event in place lets a second pause return as well.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        retry_on_intr(|| waitid(WaitId::Pid(pid), stopped))?;
        Ok(())
    }

    /// Lets a paused process go on.
    ///
    /// # Errors
    /// When the server does not run.
    pub fn resume(&self) -> io::Result<()> {
        signal(&mut self.child(), Signal::CONT).map(drop)
    }

    /// Kills the process if it runs, and starts it again at the same address with the same
    /// options. It comes back empty, unless `args` told it to keep its data.
    ///
    /// # Errors
    /// [`StartError`]; after that the server is not running.
    pub fn restart(&self) -> Result<(), StartError> {
        let mut child = self.child();
        end(&mut child).map_err(|source| self.not_prepared(source))?;
        self.launch(&mut child)
    }

    /// Sends one command as the default user and waits for the answer, five seconds at most.
    ///
    /// It takes a way of its own, a Unix socket, also where clients use TCP or TLS.
    ///
    /// # Errors
    /// When the server does not answer or refuses the password. An error that it answers to the
    /// command itself is a [`Reply::Error`].
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Reply> {
        self.connect()?.command(args)
    }

    /// A connection for several commands, on the same way.
    ///
    /// # Errors
    /// As for one command.
    pub fn connect(&self) -> io::Result<RespConnection> {
        let password = self.options.password.as_deref();
        RespConnection::open(&self.socket(), password, COMMAND_LIMIT)
    }

    /// The Unix socket, which is there in every case.
    pub fn socket(&self) -> PathBuf {
        socket_in(self.home.path())
    }

    /// The folder that the process works in, with all files that it writes.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    fn log(&self) -> PathBuf {
        self.home.path().join("log")
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        // A panic while the lock was held leaves a child that is as killable as before.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launch(&self, child: &mut Option<Child>) -> Result<(), StartError> {
        let run = || {
            let home = self.home.path();
            let config = home.join("conf");
            fs::write(&config, self.options.config(home, &self.socket(), self.port))?;
            // One log for each start, so that an error never shows what an earlier one said.
            // The server says on its output what is wrong with its configuration.
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
            // The error to report is the one that led here.
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

    /// The socket is in our own folder, so whoever answers there is the process just started; and
    /// a server answers nobody before it has all of its addresses.
    /// Any answer will do: the password may be one that `args` sets.
    fn answers(&self) -> bool {
        RespConnection::open(&self.socket(), None, Duration::from_secs(1))
            .and_then(|mut connection| connection.command(&["PING"]))
            .is_ok_and(|reply| !matches!(reply, Reply::Error(e) if e.starts_with("LOADING")))
    }

    fn ended(&self, status: ExitStatus) -> StartError {
        let (path, log) = (self.binary.path.clone(), self.log_tail());
        // The first is what Redis 6 says of an option that it was built without.
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
        // SIGKILL ends a paused process too, and there is nobody here to tell an error to.
        let _ = self.kill();
    }
}

/// Names what runs and where, and no secret.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("binary", &self.binary)
            .field("address", &self.address())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The child, unless it has ended; then it is forgotten, because its number may be reused.
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

/// A folder that only we can enter, because it holds the password, and short enough for a socket
/// in it to have a valid path.
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
    // The standard library seeds its hashers at random, and more is not needed to keep test
    // processes that start at the same time apart.
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
