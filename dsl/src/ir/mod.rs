//! The graph IR: values, nodes and regions.
//!
//! A [`Graph`] is a plain value: it can be printed, parsed, compared and sent, and does not depend
//! on any device. Entities are small typed ids into tables of the graph ([`Value`], [`Node`],
//! [`Region`]).
//!
//! A node applies an [`Op`] to operands and defines results. A control-flow construct is a node
//! that owns regions. **Regions are closed**: every value that a node uses is defined in the node's
//! own region, as a parameter or by an earlier node. A value captured from outside is an operand of
//! the owner and a parameter of the region. So no transformation needs scope rules.
//!
//! | op | operands | regions |
//! |---|---|---|
//! | `cond` | predicate, captures | `then(captures)`, `else(captures)`, both yield the results |
//! | `while` | initial values, captures | `cond(carried, captures)` yields a `bool[]`; `body(carried, captures)` yields the next carried values, which are also the results |
//!
//! [`WhileNode`], [`CondNode`] and [`CallNode`] are views of such nodes that know this layout, and
//! [`Graph::source_of`] says where the values of a region parameter come from.
//!
//! Graphs print and parse as text ([`Graph::parse`], `docs/ir.md`). The feature `wire` adds a
//! binary form, for other processes. [`verify()`] checks the invariants of graphs.
//!
//! The order of the nodes in a region is program order. Nodes with effects run in that order.

mod attrs;
pub(crate) mod builder;
pub(crate) mod copy;
#[doc(hidden)]
pub mod dependence;
mod edit;
mod file;
mod graph;
mod infer;
mod lex;
mod list;
pub(crate) mod literal;
mod open;
mod parse;
mod print;
mod queue;
mod regions;
mod users;
pub mod verify;
#[cfg(feature = "wire")]
#[doc(hidden)]
pub mod wire;

pub use attrs::{Attr, AttrKind, Attrs};
pub use builder::{GraphBuilder, InsertPoint};
pub use file::FileOp;
pub use graph::{
    CallKind, Graph, Node, NodeData, Op, Origin, QueueId, Region, RegionData, StackOp, Value, ValueData, ValueDef,
    VarDecl, VarId,
};
pub(crate) use infer::{Broken, count, either, result_types};
pub(crate) use lex::{intern, is_interned};
pub use list::{ListForm, ListOp};
pub(crate) use literal::Quoted;
pub(crate) use open::MAX_OPEN;
pub use print::GraphText;
pub use queue::{QueueDecl, QueueOp};
pub use regions::{CallNode, Capture, CondNode, GradientInput, LoopVar, ParamSource, Runs, WhileNode};
pub use users::{Users, users};
pub use verify::verify;
