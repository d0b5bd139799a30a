//! The wall clock of each server, which can be moved while the server runs.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;

use quorlock_servers::{Reply, Server, ServerBinary, ServerOptions};
use quorlock_sim::time::{Clock, SECOND, Time};
use tempfile::TempDir;

use crate::clock::{now, wall_ahead};
use crate::said;
use crate::servers::text;

#[derive(Debug)]
pub(crate) struct Shim {
    library: PathBuf,
    _home: TempDir,
}

impl Shim {
    /// Compiles `server_clock.c` and checks that the server works with it. An error says why clocks cannot be moved here.
    pub(crate) fn build(binary: &ServerBinary) -> Result<Self, String> {
        let home = tempfile::tempdir().map_err(said)?;
        let source = home.path().join("server_clock.c");
        let library = home.path().join("server_clock.so");
        fs::write(&source, include_str!("server_clock.c")).map_err(said)?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(&source);
        match cc.output() {
            Err(error) => return Err(format!("no cc: {error}")),
            Ok(output) if !output.status.success() => {
                return Err(format!("cc: {}", String::from_utf8_lossy(&output.stderr).trim()));
            }
            Ok(_) => {}
        }
        let shim = Self { library, _home: home };
        if shim.moves(binary)? {
            return Ok(shim);
        }
        Err(format!("{binary} does not take a preloaded library"))
    }

    pub(crate) fn env(&self) -> Vec<(OsString, OsString)> {
        vec![("LD_PRELOAD".into(), self.library.clone().into())]
    }

    fn moves(&self, binary: &ServerBinary) -> Result<bool, String> {
        let options = ServerOptions { env: self.env(), ..ServerOptions::default() };
        let server = Server::start(binary, options).map_err(said)?;
        let mut clock = ServerClock::new(&server).map_err(said)?;
        clock.step(1000 * SECOND).map_err(said)?;
        let time = server.command(&["TIME"]).map_err(said)?;
        let Reply::Array(parts) = &time else { return Ok(false) };
        let seconds: i64 = parts.first().map(text).unwrap_or_default().parse().unwrap_or(0);
        Ok(seconds * SECOND > wall_ahead() + now() + 900 * SECOND)
    }
}

#[derive(Debug)]
pub(crate) struct ServerClock {
    file: File,
    version: i64,
    /// The true wall clock, as a function of boot time.
    right: Clock,
    /// The wall clock that the server sees, as a function of boot time.
    moved: Clock,
}

impl ServerClock {
    /// Creates the clock of a server. The clock is right at first.
    pub(crate) fn new(server: &Server) -> io::Result<Self> {
        let at = server.home().join("clock");
        let made = server.home().join("clock.new");
        let file = File::create(&made)?;
        file.write_all_at(&[0; 32], 0)?;
        // The rename makes the complete file appear at once, because the server maps the file as soon as it exists.
        fs::rename(made, at)?;
        let right = Clock::new(wall_ahead(), 0);
        Ok(Self { file, version: 0, right, moved: right })
    }

    pub(crate) fn step(&mut self, by: Time) -> io::Result<()> {
        let at = now();
        self.set(at, |clock| clock.step(by, at))
    }

    pub(crate) fn run(&mut self, ppm: i64) -> io::Result<()> {
        let at = now();
        self.set(at, |clock| clock.run(ppm, at))
    }

    pub(crate) fn set_right(&mut self) -> io::Result<()> {
        let at = now();
        let back = self.right.at(at) - self.moved.at(at);
        self.set(at, |clock| {
            clock.step(back, at);
            clock.run(0, at);
        })
    }

    fn set(&mut self, at: Time, bend: impl FnOnce(&mut Clock)) -> io::Result<()> {
        bend(&mut self.moved);
        let ahead = self.moved.at(at) - self.right.at(at);
        self.version += 2;
        let write = |place: u64, word: i64| self.file.write_all_at(&word.to_ne_bytes(), 8 * place);
        write(0, self.version - 1)?;
        write(1, ahead)?;
        write(2, self.moved.ppm())?;
        write(3, at)?;
        write(0, self.version)
    }
}
