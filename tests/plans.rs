//! Golden files of the benchmarks' plans, in which packed matrices are padded to vectors of 8 or 16
//! `f32`, as on x86-64 with AVX2 or AVX-512.
#![cfg(target_arch = "x86_64")]

use crate::support::plans::{ArenasOfPacked, check_plans};
use anabranch_benches::ALL;

#[test]
fn plans_of_benchmarks_are_as_recorded() {
    for (module, programs) in ALL {
        let plans: Vec<_> = programs.iter().map(|(name, make)| (name.to_string(), make().explain())).collect();
        // Only these have a matrix with fewer columns than a vector.
        let is_padded_to_8 = *module == "training" && !std::arch::is_x86_feature_detected!("avx512f");
        let vectors = if is_padded_to_8 { "_avx2" } else { "" };
        check_plans(&format!("benchmarks/{module}{vectors}"), &plans, ArenasOfPacked::Kept);
    }
}
