//! Reads the bytes of a link.
#![no_main]

use anabranch_runtime::testing::FuzzTarget;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (FuzzTarget::LINK.run)(data);
});
