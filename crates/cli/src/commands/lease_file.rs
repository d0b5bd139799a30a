//! The file of `--lease-file`.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use quorlock::Lease;
use tempfile::NamedTempFile;

use crate::args::NodeArgs;
use crate::exit_code::ExitCode;
use crate::options::Refused;

/// The largest number of bytes that `text_from` reads. Every lease is shorter.
const BYTES_MAX: u64 = 1 << 21;

/// Refuses a file that exists and holds something else than a lease. An empty file, as `mktemp` makes it, may be
/// overwritten.
pub(super) fn check(path: &Path, nodes: &NodeArgs) -> Result<(), Refused> {
    let refuse = |reason: String| {
        let message = format!("{}: {reason}", path.display());
        Err(Refused::about(&["lease-file"], message, nodes))
    };
    match text_of(path) {
        Ok(text) if text.trim().is_empty() || text.parse::<Lease>().is_ok() => Ok(()),
        Ok(_) => refuse("the file holds no lease, and is not overwritten".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => refuse(error.to_string()),
    }
}

/// Replaces the file by one with this lease, which only its owner can read. After an error the file is as before.
pub(super) fn write(path: &Path, lease: &Lease) -> io::Result<()> {
    // An error of the temporary file names the path of that file, which the user has not chosen.
    replace(path, lease).map_err(|error| match error.to_string().split_once(" at path ") {
        Some((cause, _)) => io::Error::new(error.kind(), cause),
        None => error,
    })
}

fn replace(path: &Path, lease: &Lease) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    // The temporary file has the mode 0600.
    let mut file = NamedTempFile::new_in(folder)?;
    writeln!(file, "{lease}")?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

pub(super) fn read(path: &Path, nodes: &NodeArgs) -> Result<Lease, Refused> {
    let text = text_of(path).map_err(|error| {
        let message = format!("{}: {error}", path.display());
        Refused::about(&["lease-file"], message, nodes)
    })?;
    parse(&text, &path.display().to_string())
}

/// Reads a lease; `origin` names the place of the text for a message.
pub(super) fn parse(text: &str, origin: &str) -> Result<Lease, Refused> {
    text.parse()
        .map_err(|error| Refused { message: format!("{origin}: {error}"), code: ExitCode::Data })
}

fn text_of(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("this is no file"));
    }
    text_from(File::open(path)?)
}

pub(super) fn text_from(source: impl io::Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    source.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
