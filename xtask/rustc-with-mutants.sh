#!/bin/sh
# Cargo runs this script instead of rustc for the packages of the workspace, to build them with mutants (deliberate
# bugs). A shell drops variables like CARGO_BIN_EXE_quorlock-chaos, so tests that use one cannot be built this way.
exec "$@" --cfg quorlock_mutants --cfg quorlock_stepped_clock
