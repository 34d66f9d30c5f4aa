//! Golden files of the benchmarks' plans. The plans assume that packed matrices are padded to
//! vectors of 8 or 16 `f32`, as on x86-64 with AVX2 or AVX-512.
#![cfg(target_arch = "x86_64")]

use crate::support::plans::check_plans;
use anabranch_benches::ALL;

#[test]
fn plans_of_benchmarks_are_as_recorded() {
    for (module, programs) in ALL {
        let plans: Vec<_> = programs.iter().map(|(name, make)| (name.to_string(), make().explain())).collect();
        check_plans(&format!("benchmarks/{module}"), &plans);
    }
}
