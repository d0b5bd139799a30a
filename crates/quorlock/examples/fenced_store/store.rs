//! The store: an account in SQLite, and the largest fencing token that the store has seen.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, Result, TransactionBehavior, params};

pub(crate) struct Store {
    database: Connection,
}

/// The store has seen a larger token and refuses the access.
#[derive(Debug)]
pub(crate) struct Overtaken {
    /// The largest token that the store has seen.
    pub(crate) seen: u64,
}

impl Store {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let database = Connection::open(path)?;
        database.busy_timeout(Duration::from_secs(5))?;
        database.execute_batch(
            "CREATE TABLE IF NOT EXISTS account (
                 id INTEGER PRIMARY KEY CHECK (id = 1),
                 balance INTEGER NOT NULL,
                 fence INTEGER NOT NULL
             );
             INSERT OR IGNORE INTO account VALUES (1, 100, 0);",
        )?;
        Ok(Self { database })
    }

    /// Records the token of a new holder *before* it reads the balance, in one transaction. From then on, a holder
    /// with a smaller token cannot write.
    pub(crate) fn read(&mut self, fence: u64) -> Result<std::result::Result<i64, Overtaken>> {
        let transaction =
            self.database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let (balance, seen) =
            transaction.query_row("SELECT balance, fence FROM account", [], |row| {
                Ok((row.get(0)?, row.get::<_, u64>(1)?))
            })?;
        if fence < seen {
            return Ok(Err(Overtaken { seen }));
        }
        transaction.execute("UPDATE account SET fence = ?1", params![fence])?;
        transaction.commit()?;
        Ok(Ok(balance))
    }

    /// Writes, unless the store has seen a larger token. SQLite compares and writes in one step.
    pub(crate) fn write(
        &mut self,
        fence: u64,
        balance: i64,
    ) -> Result<std::result::Result<(), Overtaken>> {
        let written = self.database.execute(
            "UPDATE account SET balance = ?1, fence = ?2 WHERE fence <= ?2",
            params![balance, fence],
        )?;
        if written == 1 {
            return Ok(Ok(()));
        }
        let seen = self.database.query_row("SELECT fence FROM account", [], |row| row.get(0))?;
        Ok(Err(Overtaken { seen }))
    }

    pub(crate) fn balance(&self) -> Result<i64> {
        self.database.query_row("SELECT balance FROM account", [], |row| row.get(0))
    }
}
