//! Updates of the rows of a variable that have a gradient.
//!
//! The gradient of an embedding table is zero in most rows: a sum of rows, scattered into zeros. A
//! rule that leaves rows without a gradient as they are computes only the *used* rows, into which
//! something is scattered. So the cost of a step is in proportion to the rows that it reads, and
//! not to the size of the table.
//!
//! The used rows are found in the graph that is being traced, in which gradients are explicit. They
//! get the very bits that an update of the whole table gives them: their gradient is computed by
//! the same operations in the same order, in a small table with a row for each use. Other rows stay
//! as they are, also where zero times infinity, or zero by zero, would have changed them.

use crate::ir::{Attrs, Graph, Op, Value};
use crate::ops::attributes::Along;
use crate::ops::{Prim, ValueCx, emit, prim};
use crate::passes::{broadcast_number, is_zero, made_by};
use crate::trace::with;
use crate::{AnyValue, DType, Dim, HostTensor, Shape, iota};
use rustc_hash::FxHashMap;

/// The rows of a variable that are updated, along its first axis.
pub(super) struct UpdatedRows {
    /// The row of each use, or `None` if all rows are updated, in their order.
    ids: Option<AnyValue>,
    gradient: AnyValue,
    /// Whether a row is updated here, or `None` if all are. It broadcasts to the gradient.
    mask: Option<AnyValue>,
}

impl UpdatedRows {
    /// Returns the rows in which a gradient may differ from zero: the used rows, if the gradient is
    /// seen to consist of few of them, and else all.
    #[track_caller]
    pub(super) fn of(gradient: AnyValue) -> UpdatedRows {
        let Some(sums) = with(|t| RowSums::find(&t.graph, gradient.value())) else {
            return UpdatedRows { ids: None, gradient, mask: None };
        };
        let vector = |uses: &RowUses| AnyValue::new(uses.ids, gradient.context()).reshape([uses.n]);
        let mut parts: Vec<AnyValue> = sums.uses.iter().map(vector).collect();
        if parts.iter().any(|ids| ids.dtype() != parts[0].dtype()) {
            parts.iter_mut().for_each(|ids| *ids = ids.cast(DType::I64));
        }
        let ids = if let [ids] = parts[..] { ids } else { AnyValue::concat(&parts, 0) };
        // A row that is used several times is updated at its first use.
        let firsts = ids.first_occurrences();
        let mut per_row = vec![1; gradient.rank()];
        per_row[0] = sums.n;
        let mask = firsts.eq(iota::<i32>(sums.n).untyped()).reshape(per_row);
        UpdatedRows { ids: Some(ids), gradient: sums.sum(gradient, firsts), mask: Some(mask) }
    }

    /// Leaves out the rows whose gradient is zero in all elements.
    #[track_caller]
    pub(super) fn with_gradient(mut self) -> UpdatedRows {
        let is_set = self.gradient.ne(self.gradient.zeros_like());
        let axes: Vec<isize> = (1..self.gradient.rank() as isize).collect();
        let is_set = if axes.is_empty() { is_set } else { is_set.any_keepdim(axes) };
        self.mask = Some(self.mask.map_or(is_set, |mask| mask.and(is_set)));
        self
    }

    /// Returns the gradient of the rows.
    pub(super) fn gradient(&self) -> AnyValue {
        self.gradient
    }

    /// Returns the rows of a tensor of the shape of the variable.
    #[track_caller]
    pub(super) fn of_table(&self, table: AnyValue) -> AnyValue {
        self.ids.map_or(table, |ids| table.take(ids, 0))
    }

    /// Adds a number to each element of the rows of such a tensor.
    #[track_caller]
    pub(super) fn add(&self, table: AnyValue, changes: AnyValue) -> AnyValue {
        // The sum with a negative zero is the same number, also for a negative zero.
        let changes = self.mask.map_or(changes, |mask| mask.select(changes, changes.number(-0.0)));
        self.ids.map_or_else(|| table + changes, |ids| table.scatter_add(ids, changes, 0))
    }
}

/// A gradient that is zero except in used rows.
#[derive(Default)]
struct RowSums {
    /// The operations that compute it, in their order, with their results.
    steps: Vec<(Value, RowSum)>,
    uses: Vec<RowUses>,
    /// The number of uses.
    n: usize,
}

/// The uses of the rows whose indices are in one tensor.
#[derive(Clone, Copy)]
struct RowUses {
    ids: Value,
    /// The number of the first of them, among all uses.
    first: usize,
    n: usize,
}

/// How a tensor that is zero except in used rows is computed.
enum RowSum {
    Zeros,
    Scatter { into: Value, rows: Value, uses: RowUses },
    Elementwise(Prim, Vec<Value>),
}

impl RowSums {
    /// Gradients of more operations are not looked through.
    const MAX_STEPS: usize = 100;

    fn find(graph: &Graph, gradient: Value) -> Option<RowSums> {
        let n_rows = *graph.ty(gradient).element().shape.known()?.first()?;
        let mut found = RowSums::default();
        found.visit(graph, gradient)?;
        // The update of a single row is slower than the update of one of many.
        (0 < found.n && found.n <= n_rows / 4).then_some(found)
    }

    /// Adds the steps that compute a value. Returns `None` if it may not be zero in other rows.
    fn visit(&mut self, graph: &Graph, v: Value) -> Option<()> {
        if self.steps.iter().any(|(seen, _)| *seen == v) {
            return Some(());
        }
        let step = if is_zero(graph, v) { RowSum::Zeros } else { self.step(graph, v)? };
        self.steps.push((v, step));
        (self.steps.len() <= RowSums::MAX_STEPS).then_some(())
    }

    fn step(&mut self, graph: &Graph, v: Value) -> Option<RowSum> {
        let (op, operands) = made_by(graph, v)?;
        let is_number = |v: Value| broadcast_number(graph, v).is_some();
        match (op, operands) {
            (prim::SCATTER_ADD, &[into, ids, rows]) => {
                let Op::Prim(_, attrs) = &graph.node(graph.producer(v)?).op else { return None };
                if Along::of(attrs).axis != 0 {
                    return None;
                }
                self.visit(graph, into)?;
                return Some(RowSum::Scatter { into, rows, uses: self.uses_of(graph, ids)? });
            }
            (prim::NEG, &[x]) => self.visit(graph, x)?,
            (prim::MUL | prim::DIV, &[x, by]) if is_number(by) => self.visit(graph, x)?,
            (prim::MUL, &[by, x]) if is_number(by) => self.visit(graph, x)?,
            (prim::ADD | prim::SUB, &[a, b]) => {
                self.visit(graph, a)?;
                self.visit(graph, b)?;
            }
            _ => return None,
        }
        Some(RowSum::Elementwise(op, operands.to_vec()))
    }

    fn uses_of(&mut self, graph: &Graph, ids: Value) -> Option<RowUses> {
        if let Some(known) = self.uses.iter().find(|uses| uses.ids == ids) {
            return Some(*known);
        }
        let n = graph.ty(ids).element().shape.size()?;
        let uses = RowUses { ids, first: self.n, n };
        self.uses.push(uses);
        self.n += n;
        Some(uses)
    }

    /// Computes the gradient in a table with a row for each use. `places` are the row in that table
    /// for each use.
    fn sum(&self, gradient: AnyValue, places: AnyValue) -> AnyValue {
        let (context, dtype) = (gradient.context(), gradient.dtype());
        let of_row = gradient.shape().dims()[1..].to_vec();
        let rows_of = |n: usize| [&[Dim::Known(n)], &of_row[..]].concat().into_iter().collect::<Shape>();
        let mut done: FxHashMap<Value, AnyValue> = FxHashMap::default();
        for (v, step) in &self.steps {
            let result = match step {
                RowSum::Zeros => context.constant(HostTensor::zeros(dtype, [])).broadcast_to(rows_of(self.n)),
                RowSum::Scatter { into, rows, uses } => {
                    let places = places.slice(0, uses.first, uses.first + uses.n);
                    done[into].scatter_add(places, AnyValue::new(*rows, context).reshape(rows_of(uses.n)), 0)
                }
                RowSum::Elementwise(op, operands) => {
                    let number = |v: Value| {
                        let scalar = with(|t| broadcast_number(&t.graph, v)).expect("other operands are numbers");
                        AnyValue::new(scalar, context).broadcast_to(rows_of(self.n))
                    };
                    let operand = |v: &Value| done.get(v).copied().unwrap_or_else(|| number(*v));
                    emit(*op, &operands.iter().map(operand).collect::<Vec<_>>(), Attrs::none())
                }
            };
            done.insert(*v, result);
        }
        done[&gradient.value()]
    }
}
