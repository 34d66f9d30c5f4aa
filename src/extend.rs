//! Interfaces for extending anabranch: operations, optimizers, passes, and graphs as values.
//!
//! Models and their training do not need this module. The book has a chapter for each extension: an
//! operation ([`register_unary`], [`register`]), an optimizer ([`read_var`], [`assign_var`]) and a
//! [`Pass`].
//!
//! A graph is a value. A graph is traced from a [`Function`](crate::Function) or parsed from the
//! text form, rewritten by passes, and compiled ([`Program`]):
//!
//! ```
//! use anabranch::extend::{Pipeline, Program, prim};
//! use anabranch::{Graph, HostTensor};
//!
//! let text = "graph @f(%x: f32[2]) -> f32[2] { %0 = neg %x  %y = neg %0  return %y }";
//! let mut graph = Graph::parse(text, "f.ir").expect("the text is a graph");
//! let x = [HostTensor::new([2], vec![1.0f32, -3.0])];
//! let expected = Program::new(graph.clone())?.run(&x, &mut vec![])?;
//!
//! // A pass preserves the semantics: here, both negations disappear.
//! Pipeline::standard().run(&mut graph);
//! let mut nodes = 0;
//! graph.visit_nodes(graph.root(), &mut |node| {
//!     nodes += usize::from(graph.node(node).op.is(prim::NEG));
//! });
//! assert_eq!(nodes, 0);
//! assert_eq!(Program::new(graph)?.run(&x, &mut vec![])?, expected);
//! # Ok::<(), anabranch::Diagnostic>(())
//! ```
//!
//! The interpreter defines the semantics. To test an operation or a pass, compare with a session
//! that interprets its functions, `Session::builder().interpreted(true)`.

#[doc(inline)]
pub use anabranch_dsl::Buffer;
#[doc(inline)]
pub use anabranch_dsl::autodiff::differentiate;
#[doc(inline)]
pub use anabranch_dsl::format::{FormatSpec, FormatTrait, Template, TemplatePiece};
#[doc(inline)]
pub use anabranch_dsl::ir::{
    Attr, AttrKind, Attrs, CallKind, CallNode, Capture, CondNode, FileOp, GradientInput, GraphBuilder, GraphText,
    InsertPoint, ListForm, ListOp, LoopVar, Node, NodeData, Op, Origin, ParamSource, QueueDecl, QueueId, QueueOp,
    Region, RegionData, Runs, StackOp, Value, ValueData, ValueDef, VarDecl, VarId, WhileNode,
};
#[doc(inline)]
pub use anabranch_dsl::ops::{
    Aliasing, Arity, BinaryFunction, Combiner, Contraction, Coord, CostCx, Coverage, Effects, Effort, Eval, EvalCx,
    Exactness, Grad, GradNode, GradRule, GradValue, Halves, InGraph, InTrace, Infer, InferCx, Laws, OpClass, OpCost,
    OpDef, OpError, Prim, ScalarForm, UnaryFunction, ValueCx, ViewCx, ViewForm, ViewMap, emit, prim, register,
};
#[doc(inline)]
pub use anabranch_dsl::passes::{Dce, Pass, Pipeline};
#[doc(inline)]
pub use anabranch_dsl::trace::{assign_var, read_var};
#[doc(inline)]
pub use anabranch_dsl::var::VarPath;
#[doc(inline)]
pub use anabranch_runtime::{Program, TensorFiles, WrittenFile, register_binary, register_unary};

/// The language of scalar functions, in which [`UnaryFunction`] and [`BinaryFunction`] are written:
/// primitives that are exact or correctly rounded, and functions composed of them.
///
/// A function has no branches: [`Arithmetic::choose`](scalars::Arithmetic::choose) selects between
/// two values. Every engine on CPUs yields the same bits, as the function fixes the order of its
/// primitives.
pub mod scalars {
    #[doc(inline)]
    pub use anabranch_dsl::scalars::{
        Arithmetic, Bitwise, Comparable, Format, Mask, Real, acos, asin, atan, atan2, cosh, erf, exp, expm1, gelu, log,
        log1p, pow, sigmoid, silu, sinh, softplus, tanh,
    };
}
