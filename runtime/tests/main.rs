//! The tests of the runtime, in one program: each file is a module. `allocations.rs` and
//! `flat_memory.rs` are separate programs, because they count the allocations of their processes.

mod attention;
mod caller_thread_pools;
mod channels_last;
mod concurrency;
mod control;
mod conv;
mod corpus;
mod dynamic;
mod fused;
mod gradients;
mod halves;
mod kernels;
#[cfg(feature = "jit")]
mod native;
mod parallel_ops;
mod products;
mod random;
#[path = "../../dsl/tests/random/config.rs"]
mod random_config;
mod random_programs;
mod results;
mod scalar_functions;
mod scatter;
mod session;
mod stacks;
mod support;
mod tiles;
mod updates;
