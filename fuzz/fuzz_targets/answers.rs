#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorlock::fuzzing::answers(data));
