//! Several independent servers: the N masters of the Redlock paper.

use std::ops::Deref;
use std::panic;
use std::thread;

use crate::{Server, ServerBinary, ServerOptions, StartError};

/// Independent servers without replication. Derefs to a slice of [`Server`]s.
#[derive(Debug)]
pub struct Nodes {
    servers: Vec<Server>,
}

impl Nodes {
    /// Starts `count` servers in parallel and returns when all of them answer.
    ///
    /// # Errors
    /// The first [`StartError`]. The other servers are stopped.
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

    /// Returns the [`url`](Server::url) of each server, in order.
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
