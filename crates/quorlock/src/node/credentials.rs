//! User and password of a node, and the function that returns them for each connection.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use quorlock_core::{Failure, FailureKind};
use tokio::task::JoinSet;

use super::redis::target::Target;
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

type Answer = Result<Credentials, Box<dyn Error + Send + Sync>>;

/// The user's function that returns credentials.
#[derive(Clone)]
pub(super) struct Provider(
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync>,
);

impl Provider {
    pub(super) fn new<F, Fut, E>(ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self(Arc::new(move || {
            let answer = ask();
            Box::pin(async move { answer.await.map_err(Into::into) })
        }))
    }

    /// Calls the user's function, and writes its user and password into `target`.
    pub(super) async fn log_in(&self, target: &mut Target) -> Result<(), Failure> {
        // A panic of the function ends the task, not the driver. Dropping the set aborts the task.
        let mut task = JoinSet::new();
        let ask = Arc::clone(&self.0);
        task.spawn(async move { ask().await });
        let failed = |said: &str| {
            let detail = format!("no credentials: {}", for_people(said));
            Failure::unsent(FailureKind::Unreachable).with_detail(detail)
        };
        match task.join_next().await {
            Some(Ok(Ok(Credentials { username, password }))) => {
                target.username = username.or_else(|| target.username.take());
                target.password = Some(password);
                Ok(())
            }
            Some(Ok(Err(error))) => Err(failed(&error.to_string())),
            Some(Err(_)) | None => Err(failed("the function of NodeConfig::credentials panicked")),
        }
    }
}
