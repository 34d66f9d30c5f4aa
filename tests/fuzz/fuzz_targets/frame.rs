//! Decodes frames between processes.
#![no_main]

use anabranch_runtime::testing::FuzzTarget;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (FuzzTarget::FRAME.run)(data);
});
