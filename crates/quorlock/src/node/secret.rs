//! Secrets that may change while the client runs: files that are read again for each connection, and the newest value
//! that was usable.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::timeout;

use super::offload::Offload;
use crate::error::Reason;

/// The most bytes of a file. All certificate authorities of a system together have a tenth of this.
const BYTES_MAX: u64 = 4 << 20;

/// The file of a password, a certificate or a key.
#[derive(Clone)]
pub(crate) struct SecretFile(Arc<Place>);

struct Place {
    /// As the user wrote it.
    shown: PathBuf,
    /// The same for any later working directory.
    path: PathBuf,
    /// The content of a pipe, which can be read only once.
    kept: Mutex<Option<Vec<u8>>>,
}

impl SecretFile {
    /// A relative path counts from the present working directory.
    pub(crate) fn new(shown: PathBuf) -> Self {
        let path = std::path::absolute(&shown).unwrap_or_else(|_| shown.clone());
        Self(Arc::new(Place { shown, path, kept: Mutex::default() }))
    }

    /// The path as the user wrote it.
    pub(crate) fn shown(&self) -> &Path {
        &self.0.shown
    }

    /// Reads the file. Blocks. A pipe is read only once; later calls return the same bytes.
    ///
    /// # Errors
    /// The error of the operating system, or a file that is too long.
    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = &*kept {
            return Ok(bytes.clone());
        }
        let file = File::open(&self.0.path)?;
        let is_regular = file.metadata()?.is_file();
        let mut bytes = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(io::Error::other(format!("it has more than {BYTES_MAX} bytes")));
        }
        if !is_regular {
            *kept = Some(bytes.clone());
        }
        Ok(bytes)
    }
}

/// The newest usable value of type `T`, made from contents of type `C` that are read again and again.
pub(super) struct Newest<C, T> {
    state: Mutex<State<C, T>>,
    reading: Offload<(), Result<(), Reason>>,
}

struct State<C, T> {
    /// The value, and the contents that it was made from.
    good: Option<(Arc<C>, T)>,
    /// Number of times that `good` was set.
    version: u64,
    trouble: Trouble,
}

/// Whether the last contents were unusable.
enum Trouble {
    None,
    /// The reason, which no warning has reported yet.
    New(String),
    Reported,
}

impl<C, T> Default for Newest<C, T> {
    fn default() -> Self {
        let state = State { good: None, version: 0, trouble: Trouble::None };
        Self { state: Mutex::new(state), reading: Offload::default() }
    }
}

impl<C: PartialEq, T: Clone> Newest<C, T> {
    /// `None` if no contents were usable so far.
    pub(super) fn value(&self) -> Option<T> {
        self.state().good.as_ref().map(|(_, value)| value.clone())
    }

    /// A number that changes whenever the value changes.
    pub(super) fn version(&self) -> u64 {
        self.state().version
    }

    /// The reason why the last contents are not used, if no warning has reported it since the last usable contents.
    pub(super) fn trouble(&self) -> Option<String> {
        let mut state = self.state();
        match std::mem::replace(&mut state.trouble, Trouble::Reported) {
            Trouble::New(reason) => Some(reason),
            former => {
                state.trouble = former;
                None
            }
        }
    }

    /// Makes a value of what was read, unless the contents are those of the present value. Unusable contents leave the
    /// value as it is.
    ///
    /// # Errors
    /// If the contents are unusable, and there is no earlier value.
    pub(super) fn update(
        &self,
        read: Result<C, Reason>,
        make: impl FnOnce(&C) -> Result<T, Reason>,
    ) -> Result<(), Reason> {
        let made = read.and_then(|contents| {
            // The value is made without the lock, because this takes long.
            let known = self.state().good.as_ref().map(|(known, _)| known.clone());
            if known.is_some_and(|known| *known == contents) {
                return Ok(None);
            }
            let value = make(&contents)?;
            Ok(Some((Arc::new(contents), value)))
        });
        match made {
            Ok(good) => {
                let mut state = self.state();
                if good.is_some() {
                    state.good = good;
                    state.version += 1;
                }
                state.trouble = Trouble::None;
                Ok(())
            }
            Err(reason) => self.keep(reason),
        }
    }

    /// Runs `update` on a thread of its own, because reading may block. The present value stays if this takes longer
    /// than `patience`; the thread then goes on. `what` names what is read.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub(super) async fn renew(
        &self,
        what: &str,
        patience: Duration,
        update: impl FnOnce() -> Result<(), Reason> + Send + 'static,
    ) -> Result<(), Reason> {
        match timeout(patience, self.reading.run((), "secrets", update)).await {
            Ok(Ok(updated)) => updated,
            Ok(Err(error)) => self.keep(Reason::new(format!("{what}: {error}"), error)),
            Err(_) => self.keep(format!("{what}: not read within {patience:?}").into()),
        }
    }

    /// Keeps the present value for this reason.
    pub(super) fn keep(&self, reason: Reason) -> Result<(), Reason> {
        let mut state = self.state();
        if state.good.is_none() {
            return Err(reason);
        }
        if matches!(state.trouble, Trouble::None) {
            state.trouble = Trouble::New(reason.text);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State<C, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file with a password.
pub(crate) struct PasswordFile {
    file: SecretFile,
    newest: Newest<Vec<u8>, String>,
}

impl PasswordFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { file: SecretFile::new(path), newest: Newest::default() }
    }

    /// The path as the user wrote it.
    pub(crate) fn shown(&self) -> &Path {
        self.file.shown()
    }

    /// Reads the file. Blocks.
    ///
    /// # Errors
    /// If the file cannot be used, and no earlier content was usable. The reason names the file.
    pub(crate) fn read(&self) -> Result<(), Reason> {
        let what = self.what();
        let read = self.file.read();
        let read = read.map_err(|error| Reason::new(format!("{what}: {error}"), error));
        self.newest
            .update(read, |bytes| password(bytes).map_err(|why| format!("{what}: {why}").into()))
    }

    /// Reads the file on another thread, and waits at most `patience`.
    pub(super) async fn renew(self: &Arc<Self>, patience: Duration) -> Result<(), Reason> {
        let this = Arc::clone(self);
        self.newest.renew(&self.what(), patience, move || this.read()).await
    }

    pub(super) fn newest(&self) -> &Newest<Vec<u8>, String> {
        &self.newest
    }

    fn what(&self) -> String {
        format!("the password in {}", self.file.shown().display())
    }
}

/// The password in a file: its text without the line ends at the end.
fn password(bytes: &[u8]) -> Result<String, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8 text")?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err("it is empty"),
        password => Ok(password.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pipe_is_read_once() {
        use std::os::fd::AsRawFd as _;

        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"hunter2\n").unwrap();
        drop(writer);
        let file = SecretFile::new(format!("/proc/self/fd/{}", reader.as_raw_fd()).into());
        for _ in 0..2 {
            assert_eq!(file.read().unwrap(), b"hunter2\n");
        }
    }

    #[test]
    fn a_file_has_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        let file = SecretFile::new(path.clone());
        let length = usize::try_from(BYTES_MAX).unwrap();
        fs::write(&path, vec![b'x'; length]).unwrap();
        assert_eq!(file.read().unwrap().len(), length);
        fs::write(&path, vec![b'x'; length + 1]).unwrap();
        assert_eq!(file.read().unwrap_err().to_string(), "it has more than 4194304 bytes");
    }

    #[test]
    fn a_password_is_text_without_its_line_end() {
        assert_eq!(password(b"a b \r\n\n"), Ok("a b ".to_owned()));
        assert_eq!(password(b"\r\n"), Err("it is empty"));
        assert_eq!(password(b"\xff"), Err("it is not UTF-8 text"));
    }

    fn newest() -> Newest<&'static str, usize> {
        Newest::default()
    }

    #[test]
    fn a_value_is_made_only_of_new_contents() {
        let newest = newest();
        let failed = newest.update(Err("it is gone".into()), |_| unreachable!());
        assert_eq!(failed.unwrap_err().to_string(), "it is gone");
        assert_eq!((newest.value(), newest.version(), newest.trouble()), (None, 0, None));
        newest.update(Ok("one"), |_| Ok(1)).unwrap();
        newest.update(Ok("one"), |_| unreachable!("nothing has changed")).unwrap();
        assert_eq!((newest.value(), newest.version()), (Some(1), 1));
        newest.update(Ok("two"), |_| Ok(2)).unwrap();
        assert_eq!((newest.value(), newest.version()), (Some(2), 2));
    }

    #[test]
    fn unusable_contents_are_reported_once_until_there_are_usable_ones() {
        let newest = newest();
        newest.update(Ok("one"), |_| Ok(1)).unwrap();
        for _ in 0..2 {
            newest.update(Ok("half"), |_| Err("it is half".into())).unwrap();
            newest.update(Err("it is gone".into()), |_| unreachable!()).unwrap();
            assert_eq!(newest.trouble().as_deref(), Some("it is half"));
            newest.update(Ok("half"), |_| Err("it is half".into())).unwrap();
            assert_eq!((newest.trouble(), newest.value(), newest.version()), (None, Some(1), 1));
            newest.update(Ok("one"), |_| unreachable!("nothing has changed")).unwrap();
            assert_eq!(newest.trouble(), None);
        }
    }

    #[tokio::test]
    async fn a_file_system_that_hangs_leaves_the_value_in_use() {
        let newest = newest();
        newest.update(Ok("one"), |_| Ok(1)).unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let hangs = move || {
            let _ = ended.recv();
            Ok(())
        };
        newest.renew("the file", Duration::from_millis(1), hangs).await.unwrap();
        assert_eq!(newest.trouble().as_deref(), Some("the file: not read within 1ms"));
        assert_eq!(newest.value(), Some(1));
        drop(end);
    }
}
