#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unidle_scope::perf::record::hostile(data));
