#!/bin/sh
# What cargo runs instead of rustc for our own packages when their wall clock is to be stepped.
# A shell drops variables like CARGO_BIN_EXE_quorlock-chaos: tests that need one cannot be built so.
exec "$@" --cfg quorlock_stepped_clock
