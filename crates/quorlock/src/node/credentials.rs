//! User and password of a node, and the function that returns them for each connection.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use quorlock_core::{Failure, FailureKind};
use tokio::task::JoinSet;

use super::redis::target::Target;
use super::secret::PasswordFile;
use crate::text::for_people;

/// User and password of a node, as the function of [`NodeConfig::credentials`](super::NodeConfig::credentials) returns
/// them. `Debug` never shows the password.
///
/// ```
/// use quorlock::node::Credentials;
///
/// let credentials = Credentials::new("app", "a token for 15 minutes");
/// assert!(!format!("{credentials:?}").contains("token"));
/// ```
#[derive(Clone)]
pub struct Credentials {
    username: Option<String>,
    password: String,
}

impl Credentials {
    /// Logs in as this ACL user.
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: Some(username.into()), password: password.into() }
    }

    /// Logs in as the user that the URL or the builder names, or else as the server's default user.
    pub fn password(password: impl Into<String>) -> Self {
        Self { username: None, password: password.into() }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// A user's function that returns something for each connection.
pub(crate) type Function<T> =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Answer<T>> + Send>> + Send + Sync>;

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) fn function<T, F, Fut, E>(ask: F) -> Function<T>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    Arc::new(move || {
        let answer = ask();
        Box::pin(async move { answer.await.map_err(Into::into) })
    })
}

/// Calls a user's function. The error is a text for people; `name` is the method that took the function.
pub(super) async fn ask<T: Send + 'static>(
    function: &Function<T>,
    name: &str,
) -> Result<T, String> {
    // A panic of the function ends the task, not the driver. Dropping the set aborts the task.
    let mut task = JoinSet::new();
    let ask = Arc::clone(function);
    task.spawn(async move { ask().await });
    match task.join_next().await {
        Some(Ok(answer)) => answer.map_err(|error| for_people(&error.to_string())),
        Some(Err(_)) | None => Err(format!("the function of {name} panicked")),
    }
}

/// The source of the password, and perhaps of the user.
#[derive(Clone)]
pub(crate) enum Provider {
    Function(Function<Credentials>),
    File(Arc<PasswordFile>),
}

impl Provider {
    pub(crate) fn of_file(path: PathBuf) -> Self {
        Self::File(Arc::new(PasswordFile::new(path)))
    }

    /// The path of the password file, as the user wrote it.
    pub(crate) fn path(&self) -> Option<String> {
        Some(self.file()?.shown().to_string_lossy().into_owned())
    }

    pub(super) fn file(&self) -> Option<&Arc<PasswordFile>> {
        match self {
            Self::Function(_) => None,
            Self::File(file) => Some(file),
        }
    }

    /// Writes user and password for one connection into `target`. Calls the user's function for them; a file was read
    /// before.
    pub(super) async fn log_in(&self, target: &mut Target) -> Result<(), Failure> {
        match self {
            Self::Function(function) => {
                let answer = ask(function, "NodeConfig::credentials").await;
                let Credentials { username, password } = answer.map_err(|error| {
                    let detail = format!("no credentials: {error}");
                    Failure::unsent(FailureKind::Unreachable).with_detail(detail)
                })?;
                target.username = username.or_else(|| target.username.take());
                target.password = Some(password);
            }
            Self::File(file) => target.password = file.newest().value(),
        }
        Ok(())
    }
}
