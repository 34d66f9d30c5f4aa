//! A warning for users whose build leaves the runtime unoptimized, as a dev profile does.

use std::sync::Once;

/// Prints one line to standard error, once per process, if this crate was built without
/// optimization. `ANABRANCH_QUIET=1` turns it off.
pub(crate) fn warn_once() {
    static WARNING: Once = Once::new();
    WARNING.call_once(|| {
        if level() == "0" && std::env::var_os("ANABRANCH_QUIET").is_none() {
            eprintln!("{MESSAGE}");
        }
    });
}

/// Returns the optimization level of this crate.
fn level() -> &'static str {
    // Long runs of the tests optimize this crate.
    #[cfg(test)]
    if tests::counts_as_unoptimized() {
        return "0";
    }
    env!("ANABRANCH_OPT_LEVEL")
}

const MESSAGE: &str = "anabranch: the runtime was built without optimization and is about 100 times slower. Build with \
                       --release, or add `[profile.dev.package.\"*\"]` with `opt-level = 3` to Cargo.toml \
                       (ANABRANCH_QUIET=1 hides this)";

#[cfg(test)]
mod tests {
    use crate::Session;
    use std::process::Command;

    /// Set in processes that this test starts: the level that they count with.
    const CHILD: &str = "ANABRANCH_TEST_WARNING";

    pub(super) fn counts_as_unoptimized() -> bool {
        std::env::var_os(CHILD).is_some_and(|level| level == "unoptimized")
    }

    /// The warning is for a whole process, so this test runs itself in others.
    #[test]
    fn a_process_with_an_unoptimized_runtime_is_warned_once() {
        if std::env::var_os(CHILD).is_some() {
            for _ in 0..2 {
                Session::new().expect("a session on the CPU");
            }
            return;
        }
        let warnings = |level: &str, quiet: bool| {
            let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
            let name = "session::unoptimized::tests::a_process_with_an_unoptimized_runtime_is_warned_once";
            command.args(["--exact", name, "--nocapture"]).env(CHILD, level).env_remove("ANABRANCH_QUIET");
            if quiet {
                command.env("ANABRANCH_QUIET", "1");
            }
            let output = command.output().expect("this program can be started");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            errors.lines().filter(|line| line.starts_with("anabranch: ")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(warnings("unoptimized", false), [super::MESSAGE]);
        assert_eq!(warnings("unoptimized", true), [""; 0]);
        let is_unoptimized = env!("ANABRANCH_OPT_LEVEL") == "0";
        assert_eq!(warnings("as it is built", false).len(), usize::from(is_unoptimized));
    }
}
