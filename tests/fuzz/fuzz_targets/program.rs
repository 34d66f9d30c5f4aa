//! Decodes, cuts and loads programs.
#![no_main]

use anabranch_runtime::testing::FuzzTarget;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (FuzzTarget::PROGRAM.run)(data);
});
