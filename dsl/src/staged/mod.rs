//! The target of `#[graph]`'s expansion: one set of calls for host and staged control flow.
//!
//! The macro sees tokens, not types. The macro turns every `if`, `while`, `&&`, `||`, comparison,
//! assertion and print into calls of this module. The *type of the condition* selects the
//! semantics: `bool` is ordinary Rust at trace time, `Tensor<bool>` records a `cond` or a `while`
//! node. [`Condition`] is the trait with these two implementations.
//!
//! The expansion is straight-line code, so every block of the user appears once, and host code
//! keeps its `?`, `break`, `return`, borrows and values that are not `Copy`:
//!
//! ```text
//! let mut c = If::new(condition(CONDITION));
//! // Host: entered if the condition holds. Staged: always, into the first region.
//! if c.then_arm((c.place(&mut x), ()), sites) { .. }
//! // Host: entered if the condition does not hold. Staged: always, into the second region.
//! if c.else_arm((c.place(&mut x), ()), sites) { .. }
//! // Host: nothing. Staged: creates the node, and x becomes its result.
//! c.end((c.place(&mut x), ()), sites);
//! ```
//!
//! Invariants:
//! - All calls of one construct receive the same places in the same order; `sites` names each of
//!   them.
//! - These places include every place that a staged arm assigns: each arm starts from the values
//!   before the construct.
//! - Nothing here runs twice: a staged arm or body is entered exactly once.
//!
//! This module is the interface between the macro and the tracer. This module is public for the
//! expansion only and may change at any time.

mod assert;
mod carry;
mod compare;
mod condition;
mod early;
mod flag;
mod if_else;
mod iterate;
mod jump;
mod logic;
mod print;
mod receiver;
mod rows;
mod slot;
mod used;
mod while_loop;

pub use crate::format::Stream;
pub use crate::function;
pub use crate::trace::{
    CallGuard, Extent, Site, bound_loops, count_endless, enter, expect_shape, name_param, overlap_loops,
};
pub use crate::var::{AnyVar, Module, VarPath};
pub use assert::{Assert, Assertable, Sides, fails};
pub(crate) use carry::Difference;
pub use carry::{Carry, FlatState, HostValue, Reader};
pub use compare::{
    CastOperand, Comparand, Compare, CompareHost, CompareLeft, CompareNumber, CompareReference, CompareRight,
    ComparedByMethod, Compares, ConvertedByAs, HostBool, HostCast, HostNumber, NamedBool, OutsideOfGraph, Scalar,
    TensorRef, compare, host_bool, host_number, named_bool,
};
pub use condition::{CarriedPlace, CarriedPlaces, Changes, Condition, ProducedByIf, Produces, Values, condition};
pub(crate) use condition::{check_one_structure, leaf_sites};
pub use early::{EarlyCopy, EarlyOperand, EarlyReceiver, MayCopyEarly, NoEarlyCopy};
pub use flag::{
    ConditionType, ConditionTypes, Flag, RaisedIn, StopsOnFlag, flag, guard, head, host_kind, is_down, is_up,
    join_kinds, joined, raise,
};
pub use if_else::{If, StagedIf};
pub use iterate::{
    Bounds, Ends, HostCounts, HostEnd, HostLoop, HostLooping, HostRows, Inclusive, Iterable, Looping, Position, Range,
    RangeEnd, Rows, host_end, host_iter, iterable, looping, range,
};
pub use jump::*;
pub use logic::{Lazy, Logical, StagedLazy};
pub(crate) use print::is_making_text;
pub use print::{Message, dbg, dbg_here, message, print};
pub use receiver::{
    ByTrait, Called, ChangesIf, CloneMethod, Decided, Either, Indexed, IndexedBy, IndexedByKey, IndexedByPosition,
    ItemOf, Known, KnownItems, MayChange, MaybeModified, NotByMutReference, NotCalled, Receiver, SharedMethod,
    ToOwnedMethod, ToStringMethod, Unless, Unmodified, UnmodifiedByTrait, by_trait, decided, either, indexed,
    inferred_kind, kinds, part_unless_whole,
};
pub(crate) use rows::RowLists;
pub use rows::{HasRows, RowsOfTuple, rows_of_tuple};
pub use slot::Slot;
pub use used::{
    Cells, CellsKind, HoldsKind, HoldsMutBorrow, InteriorMutable, MutBorrow, MutReference, MutReferences,
    NoMutReference, Used, UsedKind, Uses, never,
};
pub use while_loop::{StagedWhile, Trips, While};
