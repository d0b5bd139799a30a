//! The ledger stands for a database that all machines share.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

#[derive(Clone, Copy, Default)]
struct Row {
    value: i64,
    fence: u64,
}

/// Rows, each with the largest fencing token that the ledger has seen for it.
#[derive(Default)]
pub(crate) struct Ledger {
    rows: Mutex<HashMap<String, Row>>,
}

/// The ledger has seen a later holder of the lock, and refuses the earlier one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overtaken;

impl Ledger {
    /// Records the token of a new holder before it reads, so that no earlier holder can write from here on.
    ///
    /// In SQL, in one transaction: `UPDATE row SET fence = $1 WHERE id = $2 AND fence <= $1`, then `SELECT value`.
    pub(crate) async fn read(&self, id: &str, fence: u64) -> Result<i64, Overtaken> {
        // A database would take some time here.
        tokio::task::yield_now().await;
        self.change(id, fence, |_| {})
    }

    /// Writes, unless the ledger has seen a later holder. The ledger compares and writes in one step.
    ///
    /// In SQL: `UPDATE row SET value = $3 WHERE id = $2 AND fence <= $1`.
    pub(crate) async fn write(&self, id: &str, fence: u64, value: i64) -> Result<(), Overtaken> {
        tokio::task::yield_now().await;
        self.change(id, fence, |row| row.value = value).map(drop)
    }

    /// Returns the value without a lock. It may be stale.
    pub(crate) fn look(&self, id: &str) -> i64 {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.get(id).map_or(0, |row| row.value)
    }

    fn change(
        &self,
        id: &str,
        fence: u64,
        change: impl FnOnce(&mut Row),
    ) -> Result<i64, Overtaken> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let row = rows.entry(id.to_owned()).or_default();
        if fence < row.fence {
            return Err(Overtaken);
        }
        row.fence = fence;
        change(row);
        Ok(row.value)
    }
}
