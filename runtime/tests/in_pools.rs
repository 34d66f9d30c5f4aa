//! Calls from inside of thread pools of the caller.
#![deny(warnings)]

use anabranch_dsl::Array;
use anabranch_dsl::prelude::*;
use anabranch_runtime::Session;
use rayon::prelude::*;

/// Calls that assign one variable, each of which is large enough to be cut for the threads, from as many items of the pool at once.
#[test]
fn steps_of_one_variable_may_run_in_the_callers_pool() -> anabranch_dsl::Result<()> {
    let total = Var::<f32>::new("total", 0.0);
    let session = Session::new()?;
    let step = session.function(|x: Tensor| {
        let y = x.matmul(x).matmul(x).tanh();
        total.set(total.get() + 1.0);
        (y * 0.0).sum()
    })?;
    let x = Array::new([256, 256], vec![0.01f32; 256 * 256]);
    // More threads than wait for the variable: some have time to take up parts of what another one computes.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build().expect("there are threads");
    pool.install(|| (0..16).into_par_iter().try_for_each(|_| step.call(&x).map(|_| ())))?;
    assert_eq!(session.get(&total)?, 16.0);
    Ok(())
}
