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
//! function if its argument types are new, optimizes the graph, compiles it to a plan and
//! runs the plan's instructions with the kernels of the CPU (`cpu`). For several devices, the graph
//! is placed first (`place`) and cut into a subgraph for each (`flow`). A [`Program`] is a graph
//! that was compiled without a function.

mod cpu;
mod device;
mod disjoint_sets;
mod flow;
#[cfg(feature = "gpu")]
mod gpu;
mod guests;
mod id;
mod options;
#[cfg(feature = "peers")]
mod peer;
mod place;
mod session;
mod spin;
mod threads;

/// Fuzz targets, what benchmarks compare with, and what tests of processes need.
#[cfg(all(feature = "peers", feature = "testing"))]
#[doc(hidden)]
pub mod testing {
    pub use crate::peer::{BareQuic, FuzzTarget, visit};
}

pub use cpu::kernels::functions::{register_binary, register_unary};
pub use cpu::program::Program;
pub use device::SimulatedDevice;
pub use device::timeline::{OperationTime, OperationTimes, Span, Timeline};
#[cfg(feature = "testing")]
pub use flow::random_placement::{RandomPlacement, RandomlyPlacedProgram};
#[cfg(all(feature = "gpu", feature = "testing"))]
#[doc(hidden)]
pub use gpu::ModelledTimes;
#[cfg(feature = "gpu")]
pub use gpu::{GpuAdapter, gpu_adapters};
/// Sessions over several processes: peers, their keys and their addresses.
#[cfg(feature = "peers")]
pub mod peers {
    pub use crate::peer::{
        JoinToken, LinkReport, NodeId, NodeKey, Peer, PeerAddress, PeerOptions, PeerStatus, Profile, QueueStatus,
        SharedStatus,
    };
}
pub use options::MatmulPrecision;
pub use session::call::{CallOptions, CancelHandle};
pub use session::files::{TensorFiles, WrittenFile};
pub use session::function::Function;
pub use session::prune::PrunedFunction;
pub use session::queues::{HostQueue, QueueFeed, QueueIter};
#[doc(hidden)]
pub use session::queues::{QueueColumn, QueueContent};
pub use session::snapshot::Snapshot;
pub use session::{Session, SessionBuilder};
