//! Decodes graphs in wire form.
#![no_main]

#[path = "../bodies/graph.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    body::run(data);
});
