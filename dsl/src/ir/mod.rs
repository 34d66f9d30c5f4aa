//! The graph: values, nodes, regions.
//!
//! A [`Graph`] is a value: it can be printed, parsed, compared and sent, and knows no device. Entities are small typed
//! ids into tables of the graph ([`Value`], [`Node`], [`Region`]).
//!
//! A node applies an [`Op`] to operands and defines results. Control flow is a node that holds regions. **Regions are
//! closed**: every value that a node uses is defined in the node's own region, as a parameter or by an earlier node;
//! what a region needs from outside is an operand of its owner and a parameter of the region. So no transformation
//! needs scope rules.
//!
//! | op | operands | regions |
//! |---|---|---|
//! | `cond` | predicate, captures | `then(captures)`, `else(captures)`, both yield the results |
//! | `while` | initial values, captures | `cond(carried, captures)` yields a `bool[]`; `body(carried, captures)` yields the next carried values, which are also the results |
//!
//! Graphs print and parse as text ([`Graph::parse`], `docs/ir.md`), and what holds of them is checked by [`verify()`].
//!
//! The order of the nodes in a region is their program order; nodes with effects happen in that order.

mod attrs;
pub mod dependence;
mod edit;
mod graph;
mod infer;
mod lex;
mod list;
mod literal;
mod parse;
mod print;
pub mod verify;

pub use attrs::{Attr, AttrKind, Attrs};
pub(crate) use edit::Replacements;
pub use graph::{
    CallKind, Graph, Node, NodeData, Op, Origin, Region, RegionData, StackOp, Value, ValueData, ValueDef, VarDecl,
    VarId,
};
pub(crate) use infer::{Broken, is_countable, result_types};
pub(crate) use lex::intern;
pub use list::{ListForm, ListOp};
pub(crate) use literal::Quoted;
pub use print::GraphText;
pub use verify::verify;
