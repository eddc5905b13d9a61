#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unidle_scope::hostile::perf_map(data));
