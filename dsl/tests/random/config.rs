//! The number of random cases and their seed.

use anabranch_dsl::corpus;
use proptest::test_runner::{Config, RngSeed};

/// Returns a configuration with this number of cases, or `PROPTEST_CASES`, and the [seed of all
/// random tests](corpus::seed). Failures are printed after shrinking and not written to a file.
pub(crate) fn config(cases: u32) -> Config {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { cases };
    Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(corpus::seed()), ..Config::default() }
}
