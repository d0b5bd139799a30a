//! A terminal of our own for another program: what it writes, and when.

#![expect(clippy::disallowed_methods, reason = "when a program wrote something is nobody's lock")]

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Something that a program wrote, and how long after the first thing it wrote.
pub(super) type Piece = (Duration, String);

/// Runs a program to its end on a terminal of this size.
///
/// # Errors
/// Why there is no terminal, or why the program does not start.
pub(super) fn watch(
    mut program: Command,
    [columns, rows]: [u16; 2],
) -> Result<(Vec<Piece>, ExitStatus), String> {
    let (ours, theirs) = pair().map_err(|error| format!("no terminal: {error}"))?;
    let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).map_err(|error| format!("the terminal's size: {error}"))?;
    let copy = || theirs.try_clone().map_err(|error| format!("no terminal: {error}"));
    program.stdin(copy()?).stdout(copy()?).stderr(copy()?);
    let mut child = program.spawn().map_err(|error| format!("{program:?}: {error}"))?;
    // With a copy of ours open, the end would never be seen.
    drop((program, theirs));
    let pieces = read(ours).map_err(|error| format!("reading from the terminal: {error}"))?;
    let status = child.wait().map_err(|error| format!("the end of the program: {error}"))?;
    Ok((pieces, status))
}

/// Both ends of a new terminal.
fn pair() -> Result<(File, File), std::io::Error> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let name = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
    let flags = OFlags::NOCTTY.bits().cast_signed();
    let theirs = OpenOptions::new().read(true).write(true).custom_flags(flags).open(name)?;
    Ok((File::from(ours), theirs))
}

/// Reads until nobody has the other end any more.
fn read(mut terminal: File) -> Result<Vec<Piece>, std::io::Error> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut began = None;
    let mut kept = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        let count = match terminal.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // So Linux says that the other end is closed.
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => break,
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let at = now.duration_since(*began.get_or_insert(now));
        kept.extend_from_slice(&buffer[..count]);
        let whole = whole(&kept);
        let text = String::from_utf8_lossy(&kept[..whole]).into_owned();
        kept.drain(..whole);
        pieces.push((at, text));
    }
    Ok(pieces)
}

/// How many bytes there are before a character of which a part has not come yet.
fn whole(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_believes_that_it_has_a_terminal() {
        let mut program = Command::new("sh");
        program.args(["-c", "test -t 1 && stty size; printf 'ä\\033[1m'; exit 3"]);
        let (pieces, status) = watch(program, [70, 50]).unwrap();
        let text: String = pieces.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(text, "50 70\r\nä\u{1b}[1m");
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn a_character_is_not_cut() {
        assert_eq!(whole("aä".as_bytes()), 3);
        assert_eq!(whole(&"aä".as_bytes()[..2]), 1);
        assert_eq!(whole(b"a\xffb"), 3);
    }
}
