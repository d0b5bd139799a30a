#!/bin/sh
# Cargo runs this script instead of rustc for the packages of the workspace, to build them with a wall clock that tests
# can set forward or back. A shell drops variables with a hyphen in their names, so no test that uses
# CARGO_BIN_EXE_quorlock-chaos can be built.
exec "$@" --cfg quorlock_stepped_clock
