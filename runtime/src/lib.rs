//! The runtime of anabranch: sessions, variables, plans, kernels.

mod cpu;
mod plan;
