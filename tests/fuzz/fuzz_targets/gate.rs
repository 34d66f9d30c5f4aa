//! Sends messages to the executors of a step.
#![no_main]

use anabranch_runtime::testing::FuzzTarget;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (FuzzTarget::GATE.run)(data);
});
