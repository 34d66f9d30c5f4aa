//! Reads rows of safetensors files.
#![no_main]

#[path = "../bodies/data.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    body::run("rows", data);
});
