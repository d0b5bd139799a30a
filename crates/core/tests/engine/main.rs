//! The engine in virtual time. Each test is one scenario.
//!
//! The table lists the invariants of the protocol that belong to the core, and the modules that test them.
//! `quorlock_sim::scripted` also checks those with a star at every step of every test.
//!
//! | invariant | where |
//! |---|---|
//! | S1 a vote is a positive answer to this attempt, with no release queued * | `acquiring`: late grants, duplicates |
//! | S2 a lock is valid until the Q-th largest end of its votes * | `acquiring`, `holding`; `tests/acquire.rs` |
//! | S3 the quorum is never lowered | `acquiring`: raised quorums, even numbers of nodes |
//! | S4 a vote counts from before its request was sent * | `acquiring`, `holding`: slow connections |
//! | S5 the clock is read again after the answer that completes the quorum * | `acquiring`: suspended processes |
//! | S6 a fresh token for every attempt * | `acquiring` |
//! | S7 a key is changed only if it has exactly the client's own value | `releasing`, `acquiring`: foreign values |
//! | S8 nothing is sent again, except owed releases * | `releasing` |
//! | S11 a vote is only prolonged, or dropped on proof of loss | `holding`: partial extensions, proofs, late grants |
//! | S12 an unknown reply changes no vote | `holding`: failing extensions |
//! | S13 loss and release are terminal * | `holding`: nothing raises a lock after its loss |
//! | S14 a lock is invalid before its release is sent * | every release and loss |
//! | S15 every attempt without success releases on all nodes * | `waiting`: cancelled contenders, waits that end |
//! | S16 bounds of the ttl | `src/timing.rs` |
//! | S18 a fencing token is shown only after a quorum has recorded exactly it * | `fencing` |
//! | S20 exact arithmetic | `fencing`: the largest numbers |
//! | S23 storing a lost vote again never lowers a counter | `fencing` |
//! | S24 two guards never share a lock * | `waiting`: the local queue |
//! | S25 a call may end at any point * | `waiting`: cancelled in every phase |
//! | S26 contention is never inferred from an I/O error | `acquiring`; `tests/acquire.rs` |

mod acquiring;
mod detached;
mod fencing;
mod holding;
mod kinds;
mod random;
mod releasing;
mod trusting;
mod turns;
mod waiting;
