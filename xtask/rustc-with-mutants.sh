#!/bin/sh
# Cargo runs this script instead of rustc for the packages of the workspace, to build them with mutants (deliberate
# bugs). A shell drops variables with a hyphen, so no test that uses CARGO_BIN_EXE_quorlock-chaos can be built.
exec "$@" --cfg quorlock_mutants
