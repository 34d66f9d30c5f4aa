//! How many random cases are tried, and from which seed.

use anabranch_dsl::corpus;
use proptest::test_runner::{Config, RngSeed};

/// So many cases, or as many as `PROPTEST_CASES` says, from the [seed of all random
/// tests](corpus::seed). Failures are shown with what they shrink to; no file is written.
pub(crate) fn config(cases: u32) -> Config {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { cases };
    Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(corpus::seed()), ..Config::default() }
}
