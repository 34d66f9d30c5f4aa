//! Runs operations on strings.
#![no_main]

#[path = "../bodies/strings.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    body::run("strings", data);
});
