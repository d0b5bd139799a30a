#!/bin/sh
# Cargo runs this script instead of rustc for the packages of the workspace, to build them with a wall clock that tests
# can set forward or back. A shell drops variables like CARGO_BIN_EXE_quorlock-chaos, so tests that use one cannot be
# built this way.
exec "$@" --cfg quorlock_stepped_clock
