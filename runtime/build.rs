//! Passes on the optimization level, which no `cfg` tells: an unoptimized runtime warns its user.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let level = std::env::var("OPT_LEVEL").expect("cargo sets OPT_LEVEL");
    println!("cargo::rustc-env=ANABRANCH_OPT_LEVEL={level}");
}
