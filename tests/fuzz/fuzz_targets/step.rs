//! Runs a step of three processes, with messages and tensors that one made up.
#![no_main]

use anabranch_runtime::testing::FuzzTarget;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (FuzzTarget::STEP.run)(data);
});
