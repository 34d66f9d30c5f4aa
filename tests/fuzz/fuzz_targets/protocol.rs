//! Sends frames to a peer and to the owner of a session.
#![no_main]

use anabranch_runtime::testing::FuzzTarget;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (FuzzTarget::PROTOCOL.run)(data);
});
