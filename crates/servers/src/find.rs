//! Finds a server binary.
//!
//! The search order is the variable `QUORLOCK_SERVER`, `redis-server` and `valkey-server` on `PATH`, and
//! `target/servers` of the workspace, where `cargo xtask servers` installs binaries. An unusable value of the variable
//! is an error. The search then stops, because the user asked for that binary.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{self, Path, PathBuf};
use std::process::{Command, Stdio};

/// The environment variable that names the server binary to use.
pub const SERVER_VARIABLE: &str = "QUORLOCK_SERVER";

/// The folder in a workspace for fetched servers. Each server has a subfolder that contains its binary.
pub const SERVERS_FOLDER: &str = "target/servers";

const NAMES: [&str; 2] = ["redis-server", "valkey-server"];

/// A server binary, with the flavor and version that `--version` printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerBinary {
    /// The absolute path, with symbolic links unresolved. Debian's `redis-server` links to a binary that selects its
    /// role by the name under which it starts.
    pub path: PathBuf,
    /// Redis or Valkey.
    pub flavor: Flavor,
    /// The server's version.
    pub version: Version,
}

/// The project that publishes the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flavor {
    /// Redis, as `redis-server`.
    Redis,
    /// Valkey, the fork of Redis 7.2, as `valkey-server`.
    Valkey,
}

/// A server's version. Versions are ordered by major, minor and patch number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The 7 of 7.0.15.
    pub major: u32,
    /// The 0 of 7.0.15.
    pub minor: u32,
    /// The 15 of 7.0.15.
    pub patch: u32,
}

/// No server can run. The `Display` text says what the user can do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotFound {
    /// `QUORLOCK_SERVER` is set to an unusable path.
    #[error("{SERVER_VARIABLE}={} cannot be used: {why}", path.display())]
    Unusable {
        /// The value of the variable.
        path: PathBuf,
        /// The error from running the binary.
        why: String,
    },
    /// Neither `PATH` nor `target/servers` contains a server.
    #[error(
        "no Redis or Valkey server found on PATH or in {SERVERS_FOLDER}; any of these helps:\n  \
         apt install redis-server (Debian, Ubuntu), or brew install valkey or redis (macOS)\n  \
         cargo xtask servers (in quorlock's source tree), or {SERVER_VARIABLE}=/path/to/redis-server"
    )]
    Nowhere,
}

/// Finds a server. The search is that of [`find_in`] without a workspace.
///
/// # Errors
/// [`NotFound`].
pub fn find() -> Result<ServerBinary, NotFound> {
    find_in(None)
}

/// Finds a server. The search ends with `target/servers` of `workspace`.
///
/// If `workspace` is `None`, the search ends with `target/servers` of the folders above `CARGO_MANIFEST_DIR` and above
/// the current folder. Folders above the current one count only if the caller owns them, because other users can put
/// binaries into theirs. Of several fetched servers, the newest is chosen.
///
/// # Errors
/// [`NotFound`].
pub fn find_in(workspace: Option<&Path>) -> Result<ServerBinary, NotFound> {
    Places::of_this_process(workspace).best()
}

/// Finds the server for a command-line option: a path, or a program on `PATH`. Without a name, the search is that of
/// [`find_in`].
///
/// # Errors
/// A message for the user: why the server is unusable, or how to install one.
pub fn find_named(name: Option<&str>, workspace: Option<&Path>) -> Result<ServerBinary, String> {
    let Some(name) = name else {
        return find_in(workspace).map_err(|error| error.to_string());
    };
    if name.contains('/') {
        return ServerBinary::at(Path::new(name)).map_err(|why| format!("--server {name}: {why}"));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut files = env::split_paths(&path).map(|folder| folder.join(name));
    let file = files.find(|file| file.is_file());
    let file = file.ok_or_else(|| format!("--server {name}: there is no such program on PATH"))?;
    ServerBinary::at(&file).map_err(|why| format!("--server {name}: {why}"))
}

/// Returns every usable server in the search order of [`find_in`], each version once. If `QUORLOCK_SERVER` is set,
/// returns only that server.
///
/// # Errors
/// [`NotFound`] if there is no server, or if `QUORLOCK_SERVER` is unusable.
pub fn find_all(workspace: Option<&Path>) -> Result<Vec<ServerBinary>, NotFound> {
    Places::of_this_process(workspace).all()
}

impl ServerBinary {
    /// Runs `path --version` and reads the flavor and version from the output.
    ///
    /// # Errors
    /// A message for the user: why this binary is not a usable server.
    pub fn at(path: &Path) -> Result<Self, String> {
        let path = path::absolute(path).map_err(|error| error.to_string())?;
        let output = Command::new(&path)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let (flavor, version) = parse_banner(&text).ok_or_else(|| {
            let said = if text.trim().is_empty() {
                String::from_utf8_lossy(&output.stderr)
            } else {
                text.clone()
            };
            let first = said.trim().lines().next().unwrap_or("nothing");
            format!("asked for its version, it ended with {} and said: {first}", output.status)
        })?;
        Ok(Self { path, flavor, version })
    }

    /// Whether the server has `DELIFEQ`, which deletes a key if the key has a given value. Valkey has it since 9.0.
    pub fn has_delifeq(&self) -> bool {
        self.flavor == Flavor::Valkey && self.version.major >= 9
    }
}

/// Parses `Redis server v=7.0.15 sha=…`.
fn parse_banner(text: &str) -> Option<(Flavor, Version)> {
    let (flavor, rest) = if let Some(rest) = text.strip_prefix("Redis server v=") {
        (Flavor::Redis, rest)
    } else {
        (Flavor::Valkey, text.strip_prefix("Valkey server v=")?)
    };
    let mut numbers = rest.split_whitespace().next()?.splitn(3, '.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..digits].parse().ok()
    });
    let mut number = || numbers.next().flatten();
    let version = Version { major: number()?, minor: number()?, patch: number()? };
    Some((flavor, version))
}

/// The places to search, read from the environment once. The search depends on nothing else.
#[derive(Debug, Default)]
struct Places {
    named: Option<OsString>,
    path: Vec<PathBuf>,
    workspaces: Vec<PathBuf>,
}

impl Places {
    fn of_this_process(workspace: Option<&Path>) -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        Self {
            named: env::var_os(SERVER_VARIABLE).filter(|value| !value.is_empty()),
            path: env::split_paths(&path).collect(),
            workspaces: match workspace {
                Some(dir) => vec![dir.to_path_buf()],
                None => workspaces_above(),
            },
        }
    }

    fn best(&self) -> Result<ServerBinary, NotFound> {
        if let Some(named) = self.named()? {
            return Ok(named);
        }
        self.on_path().chain(self.fetched()).next().ok_or(NotFound::Nowhere)
    }

    fn all(&self) -> Result<Vec<ServerBinary>, NotFound> {
        if let Some(named) = self.named()? {
            return Ok(vec![named]);
        }
        let mut all: Vec<ServerBinary> = Vec::new();
        for found in self.on_path().chain(self.fetched()) {
            let known =
                all.iter().any(|seen| (seen.flavor, seen.version) == (found.flavor, found.version));
            if !known {
                all.push(found);
            }
        }
        if all.is_empty() { Err(NotFound::Nowhere) } else { Ok(all) }
    }

    fn named(&self) -> Result<Option<ServerBinary>, NotFound> {
        self.named
            .as_ref()
            .map(|named| {
                let path = PathBuf::from(named);
                ServerBinary::at(&path).map_err(|why| NotFound::Unusable { path, why })
            })
            .transpose()
    }

    fn on_path(&self) -> impl Iterator<Item = ServerBinary> {
        NAMES
            .iter()
            .flat_map(|name| self.path.iter().map(move |dir| dir.join(name)))
            .filter_map(|path| usable(&path))
    }

    fn fetched(&self) -> impl Iterator<Item = ServerBinary> {
        self.workspaces.iter().flat_map(|dir| {
            let mut found: Vec<_> = folders(&dir.join(SERVERS_FOLDER))
                .flat_map(|folder| NAMES.map(|name| folder.join(name)))
                .filter_map(|path| usable(&path))
                .collect();
            found.sort_by(|a, b| b.version.cmp(&a.version).then_with(|| a.path.cmp(&b.path)));
            found
        })
    }
}

/// Returns `None` for an unusable file. That is no error, because the user did not name the file.
fn usable(path: &Path) -> Option<ServerBinary> {
    path.is_file().then(|| ServerBinary::at(path).ok()).flatten()
}

fn folders(dir: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn workspaces_above() -> Vec<PathBuf> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let current = env::current_dir().ok();
    let above = |dir: Option<PathBuf>| {
        let dirs: Vec<PathBuf> =
            dir.iter().flat_map(|dir| dir.ancestors()).map(Into::into).collect();
        dirs.into_iter().filter(|dir| dir.join(SERVERS_FOLDER).is_dir())
    };
    let me = rustix::process::geteuid().as_raw();
    let mine = |dir: &PathBuf| {
        fs::metadata(dir.join(SERVERS_FOLDER)).is_ok_and(|folder| folder.uid() == me)
    };
    above(manifest).chain(above(current).filter(mine)).collect()
}

impl fmt::Display for ServerBinary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.flavor, self.version, self.path.display())
    }
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Redis => "Redis",
            Self::Valkey => "Valkey",
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Writes a script that prints `banner` as the version of a server.
    fn fake(dir: &Path, name: &str, banner: &str) -> PathBuf {
        fs::create_dir_all(dir).unwrap();
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\necho '{banner}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn version(major: u32, minor: u32, patch: u32) -> Version {
        Version { major, minor, patch }
    }

    #[test]
    fn banners_of_the_servers_known_here() {
        for (banner, expected) in [
            (
                "Redis server v=6.2.14 sha=40305114:0 malloc=libc",
                (Flavor::Redis, version(6, 2, 14)),
            ),
            ("Redis server v=8.4.0-rc1 sha=0", (Flavor::Redis, version(8, 4, 0))),
            ("Valkey server v=9.1.2 sha=00000000:1", (Flavor::Valkey, version(9, 1, 2))),
        ] {
            assert_eq!(parse_banner(banner), Some(expected), "{banner}");
        }
        for banner in ["", "Redis server", "Redis server v=", "Redis server v=7.x", "ls 9.1.2"] {
            assert_eq!(parse_banner(banner), None, "{banner}");
        }
    }

    #[test]
    fn the_order_is_named_then_path_then_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let named = fake(&dir.path().join("named"), "anything", "Redis server v=6.2.14 x");
        let on_path = dir.path().join("path");
        fake(&on_path, "valkey-server", "Valkey server v=8.0.0 x");
        let redis = fake(&on_path, "redis-server", "Redis server v=7.0.15 x");
        let fetched = dir.path().join(SERVERS_FOLDER);
        fake(&fetched.join("valkey-8.1.8"), "valkey-server", "Valkey server v=8.1.8 x");
        let newest =
            fake(&fetched.join("valkey-9.1.2"), "valkey-server", "Valkey server v=9.1.2 x");
        fake(&fetched.join("redis-7.0.15"), "redis-server", "Redis server v=7.0.15 x");

        let mut places = Places {
            named: Some(named.clone().into()),
            path: vec![dir.path().join("absent"), on_path],
            workspaces: vec![dir.path().to_path_buf()],
        };
        assert_eq!(places.best().unwrap().path, named);
        let all = |places: &Places| -> Vec<_> {
            places.all().unwrap().iter().map(|found| found.version).collect()
        };
        assert_eq!(
            all(&places),
            [version(6, 2, 14)],
            "a name that is given is the one that is meant"
        );

        places.named = None;
        let expected = [version(7, 0, 15), version(8, 0, 0), version(9, 1, 2), version(8, 1, 8)];
        assert_eq!(all(&places), expected, "each version once, the preferred first");
        assert_eq!(places.best().unwrap().path, redis, "redis-server comes before valkey-server");
        places.path.clear();
        assert_eq!(places.best().unwrap().path, newest);
        places.workspaces.clear();
        assert_eq!(places.best(), Err(NotFound::Nowhere));
    }

    #[test]
    fn an_unusable_variable_is_an_error_and_no_fallback() {
        let dir = tempfile::tempdir().unwrap();
        fake(dir.path(), "redis-server", "Redis server v=7.0.15 x");
        let not_a_server = fake(dir.path(), "cat", "cat 9.1");
        for (named, said) in
            [(dir.path().join("absent"), "No such file"), (not_a_server, "cat 9.1")]
        {
            let places = Places {
                named: Some(named.into()),
                path: vec![dir.path().to_path_buf()],
                ..Places::default()
            };
            let error = places.best().unwrap_err().to_string();
            assert!(error.contains("QUORLOCK_SERVER") && error.contains(said), "{error}");
        }
    }

    #[test]
    fn what_does_not_run_on_path_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        fake(dir.path(), "redis-server", "something else");
        let valkey = fake(dir.path(), "valkey-server", "Valkey server v=9.1.2 x");
        let places = Places { path: vec![dir.path().to_path_buf()], ..Places::default() };
        assert_eq!(places.best().unwrap().path, valkey);
    }

    #[test]
    fn the_help_is_three_lines() {
        assert_eq!(NotFound::Nowhere.to_string().lines().count(), 3);
    }
}
