//! Servers' wall clocks, which can be moved: each by itself, while the server runs.

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

/// The library that is preloaded into servers.
#[derive(Debug)]
pub(crate) struct Shim {
    library: PathBuf,
    _home: TempDir,
}

impl Shim {
    /// Compiles it, and sees whether this server minds it.
    ///
    /// # Errors
    /// Why servers' clocks cannot be moved here.
    pub(crate) fn build(binary: &ServerBinary) -> Result<Self, String> {
        let home = tempfile::tempdir().map_err(|error| error.to_string())?;
        let source = home.path().join("shim.c");
        let library = home.path().join("shim.so");
        fs::write(&source, include_str!("shim.c")).map_err(|error| error.to_string())?;
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

    /// What a server needs in its environment.
    pub(crate) fn env(&self) -> Vec<(OsString, OsString)> {
        vec![("LD_PRELOAD".into(), self.library.clone().into())]
    }

    fn moves(&self, binary: &ServerBinary) -> Result<bool, String> {
        let options = ServerOptions { env: self.env(), ..ServerOptions::default() };
        let server = Server::start(binary, options).map_err(|error| error.to_string())?;
        let mut clock = ServerClock::new(&server).map_err(|error| error.to_string())?;
        clock.step(1000 * SECOND).map_err(|error| error.to_string())?;
        let time = server.command(&["TIME"]).map_err(|error| error.to_string())?;
        let Reply::Array(parts) = &time else { return Ok(false) };
        let Some(Reply::Bulk(Some(seconds))) = parts.first() else { return Ok(false) };
        let seconds: i64 = String::from_utf8_lossy(seconds).parse().unwrap_or(0);
        Ok(seconds * SECOND > wall_ahead() + now() + 900 * SECOND)
    }
}

/// A server's wall clock, as whoever moves it knows it.
#[derive(Debug)]
pub(crate) struct ServerClock {
    file: File,
    version: i64,
    /// How far it is ahead of the true wall clock, as a clock that stands still or moves slowly.
    ahead: ClockHistory,
}

/// Where a server's wall clock has been, over boot time: a line that was bent now and then.
#[derive(Clone, Debug)]
pub(crate) struct ClockHistory(Vec<(Time, Clock)>);

impl ServerClock {
    /// The clock of a server, which from now on may be moved: it is right so far.
    ///
    /// # Errors
    /// If its file cannot be made.
    pub(crate) fn new(server: &Server) -> io::Result<Self> {
        let at = server.home().join("clock");
        let made = server.home().join("clock.new");
        let file = File::create(&made)?;
        file.write_all_at(&[0; 32], 0)?;
        // Whole when it appears: the server maps what it finds.
        fs::rename(made, at)?;
        Ok(Self { file, version: 0, ahead: ClockHistory::right(wall_ahead()) })
    }

    /// Moves its hands.
    ///
    /// # Errors
    /// If its file cannot be written.
    pub(crate) fn step(&mut self, by: Time) -> io::Result<()> {
        let at = now();
        self.set(at, |clock| clock.step(by, at))
    }

    /// From now on it runs so many parts per million fast.
    ///
    /// # Errors
    /// If its file cannot be written.
    pub(crate) fn run(&mut self, ppm: i64) -> io::Result<()> {
        let at = now();
        self.set(at, |clock| clock.run(ppm, at))
    }

    /// How far it has been moved.
    pub(crate) fn moved(&self) -> Time {
        let at = now();
        self.ahead.at(at) - self.ahead.0[0].1.at(at)
    }

    pub(crate) fn history(&self) -> &ClockHistory {
        &self.ahead
    }

    fn set(&mut self, at: Time, bend: impl FnOnce(&mut Clock)) -> io::Result<()> {
        let mut clock = self.ahead.last();
        bend(&mut clock);
        let ahead = clock.at(at) - self.ahead.0[0].1.at(at);
        self.version += 2;
        let write = |place: u64, word: i64| self.file.write_all_at(&word.to_ne_bytes(), 8 * place);
        write(0, self.version - 1)?;
        write(1, ahead)?;
        write(2, clock.ppm())?;
        write(3, at)?;
        write(0, self.version)?;
        self.ahead.0.push((at, clock));
        Ok(())
    }
}

impl ClockHistory {
    /// A clock that was never moved.
    pub(crate) fn right(wall_ahead: Time) -> Self {
        Self(vec![(Time::MIN, Clock::new(wall_ahead, 0))])
    }

    #[cfg(test)]
    pub(crate) fn and_stepped(mut self, at: Time, by: Time) -> Self {
        let mut clock = self.last();
        clock.step(by, at);
        self.0.push((at, clock));
        self
    }

    fn last(&self) -> Clock {
        self.0[self.0.len() - 1].1
    }

    /// What it shows.
    fn at(&self, boot: Time) -> Time {
        let since = self.0.iter().rev().find(|(since, _)| *since <= boot);
        since.unwrap_or(&self.0[0]).1.at(boot)
    }

    /// The latest moment not after `by` at which it showed this: a clock that was set back shows
    /// things twice, and one that was set forward skips some.
    pub(crate) fn showed(&self, shown: Time, by: Time) -> Time {
        let mut until = by;
        for (since, clock) in self.0.iter().rev() {
            let at = clock.when(shown);
            if at <= until && *since <= at {
                return at;
            }
            until = until.min(*since);
        }
        by
    }

    /// The first moment from then on at which it shows this or more.
    pub(crate) fn shows(&self, shown: Time, from: Time) -> Time {
        for (place, (since, clock)) in self.0.iter().enumerate() {
            let end = self.0.get(place + 1).map_or(Time::MAX, |(since, _)| *since);
            let at = clock.when(shown).max(*since).max(from);
            if at < end {
                return at;
            }
        }
        Time::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stepped(by: Time) -> ClockHistory {
        ClockHistory::right(1000).and_stepped(100, by)
    }

    #[test]
    fn a_right_clock_is_ahead_by_the_same_always() {
        let history = ClockHistory::right(1000);
        assert_eq!((history.at(7), history.showed(1007, 50), history.shows(1007, 0)), (1007, 7, 7));
    }

    #[test]
    fn a_step_forward_skips_and_ends_what_was_to_end_in_between() {
        let history = stepped(500);
        assert_eq!((history.at(99), history.at(100)), (1099, 1600));
        assert_eq!(history.shows(1300, 50), 100);
        assert_eq!((history.showed(1050, 200), history.showed(1620, 200)), (50, 120));
    }

    #[test]
    fn a_step_back_shows_things_twice() {
        let history = stepped(-50);
        assert_eq!((history.showed(1060, 90), history.showed(1060, 200)), (60, 110));
        assert_eq!((history.shows(1080, 50), history.shows(1120, 50)), (80, 170));
    }
}
