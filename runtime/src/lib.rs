//! The runtime of anabranch: sessions, variables, plans, kernels.
//!
//! ```
//! use anabranch::prelude::*;
//! use anabranch::Session;
//!
//! let session = Session::new()?;
//! let length = session.function(|x: Tensor| (x * x).sum().sqrt())?;
//! assert_eq!(length.call([3.0, 4.0])?, 5.0);
//! # Ok::<(), anabranch::Diagnostic>(())
//! ```
//!
//! A [`Session`] compiles [`Function`]s and owns the values of variables. A call traces the
//! function if its argument types are new, optimizes the graph, lowers it to a plan (`plan`), and
//! runs the plan's instructions with the kernels of the CPU (`cpu`). For several devices, the graph
//! is placed first (`place`) and cut into a subgraph for each (`flow`). A [`Program`] is a graph
//! that was compiled without a function.

mod call;
mod compiled;
mod cpu;
mod device;
mod disjoint_sets;
mod engine;
mod flow;
mod function;
mod id;
mod native;
mod optimize;
mod place;
mod plan;
mod program;
mod prune;
mod random_placement;
mod results;
mod session;
mod state;
mod step_threads;
mod timeline;
mod unoptimized;

pub use call::{CallOptions, CancelHandle};
pub use device::SimulatedDevice;
pub use function::Function;
pub use program::Program;
pub use prune::PrunedFunction;
pub use random_placement::{RandomPlacement, RandomlyPlacedProgram};
pub use session::{Session, SessionBuilder};
pub use timeline::{Span, Timeline};
