//! A warning for users whose build leaves the runtime unoptimized, as a dev profile does.

use std::sync::Once;

/// Prints one line to standard error, once per process, if this crate was built without
/// optimization. `ANABRANCH_QUIET=1` turns it off.
pub(crate) fn warn_once() {
    static WARNING: Once = Once::new();
    if env!("ANABRANCH_OPT_LEVEL") == "0" {
        WARNING.call_once(|| {
            if std::env::var_os("ANABRANCH_QUIET").is_none() {
                eprintln!("{MESSAGE}");
            }
        });
    }
}

const MESSAGE: &str = "anabranch: the runtime was built without optimization and is about 100 times slower. Build with \
                       --release, or add `[profile.dev.package.\"*\"]` with `opt-level = 3` to Cargo.toml \
                       (ANABRANCH_QUIET=1 hides this)";
