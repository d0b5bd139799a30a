//! The body of the fuzz target for the texts of leases.

use super::format::sealed;
use super::{Lease, LeaseTextError};

/// Leases: the parser does not panic, and accepts exactly the text that it writes for the lease. Without the right checksum
/// nearly every text would be refused as damaged, so the target also computes the checksum.
pub fn lease(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for text in [text.clone().into_owned(), sealed(&text)] {
        match text.parse::<Lease>() {
            Ok(lease) => {
                assert_eq!(lease.to_string(), text.trim_ascii_end());
                assert_eq!(lease.to_string().parse(), Ok(lease));
            }
            Err(LeaseTextError::TooLong { bytes, .. }) => assert_eq!(bytes, text.len()),
            Err(error) => {
                let told = error.to_string();
                assert!(text.len() < "quorlock1:".len() * 2 || !told.contains(&text), "{told}");
            }
        }
    }
}
