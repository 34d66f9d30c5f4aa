//! Decodes examples of TensorFlow.
#![no_main]

#[path = "../bodies/data.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    body::run("example", data);
});
