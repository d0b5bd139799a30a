//! The protocol that `worker.py` describes, for lock libraries of Rust.

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};

/// Serves the protocol until the input ends.
///
/// # Errors
/// If the input or the output fails.
pub(crate) fn serve<Held>(
    version: &str,
    mut acquire: impl FnMut(&str, u64) -> Result<Option<Held>, String>,
    mut release: impl FnMut(Held) -> Result<(), String>,
) -> std::io::Result<()> {
    let mut all = HashMap::new();
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready {version}")?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let reply = match words[..] {
            ["acquire", key, ttl_ms] => acquire(key, ttl_ms.parse().unwrap_or(0)).map(|held| {
                let Some(held) = held else { return "refused" };
                all.insert(key.to_owned(), held);
                "held"
            }),
            ["release", key] => match all.remove(key) {
                Some(held) => release(held).map(|()| "released"),
                None => Err("not held".to_owned()),
            },
            _ => Err("no such order".to_owned()),
        };
        let reply =
            reply.map_or_else(|why| format!("failed {}", why.replace('\n', " ")), str::to_owned);
        writeln!(out, "{reply}")?;
        out.flush()?;
    }
    Ok(())
}
