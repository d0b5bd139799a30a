//! Several independent servers: what the paper calls N masters.

use std::ops::Deref;
use std::panic;
use std::thread;

use crate::{Server, ServerBinary, ServerOptions, StartError};

/// Independent servers that know nothing of each other. It is a slice of [`Server`]s: index it,
/// iterate over it, ask for its length.
#[derive(Debug)]
pub struct Nodes {
    servers: Vec<Server>,
}

impl Nodes {
    /// Starts `count` servers at the same time and returns when all of them answer.
    ///
    /// # Errors
    /// The first server's [`StartError`]; the others are ended.
    pub fn start(
        binary: &ServerBinary,
        count: usize,
        options: ServerOptions,
    ) -> Result<Self, StartError> {
        let servers = thread::scope(|scope| {
            let starting: Vec<_> = (0..count)
                .map(|_| scope.spawn(|| Server::start(binary, options.clone())))
                .collect();
            starting
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|why| panic::resume_unwind(why)))
                .collect::<Result<_, _>>()
        })?;
        Ok(Self { servers })
    }

    /// Every server's [`url`](Server::url), in order.
    pub fn urls(&self) -> Vec<String> {
        self.iter().map(Server::url).collect()
    }
}

impl Deref for Nodes {
    type Target = [Server];

    fn deref(&self) -> &[Server] {
        &self.servers
    }
}

impl<'a> IntoIterator for &'a Nodes {
    type Item = &'a Server;
    type IntoIter = std::slice::Iter<'a, Server>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
